// exp, ln and tanh: the SIMD form of the programs that base/canonical_math.h defines and whose errors it derives.
//
// Every step is one IEEE operation in the order given there, so that all targets with FMA produce the same bits as the
// scalar program.
#if defined(HEADLANE_SRC_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_SIMD_MATH_INL_H_
#undef HEADLANE_SRC_KERNELS_SIMD_MATH_INL_H_
#else
#define HEADLANE_SRC_KERNELS_SIMD_MATH_INL_H_
#endif

#include <limits>

#include "base/canonical_math.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// x = n ln 2 + r. t holds n + 127 in its low bits.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ReduceByLn2(D d, V x, V& t) {
  t = hn::MulAdd(x, hn::Set(d, kLog2E), hn::Set(d, kExpMagic));
  const V n = hn::Sub(t, hn::Set(d, kExpMagic));
#if HWY_NATIVE_FMA
  return hn::NegMulAdd(n, hn::Set(d, kLn2Lo), hn::NegMulAdd(n, hn::Set(d, kLn2Hi), x));
#else
  // Without FMA a product with kLn2Hi's 24 bits would be rounded: three parts, the first two of 15 bits, whose products
  // with n, of 8 bits, are exact.
  const V r = hn::Sub(x, hn::Mul(n, hn::Set(d, 0x1.62e4p-1f)));
  return hn::Sub(hn::Sub(r, hn::Mul(n, hn::Set(d, 0x1.7f7cp-20f))), hn::Mul(n, hn::Set(d, 0x1.1cf79ap-36f)));
#endif
}

// e^r - 1 for |r| <= ln 2 / 2.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpMinusOne(D d, V r) {
  V p = hn::MulAdd(hn::Set(d, kExpC6), r, hn::Set(d, kExpC5));
  p = hn::MulAdd(p, r, hn::Set(d, kExpC4));
  p = hn::MulAdd(p, r, hn::Set(d, kExpC3));
  p = hn::MulAdd(p, r, hn::Set(d, kExpC2));
  return hn::MulAdd(hn::Mul(r, r), p, r);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V PowerOfTwo(D d, V t) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, t)));
}

// e^x from its two parts: e^r * scale.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpFromParts(D d, V r, V scale) {
  return hn::Mul(hn::Add(ExpMinusOne(d, r), hn::Set(d, 1.0f)), scale);
}

// e^x for x <= 0. What it gives for x > 0 is not defined.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
  V t;
  const V r = ReduceByLn2(d, x, t);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kExpCutoff)), ExpFromParts(d, r, PowerOfTwo(d, t)));
}

// e^x for any x; the same bits as ExpNonPositive for x <= 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE HWY_MAYBE_UNUSED V Exp(D d, V x) {
  V t;
  const V r = ReduceByLn2(d, x, t);
  const V p = hn::Add(ExpMinusOne(d, r), hn::Set(d, 1.0f));
  const V t_max = hn::Set(d, kExpMagicMax);
  const auto large = hn::Gt(t, t_max);
  V y = hn::Mul(p, PowerOfTwo(d, hn::IfThenElse(large, t_max, t)));
  y = hn::IfThenElse(large, hn::Add(y, y), y);
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d, kExpOverflow)), hn::Set(d, std::numeric_limits<float>::infinity()), y);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kExpCutoff)), y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE HWY_MAYBE_UNUSED V Log(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const auto small = hn::Lt(x, hn::Set(d, 0x1p-126f));
  const V scaled = hn::IfThenElse(small, hn::Mul(x, hn::Set(d, 0x1p23f)), x);
  const auto i = hn::Sub(hn::BitCast(di, scaled), hn::Set(di, kLnSqrtHalfBits));
  const auto k = hn::Add(hn::ShiftRight<23>(i), hn::IfThenElseZero(hn::RebindMask(di, small), hn::Set(di, -23)));
  const V e = hn::ConvertTo(d, k);
  const V f = hn::Sub(hn::BitCast(d, hn::Add(hn::And(i, hn::Set(di, 0x7FFFFF)), hn::Set(di, kLnSqrtHalfBits))),
                      hn::Set(d, 1.0f));
  V q = hn::MulAdd(hn::Set(d, kLnC10), f, hn::Set(d, kLnC9));
  q = hn::MulAdd(q, f, hn::Set(d, kLnC8));
  q = hn::MulAdd(q, f, hn::Set(d, kLnC7));
  q = hn::MulAdd(q, f, hn::Set(d, kLnC6));
  q = hn::MulAdd(q, f, hn::Set(d, kLnC5));
  q = hn::MulAdd(q, f, hn::Set(d, kLnC4));
  q = hn::MulAdd(q, f, hn::Set(d, kLnC3));
  q = hn::MulAdd(q, f, hn::Set(d, kLnC2));
  V y = hn::MulAdd(hn::Mul(f, f), q, f);
  y = hn::MulAdd(e, hn::Set(d, kLn2Lo), y);
  y = hn::MulAdd(e, hn::Set(d, kLn2Hi), y);
  const V zero = hn::Zero(d);
  y = hn::IfThenElse(hn::Eq(x, infinity), infinity, y);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
  // Negative or NaN.
  return hn::IfThenElse(hn::Ge(x, zero), y, hn::Set(d, std::numeric_limits<float>::quiet_NaN()));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE HWY_MAYBE_UNUSED V Tanh(D d, V x) {
  const V clamp = hn::Set(d, kTanhClamp);
  V z = hn::Mul(hn::Set(d, -2.0f), hn::Abs(x));
  z = hn::IfThenElse(hn::Lt(z, clamp), clamp, z);
  V t;
  const V r = ReduceByLn2(d, z, t);
  const V scale = PowerOfTwo(d, t);
  const V g = hn::MulAdd(scale, ExpMinusOne(d, r), hn::Sub(scale, hn::Set(d, 1.0f)));
  const V y = hn::Div(hn::Neg(g), hn::Add(hn::Set(d, 2.0f), g));
  return hn::CopySign(y, x);
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_SIMD_MATH_INL_H_
