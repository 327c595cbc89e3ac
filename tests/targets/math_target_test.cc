// exp, ln, tanh, a softmax step, a linear layer and a rotation of each target against double precision, at every number
// of lanes that a vector may be cut to, in guarded memory. tests/kernels has the thorough version, for native speed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/canonical_math.h"
#include "base/float16.h"
#include "headlane/dtype.h"
#include "kernels/kernel_api.h"
#include "reference/canonical.h"
#include "reference/canonical_math.h"
#include "reference/canonical_ops.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "targets/under_test.h"

namespace headlane::testing {
namespace {

using Kernel = void (*)(const float*, int64_t, float*) noexcept;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The distance between the floats next to `exact`, in the binade of `exact`.
double UlpOf(double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::ldexp(1.0, std::max(exponent, -125) - 24);
}

struct Function {
  Kernel kernel;
  float (*canonical)(float);
  double (*exact)(double);
  double max_ulp;  // of targets with FMA; one or two more without
};

class MathTargetTest : public EachTarget {
 protected:
  // In pieces of 1, 2, 3, ... numbers that end at a guard page.
  void Check(const Function& f, const std::vector<float>& arguments) const {
    for (size_t begin = 0, n = 1; begin < arguments.size(); begin += n, n = n % 40 + 1) {
      n = std::min(n, arguments.size() - begin);
      const GuardedFloats x({arguments.begin() + static_cast<std::ptrdiff_t>(begin),
                             arguments.begin() + static_cast<std::ptrdiff_t>(begin + n)});
      const GuardedFloats y(n);
      f.kernel(x.data(), static_cast<int64_t>(n), y.data());
      for (size_t i = 0; i < n; ++i) {
        SCOPED_TRACE(::testing::Message() << "f(" << x[i] << ") = " << y[i] << ", " << i << " of " << n);
        if (target().has_fma) {
          ASSERT_TRUE(SameBits(f.canonical(x[i]), y[i], NaNs::kEqual));
        }
        const double exact = f.exact(static_cast<double>(x[i]));
        if (std::isnan(exact)) {
          ASSERT_TRUE(std::isnan(y[i]));
        } else if (std::fabs(exact) < 0x1p-126 && exact != 0.0 && f.canonical(x[i]) == 0.0f) {
          ASSERT_EQ(y[i], 0.0f);  // exp gives no denormals
        } else if (std::fabs(exact) >= 0x1p128) {
          ASSERT_EQ(static_cast<double>(y[i]), std::copysign(static_cast<double>(kInf), exact));
        } else {
          const double ulps = target().has_fma ? f.max_ulp : f.max_ulp + 2.0;
          ASSERT_LE(std::fabs(static_cast<double>(y[i]) - exact), ulps * UlpOf(exact));
        }
      }
    }
  }

  static const internal::SoftmaxKernels& Kernels() { return internal::ActiveKernels().softmax; }
};

const std::vector<float> kSpecial = {0.0f,
                                     -0.0f,
                                     1e-45f,
                                     -1e-45f,
                                     1.0f,
                                     -1.0f,
                                     -1e-8f,
                                     1e-8f,
                                     -87.0f,
                                     87.0f,
                                     88.72f,
                                     89.0f,
                                     -87.4f,
                                     -104.0f,
                                     1e30f,
                                     -1e30f,
                                     3.4e38f,
                                     kInf,
                                     -kInf,
                                     kNaN,
                                     9.0f,
                                     -9.0f,
                                     20.0f,
                                     -20.0f,
                                     internal::kExpCutoff,
                                     internal::kExpOverflow};

std::vector<float> Points(uint64_t seed, size_t n, float low, float high) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& value : x) value = low + (high - low) * (random.Float() * 0.5f + 0.5f);
  return x;
}

std::vector<float> With(std::vector<float> x, const std::vector<float>& more) {
  x.insert(x.end(), more.begin(), more.end());
  return x;
}

TEST_P(MathTargetTest, Exp) {
  const Function f{Kernels().exp, reference::CanonicalExp, [](double x) { return std::exp(x); }, internal::kExpMaxUlp};
  Check(f, With(Points(1, 400, -90.0f, 90.0f), kSpecial));
}

TEST_P(MathTargetTest, ExpOfWhatIsNotPositive) {
  const Function f{Kernels().exp_nonpositive, reference::CanonicalExp, [](double x) { return std::exp(x); },
                   internal::kExpMaxUlp};
  std::vector<float> x = With(Points(2, 300, -20.0f, 0.0f), Points(3, 300, -110.0f, -80.0f));
  for (float special : kSpecial) {
    if (!(special > 0.0f)) x.push_back(special);
  }
  Check(f, x);
}

TEST_P(MathTargetTest, Ln) {
  const Function f{Kernels().log, reference::CanonicalLn, [](double x) { return std::log(x); }, internal::kLnMaxUlp};
  Check(f, With(With(Points(4, 200, 0.5f, 2.0f), Points(5, 200, 1e-30f, 1e9f)), kSpecial));
}

TEST_P(MathTargetTest, Tanh) {
  const Function f{Kernels().tanh, reference::CanonicalTanh, [](double x) { return std::tanh(x); },
                   internal::kTanhMaxUlp};
  Check(f, With(With(Points(6, 200, -12.0f, 12.0f), Points(7, 200, -0.01f, 0.01f)), kSpecial));
}

// Weights e^(s - m) of what is visible, 0 of what is not, their sum, the maximum, in several steps.
TEST_P(MathTargetTest, SoftmaxSteps) {
  Random random(8);
  constexpr int64_t kPitch = internal::kBlockKeys;
  for (int64_t rows : {1, 3, 17}) {
    const size_t n = static_cast<size_t>(rows);
    const GuardedFloats m(n), l(n * 16), c(n), sums(n);
    std::fill_n(m.data(), n, -kInf);
    std::fill_n(l.data(), n * 16, 0.0f);
    std::vector<std::vector<double>> seen(n);  // all visible scores so far
    for (int64_t num_tiles : {1, 8, 3}) {
      const GuardedFloats s(n * kPitch);
      const GuardedArray<int32_t> begin(n), end(n);
      std::vector<std::vector<float>> scores(n);
      for (size_t r = 0; r < n; ++r) {
        begin[r] = static_cast<int32_t>(random.Int(0, 5));
        end[r] = static_cast<int32_t>(random.Int(6, num_tiles * 16));
        for (int64_t i = 0; i < num_tiles * 16; ++i) {
          const bool visible = i >= begin[r] && i < end[r];
          scores[r].push_back(visible ? random.Float() * 20.0f : kNaN);
          if (visible) seen[r].push_back(static_cast<double>(scores[r].back()));
        }
        std::copy(scores[r].begin(), scores[r].end(), s.data() + r * kPitch);
      }
      internal::SoftmaxArgs args{};
      args.s = s.data();
      args.rows = rows;
      args.num_tiles = num_tiles;
      args.begin = begin.data();
      args.end = end.data();
      args.m = m.data();
      args.l = l.data();
      args.c = c.data();
      Kernels().softmax(args);
      for (size_t r = 0; r < n; ++r) {
        ASSERT_EQ(static_cast<double>(m[r]), *std::max_element(seen[r].begin(), seen[r].end()));
        for (int64_t i = 0; i < num_tiles * 16; ++i) {
          const float weight = s[r * kPitch + static_cast<size_t>(i)];
          if (i < begin[r] || i >= end[r]) {
            ASSERT_EQ(weight, 0.0f) << "key " << i << " of row " << r;
            continue;
          }
          // The difference of score and maximum is rounded before its exponential is.
          const double exact =
              std::exp(static_cast<double>(scores[r][static_cast<size_t>(i)]) - static_cast<double>(m[r]));
          ASSERT_NEAR(static_cast<double>(weight), exact, exact * 4e-6) << "key " << i << " of row " << r;
        }
      }
    }
    Kernels().reduce({l.data(), rows, sums.data()});
    for (size_t r = 0; r < n; ++r) {
      double exact = 0.0;
      for (double score : seen[r]) exact += std::exp(score - static_cast<double>(m[r]));
      ASSERT_NEAR(static_cast<double>(sums[r]), exact, exact * 1e-5) << "row " << r;
    }
  }
}

// Every number of rows that a micro-kernel may have, features that end within a tile, chains cut in two.
TEST_P(MathTargetTest, LinearLayer) {
  Random random(9);
  constexpr int64_t kLen = 19, kCut = 8;
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 13}) {
    for (int64_t features : {1, 16, 33, 143}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, " << features << " features");
      const int64_t num_tiles = (features + 15) / 16;
      const GuardedFloats x(random.Floats(static_cast<size_t>(rows * kLen)));
      // Tiles begin at multiples of 64 bytes, and end at the guard page.
      const GuardedFloats w(random.Floats(static_cast<size_t>(num_tiles * kLen * 16)));
      const GuardedFloats y(static_cast<size_t>(rows * features));
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, kCut), std::pair<int64_t, int64_t>(kCut, kLen)}) {
        internal::ActiveKernels().linear_f32({x.data() + begin, kLen, rows, end - begin, w.data() + begin * 16,
                                              kLen * 16, num_tiles, begin != 0, y.data(), features, features});
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t f = 0; f < features; ++f) {
          std::vector<float> column(kLen);
          double exact = 0.0;
          for (int64_t k = 0; k < kLen; ++k) {
            column[static_cast<size_t>(k)] = w[static_cast<size_t>((f / 16 * kLen + k) * 16 + f % 16)];
            exact += static_cast<double>(x[static_cast<size_t>(r * kLen + k)]) *
                     static_cast<double>(column[static_cast<size_t>(k)]);
          }
          const float actual = y[static_cast<size_t>(r * features + f)];
          if (target().has_fma) {
            ASSERT_TRUE(SameBits(reference::CanonicalDot(x.data() + r * kLen, column.data(), kLen), actual));
          }
          ASSERT_NEAR(static_cast<double>(actual), exact, 1e-5);
        }
      }
    }
  }
}

// Sums and one product: the same bits on targets without FMA, too.
TEST_P(MathTargetTest, Hadamard) {
  Random random(11);
  for (int64_t dim : {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 48, 64, 80, 96, 127, 128, 160, 256, 300, 576}) {
    const GuardedFloats x(random.Floats(static_cast<size_t>(dim), 5.0f));
    std::vector<float> expected(x.data(), x.data() + dim);
    reference::CanonicalHadamard(expected.data(), dim);
    internal::ActiveKernels().hadamard(x.data(), dim);
    ASSERT_TRUE(SameBits(expected.data(), x.data(), expected.size())) << dim;
  }
}

// Every code of f16 and bf16 widened exactly, and rounded back to itself.
TEST_P(MathTargetTest, SixteenBitTypes) {
  const internal::ElementwiseKernels& kernels = internal::ActiveKernels().elementwise;
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    constexpr int64_t kPiece = 997;  // no multiple of any vector
    for (int64_t begin = 0; begin < 65536; begin += kPiece) {
      const int64_t n = std::min<int64_t>(kPiece, 65536 - begin);
      const GuardedArray<uint16_t> codes(static_cast<size_t>(n)), back(static_cast<size_t>(n));
      const GuardedFloats wide(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) codes[static_cast<size_t>(i)] = static_cast<uint16_t>(begin + i);
      kernels.scale(codes.data(), dtype, 1, 1.0f, n, wide.data());
      kernels.store(wide.data(), n, dtype, 1, back.data());
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        const bool f16 = dtype == DType::kF16;
        const float expected = f16 ? internal::F16ToF32(codes[i]) : internal::BF16ToF32(codes[i]);
        ASSERT_TRUE(SameBits(expected, wide[i], NaNs::kEqual)) << DTypeName(dtype) << " " << codes[i];
        if (!std::isnan(expected)) {
          ASSERT_EQ(back[i], codes[i]) << DTypeName(dtype);
        }
      }
    }
    // Rounding: to nearest, ties to even.
    Random random(10);
    const GuardedFloats x(random.Floats(1001, 70000.0f));
    const GuardedArray<uint16_t> rounded(x.size());
    kernels.store(x.data(), static_cast<int64_t>(x.size()), dtype, 1, rounded.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(rounded[i], dtype == DType::kF16 ? internal::F32ToF16(x[i]) : internal::F32ToBF16(x[i])) << x[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, MathTargetTest, ::testing::ValuesIn(TargetsUnderTest()), NameOn);

}  // namespace
}  // namespace headlane::testing
