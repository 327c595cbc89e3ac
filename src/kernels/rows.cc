// Scores and weighted sums from rows of plain tensors, for few rows of queries, which wait for memory: every line of
// keys and values is read once, when it comes, and nothing is written but a tile or two of keys in L1.
//
// Separate from kv_f32.cc, whose tiles are packed before: a block of packed tiles goes to L2 and back, and memory
// stands still while it is multiplied.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows.cc"
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

// Up to so many rows keys are transposed in registers; for more they are packed in L1.
inline constexpr int64_t kMaxDirectRows = HEADLANE_PACKED_KEYS == 8 ? 4 : 0;

// Rows go in groups of at most so many, as even as they can be. Larger ones would load a tile's vectors less often, but
// rows' numbers more often, as their blocks have fewer columns; and each size is a function for each type, which takes
// compilers long.
inline constexpr int kMaxGroupRows = 4;

// Walks over the tiles of a call in the order in which they are read, `args.ahead` tiles before they are. What is
// beyond the last one begins at args.next; without it, or where keys are packed, which prefetches as if the rows went
// on, they are taken to go on.
class AheadOfTiles {
 public:
  template <class Args>
  HWY_INLINE AheadOfTiles(const Args& args, const void* rows, int64_t element_bytes)
      : tile_(static_cast<const char*>(rows)),
        next_(args.num_heads > 1 && args.rows <= kMaxDirectRows ? static_cast<const char*>(args.next) : nullptr),
        tile_bytes_(args.row_stride * kTileKeys * element_bytes),
        head_bytes_(args.head_stride * element_bytes),
        num_heads_(args.num_heads),
        tiles_left_(CeilDiv(args.num_keys, kTileKeys)) {
    for (int64_t i = 0; i < args.ahead; ++i) Advance();
  }
  // Bytes from this tile to the one that is to be fetched, and on to the next.
  HWY_INLINE int64_t Take(const void* tile) {
    const int64_t distance = reinterpret_cast<intptr_t>(tile_) + head_ * head_bytes_ - reinterpret_cast<intptr_t>(tile);
    Advance();
    return distance;
  }

 private:
  HWY_INLINE void Advance() {
    if (++head_ < num_heads_) return;
    head_ = 0;
    tile_ = --tiles_left_ == 0 && next_ != nullptr ? next_ : tile_ + tile_bytes_;
  }

  const char* tile_;
  const char* next_;
  int64_t tile_bytes_, head_bytes_, num_heads_, tiles_left_;
  int64_t head_ = 0;
};

// Prefetches part `part` of `num_parts` of a tile's rows to L2, row by row: in that order memory gives the most where
// the rows of one head are read alone, dense or not.
template <class T>
HWY_INLINE void PrefetchPart(const T* tile, int64_t row_stride, int64_t dim, int64_t part, int64_t num_parts) {
  const int64_t begin = kTileKeys * part / num_parts, end = kTileKeys * (part + 1) / num_parts;
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t key = begin; key < end; ++key) {
    const T* const row = tile + key * row_stride;
    for (int64_t i = 0; i < dim; i += kLine) __builtin_prefetch(row + i, 0, 2);
  }
}

template <class T>
HWY_INLINE const T* BytesBehind(const T* p, int64_t bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(p) + bytes);
}

struct RowsQkIO {
  using Tile = F32Tile;
  static constexpr int64_t kLength = 0;
  static constexpr bool kEvenLength = true;
  const QkRowsArgs& args;
  const float* q;
  float* s;
  int64_t row0, col, per_tile, lanes;

  HWY_INLINE const float* A(int64_t) const { return q + row0 * args.q_pitch; }
  HWY_INLINE int64_t APitch() const { return args.q_pitch; }
  HWY_INLINE const float* B(int c, int64_t) const {
    return args.scratch + (col + c) / per_tile * (args.qk_dim * kTileKeys) + (col + c) % per_tile * lanes;
  }
  HWY_INLINE int64_t LineStep() const { return Tile::kLine; }
  HWY_INLINE const float* Ahead(const float* line) const { return line; }
  HWY_INLINE VF Load(DF d, int, int) const { return hn::Zero(d); }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const {
    hn::Store(v, d, s + (row0 + r) * kBlockKeys + (col + c) * lanes);
  }
};

struct MakeRowsQkIO {
  static constexpr Prefetch kPrefetch = Prefetch::kNone;
  static constexpr int kMinGroup = 1;
  static constexpr int kMaxGroup = kMaxGroupRows;
  static constexpr bool kOneTile = false;
  const QkRowsArgs& args;
  const float* q;
  float* s;
  int64_t per_tile, lanes;
  HWY_INLINE RowsQkIO IO(int64_t row0, int64_t col) const { return {args, q, s, row0, col, per_tile, lanes}; }
  HWY_INLINE MakeRowsQkIO ForOtherGroups() const { return *this; }
};

// Through tiles in L1: what the registers cannot do, and rows so many that a tile is used often enough to pay for being
// stored. From `first_key` on.
void QkRowsInTiles(const QkRowsArgs& args, int64_t first_key) {
  const int64_t per_tile = VectorsPerTile();
  PackTileArgs pack{};
  pack.rows_dtype = args.k_dtype;
  pack.row_stride = args.row_stride;
  pack.dim_stride = 1;
  pack.dim = args.qk_dim;
  const int64_t bytes = DTypeBytes(args.k_dtype);
  // Two tiles: one alone has too few chains to hide the latency of the FMAs of a single row.
  for (int64_t key = first_key; key < args.num_keys; key += 2 * kTileKeys) {
    const int64_t num_tiles = HWY_MIN(2, CeilDiv(args.num_keys - key, kTileKeys));
    for (int64_t head = 0; head < args.num_heads; ++head) {
      for (int64_t t = 0; t < num_tiles; ++t) {
        const int64_t first = key + t * kTileKeys;
        pack.rows = static_cast<const char*>(args.k) + (first * args.row_stride + head * args.head_stride) * bytes;
        pack.num_keys = HWY_MIN(kTileKeys, args.num_keys - first);
        float* const tile = args.scratch + t * args.qk_dim * kTileKeys;
        pack.tile = tile;
        if (pack.num_keys < kTileKeys) {
          for (int64_t i = 0; i < args.qk_dim * kTileKeys; ++i) tile[i] = 0.0f;
        }
        PackK<F32Tile>(pack);
      }
      BlockedMultiply(args.rows, num_tiles * per_tile, 1, args.qk_dim,
                      MakeRowsQkIO{args, args.q + head * args.rows * args.q_pitch,
                                   args.s + head * args.rows * kBlockKeys + key, per_tile, kTileKeys / per_tile});
    }
  }
}

#if HEADLANE_PACKED_KEYS == 8
// The addresses of 8 keys: three registers, a stride and twice the stride reach all of them.
template <class T>
struct Keys8 {
  const T *p0, *p3, *p6;
  int64_t stride;
  HWY_INLINE Keys8(const T* first, int64_t s) : p0(first), p3(first + 3 * s), p6(first + 6 * s), stride(s) {}
  HWY_INLINE void Advance(int64_t n) { p0 += n, p3 += n, p6 += n; }
};

// What is so many bytes behind the line of each key. To L2: rows are often a multiple of 4 KiB apart and would push
// each other out of a set of L1.
template <class T>
HWY_INLINE void PrefetchLine(const Keys8<T>& keys, int64_t ahead) {
  const T* const p0 = BytesBehind(keys.p0, ahead);
  const T* const p3 = BytesBehind(keys.p3, ahead);
  const T* const p6 = BytesBehind(keys.p6, ahead);
  const int64_t s = keys.stride;
  __builtin_prefetch(p0, 0, 2);
  __builtin_prefetch(p0 + s, 0, 2);
  __builtin_prefetch(p0 + 2 * s, 0, 2);
  __builtin_prefetch(p3, 0, 2);
  __builtin_prefetch(p3 + s, 0, 2);
  __builtin_prefetch(p3 + 2 * s, 0, 2);
  __builtin_prefetch(p6, 0, 2);
  __builtin_prefetch(p6 + s, 0, 2);
}

// 16 bytes of two keys, as words.
HWY_INLINE VPack LoadWords(const uint16_t* key, const uint16_t* second) {
  const DPack d;
  const hn::Half<DPack> dh;
  const hn::Repartition<uint16_t, decltype(dh)> d16;
  return hn::Combine(d, hn::BitCast(dh, hn::LoadU(d16, second)), hn::BitCast(dh, hn::LoadU(d16, key)));
}

// acc0, ... += q[row][feature] * features, for the rows that there are.
template <int kRows>
HWY_INLINE void AddFeature(VPack feature, const float* HWY_RESTRICT q, int64_t pitch, VPack& acc0, VPack& acc1,
                           VPack& acc2, VPack& acc3) {
  const DPack d;
  acc0 = hn::MulAdd(hn::Set(d, q[0]), feature, acc0);
  if constexpr (kRows > 1) acc1 = hn::MulAdd(hn::Set(d, q[pitch]), feature, acc1);
  if constexpr (kRows > 2) acc2 = hn::MulAdd(hn::Set(d, q[2 * pitch]), feature, acc2);
  if constexpr (kRows > 3) acc3 = hn::MulAdd(hn::Set(d, q[3 * pitch]), feature, acc3);
}

// The features of a step: 4 of f32 and f16; 8 of bf16, transposed as pairs and widened then.
template <int kRows, class Row>
HWY_INLINE void AddStep(const Keys8<typename Row::T>& keys, int64_t at, const float* HWY_RESTRICT q, int64_t pitch,
                        VPack& acc0, VPack& acc1, VPack& acc2, VPack& acc3) {
  const int64_t s = keys.stride;
  const typename Row::T *p0 = keys.p0 + at, *p3 = keys.p3 + at, *p6 = keys.p6 + at;
  if constexpr (Row::kDType == DType::kBF16) {
    const DPack d;
    const hn::RebindToUnsigned<DPack> du;
    VPack v0 = LoadWords(p0, p3 + s), v1 = LoadWords(p0 + s, p3 + 2 * s);
    VPack v2 = LoadWords(p0 + 2 * s, p6), v3 = LoadWords(p3, p6 + s);
    Transpose(v0, v1, v2, v3);
    const auto add_pair = [&](VPack pair, const float* HWY_RESTRICT q2) HWY_ATTR {
      const auto bits = hn::BitCast(du, pair);
      AddFeature<kRows>(hn::BitCast(d, hn::ShiftLeft<16>(bits)), q2, pitch, acc0, acc1, acc2, acc3);
      AddFeature<kRows>(hn::BitCast(d, hn::And(bits, hn::Set(du, 0xFFFF0000u))), q2 + 1, pitch, acc0, acc1, acc2, acc3);
    };
    add_pair(v0, q);
    add_pair(v1, q + 2);
    add_pair(v2, q + 4);
    add_pair(v3, q + 6);
  } else {
    VPack v0 = LoadFour<Row>(p0, p3 + s), v1 = LoadFour<Row>(p0 + s, p3 + 2 * s);
    VPack v2 = LoadFour<Row>(p0 + 2 * s, p6), v3 = LoadFour<Row>(p3, p6 + s);
    Transpose(v0, v1, v2, v3);
    AddFeature<kRows>(v0, q, pitch, acc0, acc1, acc2, acc3);
    AddFeature<kRows>(v1, q + 1, pitch, acc0, acc1, acc2, acc3);
    AddFeature<kRows>(v2, q + 2, pitch, acc0, acc1, acc2, acc3);
    AddFeature<kRows>(v3, q + 3, pitch, acc0, acc1, acc2, acc3);
  }
}

// One feature of 8 keys, where a step would reach past the rows' ends.
template <class Row>
HWY_INLINE VPack OneFeature(const Keys8<typename Row::T>& keys, int64_t at) {
  const int64_t s = keys.stride;
  const typename Row::T v[8] = {keys.p0[at],     keys.p0[at + s],     keys.p0[at + 2 * s], keys.p3[at],
                                keys.p3[at + s], keys.p3[at + 2 * s], keys.p6[at],         keys.p6[at + s]};
  return Row::Load(DPack(), v);
}

// Scores of 8 keys in so many rows.
template <int kRows>
HWY_INLINE void StoreScores(VPack v0, VPack v1, VPack v2, VPack v3, float* s) {
  const DPack d;
  hn::Store(v0, d, s);
  if constexpr (kRows > 1) hn::Store(v1, d, s + kBlockKeys);
  if constexpr (kRows > 2) hn::Store(v2, d, s + 2 * kBlockKeys);
  if constexpr (kRows > 3) hn::Store(v3, d, s + 3 * kBlockKeys);
}

// 16 keys, transposed in registers on their way to the products; `ahead` bytes behind them is prefetched.
template <int kRows, class Row>
HWY_NOINLINE void QkTileDirect(const QkRowsArgs& args, const typename Row::T* k, int64_t ahead,
                               const float* HWY_RESTRICT q, float* s) {
  constexpr int64_t kStep = Row::kDType == DType::kBF16 ? 8 : 4;
  constexpr int64_t kLineFeatures = 64 / static_cast<int64_t>(sizeof(typename Row::T));
  // 8 keys, then the other 8, in turns of so many features: rows are often a multiple of 4 KiB apart, and a set of L1
  // holds 8 of their lines. More in a turn, and the chains of the two would no longer overlap.
  constexpr int64_t kChunk = 16;
  const DPack d;
  Keys8<typename Row::T> low(k, args.row_stride), high(k + 8 * args.row_stride, args.row_stride);
  const int64_t pitch = args.q_pitch;
  VPack l0 = hn::Zero(d), l1 = l0, l2 = l0, l3 = l0;
  VPack h0 = l0, h1 = l0, h2 = l0, h3 = l0;
  const int64_t num_lines = args.qk_dim / kLineFeatures;
  int64_t line = 0;
  int64_t left = args.qk_dim;
  for (; left >= kLineFeatures; left -= kLineFeatures) {
    if (args.num_heads == 1) {
      PrefetchPart(BytesBehind(k, ahead), args.row_stride, args.qk_dim, line++, num_lines);
    } else {
      PrefetchLine(low, ahead);
      PrefetchLine(high, ahead);
    }
    for (int64_t begin = 0; begin < kLineFeatures; begin += kChunk) {
      for (int64_t i = begin; i < begin + kChunk; i += kStep) AddStep<kRows, Row>(low, i, q + i, pitch, l0, l1, l2, l3);
      // Compilers would keep what they have broadcast of q for the other 8 keys, on the stack.
      ForgetLoads<true>();
      for (int64_t i = begin; i < begin + kChunk; i += kStep)
        AddStep<kRows, Row>(high, i, q + i, pitch, h0, h1, h2, h3);
    }
    low.Advance(kLineFeatures);
    high.Advance(kLineFeatures);
    q += kLineFeatures;
  }
  int64_t i = 0;
  for (; i + kStep <= left; i += kStep) {
    AddStep<kRows, Row>(low, i, q + i, pitch, l0, l1, l2, l3);
    ForgetLoads<true>();
    AddStep<kRows, Row>(high, i, q + i, pitch, h0, h1, h2, h3);
  }
  for (; i < left; ++i) {
    AddFeature<kRows>(OneFeature<Row>(low, i), q + i, pitch, l0, l1, l2, l3);
    ForgetLoads<true>();
    AddFeature<kRows>(OneFeature<Row>(high, i), q + i, pitch, h0, h1, h2, h3);
  }
  StoreScores<kRows>(l0, l1, l2, l3, s);
  StoreScores<kRows>(h0, h1, h2, h3, s + 8);
}

template <int kRows, class Row>
HWY_INLINE int64_t QkRowsDirect(const QkRowsArgs& args) {
  using T = typename Row::T;
  AheadOfTiles ahead(args, args.k, sizeof(T));
  int64_t key = 0;
  for (; key + kTileKeys <= args.num_keys; key += kTileKeys) {
    for (int64_t head = 0; head < args.num_heads; ++head) {
      const T* const tile = static_cast<const T*>(args.k) + key * args.row_stride + head * args.head_stride;
      QkTileDirect<kRows, Row>(args, tile, ahead.Take(tile), args.q + head * kRows * args.q_pitch,
                               args.s + head * kRows * kBlockKeys + key);
    }
  }
  return key;
}

// Whole tiles; returns how many keys that were.
template <class Row>
HWY_INLINE int64_t QkRowsDirect(const QkRowsArgs& args) {
  switch (args.rows) {
    case 1:
      return QkRowsDirect<1, Row>(args);
    case 2:
      return QkRowsDirect<2, Row>(args);
    case 3:
      return QkRowsDirect<3, Row>(args);
    default:
      return QkRowsDirect<4, Row>(args);
  }
}

int64_t QkRowsDirect(const QkRowsArgs& args) {
  if (args.rows > kMaxDirectRows) return 0;
  switch (args.k_dtype) {
    case DType::kF32:
      return QkRowsDirect<F32Element>(args);
    case DType::kF16:
      return QkRowsDirect<F16Element>(args);
    case DType::kBF16:
      return QkRowsDirect<BF16Element>(args);
    default:  // no tensor's type
      break;
  }
  return 0;
}
#else
int64_t QkRowsDirect(const QkRowsArgs&) { return 0; }
#endif

void QkRows(const QkRowsArgs& args) noexcept {
  const int64_t done = QkRowsDirect(args);
  if (done < args.num_keys) QkRowsInTiles(args, done);
}

// Rows of a plain tensor as the micro-kernel's b: a line is a row, of any alignment.
template <class ElementType>
struct RowTile {
  using T = typename ElementType::T;
  static constexpr int kSteps = 1;
  static constexpr int64_t Column(int64_t lane) { return lane; }
  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* line) {
    return ElementType::Load(d, line);
  }
};

// One tile of one head.
template <class ElementType>
struct RowsPvTile {
  using Element = ElementType;
  using T = typename Element::T;
  const PvRowsArgs& args;
  const T* v;
  const float* w;
  const float* c;  // nullptr: o is not scaled
  float* o;
  const uint16_t* live;
  bool fresh;     // o is not read
  int64_t ahead;  // bytes to what is prefetched
};

template <class Element>
struct RowsPvIO {
  using Tile = RowTile<Element>;
  using T = typename Tile::T;
  // Not 16: known to compilers it would mean 8 steps a turn, and the rows' addresses on the stack.
  static constexpr int64_t kLength = 0;
  static constexpr bool kEvenLength = true;
  static constexpr int kPrefetchTo = 2;  // L2, as for keys
  const RowsPvTile<Element>& tile;
  int64_t row0, col, lanes;

  HWY_INLINE const float* A(int64_t) const { return tile.w + row0 * kBlockKeys; }
  HWY_INLINE static constexpr int64_t APitch() { return kBlockKeys; }
  HWY_INLINE const T* B(int c, int64_t) const { return tile.v + (col + c) * lanes; }
  HWY_INLINE int64_t LineStep() const { return tile.args.row_stride; }
  HWY_INLINE const T* Ahead(const T* line) const { return BytesBehind(line, tile.ahead); }
  HWY_INLINE float* O(int r, int c) const { return tile.o + (row0 + r) * tile.args.o_pitch + (col + c) * lanes; }
  HWY_INLINE VF Load(DF d, int r, int c) const {
    if (tile.fresh) return hn::Zero(d);
    const VF o = hn::Load(d, O(r, c));
    return tile.c == nullptr ? o : hn::Mul(o, hn::Set(d, tile.c[row0 + r]));
  }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const { hn::Store(v, d, O(r, c)); }
};

template <class Element, bool kAhead>
struct MakeRowsPvIO {
  static constexpr Prefetch kPrefetch = kAhead ? Prefetch::kLine : Prefetch::kNone;
  static constexpr int kMinGroup = 1;
  static constexpr int kMaxGroup = kMaxGroupRows;
  static constexpr bool kOneTile = false;
  const RowsPvTile<Element>& tile;
  int64_t lanes;
  HWY_INLINE RowsPvIO<Element> IO(int64_t row0, int64_t col) const { return {tile, row0, col, lanes}; }
  HWY_INLINE MakeRowsPvIO<Element, false> ForOtherGroups() const { return {tile, lanes}; }
};

// Leaves out the keys that do not count, one row at a time: values of any kind may stand there.
template <class Element>
HWY_NOINLINE void PvTileSelected(const RowsPvTile<Element>& tile, int64_t num_keys) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < tile.args.rows; ++r) {
    const uint32_t live = tile.live[r * kTilesPerBlock];
    for (int64_t feature = 0; feature < tile.args.v_dim; feature += lanes) {
      float* const o = tile.o + r * tile.args.o_pitch + feature;
      VF acc = tile.fresh ? hn::Zero(d) : hn::Load(d, o);
      if (!tile.fresh && tile.c != nullptr) acc = hn::Mul(acc, hn::Set(d, tile.c[r]));
      const typename Element::T* v = tile.v + feature;
      for (int64_t key = 0; key < num_keys; ++key, v += tile.args.row_stride) {
        if ((live >> key & 1) == 0) continue;
        acc = hn::MulAdd(hn::Set(d, tile.w[r * kBlockKeys + key]), Element::Load(d, v), acc);
      }
      hn::Store(acc, d, o);
    }
  }
}

// Whether all of `num_keys` keys of a tile count in all rows.
HWY_INLINE bool AllLive(const uint16_t* live, int64_t rows, int64_t num_keys) {
  uint32_t all = ~0u;
  for (int64_t r = 0; r < rows; ++r) all &= live[r * kTilesPerBlock];
  const uint32_t wanted = (1u << num_keys) - 1;
  return (all & wanted) == wanted;
}

// Columns [begin, end) of `rows` rows.
template <class Make, class Tile>
HWY_INLINE void PvColumns(const Tile& tile, int64_t rows, int64_t begin, int64_t end, int64_t num_keys) {
  WithRows<Make::kMinGroup, Make::kMaxGroup>(
      rows, GroupColumns<Make>{0, begin, end, 1, num_keys, Make{tile, static_cast<int64_t>(hn::Lanes(DF()))}});
}

template <class Element>
HWY_INLINE void PvTile(RowsPvTile<Element> tile, int64_t num_keys) {
  using Plain = MakeRowsPvIO<Element, false>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const int64_t num_cols = tile.args.v_dim / lanes;
  const RowGroups groups(tile.args.rows, kMaxGroupRows);
  for (int64_t group = 0; group < groups.num; ++group) {
    const int64_t rows = groups.size(group);
    if (group > 0) {
      PvColumns<Plain>(tile, rows, 0, num_cols, num_keys);
    } else if (tile.args.num_heads > 1) {
      PvColumns<MakeRowsPvIO<Element, true>>(tile, rows, 0, num_cols, num_keys);
    } else {
      // As many columns as a single row uses at a time.
      const int64_t step = HWY_MIN(num_cols, 64 / lanes);
      const int64_t num_parts = CeilDiv(num_cols, step);
      for (int64_t part = 0; part < num_parts; ++part) {
        PrefetchPart(BytesBehind(tile.v, tile.ahead), tile.args.row_stride, tile.args.v_dim, part, num_parts);
        PvColumns<Plain>(tile, rows, part * step, HWY_MIN((part + 1) * step, num_cols), num_keys);
      }
    }
    tile.w += rows * kBlockKeys;
    tile.o += rows * tile.args.o_pitch;
    if (tile.c != nullptr) tile.c += rows;
  }
}

template <class Element>
HWY_INLINE void PvRowsOf(const PvRowsArgs& args) {
  using T = typename Element::T;
  AheadOfTiles ahead(args, args.v, sizeof(T));
  // Tile by tile: all features of 16 keys are read before the next key's.
  for (int64_t key = 0; key < args.num_keys; key += kTileKeys) {
    const int64_t num_keys = HWY_MIN(kTileKeys, args.num_keys - key);
    for (int64_t head = 0; head < args.num_heads; ++head) {
      const int64_t row = head * args.rows;
      const T* const v = static_cast<const T*>(args.v) + key * args.row_stride + head * args.head_stride;
      const RowsPvTile<Element> tile{args,
                                     v,
                                     args.w + row * kBlockKeys + key,
                                     args.c == nullptr || key > 0 ? nullptr : args.c + row,
                                     args.o + row * args.o_pitch,
                                     args.live + row * kTilesPerBlock + key / kTileKeys,
                                     args.c == nullptr && key == 0,
                                     ahead.Take(v)};
      if (!AllLive(tile.live, args.rows, num_keys)) {
        PvTileSelected(tile, num_keys);
      } else {
        PvTile(tile, num_keys);
      }
    }
  }
}

void PvRows(const PvRowsArgs& args) noexcept {
  switch (args.v_dtype) {
    case DType::kF32:
      return PvRowsOf<F32Element>(args);
    case DType::kF16:
      return PvRowsOf<F16Element>(args);
    case DType::kBF16:
      return PvRowsOf<BF16Element>(args);
    default:  // no tensor's type
      break;
  }
}

RowsKernels RowsTable() { return {&QkRows, &PvRows, hwy::TargetName(HWY_TARGET)}; }

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(RowsTable);
RowsKernels Rows(int64_t target) { return HEADLANE_CALL_FOR_TARGET(RowsTable, target); }
}  // namespace headlane::internal
#endif
