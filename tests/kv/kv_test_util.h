// What the tests of the cache share: a generator, token rows compared by bits, and views in every layout that callers
// use.
#ifndef HEADLANE_TESTS_KV_KV_TEST_UTIL_H_
#define HEADLANE_TESTS_KV_KV_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "headlane/kv_cache.h"
#include "headlane/status.h"
#include "headlane/view.h"

namespace headlane::internal {

// SplitMix64: the same numbers with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // In [low, high].
  int64_t Int(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int64_t n) { return Int(1, n) == 1; }
  template <typename T>
  T Pick(const std::vector<T>& values) {
    return values[static_cast<size_t>(Int(0, static_cast<int64_t>(values.size()) - 1))];
  }

 private:
  uint64_t state_;
};

// Bits of one token's row of all heads: [heads][dim]. Bits, because NaN != NaN and payloads count.
using Row = std::vector<uint32_t>;

inline uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
inline bool IsFiniteBits(uint32_t bits) { return (bits & 0x7F800000u) != 0x7F800000u; }

// Ordinary finite values, with -0 and subnormals among them; `wild` adds infinities and NaNs with any payload.
inline Row RandomRow(Random& random, int64_t size, bool wild) {
  Row row(static_cast<size_t>(size));
  for (uint32_t& bits : row) {
    bits = static_cast<uint32_t>(random.Bits());
    if (!IsFiniteBits(bits)) bits &= 0xBFFFFFFFu;
    if (wild && random.OneIn(50)) bits |= 0x7F800000u;
  }
  return row;
}

// A tensor [batch, tokens, heads, dim] whose axes stand in memory in any order, with gaps, and run in either direction.
class StridedTensor {
 public:
  StridedTensor(Random& random, int64_t num_batch, int64_t tokens, int64_t heads, int64_t dim)
      : view_{nullptr, DType::kF32, num_batch, tokens, heads, dim, 0, 0, 0, 1} {
    struct Axis {
      int64_t extent;
      int64_t* stride;
    };
    std::vector<Axis> axes = {{num_batch, &view_.batch_stride},
                              {tokens, &view_.token_stride},
                              {heads, &view_.head_stride},
                              {dim, &view_.dim_stride}};
    if (random.OneIn(2)) {
      for (size_t i = axes.size(); i > 1; --i) std::swap(axes[i - 1], axes[static_cast<size_t>(random.Bits() % i)]);
    }
    int64_t size = 1;
    int64_t first = 0;
    for (size_t i = axes.size(); i-- > 0;) {
      const Axis& axis = axes[i];
      const int64_t step = size + (random.OneIn(3) ? random.Int(1, 3) : 0);
      const bool reversed = random.OneIn(4) && axis.extent > 0;
      *axis.stride = reversed ? -step : step;
      if (reversed) first += step * (axis.extent - 1);
      size = step * std::max<int64_t>(axis.extent, 1);
    }
    storage_.assign(static_cast<size_t>(size), std::bit_cast<float>(0x7FDEAD00u));  // gaps hold NaN
    view_.data = storage_.data() + first;
  }

  TensorView view() const { return view_; }
  ConstTensorView const_view() const {
    return {view_.data, view_.dtype,        view_.num_batch,    view_.num_tokens,  view_.num_heads,
            view_.dim,  view_.batch_stride, view_.token_stride, view_.head_stride, view_.dim_stride};
  }

  void Set(int64_t batch, int64_t token, const Row& row) {
    for (size_t i = 0; i < row.size(); ++i)
      std::memcpy(At(batch, token, static_cast<int64_t>(i)), &row[i], sizeof(float));
  }
  Row Get(int64_t batch, int64_t token) const {
    Row row(static_cast<size_t>(view_.num_heads * view_.dim));
    for (size_t i = 0; i < row.size(); ++i)
      std::memcpy(&row[i], At(batch, token, static_cast<int64_t>(i)), sizeof(float));
    return row;
  }

 private:
  float* At(int64_t batch, int64_t token, int64_t i) const {
    return static_cast<float*>(view_.data) + batch * view_.batch_stride + token * view_.token_stride +
           i / view_.dim * view_.head_stride + i % view_.dim * view_.dim_stride;
  }

  TensorView view_;
  std::vector<float> storage_;
};

// A code, and that the message names what it must.
inline ::testing::AssertionResult Fails(const Status& status, StatusCode code,
                                        const std::vector<std::string>& words = {}) {
  if (status.code() != code) {
    return ::testing::AssertionFailure() << "expected " << StatusCodeName(code) << ", got "
                                         << StatusCodeName(status.code()) << ": " << status.message();
  }
  for (const std::string& word : words) {
    if (status.message().find(word) == std::string_view::npos) {
      return ::testing::AssertionFailure() << "'" << status.message() << "' does not name '" << word << "'";
    }
  }
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult Succeeds(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << StatusCodeName(status.code()) << ": " << status.message();
}

inline constexpr DType kEveryDType[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kI4};
static_assert(std::size(kEveryDType) == kNumDTypes);

// One layer of 2 heads, 8 sequences: what a test is about it changes.
inline KVCacheSpec SpecOf(DType k, DType v, int64_t qk_dim, int64_t v_dim, int64_t page_tokens, int64_t pages) {
  KVCacheSpec spec;
  spec.num_kv_heads = 2;
  spec.qk_dim = qk_dim;
  spec.v_dim = v_dim;
  spec.k_dtype = k;
  spec.v_dtype = v;
  spec.page_tokens = page_tokens;
  spec.max_tokens = pages * page_tokens;
  spec.max_sequences = 8;
  return spec;
}

inline KVCache MakeCache(const KVCacheSpec& spec) {
  Result<KVCache> cache = KVCache::Create(spec);
  EXPECT_TRUE(Succeeds(cache.status()));
  return std::move(cache).value();
}

inline SequenceId NewSequence(KVCache& cache) {
  Result<SequenceId> id = cache.CreateSequence();
  EXPECT_TRUE(Succeeds(id.status()));
  return *id;
}

}  // namespace headlane::internal

#endif  // HEADLANE_TESTS_KV_KV_TEST_UTIL_H_
