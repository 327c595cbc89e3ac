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
#include "kernels/scaled_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Tiles that are decoded in two passes, a few lines at a time, have a type for what the first one leaves in memory.
template <class Tile>
struct LineOf {
  using Type = char;
};
template <class Tile>
  requires requires { typename Tile::Line; }
struct LineOf<Tile> {
  using Type = typename Tile::Line;
};
template <class Tile>
inline constexpr bool kByLines = !std::is_same_v<typename LineOf<Tile>::Type, char>;
// One of the vectors that putting a line takes.
template <class Tile, int kIndex>
HWY_INLINE auto LoadPutting() {
  if constexpr (kByLines<Tile>) {
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

// Rows of a block; of two codes in a byte three leave registers for both.
template <class Tile>
inline constexpr int kScaledRows = kNumRegisters == 16 && Tile::kSteps == 2 && !kByLines<Tile> ? 3 : kMaxScaledRows;

// Columns of a block: 4 chains or more hide the latency of the FMAs well enough for the bytes that they use. With 16
// registers 3 and 4 rows leave room for 2, and so do 2 rows where decoding needs registers beside the sums; with 32, 4
// rows of two codes in a byte.
template <class Tile>
constexpr int ScaledCols(int rows) {
  if (kNumRegisters > 16) return rows == kMaxScaledRows && Tile::kSteps == 2 ? 2 : 4;
  return rows == 1 || (rows == 2 && (Tile::kDType == DType::kI8 || kByLines<Tile>)) ? 4 : 2;
}

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

#define HEADLANE_ROWS_(M) M(0) M(1) M(2) M(3)
#define HEADLANE_COLS_(M, r) M(r, 0) M(r, 1) M(r, 2) M(r, 3)

// acc[r][c] = fma(a[r][k], code[c][k] * scale, acc[r][c]), k ascending, segment by segment.
template <int kRows, int kCols, class IO>
HWY_INLINE void ScaledKernel(const IO& io) {
  static_assert(1 <= kRows && kRows <= kMaxScaledRows && 1 <= kCols && kCols <= kMaxScaledCols);
  using Tile = typename IO::Tile;
  using T = typename Tile::T;
  const DF d;
  // Steps and lines per turn of the loop. Of two passes, the first one is then so far ahead that the second one finds
  // its operands: 26.6 cycles per key of 128 features (fp8, Zen 3), and 30 with a single line.
  constexpr int64_t kTurn = kByLines<Tile> ? 8 : 4;
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
  constexpr bool kLines = kByLines<Tile>;
  static_assert(!kLines || kCols % 2 == 0);
  [[maybe_unused]] typename LineOf<Tile>::Type line_buffer[kLines ? kTurnLines * kCols / 2 : 1];
  [[maybe_unused]] typename LineOf<Tile>::Type* lines = line_buffer;
  if constexpr (kLines) KeepAddress(lines);
  // The scales of a segment's steps, where they take arithmetic: of all steps at once.
  constexpr bool kStepScales = !IO::kIsK && kLines;
  // Those of a segment's lanes, where registers are few.
  constexpr bool kLaneScales = IO::kIsK && kLines && kRows > 1;
  alignas(64) [[maybe_unused]] float scale_buffer[kStepScales || kLaneScales ? kMaxScaledCols * kTileKeys : 1];
  [[maybe_unused]] float* step_scales = scale_buffer;
  if constexpr (kStepScales || kLaneScales) KeepAddress(step_scales);

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
#define HEADLANE_STEP_SCALES_(r, c)                                                \
  if constexpr (kStepScales && c < kCols && c % IO::kScaleCols == 0) {             \
    StoreScales<Tile>(d, scales##c, step_scales + c / IO::kScaleCols * kTileKeys); \
  }
    HEADLANE_COLS_(HEADLANE_STEP_SCALES_, 0)
#define HEADLANE_LANE_SCALES_(r, c) \
  if constexpr (kLaneScales && c < kCols) hn::Store(scale##c, d, step_scales + c * kTileKeys);
    HEADLANE_COLS_(HEADLANE_LANE_SCALES_, 0)
    // Column c at step k.
#define HEADLANE_LOAD_(kStep, c, k, to)                                           \
  if constexpr (!IO::kIsK && c % IO::kScaleCols == 0) {                           \
    if constexpr (kStepScales) {                                                  \
      scale = hn::Set(d, step_scales[c / IO::kScaleCols * kTileKeys + k]);        \
    } else {                                                                      \
      scale = Tile::template StepScale<kStep>(d, scales##c, k);                   \
    }                                                                             \
  }                                                                               \
  if constexpr (kLines) {                                                         \
    const auto& put = lines[turn_line * (kCols / 2) + c / 2];                     \
    if constexpr (kLaneScales) {                                                  \
      to = put.template Take<kStep, c % 2>(d, step_scales + c * kTileKeys);       \
    } else {                                                                      \
      to = put.template Take<kStep, c % 2>(d, IO::kIsK ? scale##c : scale);       \
    }                                                                             \
  } else {                                                                        \
    to = Tile::template Load<kStep>(d, b##c + line, IO::kIsK ? scale##c : scale); \
  }                                                                               \
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
#define HEADLANE_LINE_(k)                                   \
  if constexpr (Tile::kSteps == 1) {                        \
    HEADLANE_STEP_(0, k)                                    \
  } else if constexpr (kRows == 1 && IO::kIsK && !kLines) { \
    const int64_t step = k;                                 \
    const Factor av0 = LoadFactor(d, a0 + step);            \
    const Factor av1 = LoadFactor(d, a0 + step + 1);        \
    HEADLANE_COLS_(HEADLANE_TWO_STEPS_, 0)                  \
  } else {                                                  \
    HEADLANE_STEP_(0, k)                                    \
    HEADLANE_STEP_(1, (k) + 1)                              \
  }
#define HEADLANE_PREFETCH_(r, c)                                                     \
  if constexpr (c < kCols && c % kColsPerTile == 0) {                                \
    for (int64_t ahead = 0; ahead < kTurnLines * Tile::kLine; ahead += kCacheLine) { \
      __builtin_prefetch(b##c + first_line + kScaledAhead<Tile> + ahead, 0, 3);      \
    }                                                                                \
  }
#define HEADLANE_PUTTING_                                        \
  [[maybe_unused]] const auto putting0 = LoadPutting<Tile, 0>(); \
  [[maybe_unused]] const auto putting1 = LoadPutting<Tile, 1>(); \
  [[maybe_unused]] const auto putting2 = LoadPutting<Tile, 2>();
#define HEADLANE_PUT_LINE_(r, c)                                                                       \
  if constexpr (kLines && c < kCols && c % 2 == 0) {                                                   \
    Tile::PutLine(putting0, putting1, putting2, b##c + line, lines + turn_line * (kCols / 2) + c / 2); \
  }
    const int64_t k_len = io.Length(segment);
    int64_t k = 0, first_line = 0;
    for (; k + kTurn <= k_len; k += kTurn, first_line += kTurnLines * Tile::kLine) {
      HEADLANE_COLS_(HEADLANE_PREFETCH_, 0)
      if constexpr (kLines) {
        HEADLANE_PUTTING_
#pragma GCC unroll 8
        for (int64_t turn_line = 0; turn_line < kTurnLines; ++turn_line) {
          const int64_t line = first_line + turn_line * Tile::kLine;
          HEADLANE_COLS_(HEADLANE_PUT_LINE_, 0)
        }
      }
#pragma GCC unroll 8
      for (int64_t turn_line = 0; turn_line < kTurnLines; ++turn_line) {
        [[maybe_unused]] const int64_t line = first_line + turn_line * Tile::kLine;
        HEADLANE_LINE_(k + turn_line * Tile::kSteps)
      }
    }
    if constexpr (IO::kIsK) {
      int64_t line = first_line;
      [[maybe_unused]] constexpr int64_t turn_line = 0;
      for (; k + Tile::kSteps <= k_len; k += Tile::kSteps, line += Tile::kLine) {
        HEADLANE_PUTTING_
        HEADLANE_COLS_(HEADLANE_PUT_LINE_, 0)
        HEADLANE_LINE_(k)
      }
      // The last feature alone: a link with a 0 from the padding could change the sign of a zero, or make a NaN.
      if constexpr (Tile::kSteps == 2) {
        if (k < k_len) {
          HEADLANE_PUTTING_
          HEADLANE_COLS_(HEADLANE_PUT_LINE_, 0)
          HEADLANE_STEP_(0, k)
        }
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
#undef HEADLANE_PUTTING_
#undef HEADLANE_PUT_LINE_
#undef HEADLANE_STEP_SCALES_
#undef HEADLANE_LANE_SCALES_
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

template <class Tile>
void ScaledQk(const QkArgs& args) noexcept {
  if (args.rows <= 0) return;
  ScaledMultiply<ScaledQkIO<Tile>>(args, args.num_tiles * VectorsPerTile());
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
void ScaledPv(const PvArgs& args) noexcept {
  if (args.rows <= 0) return;
  if (args.live != nullptr) return ScaledPvSelected<Tile>(args);
  const int64_t num_cols = args.num_stripes * VectorsPerTile();
  if (!args.stream || args.rows > static_cast<int64_t>(std::size(kScaledOnes))) {
    return ScaledMultiply<ScaledPvIO<Tile>>(args, num_cols);
  }
  PvArgs part = args;
  for (int64_t t = 0; t < args.num_tiles; t += kScaledTilesAtOnce) {
    part.num_tiles = std::min(kScaledTilesAtOnce, args.num_tiles - t);
    part.w = args.w + t * kTileKeys;
    part.v_tiles = args.v_tiles + t;
    if (t > 0) part.c = kScaledOnes;
    ScaledMultiply<ScaledPvIO<Tile>>(part, num_cols);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_SCALED_KERNELS_INL_H_
