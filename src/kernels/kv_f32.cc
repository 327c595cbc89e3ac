// Keys and values stored as f32: scores, weighted sums, packing of tiles.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/micro_kernel-inl.h"
#include "kernels/pack_tile-inl.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

// Where a feature's stripe begins in a V tile.
HWY_INLINE int64_t StripeOffset(int64_t feature) {
  return feature / kTileKeys * (kTileKeys * kTileKeys) + feature % kTileKeys;
}

// How tiles are read.
enum class Access {
  kCached,    // blocks of columns for the registers: the tiles are in a cache
  kAhead,     // the same, prefetching: many rows, whose arithmetic leaves time for memory
  kTilewise,  // one tile after the other in order of address, prefetching: few rows, which wait for memory. Several
              // streams at once read slower than one.
};
inline constexpr int64_t kMaxTilewiseRows = 8;

constexpr Access WithoutPrefetching(Access access) { return access == Access::kAhead ? Access::kCached : access; }

struct QkIO {
  const QkArgs& args;
  int64_t row0, col, per_tile, lanes;

  HWY_INLINE const float* A(int r, int64_t) const { return args.q + (row0 + r) * args.q_pitch; }
  HWY_INLINE const float* B(int c, int64_t) const {
    return static_cast<const float*>(args.k_tiles[(col + c) / per_tile]) + (col + c) % per_tile * lanes;
  }
  HWY_INLINE VF Load(DF d, int, int) const { return hn::Zero(d); }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const {
    hn::Store(v, d, args.s + (row0 + r) * kBlockKeys + (col + c) * lanes);
  }
};

template <Access kAccess>
struct MakeQkIO {
  static constexpr bool kPrefetch = kAccess != Access::kCached;
  static constexpr bool kOneTile = kAccess == Access::kTilewise;
  const QkArgs& args;
  int64_t per_tile, lanes;
  HWY_INLINE QkIO IO(int64_t row0, int64_t col) const { return {args, row0, col, per_tile, lanes}; }
  HWY_INLINE MakeQkIO<WithoutPrefetching(kAccess)> WithoutPrefetch() const { return {args, per_tile, lanes}; }
};

template <Access kAccess>
HWY_INLINE void QkBlock(const QkArgs& args) {
  const int64_t per_tile = VectorsPerTile();
  BlockedMultiply(args.rows, args.num_tiles * per_tile, 1, args.qk_dim,
                  MakeQkIO<kAccess>{args, per_tile, kTileKeys / per_tile});
}

void Qk(const QkArgs& args) noexcept {
  if (!args.stream) return QkBlock<Access::kCached>(args);
  if (args.rows > kMaxTilewiseRows) return QkBlock<Access::kAhead>(args);
  QkBlock<Access::kTilewise>(args);
}

struct PvIO {
  const PvArgs& args;
  int64_t row0, col, lanes;

  HWY_INLINE const float* A(int r, int64_t tile) const { return args.w + (row0 + r) * kBlockKeys + tile * kTileKeys; }
  HWY_INLINE const float* B(int c, int64_t tile) const {
    return static_cast<const float*>(args.v_tiles[tile]) + StripeOffset((col + c) * lanes);
  }
  HWY_INLINE float* O(int r, int c) const { return args.o + (row0 + r) * args.o_pitch + (col + c) * lanes; }
  HWY_INLINE VF Load(DF d, int r, int c) const {
    if (args.c == nullptr) return hn::Zero(d);
    return hn::Mul(hn::Load(d, O(r, c)), hn::Set(d, args.c[row0 + r]));
  }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const { hn::Store(v, d, O(r, c)); }
};

template <Access kAccess>
struct MakePvIO {
  static constexpr bool kPrefetch = kAccess != Access::kCached;
  static constexpr bool kOneTile = kAccess == Access::kTilewise;
  const PvArgs& args;
  int64_t lanes;
  HWY_INLINE PvIO IO(int64_t row0, int64_t col) const { return {args, row0, col, lanes}; }
  HWY_INLINE MakePvIO<WithoutPrefetching(kAccess)> WithoutPrefetch() const { return {args, lanes}; }
};

template <Access kAccess>
HWY_INLINE void PvBlock(const PvArgs& args) {
  const int64_t per_tile = VectorsPerTile();
  BlockedMultiply(args.rows, args.num_stripes * per_tile, args.num_tiles, kTileKeys,
                  MakePvIO<kAccess>{args, kTileKeys / per_tile});
}

// Leaves out the keys that do not count, one row at a time: for tiles that hold values that are not finite, where
// weight 0 times value would not be 0. Rare, so it is plain.
void PvSelected(const PvArgs& args) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t feature = 0; feature < args.num_stripes * kTileKeys; feature += lanes) {
      float* o = args.o + r * args.o_pitch + feature;
      VF acc = hn::Zero(d);
      if (args.c != nullptr) acc = hn::Mul(hn::Load(d, o), hn::Set(d, args.c[r]));
      for (int64_t t = 0; t < args.num_tiles; ++t) {
        const float* v = static_cast<const float*>(args.v_tiles[t]) + StripeOffset(feature);
        const uint32_t live = args.live[r * kTilesPerBlock + t];
        for (int64_t key = 0; key < kTileKeys; ++key) {
          if ((live >> key & 1) == 0) continue;
          acc = hn::MulAdd(hn::Set(d, args.w[r * kBlockKeys + t * kTileKeys + key]), hn::Load(d, v + key * kTileKeys),
                           acc);
        }
      }
      hn::Store(acc, d, o);
    }
  }
}

alignas(64) inline constexpr float kOnes[kMaxTilewiseRows] = {1, 1, 1, 1, 1, 1, 1, 1};

void Pv(const PvArgs& args) noexcept {
  if (args.live != nullptr) return PvSelected(args);
  if (!args.stream) return PvBlock<Access::kCached>(args);
  if (args.rows > kMaxTilewiseRows) return PvBlock<Access::kAhead>(args);
  // Tile by tile, in order of address: o is loaded and stored for each, which is less than waiting for memory.
  PvArgs tile = args;
  tile.num_tiles = 1;
  for (int64_t t = 0; t < args.num_tiles; ++t) {
    tile.w = args.w + t * kTileKeys;
    tile.v_tiles = args.v_tiles + t;
    if (t > 0) tile.c = kOnes;
    PvBlock<Access::kTilewise>(tile);
  }
}

KvKernels KvF32Table() { return {&Qk, &Pv, &PackKTile, &PackVTile, nullptr, nullptr}; }

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(KvF32Table);
KvKernels KvF32(int64_t target) { return HEADLANE_CALL_FOR_TARGET(KvF32Table, target); }
}  // namespace headlane::internal
#endif
