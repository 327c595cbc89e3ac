#include "base/checked_math.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace headlane::internal {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
__extension__ using Wide = __int128;
const std::vector<int64_t> kEdges = {
    kMin, kMin + 1, kMin / 2,         -(int64_t{1} << 32), -2,       -1,           0,        1,
    2,    3,        int64_t{1} << 31, int64_t{1} << 32,    kMax / 2, kMax / 2 + 1, kMax - 1, kMax};

TEST(CheckedMath, AgreesWithWiderArithmeticOnAllEdges) {
  for (const int64_t a : kEdges) {
    for (const int64_t b : kEdges) {
      const Wide exact[3] = {Wide{a} + b, Wide{a} - b, Wide{a} * b};
      for (int i = 0; i < 3; ++i) {
        int64_t result = 77;
        const bool fits = i == 0   ? CheckedAdd(a, b, &result)
                          : i == 1 ? CheckedSub(a, b, &result)
                                   : CheckedMul(a, b, &result);
        EXPECT_EQ(fits, exact[i] >= kMin && exact[i] <= kMax) << i << " " << a << " " << b;
        EXPECT_TRUE(!fits || exact[i] == result) << i << " " << a << " " << b;
      }
    }
  }
}

TEST(CheckedMath, ProductOfManyFactors) {
  int64_t product = 0;
  EXPECT_TRUE(CheckedProduct({}, &product));
  EXPECT_EQ(product, 1);
  EXPECT_TRUE(CheckedProduct({3, 5, 7, -2}, &product));
  EXPECT_EQ(product, -210);
  EXPECT_TRUE(CheckedProduct({int64_t{1} << 31, int64_t{1} << 31}, &product));
  EXPECT_EQ(product, int64_t{1} << 62);
  EXPECT_FALSE(CheckedProduct({int64_t{1} << 31, int64_t{1} << 31, 2}, &product));
  // Congruent to 4 modulo 2^64: an unchecked product would pass for a tiny tensor.
  EXPECT_FALSE(CheckedProduct({4194305, 4194305, 211106198978564}, &product));
  // Already past 64 bits when the 0 comes.
  EXPECT_FALSE(CheckedProduct({kMax, 2, 0}, &product));
}

TEST(CheckedMath, RoundUp) {
  int64_t rounded = 0;
  for (int64_t a = 0; a < 100; ++a) {
    for (int64_t b = 1; b < 20; ++b) {
      ASSERT_TRUE(CheckedRoundUp(a, b, &rounded));
      EXPECT_EQ(rounded % b, 0);
      EXPECT_GE(rounded, a);
      EXPECT_LT(rounded, a + b);
    }
  }
  EXPECT_TRUE(CheckedRoundUp(kMax, 1, &rounded));
  EXPECT_EQ(rounded, kMax);
  EXPECT_FALSE(CheckedRoundUp(kMax, 16, &rounded));
  EXPECT_TRUE(CheckedRoundUp(kMax - 15, 16, &rounded));
  EXPECT_EQ(rounded, kMax - 15);
}

TEST(CheckedMath, RangeFits) {
  for (const int64_t begin : kEdges) {
    for (const int64_t count : kEdges) {
      for (const int64_t size : kEdges) {
        const bool expected = begin >= 0 && count >= 0 && Wide{begin} + count <= size;
        EXPECT_EQ(RangeFits(begin, count, size), expected) << begin << " " << count << " " << size;
      }
    }
  }
}

}  // namespace
}  // namespace headlane::internal
