// Rows of up to 16 keys to one tile: a transpose for K, a copy in stripes for V.
#if defined(HEADLANE_SRC_KERNELS_PACK_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_PACK_TILE_INL_H_
#undef HEADLANE_SRC_KERNELS_PACK_TILE_INL_H_
#else
#define HEADLANE_SRC_KERNELS_PACK_TILE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/kernel_api.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 4 keys x 4 features, transposed in registers of 4 lanes, which every target has.
HWY_INLINE void Transpose4x4(const float* HWY_RESTRICT rows, int64_t row_stride, float* HWY_RESTRICT tile) {
  const hn::FixedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> d64;
  const auto r0 = hn::LoadU(d, rows);
  const auto r1 = hn::LoadU(d, rows + row_stride);
  const auto r2 = hn::LoadU(d, rows + 2 * row_stride);
  const auto r3 = hn::LoadU(d, rows + 3 * row_stride);
  const auto a0 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));  // 00 10 01 11
  const auto a1 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto a2 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto a3 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, a0, a1)), d, tile);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, a0, a1)), d, tile + kTileKeys);
  hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, a2, a3)), d, tile + 2 * kTileKeys);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, a2, a3)), d, tile + 3 * kTileKeys);
}

HWY_MAYBE_UNUSED void PackKTile(const PackTileArgs& args) noexcept {
  float* HWY_RESTRICT tile = static_cast<float*>(args.tile);
  const float* const rows = static_cast<const float*>(args.rows);
  int64_t dim = 0;
  int64_t first_key = 0;
  if (args.dim_stride == 1 && args.slot_begin % 4 == 0) {
    first_key = args.num_keys / 4 * 4;
    for (; dim + 4 <= args.dim; dim += 4) {
      for (int64_t key = 0; key < first_key; key += 4) {
        Transpose4x4(rows + key * args.row_stride + dim, args.row_stride,
                     tile + dim * kTileKeys + args.slot_begin + key);
      }
    }
  }
  // What is left: the last features of all keys, and the last keys of all features.
  for (int64_t i = 0; i < args.dim; ++i) {
    for (int64_t key = i < dim ? first_key : 0; key < args.num_keys; ++key) {
      tile[i * kTileKeys + args.slot_begin + key] = rows[key * args.row_stride + i * args.dim_stride];
    }
  }
}

HWY_MAYBE_UNUSED void PackVTile(const PackTileArgs& args) noexcept {
  const hn::CappedTag<float, kTileKeys> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto taint = hn::Zero(d);  // 0 as long as every value is finite: 0 * inf and 0 * NaN are NaN
  for (int64_t key = 0; key < args.num_keys; ++key) {
    const float* HWY_RESTRICT row = static_cast<const float*>(args.rows) + key * args.row_stride;
    float* HWY_RESTRICT tile = static_cast<float*>(args.tile) + (args.slot_begin + key) * kTileKeys;
    int64_t stripe_begin = 0;
    for (; stripe_begin < args.dim; stripe_begin += kTileKeys, tile += kTileKeys * kTileKeys) {
      if (args.dim_stride == 1 && stripe_begin + kTileKeys <= args.dim) {
        for (int64_t i = 0; i < kTileKeys; i += lanes) {
          const auto v = hn::LoadU(d, row + stripe_begin + i);
          taint = hn::MulAdd(v, hn::Zero(d), taint);
          hn::Store(v, d, tile + i);
        }
        continue;
      }
      for (int64_t i = 0; i < kTileKeys; ++i) {
        tile[i] = stripe_begin + i < args.dim ? row[(stripe_begin + i) * args.dim_stride] : 0.0f;
      }
      for (int64_t i = 0; i < kTileKeys; i += lanes) {
        taint = hn::MulAdd(hn::Load(d, tile + i), hn::Zero(d), taint);
      }
    }
  }
  if (args.non_finite != nullptr) *args.non_finite = !hn::AllTrue(d, hn::Eq(taint, hn::Zero(d)));
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_PACK_TILE_INL_H_
