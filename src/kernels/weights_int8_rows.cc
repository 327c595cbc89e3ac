// Activations of 8 bits: making them, and any number of rows of them times a panel of weights (weight_int8-inl.h).
//
// Separate from weights_int8.cc, where formats are read: a panel has codes and scales, whatever they came from.
#define HEADLANE_EVERY_TARGET
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/weights_int8_rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/tables.h"
#include "kernels/weight_int8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

constexpr int64_t kBlock = 32;  // activations that share a scale

// The largest magnitude of a block as bits of f32: integers order them, NaN above infinity, alike on every target.
HWY_INLINE HWY_MAYBE_UNUSED int32_t LargestBits(const float* x) {
  const DF d;
  const DI di;
  const VI magnitude = hn::Set(di, 0x7FFFFFFF);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  VI largest = hn::Zero(di);
  for (int64_t i = 0; i < kBlock; i += lanes) {
    largest = hn::Max(largest, hn::And(hn::BitCast(di, hn::LoadU(d, x + i)), magnitude));
  }
  return hn::ReduceMax(di, largest);
}

// What sums begin with, of the inputs whose codes' sums are these: of four inputs each, the first two and the others.
HWY_INLINE HWY_MAYBE_UNUSED int32_t StartOf(int32_t center, int32_t first, int32_t second) {
#if HEADLANE_INT8_PAIRS
  return static_cast<int32_t>((static_cast<uint32_t>(-center * first) & 0xFFFFu) |
                              static_cast<uint32_t>(-center * second) << 16);
#else
  return -center * (first + second);
#endif
}

// The sums of codes in 32-bit lanes, one input each: of the first two of every four, and of the others.
HWY_INLINE HWY_MAYBE_UNUSED void SumsOf(VI codes, int32_t* first, int32_t* second) {
#if HEADLANE_INT8_PAIRS
  const hn::FixedTag<int32_t, 4> d4;
#if HWY_TARGET <= HWY_AVX3
  const hn::FixedTag<int32_t, 8> d8;
  const auto eight = hn::Add(hn::LowerHalf(d8, codes), hn::UpperHalf(d8, codes));
#else
  const VI eight = codes;
#endif
  auto four = hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
  four = hn::Add(four, hn::Shuffle2301(four));
  *first = hn::GetLane(four);
  *second = hn::ExtractLane(four, 2);
#else
  *first = hn::ReduceSum(DI(), codes);
  *second = 0;
#endif
}

// codes = x * inverse to nearest even, and the sums of both halves, as SumsOf has them. Requires: magnitudes of
// products of at most 127. Sums are taken before codes go to memory, which would have to be read in other sizes than
// written.
HWY_INLINE HWY_MAYBE_UNUSED void QuantizeBlock(const float* x, float inverse, int8_t* codes, int32_t* first,
                                               int32_t* second) {
  const DF d;
  const DI di;
  [[maybe_unused]] const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF factor = hn::Set(d, inverse);
  // A float of this size has no bits behind the point, so that the addition rounds, in the way f32 does.
  const VF large = hn::Set(d, 12582912.0f);
#define HEADLANE_INT8_CODES_(at) \
  hn::Sub(hn::BitCast(di, hn::Add(hn::Mul(hn::LoadU(d, x + (at)), factor), large)), hn::BitCast(di, large))
#if HEADLANE_INT8_PAIRS && HWY_TARGET > HWY_AVX3
  const VI a = HEADLANE_INT8_CODES_(0), b = HEADLANE_INT8_CODES_(8);
  const VI c = HEADLANE_INT8_CODES_(16), e = HEADLANE_INT8_CODES_(24);
  SumsOf(hn::Add(a, b), &first[0], &second[0]);
  SumsOf(hn::Add(c, e), &first[1], &second[1]);
  const auto low = hn::OrderedDemote2To(DI16(), a, b), high = hn::OrderedDemote2To(DI16(), c, e);
  hn::StoreU(hn::OrderedDemote2To(DI8(), low, high), DI8(), codes);
#else
  const hn::Rebind<int8_t, DF> d8;
  for (int64_t half = 0; half < 2; ++half) {
    VI sum = hn::Zero(di);
    for (int64_t i = 16 * half; i < 16 * half + 16; i += lanes) {
      const VI n = HEADLANE_INT8_CODES_(i);
      sum = hn::Add(sum, n);
      hn::StoreU(hn::DemoteTo(d8, n), d8, codes + i);
    }
    SumsOf(sum, &first[half], &second[half]);
  }
#endif
#undef HEADLANE_INT8_CODES_
}

void SplitPairs([[maybe_unused]] const int8_t* codes, [[maybe_unused]] int32_t* pairs) {
#if HEADLANE_INT8_PAIRS
  const hn::FixedTag<int16_t, 8> d16;
  const hn::FixedTag<int32_t, 4> d32;
  for (int64_t i = 0; i < kBlock; i += 16, pairs += 8) {
    const auto bytes = hn::LoadU(d16, reinterpret_cast<const int16_t*>(codes + i));
    const auto even = hn::BitCast(d32, hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes)));
    const auto odd = hn::BitCast(d32, hn::ShiftRight<8>(bytes));
    hn::StoreU(hn::InterleaveLower(d32, even, odd), d32, pairs);
    hn::StoreU(hn::InterleaveUpper(d32, even, odd), d32, pairs + 4);
  }
#endif
}

void QuantizeRows(const QuantizeArgs& args) noexcept {
  constexpr int32_t kInfinity = 0x7F800000;
  constexpr int32_t kLeast = (127 - 100) << 23;  // 2^-100: below, 127 / x could overflow
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_pitch;
    int8_t* codes = args.to.codes + row * args.to.pitch;
    int32_t* pairs = args.operand.pairs ? args.to.pairs + row * (args.to.pitch / 2) : nullptr;
    Int8Group* group = args.to.groups + row * args.to.group_pitch;
    for (int64_t k = 0; k < args.k_len; k += kBlock, x += kBlock, codes += kBlock) {
      const int32_t bits = LargestBits(x);
      float largest, scale;
      std::memcpy(&largest, &bits, sizeof(largest));
      int32_t first[2] = {0, 0}, second[2] = {0, 0};
      if (HWY_LIKELY(bits >= kLeast && bits < kInfinity)) {
        scale = largest / 127.0f;
        QuantizeBlock(x, 127.0f / largest, codes, first, second);
      } else {
        constexpr int32_t kNaN = 0x7FC00000;
        const int32_t scale_bits = bits < kLeast ? 0 : kNaN;
        std::memcpy(&scale, &scale_bits, sizeof(scale));
        std::memset(codes, 0, kBlock);
      }
      const int32_t center = args.operand.center;
      const int32_t firsts = first[0] + first[1], seconds = second[0] + second[1];
      const float sum = scale * static_cast<float>(firsts + seconds);
      if (args.operand.group == 16) {
        *group++ = {scale, sum, StartOf(center, first[0], second[0]), 0};
        *group++ = {scale, sum, StartOf(center, first[1], second[1]), 0};
      } else {
        *group++ = {scale, sum, StartOf(center, firsts, seconds), 0};
      }
      if (pairs != nullptr) {
        SplitPairs(codes, pairs);
        pairs += kBlock / 2;
      }
    }
  }
}

// Rows that are computed together: as many sums as hide the latency of the products.
constexpr int kInt8Rows = kInt8Cols == 1 ? 8 : 4;

#define HEADLANE_INT8_ROWS_(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#define HEADLANE_INT8_COLS_(M, r) M(r, 0) M(r, 1) M(r, 2) M(r, 3)

template <int kRows, int kQuads, bool kHasMin, bool kPairs>
HWY_INLINE void PanelTimesRows(const Int8Args& args, int64_t row0) {
  static_assert(1 <= kRows && kRows <= 8 && kInt8Cols <= 4);
  const DF d;
  const DI di;
  const int64_t lanes = kTileKeys / VectorsPerTile();
  constexpr int64_t kScales = kHasMin ? 128 : 64;
  for (int64_t lane = 0; lane < kTileKeys; lane += kInt8Cols * lanes) {
    const uint8_t* HWY_RESTRICT panel = args.w + lane * 4;
#define HEADLANE_INT8_ROW_(r)                                                                            \
  [[maybe_unused]] const int8_t* HWY_RESTRICT x##r = args.x.codes + (row0 + r) * args.x.pitch;           \
  [[maybe_unused]] const int32_t* HWY_RESTRICT p##r =                                                    \
      kPairs ? args.x.pairs + (row0 + r) * (args.x.pitch / 2) : nullptr;                                 \
  [[maybe_unused]] const Int8Group* HWY_RESTRICT g##r = args.x.groups + (row0 + r) * args.x.group_pitch; \
  [[maybe_unused]] float* HWY_RESTRICT y##r = args.y + (row0 + r) * args.y_pitch + lane;
    HEADLANE_INT8_ROWS_(HEADLANE_INT8_ROW_)
    if (!args.accumulate) {
#define HEADLANE_INT8_ZERO_(r, c) \
  if constexpr (r < kRows && c < kInt8Cols) hn::StoreU(hn::Zero(d), d, y##r + c * lanes);
#define HEADLANE_INT8_ZERO_ROW_(r) HEADLANE_INT8_COLS_(HEADLANE_INT8_ZERO_, r)
      HEADLANE_INT8_ROWS_(HEADLANE_INT8_ZERO_ROW_)
#undef HEADLANE_INT8_ZERO_
#undef HEADLANE_INT8_ZERO_ROW_
    }
#pragma GCC unroll 1
    for (int64_t group = 0; group < args.num_groups; ++group) {
      const uint8_t* const w = panel + kScales;
#define HEADLANE_INT8_START_(r)                \
  [[maybe_unused]] VI start##r = hn::Zero(di); \
  if constexpr (r < kRows && !kPairs) start##r = hn::Set(di, g##r->start);
      HEADLANE_INT8_ROWS_(HEADLANE_INT8_START_)
#define HEADLANE_INT8_SUM_COL_(r, c) [[maybe_unused]] VI sum##r##c = start##r;
#define HEADLANE_INT8_SUM_(r) HEADLANE_INT8_COLS_(HEADLANE_INT8_SUM_COL_, r)
      HEADLANE_INT8_ROWS_(HEADLANE_INT8_SUM_)
#define HEADLANE_INT8_LOAD_(r, c)          \
  [[maybe_unused]] VI w##c = hn::Zero(di); \
  if constexpr (c < kInt8Cols) w##c = KeepSum(LoadCodes(w + step * 64 + c * lanes * 4));
#define HEADLANE_INT8_DOT_(r, c) \
  if constexpr (c < kInt8Cols) sum##r##c = kPairs ? DotPair(sum##r##c, w##c, xs) : DotQuad(sum##r##c, w##c, xs);
#define HEADLANE_INT8_DOT_ROW_(r)                                                       \
  if constexpr (r < kRows) {                                                            \
    const VI xs = kPairs ? BroadcastWord(p##r + step) : BroadcastWord(x##r + 4 * step); \
    HEADLANE_INT8_COLS_(HEADLANE_INT8_DOT_, r)                                          \
  }
      constexpr int kSteps = kPairs ? 2 * kQuads : kQuads;
#pragma GCC unroll 16
      for (int step = 0; step < kSteps; ++step) {
        HEADLANE_INT8_COLS_(HEADLANE_INT8_LOAD_, 0)
        HEADLANE_INT8_ROWS_(HEADLANE_INT8_DOT_ROW_)
      }
#define HEADLANE_INT8_ADD_(r, c)                                                            \
  if constexpr (c < kInt8Cols) {                                                            \
    const float* const scales = reinterpret_cast<const float*>(panel) + c * lanes;          \
    const VI whole = kPairs ? sum##r##c : WholeSums(sum##r##c);                             \
    VF acc = hn::LoadU(d, y##r + c * lanes);                                                \
    acc = hn::MulAdd(hn::ConvertTo(d, whole), hn::Mul(hn::LoadU(d, scales), x_scale), acc); \
    if constexpr (kHasMin) acc = hn::MulAdd(hn::LoadU(d, scales + 16), x_sum, acc);         \
    hn::StoreU(acc, d, y##r + c * lanes);                                                   \
  }
#define HEADLANE_INT8_ADD_ROW_(r)                            \
  if constexpr (r < kRows) {                                 \
    const VF x_scale = hn::Set(d, g##r->scale);              \
    [[maybe_unused]] const VF x_sum = hn::Set(d, g##r->sum); \
    HEADLANE_INT8_COLS_(HEADLANE_INT8_ADD_, r)               \
    ++g##r;                                                  \
    x##r += 4 * kQuads;                                      \
    if constexpr (kPairs) p##r += 2 * kQuads;                \
  }
      HEADLANE_INT8_ROWS_(HEADLANE_INT8_ADD_ROW_)
      panel += PanelGroupBytes(kQuads, kHasMin, kPairs);
    }
  }
#undef HEADLANE_INT8_ROW_
#undef HEADLANE_INT8_START_
#undef HEADLANE_INT8_SUM_COL_
#undef HEADLANE_INT8_SUM_
#undef HEADLANE_INT8_LOAD_
#undef HEADLANE_INT8_DOT_
#undef HEADLANE_INT8_DOT_ROW_
#undef HEADLANE_INT8_ADD_
#undef HEADLANE_INT8_ADD_ROW_
#undef HEADLANE_INT8_ROWS_
#undef HEADLANE_INT8_COLS_
}

// A functor, and not inlined, as AllWeightColumns.
template <int kQuads, bool kHasMin, bool kPairs>
struct PanelRows {
  const Int8Args& args;
  int64_t row;
  template <int kRows>
  HWY_NOINLINE void operator()(std::integral_constant<int, kRows>) const {
    PanelTimesRows<kRows, kQuads, kHasMin, kPairs>(args, row);
  }
};

template <int kQuads, bool kHasMin, bool kPairs>
void RowsTimesPanel(const Int8Args& args) noexcept {
  for (int64_t row = 0; row < args.rows; row += kInt8Rows) {
    const int64_t num = std::min<int64_t>(kInt8Rows, args.rows - row);
    WithRows<1, kInt8Rows>(num, PanelRows<kQuads, kHasMin, kPairs>{args, row});
  }
}

Int8Shared WeightsInt8RowsTable() {
  return {&QuantizeRows,
          &RowsTimesPanel<8, false, false>,
          &RowsTimesPanel<8, true, false>,
          &RowsTimesPanel<4, false, false>,
          &RowsTimesPanel<8, false, kBytesAsPairs>,
          hwy::TargetName(HWY_TARGET)};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(WeightsInt8RowsTable);
Int8Shared WeightsInt8Rows(int64_t target) { return HEADLANE_CALL_FOR_TARGET(WeightsInt8RowsTable, target); }
}  // namespace headlane::internal
#endif
