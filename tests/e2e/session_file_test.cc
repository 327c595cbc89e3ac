// A session's cache in a file: loaded, it goes on with the bits of a session that computed it all; what does not belong
// together is refused, and the session is as new then.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "decoder/expect_status.h"
#include "e2e/session_model.h"
#include "headlane/decoder.h"

namespace headlane::testing {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

class SessionFileTest : public ::testing::Test {
 protected:
  SessionFileTest() {
    tiny_.MakeWeights(5);
    model_.emplace(LoadTiny(tiny_));
    options_.max_context = 200;
    options_.page_tokens = 32;
  }
  void Save(const std::vector<int32_t>& ids) {
    Session session = MakeSession(*model_, options_);
    ASSERT_TRUE(session.Prefill(ids).ok());
    const Status saved = session.SaveCache(file_.path());
    ASSERT_TRUE(saved.ok()) << saved.c_str();
    EXPECT_EQ(*Session::SavedLength(file_.path()), static_cast<int64_t>(ids.size()));
  }
  // An error, or the number of tokens; in both cases the session then computes `ids` with the bits of a new one.
  Result<int64_t> Load(const std::vector<int32_t>& ids) {
    Session session = MakeSession(*model_, options_);
    Result<int64_t> loaded = session.LoadCache(file_.path(), ids);
    const int64_t begin = loaded.ok() ? *loaded : 0;
    EXPECT_EQ(session.length(), begin);
    EXPECT_TRUE(session.logits().empty());
    EXPECT_TRUE(session.Prefill(std::span(ids).subspan(static_cast<size_t>(begin))).ok());
    EXPECT_EQ(session.prompt_stats().tokens, static_cast<int64_t>(ids.size()) - begin);
    Session whole = MakeSession(*model_, options_);
    EXPECT_TRUE(whole.Prefill(ids).ok());
    EXPECT_EQ(Copy(session.logits()), Copy(whole.logits()));
    for (const int32_t id : {7, 8, 9}) {
      EXPECT_TRUE(session.Step(id).ok() && whole.Step(id).ok());
      EXPECT_EQ(Copy(session.logits()), Copy(whole.logits()));
    }
    return loaded;
  }

  TinyModel tiny_;
  std::optional<Model> model_;
  SessionOptions options_;
  const TemporaryFile file_{{}, ".cache"};
};

TEST_F(SessionFileTest, GoesOnWithTheSameBitsAtEveryType) {
  const std::vector<int32_t> ids = SomeIds(90, 1);
  std::vector<int32_t> longer = ids;
  for (const int32_t id : SomeIds(20, 2)) longer.push_back(id);
  std::vector<int32_t> forked = longer;
  forked[50] ^= 1;
  for (int type = 0; type < kNumDTypes; ++type) {
    for (const bool rotate : {false, true}) {
      options_.k_dtype = options_.v_dtype = static_cast<DType>(type);
      options_.rotate = rotate;
      SCOPED_TRACE(std::string(DTypeName(options_.k_dtype)) + (rotate ? " rotated" : ""));
      Save(ids);
      EXPECT_EQ(*Load(longer), 90);
      EXPECT_EQ(*Load(ids), 89) << "one token is left for its logits";
      EXPECT_EQ(*Load(forked), 50);
      EXPECT_EQ(*Load({ids.begin(), ids.begin() + 40}), 39);
      EXPECT_EQ(*Load({ids[0] ^ 1, 5, 6}), 0);
      EXPECT_EQ(*Load({ids[0]}), 0);
    }
  }
}

TEST_F(SessionFileTest, WindowsAreKeptOrSaidToBeGone) {
  options_.window = 24;
  options_.num_sinks = 3;
  options_.chunk = 16;
  options_.page_tokens = 16;
  const std::vector<int32_t> ids = SomeIds(150, 1);
  std::vector<int32_t> longer = ids;
  longer.push_back(3);
  Save(ids);
  EXPECT_EQ(*Load(longer), 150);
  EXPECT_EQ(*Load(ids), 149);
  EXPECT_EQ(*Load({ids.begin(), ids.begin() + 136}), 135);
  // Further back than the ring: computed again.
  EXPECT_EQ(*Load({ids.begin(), ids.begin() + 134}), 0);
}

// Another's file of a name beside is not touched, and neither is what is no file.
TEST_F(SessionFileTest, NothingElseIsReplaced) {
  namespace fs = std::filesystem;
  const std::string beside = file_.path() + ".part";
  WriteFile(beside, "mine");
  Save(SomeIds(40, 1));
  EXPECT_EQ(ReadFile(beside), "mine");
  fs::remove(beside);
  fs::remove(file_.path());
  fs::create_directory(file_.path());
  Session session = MakeSession(*model_, options_);
  ASSERT_TRUE(session.Prefill(SomeIds(40, 1)).ok());
  EXPECT_ERROR(session.SaveCache(file_.path()), kFailedPrecondition, "no regular file");
  EXPECT_TRUE(fs::is_empty(file_.path()));
  fs::remove(file_.path());
}

TEST_F(SessionFileTest, AnotherModelOrKindOfCacheIsRefused) {
  const std::vector<int32_t> ids = SomeIds(90, 1);
  Save(ids);
  options_.k_dtype = DType::kI8;
  EXPECT_ERROR(Load(ids), kInvalidArgument, "k_dtype");
  options_.k_dtype = DType::kF32;
  options_.rotate = true;
  EXPECT_ERROR(Load(ids), kInvalidArgument, "rotate");
  options_.rotate = false;
  options_.window = 50;
  EXPECT_ERROR(Load(ids), kInvalidArgument, "window");
  options_.window = 0;
  options_.max_context = 70;
  {
    Session session = MakeSession(*model_, options_);
    const Result<int64_t> loaded = session.LoadCache(file_.path(), std::span(ids).first(50));
    EXPECT_FALSE(loaded.ok()) << "90 tokens do not fit";
    EXPECT_TRUE(session.Prefill(std::span(ids).first(70)).ok());
  }
  options_.max_context = 200;
  EXPECT_EQ(*Load(ids), 89);

  // The same shape, other weights; and one number of the rotation.
  tiny_.MakeWeights(6);
  model_.emplace(LoadTiny(tiny_));
  EXPECT_ERROR(Load(ids), kInvalidArgument, "another model");
  tiny_.MakeWeights(5);
  tiny_.rope_base = 20000;
  model_.emplace(LoadTiny(tiny_));
  EXPECT_ERROR(Load(ids), kInvalidArgument, "another model");
  tiny_.rope_base = 10000;
  model_.emplace(LoadTiny(tiny_));
  EXPECT_EQ(*Load(ids), 89);
}

TEST_F(SessionFileTest, DamageIsRefused) {
  const std::vector<int32_t> ids = SomeIds(40, 1);
  Save(ids);
  const std::string good = ReadFile(file_.path());
  // Every byte of the header and ids, and a few of the rest, whose damage has tests of its own.
  for (size_t i = 0; i < good.size(); i += i < 48 + 4 * 40 ? 1 : 997) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    WriteFile(file_.path(), bad);
    Session session = MakeSession(*model_, options_);
    const Result<int64_t> loaded = session.LoadCache(file_.path(), ids);
    ASSERT_FALSE(loaded.ok()) << "byte " << i;
    ASSERT_EQ(session.length(), 0);
    ASSERT_EQ(session.memory().cache_used_bytes, 0);
  }
  for (const size_t size : {size_t{0}, size_t{7}, size_t{39}, size_t{45}, size_t{200}, size_t{210}, good.size() - 1}) {
    WriteFile(file_.path(), good.substr(0, size));
    EXPECT_ERROR(Load(ids), kDataLoss, "") << size;
  }
  WriteFile(file_.path(), good + "x");
  EXPECT_ERROR(Load(ids), kDataLoss, "goes on behind its end");
  WriteFile(file_.path(), good);
  EXPECT_EQ(*Load(ids), 39);
}

TEST_F(SessionFileTest, WhatCantBeSavedOrLoadedIsSaid) {
  const std::vector<int32_t> ids = SomeIds(40, 1);
  Session session = MakeSession(*model_, options_);
  ASSERT_TRUE(session.Prefill(ids).ok());
  EXPECT_ERROR(session.LoadCache(file_.path(), ids), kFailedPrecondition, "this one has 40 tokens");
  EXPECT_ERROR(session.SaveCache("/no/such/folder/file"), kNotFound, "/no/such/folder/file");
  ASSERT_TRUE(session.FillRandom(50, 1).ok());
  EXPECT_ERROR(session.SaveCache(file_.path()), kFailedPrecondition, "token 40 is made up");
  ASSERT_TRUE(session.Truncate(0).ok());
  EXPECT_ERROR(session.LoadCache("/no/such/file", ids), kNotFound, "/no/such/file");
  EXPECT_ERROR(Session::SavedLength("/no/such/file"), kNotFound, "/no/such/file");
  // A file that was there stays whole when saving fails, and nothing is left beside it.
  Save(ids);
  const std::string before = ReadFile(file_.path());
  ASSERT_TRUE(session.FillRandom(3, 1).ok());
  EXPECT_FALSE(session.SaveCache(file_.path()).ok());
  EXPECT_EQ(ReadFile(file_.path()), before);
  EXPECT_FALSE(std::ifstream(file_.path() + ".part").good());
  // Nothing at all is something, too.
  ASSERT_TRUE(session.Truncate(0).ok());
  ASSERT_TRUE(session.SaveCache(file_.path()).ok());
  EXPECT_EQ(*Load(ids), 0);
}

}  // namespace
}  // namespace headlane::testing
