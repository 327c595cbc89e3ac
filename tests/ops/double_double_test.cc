// Numbers of twice double's precision, and the sine and cosine built on them.
#include "ops/double_double.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

#include "ops/helpers.h"
#include "ops/sin_cos.h"

namespace headlane {
namespace {

using internal::DoubleDouble;

struct SinCosVector {
  double hi;
  double lo;
  double scale;
  uint32_t cos_bits;
  uint32_t sin_bits;
};
constexpr SinCosVector kSinCosVectors[] = {
#include "ops/sin_cos_vectors.inc"
};

TEST(SinCos, NextToTheMiddleOfTwoFloats) {
  for (const SinCosVector& v : kSinCosVectors) {
    for (const double sign : {1.0, -1.0}) {
      const DoubleDouble angle = {sign * v.hi, sign * v.lo};
      float sin = 0.0f, cos = 0.0f;
      internal::SinCos(angle, v.scale, &sin, &cos);
      EXPECT_EQ(Bits(cos), v.cos_bits) << v.hi;
      EXPECT_EQ(Bits(static_cast<float>(sign) * sin), v.sin_bits) << v.hi;
    }
  }
}

TEST(SinCos, QuickAndExactWaysAgree) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-40.0, 30.0), unit(-1.0, 1.0);
  for (int i = 0; i < 200000; ++i) {
    double value = unit(random) * std::exp2(exponent(random));
    // Every other angle next to a multiple of pi / 4, where one of the two is small or the quadrant is about to change.
    if (i % 2 == 0) value = std::nearbyint(value) * 0.78539816339744831 * (1.0 + unit(random) * 1e-12);
    const DoubleDouble angle = Add(DoubleDouble{value, 0.0}, value * unit(random) * 1e-17);
    float sin = 0.0f, cos = 0.0f, exact_sin = 0.0f, exact_cos = 0.0f;
    internal::SinCos(angle, 1.0, &sin, &cos);
    internal::SinCosExact(angle, 1.0, &exact_sin, &exact_cos);
    ASSERT_EQ(Bits(sin), Bits(exact_sin)) << angle.hi;
    ASSERT_EQ(Bits(cos), Bits(exact_cos)) << angle.hi;
    ASSERT_NEAR(sin, std::sin(angle.hi), 1e-7) << angle.hi;
    ASSERT_NEAR(cos, std::cos(angle.hi), 1e-7) << angle.hi;
  }
}

TEST(DoubleDouble, TransformsAreExact) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> unit(-1.0, 1.0);
  for (int i = 0; i < 100000; ++i) {
    const double a = unit(random), b = unit(random) * std::exp2(i % 80 - 40);
    const DoubleDouble product = internal::TwoProduct(a, b);
    EXPECT_EQ(product.hi, a * b);
    EXPECT_EQ(product.lo, std::fma(a, b, -product.hi));
    const DoubleDouble sum = internal::TwoSum(a, b), swapped = internal::TwoSum(b, a);
    EXPECT_EQ(sum.hi, a + b);
    EXPECT_EQ(sum.lo, swapped.lo);
    EXPECT_EQ(sum.hi - (std::fabs(a) > std::fabs(b) ? a : b), (std::fabs(a) > std::fabs(b) ? b : a) - sum.lo);
  }
}

TEST(DoubleDouble, PowersAndLogarithmsInvertEachOther) {
  for (const double x : {1.0, 2.0, 0.5, 1024.0}) {
    const DoubleDouble log = internal::Log2(x);
    EXPECT_EQ(log.hi, std::log2(x));
    EXPECT_EQ(log.lo, 0.0);
  }
  for (const double x : {1e-100, 0.7, 0.999999, 1.0000001, 1.4999, 1.5, 1.5001, 3.0, 1e4, 5e5, 1e7, 1e100}) {
    const DoubleDouble log = internal::Log2(x);
    EXPECT_NEAR(log.hi, std::log2(x), 1e-13 * (1.0 + std::fabs(log.hi)));
    const DoubleDouble back = internal::Exp2(log);
    EXPECT_EQ(back.hi, x);
    // log2 is good to 2^-101 of itself, and that error grows by ln 2 times |log|.
    EXPECT_LT(std::fabs(back.lo), x * 0x1p-100 * (1.0 + std::fabs(log.hi))) << x;
  }
}

TEST(DoubleDouble, RoundsToFloatOnce) {
  const double tie = 1.0 + 0x1p-24;
  EXPECT_EQ(internal::RoundToFloat({tie, 0.0}), 1.0f);
  EXPECT_EQ(internal::RoundToFloat({tie, 0x1p-80}), 1.0f + 0x1p-23f);
  EXPECT_EQ(internal::RoundToFloat({tie, -0x1p-80}), 1.0f);
  EXPECT_EQ(internal::RoundToFloat({-tie, -0x1p-80}), -1.0f - 0x1p-23f);
  EXPECT_EQ(internal::RoundToFloat({-tie, 0x1p-80}), -1.0f);
  const double odd_tie = 1.0 + 3 * 0x1p-24;
  EXPECT_EQ(internal::RoundToFloat({odd_tie, 0.0}), 1.0f + 0x1p-22f);
  EXPECT_EQ(internal::RoundToFloat({odd_tie, -0x1p-80}), 1.0f + 0x1p-23f);
  EXPECT_EQ(internal::RoundToFloat({0.0, 0.0}), 0.0f);
}

TEST(SinCos, ScaledOnceBothWays) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> unit(-1.0, 1.0);
  for (const double scale : {0.75, 1.3465735902799727, 3.0, 1e-30, 1e30}) {
    for (int i = 0; i < 20000; ++i) {
      const DoubleDouble angle = {unit(random) * 1e5, 0.0};
      float sin = 0.0f, cos = 0.0f, exact_sin = 0.0f, exact_cos = 0.0f;
      internal::SinCos(angle, scale, &sin, &cos);
      internal::SinCosExact(angle, scale, &exact_sin, &exact_cos);
      ASSERT_EQ(Bits(sin), Bits(exact_sin)) << angle.hi << " times " << scale;
      ASSERT_EQ(Bits(cos), Bits(exact_cos)) << angle.hi << " times " << scale;
      ASSERT_NEAR(sin, std::sin(angle.hi) * scale, 1e-7 * scale) << angle.hi;
      ASSERT_NEAR(cos, std::cos(angle.hi) * scale, 1e-7 * scale) << angle.hi;
    }
  }
}

}  // namespace
}  // namespace headlane
