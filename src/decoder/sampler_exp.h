// exp for the sampler, in plain double arithmetic.
//
// Own, because the token drawn must not depend on the C library. Apart from the kernels' exp, which is f32, in vectors,
// and behind a seam that this folder does not see. Included by sampler.cc and its test.
#ifndef HEADLANE_SRC_DECODER_SAMPLER_EXP_H_
#define HEADLANE_SRC_DECODER_SAMPLER_EXP_H_

#include <bit>
#include <cstdint>

namespace headlane::decoder_internal {

// e^x for x <= 0 within 4 ulp (relative 2^-50): 1 at 0, monotone enough for weights, and +0 below -708, where a weight
// next to a 1 means nothing. x is not NaN.
//
// x = k ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series up to r^13, whose rest is below 2^-57; times 2^k, which
// is exact. ln 2 is split in two, the first part with so few bits that its product with k is exact.
inline double ExpNonPositive(double x) noexcept {
  if (x < -708.0) return 0.0;
  constexpr double kInvLn2 = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const int32_t k = static_cast<int32_t>(x * kInvLn2 - 0.5);  // towards zero: the nearest, for x <= 0
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double sum = 1.0 / 6227020800.0;
  for (const double factorial :
       {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0}) {
    sum = sum * r + 1.0 / factorial;
  }
  return sum * std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

}  // namespace headlane::decoder_internal

#endif  // HEADLANE_SRC_DECODER_SAMPLER_EXP_H_
