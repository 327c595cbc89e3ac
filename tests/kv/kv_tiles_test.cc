// The cache's memory as the kernels see it: where each number stands, when a tile is cleared, and what the flags say.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/blocking.h"
#include "headlane/kv_cache.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"

namespace headlane::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

KVCacheSpec Spec() {
  KVCacheSpec spec = SpecOf(DType::kF32, DType::kF32, 3, 18, 32, 3);
  spec.num_layers = 2;
  return spec;
}

// Writes n tokens at `begin` behind the length, all elements `value`, but V of `head` and token `at` has `odd` as its
// feature `feature`.
struct OddValue {
  int64_t at = -1;
  int64_t head = 0;
  int64_t feature = 0;
  float odd = 0;
};
void Write(KVCache& cache, SequenceId id, int64_t layer, int64_t begin, int64_t n, float value, OddValue odd = {}) {
  const KVCacheSpec& spec = cache.spec();
  std::vector<float> k(static_cast<size_t>(n * spec.num_kv_heads * spec.qk_dim), value);
  std::vector<float> v(static_cast<size_t>(n * spec.num_kv_heads * spec.v_dim), value);
  if (odd.at >= 0) v[static_cast<size_t>((odd.at * spec.num_kv_heads + odd.head) * spec.v_dim + odd.feature)] = odd.odd;
  ASSERT_TRUE(
      Succeeds(cache.Write(id, layer, TokensHeadsDim(std::as_const(k).data(), n, spec.num_kv_heads, spec.qk_dim),
                           TokensHeadsDim(std::as_const(v).data(), n, spec.num_kv_heads, spec.v_dim), begin)));
}

int32_t PageOf(const KVCache& cache, SequenceId id, int64_t index) {
  std::vector<int32_t> pages(static_cast<size_t>(index + 1));
  cache.impl().CopyPageIds(id, index + 1, pages.data());
  return pages.back();
}

// Number of floats in the tile that are neither 0 nor `value`.
int64_t Others(const std::byte* tile, int64_t floats, float value) {
  int64_t others = 0;
  for (int64_t i = 0; i < floats; ++i) {
    float x;
    std::memcpy(&x, tile + i * 4, sizeof(x));
    others += !(x == 0 || x == value);
  }
  return others;
}

TEST(KVTiles, EveryElementStandsWhereTheLayoutSays) {
  const KVCacheSpec spec = Spec();
  KVCache cache = MakeCache(spec);
  const KVCacheImpl& impl = cache.impl();
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 70)));
  // 1000 * order + 100 * head + feature, negative for V; layers apart by 1/2.
  for (int64_t layer = 0; layer < 2; ++layer) {
    std::vector<float> k, v;
    for (int64_t t = 0; t < 70; ++t) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t d = 0; d < 3; ++d)
          k.push_back(static_cast<float>(1000 * t + 100 * h + d) + 0.5f * static_cast<float>(layer));
        for (int64_t d = 0; d < 18; ++d) v.push_back(-static_cast<float>(1000 * t + 100 * h + d + 1));
      }
    }
    ASSERT_TRUE(Succeeds(cache.Write(id, layer, TokensHeadsDim(std::as_const(k).data(), 70, 2, 3),
                                     TokensHeadsDim(std::as_const(v).data(), 70, 2, 18))));
  }
  // Addresses from scratch, beside the ones that the library computes.
  const std::byte* const base = impl.addressing().base;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(base) % 64, 0u);
  const int64_t k_tile = 3 * 16 * 4, v_tile = 2 * 16 * 16 * 4, head_bytes = 2 * k_tile + 2 * v_tile;
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t t = 0; t < 70; ++t) {
      const int64_t page = PageOf(cache, id, t / 32);
      const int64_t tile = t % 32 / 16;
      for (int64_t h = 0; h < 2; ++h) {
        const std::byte* const head = base + layer * (3 * 2 * head_bytes) + page * (2 * head_bytes) + h * head_bytes;
        EXPECT_EQ(head + tile * k_tile, impl.KTile(layer, page, h, tile));
        EXPECT_EQ(head + 2 * k_tile + tile * v_tile, impl.VTile(layer, page, h, tile));
        const float* const k = reinterpret_cast<const float*>(head + tile * k_tile);
        const float* const v = reinterpret_cast<const float*>(head + 2 * k_tile + tile * v_tile);
        for (int64_t d = 0; d < 3; ++d) {
          ASSERT_EQ(k[d * 16 + t % 16], static_cast<float>(1000 * t + 100 * h + d) + 0.5f * static_cast<float>(layer));
        }
        for (int64_t d = 0; d < 18; ++d) {
          ASSERT_EQ(v[d / 16 * 256 + t % 16 * 16 + d % 16], -static_cast<float>(1000 * t + 100 * h + d + 1));
        }
      }
    }
  }
}

TEST(KVTiles, FirstSlotClearsTheTileWhateverItHeldBefore) {
  for (const int64_t begin : {int64_t{0}, int64_t{5}, int64_t{15}}) {  // the first write need not be to slot 0
    KVCache cache = MakeCache(Spec());
    const KVCacheImpl& impl = cache.impl();
    impl.PoisonUnusedForTesting();
    const SequenceId id = NewSequence(cache);
    ASSERT_TRUE(Succeeds(cache.Reserve(id, 40)));
    Write(cache, id, 1, begin, 1, 3.0f);
    const int32_t page = PageOf(cache, id, 0);
    for (int64_t head = 0; head < 2; ++head) {
      EXPECT_EQ(Others(impl.KTile(1, page, head, 0), 3 * 16, 3.0f), 0);
      EXPECT_EQ(Others(impl.VTile(1, page, head, 0), 2 * 16 * 16, 3.0f), 0);
      EXPECT_EQ(impl.TileFlags(1, page, head)[0], 0);
      // Its neighbours and the other layer were left alone.
      EXPECT_EQ(Others(impl.KTile(1, page, head, 1), 3 * 16, 3.0f), 3 * 16);
      EXPECT_EQ(Others(impl.VTile(0, page, head, 0), 2 * 16 * 16, 3.0f), 2 * 16 * 16);
    }
  }
}

TEST(KVTiles, LaterSlotsDoNotClear) {
  KVCache cache = MakeCache(Spec());
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 16)));
  Write(cache, id, 0, 8, 8, 2.0f);  // from behind
  Write(cache, id, 0, 0, 3, 1.0f);
  Write(cache, id, 0, 3, 5, 1.0f);
  const float* const k = reinterpret_cast<const float*>(cache.impl().KTile(0, PageOf(cache, id, 0), 0, 0));
  for (int64_t slot = 0; slot < 16; ++slot) EXPECT_EQ(k[slot], slot < 8 ? 1.0f : 2.0f) << slot;
}

TEST(KVTiles, WholeTilesAreWrittenOverPoisonWithTheirPadding) {
  KVCache cache = MakeCache(Spec());
  const KVCacheImpl& impl = cache.impl();
  impl.PoisonUnusedForTesting();
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 32)));
  Write(cache, id, 0, 0, 32, 4.0f);
  for (int64_t tile = 0; tile < 2; ++tile) {
    EXPECT_EQ(Others(impl.VTile(0, PageOf(cache, id, 0), 1, tile), 2 * 16 * 16, 4.0f), 0);
    EXPECT_EQ(impl.TileFlags(0, PageOf(cache, id, 0), 1)[tile], 0);
  }
}

TEST(KVTiles, NonFiniteValuesFlagTheirTileHeadAndLayerOnly) {
  for (const float odd : {kInf, -kInf, kNaN, -kNaN}) {
    for (const int64_t feature : {int64_t{0}, int64_t{15}, int64_t{16}, int64_t{17}}) {
      KVCache cache = MakeCache(Spec());
      const KVCacheImpl& impl = cache.impl();
      const SequenceId id = NewSequence(cache);
      ASSERT_TRUE(Succeeds(cache.Reserve(id, 64)));
      Write(cache, id, 0, 0, 64, 1.0f, {.at = 37, .head = 1, .feature = feature, .odd = odd});
      Write(cache, id, 1, 0, 64, 1.0f);
      for (int64_t layer = 0; layer < 2; ++layer) {
        for (int64_t head = 0; head < 2; ++head) {
          for (int64_t order = 0; order < 64; order += 16) {
            const uint8_t flag = impl.TileFlags(layer, PageOf(cache, id, order / 32), head)[order % 32 / 16];
            EXPECT_EQ(flag, layer == 0 && head == 1 && order == 32 ? 1 : 0);
          }
        }
      }
    }
  }
}

TEST(KVTiles, HugeAndTinyFiniteValuesAndNonFiniteKeysFlagNothing) {
  KVCache cache = MakeCache(Spec());
  const KVCacheSpec& spec = cache.spec();
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 16)));
  const float values[] = {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::denorm_min(), -0.0f};
  std::vector<float> k(16 * 2 * 3, kNaN);
  std::vector<float> v(16 * 2 * 18);
  for (size_t i = 0; i < v.size(); ++i) v[i] = values[i % 4];
  ASSERT_TRUE(Succeeds(cache.Write(id, 0, TokensHeadsDim(std::as_const(k).data(), 16, 2, spec.qk_dim),
                                   TokensHeadsDim(std::as_const(v).data(), 16, 2, spec.v_dim))));
  for (int64_t head = 0; head < 2; ++head) EXPECT_EQ(cache.impl().TileFlags(0, PageOf(cache, id, 0), head)[0], 0);
}

// A rolled-back NaN is still in the tile's memory, in a slot that no row sees but that the arithmetic meets: its flag
// stays until the tile is written anew as a whole.
TEST(KVTiles, FlagOutlivesRollbackUntilTheTileIsNew) {
  KVCache cache = MakeCache(Spec());
  const KVCacheImpl& impl = cache.impl();
  const SequenceId id = NewSequence(cache);
  const auto flag = [&] { return impl.TileFlags(0, PageOf(cache, id, 0), 0)[1]; };
  const auto append = [&](int64_t n, OddValue odd = {}) {
    ASSERT_TRUE(Succeeds(cache.Reserve(id, n)));
    for (int64_t layer = 0; layer < 2; ++layer) Write(cache, id, layer, 0, n, 1.0f, odd);
    ASSERT_TRUE(Succeeds(cache.Commit(id, n)));
  };
  append(24, {.at = 22, .odd = kNaN});
  EXPECT_EQ(flag(), 1);
  ASSERT_TRUE(Succeeds(cache.Truncate(id, 20)));
  EXPECT_EQ(flag(), 1);
  append(1);
  EXPECT_EQ(flag(), 1);  // slot 6 of the tile still holds the NaN
  ASSERT_TRUE(Succeeds(cache.Truncate(id, 16)));
  append(1);  // first slot of the tile: cleared
  EXPECT_EQ(flag(), 0);
  EXPECT_EQ(Others(impl.VTile(0, PageOf(cache, id, 0), 0, 1), 2 * 16 * 16, 1.0f), 0);
  ASSERT_TRUE(Succeeds(cache.Truncate(id, 0)));
  append(24, {.at = 22, .odd = kInf});
  ASSERT_TRUE(Succeeds(cache.Truncate(id, 0)));
  append(32);
  EXPECT_EQ(flag(), 0);
}

TEST(KVTiles, AWriteOverAWrittenTileAsAWholeSetsTheFlagAfresh) {
  KVCache cache = MakeCache(Spec());
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 16)));
  const auto flag = [&] { return cache.impl().TileFlags(0, PageOf(cache, id, 0), 0)[0]; };
  Write(cache, id, 0, 0, 16, 1.0f, {.at = 3, .odd = kNaN});
  EXPECT_EQ(flag(), 1);
  Write(cache, id, 0, 0, 8, 1.0f);
  EXPECT_EQ(flag(), 1);
  Write(cache, id, 0, 0, 16, 1.0f);
  EXPECT_EQ(flag(), 0);
}

TEST(KVTiles, PoisonLeavesTokensAlone) {
  KVCache cache = MakeCache(Spec());
  const KVCacheImpl& impl = cache.impl();
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 17)));
  Write(cache, id, 0, 0, 17, 6.0f);
  impl.PoisonUnusedForTesting();
  const int32_t page = PageOf(cache, id, 0);
  for (int64_t tile = 0; tile < 2; ++tile) EXPECT_EQ(Others(impl.KTile(0, page, 0, tile), 3 * 16, 6.0f), 0);
  EXPECT_EQ(Others(impl.KTile(1, page, 0, 0), 3 * 16, 6.0f), 3 * 16);
  const int32_t free_page = (page + 1) % 3;
  EXPECT_EQ(Others(impl.VTile(0, free_page, 1, 1), 2 * 16 * 16, 6.0f), 2 * 16 * 16);
}

}  // namespace
}  // namespace headlane::internal
