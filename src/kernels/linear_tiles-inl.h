// Linear layers on tiles of plain numbers: the micro-kernel of the scores, with whatever codec a tile has.
//
// Separate from the translation units of f32 and of the 16-bit formats, which share it.
#if defined(HEADLANE_SRC_KERNELS_LINEAR_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_LINEAR_TILES_INL_H_
#undef HEADLANE_SRC_KERNELS_LINEAR_TILES_INL_H_
#else
#define HEADLANE_SRC_KERNELS_LINEAR_TILES_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// w: the tiles, `tile_stride` elements apart.
template <class TileType>
struct LinearIO {
  using Tile = TileType;
  using T = typename Tile::T;
  static constexpr int64_t kLength = 0;
  static constexpr bool kEvenLength = Tile::kSteps == 1;
  const LinearArgs& args;
  const T* w;
  int64_t tile_stride;
  int64_t row0, col, per_tile, lanes;

  HWY_INLINE const float* A(int64_t) const { return args.x + row0 * args.x_pitch; }
  HWY_INLINE int64_t APitch() const { return args.x_pitch; }
  HWY_INLINE const T* B(int c, int64_t) const {
    return w + (col + c) / per_tile * tile_stride + Tile::Column((col + c) % per_tile * lanes);
  }
  HWY_INLINE static constexpr int64_t LineStep() { return Tile::kLine; }
  HWY_INLINE float* Y(int r, int c) const { return args.y + (row0 + r) * args.y_pitch + (col + c) * lanes; }
  // Features of this vector that exist and of those behind it: the last tile may be padded.
  HWY_INLINE int64_t Left(int c) const { return args.num_features - (col + c) * lanes; }
  HWY_INLINE VF Load(DF d, int r, int c) const {
    if (!args.accumulate) return hn::Zero(d);
    if (HWY_LIKELY(Left(c) >= lanes)) return hn::LoadU(d, Y(r, c));
    return hn::LoadN(d, Y(r, c), static_cast<size_t>(std::max<int64_t>(Left(c), 0)));
  }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const {
    if (HWY_LIKELY(Left(c) >= lanes)) return hn::StoreU(v, d, Y(r, c));
    hn::StoreN(v, d, Y(r, c), static_cast<size_t>(std::max<int64_t>(Left(c), 0)));
  }
};

// Nothing is prefetched: the hardware follows the tiles of a block by itself, to 95 % of what memory gives (Zen 3).
template <class Tile>
struct MakeLinearIO {
  static constexpr Prefetch kPrefetch = Prefetch::kNone;
  static constexpr int kMinGroup = 1;
  static constexpr int kMaxGroup = kMaxRows;
  static constexpr bool kOneTile = false;
  const LinearArgs& args;
  const typename Tile::T* w;
  int64_t tile_stride, per_tile, lanes;
  HWY_INLINE LinearIO<Tile> IO(int64_t row0, int64_t col) const {
    return {args, w, tile_stride, row0, col, per_tile, lanes};
  }
  HWY_INLINE MakeLinearIO ForOtherGroups() const { return *this; }
};

template <class Tile>
HWY_INLINE void MultiplyTiles(const LinearArgs& args, const typename Tile::T* w, int64_t tile_stride) {
  const int64_t per_tile = VectorsPerTile();
  BlockedMultiply(args.rows, args.num_tiles * per_tile, 1, args.k_len,
                  MakeLinearIO<Tile>{args, w, tile_stride, per_tile, kTileKeys / per_tile});
}

template <class Tile>
void TilesTimesRows(const WeightArgs& args) noexcept {
  using T = typename Tile::T;
  LinearArgs linear = {};
  linear.x = args.x;
  linear.x_pitch = args.x_pitch;
  linear.rows = args.rows;
  linear.k_len = args.k_len;
  linear.num_tiles = args.num_tiles;
  linear.y = args.y;
  linear.y_pitch = args.y_pitch;
  linear.num_features = args.num_features;
  MultiplyTiles<Tile>(linear, reinterpret_cast<const T*>(args.w), args.tile_bytes / static_cast<int64_t>(sizeof(T)));
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_LINEAR_TILES_INL_H_
