// Numbers of twice double's precision: the unevaluated sum of two doubles, hi + lo with |lo| <= ulp(hi) / 2.
//
// Separate from the rotary embedding, their only user, so that their error bounds can be read and tested on their own.
// Built on + - * / of IEEE double alone: no libm, which chooses variants by CPU, and no fma, which is a slow call on
// machines that lack the instruction.
//
// Error bounds are relative, with u = 2^-53 (Joldes, Muller and Popescu, "Tight and rigorous error bounds for basic
// building blocks of double-word arithmetic", 2017; Dekker 1971 for the products). Requires: round to nearest, no
// contraction; |values| < 2^990 where a product is formed.
#ifndef HEADLANE_SRC_OPS_DOUBLE_DOUBLE_H_
#define HEADLANE_SRC_OPS_DOUBLE_DOUBLE_H_

#include <cstdint>

namespace headlane::internal {

struct DoubleDouble {
  double hi = 0.0;
  double lo = 0.0;
};

// ln 2 = 0.693147180559945309417232121458176568...
inline constexpr DoubleDouble kLn2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};

// a + b, exactly.
constexpr DoubleDouble TwoSum(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  const double a_part = sum - b_part;
  return {sum, (a - a_part) + (b - b_part)};
}

// The same for |a| >= |b| or a == 0.
constexpr DoubleDouble FastTwoSum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

// a = hi + lo, exactly, of 26 bits each.
constexpr DoubleDouble Split(double a) {
  const double scaled = 134217729.0 * a;  // 2^27 + 1
  const double hi = scaled - (scaled - a);
  return {hi, a - hi};
}

// a * b, exactly.
constexpr DoubleDouble TwoProduct(double a, double b) {
  const double product = a * b;
  const DoubleDouble sa = Split(a);
  const DoubleDouble sb = Split(b);
  return {product, ((sa.hi * sb.hi - product) + sa.hi * sb.lo + sa.lo * sb.hi) + sa.lo * sb.lo};
}

constexpr DoubleDouble Negate(const DoubleDouble& a) { return {-a.hi, -a.lo}; }

// Within 3 u^2, also when a and b nearly cancel.
constexpr DoubleDouble Add(const DoubleDouble& a, const DoubleDouble& b) {
  const DoubleDouble high = TwoSum(a.hi, b.hi);
  const DoubleDouble low = TwoSum(a.lo, b.lo);
  const DoubleDouble middle = FastTwoSum(high.hi, high.lo + low.hi);
  return FastTwoSum(middle.hi, low.lo + middle.lo);
}

// Within 2 u^2.
constexpr DoubleDouble Add(const DoubleDouble& a, double b) {
  const DoubleDouble high = TwoSum(a.hi, b);
  return FastTwoSum(high.hi, a.lo + high.lo);
}

// Within 7 u^2.
constexpr DoubleDouble Multiply(const DoubleDouble& a, const DoubleDouble& b) {
  const DoubleDouble product = TwoProduct(a.hi, b.hi);
  return FastTwoSum(product.hi, product.lo + (a.hi * b.lo + a.lo * b.hi));
}

// Within 3 u^2.
constexpr DoubleDouble Multiply(const DoubleDouble& a, double b) {
  const DoubleDouble product = TwoProduct(a.hi, b);
  return FastTwoSum(product.hi, product.lo + a.lo * b);
}

// Within 3.5 u^2.
constexpr DoubleDouble Divide(const DoubleDouble& a, double b) {
  const double quotient = a.hi / b;
  const DoubleDouble product = TwoProduct(quotient, b);
  return FastTwoSum(quotient, ((a.hi - product.hi) - product.lo + a.lo) / b);
}

// Within 15 u^2.
constexpr DoubleDouble Divide(const DoubleDouble& a, const DoubleDouble& b) {
  const double quotient = a.hi / b.hi;
  const DoubleDouble product = Multiply(b, quotient);
  return FastTwoSum(quotient, ((a.hi - product.hi) + (a.lo - product.lo)) / b.hi);
}

// The integer next to a, ties to even. Requires: |a| < 2^51.
constexpr double RoundToInteger(double a) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: its ulp is 1
  return (a + kMagic) - kMagic;
}

// 2^a, within 2^-101 relative. Requires: |a.hi| <= 1000.
DoubleDouble Exp2(const DoubleDouble& a) noexcept;

// log2(a), within 2^-101 * max(1, |result|). Requires: 2^-1000 < a < 2^1000.
DoubleDouble Log2(double a) noexcept;

// a rounded to float once, as if hi + lo had been rounded exactly; hi alone would be rounded twice.
float RoundToFloat(const DoubleDouble& a) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_OPS_DOUBLE_DOUBLE_H_
