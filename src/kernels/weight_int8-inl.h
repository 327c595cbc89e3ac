// Linear layers over activations of 8 bits: integer dot products of four inputs at a time, and what becomes of them.
//
// Separate from weight_kernels-inl.h, whose chains are of f32: here the sum over a group is an integer, exact in any
// order, and only what follows a group is rounded, in the order that headlane/linear.h defines. So nothing but this
// file's two multiply-adds decides about bits.
//
// How a target multiplies. All kernels take codes of weights that are not negative (or 8 bits), which are `center`
// above those of the definition, so that the sums begin with -center * (sum of the activations' codes):
//   VNNI, ARM's dot product, SSE2   four products and a sum of 32 bits
//   AVX2, AVX3                      two products to 16 bits, and their sums in 16 bits as well. With codes about zero
//                                   these fit: 32 * 127 * 16 / 2 = 32512 of 5-bit ones, and as many of 6-bit ones in
//                                   groups of 16. In between they may wrap around, which takes nothing from the result.
//                                   No pair saturates: 63 * 127 * 2 = 16002
//   AVX2, AVX3 with codes of 8 bits two products of 16 bits to 32, of the even and the odd inputs
#if defined(HEADLANE_SRC_KERNELS_WEIGHT_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_WEIGHT_INT8_INL_H_
#undef HEADLANE_SRC_KERNELS_WEIGHT_INT8_INL_H_
#else
#define HEADLANE_SRC_KERNELS_WEIGHT_INT8_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/micro_kernel-inl.h"
#include "kernels/weight_codes-inl.h"

// Sums of 16 bits.
#undef HEADLANE_INT8_PAIRS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && HWY_TARGET > HWY_AVX3_DL
#define HEADLANE_INT8_PAIRS 1
#else
#define HEADLANE_INT8_PAIRS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DU8 = hn::Repartition<uint8_t, DF>;
using DI8 = hn::Repartition<int8_t, DF>;
using DI16 = hn::Repartition<int16_t, DF>;
using DU32 = hn::RebindToUnsigned<DF>;

// Codes of 8 bits take a way of their own.
inline constexpr bool kBytesAsPairs = HEADLANE_INT8_PAIRS;
// Codes of 8 bits as unsigned ones, 128 above.
inline constexpr bool kBytesUnsigned = HWY_ARCH_X86 && !HEADLANE_INT8_PAIRS;

template <WeightFormat kFormat>
constexpr Int8Operand OperandOf() {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  if (kInfo.bits == 8) return {kInfo.group, kBytesUnsigned ? 128 : 0, kBytesAsPairs};
  return {kInfo.group, 1 << (kInfo.bits - 1), false};
}

HWY_INLINE HWY_MAYBE_UNUSED VI LoadCodes(const uint8_t* p) {
  return hn::LoadU(DI(), reinterpret_cast<const int32_t*>(p));
}

// The same four codes in every lane.
HWY_INLINE HWY_MAYBE_UNUSED VI BroadcastWord(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return hn::Set(DI(), word);
}

// A vector as it is. Additions of integers are associative, which compilers know: they would multiply all of a group
// first, keep the products on the stack, and add later. And what they can fold into each multiplication they load once
// per row.
HWY_INLINE HWY_MAYBE_UNUSED VI KeepSum(VI sum) {
#if HWY_ARCH_X86 && !HWY_COMPILER_MSVC
  asm("" : "+v"(sum.raw));
#elif HWY_ARCH_ARM_A64 && !HWY_TARGET_IS_SVE && !HWY_COMPILER_MSVC
  asm("" : "+w"(sum.raw));
#endif
  return sum;
}

// sum + the products of four codes of each lane: of two each, where sums have 16 bits.
HWY_INLINE HWY_MAYBE_UNUSED VI DotQuad(VI sum, VI w, VI x) {
  [[maybe_unused]] const DI di;
  [[maybe_unused]] const DU8 du8;
  [[maybe_unused]] const DI8 di8;
#if HEADLANE_INT8_PAIRS
  const DI16 di16;
  const auto products = hn::SatWidenMulPairwiseAdd(di16, hn::BitCast(du8, w), hn::BitCast(di8, x));
  return KeepSum(hn::BitCast(di, hn::Add(hn::BitCast(di16, sum), products)));
#elif HWY_ARCH_X86
  return KeepSum(hn::SumOfMulQuadAccumulate(di, hn::BitCast(du8, w), hn::BitCast(di8, x), sum));
#elif HWY_ARCH_ARM_A64 && !HWY_TARGET_IS_SVE && !HWY_COMPILER_MSVC
  const int8x16_t a = hn::BitCast(di8, w).raw, b = hn::BitCast(di8, x).raw;
#if HWY_TARGET == HWY_NEON_BF16 || defined(__ARM_FEATURE_DOTPROD)
  return KeepSum(VI(vdotq_s32(sum.raw, a, b)));
#else
  const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
  return KeepSum(VI(vpadalq_s16(sum.raw, vpaddq_s16(low, high))));
#endif
#else
  return hn::SumOfMulQuadAccumulate(di, hn::BitCast(di8, w), hn::BitCast(di8, x), sum);
#endif
}

// The sums of a group in 32 bits.
HWY_INLINE HWY_MAYBE_UNUSED VI WholeSums(VI sum) {
#if HEADLANE_INT8_PAIRS
  return hn::WidenMulPairwiseAdd(DI(), hn::BitCast(DI16(), sum), hn::Set(DI16(), 1));
#else
  return sum;
#endif
}

// sum + the products of two codes in 16 bits of each lane.
HWY_INLINE HWY_MAYBE_UNUSED VI DotPair(VI sum, VI w, VI x) {
  const DI16 di16;
  return KeepSum(hn::Add(sum, hn::WidenMulPairwiseAdd(DI(), hn::BitCast(di16, w), hn::BitCast(di16, x))));
}
HWY_INLINE HWY_MAYBE_UNUSED VI EvenBytes(VI w) {
  return hn::BitCast(DI(), hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(DI16(), w))));
}
HWY_INLINE HWY_MAYBE_UNUSED VI OddBytes(VI w) { return hn::BitCast(DI(), hn::ShiftRight<8>(hn::BitCast(DI16(), w))); }

// Codes of quad kQuad of a group at `words`, from a lane on; `upper` is the group's word of upper bits.
template <WeightFormat kFormat, int kQuad>
HWY_INLINE VI QuadCodes(const uint8_t* words, [[maybe_unused]] VI upper) {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  constexpr int kHalf = kInfo.group / 8;
  const DI di;
  const DU32 du;
  if constexpr (kInfo.bits == 8) {
    const VI codes = LoadCodes(words + kQuad * 64);
    if constexpr (kBytesUnsigned) return hn::Xor(codes, hn::Set(di, static_cast<int32_t>(0x80808080u)));
    return codes;
  } else {
    VI codes = LoadCodes(words + kQuad % kHalf * 64);
    if constexpr (kQuad >= kHalf) codes = hn::BitCast(di, hn::ShiftRight<4>(hn::BitCast(du, codes)));
    codes = hn::And(codes, hn::Set(di, 0x0F0F0F0F));
    if constexpr (kInfo.bits > 4) {
      constexpr int kAt = kQuad * (kInfo.bits - 4);
      VI bits = upper;
      if constexpr (kAt < 4) bits = hn::ShiftLeft<4 - kAt>(bits);
      if constexpr (kAt > 4) bits = hn::BitCast(di, hn::ShiftRight<kAt - 4>(hn::BitCast(du, bits)));
      codes = hn::Or(codes, hn::And(bits, hn::Set(di, kInfo.bits == 5 ? 0x10101010 : 0x30303030)));
    }
    return codes;
  }
}

// Where the word of upper bits stands in a group.
template <WeightFormat kFormat>
constexpr int UpperAt() {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  return kInfo.bits == 5 || kInfo.bits == 6 ? kInfo.group / 8 * 64 : 0;
}

// What multiplies the sum of a block's activations: the minimum of codes about zero.
template <class Format>
HWY_INLINE VF CenteredMin(DF d, const uint8_t* block, int64_t group, int64_t lane, VF scale) {
  return hn::MulAdd(hn::Set(d, static_cast<float>(1 << (Format::kInfo.bits - 1))), scale,
                    Format::Min(d, block, group, lane));
}

// So many bytes of weights are fetched ahead, which the hardware does too late.
inline constexpr int64_t kInt8Ahead = 4096;

// Columns that are computed together.
inline constexpr int kInt8Cols = std::min(kColsPerTile, kNumRegisters > 16 ? 4 : 2);

#define HEADLANE_INT8_COLS_(M) M(0) M(1) M(2) M(3)

// Where a lane of a tile's 16 begins, column by column.
#define HEADLANE_INT8_LANE_(c) [[maybe_unused]] const int64_t lane##c = lane + c * lanes;

// One row from tiles, front to back as they lie in memory: the chains are short, one link or two for a group.
template <WeightFormat kFormat, class Format>
void Int8OneRow(const Int8Args& args) noexcept {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  constexpr int kQuads = kInfo.group / 4;
  const DF d;
  const DI di;
  const int64_t lanes = kTileKeys / VectorsPerTile();
  for (int64_t tile = 0; tile < args.num_tiles; ++tile) {
    for (int64_t lane = 0; lane < kTileKeys; lane += kInt8Cols * lanes) {
      HEADLANE_INT8_COLS_(HEADLANE_INT8_LANE_)
      const uint8_t* HWY_RESTRICT block = args.w + tile * args.tile_bytes;
      const int8_t* HWY_RESTRICT codes = args.x.codes;
      [[maybe_unused]] const int32_t* HWY_RESTRICT pairs = args.x.pairs;
      const Int8Group* HWY_RESTRICT x = args.x.groups;
      float* const y = args.y + tile * kTileKeys;
      const int64_t left = args.num_features - tile * kTileKeys;
#define HEADLANE_INT8_BEGIN_(c)                                                  \
  [[maybe_unused]] VF acc##c = hn::Zero(d);                                      \
  if constexpr (c < kInt8Cols) {                                                 \
    if (args.accumulate) {                                                       \
      if (left >= lane##c + lanes) {                                             \
        acc##c = hn::LoadU(d, y + lane##c);                                      \
      } else if (left > lane##c) {                                               \
        acc##c = hn::LoadN(d, y + lane##c, static_cast<size_t>(left - lane##c)); \
      }                                                                          \
    }                                                                            \
  }
      HEADLANE_INT8_COLS_(HEADLANE_INT8_BEGIN_)
      for (int64_t i = 0; i < args.num_groups; i += kInfo.num_groups, block += kInfo.block_bytes) {
#pragma GCC unroll 1
        for (int64_t group = 0; group < kInfo.num_groups; ++group, ++x, codes += kInfo.group) {
          const uint8_t* HWY_RESTRICT words = block + kInfo.codes_at + group * kInfo.group_bytes();
          if (lane == 0) {
            constexpr int64_t kGroupBytes = kInfo.block_bytes / kInfo.num_groups;
            const uint8_t* const next = block + group * kGroupBytes + kInt8Ahead;
#pragma GCC unroll 16
            for (int64_t line = 0; line < kGroupBytes; line += 64) __builtin_prefetch(next + line, 0, 3);
          }
          const VI start = hn::Set(di, x->start);
#define HEADLANE_INT8_START_(c)                                      \
  [[maybe_unused]] VI sum##c = start;                                \
  [[maybe_unused]] VI upper##c = start;                              \
  if constexpr (c < kInt8Cols && kInfo.bits != 4 && kInfo.bits != 8) \
    upper##c = LoadCodes(words + UpperAt<kFormat>() + lane##c * 4);
          HEADLANE_INT8_COLS_(HEADLANE_INT8_START_)
#define HEADLANE_INT8_DOT_(c) \
  if constexpr (c < kInt8Cols) sum##c = DotQuad(sum##c, QuadCodes<kFormat, kQuad>(words + lane##c * 4, upper##c), xq);
#define HEADLANE_INT8_DOT_PAIRS_(c)                                              \
  if constexpr (c < kInt8Cols) {                                                 \
    const VI w = QuadCodes<kFormat, kQuad>(words + lane##c * 4, upper##c);       \
    sum##c = DotPair(DotPair(sum##c, EvenBytes(w), x_even), OddBytes(w), x_odd); \
  }
#define HEADLANE_INT8_QUAD_(n)                               \
  if constexpr (n < kQuads) {                                \
    constexpr int kQuad = n % 2 * (kQuads / 2) + n / 2;      \
    if constexpr (kInfo.bits == 8 && kBytesAsPairs) {        \
      const VI x_even = BroadcastWord(pairs + 2 * kQuad);    \
      const VI x_odd = BroadcastWord(pairs + 2 * kQuad + 1); \
      HEADLANE_INT8_COLS_(HEADLANE_INT8_DOT_PAIRS_)          \
    } else {                                                 \
      const VI xq = BroadcastWord(codes + 4 * kQuad);        \
      HEADLANE_INT8_COLS_(HEADLANE_INT8_DOT_)                \
    }                                                        \
  }
          // Both halves of a word one after the other: it is loaded once.
          HEADLANE_INT8_QUAD_(0)
          HEADLANE_INT8_QUAD_(1)
          HEADLANE_INT8_QUAD_(2)
          HEADLANE_INT8_QUAD_(3)
          HEADLANE_INT8_QUAD_(4)
          HEADLANE_INT8_QUAD_(5)
          HEADLANE_INT8_QUAD_(6)
          HEADLANE_INT8_QUAD_(7)
          if constexpr (kInfo.bits == 8 && kBytesAsPairs) pairs += 2 * kQuads;
          const VF x_scale = hn::Set(d, x->scale);
          [[maybe_unused]] const VF x_sum = hn::Set(d, x->sum);
#define HEADLANE_INT8_ADD_(c)                                                                   \
  if constexpr (c < kInt8Cols) {                                                                \
    const VF scale = Format::Scale(d, block, group, lane##c);                                   \
    const VI whole = kInfo.bits == 8 && kBytesAsPairs ? sum##c : WholeSums(sum##c);             \
    acc##c = hn::MulAdd(hn::ConvertTo(d, whole), hn::Mul(scale, x_scale), acc##c);              \
    if constexpr (kInfo.has_min)                                                                \
      acc##c = hn::MulAdd(CenteredMin<Format>(d, block, group, lane##c, scale), x_sum, acc##c); \
  }
          HEADLANE_INT8_COLS_(HEADLANE_INT8_ADD_)
        }
      }
#define HEADLANE_INT8_END_(c)                                                  \
  if constexpr (c < kInt8Cols) {                                               \
    if (left >= lane##c + lanes) {                                             \
      hn::StoreU(acc##c, d, y + lane##c);                                      \
    } else if (left > lane##c) {                                               \
      hn::StoreN(acc##c, d, y + lane##c, static_cast<size_t>(left - lane##c)); \
    }                                                                          \
  }
      HEADLANE_INT8_COLS_(HEADLANE_INT8_END_)
    }
  }
#undef HEADLANE_INT8_BEGIN_
#undef HEADLANE_INT8_START_
#undef HEADLANE_INT8_DOT_
#undef HEADLANE_INT8_DOT_PAIRS_
#undef HEADLANE_INT8_QUAD_
#undef HEADLANE_INT8_ADD_
#undef HEADLANE_INT8_END_
}

// Bytes of a group of a panel: its scales as f32, its minima, its codes.
constexpr int64_t PanelGroupBytes(int quads, bool has_min, bool pairs) {
  return 64 + (has_min ? 64 : 0) + quads * (pairs ? 128 : 64);
}

template <WeightFormat kFormat, class Format>
void Int8Expand(const ExpandArgs& args) noexcept {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  constexpr int kQuads = kInfo.group / 4;
  constexpr bool kPairs = kInfo.bits == 8 && kBytesAsPairs;
  const DF d;
  const DI di;
  const int64_t lanes = kTileKeys / VectorsPerTile();
  const uint8_t* block = args.tile + args.k_begin / kInfo.block_len() * kInfo.block_bytes;
  uint8_t* out = reinterpret_cast<uint8_t*>(args.out);
  for (int64_t k = args.k_begin; k < args.k_end; k += kInfo.block_len(), block += kInfo.block_bytes) {
    for (int64_t group = 0; group < kInfo.num_groups; ++group, out += PanelGroupBytes(kQuads, kInfo.has_min, kPairs)) {
      uint8_t* const codes_out = out + 64 + (kInfo.has_min ? 64 : 0);
#pragma GCC unroll 1
      for (int64_t lane = 0; lane < kTileKeys; lane += lanes) {
        const uint8_t* const words = block + kInfo.codes_at + group * kInfo.group_bytes() + lane * 4;
        const VF scale = Format::Scale(d, block, group, lane);
        hn::Store(scale, d, reinterpret_cast<float*>(out) + lane);
        if constexpr (kInfo.has_min) {
          hn::Store(CenteredMin<Format>(d, block, group, lane, scale), d, reinterpret_cast<float*>(out) + 16 + lane);
        }
        const VI upper = LoadCodes(words + UpperAt<kFormat>());
#define HEADLANE_INT8_QUAD_(n)                                                                     \
  if constexpr (n < kQuads) {                                                                      \
    constexpr int kQuad = n % 2 * (kQuads / 2) + n / 2;                                            \
    const VI w = QuadCodes<kFormat, kQuad>(words, upper);                                          \
    if constexpr (kPairs) {                                                                        \
      hn::Store(EvenBytes(w), di, reinterpret_cast<int32_t*>(codes_out + kQuad * 128) + lane);     \
      hn::Store(OddBytes(w), di, reinterpret_cast<int32_t*>(codes_out + kQuad * 128 + 64) + lane); \
    } else {                                                                                       \
      hn::Store(w, di, reinterpret_cast<int32_t*>(codes_out + kQuad * 64) + lane);                 \
    }                                                                                              \
  }
        HEADLANE_INT8_QUAD_(0)
        HEADLANE_INT8_QUAD_(1)
        HEADLANE_INT8_QUAD_(2)
        HEADLANE_INT8_QUAD_(3)
        HEADLANE_INT8_QUAD_(4)
        HEADLANE_INT8_QUAD_(5)
        HEADLANE_INT8_QUAD_(6)
        HEADLANE_INT8_QUAD_(7)
#undef HEADLANE_INT8_QUAD_
      }
    }
  }
}

#undef HEADLANE_INT8_COLS_
#undef HEADLANE_INT8_LANE_

template <WeightFormat kFormat, class Format>
Int8Kernels Int8TableOf() {
  return {OperandOf<kFormat>(), &Int8OneRow<kFormat, Format>, &Int8Expand<kFormat, Format>, nullptr};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_WEIGHT_INT8_INL_H_
