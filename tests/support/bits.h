// Comparing floats by their bits, with a message that says where and how far apart.
#ifndef HEADLANE_TESTS_SUPPORT_BITS_H_
#define HEADLANE_TESTS_SUPPORT_BITS_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headlane::testing {

enum class NaNs {
  kExact,  // a NaN is a pattern of bits like any other
  kEqual,  // any NaN equals any NaN: where the library promises a NaN but not which
};

// Two numbers: one line when they differ.
bool SameBits(float a, float b, NaNs nans = NaNs::kExact);

::testing::AssertionResult SameBits(const float* expected, const float* actual, size_t n, NaNs nans = NaNs::kExact);
inline ::testing::AssertionResult SameBits(const std::vector<float>& expected, const std::vector<float>& actual,
                                           NaNs nans = NaNs::kExact) {
  if (expected.size() != actual.size()) {
    return ::testing::AssertionFailure() << "sizes differ: " << expected.size() << " and " << actual.size();
  }
  return SameBits(expected.data(), actual.data(), expected.size(), nans);
}

// |expected[i] - actual[i]| <= bound[i] for all i; NaN wants NaN, infinities want themselves.
::testing::AssertionResult Within(const double* expected, const float* actual, const double* bound, size_t n);

// A hash of the bits, byte order independent (FNV-1a over the 32-bit patterns).
uint64_t HashBits(const float* data, size_t n);

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_SUPPORT_BITS_H_
