#include "support/bits.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <string>

namespace headlane::testing {
namespace {

std::string Show(float x) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.9g (%08X)", static_cast<double>(x), std::bit_cast<uint32_t>(x));
  return text;
}

}  // namespace

bool SameBits(float a, float b, NaNs nans) {
  if (nans == NaNs::kEqual && std::isnan(a) && std::isnan(b)) return true;
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

::testing::AssertionResult SameBits(const float* expected, const float* actual, size_t n, NaNs nans) {
  size_t num_different = 0;
  size_t first = n;
  for (size_t i = 0; i < n; ++i) {
    if (SameBits(expected[i], actual[i], nans)) continue;
    if (first == n) first = i;
    ++num_different;
  }
  if (num_different == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << num_different << " of " << n << " differ, first [" << first << "]: expected "
                                       << Show(expected[first]) << ", got " << Show(actual[first]);
}

::testing::AssertionResult Within(const double* expected, const float* actual, const double* bound, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double a = static_cast<double>(actual[i]);
    const bool ok = std::isfinite(expected[i]) ? std::fabs(expected[i] - a) <= bound[i]
                                               : (std::isnan(expected[i]) ? std::isnan(a) : expected[i] == a);
    if (ok) continue;
    return ::testing::AssertionFailure() << "[" << i << "] of " << n << ": expected " << expected[i] << " +- "
                                         << bound[i] << ", got " << Show(actual[i]);
  }
  return ::testing::AssertionSuccess();
}

uint64_t HashBits(const float* data, size_t n) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (size_t i = 0; i < n; ++i) {
    hash ^= std::bit_cast<uint32_t>(data[i]);
    hash *= 0x100000001B3u;
  }
  return hash;
}

}  // namespace headlane::testing
