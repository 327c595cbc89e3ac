// Write calls for different (sequence, layer) pairs, and for different tiles of one, at the same time. Meant for
// ThreadSanitizer as much as for the values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "headlane/kv_cache.h"
#include "kv/kv_test_util.h"

namespace headlane::internal {
namespace {

TEST(KVThreads, WritesOfDifferentSequencesAndLayersRunTogether) {
  KVCacheSpec spec;
  spec.num_layers = 4;
  spec.num_kv_heads = 2;
  spec.qk_dim = 5;
  spec.v_dim = 7;
  spec.page_tokens = 16;
  spec.max_tokens = 400;
  KVCache cache = MakeCache(spec);
  constexpr int kSequences = 2;
  constexpr int64_t kStep = 5;
  SequenceId ids[kSequences];
  for (SequenceId& id : ids) id = NewSequence(cache);
  const auto value = [](int s, int64_t layer, int64_t token) {
    return static_cast<float>(1000 * token + 10 * layer + s);
  };
  for (int64_t length = 0; length < 40; length += kStep) {
    for (const SequenceId id : ids) ASSERT_TRUE(Succeeds(cache.Reserve(id, kStep)));
    std::vector<std::thread> threads;
    for (int s = 0; s < kSequences; ++s) {
      for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
        threads.emplace_back([&, s, layer] {
          std::vector<float> k, v;
          for (int64_t t = 0; t < kStep; ++t) {
            k.insert(k.end(), static_cast<size_t>(spec.num_kv_heads * spec.qk_dim), value(s, layer, length + t));
            v.insert(v.end(), static_cast<size_t>(spec.num_kv_heads * spec.v_dim), value(s, layer, length + t));
          }
          EXPECT_TRUE(Succeeds(
              cache.Write(ids[s], layer, TokensHeadsDim(std::as_const(k).data(), kStep, spec.num_kv_heads, spec.qk_dim),
                          TokensHeadsDim(std::as_const(v).data(), kStep, spec.num_kv_heads, spec.v_dim))));
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    for (const SequenceId id : ids) ASSERT_TRUE(Succeeds(cache.Commit(id, kStep)));
  }
  for (int s = 0; s < kSequences; ++s) {
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
      std::vector<float> k(static_cast<size_t>(40 * spec.num_kv_heads * spec.qk_dim));
      std::vector<float> v(static_cast<size_t>(40 * spec.num_kv_heads * spec.v_dim));
      ASSERT_TRUE(Succeeds(cache.Read(ids[s], layer, 0, TokensHeadsDim(k.data(), 40, spec.num_kv_heads, spec.qk_dim),
                                      TokensHeadsDim(v.data(), 40, spec.num_kv_heads, spec.v_dim))));
      for (size_t i = 0; i < k.size(); ++i) ASSERT_EQ(k[i], value(s, layer, static_cast<int64_t>(i) / 10));
      for (size_t i = 0; i < v.size(); ++i) ASSERT_EQ(v[i], value(s, layer, static_cast<int64_t>(i) / 14));
    }
  }
}

TEST(KVThreads, WritesOfDifferentTilesRunTogether) {
  KVCacheSpec spec;
  spec.num_kv_heads = 2;
  spec.qk_dim = 5;
  spec.v_dim = 7;
  spec.page_tokens = 32;
  spec.max_tokens = 256;
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  const auto rows = [](int64_t begin, int64_t end, int64_t width) {
    std::vector<float> values;
    for (int64_t t = begin; t < end; ++t)
      values.insert(values.end(), static_cast<size_t>(width), static_cast<float>(t));
    return values;
  };
  const auto write = [&](int64_t length, int64_t begin, int64_t end) {
    const std::vector<float> k = rows(begin, end, 2 * spec.qk_dim), v = rows(begin, end, 2 * spec.v_dim);
    EXPECT_TRUE(Succeeds(cache.Write(id, 0, TokensHeadsDim(k.data(), end - begin, 2, spec.qk_dim),
                                     TokensHeadsDim(v.data(), end - begin, 2, spec.v_dim), begin - length)));
  };
  // From within a tile to within another one.
  int64_t length = 0;
  for (const int64_t end : {7, 100, 203}) {
    ASSERT_TRUE(Succeeds(cache.Reserve(id, end - length)));
    std::vector<std::thread> threads;
    for (int64_t tile = length / 16; tile * 16 < end; ++tile) {
      threads.emplace_back(write, length, std::max(tile * 16, length), std::min(tile * 16 + 16, end));
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(Succeeds(cache.Commit(id, end - length)));
    length = end;
  }
  std::vector<float> k(static_cast<size_t>(length * 2 * spec.qk_dim)), v(static_cast<size_t>(length * 2 * spec.v_dim));
  ASSERT_TRUE(Succeeds(cache.Read(id, 0, 0, TokensHeadsDim(k.data(), length, 2, spec.qk_dim),
                                  TokensHeadsDim(v.data(), length, 2, spec.v_dim))));
  EXPECT_EQ(k, rows(0, length, 2 * spec.qk_dim));
  EXPECT_EQ(v, rows(0, length, 2 * spec.v_dim));
}

}  // namespace
}  // namespace headlane::internal
