// Weights as they are stored: quantised tiles, f32 in memory, and the file of packed weights give the same bits, for
// any rows and threads; and a packed file that is not what it should be is made anew.
#include <gtest/gtest.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "decoder/expect_status.h"
#include "e2e/random_blocks.h"
#include "e2e/session_model.h"
#include "e2e/tiny_model.h"
#include "headlane/decoder.h"

namespace headlane::testing {
namespace {

using LogitRows = std::vector<std::vector<float>>;

LoadOptions Expanded() {
  LoadOptions options;
  options.expand = true;
  return options;
}

LoadOptions PackedAt(const std::string& path) {
  LoadOptions options;
  options.packed_weights_path = path;
  return options;
}

// Logits after each token: one row at a time.
LogitRows StepsOf(const Model& model, const std::vector<int32_t>& ids, int threads) {
  SessionOptions options;
  options.threads = threads;
  Session session = MakeSession(model, options);
  return StepAll(session, ids);
}

// Logits after a prompt that goes through the layers in chunks.
std::vector<float> Prompt(const Model& model, const std::vector<int32_t>& ids, int64_t chunk, int threads) {
  SessionOptions options;
  options.threads = threads;
  options.chunk = chunk;
  Session session = MakeSession(model, options);
  EXPECT_TRUE(session.Prefill(ids).ok());
  return Copy(session.logits());
}

// A name for a packed file that goes away with the object.
class PackedPath {
 public:
  PackedPath() : file_(std::vector<uint8_t>{1}, ".packed") { ::unlink(path().c_str()); }
  const std::string& path() const { return file_.path(); }

 private:
  TemporaryFile file_;
};

void ExpectOneResult(const TinyModel& tiny) {
  const TemporaryFile file(tiny.Build());
  const std::vector<int32_t> ids = SomeIds(19, 5);
  const Model expanded = LoadFile(file.path(), Expanded());
  const LogitRows expected = StepsOf(expanded, ids, 1);

  // The double-precision pass on the same weights: all of the above could agree on nonsense.
  const auto exact = tiny.Logits(ids);
  double largest = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    for (size_t i = 0; i < exact[t].size(); ++i) {
      largest = std::max(largest, std::fabs(exact[t][i]));
      ASSERT_NEAR(static_cast<double>(expected[t][i]), exact[t][i], 2e-4 * (1 + std::fabs(exact[t][i])))
          << "token " << t << ", logit " << i;
    }
  }
  EXPECT_GT(largest, 0.1) << "weights of nothing prove nothing";

  const PackedPath packed;
  const Model stored = LoadFile(file.path(), LoadOptions());
  const Model written = LoadFile(file.path(), PackedAt(packed.path()));
  EXPECT_TRUE(written.packed_weights().written) << written.packed_weights().not_written.c_str();
  EXPECT_ERROR(written.packed_weights().not_mapped, kNotFound, packed.path());
  const Model mapped = LoadFile(file.path(), PackedAt(packed.path()));
  EXPECT_TRUE(mapped.packed_weights().mapped) << mapped.packed_weights().not_mapped.c_str();
  EXPECT_FALSE(mapped.packed_weights().written);
  const struct {
    const char* name;
    const Model& model;
  } models[] = {{"expanded", expanded}, {"stored", stored}, {"written", written}, {"mapped", mapped}};
  for (const auto& [name, model] : models) {
    for (const int threads : {1, 2, 3}) {
      EXPECT_TRUE(SameBits(StepsOf(model, ids, threads), expected)) << name << ", threads " << threads;
      for (const int64_t chunk : {3, 17}) {
        EXPECT_TRUE(SameBits(Prompt(model, ids, chunk, threads), expected.back()))
            << name << ", threads " << threads << ", chunks of " << chunk;
      }
    }
  }
}

class StoredWeights : public ::testing::TestWithParam<TensorType> {};

TEST_P(StoredWeights, OneResultHoweverTheyAreHeld) { ExpectOneResult(StoredModel(GetParam(), 7)); }

INSTANTIATE_TEST_SUITE_P(Types, StoredWeights, ::testing::ValuesIn(kStoredTypes), [](const auto& info) {
  return std::string(TensorTypeName(static_cast<uint32_t>(info.param)));
});

TEST(StoredWeightsMixed, EveryMatrixOfAnotherType) {
  ExpectOneResult(MixedModel(3));
  TinyModel untied = MixedModel(4);
  untied.tied_head = false;
  TinyModel::Tensor head{untied.vocab_size,
                         untied.width,
                         std::vector<float>(static_cast<size_t>(untied.vocab_size * untied.width)),
                         0,
                         {}};
  StoreAs(TensorType::kQ6_K, 99, head);
  untied.tensors["output.weight"] = head;
  ExpectOneResult(untied);
}

TEST(StoredWeightsMemory, TakesWhatTheFileTakes) {
  for (const TensorType type : kStoredTypes) {
    const TinyModel tiny = StoredModel(type, 1);
    int64_t stored = 0;
    for (const auto& [name, tensor] : tiny.tensors) stored += static_cast<int64_t>(tensor.bytes.size());
    const TemporaryFile file(tiny.Build());
    const Model model = LoadFile(file.path(), LoadOptions());
    // The last tiles of 20, 40 and 260 features are filled up.
    EXPECT_GE(model.weight_bytes(), stored * 95 / 100) << TensorTypeName(static_cast<uint32_t>(type));
    EXPECT_LE(model.weight_bytes(), stored * 120 / 100) << TensorTypeName(static_cast<uint32_t>(type));
  }
}

// What is counted as done, and what of the weights as read: for rooflines.
TEST(StoredWeightsMemory, OperationsAndBytesOfAPass) {
  const TinyModel tiny = StoredModel(TensorType::kQ4_K, 1);
  const TemporaryFile file(tiny.Build());
  const Model model = LoadFile(file.path(), LoadOptions());
  double layers = 0;
  for (const auto& [name, tensor] : tiny.tensors) {
    if (tensor.rows > 1 && name.starts_with("blk.")) layers += static_cast<double>(tensor.rows * tensor.row_len);
  }
  const double head = static_cast<double>(tiny.vocab_size * tiny.width);
  SessionOptions options;
  options.chunk = 4;
  Result<Session> session = Session::Create(model, options);
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE(session->Prefill(SomeIds(10, 5)).ok());
  EXPECT_EQ(session->prompt_stats().linear_flops, 2 * (10 * layers + head));
  // Three chunks, and the head once.
  EXPECT_GT(session->prompt_stats().weight_bytes, 2.0 * static_cast<double>(model.weight_bytes()));
  EXPECT_LT(session->prompt_stats().weight_bytes, 3.0 * static_cast<double>(model.weight_bytes()));
  // 1 + 2 + ... + 10 keys for each head and layer.
  const double pairs = 55.0 * static_cast<double>(tiny.num_q_heads * tiny.num_layers);
  EXPECT_EQ(session->prompt_stats().attention_flops, 2 * pairs * static_cast<double>(tiny.qk_dim + tiny.v_dim));
  ASSERT_TRUE(session->Step(1).ok());
  EXPECT_EQ(session->step_stats().linear_flops, 2 * (layers + head));
  EXPECT_EQ(session->step_stats().weight_bytes, static_cast<double>(model.weight_bytes()));
}

TEST(StoredWeightsTypes, AnUnsupportedOneIsRefusedByNameAndType) {
  TinyModel tiny = StoredModel(TensorType::kQ4_0, 1);
  TinyModel::Tensor& tensor = tiny.tensors.at("blk.1.ffn_up.weight");
  tensor.type = 10;
  const TemporaryFile file(tiny.Build());
  const Status status = StatusOf(Model::Open(file.path()));
  EXPECT_ERROR(status, kUnsupported, "blk.1.ffn_up.weight");
  EXPECT_ERROR(status, kUnsupported, "Q2_K");
  for (const TensorType type : kStoredTypes) {
    EXPECT_ERROR(status, kUnsupported, TensorTypeName(static_cast<uint32_t>(type)));
  }
}

class PackedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const TinyModel made = MixedModel(11);
    file_.emplace(made.Build());
    expected_ = Logits(LoadOptions());
    ASSERT_TRUE(LoadFile(file_->path(), PackedAt(packed_.path())).packed_weights().written);
    bytes_ = Read(packed_.path());
  }

  static std::vector<char> Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    std::vector<char> bytes(static_cast<size_t>(file.tellg()));
    file.seekg(0).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(file.good()) << path;
    return bytes;
  }
  static void Write(const std::string& path, const std::vector<char>& bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good());
  }
  std::vector<float> Logits(const LoadOptions& options) {
    const Model model = LoadFile(file_->path(), options);
    report_ = model.packed_weights();
    return Prompt(model, SomeIds(5, 5), 64, 2);
  }
  // The file as it is now is refused with this, the result is right all the same, and the file is good again.
  void ExpectMadeAnew(StatusCode code, const char* text) {
    EXPECT_TRUE(SameBits(Logits(PackedAt(packed_.path())), expected_));
    EXPECT_FALSE(report_.mapped);
    EXPECT_EQ(report_.not_mapped.code(), code) << report_.not_mapped.c_str();
    EXPECT_NE(std::string(report_.not_mapped.c_str()).find(text), std::string::npos) << report_.not_mapped.c_str();
    EXPECT_TRUE(report_.written) << report_.not_written.c_str();
    EXPECT_TRUE(SameBits(Logits(PackedAt(packed_.path())), expected_));
    EXPECT_TRUE(report_.mapped) << report_.not_mapped.c_str();
  }

  std::optional<TemporaryFile> file_;
  PackedPath packed_;
  std::vector<float> expected_;
  std::vector<char> bytes_;
  PackedWeights report_;
};

TEST_F(PackedFileTest, TheSameFileEachTime) {
  EXPECT_TRUE(SameBits(Logits(PackedAt(packed_.path())), expected_));
  EXPECT_TRUE(report_.mapped);
  EXPECT_EQ(Read(packed_.path()), bytes_);
  ::unlink(packed_.path().c_str());
  Logits(PackedAt(packed_.path()));
  EXPECT_EQ(Read(packed_.path()), bytes_);
}

TEST_F(PackedFileTest, EveryBitCounts) {
  // Of header and table every seventh byte, of layers one now and then.
  size_t refused = 0, tried = 0;
  for (size_t at = 0; at < bytes_.size(); at += at < 400 ? 7 : 400009) {
    std::vector<char> damaged = bytes_;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    Write(packed_.path(), damaged);
    LoadOptions options = PackedAt(packed_.path());
    options.threads = 1;
    const Model model = LoadFile(file_->path(), options);
    ++tried;
    if (!model.packed_weights().mapped) {
      ++refused;
      EXPECT_TRUE(model.packed_weights().written);
      EXPECT_EQ(Read(packed_.path()), bytes_) << "byte " << at;
    } else {
      // Between the layers is nothing.
      EXPECT_EQ(bytes_[at], 0) << "byte " << at << " is not looked at";
    }
  }
  EXPECT_GT(refused, 45u);
  EXPECT_GT(tried, refused / 2);
}

TEST_F(PackedFileTest, TruncatedOrLonger) {
  for (const size_t size : {size_t{1}, size_t{79}, size_t{80}, size_t{200}, size_t{4096}, bytes_.size() - 1}) {
    Write(packed_.path(), std::vector<char>(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(size)));
    ExpectMadeAnew(StatusCode::kDataLoss, "bytes");
  }
  std::vector<char> longer = bytes_;
  longer.push_back(0);
  Write(packed_.path(), longer);
  ExpectMadeAnew(StatusCode::kDataLoss, "bytes");
  Write(packed_.path(), {});
  ExpectMadeAnew(StatusCode::kDataLoss, "empty");
  Write(packed_.path(), std::vector<char>(bytes_.size(), 'x'));
  ExpectMadeAnew(StatusCode::kDataLoss, "no file of packed weights");
}

TEST_F(PackedFileTest, AnotherModelFile) {
  // Touched: the same bytes at another time.
  const timeval times[2] = {{1'000'000, 0}, {1'000'000, 0}};
  ASSERT_EQ(::utimes(file_->path().c_str(), times), 0);
  ExpectMadeAnew(StatusCode::kFailedPrecondition, "time");
  // Changed without a trace in size and time.
  std::vector<char> model = Read(file_->path());
  model[model.size() - 40] = static_cast<char>(model[model.size() - 40] ^ 1);
  Write(file_->path(), model);
  ASSERT_EQ(::utimes(file_->path().c_str(), times), 0);
  expected_ = Logits(LoadOptions());
  ExpectMadeAnew(StatusCode::kFailedPrecondition, "hash");
  // Another model altogether.
  file_.emplace(StoredModel(TensorType::kQ8_0, 1).Build());
  expected_ = Logits(LoadOptions());
  ExpectMadeAnew(StatusCode::kFailedPrecondition, "size");
}

TEST_F(PackedFileTest, AnotherVersion) {
  std::vector<char> other = bytes_;
  other[8] = 99;
  Write(packed_.path(), other);
  ExpectMadeAnew(StatusCode::kUnsupported, "version 99");
}

TEST_F(PackedFileTest, WhereNothingCanBeWritten) {
  const std::string nowhere = packed_.path() + ".no/such/folder";
  EXPECT_TRUE(SameBits(Logits(PackedAt(nowhere)), expected_));
  EXPECT_FALSE(report_.mapped);
  EXPECT_FALSE(report_.written);
  EXPECT_ERROR(report_.not_written, kNotFound, nowhere);
}

TEST_F(PackedFileTest, OnlyWhereItMakesSense) {
  const auto load = [&](const std::function<void(LoadOptions&)>& change, Result<Model> model) {
    LoadOptions options = PackedAt(packed_.path());
    change(options);
    return model->LoadWeights(options);
  };
  EXPECT_ERROR(load([](LoadOptions& o) { o.expand = true; }, Model::Open(file_->path())), kInvalidArgument,
               "packed_weights_path");
  EXPECT_ERROR(load([](LoadOptions&) {}, Model::Synthetic("tiny")), kInvalidArgument, "packed_weights_path");
}

}  // namespace
}  // namespace headlane::testing
