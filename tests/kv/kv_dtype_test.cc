// Element types of the cache: what is stored of rows of every type, what is read back, sizes, flags, and values that
// are the first features of the keys.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "headlane/kv_cache.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"
#include "kv/layout.h"

namespace headlane::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr DType kAllDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// The nearest number of the type.
float Rounded(DType dtype, float x) {
  if (dtype == DType::kF16) return F16ToF32(F32ToF16(x));
  if (dtype == DType::kBF16) return BF16ToF32(F32ToBF16(x));
  return x;
}

// [tokens][heads][dim] of one type in memory.
class RowsOfType {
 public:
  RowsOfType(DType dtype, int64_t tokens, int64_t heads, int64_t dim)
      : dtype_(dtype), shape_(TokensHeadsDim(static_cast<const float*>(nullptr), tokens, heads, dim)) {
    values_.resize(static_cast<size_t>(tokens * heads * dim));
    bytes_.resize(values_.size() * static_cast<size_t>(DTypeBytes(dtype)));
  }
  void Set(size_t i, float x) {
    values_[i] = Rounded(dtype_, x);
    if (dtype_ == DType::kF32) return static_cast<void>(std::memcpy(&bytes_[i * 4], &x, 4));
    const uint16_t bits = dtype_ == DType::kF16 ? F32ToF16(x) : F32ToBF16(x);
    std::memcpy(&bytes_[i * 2], &bits, 2);
  }
  void Fill(Random& random) {
    for (size_t i = 0; i < values_.size(); ++i) {
      // Of all sizes that the types hold, past f16's largest, and ties.
      const float sign = random.OneIn(2) ? 1.0f : -1.0f;
      const int exponent = static_cast<int>(random.Int(-30, 17));
      Set(i, sign * std::ldexp(static_cast<float>(random.Int(1, 1 << 13)), exponent - 12));
    }
  }
  size_t size() const { return values_.size(); }
  float value(size_t i) const { return values_[i]; }
  ConstTensorView view() const {
    ConstTensorView view = shape_;
    view.data = bytes_.data();
    view.dtype = dtype_;
    return view;
  }

 private:
  DType dtype_;
  ConstTensorView shape_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

// What is read back of tokens [0, n): k, then v.
std::pair<std::vector<float>, std::vector<float>> ReadAll(const KVCache& cache, SequenceId id, int64_t n) {
  const KVCacheSpec& spec = cache.spec();
  std::vector<float> k(static_cast<size_t>(n * spec.num_kv_heads * spec.qk_dim), kNaN);
  std::vector<float> v(static_cast<size_t>(n * spec.num_kv_heads * spec.v_dim), kNaN);
  EXPECT_TRUE(Succeeds(cache.Read(id, 0, 0, TokensHeadsDim(k.data(), n, spec.num_kv_heads, spec.qk_dim),
                                  TokensHeadsDim(v.data(), n, spec.num_kv_heads, spec.v_dim))));
  return {k, v};
}

void ExpectBits(const std::vector<float>& expected, const std::vector<float>& actual, const char* what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(BitsOf(expected[i]), BitsOf(actual[i])) << what << "[" << i << "]: " << expected[i] << " " << actual[i];
  }
}

// Rows of any type, in appends of any length, into caches of any two types, over poisoned memory: every number comes
// back as it was rounded, once.
TEST(KVDType, RoundTripOfEveryTypeAndAnyAppends) {
  Random random(1);
  for (const DType k_dtype : kAllDTypes) {
    for (const DType v_dtype : kAllDTypes) {
      for (const DType rows_dtype : kAllDTypes) {
        for (const auto& [qk_dim, v_dim] : {std::pair<int64_t, int64_t>{1, 1}, {5, 20}, {16, 16}, {33, 7}, {64, 80}}) {
          SCOPED_TRACE(std::string(DTypeName(k_dtype)) + " " + DTypeName(v_dtype) + " of " + DTypeName(rows_dtype) +
                       " dims " + std::to_string(qk_dim) + " " + std::to_string(v_dim));
          const KVCacheSpec spec =
              SpecOf(k_dtype, v_dtype, qk_dim, v_dim, random.Pick<int64_t>({16, 32, 48, 64, 128}), 8);
          KVCache cache = MakeCache(spec);
          cache.impl().PoisonUnusedForTesting();
          const SequenceId id = NewSequence(cache);
          std::vector<float> k_expected, v_expected;
          int64_t length = 0;
          while (length < 100) {
            const int64_t n = random.Pick<int64_t>({1, 1, 2, 3, 7, 16, 17, 28});
            RowsOfType k(rows_dtype, n, 2, qk_dim), v(rows_dtype, n, 2, v_dim);
            k.Fill(random);
            v.Fill(random);
            ASSERT_TRUE(Succeeds(cache.Append(id, k.view(), v.view())));
            for (size_t i = 0; i < k.size(); ++i) k_expected.push_back(Rounded(k_dtype, k.value(i)));
            for (size_t i = 0; i < v.size(); ++i) v_expected.push_back(Rounded(v_dtype, v.value(i)));
            length += n;
          }
          const auto [k_read, v_read] = ReadAll(cache, id, length);
          ExpectBits(k_expected, k_read, "k");
          ExpectBits(v_expected, v_read, "v");
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Pages hold whole tiles of multiples of 64 bytes; nothing else.
TEST(KVDType, SizesOfPages) {
  const auto round64 = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  for (const DType k_dtype : kAllDTypes) {
    for (const DType v_dtype : kAllDTypes) {
      for (const int64_t qk_dim : {1, 2, 3, 64, 80, 257, 576}) {
        for (const int64_t v_dim : {1, 16, 17, 128, 512}) {
          const KVCacheSpec spec = SpecOf(k_dtype, v_dtype, qk_dim, v_dim, 48, 3);
          const Result<KVLayout> layout = MakeKVLayout(spec);
          ASSERT_TRUE(Succeeds(layout.status()));
          const int64_t k_features = k_dtype == DType::kBF16 ? (qk_dim + 1) / 2 * 2 : qk_dim;
          EXPECT_EQ(layout->k_tile_bytes, round64(k_features * 16 * (k_dtype == DType::kF32 ? 4 : 2)));
          EXPECT_EQ(layout->v_tile_bytes, (v_dim + 15) / 16 * 256 * (v_dtype == DType::kF32 ? 4 : 2));
          const KVCacheUsage usage = MakeCache(spec).usage();
          EXPECT_EQ(usage.page_bytes, 2 * 3 * (layout->k_tile_bytes + layout->v_tile_bytes));
          EXPECT_EQ(usage.bytes_per_token * 48, usage.page_bytes);
        }
      }
    }
  }
  EXPECT_EQ(MakeCache(SpecOf(DType::kBF16, DType::kF16, 128, 128, 32, 4)).usage().bytes_per_token, 2 * 2 * 128 * 2);
}

// A tile is cleared when its first slot is written, whatever its type: poison never meets arithmetic.
TEST(KVDType, FirstSlotClearsTheTile) {
  for (const DType dtype : kAllDTypes) {
    for (const int64_t begin : {int64_t{0}, int64_t{5}, int64_t{15}}) {
      KVCache cache = MakeCache(SpecOf(dtype, dtype, 3, 18, 32, 4));
      const KVCacheImpl& impl = cache.impl();
      impl.PoisonUnusedForTesting();
      const SequenceId id = NewSequence(cache);
      ASSERT_TRUE(Succeeds(cache.Reserve(id, 16)));
      RowsOfType k(DType::kF32, 1, 2, 3), v(DType::kF32, 1, 2, 18);
      ASSERT_TRUE(Succeeds(cache.Write(id, 0, k.view(), v.view(), begin)));  // zeros
      int32_t page = 0;
      impl.CopyPageIds(id, 1, &page);
      for (int64_t head = 0; head < 2; ++head) {
        for (int64_t i = 0; i < impl.layout().k_tile_bytes; ++i)
          ASSERT_EQ(impl.KTile(0, page, head, 0)[i], std::byte{});
        for (int64_t i = 0; i < impl.layout().v_tile_bytes; ++i)
          ASSERT_EQ(impl.VTile(0, page, head, 0)[i], std::byte{});
      }
    }
  }
}

// The flag is about what is stored: 1e5 is finite in f32 and bf16, and infinity in f16.
TEST(KVDType, FlagsSayWhatWasStored) {
  for (const DType dtype : kAllDTypes) {
    for (const float odd : {1.0f, 1e5f, 65519.0f, 65520.0f, std::numeric_limits<float>::max(), kInf, -kInf, kNaN}) {
      KVCache cache = MakeCache(SpecOf(dtype == DType::kF32 ? DType::kF16 : DType::kF32, dtype, 4, 18, 32, 4));
      const SequenceId id = NewSequence(cache);
      RowsOfType k(DType::kF32, 20, 2, 4), v(DType::kF32, 20, 2, 18);
      v.Set((17 * 2 + 1) * 18 + 17, odd);
      ASSERT_TRUE(Succeeds(cache.Append(id, k.view(), v.view())));
      int32_t page = 0;
      cache.impl().CopyPageIds(id, 1, &page);
      const float stored = Rounded(dtype, odd);
      EXPECT_EQ(cache.impl().TileFlags(0, page, 1)[1], stored - stored == 0.0f ? 0 : 1) << DTypeName(dtype) << odd;
      EXPECT_EQ(cache.impl().TileFlags(0, page, 1)[0], 0);
      EXPECT_EQ(cache.impl().TileFlags(0, page, 0)[1], 0);
    }
  }
}

TEST(KVDType, ReadGivesF32OrWhatIsStored) {
  KVCache cache = MakeCache(SpecOf(DType::kF16, DType::kBF16, 4, 4, 32, 4));
  const SequenceId id = NewSequence(cache);
  Random random(3);
  RowsOfType rows(DType::kF32, 3, 2, 4);
  rows.Fill(random);
  ASSERT_TRUE(Succeeds(cache.Append(id, rows.view(), rows.view())));
  std::vector<float> wide_k(3 * 2 * 4), wide_v(3 * 2 * 4, 7.0f);
  std::vector<uint16_t> k(3 * 2 * 4, 7), v(3 * 2 * 4, 7);
  const auto as = [](DType dtype, void* data) {
    TensorView view = TokensHeadsDim(static_cast<float*>(data), 3, 2, 4);
    view.dtype = dtype;
    return view;
  };
  const TensorView f32_k = as(DType::kF32, wide_k.data()), f32_v = as(DType::kF32, wide_v.data());
  // The other 16-bit type, or one that no tensor has.
  EXPECT_TRUE(Fails(cache.Read(id, 0, 0, as(DType::kBF16, k.data()), f32_v), StatusCode::kUnsupported, {"k", "bf16"}));
  EXPECT_TRUE(Fails(cache.Read(id, 0, 0, f32_k, as(DType::kF16, v.data())), StatusCode::kUnsupported, {"v", "f16"}));
  EXPECT_FALSE(cache.Read(id, 0, 0, f32_k, as(DType::kI8, v.data())).ok());
  EXPECT_EQ(wide_v, std::vector<float>(wide_v.size(), 7.0f));
  EXPECT_EQ(k, std::vector<uint16_t>(k.size(), 7));
  ASSERT_TRUE(Succeeds(cache.Read(id, 0, 0, f32_k, f32_v)));
  ASSERT_TRUE(Succeeds(cache.Read(id, 0, 0, as(DType::kF16, k.data()), as(DType::kBF16, v.data()))));
  for (size_t i = 0; i < k.size(); ++i) {
    EXPECT_EQ(BitsOf(F16ToF32(k[i])), BitsOf(wide_k[i])) << i;
    EXPECT_EQ(BitsOf(BF16ToF32(v[i])), BitsOf(wide_v[i])) << i;
  }
}

KVCacheSpec LatentSpec(DType dtype, int64_t qk_dim, int64_t v_dim) {
  KVCacheSpec spec = SpecOf(dtype, static_cast<DType>(99), qk_dim, v_dim, 32, 4);  // v_dtype is not looked at
  spec.values_in_keys = true;
  return spec;
}

TEST(KVLatent, StoresKeysOnly) {
  Random random(2);
  for (const DType dtype : kAllDTypes) {
    for (const auto& [qk_dim, v_dim] : {std::pair<int64_t, int64_t>{7, 7}, {40, 32}, {576, 512}, {5, 1}}) {
      const KVCacheSpec spec = LatentSpec(dtype, qk_dim, v_dim);
      KVCache cache = MakeCache(spec);
      EXPECT_EQ(cache.impl().layout().v_tile_bytes, 0);
      EXPECT_EQ(cache.usage().page_bytes, 2 * 2 * cache.impl().layout().k_tile_bytes);
      cache.impl().PoisonUnusedForTesting();
      const SequenceId id = NewSequence(cache);
      std::vector<float> expected;
      for (const int64_t n : {1, 20, 16, 3}) {
        RowsOfType k(DType::kF32, n, 2, qk_dim);
        k.Fill(random);
        // A v that makes no sense is no error: nobody looks at it.
        ASSERT_TRUE(Succeeds(cache.Append(id, k.view(), ConstTensorView{.num_tokens = -1})));
        for (size_t i = 0; i < k.size(); ++i) expected.push_back(Rounded(dtype, k.value(i)));
      }
      std::vector<float> read(expected.size(), kNaN);
      ASSERT_TRUE(Succeeds(cache.Read(id, 0, 0, TokensHeadsDim(read.data(), 40, 2, qk_dim), TensorView{})));
      ExpectBits(expected, read, "k");
    }
  }
}

TEST(KVLatent, FlagsAreOfTheValuesPartOfTheKeys) {
  for (const DType dtype : kAllDTypes) {
    for (const int64_t feature : {0, 8, 9, 10, 14}) {
      for (const int64_t n : {16, 5}) {
        KVCache cache = MakeCache(LatentSpec(dtype, 15, 10));
        cache.impl().PoisonUnusedForTesting();
        const SequenceId id = NewSequence(cache);
        RowsOfType k(DType::kF32, n, 2, 15);
        k.Set(static_cast<size_t>((3 * 2 + 1) * 15 + feature), kNaN);
        ASSERT_TRUE(Succeeds(cache.Append(id, k.view(), {})));
        int32_t page = 0;
        cache.impl().CopyPageIds(id, 1, &page);
        EXPECT_EQ(cache.impl().TileFlags(0, page, 1)[0], feature < 10 ? 1 : 0) << DTypeName(dtype) << feature;
        EXPECT_EQ(cache.impl().TileFlags(0, page, 0)[0], 0);
      }
    }
  }
}

TEST(KVLatent, ValuesCannotBeWiderThanKeys) {
  EXPECT_TRUE(Fails(KVCache::Create(LatentSpec(DType::kF32, 8, 9)).status(), StatusCode::kInvalidArgument,
                    {"v_dim", "9", "8"}));
  // Keys are checked as ever.
  KVCache cache = MakeCache(LatentSpec(DType::kF32, 8, 4));
  const SequenceId id = NewSequence(cache);
  RowsOfType k(DType::kF32, 3, 2, 7);
  EXPECT_TRUE(Fails(cache.Append(id, k.view(), {}), StatusCode::kInvalidArgument, {"k", "dim", "7", "8"}));
  EXPECT_EQ(*cache.Length(id), 0);
}

}  // namespace
}  // namespace headlane::internal
