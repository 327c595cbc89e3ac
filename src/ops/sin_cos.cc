// Both ways reduce the angle to |r| <= pi / 4 in double-double and sum Taylor series: the quick one in double (relative
// error below 2^-50, and it knows when that is too much to round safely, as in Ziv 1991), the exact one in
// double-double.
#include "ops/sin_cos.h"

#include <cstdint>

namespace headlane::internal {
namespace {

// pi / 2 in three parts; what is left is below 2^-161.
constexpr double kHalfPi1 = 0x1.921fb54442d18p+0;
constexpr double kHalfPi2 = 0x1.1a62633145c07p-54;
constexpr double kHalfPi3 = -0x1.f1976b7ed8fbcp-110;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

struct Reduced {
  DoubleDouble r;    // |r| <= pi / 4, a little more by the rounding of the quotient
  int64_t quadrant;  // 0 .. 3: angle = r + quadrant * pi / 2, up to whole turns
};

Reduced Reduce(const DoubleDouble& angle) {
  const double quotient = RoundToInteger(angle.hi * kTwoOverPi);
  const DoubleDouble p1 = TwoProduct(quotient, kHalfPi1);
  const DoubleDouble p2 = TwoProduct(quotient, kHalfPi2);
  // The first difference is exact: the quotient is 0, or both sides agree to a factor of 2.
  const DoubleDouble high = TwoSum(angle.hi - p1.hi, -p1.lo);
  const DoubleDouble low = TwoSum(angle.lo, -p2.hi);
  const DoubleDouble r = Add(Add(high, low), -(p2.lo + quotient * kHalfPi3));
  return {r, static_cast<int64_t>(quotient) & 3};
}

// The float that every number within `error` of `value` rounds to, or false.
bool RoundIfSafe(double value, double error, float* out) {
  const float below = static_cast<float>(value - error);
  const float above = static_cast<float>(value + error);
  *out = below;
  return below == above;
}

// sin(r + quadrant * pi / 2) from both values at r.
template <typename T, typename Negation>
void Turn(int64_t quadrant, const T& sin_r, const T& cos_r, Negation negate, T* sin, T* cos) {
  const T& s = quadrant % 2 == 0 ? sin_r : cos_r;
  const T& c = quadrant % 2 == 0 ? cos_r : sin_r;
  *sin = quadrant >= 2 ? negate(s) : s;
  *cos = quadrant == 1 || quadrant == 2 ? negate(c) : c;
}

}  // namespace

void SinCos(const DoubleDouble& angle, double scale, float* sin, float* cos) noexcept {
  const Reduced reduced = Reduce(angle);
  const double r = reduced.r.hi;
  const double r2 = r * r;
  // Inverse factorials with alternating signs; the first left-out terms are below 2^-58 of the sums (0.7855^18 / 19!,
  // 0.7855^18 / 18!).
  double s = 1.0 / 355687428096000.0;
  s = s * r2 - 1.0 / 1307674368000.0;
  s = s * r2 + 1.0 / 6227020800.0;
  s = s * r2 - 1.0 / 39916800.0;
  s = s * r2 + 1.0 / 362880.0;
  s = s * r2 - 1.0 / 5040.0;
  s = s * r2 + 1.0 / 120.0;
  s = s * r2 - 1.0 / 6.0;
  double c = 1.0 / 20922789888000.0;
  c = c * r2 - 1.0 / 87178291200.0;
  c = c * r2 + 1.0 / 479001600.0;
  c = c * r2 - 1.0 / 3628800.0;
  c = c * r2 + 1.0 / 40320.0;
  c = c * r2 - 1.0 / 720.0;
  c = c * r2 + 1.0 / 24.0;
  // sin(hi + lo) = sin(hi) + lo cos(hi), cos(hi + lo) = cos(hi) - lo sin(hi), to within lo^2 < 2^-106.
  const double half_r2 = 0.5 * r2;
  const double sin_r = r + (r * r2 * s + reduced.r.lo * (1.0 - half_r2));
  const double cos_r = 1.0 - (half_r2 - (r2 * r2 * c - r * reduced.r.lo));

  double sin_value = 0.0;
  double cos_value = 0.0;
  Turn(reduced.quadrant, sin_r, cos_r, [](double x) { return -x; }, &sin_value, &cos_value);
  const double angle_error = kAngleError * (angle.hi < 0.0 ? -angle.hi : angle.hi);
  // 2^-50 of the series, 2^-53 of each product with the scale.
  const double sin_error = (0x1p-49 * (sin_value < 0.0 ? -sin_value : sin_value) + angle_error) * scale;
  const double cos_error = (0x1p-49 * (cos_value < 0.0 ? -cos_value : cos_value) + angle_error) * scale;
  const bool sin_is_safe = RoundIfSafe(sin_value * scale, sin_error, sin);
  const bool cos_is_safe = RoundIfSafe(cos_value * scale, cos_error, cos);
  if (!sin_is_safe || !cos_is_safe) SinCosExact(angle, scale, sin, cos);
}

void SinCosExact(const DoubleDouble& angle, double scale, float* sin, float* cos) noexcept {
  const Reduced reduced = Reduce(angle);
  const DoubleDouble minus_r2 = Negate(Multiply(reduced.r, reduced.r));
  DoubleDouble sin_r;
  DoubleDouble cos_r;
  // Terms r^n / n!, each from the one before the last; from the smallest on, so that no sum rounds more than it must:
  // up to n = 27, 0.7855^28 / 28! < 2^-107.
  constexpr int kTerms = 28;
  DoubleDouble terms[kTerms];
  terms[0] = {1.0, 0.0};
  terms[1] = reduced.r;
  for (int n = 2; n < kTerms; ++n)
    terms[n] = Divide(Multiply(terms[n - 2], minus_r2), static_cast<double>(n * (n - 1)));
  for (int n = kTerms - 2; n >= 0; n -= 2) {
    cos_r = Add(cos_r, terms[n]);
    sin_r = Add(sin_r, terms[n + 1]);
  }
  DoubleDouble sin_value;
  DoubleDouble cos_value;
  Turn(reduced.quadrant, sin_r, cos_r, [](const DoubleDouble& x) { return Negate(x); }, &sin_value, &cos_value);
  *sin = RoundToFloat(Multiply(sin_value, scale));
  *cos = RoundToFloat(Multiply(cos_value, scale));
}

}  // namespace headlane::internal
