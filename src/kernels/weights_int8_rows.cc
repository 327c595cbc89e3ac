// Activations of 8 bits: making them, and any number of rows of them times a panel of weights (weight_int8-inl.h).
//
// Separate from weights_int8.cc, where formats are read: a panel has codes and scales, whatever they came from.
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

// codes = x * inverse to nearest even. Requires: magnitudes of products of at most 127.
HWY_INLINE HWY_MAYBE_UNUSED void QuantizeBlock(const float* x, float inverse, int8_t* codes) {
  const DF d;
  const DI di;
  const hn::Rebind<int8_t, DF> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF factor = hn::Set(d, inverse);
  // A float of this size has no bits behind the point, so that the addition rounds, in the way f32 does.
  const VF large = hn::Set(d, 12582912.0f);
  for (int64_t i = 0; i < kBlock; i += lanes) {
    const VF rounded = hn::Add(hn::Mul(hn::LoadU(d, x + i), factor), large);
    hn::StoreU(hn::DemoteTo(d8, hn::Sub(hn::BitCast(di, rounded), hn::BitCast(di, large))), d8, codes + i);
  }
}

// -center * the sums of 16 codes, as the integer sums of this target begin; and the sum itself.
HWY_INLINE HWY_MAYBE_UNUSED int32_t StartOf16(const int8_t* codes, int32_t center, int32_t* sum) {
#if HEADLANE_INT8_PAIRS
  const hn::FixedTag<int8_t, 16> d8;
  const hn::FixedTag<uint8_t, 16> du8;
  const hn::FixedTag<int16_t, 8> d16;
  const hn::FixedTag<int32_t, 4> d32;
  auto pairs = hn::SatWidenMulPairwiseAdd(d16, hn::Set(du8, 1), hn::LoadU(d8, codes));
  pairs = hn::Add(pairs, hn::BitCast(d16, hn::Shuffle1032(hn::BitCast(d32, pairs))));
  pairs = hn::Add(pairs, hn::BitCast(d16, hn::Shuffle2301(hn::BitCast(d32, pairs))));
  *sum = hn::GetLane(hn::WidenMulPairwiseAdd(d32, pairs, hn::Set(d16, 1)));
  return hn::GetLane(hn::BitCast(d32, hn::Mul(pairs, hn::Set(d16, static_cast<int16_t>(-center)))));
#else
  int32_t total = 0;
  for (int i = 0; i < 16; ++i) total += codes[i];
  *sum = total;
  return -center * total;
#endif
}

// Both halves of a block together.
HWY_INLINE HWY_MAYBE_UNUSED int32_t AddStarts(int32_t a, int32_t b) {
#if HEADLANE_INT8_PAIRS
  const uint32_t low = (static_cast<uint32_t>(a) + static_cast<uint32_t>(b)) & 0xFFFFu;
  const uint32_t high = (static_cast<uint32_t>(a) & 0xFFFF0000u) + (static_cast<uint32_t>(b) & 0xFFFF0000u);
  return static_cast<int32_t>(high | low);
#else
  return a + b;
#endif
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
      if (HWY_LIKELY(bits >= kLeast && bits < kInfinity)) {
        scale = largest / 127.0f;
        QuantizeBlock(x, 127.0f / largest, codes);
      } else {
        constexpr int32_t kNaN = 0x7FC00000;
        const int32_t scale_bits = bits < kLeast ? 0 : kNaN;
        std::memcpy(&scale, &scale_bits, sizeof(scale));
        std::memset(codes, 0, kBlock);
      }
      int32_t sums[2];
      const int32_t starts[2] = {StartOf16(codes, args.operand.center, &sums[0]),
                                 StartOf16(codes + 16, args.operand.center, &sums[1])};
      const float sum = scale * static_cast<float>(sums[0] + sums[1]);
      if (args.operand.group == 16) {
        *group++ = {scale, sum, starts[0], 0};
        *group++ = {scale, sum, starts[1], 0};
      } else {
        *group++ = {scale, sum, AddStarts(starts[0], starts[1]), 0};
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
#define HEADLANE_INT8_LOAD_(r, c)                              \
  [[maybe_unused]] VI w##c = hn::Zero(di);                     \
  [[maybe_unused]] VI odd##c = hn::Zero(di);                   \
  if constexpr (c < kInt8Cols) {                               \
    if constexpr (kPairs) {                                    \
      w##c = LoadCodes(w + quad * 128 + c * lanes * 4);        \
      odd##c = LoadCodes(w + quad * 128 + 64 + c * lanes * 4); \
    } else {                                                   \
      w##c = LoadCodes(w + quad * 64 + c * lanes * 4);         \
    }                                                          \
  }
#define HEADLANE_INT8_DOT_(r, c)                                \
  if constexpr (c < kInt8Cols) {                                \
    if constexpr (kPairs) {                                     \
      sum##r##c = DotPairs(sum##r##c, w##c, odd##c, xq, x_odd); \
    } else {                                                    \
      sum##r##c = DotQuad(sum##r##c, w##c, xq);                 \
    }                                                           \
  }
#define HEADLANE_INT8_DOT_ROW_(r)                 \
  if constexpr (r < kRows) {                      \
    [[maybe_unused]] VI x_odd = hn::Zero(di);     \
    VI xq;                                        \
    if constexpr (kPairs) {                       \
      xq = BroadcastWord(p##r + 2 * quad);        \
      x_odd = BroadcastWord(p##r + 2 * quad + 1); \
    } else {                                      \
      xq = BroadcastWord(x##r + 4 * quad);        \
    }                                             \
    HEADLANE_INT8_COLS_(HEADLANE_INT8_DOT_, r)    \
  }
#pragma GCC unroll 8
      for (int quad = 0; quad < kQuads; ++quad) {
        HEADLANE_INT8_COLS_(HEADLANE_INT8_LOAD_, 0)
        HEADLANE_INT8_ROWS_(HEADLANE_INT8_DOT_ROW_)
      }
#define HEADLANE_INT8_ADD_(r, c)                                                            \
  if constexpr (c < kInt8Cols) {                                                            \
    const float* const scales = reinterpret_cast<const float*>(panel) + c * lanes;          \
    const VI whole = kPairs ? sum##r##c : WholeSums(sum##r##c);                             \
    VF acc = group == 0 && !args.accumulate ? hn::Zero(d) : hn::LoadU(d, y##r + c * lanes); \
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
