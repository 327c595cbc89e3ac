// exp, ln and tanh: the vector forms against the scalar programs bit by bit, and the scalar programs against the exact
// functions. exp over every float <= 0 is in exp_exhaustive_test.cc.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/canonical_math.h"
#include "kernels/compare.h"
#include "kernels/kernel_api.h"
#include "reference/canonical_math.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The distance between the floats next to `exact`, in the binade of `exact`.
double UlpOf(double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::ldexp(1.0, std::max(exponent, -125) - 24);
}

using Kernel = void (*)(const float*, int64_t, float*) noexcept;

// Every `stride`-th float from `first` to `last` by bits, both of one sign.
std::vector<float> Floats(float first, float last, uint32_t stride) {
  std::vector<float> x;
  for (uint64_t bits = std::bit_cast<uint32_t>(first); bits <= std::bit_cast<uint32_t>(last); bits += stride) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return x;
}

struct Extremes {
  double max_ulp = 0.0;
  float where = 0.0f;
  int64_t decreasing = 0;  // steps down from one float to the next
};

template <typename Canonical, typename Exact>
Extremes Measure(const std::vector<float>& x, Canonical canonical, Exact exact) {
  Extremes extremes;
  float previous = -kInf;
  for (float value : x) {
    const float y = canonical(value);
    const double reference = exact(static_cast<double>(value));
    const double error =
        reference == 0.0 ? (y == 0.0f ? 0.0 : 1e9) : std::fabs(static_cast<double>(y) - reference) / UlpOf(reference);
    if (!(error <= extremes.max_ulp)) {
      extremes.max_ulp = error;
      extremes.where = value;
    }
    if (!(y >= previous)) ++extremes.decreasing;
    previous = y;
  }
  return extremes;
}

template <typename Canonical>
void ExpectSameAsScalar(const std::vector<float>& x, Kernel kernel, Canonical canonical, const char* target) {
  std::vector<float> expected(x.size());
  std::vector<float> actual(x.size());
  for (size_t i = 0; i < x.size(); ++i) expected[i] = canonical(x[i]);
  kernel(x.data(), static_cast<int64_t>(x.size()), actual.data());
  EXPECT_TRUE(SameBits(expected, actual, NaNs::kEqual)) << target;
}

const std::vector<float> kSpecial = {0.0f,
                                     -0.0f,
                                     1e-45f,
                                     -1e-45f,
                                     1e-40f,
                                     -1e-40f,
                                     0x1p-126f,
                                     -0x1p-126f,
                                     1.0f,
                                     -1.0f,
                                     -1e-8f,
                                     1e-8f,
                                     0.5f,
                                     -0.5f,
                                     87.0f,
                                     -87.0f,
                                     internal::kExpCutoff,
                                     -87.4f,
                                     88.0f,
                                     88.3762f,
                                     88.3763f,
                                     88.7228f,
                                     89.0f,
                                     internal::kExpOverflow,
                                     88.73f,
                                     127.0f,
                                     -103.2f,
                                     -104.0f,
                                     1e4f,
                                     -1e4f,
                                     1e30f,
                                     -1e30f,
                                     3.4e38f,
                                     -3.4e38f,
                                     kInf,
                                     -kInf,
                                     kNaN,
                                     10.0f,
                                     -10.0f,
                                     9.0f,
                                     -9.0f,
                                     20.0f,
                                     -20.0f,
                                     0.70710678f,
                                     1.41421356f};

TEST(ExpTest, SpecialValues) {
  EXPECT_TRUE(SameBits(1.0f, reference::CanonicalExp(0.0f)));
  EXPECT_TRUE(SameBits(1.0f, reference::CanonicalExp(-0.0f)));
  EXPECT_TRUE(SameBits(1.0f, reference::CanonicalExp(-1e-8f)));
  EXPECT_TRUE(SameBits(0.0f, reference::CanonicalExp(-kInf)));
  EXPECT_TRUE(SameBits(kInf, reference::CanonicalExp(kInf)));
  EXPECT_TRUE(SameBits(kInf, reference::CanonicalExp(89.0f)));
  EXPECT_TRUE(std::isnan(reference::CanonicalExp(kNaN)));
  EXPECT_GE(reference::CanonicalExp(internal::kExpCutoff), 0x1p-126f);
  EXPECT_TRUE(SameBits(0.0f, reference::CanonicalExp(std::nextafter(internal::kExpCutoff, -kInf))));
  EXPECT_LT(std::exp(static_cast<double>(std::nextafter(internal::kExpCutoff, -kInf))), 0x1p-126);
  EXPECT_TRUE(std::isfinite(reference::CanonicalExp(internal::kExpOverflow)));
  EXPECT_GT(std::exp(static_cast<double>(std::nextafter(internal::kExpOverflow, kInf))), 3.4028235e38);
}

TEST(ExpTest, PositiveArgumentsAreWithinTheBoundAndMonotone) {
  const Extremes extremes = Measure(Floats(0x1p-20f, internal::kExpOverflow, 97), reference::CanonicalExp,
                                    [](double x) { return std::exp(x); });
  EXPECT_LE(extremes.max_ulp, internal::kExpObservedUlp) << "at " << std::hexfloat << extremes.where;
  EXPECT_EQ(extremes.decreasing, 0);
}

TEST(LnTest, SpecialValues) {
  EXPECT_TRUE(SameBits(0.0f, reference::CanonicalLn(1.0f)));
  EXPECT_TRUE(SameBits(-kInf, reference::CanonicalLn(0.0f)));
  EXPECT_TRUE(SameBits(-kInf, reference::CanonicalLn(-0.0f)));
  EXPECT_TRUE(SameBits(kInf, reference::CanonicalLn(kInf)));
  EXPECT_TRUE(std::isnan(reference::CanonicalLn(-1e-45f)));
  EXPECT_TRUE(std::isnan(reference::CanonicalLn(-kInf)));
  EXPECT_TRUE(std::isnan(reference::CanonicalLn(kNaN)));
  EXPECT_NEAR(reference::CanonicalLn(1e-45f), std::log(0x1p-149), 1e-5);
}

TEST(LnTest, IsWithinTheBoundAndMonotone) {
  const auto exact = [](double x) { return std::log(x); };
  const Extremes near_one = Measure(Floats(0.7f, 2.0f, 1), reference::CanonicalLn, exact);
  EXPECT_LE(near_one.max_ulp, internal::kLnObservedUlp) << "at " << std::hexfloat << near_one.where;
  EXPECT_GE(near_one.max_ulp, internal::kLnObservedUlp - 0.01) << "the published error is not the real one";
  EXPECT_EQ(near_one.decreasing, 0);
  const Extremes everywhere = Measure(Floats(1e-45f, 3.4028235e38f, 509), reference::CanonicalLn, exact);
  EXPECT_LE(everywhere.max_ulp, internal::kLnObservedUlp) << "at " << std::hexfloat << everywhere.where;
  EXPECT_EQ(everywhere.decreasing, 0);
}

TEST(TanhTest, SpecialValues) {
  EXPECT_TRUE(SameBits(0.0f, reference::CanonicalTanh(0.0f)));
  EXPECT_TRUE(SameBits(-0.0f, reference::CanonicalTanh(-0.0f)));
  EXPECT_TRUE(SameBits(1.0f, reference::CanonicalTanh(kInf)));
  EXPECT_TRUE(SameBits(-1.0f, reference::CanonicalTanh(-kInf)));
  EXPECT_TRUE(SameBits(1e-40f, reference::CanonicalTanh(1e-40f)));
  EXPECT_TRUE(std::isnan(reference::CanonicalTanh(kNaN)));
}

TEST(TanhTest, IsWithinTheBoundMonotoneAndOdd) {
  const std::vector<float> x = Floats(0x1p-24f, 12.0f, 11);
  const Extremes extremes = Measure(x, reference::CanonicalTanh, [](double v) { return std::tanh(v); });
  EXPECT_LE(extremes.max_ulp, internal::kTanhObservedUlp) << "at " << std::hexfloat << extremes.where;
  EXPECT_GE(extremes.max_ulp, internal::kTanhObservedUlp - 0.2) << "the published error is not the real one";
  EXPECT_EQ(extremes.decreasing, 0);
  for (float value : x)
    ASSERT_TRUE(SameBits(-reference::CanonicalTanh(value), reference::CanonicalTanh(-value))) << value;
}

static_assert(internal::kExpObservedUlp <= internal::kExpMaxUlp);
static_assert(internal::kLnObservedUlp <= internal::kLnMaxUlp);
static_assert(internal::kTanhObservedUlp <= internal::kTanhMaxUlp);

TEST(MathKernelsTest, FmaTargetsHaveTheScalarBits) {
  const std::vector<float> up_to_89 = Floats(1e-45f, 90.0f, 251);
  const std::vector<float> down_to_minus_110 = Floats(-1e-45f, -110.0f, 257);
  const std::vector<float> positive = Floats(1e-45f, 3.4028235e38f, 509);
  const std::vector<float> to_12 = Floats(1e-45f, 25.0f, 241);
  for (const TargetInfo& target : UsableFmaTargets()) {
    const ScopedTarget scope(target.name);
    const internal::SoftmaxKernels& kernels = internal::ActiveKernels().softmax;
    ExpectSameAsScalar(up_to_89, kernels.exp, reference::CanonicalExp, target.name);
    ExpectSameAsScalar(down_to_minus_110, kernels.exp, reference::CanonicalExp, target.name);
    ExpectSameAsScalar(down_to_minus_110, kernels.exp_nonpositive, reference::CanonicalExp, target.name);
    ExpectSameAsScalar(positive, kernels.log, reference::CanonicalLn, target.name);
    ExpectSameAsScalar(to_12, kernels.tanh, reference::CanonicalTanh, target.name);
    ExpectSameAsScalar(kSpecial, kernels.exp, reference::CanonicalExp, target.name);
    ExpectSameAsScalar(kSpecial, kernels.log, reference::CanonicalLn, target.name);
    ExpectSameAsScalar(kSpecial, kernels.tanh, reference::CanonicalTanh, target.name);
    std::vector<float> not_positive;
    for (float x : kSpecial) {
      if (!(x > 0.0f)) not_positive.push_back(x);
    }
    ExpectSameAsScalar(not_positive, kernels.exp_nonpositive, reference::CanonicalExp, target.name);
  }
}

// Every float of the band in which SIMD exponentials go wrong: results around the smallest normal number.
TEST(MathKernelsTest, ExpAroundItsCutoffOnEveryTarget) {
  const std::vector<float> x = Floats(-80.0f, -110.0f, 1);
  std::vector<float> y(x.size());
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    internal::ActiveKernels().softmax.exp_nonpositive(x.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      ASSERT_TRUE(y[i] >= 0.0f && std::isfinite(y[i])) << target.name << " at " << x[i];
      if (i > 0 && target.has_fma) {
        ASSERT_LE(y[i], y[i - 1]) << target.name << " at " << x[i];
      }
      if (x[i] >= internal::kExpCutoff) {
        // Without FMA the polynomial's steps round twice.
        const double ulps = target.has_fma ? internal::kExpMaxUlp : internal::kExpMaxUlp + 1.0;
        ASSERT_LE(std::fabs(static_cast<double>(y[i]) - exact), ulps * UlpOf(exact)) << target.name << " at " << x[i];
      } else {
        ASSERT_EQ(y[i], 0.0f) << target.name << " at " << x[i];
      }
    }
  }
}

TEST(MathKernelsTest, TargetsWithoutFmaAreAccurate) {
  const std::vector<float> negative = Floats(-1e-20f, -87.0f, 257);
  const std::vector<float> positive = Floats(1e-37f, 3.4e38f, 509);
  const std::vector<float> tanh_range = Floats(1e-20f, 25.0f, 241);
  for (const TargetInfo& target : UsableTargets()) {
    if (target.has_fma) continue;
    const ScopedTarget scope(target.name);
    const internal::SoftmaxKernels& kernels = internal::ActiveKernels().softmax;
    std::vector<float> y(negative.size());
    kernels.exp_nonpositive(negative.data(), static_cast<int64_t>(negative.size()), y.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const double exact = std::exp(static_cast<double>(negative[i]));
      ASSERT_LE(std::fabs(static_cast<double>(y[i]) - exact), (internal::kExpMaxUlp + 1.0) * UlpOf(exact))
          << target.name << " exp " << negative[i];
    }
    y.resize(positive.size());
    kernels.log(positive.data(), static_cast<int64_t>(positive.size()), y.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const double exact = std::log(static_cast<double>(positive[i]));
      ASSERT_LE(std::fabs(static_cast<double>(y[i]) - exact), 3.0 * UlpOf(exact))
          << target.name << " ln " << positive[i];
    }
    y.resize(tanh_range.size());
    kernels.tanh(tanh_range.data(), static_cast<int64_t>(tanh_range.size()), y.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const double exact = std::tanh(static_cast<double>(tanh_range[i]));
      ASSERT_LE(std::fabs(static_cast<double>(y[i]) - exact), 5.0 * UlpOf(exact))
          << target.name << " tanh " << tanh_range[i];
    }
  }
}

TEST(MathKernelsTest, AnyLengthAndAlignmentWithinItsMemory) {
  Random random(1);
  for (const TargetInfo& target : UsableFmaTargets()) {
    const ScopedTarget scope(target.name);
    for (size_t n = 0; n <= 40; ++n) {
      GuardedFloats x(n);
      GuardedFloats y(n);
      for (size_t i = 0; i < n; ++i) x[i] = -std::fabs(random.Float()) * 90.0f;
      internal::ActiveKernels().softmax.exp_nonpositive(x.data(), static_cast<int64_t>(n), y.data());
      for (size_t i = 0; i < n; ++i)
        ASSERT_TRUE(SameBits(reference::CanonicalExp(x[i]), y[i])) << target.name << " n " << n;
    }
  }
}

}  // namespace
}  // namespace headlane::testing
