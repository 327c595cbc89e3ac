// Faults that other caches had (the numbers are those of the list of public faults), at every type for keys and for
// values, decoding and in a prompt.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "headlane/kv_cache.h"
#include "kv/attend.h"
#include "kv/kv_test_util.h"

namespace headlane::internal {
namespace {

class KVFaults : public ::testing::TestWithParam<DType> {
 protected:
  static KVCacheSpec Spec(int64_t qk_dim, int64_t v_dim) {
    KVCacheSpec spec = SpecOf(GetParam(), GetParam(), qk_dim, v_dim, 16, 8);
    spec.num_kv_heads = 1;
    return spec;
  }
  // Appends n rows of k and v.
  static void Append(KVCache& cache, SequenceId id, const std::vector<float>& k, const std::vector<float>& v) {
    const KVCacheSpec& spec = cache.spec();
    const int64_t n = static_cast<int64_t>(k.size()) / spec.qk_dim;
    ASSERT_TRUE(Succeeds(
        cache.Append(id, TokensHeadsDim(k.data(), n, 1, spec.qk_dim), TokensHeadsDim(v.data(), n, 1, spec.v_dim))));
  }
  static std::vector<float> Values(const KVCache& cache, SequenceId id) {
    const KVCacheSpec& spec = cache.spec();
    const int64_t n = *cache.Length(id);
    std::vector<float> k(static_cast<size_t>(n * spec.qk_dim)), v(static_cast<size_t>(n * spec.v_dim));
    EXPECT_TRUE(Succeeds(
        cache.Read(id, 0, 0, TokensHeadsDim(k.data(), n, 1, spec.qk_dim), TokensHeadsDim(v.data(), n, 1, spec.v_dim))));
    return v;
  }
};
INSTANTIATE_TEST_SUITE_P(EveryDType, KVFaults, ::testing::ValuesIn(kEveryDType),
                         [](const auto& info) { return DTypeName(info.param); });

// A token of zeros is zeros, beside others and alone; a feature that is always 0 stays 0; scales that would be 0 or
// infinite in 16 bits are no NaN.
TEST_P(KVFaults, F41ZerosTinyAndHugeRows) {
  constexpr int64_t kDim = 40;
  KVCache cache = MakeCache(Spec(kDim, kDim));
  const auto constant = [](float x) { return std::vector<float>(kDim, x); };
  const SequenceId zeros = NewSequence(cache);
  Append(cache, zeros, constant(0), constant(0));
  for (const float x : AttendCache(cache, zeros, 0, 1, 1).out) ASSERT_EQ(BitsOf(x), 0u);
  for (const float amax : {1e-6f, 1e-30f, 1.0f, 6e4f}) {
    const SequenceId id = NewSequence(cache);
    std::vector<float> k, v;
    for (int64_t token = 0; token < 20; ++token) {
      for (int64_t i = 0; i < kDim; ++i) {
        k.push_back(token == 7 ? 0 : TokenElement(token, 0, 0, i, 0) / 4);
        v.push_back(token == 7 || i == 3 ? 0 : amax * TokenElement(token, 0, 0, i, 1) / 4);
      }
    }
    Append(cache, id, k, v);
    const std::vector<float> stored = Values(cache, id);
    for (int64_t i = 0; i < kDim; ++i) {
      ASSERT_EQ(stored[static_cast<size_t>(7 * kDim + i)], 0.0f);
      ASSERT_EQ(stored[static_cast<size_t>(i * kDim / 2 % 20 * kDim + 3)], 0.0f);
    }
    for (const int64_t q_len : {1, 20}) {
      const Attended attended = AttendCache(cache, id, 0, q_len, 20);
      ASSERT_TRUE(Succeeds(attended.status));
      for (size_t i = 0; i < attended.out.size(); ++i) {
        ASSERT_TRUE(std::isfinite(attended.out[i])) << amax;
        ASSERT_LE(std::abs(attended.out[i]), amax + 0x1p-24f);  // half a step of f16
        if (i % kDim == 3) {
          ASSERT_EQ(attended.out[i], 0.0f);
        }
      }
    }
    ASSERT_TRUE(Succeeds(cache.DropSequence(id)));
  }
}

// Head sizes that are no multiple of anything, keys' other than values'.
TEST_P(KVFaults, F43HeadSizes) {
  for (const int64_t qk_dim : {1, 3, 46, 80, 100, 112, 128, 192, 256, 257, 576}) {
    for (const int64_t v_dim : {128, 512, 1}) {
      for (const int64_t kv_len : {1, 33}) {
        SCOPED_TRACE(std::to_string(qk_dim) + " " + std::to_string(v_dim) + " " + std::to_string(kv_len));
        const KVCacheSpec spec = Spec(qk_dim, v_dim);
        KVCache cache = MakeCache(spec);
        const SequenceId id = NewSequence(cache);
        ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, kv_len))));
        for (const int64_t q_len : {int64_t{1}, kv_len}) {
          const Attended expected = AttendNames(spec, Names(0, kv_len), 0, q_len);
          const Attended got = AttendCache(cache, id, 0, q_len, kv_len);
          ASSERT_TRUE(Succeeds(got.status));
          ASSERT_EQ(expected.out, got.out);
        }
      }
    }
  }
}

// One key: the output is its value, on every path. The batch grows: old tokens are what they were.
TEST_P(KVFaults, F45ScalesOfTheirOwn) {
  KVCache cache = MakeCache(Spec(16, 16));
  std::vector<SequenceId> ids;
  std::vector<std::vector<float>> stored;
  for (const float scale : {1.0f, 2.0f, 3.0f, 4.0f}) {
    ids.push_back(NewSequence(cache));
    Append(cache, ids.back(), std::vector<float>(16, 2 * scale), std::vector<float>(16, 6 * scale));
    const std::vector<float> values = Values(cache, ids.back());
    for (const float x : values) ASSERT_NEAR(x, 6 * scale, 6 * scale / 1000);
    stored.push_back(values);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(Values(cache, ids[i]), stored[i]);
      const Attended alone = AttendCache(cache, ids[i], 0, 1, 1);
      EXPECT_EQ(std::vector<float>(alone.out.begin(), alone.out.begin() + 16), stored[i]);
    }
  }
  // Tokens of one sequence, each with its scale; rows of a prompt see one more each.
  const SequenceId all = NewSequence(cache);
  for (const float scale : {1.0f, 2.0f, 3.0f, 4.0f}) {
    Append(cache, all, std::vector<float>(16, 0.0f), std::vector<float>(16, 6 * scale));
  }
  const Attended prompt = AttendCache(cache, all, 0, 4, 4);
  ASSERT_TRUE(Succeeds(prompt.status));
  for (int64_t row = 0; row < 4; ++row) {
    const float mean = 6 * (1 + static_cast<float>(row) / 2);
    EXPECT_NEAR(prompt.out[static_cast<size_t>(row * 2 * 16)], mean, mean / 1000);
  }
  const std::vector<float> values = Values(cache, all);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(values[16 * i], stored[i][0]);
}

}  // namespace
}  // namespace headlane::internal
