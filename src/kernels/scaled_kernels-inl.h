// Scores and weighted sums over quantised tiles, for few rows.
//
// Separate from micro_kernel-inl.h, whose operands are numbers: here decoding a vector takes two to four instructions
// beside the FMA of a row, and registers for scales, so that blocks are smaller and read in another order. What is
// computed is the same, one chain of FMAs per lane in the canonical order, on numbers that are code * scale.
//
// Accumulators are named variables, because SVE's vectors have no size at compile time.
#if defined(HEADLANE_SRC_KERNELS_SCALED_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_SCALED_KERNELS_INL_H_
#undef HEADLANE_SRC_KERNELS_SCALED_KERNELS_INL_H_
#else
#define HEADLANE_SRC_KERNELS_SCALED_KERNELS_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/micro_kernel-inl.h"
#include "kernels/pack_scaled-inl.h"
#include "kernels/scaled_io-inl.h"
#include "kernels/scaled_lines-inl.h"
#include "kernels/scaled_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of a block; of two codes in a byte three leave registers for both.
template <class Tile>
inline constexpr int kScaledRows = kNumRegisters == 16 && Tile::kSteps == 2 ? 3 : kMaxScaledRows;

// Columns of a block: 4 chains or more hide the latency of the FMAs well enough for the bytes that they use. With 16
// registers 3 and 4 rows leave room for 2, and so do 2 rows where decoding needs registers beside the sums; with 32, 4
// rows of two codes in a byte.
template <class Tile>
constexpr int ScaledCols(int rows) {
  if (kNumRegisters > 16) return rows == kMaxScaledRows && Tile::kSteps == 2 ? 2 : 4;
  return rows == 1 || (rows == 2 && Tile::kDType == DType::kI8) ? 4 : 2;
}

#define HEADLANE_ROWS_(M) M(0) M(1) M(2) M(3)
#define HEADLANE_COLS_(M, r) M(r, 0) M(r, 1) M(r, 2) M(r, 3)

// acc[r][c] = fma(a[r][k], code[c][k] * scale, acc[r][c]), k ascending, segment by segment.
template <int kRows, int kCols, class IO>
HWY_INLINE void ScaledKernel(const IO& io) {
  static_assert(1 <= kRows && kRows <= kMaxScaledRows && 1 <= kCols && kCols <= kMaxScaledCols);
  using Tile = typename IO::Tile;
  using T = typename Tile::T;
  const DF d;
  // Steps and lines per turn of the loop.
  constexpr int64_t kTurn = 4;
  constexpr int64_t kTurnLines = kTurn / Tile::kSteps;
  static_assert(kTileKeys % kTurn == 0 && kTurn % Tile::kSteps == 0);
#define HEADLANE_DECLARE_(r, c)                \
  [[maybe_unused]] VF acc##r##c = hn::Zero(d); \
  if constexpr (r < kRows && c < kCols) acc##r##c = io.Load(d, r, c);
#define HEADLANE_DECLARE_ROW_(r) HEADLANE_COLS_(HEADLANE_DECLARE_, r)
  HEADLANE_ROWS_(HEADLANE_DECLARE_ROW_)
#define HEADLANE_SCALE_(r, c) [[maybe_unused]] VF scale##c = hn::Zero(d);
  HEADLANE_COLS_(HEADLANE_SCALE_, 0)
#undef HEADLANE_SCALE_
  [[maybe_unused]] VF scale = hn::Zero(d);
  const int64_t num_segments = io.NumSegments();
  for (int64_t segment = 0; segment < num_segments; ++segment) {
    const float* HWY_RESTRICT a = io.A(segment);
    const int64_t a_pitch = io.APitch();
#define HEADLANE_A_(r) [[maybe_unused]] const float* HWY_RESTRICT a##r = a + r * a_pitch;
    HEADLANE_ROWS_(HEADLANE_A_)
    // Columns of the same tile are neighbours: one address for them all.
    [[maybe_unused]] const T* b = nullptr;
#define HEADLANE_B_(r, c)                                        \
  if constexpr (c < kCols) {                                     \
    if constexpr (kWholeTiles<kCols> && c % kColsPerTile != 0) { \
      b += Tile::Column(kTileKeys / kColsPerTile);               \
    } else {                                                     \
      b = io.B(c, segment);                                      \
      KeepAddress(b);                                            \
    }                                                            \
  }                                                              \
  [[maybe_unused]] const T* HWY_RESTRICT b##c = b;
    HEADLANE_COLS_(HEADLANE_B_, 0)
#define HEADLANE_SCALE_(r, c)                                                            \
  [[maybe_unused]] const T* HWY_RESTRICT scales##c = nullptr;                            \
  if constexpr (c < kCols && c % IO::kScaleCols == 0) scales##c = io.Scales(c, segment); \
  if constexpr (c < kCols && IO::kIsK) scale##c = Tile::LaneScale(d, scales##c, io.Lane(c));
    HEADLANE_COLS_(HEADLANE_SCALE_, 0)
    // Column c at step k.
#define HEADLANE_LOAD_(kStep, c, k, to)                                                                         \
  if constexpr (!IO::kIsK && c % IO::kScaleCols == 0) scale = Tile::template StepScale<kStep>(d, scales##c, k); \
  to = Tile::template Load<kStep>(d, b##c + line, IO::kIsK ? scale##c : scale);                                 \
  KeepInRegister(to);
#define HEADLANE_LOAD_B_(kStep, c)         \
  [[maybe_unused]] VF bv##c = hn::Zero(d); \
  if constexpr (c < kCols) {               \
    HEADLANE_LOAD_(kStep, c, step, bv##c)  \
  }
#define HEADLANE_FMA_(r, c) \
  if constexpr (c < kCols) MulAddTo(acc##r##c, av, bv##c);
#define HEADLANE_FMA_ROW_(r)                      \
  if constexpr (r < kRows) {                      \
    const Factor av = LoadFactor(d, a##r + step); \
    HEADLANE_COLS_(HEADLANE_FMA_, r)              \
  }
#define HEADLANE_LOAD_A_(r) [[maybe_unused]] const Factor av##r = LoadFactor(d, r < kRows ? a##r + step : a);
#define HEADLANE_FMA_BY_COL_(c, r) \
  if constexpr (r < kRows) MulAddTo(acc##r##c, av##r, bv);
#define HEADLANE_FMA_COL_(kStep, c)    \
  if constexpr (c < kCols) {           \
    VF bv = hn::Zero(d);               \
    HEADLANE_LOAD_(kStep, c, step, bv) \
    HEADLANE_FMA_BY_COL_(c, 0)         \
    HEADLANE_FMA_BY_COL_(c, 1)         \
    HEADLANE_FMA_BY_COL_(c, 2)         \
    HEADLANE_FMA_BY_COL_(c, 3)         \
  }
    // One link of every chain: step kStep of the line at offset `line`.
#define HEADLANE_STEP_(kStep, k)               \
  {                                            \
    const int64_t step = k;                    \
    if constexpr (kRows >= kCols) {            \
      HEADLANE_COLS_(HEADLANE_LOAD_B_, kStep)  \
      HEADLANE_ROWS_(HEADLANE_FMA_ROW_)        \
    } else {                                   \
      HEADLANE_ROWS_(HEADLANE_LOAD_A_)         \
      HEADLANE_COLS_(HEADLANE_FMA_COL_, kStep) \
    }                                          \
  }
    // One row, two steps per line: both of a column at once, so that no column's codes wait in a register.
#define HEADLANE_TWO_STEPS_(r, c)      \
  if constexpr (c < kCols) {           \
    VF bv = hn::Zero(d);               \
    HEADLANE_LOAD_(0, c, step, bv)     \
    MulAddTo(acc0##c, av0, bv);        \
    HEADLANE_LOAD_(1, c, step + 1, bv) \
    MulAddTo(acc0##c, av1, bv);        \
  }
#define HEADLANE_LINE_(k)                            \
  if constexpr (Tile::kSteps == 1) {                 \
    HEADLANE_STEP_(0, k)                             \
  } else if constexpr (kRows == 1 && IO::kIsK) {     \
    const int64_t step = k;                          \
    const Factor av0 = LoadFactor(d, a0 + step);     \
    const Factor av1 = LoadFactor(d, a0 + step + 1); \
    HEADLANE_COLS_(HEADLANE_TWO_STEPS_, 0)           \
  } else {                                           \
    HEADLANE_STEP_(0, k)                             \
    HEADLANE_STEP_(1, (k) + 1)                       \
  }
#define HEADLANE_PREFETCH_(r, c)                                                     \
  if constexpr (c < kCols && c % kColsPerTile == 0) {                                \
    for (int64_t ahead = 0; ahead < kTurnLines * Tile::kLine; ahead += kCacheLine) { \
      __builtin_prefetch(b##c + first_line + kScaledAhead<Tile> + ahead, 0, 3);      \
    }                                                                                \
  }
    const int64_t k_len = io.Length(segment);
    int64_t k = 0, first_line = 0;
    for (; k + kTurn <= k_len; k += kTurn, first_line += kTurnLines * Tile::kLine) {
      HEADLANE_COLS_(HEADLANE_PREFETCH_, 0)
#pragma GCC unroll 8
      for (int64_t turn_line = 0; turn_line < kTurnLines; ++turn_line) {
        [[maybe_unused]] const int64_t line = first_line + turn_line * Tile::kLine;
        HEADLANE_LINE_(k + turn_line * Tile::kSteps)
      }
    }
    if constexpr (IO::kIsK) {
      int64_t line = first_line;
      for (; k + Tile::kSteps <= k_len; k += Tile::kSteps, line += Tile::kLine) {
        HEADLANE_LINE_(k)
      }
      // The last feature alone: a link with a 0 from the padding could change the sign of a zero, or make a NaN.
      if constexpr (Tile::kSteps == 2) {
        if (k < k_len) HEADLANE_STEP_(0, k)
      }
    }
  }
#define HEADLANE_STORE_(r, c) \
  if constexpr (r < kRows && c < kCols) io.Store(d, r, c, acc##r##c);
#define HEADLANE_STORE_ROW_(r) HEADLANE_COLS_(HEADLANE_STORE_, r)
  HEADLANE_ROWS_(HEADLANE_STORE_ROW_)

#undef HEADLANE_DECLARE_
#undef HEADLANE_DECLARE_ROW_
#undef HEADLANE_A_
#undef HEADLANE_B_
#undef HEADLANE_SCALE_
#undef HEADLANE_LOAD_
#undef HEADLANE_LOAD_B_
#undef HEADLANE_FMA_
#undef HEADLANE_FMA_ROW_
#undef HEADLANE_LOAD_A_
#undef HEADLANE_FMA_BY_COL_
#undef HEADLANE_FMA_COL_
#undef HEADLANE_STEP_
#undef HEADLANE_TWO_STEPS_
#undef HEADLANE_LINE_
#undef HEADLANE_PREFETCH_
#undef HEADLANE_STORE_
#undef HEADLANE_STORE_ROW_
}

#undef HEADLANE_ROWS_
#undef HEADLANE_COLS_

// Columns [col, end), a multiple of a tile's, for one group of rows.
template <int kRows, int kCols, class IO, class Args>
HWY_INLINE void ScaledColumns(const Args& args, int64_t row0, int64_t col, int64_t end) {
  const int64_t lanes = kTileKeys / VectorsPerTile();
  for (; col + kCols <= end; col += kCols) ScaledKernel<kRows, kCols>(IO{args, row0, col, lanes});
  if constexpr (kCols > 1 && kColsPerTile % kCols != 0) {
    if (col < end) ScaledColumns<kRows, kCols / 2, IO>(args, row0, col, end);
  }
}

// As a functor because lambdas would need the target's attribute; not inlined, as all sizes in one function take
// compilers long.
template <class IO, class Args>
struct ScaledGroup {
  const Args& args;
  int64_t row0, col, end;
  template <int kRows>
  HWY_NOINLINE void operator()(std::integral_constant<int, kRows>) const {
    if constexpr (kRows <= kScaledRows<typename IO::Tile>) {
      ScaledColumns<kRows, ScaledCols<typename IO::Tile>(kRows), IO>(args, row0, col, end);
    }
  }
};

// Row groups inside, blocks of columns outside: a block's codes stay in L1.
template <class IO, class Args>
HWY_INLINE void ScaledMultiply(const Args& args, int64_t num_cols) {
  const int64_t rows = args.rows;
  constexpr int kRows = kScaledRows<typename IO::Tile>;
  if (rows <= kRows) return WithRows<1, kRows>(rows, ScaledGroup<IO, Args>{args, 0, 0, num_cols});
  for (int64_t col = 0; col < num_cols; col += 4) {
    const int64_t end = std::min(num_cols, col + 4);
    for (int64_t row0 = 0; row0 < rows;) {
      // 4 and 4, but 3 and 2: no group of 1 where there are others.
      const int64_t left = CeilDiv(rows - row0, kRows);
      const int64_t n = CeilDiv(rows - row0, left);
      WithRows<1, kRows>(n, ScaledGroup<IO, Args>{args, row0, col, end});
      row0 += n;
    }
  }
}

// The first group of so many rows, the largest.
template <class Tile>
RegisterBlock ScaledBlockOfRows(int64_t rows) noexcept {
  int64_t most = kScaledRows<Tile>;
#if HEADLANE_HALVES_THROUGH_MEMORY
  if constexpr (kByLines<Tile>) most = kMaxScaledRows;
#endif
  const int group = static_cast<int>(CeilDiv(rows, CeilDiv(rows, most)));
  int cols = ScaledCols<Tile>(group);
#if HEADLANE_HALVES_THROUGH_MEMORY
  if constexpr (kByLines<Tile>) cols = LinesCols(group);
#endif
  return {group, cols, kTileKeys / VectorsPerTile(), RegistersOfBlock(group, cols), kNumRegisters};
}

template <class Tile>
void ScaledQk(const QkArgs& args) noexcept {
  if (args.rows <= 0) return;
  if constexpr (kByLines<Tile>) {
    LinesMultiply<LinesQkGroup, Tile>(args);
  } else {
    ScaledMultiply<ScaledQkIO<Tile>>(args, args.num_tiles * VectorsPerTile());
  }
}

// Features [feature, feature + lanes) of the value in slot `key`; kStep = key % Tile::kSteps.
template <class Tile, int kStep>
HWY_INLINE VF LoadValues(DF d, const typename Tile::T* tile, int64_t num_stripes, int64_t feature, int64_t key) {
  const typename Tile::T* const line = tile + feature / kTileKeys * kStripeBytes<Tile> +
                                       Tile::Column(feature % kTileKeys) + key / Tile::kSteps * Tile::kLine;
  const VF scale = Tile::template StepScale<kStep>(d, VScales<Tile>(tile, num_stripes, feature), key);
  return Tile::template Load<kStep>(d, line, scale);
}
template <class Tile>
HWY_INLINE VF LoadValuesOf(DF d, const typename Tile::T* tile, int64_t num_stripes, int64_t feature, int64_t key) {
  if constexpr (Tile::kSteps == 2) {
    if (key % 2 != 0) return LoadValues<Tile, 1>(d, tile, num_stripes, feature, key);
  }
  return LoadValues<Tile, 0>(d, tile, num_stripes, feature, key);
}

// Leaves out the keys that do not count, one row at a time: for tiles that hold rows that are not finite. Rare, so it
// is plain.
template <class Tile>
void ScaledPvSelected(const PvArgs& args) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t feature = 0; feature < args.num_stripes * kTileKeys; feature += lanes) {
      float* o = args.o + r * args.o_pitch + feature;
      VF acc = hn::Zero(d);
      if (args.c != nullptr) acc = hn::Mul(hn::Load(d, o), hn::Set(d, args.c[r]));
      for (int64_t t = 0; t < args.num_tiles; ++t) {
        const typename Tile::T* const tile = static_cast<const typename Tile::T*>(args.v_tiles[t]);
        const float* w = args.w + r * kBlockKeys + t * kTileKeys;
        const uint32_t live = args.live[r * kTilesPerBlock + t];
        for (int64_t key = 0; key < kTileKeys; ++key) {
          if ((live >> key & 1) == 0) continue;
          acc = hn::MulAdd(hn::Set(d, w[key]), LoadValuesOf<Tile>(d, tile, args.num_stripes, feature, key), acc);
        }
      }
      hn::Store(acc, d, o);
    }
  }
}

// Rows that use a tile while it comes from memory: so many tiles at a time, in order of address. o is loaded and stored
// for each, which is less than waiting for memory.
inline constexpr int64_t kScaledTilesAtOnce = 4;
alignas(64) inline constexpr float kScaledOnes[8] = {1, 1, 1, 1, 1, 1, 1, 1};

template <class Tile>
HWY_INLINE void ScaledPvOfTiles(const PvArgs& args) {
  if constexpr (kByLines<Tile>) {
    LinesMultiply<LinesPvGroup, Tile>(args);
  } else {
    ScaledMultiply<ScaledPvIO<Tile>>(args, args.num_stripes * VectorsPerTile());
  }
}

template <class Tile>
void ScaledPv(const PvArgs& args) noexcept {
  if (args.rows <= 0) return;
  if (args.live != nullptr) return ScaledPvSelected<Tile>(args);
  if (!args.stream || args.rows > static_cast<int64_t>(std::size(kScaledOnes))) {
    return ScaledPvOfTiles<Tile>(args);
  }
  PvArgs part = args;
  for (int64_t t = 0; t < args.num_tiles; t += kScaledTilesAtOnce) {
    part.num_tiles = std::min(kScaledTilesAtOnce, args.num_tiles - t);
    part.w = args.w + t * kTileKeys;
    part.v_tiles = args.v_tiles + t;
    if (t > 0) part.c = kScaledOnes;
    ScaledPvOfTiles<Tile>(part);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_SCALED_KERNELS_INL_H_
