// The small operators: RMS-norm, SwiGLU, sums, scaling, log-sum-exp and rotation, bit by bit against the scalar
// program.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/compare.h"
#include "kernels/kernel_api.h"
#include "reference/canonical_ops.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const std::vector<int64_t> kLengths = {1,  2,  3,  4,  5,  7,  8,  9,  15,  16,  17,  23,  31,
                                       32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 576, 1000};

template <typename Body>
void ForTargetsAndLengths(Body body) {
  Random random(11);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (int64_t n : kLengths) {
      SCOPED_TRACE(::testing::Message() << target.name << " n " << n);
      body(target, internal::ActiveKernels().elementwise, n, random);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

GuardedFloats Guarded(Random& random, int64_t n, float size) {
  GuardedFloats x(static_cast<size_t>(n));
  random.Fill(x.data(), x.size(), size);
  return x;
}

TEST(ElementwiseTest, RmsNorm) {
  ForTargetsAndLengths(
      [](const TargetInfo& target, const internal::ElementwiseKernels& kernels, int64_t n, Random& random) {
        for (float size : {1.0f, 1e-6f, 1e6f, 0.0f}) {
          const GuardedFloats x = Guarded(random, n, size);
          const GuardedFloats weight = Guarded(random, n, 2.0f);
          const GuardedFloats y(static_cast<size_t>(n));
          std::vector<float> expected(static_cast<size_t>(n));
          reference::CanonicalRmsNorm(x.data(), weight.data(), 1e-5f, n, expected.data());
          kernels.rms_norm(x.data(), weight.data(), 1e-5f, n, y.data());
          ASSERT_TRUE(Matches(target, expected.data(), y.data(), expected.size(), 1e-4));
          kernels.rms_norm(x.data(), weight.data(), 1e-5f, n, x.data());
          ASSERT_TRUE(SameBits(y.data(), x.data(), x.size(), NaNs::kEqual)) << "in place";
        }
      });
}

TEST(ElementwiseTest, SiluMul) {
  ForTargetsAndLengths(
      [](const TargetInfo& target, const internal::ElementwiseKernels& kernels, int64_t n, Random& random) {
        for (float size : {1.0f, 100.0f, 1e-30f}) {
          const GuardedFloats gate = Guarded(random, n, size);
          if (size == 100.0f) gate[0] = random.Pick<float>({kNaN, kInf, -kInf, -88.5f, -89.0f, 3e38f, -3e38f, -0.0f});
          const GuardedFloats up = Guarded(random, n, 3.0f);
          const GuardedFloats y(static_cast<size_t>(n));
          std::vector<float> expected(static_cast<size_t>(n));
          for (int64_t i = 0; i < n; ++i)
            expected[static_cast<size_t>(i)] = reference::CanonicalSiluMul(gate[i], up[i]);
          kernels.silu_mul(gate.data(), up.data(), n, y.data());
          ASSERT_TRUE(Matches(target, expected.data(), y.data(), expected.size(), 1e-4));
          kernels.silu_mul(gate.data(), up.data(), n, gate.data());
          ASSERT_TRUE(SameBits(y.data(), gate.data(), gate.size(), NaNs::kEqual)) << "in place";
        }
      });
}

TEST(ElementwiseTest, SiluIsRight) {
  for (float x = -80.0f; x <= 80.0f; x += 0.37f) {
    const double exact = static_cast<double>(x) / (1.0 + std::exp(-static_cast<double>(x)));
    EXPECT_NEAR(reference::CanonicalSiluMul(x, 1.0f), exact, 4.0 * 0x1p-24 * std::fabs(exact)) << x;
  }
}

TEST(ElementwiseTest, AddAndScale) {
  ForTargetsAndLengths(
      [](const TargetInfo& target, const internal::ElementwiseKernels& kernels, int64_t n, Random& random) {
        const GuardedFloats x = Guarded(random, n, 1.0f);
        const GuardedFloats y = Guarded(random, n, 1.0f);
        std::vector<float> sum(static_cast<size_t>(n));
        std::vector<float> scaled(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) sum[static_cast<size_t>(i)] = y[i] + x[i];
        for (int64_t i = 0; i < n; ++i) scaled[static_cast<size_t>(i)] = x[i] * 0.0884f;
        kernels.add(x.data(), n, y.data());
        ASSERT_TRUE(Matches(target, sum.data(), y.data(), sum.size(), 0.0));
        const GuardedFloats z(static_cast<size_t>(n));
        kernels.scale(x.data(), DType::kF32, 1, 0.0884f, n, z.data());
        ASSERT_TRUE(Matches(target, scaled.data(), z.data(), scaled.size(), 0.0));
        const GuardedFloats strided(static_cast<size_t>((n - 1) * 3 + 1));
        for (int64_t i = 0; i < n; ++i) strided[i * 3] = x[i];
        kernels.scale(strided.data(), DType::kF32, 3, 0.0884f, n, z.data());
        ASSERT_TRUE(Matches(target, scaled.data(), z.data(), scaled.size(), 0.0)) << "strided";
      });
}

TEST(ElementwiseTest, LogSumExp) {
  ForTargetsAndLengths(
      [](const TargetInfo& target, const internal::ElementwiseKernels& kernels, int64_t n, Random& random) {
        for (float size : {1.0f, 150.0f, 1e30f}) {
          const GuardedFloats x = Guarded(random, n, size);
          if (random.OneIn(4)) x[random.Int(0, n - 1)] = random.Pick<float>({kNaN, kInf, -kInf});
          const float expected = reference::CanonicalLogSumExp(x.data(), n);
          const float actual = kernels.log_sum_exp(x.data(), n);
          ASSERT_TRUE(Matches(target, &expected, &actual, 1, 1e-4)) << "size " << size;
        }
        const GuardedFloats nothing(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) nothing[i] = -kInf;
        ASSERT_EQ(kernels.log_sum_exp(nothing.data(), n), -kInf);
      });
  EXPECT_EQ(internal::ActiveKernels().elementwise.log_sum_exp(nullptr, 0), -kInf);
}

TEST(ElementwiseTest, LogSumExpIsRight) {
  Random random(12);
  const std::vector<float> x = random.Floats(4097, 10.0f);
  double sum = 0.0;
  for (float value : x) sum += std::exp(static_cast<double>(value));
  EXPECT_NEAR(reference::CanonicalLogSumExp(x.data(), 4097), std::log(sum), 1e-5);
}

TEST(ElementwiseTest, RopeInBothLayouts) {
  ForTargetsAndLengths(
      [](const TargetInfo& target, const internal::ElementwiseKernels& kernels, int64_t n, Random& random) {
        const GuardedFloats cos = Guarded(random, n, 1.0f);
        const GuardedFloats sin = Guarded(random, n, 1.0f);
        for (bool adjacent : {true, false}) {
          const GuardedFloats x = Guarded(random, 2 * n, 1.0f);
          std::vector<float> expected(x.data(), x.data() + 2 * n);
          const int64_t stride = adjacent ? 2 : 1;
          const int64_t odd = adjacent ? 1 : n;
          for (int64_t i = 0; i < n; ++i) {
            reference::CanonicalRope(cos[i], sin[i], &expected[static_cast<size_t>(i * stride)],
                                     &expected[static_cast<size_t>(odd + i * stride)]);
          }
          kernels.rope(x.data(), x.data() + odd, stride, cos.data(), sin.data(), n);
          ASSERT_TRUE(Matches(target, expected.data(), x.data(), expected.size(), 1e-6))
              << (adjacent ? "adjacent" : "half split");
        }
      });
}

}  // namespace
}  // namespace headlane::testing
