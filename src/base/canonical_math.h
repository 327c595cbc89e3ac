// Constants of the canonical exp, ln and tanh: the numbers only, no code.
//
// The functions are defined by the scalar program in src/reference/canonical_math.cc; the SIMD kernels are a second
// program for the same sequence of operations, and the tests compare the two bit by bit. Only the numbers are shared,
// since a typing error in a copied coefficient is not a difference worth testing for. All values are exact floats,
// written in hexadecimal so that no compiler rounds them. They are part of the numerics version.
//
// `fma` is the IEEE operation with one rounding, u = 2^-24 is half an ulp of 1.
//
// exp (x <= 0, or any sign)
//   t = fma(x, kLog2E, kExpMagic)     adding 1.5 * 2^23 rounds to an integer, and the 127 in the magic number leaves
//   n = t - kExpMagic                 n + 127, the biased exponent of 2^n, in the low bits of t; n is near x / ln 2
//   r = fma(n, -kLn2Hi, x)            exact: a multiple of 2^-24 or of ulp(x), below 0.3466
//   r = fma(n, -kLn2Lo, r)
//   q = kExpC6, then q = fma(q, r, c) for c = kExpC5, kExpC4, kExpC3, kExpC2
//   p = fma(r * r, q, r) + 1          two more fma in the chain would save the product, but would not be monotone
//   y = p * bits(bits(t) << 23)       exact: a product with a power of two, and no result is subnormal
//   x < kExpCutoff: +0. NaN stays NaN. x = 0: p = 0 + 1 exactly.
// For x > 0, where n may be 128 and 2^128 is no float: the power is taken from min(t, kExpMagicMax), y = y + y where
// t > kExpMagicMax (exact), and +inf where x > kExpOverflow. For x <= 0 both forms have the same bits.
// Monotone over all floats (tested).
// Error, in units of u first, for p in [0.707, 1.415]:
//   0.06  the coefficients: a minimax fit of (e^r - 1 - r) / r^2 that errs by at most 3.2e-9 of p
//   0.25  the second step of r rounds by at most 2^-26
//   0.08  q errs by 0.6 u, times r^2 <= 0.121
//   0.04  r * r errs by 0.0625 u, times q <= 0.58
//   0.25  the fma rounds a number below 0.5
// Where p < 1 an ulp is u, so that these are 0.68 ulp, and the addition of 1 rounds by half an ulp: kExpMaxUlp.
// Where p >= 1 an ulp is 2 u: less.
//
// ln (every float)
//   x < 2^-126: x' = x * 2^23, k0 = -23; else x' = x, k0 = 0         x' is not subnormal; the product is exact
//   i = int32(bits(x')) - kLnSqrtHalfBits
//   e = float((i >> 23) + k0)                                        arithmetic shift; x = (1 + f) * 2^e
//   f = bits((i & 0x7FFFFF) + kLnSqrtHalfBits) - 1                   exact, 1 + f in [sqrt(1/2), sqrt(2))
//   q = kLnC10, then q = fma(q, f, c) for c = kLnC9 ... kLnC2        (ln(1 + f) - f) / f^2
//   y = fma(f * f, q, f)
//   y = fma(e, kLn2Lo, y)
//   y = fma(e, kLn2Hi, y)
//   x = +-0: -inf. x = +inf: +inf. x < 0 or NaN: NaN. x = 1: +0.
// Error, relative to ln(1 + f) in units of u:
//   0.08  the minimax fit
//   0.35  q errs by 0.7 u, times f^2 / |ln(1 + f)| <= 0.5
//   0.16  f * f errs by half an ulp, times |q f^2 / ln(1 + f)| <= 0.16
// e = 0: these are at most 0.6 ulp, and the fma rounds by half an ulp. e != 0: the result is at least 0.3465, where an
// ulp is u / 2; y is at most 0.3466 and brings 0.59 * 0.3466 u + 0.25 u, the step with kLn2Lo rounds by 0.25 u, the
// last one by half an ulp: 1.9 ulp, below kLnMaxUlp.
//
// tanh (every float): tanh |x| = -g / (2 + g), g = e^(-2 |x|) - 1 in [-1, 0], without cancellation
//   z = -2 * |x|; z < kTanhClamp: z = kTanhClamp (NaN stays)
//   t, n, r, q as for exp
//   s = bits(bits(t) << 23)
//   g = fma(s, fma(r * r, q, r), s - 1)
//   y = -g / (2 + g), with the sign of x                             IEEE division
//   tanh(+-0) = +-0, tanh(+-inf) = +-1, odd by construction.
// Error: an error of g reaches y with the factor 2 / (2 + g), at most 2. Near y = 1, where ulps are finest, g errs by
// 0.5 u of its own rounding and at most 0.2 u of its parts, 2 + g rounds by u of itself, the division by 0.5 u; in sum
// 2.9 u; smaller y have coarser ulps and smaller factors: below kTanhMaxUlp.
#ifndef HEADLANE_SRC_BASE_CANONICAL_MATH_H_
#define HEADLANE_SRC_BASE_CANONICAL_MATH_H_

#include <cstdint>

namespace headlane::internal {

inline constexpr float kLog2E = 0x1.715476p+0f;    // log2(e)
inline constexpr float kLn2Hi = 0x1.62e430p-1f;    // ln(2) to 24 bits
inline constexpr float kLn2Lo = -0x1.05c610p-29f;  // ln(2) - kLn2Hi

inline constexpr float kExpMagic = 12583039.0f;        // 1.5 * 2^23 + 127; 0x4B40007F
inline constexpr float kExpMagicMax = 12583166.0f;     // kExpMagic + 127: 2^127 is the largest power that is a float
inline constexpr float kExpCutoff = -0x1.5d589ep+6f;   // -87.33654: the smallest float whose exp is at least 2^-126
inline constexpr float kExpOverflow = 0x1.62e42ep+6f;  // 88.72283: the largest float whose exp is finite

inline constexpr float kExpC2 = 0x1.fffffcp-2f;
inline constexpr float kExpC3 = 0x1.55548cp-3f;
inline constexpr float kExpC4 = 0x1.555858p-5f;
inline constexpr float kExpC5 = 0x1.123de0p-7f;
inline constexpr float kExpC6 = 0x1.6ac74ep-10f;

inline constexpr int32_t kLnSqrtHalfBits = 0x3F3504F3;  // sqrt(1/2)
inline constexpr float kLnC2 = -0x1.fffff8p-2f;
inline constexpr float kLnC3 = 0x1.555550p-2f;
inline constexpr float kLnC4 = -0x1.000432p-2f;
inline constexpr float kLnC5 = 0x1.99a3e2p-3f;
inline constexpr float kLnC6 = -0x1.542584p-3f;
inline constexpr float kLnC7 = 0x1.2273f4p-3f;
inline constexpr float kLnC8 = -0x1.0f48fep-3f;
inline constexpr float kLnC9 = 0x1.083896p-3f;
inline constexpr float kLnC10 = -0x1.37acdep-4f;

inline constexpr float kTanhClamp = -20.0f;  // e^-20 is less than half an ulp of 1

// Largest errors in ulps of the exact result: derived above, and observed (exp over every float, the others over a
// dense sample). Tests assert that the observed ones are reached and not passed.
inline constexpr double kExpMaxUlp = 1.2;
inline constexpr double kExpObservedUlp = 1.013;
inline constexpr double kLnMaxUlp = 2.0;
inline constexpr double kLnObservedUlp = 0.920;
inline constexpr double kTanhMaxUlp = 3.0;
inline constexpr double kTanhObservedUlp = 2.499;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_CANONICAL_MATH_H_
