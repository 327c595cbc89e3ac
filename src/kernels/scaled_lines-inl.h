// Scores and weighted sums over quantised tiles whose codes go through memory as halves, for few rows.
//
// Separate from scaled_kernels-inl.h, whose kernel decodes each vector where it is used: here lines of codes are put
// into a buffer a turn of the loop ahead, a few between the FMAs of every step, across tiles and blocks of columns. Put
// all at once before their turn they keep the FMAs waiting: scores and sums of 4 rows took 113 cycles per key of 128
// features so, and take 103 (fp8, Zen 3, in L1). Called by scaled_kernels-inl.h.
#if defined(HEADLANE_SRC_KERNELS_SCALED_LINES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_SCALED_LINES_INL_H_
#undef HEADLANE_SRC_KERNELS_SCALED_LINES_INL_H_
#else
#define HEADLANE_SRC_KERNELS_SCALED_LINES_INL_H_
#endif

#include <algorithm>
#include <utility>

#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/micro_kernel-inl.h"
#include "kernels/scaled_io-inl.h"
#include "kernels/scaled_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HEADLANE_HALVES_THROUGH_MEMORY

// Steps of a turn.
inline constexpr int64_t kLineTurn = 8;

// The lines of a turn and of the next one, for kPairs tiles (K) or stripes (V), and whether the former are there.
template <class Tile, int kPairs>
struct TurnLines {
  static constexpr int64_t kLines = kLineTurn / Tile::kPutSteps * kPairs;
  typename Tile::Line buffer[2 * kLines];
  typename Tile::Line* now = buffer;
  typename Tile::Line* next = buffer + kLines;
  bool is_put = false;
};

#define HEADLANE_ROWS_(M) M(0) M(1) M(2) M(3)
#define HEADLANE_COLS_(M, r) M(r, 0) M(r, 1) M(r, 2) M(r, 3)

// acc[r][c] = fma(a[r][k], code[c][k] * scale, acc[r][c]), k ascending. `next` is the block of columns behind this one,
// or this one again: its first turn is put during the last one here. `step_scales`, of values: one for each key.
template <int kRows, int kCols, class IO>
HWY_INLINE void LinesKernel(const IO& io, const IO& next, const float* HWY_RESTRICT step_scales,
                            TurnLines<typename IO::Tile, kCols / 2>& turn) {
  using Tile = typename IO::Tile;
  using T = typename Tile::T;
  static_assert(kCols == 2 || kCols == 4);
  static_assert(kColsPerTile == 2 && Tile::Column(kTileKeys / 2) == kTileKeys / 2);
  const DF d;
  constexpr int64_t kPutBytes = Tile::kPutSteps / Tile::kSteps * Tile::kLine;
  constexpr int64_t kTurnLines = kLineTurn / Tile::kPutSteps;
  constexpr int64_t kTurnBytes = kTurnLines * kPutBytes;
#define HEADLANE_DECLARE_(r, c)                \
  [[maybe_unused]] VF acc##r##c = hn::Zero(d); \
  if constexpr (r < kRows && c < kCols) acc##r##c = io.Load(d, r, c);
#define HEADLANE_DECLARE_ROW_(r) HEADLANE_COLS_(HEADLANE_DECLARE_, r)
  HEADLANE_ROWS_(HEADLANE_DECLARE_ROW_)
#define HEADLANE_SCALE_(r, c) [[maybe_unused]] VF scale##c = hn::Zero(d);
  HEADLANE_COLS_(HEADLANE_SCALE_, 0)
#undef HEADLANE_SCALE_
  // Scales of lanes, where registers are few.
  constexpr bool kLaneScales = IO::kIsK && kRows > 1 && kCols == 4;
  // What putting needs is loaded for each line, where it would leave too few registers; else once per turn.
  constexpr bool kLoadsPutting = IO::kIsK && kRows % 2 == 0 && Tile::kPutting > 1;
  alignas(64) [[maybe_unused]] float scale_buffer[kLaneScales ? kCols * kTileKeys / 2 : 1];
  [[maybe_unused]] float* lane_scales = scale_buffer;
  if constexpr (kLaneScales) KeepAddress(lane_scales);
  typename Tile::Line* lines = turn.now;
  typename Tile::Line* next_lines = turn.next;
  KeepAddress(lines);
  KeepAddress(next_lines);

  const float* HWY_RESTRICT a = io.A(0);
  const int64_t a_pitch = io.APitch();
#define HEADLANE_A_(r) [[maybe_unused]] const float* HWY_RESTRICT a##r = a + r * a_pitch;
  HEADLANE_ROWS_(HEADLANE_A_)
  // The lines that are put.
  const int64_t num_segments = io.NumSegments();
  const bool has_turns = io.Length(0) >= kLineTurn;
  [[maybe_unused]] const T *put0 = nullptr, *put2 = nullptr;
  if (has_turns) put0 = io.B(0, 0);
  if constexpr (kCols == 4) {
    if (has_turns) put2 = io.B(2, 0);
  }

#define HEADLANE_PUTTING_(kLoads)                                        \
  [[maybe_unused]] const auto putting0 = LoadPutting<Tile, 0, kLoads>(); \
  [[maybe_unused]] const auto putting1 = LoadPutting<Tile, 1, kLoads>();
#define HEADLANE_PUT_LINES_(i, kPart, to)                                                              \
  Tile::template Put<kPart>(putting0, putting1, put0 + (i) * kPutBytes, to + (i) * (kCols / 2));       \
  if constexpr (kCols == 4) {                                                                          \
    Tile::template Put<kPart>(putting0, putting1, put2 + (i) * kPutBytes, to + (i) * (kCols / 2) + 1); \
  }
#define HEADLANE_PUT_(i, kPart, to)   \
  if constexpr (kLoadsPutting) {      \
    HEADLANE_PUTTING_(true)           \
    HEADLANE_PUT_LINES_(i, kPart, to) \
  } else {                            \
    HEADLANE_PUT_LINES_(i, kPart, to) \
  }
  // Column c at step kStep of the line `put`, which is step k.
#define HEADLANE_LOAD_(kStep, c, k, to)                                              \
  if constexpr (kLaneScales) {                                                       \
    to = put[c / 2].template Take<kStep, c % 2>(d, lane_scales + c * kTileKeys / 2); \
  } else if constexpr (IO::kIsK) {                                                   \
    to = put[c / 2].template Take<kStep, c % 2>(d, scale##c);                        \
  } else {                                                                           \
    to = put[c / 2].template Take<kStep, c % 2>(d, scale);                           \
  }                                                                                  \
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
  // One link of every chain.
#define HEADLANE_STEP_(kStep, k)                                    \
  {                                                                 \
    const int64_t step = k;                                         \
    [[maybe_unused]] VF scale = hn::Zero(d);                        \
    if constexpr (!IO::kIsK) scale = hn::Set(d, step_scales[step]); \
    if constexpr (kRows >= kCols) {                                 \
      HEADLANE_COLS_(HEADLANE_LOAD_B_, kStep)                       \
      HEADLANE_ROWS_(HEADLANE_FMA_ROW_)                             \
    } else {                                                        \
      HEADLANE_ROWS_(HEADLANE_LOAD_A_)                              \
      HEADLANE_COLS_(HEADLANE_FMA_COL_, kStep)                      \
    }                                                               \
  }

  if (has_turns && !turn.is_put) {
    HEADLANE_PUTTING_(!kLoadsPutting)
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTurnLines; ++i) {
      HEADLANE_PUT_(i, 0, lines)
      if constexpr (Tile::kPutParts == 2) {
        HEADLANE_PUT_(i, 1, lines)
      }
    }
  }
  // Of keys, a segment has the same scales; of values it is a tile.
  for (int64_t segment = 0; segment < num_segments; ++segment) {
#define HEADLANE_SCALE_(r, c)                                                                            \
  if constexpr (IO::kIsK && c < kCols) scale##c = Tile::LaneScale(d, io.Scales(c, segment), io.Lane(c)); \
  if constexpr (kLaneScales && c < kCols) hn::Store(scale##c, d, lane_scales + c * kTileKeys / 2);
    HEADLANE_COLS_(HEADLANE_SCALE_, 0)
    const int64_t k_len = io.Length(segment);
    const bool is_last = segment + 1 == num_segments || (IO::kIsK && io.Length(segment + 1) < kLineTurn);
    int64_t k = 0;
    for (; k + kLineTurn <= k_len; k += kLineTurn) {
      __builtin_prefetch(put0 + kScaledAhead<Tile>, 0, 3);
      if constexpr (kTurnBytes > kCacheLine) __builtin_prefetch(put0 + kScaledAhead<Tile> + kCacheLine, 0, 3);
      if constexpr (kCols == 4) {
        __builtin_prefetch(put2 + kScaledAhead<Tile>, 0, 3);
        if constexpr (kTurnBytes > kCacheLine) __builtin_prefetch(put2 + kScaledAhead<Tile> + kCacheLine, 0, 3);
      }
      if (k + 2 * kLineTurn <= k_len || (IO::kIsK && !is_last)) {
        // Keys' segments follow each other.
        put0 += kTurnBytes;
        if constexpr (kCols == 4) put2 += kTurnBytes;
      } else {
        const IO& from = is_last ? next : io;
        const int64_t begin = is_last ? 0 : segment + 1;
        put0 = from.B(0, begin);
        if constexpr (kCols == 4) put2 = from.B(2, begin);
      }
      HEADLANE_PUTTING_(!kLoadsPutting)
#pragma GCC unroll 8
      for (int64_t i = 0; i < kTurnLines; ++i) {
        const typename Tile::Line* const put = lines + i * (kCols / 2);
        HEADLANE_PUT_(i, 0, next_lines)
        HEADLANE_STEP_(0, i * Tile::kPutSteps)
        if constexpr (Tile::kPutSteps == 4) {
          HEADLANE_STEP_(1, i * Tile::kPutSteps + 1)
          HEADLANE_PUT_(i, 1, next_lines)
          HEADLANE_STEP_(2, i * Tile::kPutSteps + 2)
          HEADLANE_STEP_(3, i * Tile::kPutSteps + 3)
        }
      }
      std::swap(lines, next_lines);
#define HEADLANE_ADVANCE_(r) a##r += kLineTurn;
      HEADLANE_ROWS_(HEADLANE_ADVANCE_)
      if constexpr (!IO::kIsK) step_scales += kLineTurn;
    }
    if constexpr (IO::kIsK) {
      // What is left of the last segment. The last feature alone: a link with a 0 from the padding could change the
      // sign of a zero, or make a NaN.
      for (; k < k_len; k += Tile::kSteps) {
        typename Tile::Line rest[kCols / 2];
        typename Tile::Line* put = rest;
        KeepAddress(put);
        HEADLANE_PUTTING_(true)
        const int64_t line = k / Tile::kSteps * Tile::kLine;
        Tile::PutLine(putting0, putting1, io.B(0, segment) + line, put);
        if constexpr (kCols == 4) Tile::PutLine(putting0, putting1, io.B(2, segment) + line, put + 1);
        HEADLANE_STEP_(0, 0)
        if constexpr (Tile::kSteps == 2) {
          if (k + 1 < k_len) HEADLANE_STEP_(1, 1)
        }
#define HEADLANE_STEP_ON_(r) a##r += Tile::kSteps;
        HEADLANE_ROWS_(HEADLANE_STEP_ON_)
      }
    }
  }
  turn.now = lines;
  turn.next = next_lines;
  turn.is_put = true;
#define HEADLANE_STORE_(r, c) \
  if constexpr (r < kRows && c < kCols) io.Store(d, r, c, acc##r##c);
#define HEADLANE_STORE_ROW_(r) HEADLANE_COLS_(HEADLANE_STORE_, r)
  HEADLANE_ROWS_(HEADLANE_STORE_ROW_)

#undef HEADLANE_DECLARE_
#undef HEADLANE_DECLARE_ROW_
#undef HEADLANE_A_
#undef HEADLANE_PUTTING_
#undef HEADLANE_PUT_LINES_
#undef HEADLANE_PUT_
#undef HEADLANE_SCALE_
#undef HEADLANE_LOAD_
#undef HEADLANE_LOAD_B_
#undef HEADLANE_FMA_
#undef HEADLANE_FMA_ROW_
#undef HEADLANE_LOAD_A_
#undef HEADLANE_FMA_BY_COL_
#undef HEADLANE_FMA_COL_
#undef HEADLANE_STEP_
#undef HEADLANE_ADVANCE_
#undef HEADLANE_STEP_ON_
#undef HEADLANE_STORE_
#undef HEADLANE_STORE_ROW_
}

#undef HEADLANE_ROWS_
#undef HEADLANE_COLS_

// Columns [col, end) of a block of rows; of values, of one group of scales. `num_cols`: of all.
template <int kRows, int kCols, class IO, class Args>
HWY_INLINE void LinesColumns(const Args& args, int64_t row0, int64_t col, int64_t end, int64_t num_cols,
                             const float* step_scales, TurnLines<typename IO::Tile, kCols / 2>& turn) {
  const int64_t lanes = kTileKeys / VectorsPerTile();
  for (; col + kCols <= end; col += kCols) {
    const int64_t next = col + 2 * kCols <= num_cols ? col + kCols : col;
    LinesKernel<kRows, kCols>(IO{args, row0, col, lanes}, IO{args, row0, next, lanes}, step_scales, turn);
  }
  if constexpr (kCols == 4) {
    if (col < end) {
      TurnLines<typename IO::Tile, 1> rest;
      LinesColumns<kRows, 2, IO>(args, row0, col, end, num_cols, step_scales, rest);
    }
  }
}

// The columns of a block: 4 chains or more.
constexpr int LinesCols(int rows) { return rows <= 2 ? 4 : 2; }

template <class Tile>
struct LinesQkGroup {
  const QkArgs& args;
  int64_t row0;
  template <int kRows>
  HWY_NOINLINE void operator()(std::integral_constant<int, kRows>) const {
    constexpr int kCols = LinesCols(kRows);
    TurnLines<Tile, kCols / 2> turn;
    const int64_t num_cols = args.num_tiles * 2;
    LinesColumns<kRows, kCols, ScaledQkIO<Tile>>(args, row0, 0, num_cols, num_cols, nullptr, turn);
  }
};

template <class Tile>
struct LinesPvGroup {
  const PvArgs& args;
  int64_t row0;
  template <int kRows>
  HWY_NOINLINE void operator()(std::integral_constant<int, kRows>) const {
    constexpr int kCols = LinesCols(kRows);
    const DF d;
    TurnLines<Tile, kCols / 2> turn;
    alignas(64) float step_scales[kBlockKeys];
    const int64_t num_cols = args.num_stripes * 2;
    const int64_t group = Tile::kGroup == 0 ? num_cols : Tile::kGroup / (kTileKeys / 2);
    for (int64_t col = 0; col < num_cols; col += group) {
      for (int64_t t = 0; t < args.num_tiles; ++t) {
        const typename Tile::T* const tile = static_cast<const typename Tile::T*>(args.v_tiles[t]);
        StoreScales<Tile>(d, VScales<Tile>(tile, args.num_stripes, col * (kTileKeys / 2)), step_scales + t * kTileKeys);
      }
      LinesColumns<kRows, kCols, ScaledPvIO<Tile>>(args, row0, col, std::min(num_cols, col + group), num_cols,
                                                   step_scales, turn);
    }
  }
};

// All columns for each group of rows: what a block holds stays in L1.
template <template <class> class Group, class Tile, class Args>
HWY_INLINE void LinesMultiply(const Args& args) {
  constexpr int64_t kRows = kMaxScaledRows;
  for (int64_t row0 = 0; row0 < args.rows;) {
    const int64_t n = CeilDiv(args.rows - row0, CeilDiv(args.rows - row0, kRows));
    WithRows<1, kRows>(n, Group<Tile>{args, row0});
    row0 += n;
  }
}

#else
template <class Tile>
struct LinesQkGroup;
template <class Tile>
struct LinesPvGroup;
template <template <class> class Group, class Tile, class Args>
void LinesMultiply(const Args& args);
#endif

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_SCALED_LINES_INL_H_
