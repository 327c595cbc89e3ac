// What a kernel's result must be on a target: the canonical bits with FMA, close to them without.
#ifndef HEADLANE_TESTS_KERNELS_COMPARE_H_
#define HEADLANE_TESTS_KERNELS_COMPARE_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "headlane/target.h"
#include "support/bits.h"

namespace headlane::testing {

// `tolerance`: absolute, for targets without FMA. NaN compares equal to any NaN. With `signed_zeros` off, -0 equals +0:
// for sums to which a kernel may add products with weight 0.
inline ::testing::AssertionResult Matches(const TargetInfo& target, const float* expected, const float* actual,
                                          size_t n, double tolerance, bool signed_zeros = true) {
  for (size_t i = 0; i < n; ++i) {
    if (SameBits(expected[i], actual[i], NaNs::kEqual)) continue;
    if (!signed_zeros && expected[i] == 0.0f && actual[i] == 0.0f) continue;
    const double difference = std::fabs(static_cast<double>(expected[i]) - static_cast<double>(actual[i]));
    if (!target.has_fma && difference <= tolerance) continue;
    return ::testing::AssertionFailure() << target.name << ": [" << i << "] of " << n << ": expected " << std::hexfloat
                                         << expected[i] << ", got " << actual[i] << std::defaultfloat << ", "
                                         << difference << " apart";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_KERNELS_COMPARE_H_
