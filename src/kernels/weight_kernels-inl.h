// Linear layers over block-quantised tiles: for few rows straight from the codes, and their expansion to f32 panels,
// which many rows use.
//
// Separate from micro_kernel-inl.h, whose operands are numbers: here expanding a vector takes three instructions beside
// the FMA of a row, and registers for scales and minima. What is computed is the same, one chain of FMAs per lane over
// the inputs in ascending order, on the weights as they are defined.
//
// Accumulators are named variables, because SVE's vectors have no size at compile time.
#if defined(HEADLANE_SRC_KERNELS_WEIGHT_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_WEIGHT_KERNELS_INL_H_
#undef HEADLANE_SRC_KERNELS_WEIGHT_KERNELS_INL_H_
#else
#define HEADLANE_SRC_KERNELS_WEIGHT_KERNELS_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/micro_kernel-inl.h"
#include "kernels/weight_codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Several tiles are read at once, which is too much for the prefetchers of the hardware: what is so many bytes behind
// is fetched meanwhile, into the second level of caches, from where the hardware goes on. A little in every turn of the
// loops: a group's at once fill the queue of misses, at which all loads wait then (Zen 3, 8-bit codes: 20 GB/s on a
// core, against 15).
inline constexpr int64_t kWeightsAhead = 4096;

inline constexpr int kMaxWeightCols = 4;

// Columns of a block. A row's chain takes the latency of an FMA per input: 4 chains hide it behind the expansion. With
// 16 registers blocks of several rows have no room for scales and minima of more.
constexpr int WeightCols(int rows) {
  if (kNumRegisters > 16) return rows <= 4 ? 4 : 2;
  return rows == 1 ? 4 : rows <= 4 ? 2 : 1;
}

#define HEADLANE_ROWS_(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#define HEADLANE_COLS_(M, r) M(r, 0) M(r, 1) M(r, 2) M(r, 3)

// acc[r][c] = fma(x[r][k], w[c][k], acc[r][c]), k ascending, for columns (vectors) [col, col + kCols) of the tiles.
// kRows 0: the weights of one tile go to y, [k_len][16].
// Returns whether the sums are right, which those of Expand::kAdd may not be.
template <int kRows, int kCols, class Format, Expand kExpand>
HWY_INLINE bool MultiplyWeights(const WeightArgs& args, int64_t col) {
  static_assert(0 <= kRows && kRows <= kMaxWeightRows && 1 <= kCols && kCols <= kMaxWeightCols);
  constexpr WeightTileInfo kInfo = Format::kInfo;
  constexpr int kWords = kInfo.words();
  // Bytes of a word, at whose bottom codes are; or places of one that is not cut into bytes.
  constexpr int kBytes = kInfo.is_full() ? 4 : 1;
  constexpr int kSteps = kInfo.places() / kBytes;
  const DF d;
  const DI di;
  const int64_t per_tile = VectorsPerTile(), lanes = kTileKeys / per_tile;
#define HEADLANE_DECLARE_(r, c) [[maybe_unused]] VF acc##r##c = hn::Zero(d);
#define HEADLANE_DECLARE_ROW_(r)       \
  HEADLANE_COLS_(HEADLANE_DECLARE_, r) \
  [[maybe_unused]] const float* HWY_RESTRICT x##r = kRows == 0 ? nullptr : args.x + r * args.x_pitch;
  HEADLANE_ROWS_(HEADLANE_DECLARE_ROW_)
  // Columns of the same tile are neighbours: one address for them all.
  const uint8_t* tile = nullptr;
#define HEADLANE_TILE_(r, c)                                                                                           \
  [[maybe_unused]] int64_t lane##c = 0;                                                                                \
  if constexpr (c < kCols) {                                                                                           \
    if constexpr (kWholeTiles<kCols>) {                                                                                \
      if constexpr (c % kColsPerTile == 0) tile = args.w + (col + c) / kColsPerTile * args.tile_bytes;                 \
      lane##c = c % kColsPerTile * (kTileKeys / kColsPerTile);                                                         \
    } else {                                                                                                           \
      tile = args.w +                                                                                                  \
             static_cast<int64_t>(static_cast<uint64_t>(col + c) / static_cast<uint64_t>(per_tile)) * args.tile_bytes; \
      lane##c = static_cast<int64_t>(static_cast<uint64_t>(col + c) % static_cast<uint64_t>(per_tile)) * lanes;        \
    }                                                                                                                  \
  }                                                                                                                    \
  [[maybe_unused]] const uint8_t* HWY_RESTRICT block##c = tile;
  HEADLANE_COLS_(HEADLANE_TILE_, 0)
  // Where the tiles of this block end those of the next one follow.
  [[maybe_unused]] const int64_t skip =
      std::max<int64_t>(kCols / std::max<int64_t>(per_tile, 1) - 1, 0) * args.tile_bytes;
  static constexpr float kPlaceStep = PowerOf2(-kInfo.bits);
  static constexpr float kBack = PowerOf2(kInfo.bits * kSteps);

  const int64_t num_blocks = args.k_len / kInfo.block_len();
  float* panel = kRows == 0 ? args.y : nullptr;
  for (int64_t block = 0; block < num_blocks; ++block) {
    [[maybe_unused]] const int64_t position = (block + 1) * kInfo.block_bytes + kWeightsAhead;
    [[maybe_unused]] const int64_t ahead = kWeightsAhead + (position > args.tile_bytes ? skip : 0);
    for (int64_t group = 0; group < kInfo.num_groups; ++group) {
      constexpr int64_t kGroupBytes = kInfo.block_bytes / kInfo.num_groups;
      constexpr int64_t kTurnBytes = CeilDiv(kGroupBytes, int64_t{kInfo.places()});
      [[maybe_unused]] int64_t next = ahead + group * kGroupBytes;

#define HEADLANE_SCALES_(r, c)                                                        \
  [[maybe_unused]] const uint8_t* words##c = nullptr;                                 \
  [[maybe_unused]] VF scale##c = hn::Zero(d);                                         \
  [[maybe_unused]] VF min##c = hn::Zero(d);                                           \
  if constexpr (c < kCols) {                                                          \
    words##c = block##c + kInfo.codes_at + group * kInfo.group_bytes() + lane##c * 4; \
    scale##c = Format::Scale(d, block##c, group, lane##c);                            \
    if constexpr (kAddsToCodes<Format, kExpand>)                                      \
      min##c = AddendOf<Format, kExpand>(d, block##c, group, lane##c, scale##c);      \
  }
      HEADLANE_COLS_(HEADLANE_SCALES_, 0)

      // One link of every chain: HEADLANE_WEIGHT_(c, to) expands the weights of column c, of input x[k].
#define HEADLANE_BROADCAST_(r, k)          \
  [[maybe_unused]] VF xv##r = hn::Zero(d); \
  if constexpr (r < kRows) xv##r = hn::Set(d, x##r[k]);
#define HEADLANE_FMA_BY_COL_(c, r) \
  if constexpr (r < kRows) MulAddTo(acc##r##c, xv##r, w);
#define HEADLANE_COL_(k, c)                               \
  if constexpr (c < kCols) {                              \
    VF w;                                                 \
    HEADLANE_WEIGHT_(c, w)                                \
    if constexpr (kRows == 0) {                           \
      hn::Store(w, d, panel + (k) * kTileKeys + lane##c); \
    } else {                                              \
      KeepInRegister(w);                                  \
      HEADLANE_FMA_BY_COL_(c, 0)                          \
      HEADLANE_FMA_BY_COL_(c, 1)                          \
      HEADLANE_FMA_BY_COL_(c, 2)                          \
      HEADLANE_FMA_BY_COL_(c, 3)                          \
      HEADLANE_FMA_BY_COL_(c, 4)                          \
      HEADLANE_FMA_BY_COL_(c, 5)                          \
      HEADLANE_FMA_BY_COL_(c, 6)                          \
      HEADLANE_FMA_BY_COL_(c, 7)                          \
    }                                                     \
  }
#define HEADLANE_EXPAND_(r, c)            \
  [[maybe_unused]] VF w##c = hn::Zero(d); \
  if constexpr (c < kCols) {              \
    HEADLANE_WEIGHT_(c, w##c)             \
    KeepInRegister(w##c);                 \
  }
#define HEADLANE_FMA_(r, c) \
  if constexpr (c < kCols) MulAddTo(acc##r##c, xv, w##c);
#define HEADLANE_ROW_(k, r)            \
  if constexpr (r < kRows) {           \
    const VF xv = hn::Set(d, x##r[k]); \
    HEADLANE_COLS_(HEADLANE_FMA_, r)   \
  }
// One row: two columns side by side, for whose instructions there are pipes at the same time.
#define HEADLANE_PAIR_(c0, c1)      \
  if constexpr (c1 < kCols) {       \
    HEADLANE_EXPAND_(0, c0)         \
    HEADLANE_EXPAND_(0, c1)         \
    MulAddTo(acc0##c0, xv0, w##c0); \
    MulAddTo(acc0##c1, xv0, w##c1); \
  }
#define HEADLANE_STEP_(k)                       \
  if constexpr (kRows == 1 && kCols % 2 == 0) { \
    HEADLANE_BROADCAST_(0, k)                   \
    HEADLANE_PAIR_(0, 1)                        \
    HEADLANE_PAIR_(2, 3)                        \
  } else if constexpr (kRows > kCols) {         \
    HEADLANE_COLS_(HEADLANE_EXPAND_, 0)         \
    HEADLANE_ROW_(k, 0)                         \
    HEADLANE_ROW_(k, 1)                         \
    HEADLANE_ROW_(k, 2)                         \
    HEADLANE_ROW_(k, 3)                         \
    HEADLANE_ROW_(k, 4)                         \
    HEADLANE_ROW_(k, 5)                         \
    HEADLANE_ROW_(k, 6)                         \
    HEADLANE_ROW_(k, 7)                         \
  } else {                                      \
    HEADLANE_BROADCAST_(0, k)                   \
    HEADLANE_BROADCAST_(1, k)                   \
    HEADLANE_BROADCAST_(2, k)                   \
    HEADLANE_BROADCAST_(3, k)                   \
    HEADLANE_BROADCAST_(4, k)                   \
    HEADLANE_BROADCAST_(5, k)                   \
    HEADLANE_BROADCAST_(6, k)                   \
    HEADLANE_BROADCAST_(7, k)                   \
    HEADLANE_COLS_(HEADLANE_COL_, k)            \
  }
#define HEADLANE_ADVANCE_(r) \
  if constexpr (r < kRows) x##r += num_inputs;
#define HEADLANE_NEXT_INPUTS_(n)                      \
  {                                                   \
    constexpr int64_t num_inputs = n;                 \
    HEADLANE_ROWS_(HEADLANE_ADVANCE_)                 \
    if constexpr (kRows == 0) panel += n * kTileKeys; \
  }
#define HEADLANE_NEXT_PLACE_(r, c) \
  if constexpr (c < kCols) scale##c = hn::Mul(scale##c, place_step);
#define HEADLANE_NEXT_BYTE_(r, c) \
  if constexpr (c < kCols) ++words##c;
#define HEADLANE_BYTES_BACK_(r, c) \
  if constexpr (c < kCols) words##c -= kBytes;
#define HEADLANE_PREFETCH_(r, c)                                          \
  if constexpr (c < kCols && c % kColsPerTile == 0) {                     \
    _Pragma("GCC unroll 16") for (int64_t i = 0; i < kTurnBytes; i += 64) \
        __builtin_prefetch(block##c + next + i, 0, 2);                    \
  }
      // Compilers would load all words of a group before the loop over places, and keep them on the stack.
#define HEADLANE_KEEP_(r, c)                                     \
  if constexpr (c < kCols) {                                     \
    if constexpr (kWholeTiles<kCols> && c % kColsPerTile != 0) { \
      words += kWordBytes / kColsPerTile;                        \
    } else {                                                     \
      KeepAddress(words##c);                                     \
      words = words##c;                                          \
    }                                                            \
    words##c = words;                                            \
  }
      const uint8_t* words = nullptr;
      VI mask = OneRegister(hn::Set(di, static_cast<int32_t>((1u << kInfo.bits) - 1)));
      [[maybe_unused]] VI offset =
          kAddsToCodes<Format, kExpand> ? hn::Zero(di) : OneRegister(hn::Set(di, kInfo.offset));
      const int64_t num_steps = kRows > 1 && kSteps > 1 ? Turns(kSteps) : kSteps;
#pragma GCC unroll 1
      for (int64_t step = 0; step < num_steps; ++step) {
        // Of four bytes' loads the code would be longer, and no faster.
#pragma GCC unroll 1
        for (int64_t byte = 0; byte < kBytes; ++byte) {
#define HEADLANE_WEIGHT_(c, to) \
  to = WeightsAtPlace<Format, kExpand>(d, LoadWords(di, words##c + word * kWordBytes), mask, scale##c, min##c, offset);
          HEADLANE_COLS_(HEADLANE_PREFETCH_, 0)
          next += kTurnBytes;
          HEADLANE_COLS_(HEADLANE_KEEP_, 0)
#pragma GCC unroll 8
          for (int word = 0; word < kWords; ++word) {
            HEADLANE_STEP_(word)
          }
#undef HEADLANE_WEIGHT_
          HEADLANE_NEXT_INPUTS_(kWords)
          if constexpr (kBytes > 1) {
            HEADLANE_COLS_(HEADLANE_NEXT_BYTE_, 0)
          }
        }
        if constexpr (kSteps > 1) {
          const VF place_step = ReadConstant(d, &kPlaceStep);
          HEADLANE_COLS_(HEADLANE_NEXT_PLACE_, 0)
          mask = hn::ShiftLeft<kInfo.bits>(mask);
          if constexpr (!kAddsToCodes<Format, kExpand>) offset = hn::ShiftLeft<kInfo.bits>(offset);
          if constexpr (kBytes > 1) {
            HEADLANE_COLS_(HEADLANE_BYTES_BACK_, 0)
          }
        }
      }
      if constexpr (kNumLeft<Format> > 0) {
        const VF back = ReadConstant(d, &kBack);
#define HEADLANE_SCALE_BACK_(r, c) \
  if constexpr (c < kCols) scale##c = hn::Mul(scale##c, back);
        HEADLANE_COLS_(HEADLANE_SCALE_BACK_, 0)
#undef HEADLANE_SCALE_BACK_
        HEADLANE_COLS_(HEADLANE_KEEP_, 0)
#define HEADLANE_WEIGHT_(c, to) to = WeightsLeft<Format, kExpand, 0>(d, words##c, scale##c, min##c);
        HEADLANE_STEP_(0)
#undef HEADLANE_WEIGHT_
#define HEADLANE_WEIGHT_(c, to) to = WeightsLeft<Format, kExpand, 1>(d, words##c, scale##c, min##c);
        if constexpr (kNumLeft<Format> > 1) {
          HEADLANE_STEP_(1)
        }
#undef HEADLANE_WEIGHT_
        HEADLANE_NEXT_INPUTS_(kNumLeft<Format>)
      }
    }
#define HEADLANE_NEXT_BLOCK_(r, c) \
  if constexpr (c < kCols) block##c += kInfo.block_bytes;
    HEADLANE_COLS_(HEADLANE_NEXT_BLOCK_, 0)
  }
  // The last tile may be padded: what is behind the last feature is not written.
#define HEADLANE_STORE_(r, c)                                       \
  if constexpr (r < kRows && c < kCols) {                           \
    const int64_t left = args.num_features - (col + c) * lanes;     \
    float* const y = args.y + r * args.y_pitch + (col + c) * lanes; \
    if (HWY_LIKELY(left >= lanes)) {                                \
      hn::StoreU(acc##r##c, d, y);                                  \
    } else if (left > 0) {                                          \
      hn::StoreN(acc##r##c, d, y, static_cast<size_t>(left));       \
    }                                                               \
  }
#define HEADLANE_STORE_ROW_(r) HEADLANE_COLS_(HEADLANE_STORE_, r)
  HEADLANE_ROWS_(HEADLANE_STORE_ROW_)
  bool are_right = true;
#define HEADLANE_CHECK_(r, c)                                                         \
  if constexpr (r < kRows && c < kCols) {                                             \
    are_right = are_right && hn::AllTrue(d, hn::Gt(hn::Abs(acc##r##c), hn::Zero(d))); \
  }
#define HEADLANE_CHECK_ROW_(r) HEADLANE_COLS_(HEADLANE_CHECK_, r)
  if constexpr (kExpand == Expand::kAdd && !kInfo.has_min) {
    HEADLANE_ROWS_(HEADLANE_CHECK_ROW_)
  }
  return are_right;

#undef HEADLANE_DECLARE_
#undef HEADLANE_DECLARE_ROW_
#undef HEADLANE_TILE_
#undef HEADLANE_PREFETCH_
#undef HEADLANE_SCALES_
#undef HEADLANE_BROADCAST_
#undef HEADLANE_FMA_BY_COL_
#undef HEADLANE_COL_
#undef HEADLANE_EXPAND_
#undef HEADLANE_FMA_
#undef HEADLANE_ROW_
#undef HEADLANE_PAIR_
#undef HEADLANE_STEP_
#undef HEADLANE_ADVANCE_
#undef HEADLANE_NEXT_INPUTS_
#undef HEADLANE_NEXT_PLACE_
#undef HEADLANE_NEXT_BYTE_
#undef HEADLANE_BYTES_BACK_
#undef HEADLANE_KEEP_
#undef HEADLANE_NEXT_BLOCK_
#undef HEADLANE_STORE_
#undef HEADLANE_STORE_ROW_
#undef HEADLANE_CHECK_
#undef HEADLANE_CHECK_ROW_
}

#undef HEADLANE_ROWS_
#undef HEADLANE_COLS_

// A row's columns [col, end), and whatever else their tiles have, without haste.
template <class Format>
HWY_NOINLINE void WeightColumnsByDefinition(const WeightArgs& args, int64_t row, int64_t col, int64_t end) {
  constexpr int kCols = std::min(kColsPerTile, kMaxWeightCols);
  WeightArgs one = args;
  one.x += row * args.x_pitch;
  one.y += row * args.y_pitch;
  for (col -= col % kCols; col < end; col += kCols)
    (void)MultiplyWeights<1, kCols, Format, Expand::kMultiply>(one, col);
}

// Columns [col, end), a multiple of a tile's.
template <int kRows, int kCols, class Format>
HWY_INLINE void WeightColumnsFrom(const WeightArgs& args, int64_t col, int64_t end) {
  for (; col + kCols <= end; col += kCols) {
    // Four rows fill 16 registers, and codes of 8 bits have the longest turns: there addends go to the stack.
    constexpr bool kIsFull = kRows == 4 && kNumRegisters == 16 && Format::kInfo.bits == 8;
    constexpr Expand kExpand = kIsFull ? Expand::kMultiply : kQuickExpand;
    if (HWY_LIKELY((MultiplyWeights<kRows, kCols, Format, kExpand>(args, col)))) continue;
    if constexpr (kExpand == Expand::kAdd && !Format::kInfo.has_min) {
      for (int64_t row = 0; row < kRows; ++row) WeightColumnsByDefinition<Format>(args, row, col, col + kCols);
    }
  }
  if constexpr (kColsPerTile % kCols != 0) {
    if (col < end) WeightColumnsFrom<kRows, kCols / 2, Format>(args, col, end);
  }
}

// As a functor because lambdas would need the target's attribute; not inlined because one function with all numbers of
// rows takes compilers minutes.
template <class Format>
struct AllWeightColumns {
  const WeightArgs& args;
  int64_t num_cols;
  template <int kRows>
  HWY_NOINLINE void operator()(std::integral_constant<int, kRows>) const {
    WeightColumnsFrom<kRows, WeightCols(kRows), Format>(args, 0, num_cols);
  }
};

template <class Format>
void WeightsTimesRows(const WeightArgs& args) noexcept {
  if (args.rows <= 0) return;
  WithRows<1, kMaxWeightRows>(args.rows, AllWeightColumns<Format>{args, args.num_tiles * VectorsPerTile()});
}

// A column at a time would read every line twice where a tile has two.
template <class Format>
void ExpandWeights(const ExpandArgs& args) noexcept {
  constexpr int kCols = std::min(kColsPerTile, kMaxWeightCols);
  WeightArgs tile = {};
  tile.w =
      static_cast<const uint8_t*>(args.tile) + args.k_begin / Format::kInfo.block_len() * Format::kInfo.block_bytes;
  tile.k_len = args.k_end - args.k_begin;
  tile.y = args.out;
  for (int64_t col = 0; col < VectorsPerTile(); col += kCols) {
    (void)MultiplyWeights<0, kCols, Format, Expand::kMultiply>(tile, col);
  }
}

template <class Format>
WeightKernels WeightTable() {
  return {&WeightsTimesRows<Format>, &ExpandWeights<Format>};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_WEIGHT_KERNELS_INL_H_
