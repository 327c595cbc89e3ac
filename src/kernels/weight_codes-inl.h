// Tiles of block-quantised weights as operands in registers: how a vector of codes becomes weights.
//
// Separate from weight_kernels-inl.h, the loops around it. A format is its layout (base/weight_tile.h) and where the
// scale and the minimum of a group come from. Everything is lane by lane in 32 bits: the same on every target.
#if defined(HEADLANE_SRC_KERNELS_WEIGHT_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_WEIGHT_CODES_INL_H_
#undef HEADLANE_SRC_KERNELS_WEIGHT_CODES_INL_H_
#else
#define HEADLANE_SRC_KERNELS_WEIGHT_CODES_INL_H_
#endif

#include <cstdint>

#include "base/weight_tile.h"
#include "hwy/highway.h"
#include "kernels/element-inl.h"
#include "kernels/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

// 2^exponent. Requires: a normal number.
constexpr float PowerOf2(int exponent) {
  float power = 1.0f;
  for (; exponent > 0; --exponent) power *= 2.0f;
  for (; exponent < 0; ++exponent) power *= 0.5f;
  return power;
}

HWY_INLINE VF LoadF16s(DF d, const uint8_t* p, int64_t lane) {
  return WidenF16(d, hn::LoadU(Lanes16Bit<DF>(), reinterpret_cast<const uint16_t*>(p) + lane));
}

// Words of any alignment.
HWY_INLINE VI LoadWords(DI di, const uint8_t* p) {
  return hn::BitCast(di, hn::LoadU(hn::Repartition<uint8_t, DI>(), p));
}

HWY_INLINE VI LoadWords(DI di, const uint8_t* p, int64_t lane) {
  return hn::LoadU(di, reinterpret_cast<const int32_t*>(p) + lane);
}

// The two bits on top of a word, at bit kAt.
template <int kAt>
HWY_INLINE VI TopBits(VI word) {
  const DI di;
  const hn::RebindToUnsigned<DI> du;
  const auto shifted = hn::BitCast(di, hn::ShiftRight<30 - kAt>(hn::BitCast(du, word)));
  if constexpr (kAt == 0) return shifted;
  return hn::And(shifted, hn::Set(di, 3 << kAt));
}

// Bit kBit of a word, at bit 4.
template <int kBit>
HWY_INLINE VI FifthBit(VI word) {
  const DI di;
  const hn::RebindToUnsigned<DI> du;
  return hn::And(hn::BitCast(di, hn::ShiftRight<kBit - 4>(hn::BitCast(du, word))), hn::Set(di, 16));
}

// A block is one group, with a scale and perhaps a minimum of its own.
inline constexpr int64_t kWordBytes = 4 * kTileKeys;  // from one word of a feature to the next

template <WeightFormat kFormat>
struct SimpleWeights {
  static constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  static HWY_INLINE VF Scale(DF d, const uint8_t* block, int64_t /*group*/, int64_t lane) {
    return LoadF16s(d, block + kInfo.d_at, lane);
  }
  static HWY_INLINE VF Min(DF d, const uint8_t* block, int64_t /*group*/, int64_t lane) {
    return LoadF16s(d, block + kInfo.min_at, lane);
  }
};

// 8 groups with a scale and a minimum of 6 bits.
template <WeightFormat kFormat>
struct ScaledGroups {
  static constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  static constexpr int kFields = 15;  // in three words of five; the 16th is on top of them

  // Where a field is in its word, and what makes up for that: times 2^-(6 * place).
  struct Place {
    int32_t mask;
    float power;
  };
  static constexpr Place At(int place) { return {static_cast<int32_t>(63u << (6 * place)), PowerOf2(-6 * place)}; }
  static constexpr Place kPlaces[5] = {At(0), At(1), At(2), At(3), At(4)};

  // Field times the f16 numbers at `factors`.
  static HWY_INLINE VF Field(DF d, const uint8_t* block, int64_t field, const uint8_t* factors, int64_t lane) {
    const DI di;
    const Place& place = kPlaces[static_cast<uint64_t>(field) / 3];
    const VI word = LoadWords(di, block + kInfo.scales_at + static_cast<uint64_t>(field) % 3 * kWordBytes, lane);
    const VF factor = hn::Mul(LoadF16s(d, factors, lane), hn::Set(d, place.power));
    return hn::Mul(factor, hn::ConvertTo(d, hn::And(word, hn::Set(di, place.mask))));
  }
  static HWY_INLINE VF Scale(DF d, const uint8_t* block, int64_t group, int64_t lane) {
    return Field(d, block, 2 * group, block + kInfo.d_at, lane);
  }
  static HWY_INLINE VF Min(DF d, const uint8_t* block, int64_t group, int64_t lane) {
    if (group < 7) return hn::Neg(Field(d, block, 2 * group + 1, block + kInfo.min_at, lane));
    const DI di;
    const uint8_t* const words = block + kInfo.scales_at;
    const VI low = TopBits<0>(LoadWords(di, words, lane));
    const VI middle = TopBits<2>(LoadWords(di, words + kWordBytes, lane));
    const VI high = TopBits<4>(LoadWords(di, words + 2 * kWordBytes, lane));
    const VF min = hn::ConvertTo(d, hn::Or(hn::Or(low, middle), high));
    return hn::Neg(hn::Mul(LoadF16s(d, block + kInfo.min_at, lane), min));
  }
};

// 16 groups with a scale of 8 bits.
struct Q6KWeights {
  static constexpr WeightTileInfo kInfo = WeightTileOf(WeightFormat::kQ6_K);
  static HWY_INLINE VF Scale(DF d, const uint8_t* block, int64_t group, int64_t lane) {
    const hn::Rebind<int8_t, DF> d8;
    const int8_t* const scales = reinterpret_cast<const int8_t*>(block + kInfo.scales_at) + group * kTileKeys + lane;
    const VF scale = hn::ConvertTo(d, hn::PromoteTo(DI(), hn::LoadU(d8, scales)));
    return hn::Mul(LoadF16s(d, block + kInfo.d_at, lane), scale);
  }
  static HWY_INLINE VF Min(DF d, const uint8_t*, int64_t, int64_t) { return hn::Zero(d); }
};

// Compilers would keep a register for each of a loop's constants, which few blocks have: one that is read where it is
// used.
HWY_INLINE VF ReadConstant(DF d, const float* p) {
  KeepAddress(p);
  return hn::Set(d, *p);
}

// One that becomes the next by a shift: volatile, or all of them would be made before the loops.
HWY_INLINE VI OneRegister(VI v) {
#if HWY_ARCH_X86 && !HWY_COMPILER_MSVC
  asm volatile("" : "+v"(v.raw));
#elif HWY_ARCH_ARM_A64 && !HWY_TARGET_IS_SVE && !HWY_COMPILER_MSVC
  asm volatile("" : "+w"(v.raw));
#endif
  return v;
}

// A number of turns that compilers do not know: of two turns they make two loops, with registers for both.
HWY_INLINE int64_t Turns(int64_t n) {
#if !HWY_COMPILER_MSVC
  asm volatile("" : "+r"(n));
#endif
  return n;
}

// How codes with an offset become weights. kMultiply: (code - offset) * scale, which is the definition. kAdd: code *
// scale - offset * scale in one FMA, for one instruction less. That is the same number, as the products are exact, but
// for three things: 0 * scale may be -0, which no sum shows that is a number other than 0; and where the scale is
// infinite or no number the result is none. So sums that are zero or no number are computed again the other way.
// Formats with a minimum have the FMA anyway.
enum class Expand { kMultiply, kAdd };

// Where an FMA takes no more instructions than a product, and rounds once.
#if HWY_NATIVE_FMA && (HWY_ARCH_X86 || HWY_TARGET_IS_SVE)
inline constexpr Expand kQuickExpand = Expand::kAdd;
#else
inline constexpr Expand kQuickExpand = Expand::kMultiply;
#endif

template <class Format, Expand kExpand>
inline constexpr bool kAddsToCodes = Format::kInfo.has_min || kExpand == Expand::kAdd;

// What is added to code * scale.
template <class Format, Expand kExpand>
HWY_INLINE VF AddendOf(DF d, const uint8_t* block, int64_t group, int64_t lane, [[maybe_unused]] VF scale) {
  if constexpr (Format::kInfo.has_min) return Format::Min(d, block, group, lane);
  if constexpr (kExpand == Expand::kAdd) {
    static constexpr float kOffset = static_cast<float>(-Format::kInfo.offset);
    return hn::Mul(ReadConstant(d, &kOffset), scale);
  }
  return hn::Zero(d);
}

// Weights of codes at a place: `mask` selects it, `offset` is at it, and `scale` is times 2^-(its first bit). Exact up
// to the addition of a minimum. The offset is taken off integers, because additions of floats share pipes with
// conversions.
template <class Format, Expand kExpand>
HWY_INLINE VF WeightsAtPlace(DF d, VI words, VI mask, VF scale, VF min, VI offset) {
  const VI codes = hn::And(words, mask);
  if constexpr (kAddsToCodes<Format, kExpand>) return hn::MulAdd(hn::ConvertTo(d, codes), scale, min);
  return hn::Mul(hn::ConvertTo(d, hn::Sub(codes, offset)), scale);
}

// Of what is left at the top of the words of a group: input number kIndex of those. `words` is the lane's first word.
template <class Format>
inline constexpr int kNumLeft = Format::kInfo.group - Format::kInfo.words() * Format::kInfo.places();

template <class Format, Expand kExpand, int kIndex>
HWY_INLINE VF WeightsLeft(DF d, const uint8_t* words, VF scale, VF min) {
  const DI di;
  VI codes;
  if constexpr (Format::kInfo.bits == 5) {
    constexpr int64_t kFirst = kIndex == 0 ? 0 : 3 * kWordBytes;
    codes = hn::Or(TopBits<0>(LoadWords(di, words + kFirst)), TopBits<2>(LoadWords(di, words + kFirst + kWordBytes)));
    codes = hn::Or(codes, FifthBit<30 + kIndex>(LoadWords(di, words + 2 * kWordBytes)));
  } else {
    codes = hn::Or(TopBits<0>(LoadWords(di, words)), TopBits<2>(LoadWords(di, words + kWordBytes)));
    codes = hn::Or(codes, TopBits<4>(LoadWords(di, words + 2 * kWordBytes)));
  }
  if constexpr (kAddsToCodes<Format, kExpand>) return hn::MulAdd(hn::ConvertTo(d, codes), scale, min);
  return hn::Mul(hn::ConvertTo(d, hn::Sub(codes, hn::Set(di, Format::kInfo.offset))), scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_WEIGHT_CODES_INL_H_
