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

struct RowsQkIO {
  using Tile = F32Tile;
  static constexpr int64_t kLength = 0;
  static constexpr bool kEvenLength = true;
  const QkRowsArgs& args;
  int64_t first_lane, row0, col, per_tile, lanes;

  HWY_INLINE const float* A(int64_t) const { return args.q + row0 * args.q_pitch; }
  HWY_INLINE int64_t APitch() const { return args.q_pitch; }
  HWY_INLINE const float* B(int c, int64_t) const {
    return args.scratch + (col + c) / per_tile * (args.qk_dim * kTileKeys) + (col + c) % per_tile * lanes;
  }
  HWY_INLINE int64_t LineStep() const { return Tile::kLine; }
  HWY_INLINE const float* Ahead(const float* line) const { return line; }
  HWY_INLINE VF Load(DF d, int, int) const { return hn::Zero(d); }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const {
    hn::Store(v, d, args.s + (row0 + r) * kBlockKeys + first_lane + (col + c) * lanes);
  }
};

struct MakeRowsQkIO {
  static constexpr bool kPrefetch = false;
  static constexpr bool kOneTile = false;
  const QkRowsArgs& args;
  int64_t first_lane, per_tile, lanes;
  HWY_INLINE RowsQkIO IO(int64_t row0, int64_t col) const { return {args, first_lane, row0, col, per_tile, lanes}; }
  HWY_INLINE MakeRowsQkIO WithoutPrefetch() const { return *this; }
};

#ifndef HLPF
#define HLPF 3
#endif
// Through tiles in L1: what the registers cannot do, and rows so many that a tile is used often enough to pay for being
// stored. From `first_key` on.
void QkRowsInTiles(const QkRowsArgs& args, int64_t first_key) {
  const int64_t per_tile = VectorsPerTile();
  PackTileArgs pack{};
  pack.rows_dtype = args.k_dtype;
  pack.row_stride = args.row_stride;
  pack.dim_stride = 1;
  pack.dim = args.qk_dim;
  const int64_t row_bytes = args.row_stride * DTypeBytes(args.k_dtype);
  // Two tiles: one alone has too few chains to hide the latency of the FMAs of a single row.
  for (int64_t key = first_key; key < args.num_keys; key += 2 * kTileKeys) {
    const int64_t num_tiles = HWY_MIN(2, CeilDiv(args.num_keys - key, kTileKeys));
    for (int64_t t = 0; t < num_tiles; ++t) {
      const int64_t first = key + t * kTileKeys;
      pack.rows = static_cast<const char*>(args.k) + first * row_bytes;
      pack.num_keys = HWY_MIN(kTileKeys, args.num_keys - first);
      float* const tile = args.scratch + t * args.qk_dim * kTileKeys;
      pack.tile = tile;
      if (pack.num_keys < kTileKeys) {
        for (int64_t i = 0; i < args.qk_dim * kTileKeys; ++i) tile[i] = 0.0f;
      }
      PackK<F32Tile>(pack);
    }
    BlockedMultiply(args.rows, num_tiles * per_tile, 1, args.qk_dim,
                    MakeRowsQkIO{args, key, per_tile, kTileKeys / per_tile});
  }
}

#if HEADLANE_PACKED_KEYS == 8
inline constexpr int kMaxDirectRows = 4;

// The addresses of 8 keys: three registers, a stride and twice the stride reach all of them.
template <class T>
struct Keys8 {
  const T *p0, *p3, *p6;
  int64_t stride;
  HWY_INLINE Keys8(const T* first, int64_t s) : p0(first), p3(first + 3 * s), p6(first + 6 * s), stride(s) {}
  HWY_INLINE void Advance(int64_t n) { p0 += n, p3 += n, p6 += n; }
};

template <int N, class T>
HWY_INLINE void PrefetchLine(const Keys8<T>& keys, int64_t ahead) {
  const T *p0 = keys.p0 + ahead, *p3 = keys.p3 + ahead, *p6 = keys.p6 + ahead;
  const int64_t s = keys.stride;
  __builtin_prefetch(p0, 0, HLPF);
  __builtin_prefetch(p0 + s, 0, HLPF);
  __builtin_prefetch(p0 + 2 * s, 0, HLPF);
  __builtin_prefetch(p3, 0, HLPF);
  __builtin_prefetch(p3 + s, 0, HLPF);
  __builtin_prefetch(p3 + 2 * s, 0, HLPF);
  __builtin_prefetch(p6, 0, HLPF);
  __builtin_prefetch(p6 + s, 0, HLPF);
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
  alignas(32) float v[8] = {Row::ToF32(keys.p0[at]), Row::ToF32(keys.p0[at + s]), Row::ToF32(keys.p0[at + 2 * s]),
                            Row::ToF32(keys.p3[at]), Row::ToF32(keys.p3[at + s]), Row::ToF32(keys.p3[at + 2 * s]),
                            Row::ToF32(keys.p6[at]), Row::ToF32(keys.p6[at + s])};
  return hn::Load(DPack(), v);
}

// 16 keys, transposed in registers on their way to the products.
template <int kRows, class Row>
HWY_NOINLINE void QkTileDirect(const QkRowsArgs& args, const typename Row::T* k, float* s) {
  constexpr int64_t kStep = Row::kDType == DType::kBF16 ? 8 : 4;
  constexpr int64_t kLineFeatures = 64 / static_cast<int64_t>(sizeof(typename Row::T));
  // 8 keys, then the other 8, in turns of so many features: rows are often a multiple of 4 KiB apart, and a set of L1
  // holds 8 of their lines. More in a turn, and the chains of the two would no longer overlap.
  constexpr int64_t kChunk = 16;
  const DPack d;
  Keys8<typename Row::T> low(k, args.row_stride), high(k + 8 * args.row_stride, args.row_stride);
  const float* HWY_RESTRICT q = args.q;
  const int64_t pitch = args.q_pitch;
  VPack l0 = hn::Zero(d), l1 = l0, l2 = l0, l3 = l0;
  VPack h0 = l0, h1 = l0, h2 = l0, h3 = l0;
  const int64_t ahead = args.ahead / static_cast<int64_t>(sizeof(typename Row::T));
  int64_t left = args.qk_dim;
  for (; left >= kLineFeatures; left -= kLineFeatures) {
    if (args.ahead != 0) {
      PrefetchLine<8>(low, ahead);
      PrefetchLine<8>(high, ahead);
    }
    for (int64_t begin = 0; begin < kLineFeatures; begin += kChunk) {
      for (int64_t i = begin; i < begin + kChunk; i += kStep) AddStep<kRows, Row>(low, i, q + i, pitch, l0, l1, l2, l3);
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
    AddStep<kRows, Row>(high, i, q + i, pitch, h0, h1, h2, h3);
  }
  for (; i < left; ++i) {
    AddFeature<kRows>(OneFeature<Row>(low, i), q + i, pitch, l0, l1, l2, l3);
    AddFeature<kRows>(OneFeature<Row>(high, i), q + i, pitch, h0, h1, h2, h3);
  }
  hn::Store(l0, d, s);
  hn::Store(h0, d, s + 8);
  if constexpr (kRows > 1) hn::Store(l1, d, s + kBlockKeys), hn::Store(h1, d, s + kBlockKeys + 8);
  if constexpr (kRows > 2) hn::Store(l2, d, s + 2 * kBlockKeys), hn::Store(h2, d, s + 2 * kBlockKeys + 8);
  if constexpr (kRows > 3) hn::Store(l3, d, s + 3 * kBlockKeys), hn::Store(h3, d, s + 3 * kBlockKeys + 8);
}

// Whole tiles; returns how many keys that were.
template <class Row>
HWY_INLINE int64_t QkRowsDirect(const QkRowsArgs& args) {
  const typename Row::T* const k = static_cast<const typename Row::T*>(args.k);
  int64_t key = 0;
  for (; key + kTileKeys <= args.num_keys; key += kTileKeys) {
    const typename Row::T* const tile = k + key * args.row_stride;
    float* const s = args.s + key;
    switch (args.rows) {
      case 1:
        QkTileDirect<1, Row>(args, tile, s);
        break;
      case 2:
        QkTileDirect<2, Row>(args, tile, s);
        break;
      case 3:
        QkTileDirect<3, Row>(args, tile, s);
        break;
      default:
        QkTileDirect<4, Row>(args, tile, s);
        break;
    }
  }
  return key;
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

template <class Element>
struct RowsPvIO {
  using Tile = RowTile<Element>;
  using T = typename Tile::T;
  static constexpr int64_t kLength = 0;
  static constexpr bool kEvenLength = true;
  const PvRowsArgs& args;
  const T* v;
  int64_t first_key, row0, col, lanes;

  HWY_INLINE const float* A(int64_t) const { return args.w + row0 * kBlockKeys + first_key; }
  HWY_INLINE static constexpr int64_t APitch() { return kBlockKeys; }
  HWY_INLINE const T* B(int c, int64_t) const { return v + (col + c) * lanes; }
  HWY_INLINE int64_t LineStep() const { return args.row_stride; }
  HWY_INLINE const T* Ahead(const T* line) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(line) + args.ahead);
  }
  HWY_INLINE float* O(int r, int c) const { return args.o + (row0 + r) * args.o_pitch + (col + c) * lanes; }
  HWY_INLINE VF Load(DF d, int r, int c) const {
    if (first_key > 0) return hn::Load(d, O(r, c));
    if (args.c == nullptr) return hn::Zero(d);
    return hn::Mul(hn::Load(d, O(r, c)), hn::Set(d, args.c[row0 + r]));
  }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const { hn::Store(v, d, O(r, c)); }
};

template <class Element, bool kAhead>
struct MakeRowsPvIO {
  static constexpr bool kPrefetch = kAhead;
  static constexpr bool kOneTile = false;
  const PvRowsArgs& args;
  const typename Element::T* v;
  int64_t first_key, first_col, lanes;
  HWY_INLINE RowsPvIO<Element> IO(int64_t row0, int64_t col) const {
    return {args, v, first_key, row0, first_col + col, lanes};
  }
  HWY_INLINE MakeRowsPvIO<Element, false> WithoutPrefetch() const { return {args, v, first_key, first_col, lanes}; }
};

// Leaves out the keys that do not count, one row at a time: values of any kind may stand there.
template <class Element>
void PvRowsSelected(const PvRowsArgs& args) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t feature = 0; feature < args.v_dim; feature += lanes) {
      float* o = args.o + r * args.o_pitch + feature;
      VF acc = hn::Zero(d);
      if (args.c != nullptr) acc = hn::Mul(hn::Load(d, o), hn::Set(d, args.c[r]));
      const typename Element::T* v = static_cast<const typename Element::T*>(args.v) + feature;
      for (int64_t key = 0; key < args.num_keys; ++key, v += args.row_stride) {
        if ((args.live[r * kTilesPerBlock + key / kTileKeys] >> key % kTileKeys & 1) == 0) continue;
        acc = hn::MulAdd(hn::Set(d, args.w[r * kBlockKeys + key]), Element::Load(d, v), acc);
      }
      hn::Store(acc, d, o);
    }
  }
}

HWY_INLINE bool AllLive(const PvRowsArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t key = 0; key < args.num_keys; key += kTileKeys) {
      const uint32_t all = (1u << HWY_MIN(kTileKeys, args.num_keys - key)) - 1;
      if ((args.live[r * kTilesPerBlock + key / kTileKeys] & all) != all) return false;
    }
  }
  return true;
}

template <class Element>
HWY_INLINE void PvRowsOf(const PvRowsArgs& args) {
  if (!AllLive(args)) return PvRowsSelected<Element>(args);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const int64_t num_cols = args.v_dim / lanes;
  // As many columns as a single row uses at a time.
  const int64_t step = HWY_MIN(num_cols, 64 / lanes);
  const int64_t num_parts = CeilDiv(num_cols, step);
  // Tile by tile: all features of 16 keys are read before the next key's.
  const typename Element::T* v = static_cast<const typename Element::T*>(args.v);
  for (int64_t key = 0; key < args.num_keys; key += kTileKeys, v += kTileKeys * args.row_stride) {
    const int64_t num_keys = HWY_MIN(kTileKeys, args.num_keys - key);
    for (int64_t part = 0; part < num_parts; ++part) {
      const int64_t col = part * step;
      const MakeRowsPvIO<Element, true> make{args, v, key, col, lanes};
      if (args.ahead != 0) {
        BlockedMultiply(args.rows, HWY_MIN(step, num_cols - col), 1, num_keys, make);
      } else {
        BlockedMultiply(args.rows, HWY_MIN(step, num_cols - col), 1, num_keys, make.WithoutPrefetch());
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
