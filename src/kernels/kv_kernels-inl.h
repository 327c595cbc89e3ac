// Scores and weighted sums over tiles of any element type: the micro-kernel's operands, and which of its forms is used.
//
// Separate from kv_f32.cc and its siblings so that each of them is one element type and nothing else.
#if defined(HEADLANE_SRC_KERNELS_KV_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_KV_KERNELS_INL_H_
#undef HEADLANE_SRC_KERNELS_KV_KERNELS_INL_H_
#else
#define HEADLANE_SRC_KERNELS_KV_KERNELS_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/micro_kernel-inl.h"
#include "kernels/pack_tile-inl.h"
#include "kernels/tile_codec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

// Where a lane of a stripe begins in a V tile.
template <class Tile>
HWY_INLINE int64_t StripeOffset(int64_t feature) {
  return feature / kTileKeys * (kTileKeys * kTileKeys) + Tile::Column(feature % kTileKeys);
}

// How tiles are read.
enum class Access {
  kCached,    // blocks of columns for the registers: the tiles are in a cache
  kAhead,     // the same, prefetching what comes next: many rows, whose arithmetic leaves time for memory
  kTilewise,  // a tile or two after the other, prefetching in order of address: few rows, which wait for memory
  kStreams,   // several tiles at once, left to the hardware's prefetchers: so few rows that the FMAs hardly count
};
inline constexpr int64_t kMaxTilewiseRows = 8;
// Two to eight streams of loads read 15 % more than one does, with or without prefetching (Zen 3, both threads). For
// more rows than this the registers hold too few columns, or widening 16 bits takes the time.
template <class Tile>
inline constexpr int64_t kMaxStreamedRows = sizeof(typename Tile::T) == 4 ? 3 : 1;

// The groups that RowGroups makes of the rows each is for.
template <class Tile>
constexpr int MinGroup(Access access) {
  return access == Access::kAhead ? 4 : access == Access::kTilewise ? std::min<int>(3, kMaxStreamedRows<Tile> + 1) : 1;
}
template <class Tile>
constexpr int MaxGroup(Access access) {
  return access == Access::kStreams ? static_cast<int>(kMaxStreamedRows<Tile>) : kMaxRows;
}

constexpr Prefetch PrefetchOf(Access access) {
  return access == Access::kAhead      ? Prefetch::kNext
         : access == Access::kTilewise ? Prefetch::kInOrder
                                       : Prefetch::kNone;
}

// The hardware's prefetchers follow streams of a page of memory or more. Where tiles of keys are less, a block's values
// are brought to L2 while its keys are read: on Zen 3, both threads, one row of 64 features in 16 bits takes 0.8 of the
// time then, 3 rows in f32 0.9; one row of f32, left to the hardware, is 4 % faster without.
HWY_INLINE HWY_MAYBE_UNUSED bool StreamsAreShort(int64_t rows, int64_t tile_bytes) {
  constexpr int64_t kPage = 4096;
  return tile_bytes < kPage || (tile_bytes == kPage && rows > 1);
}

template <class TileType, bool kStreams>
struct QkIO {
  using Tile = TileType;
  using T = typename Tile::T;
  static constexpr int64_t kLength = 0;
  static constexpr bool kEvenLength = false;
  static constexpr int64_t kLineBytes = Tile::kLine * static_cast<int64_t>(sizeof(T));
  static constexpr int kPrefetchTo = kStreams ? 2 : 3;
  const QkArgs& args;
  int64_t row0, col, lanes;

  HWY_INLINE const float* A(int64_t) const { return args.q + row0 * args.q_pitch; }
  HWY_INLINE int64_t APitch() const { return args.q_pitch; }
  HWY_INLINE const T* B(int c, int64_t) const {
    // Not from a member: compilers would divide.
    const uint64_t vectors = static_cast<uint64_t>(VectorsPerTile()), column = static_cast<uint64_t>(col + c);
    return static_cast<const T*>(args.k_tiles[column / vectors]) +
           Tile::Column(static_cast<int64_t>(column % vectors * (kTileKeys / vectors)));
  }
  HWY_INLINE static constexpr int64_t LineStep() { return Tile::kLine; }
  // The tiles that are used next: one tile at a time is order enough. Streams bring the values instead.
  template <int kCols>
  HWY_INLINE const char* InOrder(int64_t) const {
    if constexpr (kStreams) {
      const void* const first = args.next != nullptr ? args.next : args.k_tiles[0];
      return static_cast<const char*>(first) + col / VectorsPerTile() * (args.qk_dim / Tile::kSteps * kLineBytes);
    }
    if constexpr (kTilesOf<kCols> == 1) return reinterpret_cast<const char*>(AheadInTiles(B(0, 0)));
    const int64_t next = col / VectorsPerTile() + kTilesOf<kCols>;
    if (next < args.num_tiles) return static_cast<const char*>(args.k_tiles[next]);
    return static_cast<const char*>(args.next != nullptr ? args.next : args.k_tiles[0]);
  }
  // The tile that is used next, a part by each group of rows.
  HWY_INLINE const char* Next(int c, int64_t) const {
    const int64_t next = (col + c) / VectorsPerTile() + 1;
    return static_cast<const char*>(args.k_tiles[HWY_MIN(next, args.num_tiles - 1)]) +
           row0 * (args.qk_dim / Tile::kSteps * kLineBytes) / args.rows;
  }
  HWY_INLINE int64_t NextBytes(int64_t rows) const { return rows * kLineBytes / args.rows; }
  HWY_INLINE VF Load(DF d, int, int) const { return hn::Zero(d); }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const {
    hn::Store(v, d, args.s + (row0 + r) * kBlockKeys + (col + c) * lanes);
  }
};

template <class Tile, Access kAccess>
struct MakeQkIO {
  static constexpr bool kStreams = kAccess == Access::kStreams;
  static constexpr Prefetch kPrefetch = kStreams ? Prefetch::kInOrder : PrefetchOf(kAccess);
  static constexpr int kMinGroup = MinGroup<Tile>(kAccess);
  static constexpr int kMaxGroup = MaxGroup<Tile>(kAccess);
  static constexpr bool kOneTile = kAccess == Access::kTilewise;
  const QkArgs& args;
  int64_t lanes;
  HWY_INLINE QkIO<Tile, kStreams> IO(int64_t row0, int64_t col) const { return {args, row0, col, lanes}; }
  HWY_INLINE MakeQkIO ForOtherGroups() const { return *this; }
};

template <class Tile, Access kAccess>
HWY_INLINE void QkBlock(const QkArgs& args) {
  const int64_t per_tile = VectorsPerTile();
  BlockedMultiply(args.rows, args.num_tiles * per_tile, 1, args.qk_dim,
                  MakeQkIO<Tile, kAccess>{args, kTileKeys / per_tile});
}

template <class Tile>
void Qk(const QkArgs& args) noexcept {
  if (!args.stream) return QkBlock<Tile, Access::kCached>(args);
  if (args.rows <= kMaxStreamedRows<Tile>) {
    // As many tiles at once as the registers hold, which is what streams are, one way or the other.
    const int64_t tile_bytes = args.qk_dim * kTileKeys * static_cast<int64_t>(sizeof(typename Tile::T));
    return StreamsAreShort(args.rows, tile_bytes) ? QkBlock<Tile, Access::kStreams>(args)
                                                  : QkBlock<Tile, Access::kCached>(args);
  }
  if (args.rows > kMaxTilewiseRows) return QkBlock<Tile, Access::kAhead>(args);
  QkBlock<Tile, Access::kTilewise>(args);
}

template <class TileType, bool kManyRows>
struct PvIO {
  using Tile = TileType;
  using T = typename Tile::T;
  static constexpr int64_t kLength = kTileKeys;
  static constexpr bool kEvenLength = true;
  static constexpr int64_t kLineBytes = Tile::kLine * static_cast<int64_t>(sizeof(T));
  static constexpr int64_t kStripeBytes = kTileKeys / Tile::kSteps * kLineBytes;
  const PvArgs& args;
  int64_t row0, col, lanes;

  HWY_INLINE const float* A(int64_t tile) const { return args.w + row0 * kBlockKeys + tile * kTileKeys; }
  HWY_INLINE static constexpr int64_t APitch() { return kBlockKeys; }
  HWY_INLINE const T* B(int c, int64_t tile) const {
    return static_cast<const T*>(args.v_tiles[tile]) + StripeOffset<Tile>((col + c) * lanes);
  }
  HWY_INLINE static constexpr int64_t LineStep() { return Tile::kLine; }
  // What is used after these tiles: every stripe of each of them brings as much of it as it has itself.
  template <int kCols>
  HWY_INLINE const char* InOrder(int64_t tile) const {
    if (kTilesOf<kCols> == 1 && args.num_tiles == 1) return reinterpret_cast<const char*>(AheadInTiles(B(0, 0)));
    const int64_t stripes = col / VectorsPerTile() / kTilesOf<kCols>;
    return static_cast<const char*>(args.next) + (stripes * args.num_tiles + tile) * kTilesOf<kCols> * kStripeBytes;
  }
  // The next stripe of the same tile, a part by each group of rows.
  HWY_INLINE const char* Next(int c, int64_t tile) const {
    return reinterpret_cast<const char*>(B(c, tile)) + kStripeBytes + row0 * kStripeBytes / args.rows;
  }
  HWY_INLINE int64_t NextBytes(int64_t rows) const { return rows * kLineBytes / args.rows; }
  HWY_INLINE float* O(int r, int c) const { return args.o + (row0 + r) * args.o_pitch + (col + c) * lanes; }
  HWY_INLINE VF Load(DF d, int r, int c) const {
    if (args.c == nullptr) return hn::Zero(d);
    // Those of the next group of rows: they come from L2, and nothing can start without them.
    if (kManyRows && c % kColsPerTile == 0) __builtin_prefetch(O(r + kMaxRows, c), 1, 3);
    return hn::Mul(hn::Load(d, O(r, c)), hn::Set(d, args.c[row0 + r]));
  }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const { hn::Store(v, d, O(r, c)); }
};

template <class Tile, Access kAccess>
struct MakePvIO {
  static constexpr Prefetch kPrefetch = PrefetchOf(kAccess);
  static constexpr int kMinGroup = MinGroup<Tile>(kAccess);
  static constexpr int kMaxGroup = MaxGroup<Tile>(kAccess);
  static constexpr bool kOneTile = kAccess == Access::kTilewise || kAccess == Access::kStreams;
  const PvArgs& args;
  int64_t lanes;
  HWY_INLINE PvIO<Tile, !kOneTile> IO(int64_t row0, int64_t col) const { return {args, row0, col, lanes}; }
  HWY_INLINE MakePvIO ForOtherGroups() const { return *this; }
};

template <class Tile, Access kAccess>
HWY_INLINE void PvBlock(const PvArgs& args) {
  const int64_t per_tile = VectorsPerTile();
  BlockedMultiply(args.rows, args.num_stripes * per_tile, args.num_tiles, kTileKeys,
                  MakePvIO<Tile, kAccess>{args, kTileKeys / per_tile});
}

// Leaves out the keys that do not count, one row at a time: for tiles that hold values that are not finite, where
// weight 0 times value would not be 0. Rare, so it is plain.
template <class Tile>
void PvSelected(const PvArgs& args) {
  using T = typename Tile::T;
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t feature = 0; feature < args.num_stripes * kTileKeys; feature += lanes) {
      float* o = args.o + r * args.o_pitch + feature;
      VF acc = hn::Zero(d);
      if (args.c != nullptr) acc = hn::Mul(hn::Load(d, o), hn::Set(d, args.c[r]));
      for (int64_t t = 0; t < args.num_tiles; ++t) {
        const T* v = static_cast<const T*>(args.v_tiles[t]) + StripeOffset<Tile>(feature);
        const float* w = args.w + r * kBlockKeys + t * kTileKeys;
        const uint32_t live = args.live[r * kTilesPerBlock + t];
        for (int64_t key = 0; key < kTileKeys; key += Tile::kSteps, v += Tile::kLine) {
          if ((live >> key & 1) != 0) acc = hn::MulAdd(hn::Set(d, w[key]), Tile::template Load<0>(d, v), acc);
          if constexpr (Tile::kSteps == 2) {
            if ((live >> key & 2) != 0) acc = hn::MulAdd(hn::Set(d, w[key + 1]), Tile::template Load<1>(d, v), acc);
          }
        }
      }
      hn::Store(acc, d, o);
    }
  }
}

alignas(64) inline constexpr float kOnes[kMaxTilewiseRows] = {1, 1, 1, 1, 1, 1, 1, 1};

// Sums of two tiles load and store o half as often. Where one tile's lines give enough chains, and it is larger than
// this, reading it in order of address is worth more (Zen 3: 4 rows of 128 features in 16 bits lose 2 to 10 %
// otherwise).
inline constexpr int64_t kSmallTileBytes = 2048;

// So many tiles at a time: o is loaded and stored for each, which is less than waiting for memory.
template <class Tile, Access kAccess>
HWY_INLINE void PvTiles(const PvArgs& args, int64_t tiles_at_once) {
  PvArgs part = args;
  for (int64_t t = 0; t < args.num_tiles; t += tiles_at_once) {
    part.num_tiles = HWY_MIN(tiles_at_once, args.num_tiles - t);
    part.w = args.w + t * kTileKeys;
    part.v_tiles = args.v_tiles + t;
    part.next = t + part.num_tiles < args.num_tiles ? args.v_tiles[t + part.num_tiles]
                : args.next != nullptr              ? args.next
                                                    : args.v_tiles[0];
    if (t > 0) part.c = kOnes;
    PvBlock<Tile, kAccess>(part);
  }
}

template <class Tile>
void Pv(const PvArgs& args) noexcept {
  if (args.live != nullptr) return PvSelected<Tile>(args);
  if (!args.stream) return PvBlock<Tile, Access::kCached>(args);
  if (args.rows > kMaxTilewiseRows) return PvBlock<Tile, Access::kAhead>(args);
  // Stripe by stripe through four tiles, or through two, or tile by tile in order of address.
  if (args.rows <= kMaxStreamedRows<Tile>) return PvTiles<Tile, Access::kStreams>(args, 4);
  const int64_t tile_bytes = args.num_stripes * PvIO<Tile, false>::kStripeBytes;
  const bool reads_one = args.rows <= 4 && FewRowsCols(static_cast<int>(args.rows)) <= kColsPerTile;
  PvTiles<Tile, Access::kTilewise>(args, reads_one && tile_bytes > kSmallTileBytes ? 1 : 2);
}

// A tile's lines widened one after the other: f32's lines are its steps.
template <class Tile>
HWY_INLINE void WidenLines(const void* from, int64_t num_steps, float* HWY_RESTRICT out) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const typename Tile::T* HWY_RESTRICT line = static_cast<const typename Tile::T*>(from);
  for (int64_t i = 0; i < num_steps; i += 2, line += Tile::kLine, out += 2 * kTileKeys) {
    for (int64_t lane = 0; lane < kTileKeys; lane += lanes) {
      hn::Store(Tile::template Load<0>(d, line + Tile::Column(lane)), d, out + lane);
      if (i + 1 < num_steps) {
        hn::Store(Tile::template Load<1>(d, line + Tile::Column(lane)), d, out + kTileKeys + lane);
      }
    }
  }
}

template <class Tile>
void WidenK(const WidenTileArgs& args) noexcept {
  WidenLines<Tile>(args.tile, args.dim, args.out);
}

template <class Tile>
void WidenV(const WidenTileArgs& args) noexcept {
  WidenLines<Tile>(args.tile, RoundUp(args.dim, kTileKeys), args.out);
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_KV_KERNELS_INL_H_
