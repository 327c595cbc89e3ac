#include "ops/double_double.h"

#include <array>
#include <bit>
#include <cfloat>

static_assert(FLT_EVAL_METHOD == 0, "error-free transforms need double arithmetic to round to double");
#if defined(__FAST_MATH__)
#error "error-free transforms do not survive -ffast-math"
#endif

namespace headlane::internal {
namespace {

// Taylor terms of exp up to x^22: |x| <= ln(2) / 2 leaves a remainder below 0.347^23 / 23! < 2^-109.
constexpr int kExpTerms = 23;
// From this term on, the terms are so small that double's precision is enough: 0.347^13 / 13! < 2^-52.
constexpr int kFirstDoubleTerm = 13;

// 1 / n!.
constexpr std::array<DoubleDouble, kExpTerms> InverseFactorials() {
  std::array<DoubleDouble, kExpTerms> inverse{};
  DoubleDouble factorial = {1.0, 0.0};  // exact: the last 19 of the 70 bits of 22! are 0
  for (int n = 0; n < kExpTerms; ++n) {
    if (n > 0) factorial = Multiply(factorial, n);
    inverse[n] = Divide({1.0, 0.0}, factorial);
  }
  return inverse;
}
constexpr std::array<DoubleDouble, kExpTerms> kInverseFactorial = InverseFactorials();

// 2^exponent. Requires: -1022 <= exponent <= 1023.
constexpr double PowerOfTwo(int64_t exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// log2(a) to about 2^-49: a start for Newton's iteration.
double ApproximateLog2(double a) {
  // a = 2^exponent * mantissa, mantissa in [0.75, 1.5), so that the result does not cancel.
  const uint64_t bits = std::bit_cast<uint64_t>(a);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (mantissa >= 1.5) {
    mantissa *= 0.5;
    ++exponent;
  }
  // ln(mantissa) = 2 artanh(s), |s| <= 1/5: terms up to s^25, the next is below 2^-60 of s.
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double s2 = s * s;
  double series = 0.0;
  for (int n = 25; n >= 1; n -= 2) series = series * s2 + 1.0 / n;
  return static_cast<double>(exponent) + 2.0 * s * series / kLn2.hi;
}

}  // namespace

DoubleDouble Exp2(const DoubleDouble& a) noexcept {
  const double exponent = RoundToInteger(a.hi);
  const DoubleDouble x = Multiply(kLn2, Add(a, -exponent));
  double tail = kInverseFactorial[kExpTerms - 1].hi;
  for (int n = kExpTerms - 2; n >= kFirstDoubleTerm; --n) tail = tail * x.hi + kInverseFactorial[n].hi;
  DoubleDouble sum = {tail, 0.0};
  for (int n = kFirstDoubleTerm - 1; n >= 0; --n) sum = Add(Multiply(sum, x), kInverseFactorial[n]);
  const double power = PowerOfTwo(static_cast<int64_t>(exponent));
  return {sum.hi * power, sum.lo * power};
}

DoubleDouble Log2(double a) noexcept {
  // log2(a) = y + log2(1 + w), w = a / 2^y - 1, |w| < 2^-45 by the quality of y: ln(1 + w) = w - w^2 / 2 to within w^3.
  const double y = ApproximateLog2(a);
  const DoubleDouble w = Add(Multiply(Exp2({-y, 0.0}), a), -1.0);
  const DoubleDouble ln = Add(w, -0.5 * w.hi * w.hi);
  return Add(Divide(ln, kLn2), y);
}

float RoundToFloat(const DoubleDouble& a) noexcept {
  // Round to odd: a hi whose last bit is set can't be a tie of float's, and rounds like the sum. It is exact enough
  // because double has more than two bits beyond float's.
  uint64_t bits = std::bit_cast<uint64_t>(a.hi);
  if (a.lo != 0.0 && (bits & 1) == 0) bits += (a.lo > 0.0) == (a.hi > 0.0) ? 1 : static_cast<uint64_t>(-1);
  return static_cast<float>(std::bit_cast<double>(bits));
}

}  // namespace headlane::internal
