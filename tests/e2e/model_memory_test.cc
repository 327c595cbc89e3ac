// What a process holds after loading the default model: the weights once. A program of its own, since memory that other
// tests have used would count.
//
// HEADLANE_MODEL names the file; see model_reference_test.cc.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "headlane/decoder.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEADLANE_SHADOW_MEMORY 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HEADLANE_SHADOW_MEMORY 1
#endif
#endif

namespace headlane::testing {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  return file >> pages >> resident ? resident * static_cast<int64_t>(::sysconf(_SC_PAGESIZE)) : -1;
}

class ModelMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* path = std::getenv("HEADLANE_MODEL");
    if (path != nullptr && *path != 0) {
      path_ = path;
#ifdef HEADLANE_SHADOW_MEMORY
      GTEST_SKIP() << "this build has memory of its own beside the program's";
#endif
      if (ResidentBytes() < 0) GTEST_SKIP() << "the system does not say what is in memory";
      return;
    }
    const char* required = std::getenv("HEADLANE_REQUIRE_MODEL");
    if (required != nullptr && std::string(required) == "1") FAIL() << "HEADLANE_MODEL is not set, but required";
    std::printf("model test skipped: HEADLANE_MODEL names no model file\n");
    GTEST_SKIP();
  }

  // Loads, computes a few tokens, so that everything that is used was touched, and measures.
  void ExpectWeightsOnce(const LoadOptions& options, bool mapped) {
    Result<Model> model = Model::Open(path_);
    ASSERT_TRUE(model.ok()) << model.status().c_str();
    const Status loaded = model->LoadWeights(options);
    ASSERT_TRUE(loaded.ok()) << loaded.c_str();
    EXPECT_EQ(model->packed_weights().mapped, mapped) << model->packed_weights().not_mapped.c_str();
    SessionOptions session_options;
    session_options.max_context = 256;
    Result<Session> session = Session::Create(*model, session_options);
    ASSERT_TRUE(session.ok()) << session.status().c_str();
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
    ASSERT_TRUE(session->Prefill(ids).ok());
    ASSERT_TRUE(session->Step(9).ok());
    const int64_t file = model->info().file_bytes;
    const int64_t resident = ResidentBytes();
    std::printf("resident %.1f MiB; file %.1f, weights %.1f, cache %.1f, scratch %.1f MiB\n",
                static_cast<double>(resident) / kMiB, static_cast<double>(file) / kMiB,
                static_cast<double>(model->weight_bytes()) / kMiB,
                static_cast<double>(session->memory().cache_bytes) / kMiB,
                static_cast<double>(session->memory().scratch_bytes) / kMiB);
    EXPECT_LE(resident, file + file * 15 / 100 + session->memory().cache_bytes + 64 * kMiB);
    EXPECT_GE(resident, model->weight_bytes()) << "weights that are not in memory were not used";
  }

  std::string path_;
};

// In this order: what the first one gives back may stay with the allocator.
TEST_F(ModelMemoryTest, MappedWeightsAreHeldOnce) {
  LoadOptions options;
  options.packed_weights_path = ::testing::TempDir() + "headlane_memory." + std::to_string(::getpid()) + ".packed";
  {
    Result<Model> model = Model::Open(path_);
    ASSERT_TRUE(model.ok());
    ASSERT_TRUE(model->LoadWeights(options).ok());
    ASSERT_TRUE(model->packed_weights().written) << model->packed_weights().not_written.c_str();
  }
  ExpectWeightsOnce(options, true);
  ::unlink(options.packed_weights_path.c_str());
}

TEST_F(ModelMemoryTest, PackedWeightsAreHeldOnce) { ExpectWeightsOnce(LoadOptions(), false); }

}  // namespace
}  // namespace headlane::testing
