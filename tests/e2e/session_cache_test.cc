// What a session keeps: its cache's types and window. A window of its ring has the bits of a cache that keeps
// everything, and both are right against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "decoder/expect_status.h"
#include "e2e/session_model.h"
#include "headlane/decoder.h"

namespace headlane::testing {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kI4};

TinyModel WideModel() {
  TinyModel tiny;
  tiny.num_q_heads = 4;
  tiny.num_kv_heads = 2;
  tiny.qk_dim = tiny.v_dim = tiny.rotary_dim = 64;
  tiny.MakeWeights(21);
  return tiny;
}

TEST(SessionCache, BytesPerTokenAreTheHeaders) {
  const Model model = LoadTiny(WideModel());
  // Of one token and head with 64 features, as kv_cache.h says.
  const int64_t bytes[] = {4 * 64, 2 * 64, 2 * 64, 64 + 4, 64 + 4, 32 + 2 * 2};
  for (size_t k = 0; k < std::size(kDTypes); ++k) {
    for (size_t v = 0; v < std::size(kDTypes); ++v) {
      SessionOptions options;
      options.k_dtype = kDTypes[k];
      options.v_dtype = kDTypes[v];
      options.max_context = 200;
      options.page_tokens = 64;
      Session session = MakeSession(model, options);
      const int64_t per_token = 2 * 2 * (bytes[k] + bytes[v]);  // layers, heads
      EXPECT_EQ(session.memory().kv_bytes_per_token, per_token) << DTypeName(kDTypes[k]) << DTypeName(kDTypes[v]);
      EXPECT_EQ(session.memory().page_bytes, 64 * per_token);
      EXPECT_EQ(session.memory().cache_bytes, 256 * per_token);
      EXPECT_EQ(session.memory().cache_used_bytes, 0);
      ASSERT_TRUE(session.Prefill(SomeIds(70, 1)).ok());
      EXPECT_EQ(session.memory().cache_used_bytes, 128 * per_token);
      EXPECT_EQ(session.memory().kept_tokens, 70);
      EXPECT_EQ(session.memory().waste_bytes(), 58 * per_token);
    }
  }
}

TEST(SessionCache, EveryTypeIsUsedAndClose) {
  const Model model = LoadTiny(WideModel());
  const std::vector<int32_t> ids = SomeIds(70, 2);
  Session exact = MakeSession(model, SessionOptions());
  ASSERT_TRUE(exact.Prefill(ids).ok());
  const std::vector<float> expected = Copy(exact.logits());
  // Largest difference of a logit of size 1 to 5.
  const float most[] = {0, 4e-3f, 4e-2f, 6e-2f, 3e-1f, 1.0f};
  float last = 0;
  for (size_t i = 1; i < std::size(kDTypes); ++i) {
    for (const bool is_key : {true, false}) {
      SessionOptions options;
      (is_key ? options.k_dtype : options.v_dtype) = kDTypes[i];
      Session session = MakeSession(model, options);
      ASSERT_TRUE(session.Prefill(ids).ok());
      float error = 0;
      for (size_t j = 0; j < expected.size(); ++j)
        error = std::max(error, std::fabs(session.logits()[j] - expected[j]));
      EXPECT_GT(error, 0) << DTypeName(kDTypes[i]) << is_key;
      EXPECT_LT(error, most[i]) << DTypeName(kDTypes[i]) << is_key;
      last = error;
    }
  }
  EXPECT_GT(last, 1e-3f) << "4 bits can't be that good: are they used?";
}

TEST(SessionCache, KeysOfInt4AreRotatedUnlessToldOtherwise) {
  const Model model = LoadTiny(WideModel());
  const std::vector<int32_t> ids = SomeIds(40, 3);
  const auto logits = [&](DType keys, std::optional<bool> rotate) {
    SessionOptions options;
    options.k_dtype = keys;
    options.rotate = rotate;
    Session session = MakeSession(model, options);
    EXPECT_TRUE(session.Prefill(ids).ok());
    return Copy(session.logits());
  };
  for (const DType keys : {DType::kI4, DType::kI8}) {
    const bool by_itself = keys == DType::kI4;
    EXPECT_EQ(logits(keys, std::nullopt), logits(keys, by_itself)) << DTypeName(keys);
    EXPECT_NE(logits(keys, std::nullopt), logits(keys, !by_itself)) << DTypeName(keys);
  }
}

TEST(SessionCache, SameBitsForThreadsChunksAndPagesAtEveryType) {
  const Model model = LoadTiny(WideModel());
  const std::vector<int32_t> ids = SomeIds(50, 4);
  for (const DType dtype : kDTypes) {
    SessionOptions options;
    options.k_dtype = options.v_dtype = dtype;
    options.threads = 1;
    Session session = MakeSession(model, options);
    const auto expected = StepAll(session, ids);
    for (const int threads : {1, 2}) {
      for (const int64_t chunk : {7, 512}) {
        options.threads = threads;
        options.chunk = chunk;
        options.page_tokens = 16;
        Session other = MakeSession(model, options);
        ASSERT_TRUE(other.Prefill(std::span(ids).first(49)).ok());
        ASSERT_EQ(Copy(other.logits()), expected[48]) << DTypeName(dtype) << threads << " threads, chunk " << chunk;
        ASSERT_TRUE(other.Step(ids[49]).ok());
        ASSERT_EQ(Copy(other.logits()), expected[49]) << DTypeName(dtype) << threads << " threads, chunk " << chunk;
      }
    }
  }
}

struct Window {
  int64_t window, num_sinks, page, chunk;
};

class SessionWindowTest : public ::testing::TestWithParam<Window> {
 protected:
  SessionOptions Options() const {
    SessionOptions options;
    options.max_context = 400;
    options.window = GetParam().window;
    options.num_sinks = GetParam().num_sinks;
    options.page_tokens = GetParam().page;
    options.chunk = GetParam().chunk;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(All, SessionWindowTest,
                         ::testing::Values(Window{1, 0, 16, 5}, Window{16, 0, 16, 16}, Window{17, 3, 16, 7},
                                           Window{40, 0, 32, 33}, Window{33, 20, 16, 64}, Window{399, 0, 16, 8},
                                           Window{5000, 4, 128, 512}),
                         [](const auto& info) {
                           return "W" + std::to_string(info.param.window) + "Sinks" +
                                  std::to_string(info.param.num_sinks) + "Page" + std::to_string(info.param.page) +
                                  "Chunk" + std::to_string(info.param.chunk);
                         });

TEST_P(SessionWindowTest, LogitsAreThoseOfDoublePrecision) {
  TinyModel tiny;
  tiny.window = GetParam().window;
  tiny.num_sinks = GetParam().num_sinks;
  tiny.MakeWeights(7);
  const std::vector<int32_t> ids = SomeIds(90, 3);
  const auto expected = tiny.Logits(ids);
  TinyModel other = tiny;
  ++other.window;
  const auto wrong = other.Logits(ids);
  const Model model = LoadTiny(tiny);
  Session session = MakeSession(model, Options());
  const auto actual = StepAll(session, ids);
  double difference = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    for (size_t i = 0; i < expected[t].size(); ++i) {
      ASSERT_NEAR(expected[t][i], static_cast<double>(actual[t][i]), 4e-5) << "token " << t << " logit " << i;
      difference = std::max(difference, std::fabs(wrong[t][i] - expected[t][i]));
    }
  }
  if (GetParam().window < 90) {
    EXPECT_GT(difference, 4e-4) << "a window of one more would not be noticed";
  }
}

TEST_P(SessionWindowTest, TheRingHasTheBitsOfACacheThatKeepsAll) {
  TinyModel tiny;
  tiny.MakeWeights(7);
  const Model model = LoadTiny(tiny);
  const std::vector<int32_t> ids = SomeIds(399, 8);
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kI4}) {
    SessionOptions options = Options();
    options.k_dtype = options.v_dtype = dtype;
    Session ring = MakeSession(model, options);
    options.rollback = options.max_context;
    options.page_tokens = 64;
    options.chunk = 100;
    Session full = MakeSession(model, options);
    // Steps in one, chunks in the other.
    const auto expected = StepAll(full, ids);
    const size_t prompt = 301;
    ASSERT_TRUE(ring.Prefill(std::span(ids).first(prompt)).ok());
    ASSERT_EQ(Copy(ring.logits()), expected[prompt - 1]) << DTypeName(dtype);
    for (size_t i = prompt; i < ids.size(); ++i) {
      ASSERT_TRUE(ring.Step(ids[i]).ok());
      ASSERT_EQ(Copy(ring.logits()), expected[i]) << DTypeName(dtype) << " token " << i;
    }
    // Back by as much as it says it can, and forward to the same bits.
    const int64_t back = std::min<int64_t>(ring.options().rollback, 100);
    ASSERT_TRUE(ring.Truncate(399 - back).ok());
    ASSERT_TRUE(ring.Prefill(std::span(ids).subspan(static_cast<size_t>(399 - back))).ok());
    ASSERT_EQ(Copy(ring.logits()), expected.back()) << DTypeName(dtype);
  }
}

TEST_P(SessionWindowTest, MemoryIsBounded) {
  TinyModel tiny;
  tiny.MakeWeights(7);
  const Model model = LoadTiny(tiny);
  SessionOptions options = Options();
  options.max_context = 10000;
  Session session = MakeSession(model, options);
  const SessionMemory at_first = session.memory();
  const int64_t page = options.page_tokens;
  // The first positions, the window, what can be rolled back, a chunk, and the ends of pages.
  const int64_t most =
      std::min<int64_t>(10000 + page, options.num_sinks + page + options.window + 2 * options.chunk + 2 * page);
  EXPECT_LE(at_first.cache_bytes, most * at_first.kv_bytes_per_token);
  ASSERT_TRUE(session.FillRandom(9900, 1).ok());
  ASSERT_TRUE(session.Prefill(SomeIds(50, 1)).ok());
  const SessionMemory memory = session.memory();
  EXPECT_EQ(memory.cache_bytes, at_first.cache_bytes);
  EXPECT_LE(memory.cache_used_bytes, memory.cache_bytes);
  EXPECT_EQ(memory.kept_tokens, std::min<int64_t>(9950, options.num_sinks + options.window + options.chunk - 1));
  EXPECT_GE(memory.waste_bytes(), 0);
  // The last page of the first positions, and both ends of the window.
  EXPECT_LT(memory.waste_bytes(), 3 * memory.page_bytes);
}

TEST(SessionWindow, WhatIsGoneIsSaid) {
  TinyModel tiny;
  tiny.MakeWeights(7);
  const Model model = LoadTiny(tiny);
  SessionOptions options;
  options.window = 20;
  options.chunk = 8;
  options.page_tokens = 16;
  options.max_context = 300;
  Session session = MakeSession(model, options);
  ASSERT_TRUE(session.Prefill(SomeIds(200, 1)).ok());
  EXPECT_ERROR(session.Truncate(191), kFailedPrecondition, "cannot go back to 191 tokens");
  EXPECT_EQ(session.length(), 200);
  EXPECT_TRUE(session.Truncate(192).ok());
  EXPECT_TRUE(session.Truncate(0).ok());
  // Stopped far behind the window: what was complete stays, and the session goes on from there.
  const std::vector<int32_t> ids = SomeIds(120, 5);
  ASSERT_TRUE(session.Prefill(std::span(ids).first(20)).ok());
  EXPECT_ERROR(session.Prefill(std::span(ids).subspan(20), [](int64_t done, int64_t) { return done < 64; }), kCancelled,
               "64 of 100");
  EXPECT_EQ(session.length(), 84);
  EXPECT_TRUE(session.logits().empty());
  ASSERT_TRUE(session.Prefill(std::span(ids).subspan(84)).ok());
  Session whole = MakeSession(model, options);
  ASSERT_TRUE(whole.Prefill(ids).ok());
  EXPECT_EQ(Copy(session.logits()), Copy(whole.logits()));
}

TEST(SessionCache, BadOptionsAreNamed) {
  TinyModel tiny;
  tiny.MakeWeights(11);
  const Model model = LoadTiny(tiny);
  const auto create = [&](auto change) {
    SessionOptions options;
    change(options);
    return StatusOf(Session::Create(model, options));
  };
  EXPECT_ERROR(create([](SessionOptions& o) { o.window = -1; }), kInvalidArgument, "window is -1");
  EXPECT_ERROR(create([](SessionOptions& o) { o.rollback = -1; }), kInvalidArgument, "rollback is -1");
  EXPECT_ERROR(create([](SessionOptions& o) { o.num_sinks = -1; }), kInvalidArgument, "num_sinks is -1");
  EXPECT_ERROR(create([](SessionOptions& o) { o.num_sinks = 4; }), kInvalidArgument, "num_sinks is 4");
  EXPECT_ERROR(create([](SessionOptions& o) { o.page_tokens = 0; }), kInvalidArgument, "page_tokens is 0");
  EXPECT_ERROR(create([](SessionOptions& o) { o.page_tokens = 257; }), kInvalidArgument, "page_tokens is 257");
  EXPECT_ERROR(create([](SessionOptions& o) { o.k_dtype = static_cast<DType>(99); }), kUnsupported, "k_dtype");
  EXPECT_ERROR(create([](SessionOptions& o) { o.v_dtype = static_cast<DType>(-1); }), kUnsupported, "v_dtype");
}

TEST(SessionCache, ObserversSeeWhatTheCacheGets) {
  const TinyModel tiny = WideModel();
  const Model model = LoadTiny(tiny);
  SessionOptions options;
  options.chunk = 16;
  Session session = MakeSession(model, options);
  std::vector<int64_t> positions;
  int64_t calls = 0;
  session.Observe([&](const LayerRows& rows) {
    EXPECT_EQ(rows.layer, calls++ % 2);
    if (rows.layer == 0) positions.insert(positions.end(), rows.positions.begin(), rows.positions.end());
    for (size_t i = 0; i < rows.positions.size() * 2 * 64; ++i) {
      ASSERT_TRUE(std::isfinite(rows.k[i]) && std::isfinite(rows.v[i]) && std::isfinite(rows.q[i]));
    }
  });
  ASSERT_TRUE(session.Prefill(SomeIds(40, 1)).ok());
  session.Observe(nullptr);
  ASSERT_TRUE(session.Prefill(SomeIds(40, 1)).ok());
  EXPECT_EQ(calls, 3 * 2);
  ASSERT_EQ(positions.size(), 40u);
  for (size_t i = 0; i < positions.size(); ++i) EXPECT_EQ(positions[i], static_cast<int64_t>(i));
}

}  // namespace
}  // namespace headlane::testing
