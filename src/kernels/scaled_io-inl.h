// Quantised tiles as operands of the kernels for few rows: where codes, scales, factors and sums stand.
//
// Separate from scaled_kernels-inl.h and scaled_lines-inl.h, two kernels that both use it.
#if defined(HEADLANE_SRC_KERNELS_SCALED_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_SCALED_IO_INL_H_
#undef HEADLANE_SRC_KERNELS_SCALED_IO_INL_H_
#else
#define HEADLANE_SRC_KERNELS_SCALED_IO_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/micro_kernel-inl.h"
#include "kernels/scaled_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Tiles that are decoded in two passes, a few lines at a time, have a type for what the first one leaves in memory.
template <class Tile>
inline constexpr bool kByLines = requires { typename Tile::Line; };
// One of the vectors that putting a line takes, or none.
template <class Tile, int kIndex, bool kLoads>
HWY_INLINE auto LoadPutting() {
  if constexpr (kByLines<Tile> && kLoads) {
    return Tile::template LoadPutting<std::min(kIndex, Tile::kPutting - 1)>();
  } else {
    return 0;
  }
}

// Tiles are too short for the prefetchers of the hardware: what is so many bytes behind each line is fetched meanwhile.
// A single row reads 1.4 to 1.9 times as fast with it (Zen 3, both cores, 4096 keys of 32 heads). Four tiles of 128
// features, which are as many as a weighted sum takes at once: with 4096 bytes fp8 takes 4 % longer on one core.
template <class Tile>
inline constexpr int64_t kScaledAhead = Tile::kSteps == 1 ? 8448 : 4608;

inline constexpr int64_t kCacheLine = 64;
inline constexpr int kMaxScaledRows = 4;
inline constexpr int kMaxScaledCols = 4;

template <class Tile>
HWY_INLINE const typename Tile::T* KScales(const typename Tile::T* tile, int64_t qk_dim) {
  return tile + KTileCodeBytes(Tile::kDType, qk_dim);
}
// Of the group of a feature.
template <class Tile>
HWY_INLINE const typename Tile::T* VScales(const typename Tile::T* tile, int64_t num_stripes,
                                           [[maybe_unused]] int64_t feature) {
  const typename Tile::T* const scales = tile + VTileCodeBytes(Tile::kDType, num_stripes * kTileKeys);
  if constexpr (Tile::kGroup == 0) {
    return scales;
  } else {
    const uint64_t group = static_cast<uint64_t>(feature) / static_cast<uint64_t>(Tile::kGroup);
    return scales + static_cast<int64_t>(group) * Tile::kGroupScaleBytes;
  }
}
template <class Tile>
inline constexpr int64_t kStripeBytes = kTileKeys / Tile::kSteps * Tile::kLine;

// Keys: a segment is a group of features, and each column has a scale per lane that is fixed for the segment.
template <class TileType>
struct ScaledQkIO {
  using Tile = TileType;
  using T = typename Tile::T;
  static constexpr bool kIsK = true;
  static constexpr int kScaleCols = 1;
  const QkArgs& args;
  int64_t row0, col, lanes;

  HWY_INLINE const T* TileOf(int c) const {
    return static_cast<const T*>(
        args.k_tiles[static_cast<uint64_t>(col + c) / static_cast<uint64_t>(VectorsPerTile())]);
  }
  HWY_INLINE int64_t Lane(int c) const {
    const uint64_t vectors = static_cast<uint64_t>(VectorsPerTile());
    return static_cast<int64_t>(static_cast<uint64_t>(col + c) % vectors * (kTileKeys / vectors));
  }
  HWY_INLINE int64_t NumSegments() const {
    if constexpr (Tile::kGroup == 0) {
      return 1;
    } else {
      return CeilDiv(args.qk_dim, Tile::kGroup);
    }
  }
  HWY_INLINE int64_t Length(int64_t segment) const {
    if constexpr (Tile::kGroup == 0) {
      return args.qk_dim;
    } else {
      return std::min(Tile::kGroup, args.qk_dim - segment * Tile::kGroup);
    }
  }
  HWY_INLINE const float* A(int64_t segment) const { return args.q + row0 * args.q_pitch + segment * Tile::kGroup; }
  HWY_INLINE int64_t APitch() const { return args.q_pitch; }
  HWY_INLINE const T* B(int c, int64_t segment) const {
    return TileOf(c) + segment * (Tile::kGroup / Tile::kSteps * Tile::kLine) + Tile::Column(Lane(c));
  }
  HWY_INLINE const T* Scales(int c, int64_t segment) const {
    return KScales<Tile>(TileOf(c), args.qk_dim) + segment * Tile::kGroupScaleBytes;
  }
  HWY_INLINE VF Load(DF d, int, int) const { return hn::Zero(d); }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const {
    hn::Store(v, d, args.s + (row0 + r) * kBlockKeys + (col + c) * lanes);
  }
};

// Values: a segment is a tile, and a step has one scale for all columns of the same group of features.
template <class TileType>
struct ScaledPvIO {
  using Tile = TileType;
  using T = typename Tile::T;
  static constexpr bool kIsK = false;
  // Where vectors have no known size a column never relies on its neighbour's scale.
  static constexpr int kScaleCols = Tile::kGroup == 0   ? kMaxScaledCols
                                    : HWY_HAVE_SCALABLE ? 1
                                                        : kColsPerTile * static_cast<int>(Tile::kGroup / kTileKeys);
  const PvArgs& args;
  int64_t row0, col, lanes;

  HWY_INLINE int64_t NumSegments() const { return args.num_tiles; }
  HWY_INLINE static constexpr int64_t Length(int64_t) { return kTileKeys; }
  HWY_INLINE const float* A(int64_t tile) const { return args.w + row0 * kBlockKeys + tile * kTileKeys; }
  HWY_INLINE static constexpr int64_t APitch() { return kBlockKeys; }
  HWY_INLINE const T* B(int c, int64_t tile) const {
    // Unsigned, which a shift divides.
    const uint64_t feature = static_cast<uint64_t>((col + c) * lanes), keys = kTileKeys;
    return static_cast<const T*>(args.v_tiles[tile]) + static_cast<int64_t>(feature / keys) * kStripeBytes<Tile> +
           Tile::Column(static_cast<int64_t>(feature % keys));
  }
  HWY_INLINE const T* Scales(int c, int64_t tile) const {
    return VScales<Tile>(static_cast<const T*>(args.v_tiles[tile]), args.num_stripes, (col + c) * lanes);
  }
  HWY_INLINE int64_t Lane(int) const { return 0; }
  HWY_INLINE float* O(int r, int c) const { return args.o + (row0 + r) * args.o_pitch + (col + c) * lanes; }
  HWY_INLINE VF Load(DF d, int r, int c) const {
    if (args.c == nullptr) return hn::Zero(d);
    return hn::Mul(hn::Load(d, O(r, c)), hn::Set(d, args.c[row0 + r]));
  }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const { hn::Store(v, d, O(r, c)); }
};

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_SCALED_IO_INL_H_
