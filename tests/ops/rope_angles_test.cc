// Rotary angles: every float is the one next to the true sine or cosine, at any position, with any scaling, alone or in
// a batch.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "headlane/ops.h"
#include "ops/double_double.h"
#include "ops/rope_frequencies.h"
#include "ops/sin_cos.h"

namespace headlane {
namespace {

using internal::DoubleDouble;

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

// The specs of rope_vectors.inc, in the order and with the numbers of generate_rope_vectors.py.
enum SpecId { kPlain2, kPlain64, kPlain128, kPlain80, kLinear, kLlama3, kDivisors, kNumSpecs };

RopeSpec MakeSpec(SpecId id, std::vector<float>* divisors) {
  RopeSpec spec;
  spec.rotary_dim = 64;
  switch (id) {
    case kPlain2:
      spec.rotary_dim = 2;
      break;
    case kPlain128:
      spec.rotary_dim = 128;
      spec.base = 500000.0;
      break;
    case kPlain80:
      spec.rotary_dim = 80;
      spec.base = 1e6;
      break;
    case kLinear:
      spec.scaling = RopeScaling::kLinear;
      spec.factor = 3.0;
      break;
    case kLlama3:
      spec.base = 500000.0;
      spec.scaling = RopeScaling::kLlama3;
      spec.factor = 32.0;
      break;
    case kDivisors:
      for (int pair = 0; pair < 32; ++pair) divisors->push_back(1.0f + static_cast<float>(pair) * 0.625f);
      spec.frequency_divisors = divisors->data();
      break;
    default:
      break;
  }
  return spec;
}

struct RopeVector {
  SpecId spec;
  int64_t pair;
  int64_t position;
  uint32_t cos_bits;
  uint32_t sin_bits;
};
constexpr RopeVector kRopeVectors[] = {
#include "ops/rope_vectors.inc"
};

TEST(RopeAngles, EveryVectorIsCorrectlyRounded) {
  for (const RopeVector& v : kRopeVectors) {
    std::vector<float> divisors;
    const RopeSpec spec = MakeSpec(v.spec, &divisors);
    const int64_t num_pairs = spec.rotary_dim / 2;
    std::vector<float> cos(num_pairs), sin(num_pairs);
    ASSERT_TRUE(RopeAngles(spec, &v.position, 1, cos.data(), sin.data()).ok());
    EXPECT_EQ(Bits(cos[v.pair]), v.cos_bits) << "spec " << v.spec << " pair " << v.pair << " position " << v.position;
    EXPECT_EQ(Bits(sin[v.pair]), v.sin_bits) << "spec " << v.spec << " pair " << v.pair << " position " << v.position;
  }
}

TEST(RopeAngles, NeighbouringPositionsStayApart) {
  RopeSpec spec;
  spec.rotary_dim = 2;
  const int64_t positions[] = {256, 257, 131071};
  float cos[3], sin[3];
  ASSERT_TRUE(RopeAngles(spec, positions, 3, cos, sin).ok());
  EXPECT_NEAR(cos[0], -0.039790760, 1e-8);
  EXPECT_NEAR(cos[1], 0.819305529, 1e-7);
  EXPECT_NEAR(cos[2], std::cos(131071.0), 1e-7);
  // Also far out and for the pairs that turn slowest but for a few: a step of one position is seen.
  spec.rotary_dim = 128;
  const int64_t far[] = {131070, 131071, (1 << 24) - 1, 1 << 24};
  std::vector<float> far_cos(4 * 64), far_sin(4 * 64);
  ASSERT_TRUE(RopeAngles(spec, far, 4, far_cos.data(), far_sin.data()).ok());
  for (int pair = 0; pair < 64; ++pair) {
    for (int i = 0; i < 4; i += 2) {
      const int64_t a = i * 64 + pair, b = (i + 1) * 64 + pair;
      EXPECT_TRUE(far_cos[a] != far_cos[b] || far_sin[a] != far_sin[b]) << "pair " << pair << " position " << far[i];
    }
  }
}

TEST(RopeAngles, AloneAndInABatch) {
  for (int id = 0; id < kNumSpecs; ++id) {
    std::vector<float> divisors;
    const RopeSpec spec = MakeSpec(static_cast<SpecId>(id), &divisors);
    const int64_t num_pairs = spec.rotary_dim / 2;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < 33; ++i) positions.push_back(i * i * i * 113 - 5000);
    const int64_t n = static_cast<int64_t>(positions.size());
    std::vector<float> cos(n * num_pairs), sin(n * num_pairs), one_cos(num_pairs), one_sin(num_pairs);
    ASSERT_TRUE(RopeAngles(spec, positions.data(), n, cos.data(), sin.data()).ok());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(RopeAngles(spec, &positions[i], 1, one_cos.data(), one_sin.data()).ok());
      for (int64_t pair = 0; pair < num_pairs; ++pair) {
        EXPECT_EQ(Bits(one_cos[pair]), Bits(cos[i * num_pairs + pair]));
        EXPECT_EQ(Bits(one_sin[pair]), Bits(sin[i * num_pairs + pair]));
      }
    }
  }
}

TEST(RopeAngles, NothingToDo) {
  RopeSpec spec;
  spec.rotary_dim = 0;
  const int64_t position = 3;
  EXPECT_TRUE(RopeAngles(spec, &position, 1, nullptr, nullptr).ok());
  spec.rotary_dim = 8;
  EXPECT_TRUE(RopeAngles(spec, nullptr, 0, nullptr, nullptr).ok());
}

void ExpectError(StatusCode code, const char* part, const RopeSpec& spec, int64_t position = 1) {
  std::vector<float> cos(64), sin(64);
  const Status status = RopeAngles(spec, &position, 1, cos.data(), sin.data());
  EXPECT_EQ(status.code(), code) << part;
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message();
}

TEST(RopeAngles, Errors) {
  const double kNaN = std::numeric_limits<double>::quiet_NaN();
  const double kInf = std::numeric_limits<double>::infinity();
  RopeSpec good;
  good.rotary_dim = 8;
  RopeSpec spec = good;
  spec.rotary_dim = 7;
  ExpectError(StatusCode::kInvalidArgument, "rotary_dim is 7", spec);
  spec.rotary_dim = -2;
  ExpectError(StatusCode::kInvalidArgument, "rotary_dim is -2", spec);
  for (const double base : {0.0, -1.0, kNaN, kInf}) {
    spec = good;
    spec.base = base;
    ExpectError(StatusCode::kInvalidArgument, "base", spec);
  }
  spec = good;
  spec.scaling = RopeScaling::kLinear;
  spec.factor = 0.0;
  ExpectError(StatusCode::kInvalidArgument, "factor is 0", spec);
  spec.scaling = static_cast<RopeScaling>(17);
  ExpectError(StatusCode::kInvalidArgument, "scaling 17", spec);
  spec = good;
  spec.style = static_cast<RopeStyle>(-1);
  ExpectError(StatusCode::kInvalidArgument, "style -1", spec);
  spec = good;
  spec.scaling = RopeScaling::kLlama3;
  spec.original_context = kNaN;
  ExpectError(StatusCode::kInvalidArgument, "original_context", spec);
  spec.original_context = 8192.0;
  spec.low_frequency_factor = 4.0;
  ExpectError(StatusCode::kInvalidArgument, "low_frequency_factor 4 is not below high_frequency_factor 4", spec);
  const float divisors[] = {1.0f, 1.0f, 0.0f, 1.0f};
  spec = good;
  spec.frequency_divisors = divisors;
  ExpectError(StatusCode::kInvalidArgument, "divisor 2", spec);
  ExpectError(StatusCode::kOutOfRange, "position 9223372036854775807", good, std::numeric_limits<int64_t>::max());
  ExpectError(StatusCode::kOutOfRange, "position -9223372036854775808", good, std::numeric_limits<int64_t>::min());
  spec = good;
  spec.base = 1e-12;  // frequencies above 1
  ExpectError(StatusCode::kOutOfRange, "pair 3", spec, int64_t{1} << 24);
  float cos[4], sin[4];
  const int64_t position = 1;
  EXPECT_EQ(RopeAngles(good, &position, -1, cos, sin).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeAngles(good, nullptr, 1, cos, sin).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeAngles(good, &position, 1, nullptr, sin).code(), StatusCode::kInvalidArgument);
}

struct SinCosVector {
  double hi;
  double lo;
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
      internal::SinCos(angle, &sin, &cos);
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
    internal::SinCos(angle, &sin, &cos);
    internal::SinCosExact(angle, &exact_sin, &exact_cos);
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

TEST(RopeFrequencies, AreConsistentBetweenFreshPowersAndProducts) {
  // Pair 32 starts from a fresh power, pairs 1 .. 31 and 33 .. from products: base^(-2j/d) squared is the frequency of
  // pair 2j.
  RopeSpec spec;
  spec.rotary_dim = 256;
  spec.base = 500000.0;
  internal::RopeFrequencies frequencies(spec);
  std::vector<DoubleDouble> f;
  for (int pair = 0; pair < 128; ++pair) f.push_back(frequencies.Next());
  EXPECT_EQ(f[0].hi, 1.0);
  EXPECT_EQ(f[0].lo, 0.0);
  for (int pair = 0; pair < 64; ++pair) {
    const DoubleDouble square = Multiply(f[pair], f[pair]);
    const DoubleDouble difference = Add(square, Negate(f[2 * pair]));
    EXPECT_LE(std::fabs(difference.hi), 0x1p-95 * square.hi) << pair;
  }
}

}  // namespace
}  // namespace headlane
