// Quantised types in the cache: what they take, slots that are written alone, roll-backs, flags, and writing under any
// floating-point environment.
#include <gtest/gtest.h>

#include <cfenv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/quantized.h"
#include "headlane/kv_cache.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"
#include "kv/layout.h"
#include "kv/slot_copy.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace headlane::internal {
namespace {

constexpr DType kQuantized[] = {DType::kI8, DType::kF8E4M3, DType::kI4};

std::vector<float> RandomRows(Random& random, int64_t n) {
  std::vector<float> rows(static_cast<size_t>(n));
  for (float& x : rows) x = static_cast<float>(random.Int(-1000000, 1000000)) * 0x1p-18f;
  return rows;
}

// All bytes of the sequence's first page.
std::vector<std::byte> PageBytes(const KVCache& cache, SequenceId id) {
  int32_t page = 0;
  cache.impl().CopyPageIds(id, 1, &page);
  const std::byte* const first = cache.impl().KTile(0, page, 0, 0);
  return {first, first + cache.usage().page_bytes};
}

void Append(KVCache& cache, SequenceId id, const std::vector<float>& k, const std::vector<float>& v, int64_t begin,
            int64_t n) {
  const KVCacheSpec& spec = cache.spec();
  ASSERT_TRUE(
      Succeeds(cache.Append(id, TokensHeadsDim(&k[static_cast<size_t>(begin * 2 * spec.qk_dim)], n, 2, spec.qk_dim),
                            TokensHeadsDim(&v[static_cast<size_t>(begin * 2 * spec.v_dim)], n, 2, spec.v_dim))));
}

// The figures of kv_cache.h, where tiles are whole multiples of 64 bytes.
TEST(KVQuantized, BytesPerToken) {
  const auto per_token = [](DType k, DType v, int64_t qk_dim, int64_t v_dim) {
    return MakeCache(SpecOf(k, v, qk_dim, v_dim, 32, 2)).usage().bytes_per_token;
  };
  EXPECT_EQ(per_token(DType::kI8, DType::kI8, 128, 128), 2 * (132 + 132));
  EXPECT_EQ(per_token(DType::kF8E4M3, DType::kF8E4M3, 64, 128), 2 * (68 + 132));
  EXPECT_EQ(per_token(DType::kI4, DType::kI4, 128, 128), 2 * (72 + 72));
  EXPECT_EQ(per_token(DType::kI8, DType::kF16, 128, 64), 2 * (132 + 128));
  EXPECT_EQ(per_token(DType::kF32, DType::kI4, 64, 256), 2 * (256 + 144));
  // Dims that fill no tile: padding up to 64 bytes per tile.
  const auto round64 = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  for (const int64_t dim : {1, 3, 17, 33, 46, 100, 257}) {
    const int64_t padded = (dim + 15) / 16 * 16;
    const Result<KVLayout> bytes = MakeKVLayout(SpecOf(DType::kI8, DType::kF8E4M3, dim, dim, 32, 2));
    EXPECT_EQ(bytes->k_tile_bytes, round64(dim * 16 + 64));
    EXPECT_EQ(bytes->v_tile_bytes, round64(padded * 16 + 64));
    const Result<KVLayout> halves = MakeKVLayout(SpecOf(DType::kI4, DType::kI4, dim, dim, 32, 2));
    EXPECT_EQ(halves->k_tile_bytes, round64((dim + 1) / 2 * 16 + (dim + 31) / 32 * 32));
    EXPECT_EQ(halves->v_tile_bytes, round64(padded * 8 + (dim + 31) / 32 * 32));
  }
}

TEST(KVQuantized, DimsWithoutEndAreRefused) {
  for (const DType dtype : kQuantized) {
    for (const int64_t dim : {int64_t{1} << 58, int64_t{1} << 61, std::numeric_limits<int64_t>::max()}) {
      EXPECT_EQ(KVCache::Create(SpecOf(dtype, dtype, dim, 16, 32, 2)).status().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(KVCache::Create(SpecOf(dtype, dtype, 16, dim, 32, 2)).status().code(), StatusCode::kInvalidArgument);
    }
  }
}

// One token at a time, in any appends, rolled back and written again, over poison: the same bytes. Halves of bytes and
// scales of other slots stay what they are.
TEST(KVQuantized, SlotsDoNotDisturbEachOther) {
  Random random(1);
  for (const DType dtype : kQuantized) {
    for (const auto& [qk_dim, v_dim] : {std::pair<int64_t, int64_t>{64, 64}, {33, 17}, {1, 1}, {100, 80}}) {
      const std::vector<float> k = RandomRows(random, 32 * 2 * qk_dim), v = RandomRows(random, 32 * 2 * v_dim);
      const std::vector<float> other_k = RandomRows(random, 32 * 2 * qk_dim), other_v = RandomRows(random, 64 * v_dim);
      KVCache whole = MakeCache(SpecOf(dtype, dtype, qk_dim, v_dim, 32, 2));
      const SequenceId all = NewSequence(whole);
      Append(whole, all, k, v, 0, 32);
      KVCache cache = MakeCache(SpecOf(dtype, dtype, qk_dim, v_dim, 32, 2));
      cache.impl().PoisonUnusedForTesting();
      const SequenceId id = NewSequence(cache);
      for (int64_t length = 0; length < 32;) {
        const int64_t n = std::min<int64_t>(32 - length, random.Pick<int64_t>({1, 1, 2, 3, 9}));
        Append(cache, id, k, v, length, n);
        length += n;
        if (random.OneIn(3) && length < 32) {
          Append(cache, id, other_k, other_v, length, std::min<int64_t>(32 - length, random.Int(1, 20)));
          ASSERT_TRUE(Succeeds(cache.Truncate(id, length)));
        }
      }
      // Bytes that no code or scale uses keep what they held; there are none in these tiles but padding at their ends.
      const KVLayout& layout = cache.impl().layout();
      const std::vector<std::byte> expected = PageBytes(whole, all), actual = PageBytes(cache, id);
      std::vector<float> a(32 * 2 * static_cast<size_t>(qk_dim)), b(a.size());
      std::vector<float> c(32 * 2 * static_cast<size_t>(v_dim)), d(c.size());
      ASSERT_TRUE(Succeeds(
          whole.Read(all, 0, 0, TokensHeadsDim(a.data(), 32, 2, qk_dim), TokensHeadsDim(c.data(), 32, 2, v_dim))));
      ASSERT_TRUE(Succeeds(
          cache.Read(id, 0, 0, TokensHeadsDim(b.data(), 32, 2, qk_dim), TokensHeadsDim(d.data(), 32, 2, v_dim))));
      EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * 4)) << DTypeName(dtype) << " " << qk_dim;
      EXPECT_EQ(0, std::memcmp(c.data(), d.data(), c.size() * 4)) << DTypeName(dtype) << " " << v_dim;
      if (qk_dim == 64 && v_dim == 64) {
        EXPECT_EQ(expected, actual) << DTypeName(dtype) << " " << layout.k_tile_bytes;
      }
    }
  }
}

// A slot copied to any slot of another tile, or of the same one: what is read there is what was read here, and the
// other slots keep theirs.
TEST(KVQuantized, SlotsAreCopiedWithTheirScales) {
  Random random(9);
  for (const DType dtype : kQuantized) {
    for (const int64_t dim : {1, 16, 33, 64, 100}) {
      KVCache cache = MakeCache(SpecOf(dtype, dtype, dim, dim, 32, 2));
      const SequenceId id = NewSequence(cache);
      Append(cache, id, RandomRows(random, 32 * 2 * dim), RandomRows(random, 32 * 2 * dim), 0, 32);
      int32_t page = 0;
      cache.impl().CopyPageIds(id, 1, &page);
      const KVLayout& layout = cache.impl().layout();
      for (const bool is_k : {true, false}) {
        const size_t bytes = static_cast<size_t>(is_k ? layout.k_tile_bytes : layout.v_tile_bytes);
        const auto tile = [&](int64_t t) {
          const std::byte* const at = is_k ? cache.impl().KTile(0, page, 0, t) : cache.impl().VTile(0, page, 0, t);
          return std::vector<std::byte>(at, at + bytes);
        };
        const auto number = [&](const std::vector<std::byte>& from, int64_t d, int64_t slot) {
          return is_k ? KTileElement(dtype, from.data(), dim, d, slot) : VTileElement(dtype, from.data(), dim, d, slot);
        };
        const std::vector<std::byte> from = tile(0);
        for (int64_t from_slot = 0; from_slot < 16; ++from_slot) {
          for (int64_t to_slot = 0; to_slot < 16; ++to_slot) {
            std::vector<std::byte> to = tile(1);
            (is_k ? CopyKSlot : CopyVSlot)(dtype, dim, from.data(), from_slot, to.data(), to_slot);
            const std::vector<std::byte> before = tile(1);
            for (int64_t d = 0; d < dim; ++d) {
              for (int64_t slot = 0; slot < 16; ++slot) {
                ASSERT_EQ(number(to, d, slot), slot == to_slot ? number(from, d, from_slot) : number(before, d, slot))
                    << DTypeName(dtype) << " dim " << dim << " slot " << from_slot << " to " << to_slot;
              }
            }
          }
        }
      }
    }
  }
}

// A tile's first token clears the rest of it, scales included: what no token has written reads as finite numbers.
TEST(KVQuantized, FirstSlotClearsTheTile) {
  Random random(2);
  for (const DType dtype : kQuantized) {
    KVCache cache = MakeCache(SpecOf(dtype, dtype, 40, 24, 32, 2));
    cache.impl().PoisonUnusedForTesting();
    const SequenceId id = NewSequence(cache);
    ASSERT_TRUE(Succeeds(cache.Reserve(id, 16)));
    const std::vector<float> k = RandomRows(random, 80), v = RandomRows(random, 48);
    ASSERT_TRUE(
        Succeeds(cache.Write(id, 0, TokensHeadsDim(k.data(), 1, 2, 40), TokensHeadsDim(v.data(), 1, 2, 24), 5)));
    int32_t page = 0;
    cache.impl().CopyPageIds(id, 1, &page);
    alignas(64) float wide[40 * 16];
    const KvKernels& kernels = ActiveKernels().kv[static_cast<int>(dtype)];
    for (int64_t head = 0; head < 2; ++head) {
      kernels.widen_k({.tile = cache.impl().KTile(0, page, head, 0), .dim = 40, .out = wide});
      for (size_t i = 0; i < 40 * 16; ++i) {
        ASSERT_TRUE(i % 16 == 5 || wide[i] == 0.0f);
      }
      kernels.widen_v({.tile = cache.impl().VTile(0, page, head, 0), .dim = 24, .out = wide});
      for (size_t i = 0; i < 2 * 256; ++i) {
        ASSERT_TRUE(i / 16 % 16 == 5 || wide[i] == 0.0f);
      }
    }
    EXPECT_EQ(cache.impl().TileFlags(0, page, 0)[0], 0);
  }
}

TEST(KVQuantized, FlagsAreSetByRowsThatAreNotFinite) {
  for (const DType dtype : kQuantized) {
    for (const bool in_keys : {false, true}) {
      for (const float odd : {3e38f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        KVCacheSpec spec = SpecOf(dtype, dtype, 40, 40, 32, 2);
        spec.values_in_keys = in_keys;
        KVCache cache = MakeCache(spec);
        const SequenceId id = NewSequence(cache);
        std::vector<float> k(20 * 80, 1.0f), v(20 * 80, 1.0f);
        (in_keys ? k : v)[(17 * 2 + 1) * 40 + 39] = odd;
        Append(cache, id, k, v, 0, 20);
        int32_t page = 0;
        cache.impl().CopyPageIds(id, 1, &page);
        EXPECT_EQ(cache.impl().TileFlags(0, page, 1)[1], odd == 3e38f ? 0 : 1) << DTypeName(dtype) << odd;
        EXPECT_EQ(cache.impl().TileFlags(0, page, 1)[0], 0);
        EXPECT_EQ(cache.impl().TileFlags(0, page, 0)[1], 0);
      }
    }
  }
}

// Engines set rounding modes and flush denormals on some threads: the same bytes.
TEST(KVQuantized, WritingUnderAnyEnvironment) {
  Random random(3);
  for (const DType dtype : kQuantized) {
    std::vector<float> k = RandomRows(random, 32 * 2 * 64), v = RandomRows(random, 32 * 2 * 64);
    for (size_t i = 0; i < 640; ++i) k[i] *= 0x1p-110f;
    for (size_t i = 0; i < 640; ++i) v[i] *= 0x1p-140f;
    std::vector<std::byte> expected;
    for (int way = 0; way < 3; ++way) {
      KVCache cache = MakeCache(SpecOf(dtype, dtype, 64, 64, 32, 2));
      const SequenceId id = NewSequence(cache);
#if defined(__SSE2__)
      const unsigned before = _mm_getcsr();
      if (way == 1) _mm_setcsr(before | 0x8040u);
#endif
      if (way == 2) std::fesetround(FE_UPWARD);
      const Status status = cache.Append(id, TokensHeadsDim(k.data(), 32, 2, 64), TokensHeadsDim(v.data(), 32, 2, 64));
      std::fesetround(FE_TONEAREST);
#if defined(__SSE2__)
      _mm_setcsr(before);
#endif
      ASSERT_TRUE(Succeeds(status));
      if (way == 0) {
        expected = PageBytes(cache, id);
      } else {
        EXPECT_EQ(expected, PageBytes(cache, id)) << DTypeName(dtype) << " way " << way;
      }
    }
  }
}

}  // namespace
}  // namespace headlane::internal
