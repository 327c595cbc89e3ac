// f32, f16 and bf16 in memory as vectors and scalars of f32 in registers: the only place that knows the formats.
//
// Widening is exact. Narrowing rounds to nearest even by integer arithmetic on every target, because instructions
// differ on NaN, and on denormals where the caller has them flushed. The bits are those of base/float16.h.
#if defined(HEADLANE_SRC_KERNELS_ELEMENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_ELEMENT_INL_H_
#undef HEADLANE_SRC_KERNELS_ELEMENT_INL_H_
#else
#define HEADLANE_SRC_KERNELS_ELEMENT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "headlane/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Targets that widen f16 in one instruction, exactly and whatever the floating-point environment is.
#undef HEADLANE_WIDENS_F16
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
#define HEADLANE_WIDENS_F16 1
#else
#define HEADLANE_WIDENS_F16 0
#endif

// The 16-bit lanes beside D's lanes of f32.
template <class D>
using Lanes16Bit = hn::Rebind<uint16_t, D>;

template <class D>
HWY_INLINE HWY_MAYBE_UNUSED hn::Vec<D> WidenF16(D d, hn::Vec<Lanes16Bit<D>> v) {
#if HEADLANE_WIDENS_F16
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), v));
#else
  const hn::RebindToSigned<D> di;
  const auto bits = hn::PromoteTo(di, v);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(di, 0x7FFF)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(di, 0x8000)));
  // The exponents' biases differ by 112, and once more where f16's exponent is all ones.
  const auto rebias = hn::Set(di, 112 << 23);
  const auto special = hn::Gt(magnitude, hn::Set(di, (0x7C00 << 13) - 1));
  auto wide = hn::Add(magnitude, rebias);
  wide = hn::Add(wide, hn::IfThenElseZero(special, rebias));
  const auto nan = hn::Gt(magnitude, hn::Set(di, 0x7C00 << 13));
  wide = hn::Or(wide, hn::IfThenElseZero(nan, hn::Set(di, 0x00400000)));
  // A denormal, m * 2^-24, is 2^-14 * (1 + m / 1024) - 2^-14: exact, without a denormal of f32 on the way.
  const auto least_normal = hn::Set(di, 113 << 23);
  const auto denormal = hn::Sub(hn::BitCast(d, hn::Or(magnitude, least_normal)), hn::BitCast(d, least_normal));
  const auto is_denormal = hn::Lt(magnitude, hn::Set(di, 0x0400 << 13));
  wide = hn::IfThenElse(is_denormal, hn::BitCast(di, denormal), wide);
  return hn::BitCast(d, hn::Or(wide, sign));
#endif
}

// Integers of 8 and 16 bits as lanes of 32, from any address. SVE widens while it loads, which Highway does not.
template <class D>
HWY_INLINE HWY_MAYBE_UNUSED hn::Vec<hn::RebindToSigned<D>> LoadSigned8([[maybe_unused]] D d, const uint8_t* p) {
  const int8_t* const p8 = reinterpret_cast<const int8_t*>(p);
#if HWY_TARGET_IS_SVE
  return svld1sb_s32(svwhilelt_b32(uint64_t{0}, uint64_t{hn::Lanes(d)}), p8);
#else
  return hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(hn::Rebind<int8_t, D>(), p8));
#endif
}
template <class D>
HWY_INLINE HWY_MAYBE_UNUSED hn::Vec<hn::RebindToUnsigned<D>> Load16([[maybe_unused]] D d, const uint16_t* p) {
#if HWY_TARGET_IS_SVE
  return svld1uh_u32(svwhilelt_b32(uint64_t{0}, uint64_t{hn::Lanes(d)}), p);
#else
  return hn::PromoteTo(hn::RebindToUnsigned<D>(), hn::LoadU(Lanes16Bit<D>(), p));
#endif
}

template <class D>
HWY_INLINE HWY_MAYBE_UNUSED hn::Vec<D> LoadF16(D d, const uint16_t* p) {
#if HWY_TARGET_IS_SVE
  return svcvt_f32_f16_x(svptrue_b32(), svreinterpret_f16_u32(Load16(d, p)));
#else
  return WidenF16(d, hn::LoadU(Lanes16Bit<D>(), p));
#endif
}
template <class D>
HWY_INLINE HWY_MAYBE_UNUSED hn::Vec<D> LoadBF16(D d, const uint16_t* p) {
  return hn::BitCast(d, hn::ShiftLeft<16>(Load16(d, p)));
}

template <class D>
HWY_INLINE HWY_MAYBE_UNUSED hn::Vec<D> WidenBF16(D d, hn::Vec<Lanes16Bit<D>> v) {
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), v)));
}

// Bits of f16 in the low half of each lane.
template <class D>
HWY_INLINE HWY_MAYBE_UNUSED hn::Vec<hn::RebindToSigned<D>> F16Bits(D /*d*/, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, x);
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
  const auto one = hn::Set(di, 1);
  // Normal: a carry out of the mantissa raises the exponent, up to infinity, as it should.
  const auto rebiased = hn::Sub(magnitude, hn::Set(di, 112 << 23));
  const auto odd = hn::And(hn::ShiftRight<13>(rebiased), one);
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(rebiased, hn::Set(di, 0xFFF)), odd));
  // Denormal: the mantissa with its hidden bit as a multiple of 2^-24. From a shift of 25 on nothing is left of it.
  auto shift = hn::Sub(hn::Set(di, 126), hn::ShiftRight<23>(magnitude));
  shift = hn::Min(hn::Max(shift, one), hn::Set(di, 25));
  const auto mantissa = hn::Or(hn::And(magnitude, hn::Set(di, 0x007FFFFF)), hn::Set(di, 0x00800000));
  const auto half_step = hn::Sub(hn::Shl(one, hn::Sub(shift, one)), one);
  const auto denormal_odd = hn::And(hn::Shr(mantissa, shift), one);
  const auto denormal = hn::Shr(hn::Add(hn::Add(mantissa, half_step), denormal_odd), shift);

  auto half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x38800000)), denormal, normal);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x477FFFFF)), hn::Set(di, 0x7C00), half);
  const auto nan = hn::Gt(magnitude, hn::Set(di, 0x7F800000));
  return hn::IfThenElse(nan, hn::Set(di, kCanonicalF16NaN), hn::Or(half, sign));
}

// Bits of bf16 in the low half of each lane.
template <class D>
HWY_INLINE HWY_MAYBE_UNUSED hn::Vec<hn::RebindToSigned<D>> BF16Bits(D /*d*/, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd));
  const auto nan = hn::Gt(hn::And(hn::BitCast(di, x), hn::Set(di, 0x7FFFFFFF)), hn::Set(di, 0x7F800000));
  return hn::IfThenElse(nan, hn::Set(di, kCanonicalBF16NaN), hn::BitCast(di, rounded));
}

// The first n lanes. Whole vectors are no masked store, which takes AMD's processors 20 times as long.
template <class D, class T>
HWY_INLINE HWY_MAYBE_UNUSED void StoreFirst(D d, hn::Vec<D> v, T* p, size_t n) {
  if (HWY_LIKELY(n == hn::Lanes(d))) return hn::StoreU(v, d, p);
  hn::StoreN(v, d, p, n);
}

// What an array of one element type is to a kernel. `Bits` of a number are its stored form, widened to 32 bits.
struct F32Element {
  using T = float;
  static constexpr DType kDType = DType::kF32;
  static float ToF32(T x) { return x; }
  static T FromF32(float x) { return x; }
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* p) {
    return hn::LoadU(d, p);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadN(D d, const T* p, size_t n) {
    return hn::LoadN(d, p, n);
  }
  template <class D>
  static HWY_INLINE void StoreN(D d, hn::Vec<D> v, T* p, size_t n) {
    StoreFirst(d, v, p, n);
  }
};

struct F16Element {
  using T = uint16_t;
  static constexpr DType kDType = DType::kF16;
  static float ToF32(T x) { return F16ToF32(x); }
  static T FromF32(float x) { return F32ToF16(x); }
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* p) {
    return LoadF16(d, p);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadN(D d, const T* p, size_t n) {
    return WidenF16(d, hn::LoadN(Lanes16Bit<D>(), p, n));
  }
  template <class D>
  static HWY_INLINE hn::Vec<hn::RebindToSigned<D>> Bits(D d, hn::Vec<D> v) {
    return F16Bits(d, v);
  }
  template <class D>
  static HWY_INLINE void StoreN(D d, hn::Vec<D> v, T* p, size_t n) {
    const Lanes16Bit<D> d16;
    StoreFirst(d16, hn::DemoteTo(d16, Bits(d, v)), p, n);
  }
};

struct BF16Element {
  using T = uint16_t;
  static constexpr DType kDType = DType::kBF16;
  static float ToF32(T x) { return BF16ToF32(x); }
  static T FromF32(float x) { return F32ToBF16(x); }
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* p) {
    return LoadBF16(d, p);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadN(D d, const T* p, size_t n) {
    return WidenBF16(d, hn::LoadN(Lanes16Bit<D>(), p, n));
  }
  template <class D>
  static HWY_INLINE hn::Vec<hn::RebindToSigned<D>> Bits(D d, hn::Vec<D> v) {
    return BF16Bits(d, v);
  }
  template <class D>
  static HWY_INLINE void StoreN(D d, hn::Vec<D> v, T* p, size_t n) {
    const Lanes16Bit<D> d16;
    StoreFirst(d16, hn::DemoteTo(d16, Bits(d, v)), p, n);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_ELEMENT_INL_H_
