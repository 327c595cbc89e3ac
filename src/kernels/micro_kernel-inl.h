// The register-blocked micro-kernel that everything is made of: scores, weighted sums and linear layers.
//
// It computes kRows x kCols accumulators, a column being one vector of a 16-lane tile:
//   acc[r][c] = fma(a[r][k], b[c][k], acc[r][c])      k ascending
// so each lane of each accumulator is one chain of FMAs in the canonical order, whatever kRows, kCols and the vector
// width are. Register blocking (Goto and van de Geijn 2008, BLIS) is therefore free to differ per target and per call.
//
// Accumulators are named variables and not an array: SVE's vectors have no size at compile time. `if constexpr` drops
// the unused.
#if defined(HEADLANE_SRC_KERNELS_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_MICRO_KERNEL_INL_H_
#undef HEADLANE_SRC_KERNELS_MICRO_KERNEL_INL_H_
#else
#define HEADLANE_SRC_KERNELS_MICRO_KERNEL_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/tile_codec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile's 16 lanes are one or more of these vectors in f32.
using DF = hn::CappedTag<float, kTileKeys>;
using VF = hn::Vec<DF>;

// Vectors per tile: a constant except on SVE of unknown length.
HWY_INLINE HWY_MAYBE_UNUSED int64_t VectorsPerTile() { return kTileKeys / static_cast<int64_t>(hn::Lanes(DF())); }

// Vector registers: what limits the block of accumulators.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kNumRegisters = 32;
#else
inline constexpr int kNumRegisters = 16;
#endif

// mr: 6 rows x 2 columns on 16 registers, 6 x 4 on 32. 12 and 24 accumulators cover the latency of 2 FMAs a cycle (8
// chains) and leave room for the columns of b and one broadcast of a.
inline constexpr int kMaxRows = 6;

// A block needs rows * cols accumulators, the shorter side once more, and one register for the longer side.
constexpr int RegistersOfBlock(int rows, int cols) { return rows * cols + std::min(rows, cols) + 1; }

// nr in vectors: how many columns fit beside the rows. Few rows leave room for more columns, which is what hides the
// latency of the FMAs then. 8 at most: more streams than that confuse the hardware's prefetchers.
constexpr int MaxCols(int rows) {
  int cols = 1;
  while (cols < 8 && RegistersOfBlock(rows, cols + 1) <= kNumRegisters) ++cols;
  // A block has 8 tiles: powers of two leave no tail. Three instead of two is worth its tail, five instead of four is
  // not.
  return cols >= 8 ? 8 : cols >= 4 ? 4 : cols;
}

// Splits `rows` into groups of at most `most` that differ by one row at most: 8 rows are 4 + 4, never 6 + 2. Two rows
// alone would have too few chains.
struct RowGroups {
  int64_t num, base, extra;
  RowGroups(int64_t rows, int64_t most) : num(CeilDiv(rows, most)), base(rows / num), extra(rows % num) {}
  int64_t size(int64_t group) const { return base + (group < extra ? 1 : 0); }
};

// Calls f(std::integral_constant<int, n>) for kFirst <= n <= kLast: each size is a function of its own, which takes
// compilers long, so that callers leave out what they never have.
template <int kFirst = 1, int kLast = kMaxRows, class F>
HWY_INLINE void WithRows(int64_t n, const F& f) {
  if constexpr (kFirst < kLast) {
    if (n != kFirst) return WithRows<kFirst + 1, kLast>(n, f);
  }
  f(std::integral_constant<int, kFirst>());
}

// Columns per tile; on SVE of unknown length the least that there can be.
inline constexpr int kColsPerTile = static_cast<int>(kTileKeys / hn::MaxLanes(DF()));

// Compilers fold a load into each FMA that uses it and so load b once per row; two loads a cycle are then the limit and
// not the FMAs.
HWY_INLINE void KeepInRegister([[maybe_unused]] VF& v) {
#if HWY_ARCH_X86 && !HWY_COMPILER_MSVC
  asm("" : "+v"(v.raw));
#elif HWY_ARCH_ARM_A64 && !HWY_TARGET_IS_SVE && !HWY_COMPILER_MSVC
  asm("" : "+w"(v.raw));
#endif
}

// Compilers take the addresses of all lines out of the loop over segments, as so many offsets that they keep them, and
// vectors too, on the stack. An address that they cannot see through stays one register.
template <class T>
HWY_INLINE void KeepAddress([[maybe_unused]] T*& p) {
#if !HWY_COMPILER_MSVC
  asm("" : "+r"(p));
#endif
}

template <class Tile, int kStep, bool kIsTight, class T>
HWY_INLINE VF LoadB(DF d, const T* line) {
  if constexpr (kIsTight && requires { Tile::template LoadInTightBlock<kStep>(d, line); }) {
    return Tile::template LoadInTightBlock<kStep>(d, line);
  } else {
    return Tile::template Load<kStep>(d, line);
  }
}

// acc = a * b + acc. Left to themselves, compilers overwrite a or b in some FMAs of a long loop, and then move or spill
// accumulators: with g++ 12 on Zen 3 a loop of four steps was 6 % slower than one of a single step, and for SVE_256
// blocks of 24 accumulators spilled.
HWY_INLINE void MulAddTo(VF& acc, VF a, VF b) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && HWY_NATIVE_FMA && !HWY_COMPILER_MSVC
  asm("vfmadd231ps %2, %1, %0" : "+v"(acc.raw) : "v"(a.raw), "v"(b.raw));
#elif HWY_TARGET_IS_SVE
  asm("fmla %0.s, %3/m, %1.s, %2.s" : "+w"(acc) : "w"(a), "w"(b), "Upl"(svptrue_b32()));
#else
  acc = hn::MulAdd(a, b, acc);
#endif
}

// The factor of a row, the same for all lanes. NEON multiplies by a lane of a register and so needs no broadcast.
#undef HEADLANE_MULTIPLIES_BY_LANE
#if HWY_ARCH_ARM_A64 && !HWY_TARGET_IS_SVE && !HWY_COMPILER_MSVC
#define HEADLANE_MULTIPLIES_BY_LANE 1
using Factor = float;
HWY_INLINE Factor LoadFactor(DF, const float* p) { return *p; }
HWY_INLINE void MulAddTo(VF& acc, Factor a, VF b) {
  asm("fmla %0.4s, %2.4s, %1.s[0]" : "+w"(acc.raw) : "w"(a), "w"(b.raw));
}
#else
#define HEADLANE_MULTIPLIES_BY_LANE 0
using Factor = VF;
HWY_INLINE Factor LoadFactor(DF d, const float* p) { return hn::Set(d, *p); }
#endif

// Both steps of a line of some tiles read the same words. Compilers keep these from the first step to the second, one
// register for each column: where a block has not that many, and one for the mask of the second step, it reads them
// again. (On x86 the tile sees to it.)
template <class Tile, int kRows, int kCols>
constexpr bool ReadsLinesTwice() {
  if constexpr (HWY_ARCH_ARM_A64 && Tile::kSteps == 2) {
    return Tile::kPack == 2 && RegistersOfBlock(kRows, kCols) + kCols + 1 > kNumRegisters;
  } else {
    return false;
  }
}

// Whether a step holds all columns of b and takes the rows of a one by one, instead of the other way round: where it
// has fewer of them; and on NEON where they fit, as two loads side by side are one instruction.
constexpr bool HoldsB(int rows, int cols) {
  return rows >= cols || (HEADLANE_MULTIPLIES_BY_LANE && rows * cols + cols + 1 <= kNumRegisters);
}

template <bool kForget>
HWY_INLINE void ForgetLoads() {
#if !HWY_COMPILER_MSVC
  if constexpr (kForget) asm("" ::: "memory");
#endif
}

// Tiles that come from memory are read in order of address, and so far ahead: on Zen 3 20.5 GB/s on one core, against
// 17 without and 17 at 16 KiB. Behind the end of memory a prefetch does nothing.
inline constexpr int64_t kPrefetchBytes = 1024;

template <class T>
HWY_INLINE HWY_MAYBE_UNUSED const T* AheadInTiles(const T* line) {
  return line + kPrefetchBytes / static_cast<int64_t>(sizeof(T));
}

// What a micro-kernel prefetches meanwhile.
enum class Prefetch {
  kNone,
  kLine,     // what is kPrefetchBytes behind each line of b that it uses
  kInOrder,  // as many lines as it uses, in order of address, whatever the order in which it uses lines of several
             // tiles
  kNext,     // its share of what is used next: with many rows a tile is used for so long that memory would idle
};

// Whether a block of kCols columns is whole tiles, always.
template <int kCols>
inline constexpr bool kWholeTiles = !HWY_HAVE_SCALABLE && kCols % kColsPerTile == 0;

// Tiles that kCols columns are, or are a part of.
template <int kCols>
inline constexpr int64_t kTilesOf = std::max(1, kCols / kColsPerTile);

// Columns for few rows that come from memory: one tile, which is then read in order of address, but as many as it takes
// for 8 chains, which hide the latency of 2 FMAs a cycle: 3 rows of f16 on Zen 3 take 1.8 cycles per vector of 8 in two
// tiles at once, and 2.4 in one, from L2.
constexpr int FewRowsCols(int rows) {
  int cols = std::min(kColsPerTile, MaxCols(rows));
  while (!HWY_HAVE_SCALABLE && cols % kColsPerTile == 0 && rows * cols < 8 && 2 * cols <= MaxCols(rows)) cols *= 2;
  return cols;
}

// Which cache an io prefetches to, as __builtin_prefetch takes it: L1 unless it says otherwise.
template <class IO>
constexpr int PrefetchTo() {
  if constexpr (requires { IO::kPrefetchTo; }) {
    return IO::kPrefetchTo;
  } else {
    return 3;
  }
}

#define HEADLANE_ROWS_(M) M(0) M(1) M(2) M(3) M(4) M(5)
#define HEADLANE_COLS_(M, r) M(r, 0) M(r, 1) M(r, 2) M(r, 3) M(r, 4) M(r, 5) M(r, 6) M(r, 7)

// `io` says where operands are and what to do with the result:
//   Tile                           the tile codec of b
//   kLength                        k_len, if it is known to compilers; else 0
//   kEvenLength                    k_len is a multiple of Tile::kSteps
//   const float* A(segment)        row 0 of a: k_len floats; the others stand APitch() floats apart
//   const T* B(c, segment)         column c of b: line i at + i * LineStep(), aligned as Tile::Load wants it
//   int64_t LineStep()             elements between lines
//   const T* Ahead(const T*)       kLine: what to prefetch when the line at that address is used; to where: PrefetchTo
//   const char* InOrder<kCols>(segment)   kInOrder: where the prefetches begin that go with this segment
//   kLineBytes                     kInOrder: bytes of a line of a tile
//   const char* Next(c, segment)   kNext: where the prefetches begin that go with column c
//   int64_t NextBytes(rows)        kNext: bytes between them for a block of so many rows, one for each line of b
//   VF Load(d, r, c)               first value of an accumulator
//   void Store(d, r, c, VF)        last value of it
// Segments continue the chain with other addresses (the tiles of a block, for the weighted sum).
template <int kRows, int kCols, Prefetch kPrefetch, class IO>
HWY_INLINE void MicroKernel(const IO& io, int64_t num_segments, int64_t length) {
  static_assert(1 <= kRows && kRows <= kMaxRows && 1 <= kCols && kCols <= 8);
  static_assert(RegistersOfBlock(kRows, kCols) <= kNumRegisters);
  [[maybe_unused]] constexpr bool kIsTight = RegistersOfBlock(kRows, kCols) == kNumRegisters;
  using Tile = typename IO::Tile;
  using T = typename Tile::T;
  constexpr bool kHoldsB = HoldsB(kRows, kCols);
  constexpr bool kReadsTwice = ReadsLinesTwice<Tile, kRows, kCols>();
  [[maybe_unused]] constexpr int kPrefetchTo = PrefetchTo<IO>();
  const DF d;
  const int64_t k_len = IO::kLength != 0 ? IO::kLength : length;
  // Steps per turn of the loop, whose own instructions are then few beside the FMAs.
  constexpr int64_t kTurn = IO::kLength != 0 ? 8 : 4;
  static_assert(IO::kLength % kTurn == 0 && kTurn % Tile::kSteps == 0);
#define HEADLANE_DECLARE_(r, c)                \
  [[maybe_unused]] VF acc##r##c = hn::Zero(d); \
  if constexpr (r < kRows && c < kCols) acc##r##c = io.Load(d, r, c);
#define HEADLANE_DECLARE_ROW_(r) HEADLANE_COLS_(HEADLANE_DECLARE_, r)
  HEADLANE_ROWS_(HEADLANE_DECLARE_ROW_)

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
#define HEADLANE_PREFETCH_(r, c) \
  if constexpr (c < kCols && c % kColsPerTile == 0) __builtin_prefetch(io.Ahead(b##c + line), 0, kPrefetchTo);
#define HEADLANE_NEXT_(r, c)                                                          \
  [[maybe_unused]] const char* next##c = nullptr;                                     \
  if constexpr (kPrefetch == Prefetch::kNext && c < kCols && c % kColsPerTile == 0) { \
    next##c = io.Next(c, segment);                                                    \
  }
    HEADLANE_COLS_(HEADLANE_NEXT_, 0)
    [[maybe_unused]] int64_t next_bytes = 0;
    if constexpr (kPrefetch == Prefetch::kNext) next_bytes = io.NextBytes(kRows);
    [[maybe_unused]] const char* in_order = nullptr;
    if constexpr (kPrefetch == Prefetch::kInOrder) in_order = io.template InOrder<kCols>(segment);
#define HEADLANE_PREFETCH_IN_ORDER_(r, c)                                             \
  if constexpr (c < kCols && c % kColsPerTile == 0) {                                 \
    __builtin_prefetch(in_order + c / kColsPerTile * IO::kLineBytes, 0, kPrefetchTo); \
  }
#define HEADLANE_PREFETCH_NEXT_(r, c)                 \
  if constexpr (c < kCols && c % kColsPerTile == 0) { \
    __builtin_prefetch(next##c, 0, 3);                \
    next##c += next_bytes;                            \
  }
#define HEADLANE_LOAD_B_(kStep, c)                        \
  [[maybe_unused]] VF bv##c = hn::Zero(d);                \
  if constexpr (c < kCols) {                              \
    bv##c = LoadB<Tile, kStep, kIsTight>(d, b##c + line); \
    KeepInRegister(bv##c);                                \
  }
#define HEADLANE_FMA_(r, c) \
  if constexpr (c < kCols) MulAddTo(acc##r##c, av, bv##c);
#define HEADLANE_FMA_ROW_(r, k)                \
  if constexpr (r < kRows) {                   \
    const Factor av = LoadFactor(d, a##r + k); \
    HEADLANE_COLS_(HEADLANE_FMA_, r)           \
  }
#define HEADLANE_LOAD_A_(r, k) [[maybe_unused]] const Factor av##r = LoadFactor(d, r < kRows ? a##r + k : a);
#define HEADLANE_FMA_BY_COL_(c, r) \
  if constexpr (r < kRows) MulAddTo(acc##r##c, av##r, bv);
#define HEADLANE_FMA_COL_(kStep, c)                       \
  if constexpr (c < kCols) {                              \
    VF bv = LoadB<Tile, kStep, kIsTight>(d, b##c + line); \
    KeepInRegister(bv);                                   \
    HEADLANE_FMA_BY_COL_(c, 0)                            \
    HEADLANE_FMA_BY_COL_(c, 1)                            \
    HEADLANE_FMA_BY_COL_(c, 2)                            \
    HEADLANE_FMA_BY_COL_(c, 3)                            \
    HEADLANE_FMA_BY_COL_(c, 4)                            \
    HEADLANE_FMA_BY_COL_(c, 5)                            \
  }
    // One link of every chain: step kStep of the line at offset `line`.
#define HEADLANE_STEP_(kStep, k)                            \
  if constexpr (kHoldsB) {                                  \
    /* All of b in registers, a broadcast row by row. */    \
    HEADLANE_COLS_(HEADLANE_LOAD_B_, kStep)                 \
    HEADLANE_FMA_ROW_(0, k)                                 \
    HEADLANE_FMA_ROW_(1, k)                                 \
    HEADLANE_FMA_ROW_(2, k)                                 \
    HEADLANE_FMA_ROW_(3, k)                                 \
    HEADLANE_FMA_ROW_(4, k)                                 \
    HEADLANE_FMA_ROW_(5, k)                                 \
  } else {                                                  \
    /* All of a in registers, b loaded column by column. */ \
    HEADLANE_LOAD_A_(0, k)                                  \
    HEADLANE_LOAD_A_(1, k)                                  \
    HEADLANE_LOAD_A_(2, k)                                  \
    HEADLANE_LOAD_A_(3, k)                                  \
    HEADLANE_LOAD_A_(4, k)                                  \
    HEADLANE_LOAD_A_(5, k)                                  \
    HEADLANE_COLS_(HEADLANE_FMA_COL_, kStep)                \
  }
#define HEADLANE_LINE_(k)                          \
  if constexpr (kPrefetch == Prefetch::kLine) {    \
    HEADLANE_COLS_(HEADLANE_PREFETCH_, 0)          \
  }                                                \
  if constexpr (kPrefetch == Prefetch::kInOrder) { \
    HEADLANE_COLS_(HEADLANE_PREFETCH_IN_ORDER_, 0) \
    in_order += kTilesOf<kCols> * IO::kLineBytes;  \
  }                                                \
  if constexpr (kPrefetch == Prefetch::kNext) {    \
    HEADLANE_COLS_(HEADLANE_PREFETCH_NEXT_, 0)     \
  }                                                \
  HEADLANE_STEP_(0, k)                             \
  ForgetLoads<kReadsTwice>();                      \
  if constexpr (Tile::kSteps == 2) {               \
    HEADLANE_STEP_(1, (k) + 1)                     \
  }
    int64_t k = 0, first_line = 0;
    for (; k + kTurn <= k_len; k += kTurn, first_line += kTurn / Tile::kSteps * io.LineStep()) {
#pragma GCC unroll 8
      for (int64_t i = 0; i < kTurn; i += Tile::kSteps) {
        const int64_t line = first_line + i / Tile::kSteps * io.LineStep();
        HEADLANE_LINE_(k + i)
      }
    }
    [[maybe_unused]] int64_t line = first_line;
    if constexpr (IO::kLength == 0) {
      for (; k + Tile::kSteps <= k_len; k += Tile::kSteps, line += io.LineStep()) {
        HEADLANE_LINE_(k)
      }
    }
    // The last feature alone: a link with a 0 from the padding could change the sign of a zero, or make a NaN.
    if constexpr (Tile::kSteps == 2 && !IO::kEvenLength) {
      if (k < k_len) {
        HEADLANE_STEP_(0, k)
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
#undef HEADLANE_PREFETCH_
#undef HEADLANE_NEXT_
#undef HEADLANE_PREFETCH_IN_ORDER_
#undef HEADLANE_PREFETCH_NEXT_
#undef HEADLANE_STEP_
#undef HEADLANE_LINE_
#undef HEADLANE_LOAD_B_
#undef HEADLANE_FMA_
#undef HEADLANE_FMA_ROW_
#undef HEADLANE_LOAD_A_
#undef HEADLANE_FMA_BY_COL_
#undef HEADLANE_FMA_COL_
#undef HEADLANE_STORE_
#undef HEADLANE_STORE_ROW_
}

#undef HEADLANE_ROWS_
#undef HEADLANE_COLS_

// Runs the micro-kernel over columns [col, end) for one group of rows; `make.IO(row0, col)` gives its io.
template <int kRows, int kCols, class Make>
HWY_INLINE void ColumnsFrom(int64_t row0, int64_t col, int64_t end, int64_t num_segments, int64_t k_len,
                            const Make& make) {
  // After threes, four columns are two pairs: a last one alone would have too few chains.
  constexpr int kLeave = kCols == 3 ? 2 : 0;
  for (; col + kCols + kLeave <= end || col + kCols == end; col += kCols) {
    MicroKernel<kRows, kCols, Make::kPrefetch>(make.IO(row0, col), num_segments, k_len);
  }
  // The number of columns is a multiple of a tile's.
  if constexpr (kColsPerTile % kCols != 0) {
    if (col < end) ColumnsFrom<kRows, kCols == 3 ? 2 : kCols / 2>(row0, col, end, num_segments, k_len, make);
  }
}

// One group of rows, as a functor because lambdas would need the target's attribute. Not inlined: one function with all
// sizes of blocks takes compilers minutes, and a call costs nothing beside the block it runs.
template <class Make>
struct GroupColumns {
  int64_t row0, col, end, num_segments, k_len;
  const Make make;
  template <int kRows>
  HWY_NOINLINE void operator()(std::integral_constant<int, kRows>) const {
    constexpr int kCols = !Make::kOneTile                         ? MaxCols(kRows)
                          : Make::kPrefetch == Prefetch::kInOrder ? FewRowsCols(kRows)
                                                                  : std::min(kColsPerTile, MaxCols(kRows));
    ColumnsFrom<kRows, kCols>(row0, col, end, num_segments, k_len, make);
  }
};

// All rows x columns [0, num_cols), in groups of Make::kMinGroup to Make::kMaxGroup rows. Columns outside, row groups
// inside: a block of columns of b stays in L1 while all rows use it.
template <class Make>
HWY_INLINE void BlockedMultiply(int64_t rows, int64_t num_cols, int64_t num_segments, int64_t k_len, const Make& make) {
  if (rows <= 0) return;
  const RowGroups groups(rows, Make::kMaxGroup);
  // The smallest group has the widest block of columns. Blocks of three go in pairs, so that a tail is no single
  // column.
  const int64_t cols = MaxCols(static_cast<int>(groups.base));
  int64_t step = groups.num == 1 ? num_cols : Make::kOneTile ? VectorsPerTile() : cols == 3 ? 6 : cols;
  if (groups.num > 1 && Make::kOneTile && Make::kPrefetch == Prefetch::kInOrder) {
    step = std::max<int64_t>(step, FewRowsCols(static_cast<int>(groups.base)));
  }
  for (int64_t col = 0; col < num_cols; col += step) {
    const int64_t end = std::min(num_cols, col + step);
    WithRows<Make::kMinGroup, Make::kMaxGroup>(groups.size(0),
                                               GroupColumns<Make>{0, col, end, num_segments, k_len, make});
    int64_t row0 = groups.size(0);
    const auto rest = make.ForOtherGroups();
    for (int64_t group = 1; group < groups.num; row0 += groups.size(group), ++group) {
      WithRows<Make::kMinGroup, Make::kMaxGroup>(
          groups.size(group), GroupColumns<decltype(make.ForOtherGroups())>{row0, col, end, num_segments, k_len, rest});
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_MICRO_KERNEL_INL_H_
