// LoadOptions::precision: a model with activations of 8 bits has the same bits for any threads and chunks, alone and in
// a batch, packed and mapped; it is near the exact model, and never taken for it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "decoder/expect_status.h"
#include "e2e/random_blocks.h"
#include "e2e/session_model.h"
#include "e2e/tiny_model.h"
#include "headlane/decoder.h"

namespace headlane::testing {
namespace {

LoadOptions Int8(const std::string& packed = "") {
  LoadOptions options;
  options.precision = LinearPrecision::kInt8;
  options.packed_weights_path = packed;
  return options;
}

Session NewSession(const Model& model, int threads, int64_t chunk = 512) {
  SessionOptions options;
  options.threads = threads;
  options.chunk = chunk;
  options.max_context = 256;
  return MakeSession(model, options);
}

std::vector<float> Prompt(const Model& model, const std::vector<int32_t>& ids, int64_t chunk, int threads) {
  Session session = NewSession(model, threads, chunk);
  EXPECT_TRUE(session.Prefill(ids).ok());
  return Copy(session.logits());
}

std::vector<float> Steps(const Model& model, const std::vector<int32_t>& ids, int threads) {
  Session session = NewSession(model, threads);
  for (const int32_t id : ids) EXPECT_TRUE(session.Step(id).ok());
  return Copy(session.logits());
}

void ExpectOneResult(const TinyModel& tiny) {
  const TemporaryFile file(tiny.Build());
  const std::vector<int32_t> ids = SomeIds(47, 5);
  const Model model = LoadFile(file.path(), Int8());
  const std::vector<float> expected = Steps(model, ids, 1);
  for (const int threads : {1, 2, 3}) {
    if (threads == 2) {
      EXPECT_TRUE(SameBits(Steps(model, ids, threads), expected));
    }
    for (const int64_t chunk : {7, 44, 47}) {
      EXPECT_TRUE(SameBits(Prompt(model, ids, chunk, threads), expected)) << threads << ", chunks of " << chunk;
    }
  }
  // Near the exact logits, and others.
  const std::vector<float> exact = Prompt(LoadFile(file.path(), LoadOptions()), ids, 512, 2);
  double difference = 0, size = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    difference += std::pow(static_cast<double>(expected[i]) - static_cast<double>(exact[i]), 2);
    size += std::pow(static_cast<double>(exact[i]), 2);
  }
  EXPECT_GT(difference, 0.0);
  EXPECT_LT(std::sqrt(difference / size), 0.05);
}

TEST(Int8Model, SameBitsForAnyThreadsAndChunks) {
  for (const TensorType type : {TensorType::kQ4_1, TensorType::kQ8_0, TensorType::kQ6_K}) {
    SCOPED_TRACE(TensorTypeName(static_cast<uint32_t>(type)));
    ExpectOneResult(StoredModel(type, 7));
  }
  ExpectOneResult(MixedModel(3));
}

TEST(Int8Model, ABatchHasTheBitsOfItsSequences) {
  const TemporaryFile file(MixedModel(5).Build());
  const Model model = LoadFile(file.path(), Int8());
  const std::vector<int32_t> ids = SomeIds(40, 5);
  const std::span<const int32_t> all(ids);
  const std::vector<std::span<const int32_t>> prompts = {all.first(40), all.first(13), all.subspan(2, 25)};
  SessionOptions options;
  options.threads = 2;
  options.max_context = 256;
  Result<BatchSession> batch = BatchSession::Create(model, options, 3);
  ASSERT_TRUE(batch.ok()) << batch.status().c_str();
  ASSERT_TRUE(batch->Prefill(prompts).ok());
  const BatchToken tokens[] = {{0, 4}, {1, 5}, {2, 6}};
  ASSERT_TRUE(batch->Step(tokens).ok());
  for (int64_t i = 0; i < 3; ++i) {
    std::vector<int32_t> alone(prompts[static_cast<size_t>(i)].begin(), prompts[static_cast<size_t>(i)].end());
    alone.push_back(tokens[i].id);
    const auto logits = batch->logits(i);
    EXPECT_TRUE(SameBits(Steps(model, alone, 1), Copy(logits))) << i;
  }
}

// A packed file of one precision is none of the other.
TEST(Int8Model, PackedWeights) {
  const TemporaryFile file(MixedModel(11).Build());
  const TemporaryFile packed(std::vector<uint8_t>{1}, ".packed");
  const std::vector<int32_t> ids = SomeIds(9, 5);
  ::unlink(packed.path().c_str());
  const std::vector<float> expected = Prompt(LoadFile(file.path(), Int8()), ids, 512, 1);
  for (const bool mapped : {false, true}) {
    const Model model = LoadFile(file.path(), Int8(packed.path()));
    EXPECT_EQ(model.packed_weights().mapped, mapped) << model.packed_weights().not_mapped.c_str();
    EXPECT_EQ(model.packed_weights().written, !mapped);
    EXPECT_TRUE(SameBits(Prompt(model, ids, 4, 2), expected));
  }
  LoadOptions exact;
  const std::vector<float> exact_logits = Prompt(LoadFile(file.path(), exact), ids, 512, 1);
  exact.packed_weights_path = packed.path();
  const Model model = LoadFile(file.path(), exact);
  EXPECT_ERROR(model.packed_weights().not_mapped, kFailedPrecondition, "layout");
  EXPECT_TRUE(model.packed_weights().written);
  EXPECT_TRUE(SameBits(Prompt(model, ids, 4, 2), exact_logits));
}

// Keys and values of one precision would not have the bits of the other.
TEST(Int8Model, SavedCachesAreOfOnePrecision) {
  const TemporaryFile file(StoredModel(TensorType::kQ4_K, 1).Build());
  const TemporaryFile saved(std::vector<uint8_t>{1}, ".cache");
  const std::vector<int32_t> ids = SomeIds(20, 5);
  const Model model = LoadFile(file.path(), Int8()), exact = LoadFile(file.path(), LoadOptions());
  {
    Session session = NewSession(model, 1);
    ASSERT_TRUE(session.Prefill(std::span(ids).first(12)).ok());
    const Status status = session.SaveCache(saved.path());
    ASSERT_TRUE(status.ok()) << status.c_str();
  }
  Session same = NewSession(model, 2), other = NewSession(exact, 1);
  const Result<int64_t> loaded = same.LoadCache(saved.path(), ids);
  ASSERT_TRUE(loaded.ok()) << loaded.status().c_str();
  EXPECT_EQ(*loaded, 12);
  EXPECT_ERROR(other.LoadCache(saved.path(), ids).status(), kInvalidArgument, "another model");
  ASSERT_TRUE(same.Prefill(std::span(ids).subspan(12)).ok());
  EXPECT_TRUE(SameBits(Copy(same.logits()), Steps(model, ids, 1)));
}

TEST(Int8Model, Refusals) {
  const TemporaryFile file(StoredModel(TensorType::kQ4_0, 1).Build());
  const TemporaryFile plain(StoredModel(TensorType::kF16, 1).Build());
  const auto load = [](Result<Model> model, const LoadOptions& options) { return model->LoadWeights(options); };
  EXPECT_ERROR(load(Model::Open(plain.path()), Int8()), kUnsupported, "F16");
  EXPECT_ERROR(load(Model::Synthetic("tiny"), Int8()), kUnsupported, "synthetic");
  LoadOptions options = Int8();
  options.expand = true;
  EXPECT_ERROR(load(Model::Open(file.path()), options), kInvalidArgument, "int8");
  options = Int8();
  options.linear = LinearBackend::kOneDnn;
  EXPECT_ERROR(load(Model::Open(file.path()), options), kInvalidArgument, "int8");
  options = Int8();
  options.numerics = Numerics::kFastest;
  EXPECT_ERROR(load(Model::Open(file.path()), options), kInvalidArgument, "int8");
  options = Int8();
  options.precision = static_cast<LinearPrecision>(9);
  EXPECT_ERROR(load(Model::Open(file.path()), options), kInvalidArgument, "precision 9");
}

}  // namespace
}  // namespace headlane::testing
