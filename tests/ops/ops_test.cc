// The operators on rows, bit by bit against the scalar canonical programs, on every SIMD target of this machine; and
// all operators in the caller's floating-point environment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "headlane/ops.h"
#include "ops/helpers.h"
#include "reference/canonical_ops.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace headlane {
namespace {

using testing::GuardedFloats;
using testing::SameBits;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Around every vector width, and longer than the widest.
constexpr int64_t kLengths[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 576, 1000};

::testing::AssertionResult SameBits(const std::vector<float>& expected, const GuardedFloats& actual) {
  return testing::SameBits(expected.data(), actual.data(), expected.size());
}
::testing::AssertionResult SameBits(const GuardedFloats& expected, const GuardedFloats& actual) {
  return testing::SameBits(expected.data(), actual.data(), expected.size());
}

TEST(RmsNorm, CanonicalBits) {
  OnEveryTarget([](bool has_fma) {
    for (const int64_t n : kLengths) {
      const std::vector<float> x = Floats(n, 1 + n), weight = Floats(n, 1000 + n);
      const GuardedFloats gw(weight);
      for (const float epsilon : {0.0f, 1e-5f, 1e-6f}) {
        const GuardedFloats gx(x), gy(static_cast<size_t>(n));
        RmsNorm(gx.data(), n, gw.data(), epsilon, 1, n, gy.data(), n);
        std::vector<float> expected(x.size());
        reference::CanonicalRmsNorm(x.data(), weight.data(), epsilon, n, expected.data());
        if (has_fma) {
          EXPECT_TRUE(SameBits(expected, gy)) << n;
        }
        double squares = 0.0;
        for (const float v : x) squares += static_cast<double>(v) * v;
        for (int64_t i = 0; i < n; ++i) {
          const double exact = x[i] / std::sqrt(squares / static_cast<double>(n) + epsilon) * weight[i];
          EXPECT_NEAR(gy[i], exact, std::fabs(exact) * 8e-7) << n;
        }
        RmsNorm(gx.data(), n, gw.data(), epsilon, 1, n, gx.data(), n);  // in place
        EXPECT_TRUE(SameBits(gy, gx)) << n;
      }
    }
  });
}

TEST(RmsNorm, RowsAreIndependentAndStridesRespected) {
  constexpr int64_t kRows = 5, kN = 19, kXStride = 23, kYStride = 40;
  const std::vector<float> x = Floats(kRows * kXStride, 3), weight = Floats(kN, 4);
  std::vector<float> y(kRows * kYStride, 7.0f), alone(kN);
  RmsNorm(x.data(), kXStride, weight.data(), 1e-5f, kRows, kN, y.data(), kYStride);
  for (int64_t row = 0; row < kRows; ++row) {
    RmsNorm(x.data() + row * kXStride, kN, weight.data(), 1e-5f, 1, kN, alone.data(), kN);
    EXPECT_TRUE(SameBits(alone.data(), y.data() + row * kYStride, kN)) << row;
    for (int64_t i = kN; i < kYStride; ++i) EXPECT_EQ(y[row * kYStride + i], 7.0f);
  }
  RmsNorm(x.data(), kXStride, weight.data(), 1e-5f, 0, kN, nullptr, 0);  // no rows: nothing is touched
}

TEST(RmsNorm, ZerosStayZeroAndNaNSpreads) {
  const std::vector<float> ones(20, 1.0f);
  std::vector<float> x(20, 0.0f), y(20, 7.0f);
  RmsNorm(x.data(), 20, ones.data(), 1e-5f, 1, 20, y.data(), 20);
  for (const float v : y) EXPECT_EQ(Bits(v), 0u);
  x[17] = kNaN;
  RmsNorm(x.data(), 20, ones.data(), 1e-5f, 1, 20, y.data(), 20);
  for (const float v : y) EXPECT_TRUE(std::isnan(v));
}

TEST(SiluMul, CanonicalBits) {
  OnEveryTarget([](bool has_fma) {
    for (const int64_t n : kLengths) {
      std::vector<float> gate = Floats(n, 5 + n, 30.0f);
      const std::vector<float> up = Floats(n, 6 + n);
      const float special[] = {0.0f, -0.0f, 88.0f, -88.0f, 100.0f, -100.0f, 1e30f, -1e30f, 1e-30f};
      for (size_t i = 0; i < std::size(special) && n >= 100; ++i) gate[10 * i + 3] = special[i];
      std::vector<float> expected(gate.size());
      for (size_t i = 0; i < gate.size(); ++i) expected[i] = reference::CanonicalSiluMul(gate[i], up[i]);
      const GuardedFloats gg(gate), gu(up), gy(gate.size());
      SiluMul(gg.data(), n, gu.data(), n, 1, n, gy.data(), n);
      if (has_fma) {
        EXPECT_TRUE(SameBits(expected, gy)) << n;
      }
      for (int64_t i = 0; i < n; ++i) {
        const double exact = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i]))) * up[i];
        // Below -88 the exp is infinite and silu -0.
        EXPECT_NEAR(gy[i], exact, std::fabs(exact) * 1e-6 + 1e-36) << gate[i];
      }
      const GuardedFloats over_gate(gate);
      SiluMul(over_gate.data(), n, gu.data(), n, 1, n, over_gate.data(), n);
      EXPECT_TRUE(SameBits(gy, over_gate)) << n;
      SiluMul(gg.data(), n, gu.data(), n, 1, n, gu.data(), n);
      EXPECT_TRUE(SameBits(gy, gu)) << n;
    }
  });
}

TEST(SiluMul, RowsAreIndependentAndStridesRespected) {
  const std::vector<float> gate = Floats(3 * 21, 1), up = Floats(3 * 30, 2);
  std::vector<float> y(3 * 25, 7.0f), alone(17);
  SiluMul(gate.data(), 21, up.data(), 30, 3, 17, y.data(), 25);
  for (int64_t row = 0; row < 3; ++row) {
    SiluMul(gate.data() + row * 21, 17, up.data() + row * 30, 17, 1, 17, alone.data(), 17);
    EXPECT_TRUE(SameBits(alone.data(), y.data() + row * 25, 17)) << row;
    for (int64_t i = 17; i < 25; ++i) EXPECT_EQ(y[row * 25 + i], 7.0f);
  }
}

TEST(AddTo, Bits) {
  OnEveryTarget([](bool) {
    for (const int64_t n : kLengths) {
      const std::vector<float> x = Floats(n, 7 + n), y = Floats(n, 8 + n);
      std::vector<float> expected(x.size());
      for (size_t i = 0; i < x.size(); ++i) expected[i] = y[i] + x[i];
      const GuardedFloats gx(x), gy(y);
      AddTo(gx.data(), n, 1, n, gy.data(), n);
      EXPECT_TRUE(SameBits(expected, gy)) << n;
    }
    const std::vector<float> x = Floats(2 * 9, 1);
    std::vector<float> y(2 * 11, 1.0f);
    AddTo(x.data(), 9, 2, 5, y.data(), 11);
    for (int64_t i = 0; i < 22; ++i) EXPECT_EQ(y[i], i % 11 < 5 ? 1.0f + x[i / 11 * 9 + i % 11] : 1.0f);
  });
}

TEST(LogSumExp, CanonicalBits) {
  OnEveryTarget([](bool has_fma) {
    for (const int64_t n : kLengths) {
      if (n == 0) continue;
      for (const float size : {0.01f, 1.0f, 80.0f}) {
        const std::vector<float> x = Floats(n, 9 + n, size);
        const GuardedFloats gx(x);
        const float actual = LogSumExp(gx.data(), n);
        if (has_fma) {
          EXPECT_TRUE(SameBits(reference::CanonicalLogSumExp(x.data(), n), actual)) << n << " numbers to " << size;
        }
        double sum = 0.0;
        for (const float v : x) sum += std::exp(static_cast<double>(v));
        EXPECT_NEAR(actual, std::log(sum), 1e-6 * (1.0 + std::fabs(std::log(sum)))) << n << " numbers to " << size;
      }
    }
  });
}

TEST(LogSumExp, SpecialValues) {
  OnEveryTarget([](bool) {
    EXPECT_EQ(LogSumExp(nullptr, 0), -kInfinity);
    for (const int64_t n : kLengths) {
      if (n == 0) continue;
      std::vector<float> x(static_cast<size_t>(n), -kInfinity);
      EXPECT_EQ(LogSumExp(x.data(), n), -kInfinity);
      for (const int64_t i : {int64_t{0}, n / 2, n - 1}) {
        std::fill(x.begin(), x.end(), -kInfinity);
        x[i] = 3.0f;
        EXPECT_EQ(LogSumExp(x.data(), n), 3.0f);
        for (const float other : {-kInfinity, 3.4e38f, 1.0f}) {
          for (const float bad : {kNaN, kInfinity}) {
            std::fill(x.begin(), x.end(), other);
            x[i] = bad;
            EXPECT_EQ(Bits(LogSumExp(x.data(), n)), 0x7FC00000u)
                << bad << " at " << i << " of " << n << ", the others " << other;
          }
        }
      }
      // Far beyond what exp can represent; ln n is less than half an ulp of it.
      for (const float huge : {3e38f, -3e38f}) {
        std::fill(x.begin(), x.end(), huge);
        EXPECT_EQ(LogSumExp(x.data(), n), huge);
      }
    }
  });
}

// What every operator gives for one row.
std::vector<float> AllOperators(const std::vector<float>& x, const std::vector<float>& weight) {
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> y(x.size()), results;
  const auto keep = [&] { results.insert(results.end(), y.begin(), y.end()); };
  RmsNorm(x.data(), n, weight.data(), 1e-5f, 1, n, y.data(), n);
  keep();
  SiluMul(x.data(), n, weight.data(), n, 1, n, y.data(), n);
  keep();
  AddTo(x.data(), n, 1, n, y.data(), n);
  keep();
  results.push_back(LogSumExp(x.data(), n));
  RopeSpec spec;
  spec.rotary_dim = n;
  spec.style = RopeStyle::kHalfSplit;
  spec.scaling = RopeScaling::kDynamicNtk;
  spec.factor = 1.7;
  spec = ResolveRope(spec, 123458).value();
  spec.attention_factor = YarnMscale(7.0, 0.9) / LongRopeMscale(3.0, 4096.0);
  const int64_t position = 123457;
  std::vector<float> cos(n / 2), sin(n / 2);
  EXPECT_TRUE(RopeAngles(spec, &position, 1, cos.data(), sin.data()).ok());
  EXPECT_TRUE(RmsNormHeads(weight.data(), 1e-5f, TokensHeadsDim(y.data(), 1, 1, n)).ok());
  EXPECT_TRUE(ApplyRope(spec, cos.data(), sin.data(), TokensHeadsDim(y.data(), 1, 1, n)).ok());
  keep();
  results.insert(results.end(), cos.begin(), cos.end());
  results.insert(results.end(), sin.begin(), sin.end());
  EXPECT_TRUE(AlibiSlopes(n, y).ok());
  keep();
  return results;
}

TEST(Operators, IgnoreTheCallersFloatingPointEnvironmentAndLeaveItAlone) {
  std::vector<float> x = Floats(50, 1);
  const std::vector<float> weight = Floats(50, 2);
  for (size_t i = 0; i < x.size(); i += 3) x[i] *= 0x1p-130f;  // denormal
  const std::vector<float> expected = AllOperators(x, weight);
  for (const int mode : {FE_UPWARD, FE_TOWARDZERO}) {
    ASSERT_EQ(std::fesetround(mode), 0);
    const std::vector<float> actual = AllOperators(x, weight);
    const int after = std::fegetround();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(after, mode);
    EXPECT_TRUE(SameBits(expected, actual)) << "rounding mode " << mode;
  }
#if defined(__x86_64__)
  const unsigned saved = _mm_getcsr();
  const unsigned flushing = saved | 0x8040;  // flush to zero, denormals are zero
  _mm_setcsr(flushing);
  const std::vector<float> actual = AllOperators(x, weight);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(after & 0xFFC0, flushing & 0xFFC0);  // but for the flags
  EXPECT_TRUE(SameBits(expected, actual)) << "flush to zero";
#endif
}

}  // namespace
}  // namespace headlane
