// Scalings of rotary embeddings: factors against high-precision values, dynamic NTK's factor fixed per sequence, and
// refusals. (Angles of every scaling: rope_angles_test.cc.)
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headlane/ops.h"
#include "ops/helpers.h"

namespace headlane {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

RopeSpec Spec(RopeScaling scaling) {
  RopeSpec spec;
  spec.rotary_dim = 8;
  spec.scaling = scaling;
  spec.factor = 2.0;
  return spec;
}

enum FactorKind { kDynamic, kYarnMscale, kLongRopeMscale };
struct FactorVector {
  FactorKind kind;
  double a, b, c;
  double factor;
};
constexpr FactorVector kFactorVectors[] = {
#include "ops/rope_factor_vectors.inc"
};

TEST(RopeScaling, FactorsAreTheNearestDoubles) {
  for (const FactorVector& v : kFactorVectors) {
    double factor = 0.0;
    if (v.kind == kYarnMscale) factor = YarnMscale(v.a, v.b);
    if (v.kind == kLongRopeMscale) factor = LongRopeMscale(v.a, v.b);
    if (v.kind == kDynamic) {
      RopeSpec spec = Spec(RopeScaling::kDynamicNtk);
      spec.factor = v.a;
      spec.original_context = v.b;
      const Result<RopeSpec> resolved = ResolveRope(spec, static_cast<int64_t>(v.c));
      ASSERT_TRUE(resolved.ok());
      EXPECT_EQ(resolved->scaling, RopeScaling::kNtk);
      factor = resolved->factor;
    }
    EXPECT_EQ(Bits(factor), Bits(v.factor)) << v.kind << ": " << v.a << ", " << v.b << ", " << v.c << ": " << factor;
  }
}

TEST(RopeScaling, FactorsOfAbsurdArgumentsAreNaN) {
  for (const double bad : {kNaN, kInfinity, 0.0, -1.0, 1e101, 1e-101}) {
    EXPECT_TRUE(std::isnan(YarnMscale(bad, 1.0))) << bad;
    EXPECT_TRUE(std::isnan(LongRopeMscale(bad, 4096.0))) << bad;
    EXPECT_TRUE(std::isnan(LongRopeMscale(2.0, bad))) << bad;
  }
  for (const double bad : {kNaN, kInfinity, -kInfinity, 1e101}) EXPECT_TRUE(std::isnan(YarnMscale(2.0, bad))) << bad;
  EXPECT_TRUE(std::isnan(LongRopeMscale(2.0, 1.0)));
}

// The angles of a position do not depend on how long the sequence has become, only on the length it was created for.
TEST(RopeScaling, DynamicNtkIsFixedPerSequence) {
  RopeSpec dynamic = Spec(RopeScaling::kDynamicNtk);
  dynamic.rotary_dim = 64;
  dynamic.original_context = 4096.0;
  const int64_t num_pairs = dynamic.rotary_dim / 2;
  const auto angles = [&](const RopeSpec& spec, int64_t first, int64_t n) {
    std::vector<float> both(static_cast<size_t>(2 * n * num_pairs));
    EXPECT_TRUE(RopeAnglesFrom(spec, first, n, both.data(), both.data() + n * num_pairs).ok());
    return both;
  };
  const RopeSpec created = ResolveRope(dynamic, 10000).value();
  const std::vector<float> early = angles(created, 100, 1);
  (void)angles(created, 101, 9999);  // the sequence grows to its length and beyond
  EXPECT_EQ(early, angles(created, 100, 1));
  // Fixing what is fixed changes nothing.
  EXPECT_EQ(early, angles(ResolveRope(created, 1000000).value(), 100, 1));
  EXPECT_NE(early, angles(ResolveRope(dynamic, 20000).value(), 100, 1));
  // Up to the original context, nothing is scaled; and the same bits as without scaling.
  RopeSpec plain = dynamic;
  plain.scaling = RopeScaling::kNone;
  EXPECT_EQ(angles(plain, 100, 1), angles(ResolveRope(dynamic, 4096).value(), 100, 1));
  EXPECT_EQ(angles(plain, 100, 1), angles(ResolveRope(dynamic, 1).value(), 100, 1));
  // The fastest pair is never scaled, the slowest is divided by the factor: 1 + 2 * (10000 / 4096 - 1).
  const float factor = static_cast<float>(created.factor);
  EXPECT_NEAR(factor, 3.8828125f, 1e-6f);
  const std::vector<float> unscaled = angles(plain, 100, 1);
  EXPECT_EQ(early[0], unscaled[0]);
  const size_t slowest_sin = static_cast<size_t>(2 * num_pairs - 1);
  EXPECT_NEAR(std::asin(early[slowest_sin]) * factor, std::asin(unscaled[slowest_sin]), 1e-6f);
}

TEST(RopeScaling, ResolvingLeavesOtherSpecsAlone) {
  for (const RopeScaling scaling :
       {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kLlama3, RopeScaling::kNtk, RopeScaling::kYarn}) {
    const RopeSpec spec = Spec(scaling);
    const Result<RopeSpec> resolved = ResolveRope(spec, 100000);
    ASSERT_TRUE(resolved.ok());
    EXPECT_EQ(resolved->scaling, scaling);
    EXPECT_EQ(resolved->factor, 2.0);
    EXPECT_EQ(resolved->base, 10000.0);
  }
}

void ExpectRefused(const char* part, RopeScaling scaling, const std::function<void(RopeSpec&)>& spoil) {
  RopeSpec spec = Spec(scaling);
  spoil(spec);
  float cos[4], sin[4], x[8] = {};
  for (const Status& status :
       {RopeAnglesFrom(spec, 1, 1, cos, sin), ApplyRope(spec, cos, sin, TokensHeadsDim(x, 1, 1, 8))}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << part;
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message();
  }
}

TEST(RopeScaling, HostileParametersAreRefused) {
  for (const RopeScaling scaling :
       {RopeScaling::kLinear, RopeScaling::kLlama3, RopeScaling::kNtk, RopeScaling::kYarn}) {
    for (const double bad : {0.0, -2.0, kNaN, kInfinity, 1e101, 1e-101}) {
      ExpectRefused("factor is", scaling, [=](RopeSpec& s) { s.factor = bad; });
    }
  }
  for (const double bad : {-1.0, kNaN, kInfinity, 1e31, 1e-31, YarnMscale(-1.0, 1.0)}) {
    ExpectRefused("attention_factor is", RopeScaling::kNone, [=](RopeSpec& s) { s.attention_factor = bad; });
    ExpectRefused("attention_factor is", RopeScaling::kYarn, [=](RopeSpec& s) { s.attention_factor = bad; });
  }
  for (const double bad : {0.0, -1.0, kNaN, kInfinity}) {
    ExpectRefused("beta_fast is", RopeScaling::kYarn, [=](RopeSpec& s) { s.beta_fast = bad; });
    ExpectRefused("beta_slow is", RopeScaling::kYarn, [=](RopeSpec& s) { s.beta_slow = bad; });
    ExpectRefused("original_context is", RopeScaling::kYarn, [=](RopeSpec& s) { s.original_context = bad; });
  }
  ExpectRefused("beta_slow 32 is not below beta_fast 32", RopeScaling::kYarn, [](RopeSpec& s) { s.beta_slow = 32.0; });
  ExpectRefused("base is 1.5, below 2", RopeScaling::kYarn, [](RopeSpec& s) { s.base = 1.5; });
  ExpectRefused("ResolveRope", RopeScaling::kDynamicNtk, [](RopeSpec&) {});
  ExpectRefused("scaling 6", static_cast<RopeScaling>(6), [](RopeSpec&) {});
}

TEST(RopeScaling, ResolveRopeErrors) {
  const auto expect = [](const char* part, const RopeSpec& spec, int64_t context_length) {
    const Result<RopeSpec> resolved = ResolveRope(spec, context_length);
    ASSERT_FALSE(resolved.ok()) << part;
    EXPECT_EQ(resolved.status().code(), StatusCode::kInvalidArgument) << part;
    EXPECT_NE(std::string(resolved.status().message()).find(part), std::string::npos) << resolved.status().message();
  };
  for (const RopeScaling scaling : {RopeScaling::kNone, RopeScaling::kDynamicNtk}) {
    for (const int64_t bad : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX, (int64_t{1} << 53) + 1}) {
      expect("context_length", Spec(scaling), bad);
    }
  }
  for (const double bad : {0.0, -1.0, kNaN, kInfinity}) {
    RopeSpec spec = Spec(RopeScaling::kDynamicNtk);
    spec.factor = bad;
    expect("factor is", spec, 5000);
    spec = Spec(RopeScaling::kDynamicNtk);
    spec.original_context = bad;
    expect("original_context is", spec, 5000);
  }
  RopeSpec spec = Spec(RopeScaling::kDynamicNtk);
  spec.original_context = 1e-100;
  spec.factor = 1e100;
  expect("factor is", spec, 5000);  // what results is too large
  spec = Spec(RopeScaling::kDynamicNtk);
  spec.rotary_dim = 7;
  expect("rotary_dim is 7", spec, 5000);
}

// Extremes that are allowed: no angle is a NaN, and cos^2 + sin^2 is the square of the attention factor.
TEST(RopeScaling, ExtremesStayOnTheCircle) {
  for (const RopeScaling scaling :
       {RopeScaling::kLinear, RopeScaling::kLlama3, RopeScaling::kNtk, RopeScaling::kYarn}) {
    for (const double factor : {1e-2, 1.0, 1e100}) {
      for (const double base : {2.0, 1e100}) {
        for (const double context : {1e-100, 1.0, 1e100}) {
          RopeSpec spec = Spec(scaling);
          spec.rotary_dim = 64;
          spec.factor = factor;
          spec.base = base;
          spec.original_context = context;
          spec.attention_factor = 2.0;
          std::vector<float> cos(32), sin(32);
          ASSERT_TRUE(RopeAnglesFrom(spec, 131071, 1, cos.data(), sin.data()).ok());
          for (size_t i = 0; i < 32; ++i) EXPECT_NEAR(cos[i] * cos[i] + sin[i] * sin[i], 4.0f, 1e-6f);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headlane
