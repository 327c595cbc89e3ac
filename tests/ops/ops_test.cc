// The operators around attention, bit by bit against scalar programs in the canonical order, on every SIMD target of this machine.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "headlane/ops.h"
#include "headlane/target.h"
#include "reference/canonical_math.h"

namespace headlane {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Around every vector width, and longer than the widest.
constexpr int64_t kLengths[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 576, 1000};

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

std::vector<float> Random(int64_t n, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// Floats that end where memory ends: reading or writing one too many is a fault.
class Guarded {
 public:
  explicit Guarded(const std::vector<float>& values) : size_(static_cast<int64_t>(values.size())) {
    const int64_t bytes = size_ * 4;
    const int64_t whole = (bytes / 4096 + 1) * 4096;
    Result<internal::AlignedBuffer> buffer = internal::AlignedBuffer::Create(whole, "test");
    if (!buffer.ok()) std::abort();
    buffer_ = std::move(buffer).value();
    data_ = reinterpret_cast<float*>(buffer_.data() + (whole - bytes));
    if (size_ > 0) std::memcpy(data_, values.data(), static_cast<size_t>(bytes));
  }
  float* data() { return data_; }
  std::vector<float> values() const { return {data_, data_ + size_}; }

 private:
  internal::AlignedBuffer buffer_;
  float* data_;
  int64_t size_;
};

void ExpectSameBits(const std::vector<float>& actual, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(Bits(actual[i]), Bits(expected[i])) << what << " at " << i << ": " << actual[i] << " and " << expected[i];
  }
}

// Runs `body(has_fma, name)` on every target that this machine has.
void OnEveryTarget(const std::function<void(bool, const std::string&)>& body) {
  TargetInfo infos[32];
  const int n = ListTargets(infos, 32);
  int num_run = 0;
  for (int i = 0; i < n; ++i) {
    if (!infos[i].supported) continue;
    ASSERT_TRUE(ForceTarget(infos[i].name).ok());
    body(infos[i].has_fma, infos[i].name);
    ++num_run;
  }
  ASSERT_TRUE(ForceTarget(nullptr).ok());
  ASSERT_GT(num_run, 0);
}

float TreeSum(const float (&partial)[16]) {
  float sum[16];
  std::memcpy(sum, partial, sizeof(sum));
  for (int step = 8; step > 0; step /= 2) {
    for (int j = 0; j < step; ++j) sum[j] += sum[j + step];
  }
  return sum[0];
}

std::vector<float> CanonicalRmsNorm(const std::vector<float>& x, const std::vector<float>& weight, float epsilon) {
  float partial[16] = {};
  for (size_t i = 0; i < x.size(); ++i) partial[i % 16] = std::fma(x[i], x[i], partial[i % 16]);
  const float r = 1.0f / std::sqrt(TreeSum(partial) / static_cast<float>(x.size()) + epsilon);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = (x[i] * r) * weight[i];
  return y;
}

TEST(RmsNorm, CanonicalBits) {
  OnEveryTarget([](bool has_fma, const std::string& target) {
    for (const int64_t n : kLengths) {
      const std::vector<float> x = Random(n, 1 + n), weight = Random(n, 1000 + n);
      for (const float epsilon : {0.0f, 1e-5f, 1e-6f}) {
        Guarded gx(x), gw(weight), gy(std::vector<float>(n, 7.0f));
        RmsNorm(gx.data(), n, gw.data(), epsilon, 1, n, gy.data(), n);
        const std::vector<float> expected = CanonicalRmsNorm(x, weight, epsilon);
        if (has_fma) ExpectSameBits(gy.values(), expected, target);
        double squares = 0.0;
        for (const float v : x) squares += static_cast<double>(v) * v;
        for (int64_t i = 0; i < n; ++i) {
          const double exact = x[i] / std::sqrt(squares / static_cast<double>(n) + epsilon) * weight[i];
          EXPECT_NEAR(gy.values()[i], exact, std::fabs(exact) * 8e-7) << target << " n " << n;
        }
        RmsNorm(gx.data(), n, gw.data(), epsilon, 1, n, gx.data(), n);  // in place
        ExpectSameBits(gx.values(), gy.values(), target + " in place");
      }
    }
  });
}

TEST(RmsNorm, RowsAreIndependentAndStridesRespected) {
  constexpr int64_t kRows = 5, kN = 19, kXStride = 23, kYStride = 40;
  const std::vector<float> x = Random(kRows * kXStride, 3), weight = Random(kN, 4);
  std::vector<float> y(kRows * kYStride, 7.0f);
  RmsNorm(x.data(), kXStride, weight.data(), 1e-5f, kRows, kN, y.data(), kYStride);
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<float> alone(kN);
    RmsNorm(x.data() + row * kXStride, kN, weight.data(), 1e-5f, 1, kN, alone.data(), kN);
    ExpectSameBits({y.begin() + row * kYStride, y.begin() + row * kYStride + kN}, alone, "row");
    for (int64_t i = kN; i < kYStride; ++i) EXPECT_EQ(y[row * kYStride + i], 7.0f);
  }
  RmsNorm(x.data(), kXStride, weight.data(), 1e-5f, 0, kN, nullptr, 0);  // no rows: nothing is touched
}

TEST(RmsNorm, ExtremesStayWhatTheyAre) {
  const std::vector<float> ones(20, 1.0f);
  std::vector<float> x(20, 0.0f), y(20);
  RmsNorm(x.data(), 20, ones.data(), 1e-5f, 1, 20, y.data(), 20);
  for (const float v : y) EXPECT_EQ(Bits(v), 0u);
  x[17] = kNaN;
  RmsNorm(x.data(), 20, ones.data(), 1e-5f, 1, 20, y.data(), 20);
  for (const float v : y) EXPECT_TRUE(std::isnan(v));
}

TEST(SiluMul, CanonicalBits) {
  OnEveryTarget([](bool has_fma, const std::string& target) {
    for (const int64_t n : kLengths) {
      std::vector<float> gate = Random(n, 5 + n, 8.0f);
      const std::vector<float> up = Random(n, 6 + n);
      const float special[] = {0.0f, -0.0f, 88.0f, -88.0f, 100.0f, -100.0f, 1e30f, -1e30f, 1e-30f};
      for (size_t i = 0; i < std::size(special) && n >= 100; ++i) gate[10 * i + 3] = special[i];
      std::vector<float> expected(n);
      for (int64_t i = 0; i < n; ++i) expected[i] = gate[i] / (1.0f + reference::CanonicalExp(-gate[i])) * up[i];
      Guarded gg(gate), gu(up), gy(std::vector<float>(n, 7.0f));
      SiluMul(gg.data(), n, gu.data(), n, 1, n, gy.data(), n);
      if (has_fma) ExpectSameBits(gy.values(), expected, target);
      for (int64_t i = 0; i < n; ++i) {
        const double exact = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i]))) * up[i];
        // Past 88 the exp is infinite and silu -0.
        EXPECT_NEAR(gy.values()[i], exact, std::fabs(exact) * 1e-6 + 1e-36) << target << " gate " << gate[i];
      }
      Guarded gg2(gate);
      SiluMul(gg2.data(), n, gu.data(), n, 1, n, gg2.data(), n);  // over gate
      ExpectSameBits(gg2.values(), gy.values(), target);
      SiluMul(gg.data(), n, gu.data(), n, 1, n, gu.data(), n);  // over up
      ExpectSameBits(gu.values(), gy.values(), target);
    }
  });
}

TEST(SiluMul, Strides) {
  const std::vector<float> gate = Random(3 * 21, 1), up = Random(3 * 30, 2);
  std::vector<float> y(3 * 25, 7.0f), alone(17);
  SiluMul(gate.data(), 21, up.data(), 30, 3, 17, y.data(), 25);
  for (int64_t row = 0; row < 3; ++row) {
    SiluMul(gate.data() + row * 21, 17, up.data() + row * 30, 17, 1, 17, alone.data(), 17);
    ExpectSameBits({y.begin() + row * 25, y.begin() + row * 25 + 17}, alone, "row");
    for (int64_t i = 17; i < 25; ++i) EXPECT_EQ(y[row * 25 + i], 7.0f);
  }
}

TEST(AddTo, Bits) {
  OnEveryTarget([](bool, const std::string& target) {
    for (const int64_t n : kLengths) {
      const std::vector<float> x = Random(n, 7 + n), y = Random(n, 8 + n);
      std::vector<float> expected(n);
      for (int64_t i = 0; i < n; ++i) expected[i] = y[i] + x[i];
      Guarded gx(x), gy(y);
      AddTo(gx.data(), n, 1, n, gy.data(), n);
      ExpectSameBits(gy.values(), expected, target);
    }
    std::vector<float> x = Random(2 * 9, 1), y(2 * 11, 1.0f);
    AddTo(x.data(), 9, 2, 5, y.data(), 11);
    for (int64_t i = 0; i < 22; ++i) EXPECT_EQ(y[i], i % 11 < 5 ? 1.0f + x[i / 11 * 9 + i % 11] : 1.0f);
  });
}

float CanonicalLogSumExp(const std::vector<float>& x) {
  float m = -kInfinity;
  for (const float v : x) m = v > m ? v : m;
  float partial[16] = {};
  for (size_t i = 0; i < x.size(); ++i) partial[i % 16] += reference::CanonicalExp(x[i] - m);
  return m + reference::CanonicalLn(TreeSum(partial));
}

TEST(LogSumExp, CanonicalBits) {
  OnEveryTarget([](bool has_fma, const std::string& target) {
    for (const int64_t n : kLengths) {
      if (n == 0) continue;
      for (const float scale : {0.01f, 1.0f, 30.0f}) {
        const std::vector<float> x = Random(n, 9 + n, scale);
        Guarded gx(x);
        const float actual = LogSumExp(gx.data(), n);
        if (has_fma) {
          EXPECT_EQ(Bits(actual), Bits(CanonicalLogSumExp(x))) << target << " n " << n;
        }
        double sum = 0.0;
        for (const float v : x) sum += std::exp(static_cast<double>(v));
        EXPECT_NEAR(actual, std::log(sum), 2e-6 * (1.0 + std::fabs(std::log(sum)))) << target << " n " << n;
      }
    }
  });
}

TEST(LogSumExp, SpecialValues) {
  OnEveryTarget([](bool, const std::string& target) {
    EXPECT_EQ(LogSumExp(nullptr, 0), -kInfinity);
    for (const int64_t n : kLengths) {
      if (n == 0) continue;
      std::vector<float> x(n, -kInfinity);
      EXPECT_EQ(LogSumExp(x.data(), n), -kInfinity) << target;
      for (const int64_t i : {int64_t{0}, n / 2, n - 1}) {
        x.assign(n, -kInfinity);
        x[i] = 3.0f;
        EXPECT_EQ(LogSumExp(x.data(), n), 3.0f) << target;
        for (const float other : {-kInfinity, 3.4e38f, 1.0f}) {
          for (const float bad : {kNaN, kInfinity}) {
            x.assign(n, other);
            x[i] = bad;
            EXPECT_EQ(Bits(LogSumExp(x.data(), n)), 0x7FC00000u) << target << " n " << n << " i " << i << " " << other << " " << bad;
          }
        }
      }
      // Far beyond what exp can represent.
      x.assign(n, 3e38f);
      EXPECT_EQ(LogSumExp(x.data(), n), 3e38f);
      x.assign(n, -3e38f);
      EXPECT_EQ(LogSumExp(x.data(), n), -3e38f);
    }
  });
}

RopeSpec Spec(int64_t rotary_dim, RopeStyle style) {
  RopeSpec spec;
  spec.rotary_dim = rotary_dim;
  spec.style = style;
  return spec;
}

// Widths of heads: pairs around every vector width.
TEST(ApplyRope, CanonicalBitsInBothStyles) {
  OnEveryTarget([](bool has_fma, const std::string& target) {
    for (const int64_t rotary_dim : {2, 4, 6, 8, 14, 16, 18, 30, 32, 34, 64, 66, 128}) {
      for (const RopeStyle style : {RopeStyle::kAdjacent, RopeStyle::kHalfSplit}) {
        const RopeSpec spec = Spec(rotary_dim, style);
        constexpr int64_t kTokens = 3, kHeads = 2;
        const int64_t pairs = rotary_dim / 2, dim = rotary_dim + 3;
        const int64_t positions[kTokens] = {0, 77, 131071};
        std::vector<float> cos(kTokens * pairs), sin(kTokens * pairs);
        ASSERT_TRUE(RopeAngles(spec, positions, kTokens, cos.data(), sin.data()).ok());
        const std::vector<float> x = Random(kTokens * kHeads * dim, 11 + rotary_dim);
        std::vector<float> expected = x;
        for (int64_t row = 0; row < kTokens * kHeads; ++row) {
          for (int64_t pair = 0; pair < pairs; ++pair) {
            const int64_t even_at = row * dim + (style == RopeStyle::kAdjacent ? 2 * pair : pair);
            const int64_t odd_at = even_at + (style == RopeStyle::kAdjacent ? 1 : pairs);
            const float even = x[even_at], odd = x[odd_at];
            const float c = cos[row / kHeads * pairs + pair], s = sin[row / kHeads * pairs + pair];
            expected[even_at] = std::fma(even, c, -(odd * s));
            expected[odd_at] = std::fma(even, s, odd * c);
          }
        }
        Guarded gx(x), gcos(cos), gsin(sin);
        ASSERT_TRUE(ApplyRope(spec, gcos.data(), gsin.data(), TokensHeadsDim(gx.data(), kTokens, kHeads, dim)).ok());
        if (has_fma) {
          ExpectSameBits(gx.values(), expected, target);
        } else {
          for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(gx.values()[i], expected[i], 1e-6) << target;
        }
        // The same elements in other places: heads outside of tokens, features three apart.
        std::vector<float> strided(x.size() * 3, 7.0f);
        TensorView view = {strided.data(), DType::kF32,         1,       kTokens, kHeads, dim,
                           0,              3 * dim,             3 * dim * kTokens, 3};
        const auto at = [&](int64_t t, int64_t h, int64_t i) { return t * view.token_stride + h * view.head_stride + i * 3; };
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t h = 0; h < kHeads; ++h) {
            for (int64_t i = 0; i < dim; ++i) strided[at(t, h, i)] = x[(t * kHeads + h) * dim + i];
          }
        }
        ASSERT_TRUE(ApplyRope(spec, cos.data(), sin.data(), view).ok());
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t h = 0; h < kHeads; ++h) {
            for (int64_t i = 0; i < dim; ++i) {
              ASSERT_EQ(Bits(strided[at(t, h, i)]), Bits(gx.values()[(t * kHeads + h) * dim + i])) << target;
              ASSERT_EQ(strided[at(t, h, i) + 1], 7.0f);
            }
          }
        }
      }
    }
  });
}

// Head of 4, base 1e4, position 1: the first pair turns by 1, the second by 0.01.
TEST(ApplyRope, StylesPairWhatTheyShould) {
  const int64_t position = 1;
  float cos[2], sin[2];
  const RopeSpec adjacent = Spec(4, RopeStyle::kAdjacent), half = Spec(4, RopeStyle::kHalfSplit);
  ASSERT_TRUE(RopeAngles(adjacent, &position, 1, cos, sin).ok());
  const auto expect = [&](const RopeSpec& spec, std::vector<float> x, const std::vector<float>& expected) {
    ASSERT_TRUE(ApplyRope(spec, cos, sin, TokensHeadsDim(x.data(), 1, 1, static_cast<int64_t>(x.size()))).ok());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], expected[i], 1e-6) << i;
  };
  expect(adjacent, {1, 0, 0, 0}, {0.540302f, 0.841471f, 0, 0});
  expect(half, {1, 0, 0, 0}, {0.540302f, 0, 0.841471f, 0});
  expect(adjacent, {0, 1, 0, 0}, {-0.841471f, 0.540302f, 0, 0});
  expect(half, {0, 1, 0, 0}, {0, 0.99995f, 0, 0.00999983f});
  // Two of four features rotate, the others stay.
  const RopeSpec partial = Spec(2, RopeStyle::kHalfSplit);
  ASSERT_TRUE(RopeAngles(partial, &position, 1, cos, sin).ok());
  expect(partial, {1, 0, 5, 6}, {0.540302f, 0.841471f, 5, 6});
}

TEST(ApplyRope, Errors) {
  float x[32] = {}, cos[4] = {}, sin[4] = {};
  const RopeSpec spec = Spec(8, RopeStyle::kAdjacent);
  const auto expect = [&](const RopeSpec& s, const float* c, const TensorView& view, const char* part) {
    const Status status = ApplyRope(s, c, sin, view);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << part;
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message();
  };
  expect(spec, cos, TokensHeadsDim(x, 1, 1, 6), "6 features, fewer than rotary_dim 8");
  expect(spec, nullptr, TokensHeadsDim(x, 1, 1, 8), "null");
  expect(spec, cos, TokensHeadsDim(static_cast<float*>(nullptr), 1, 1, 8), "null");
  TensorView view = TokensHeadsDim(x, 1, 1, 8);
  view.dtype = DType::kF16;
  expect(spec, cos, view, "f16");
  view = TokensHeadsDim(x, 1, 1, 8);
  view.num_batch = 2;
  view.batch_stride = 8;
  expect(spec, cos, view, "batch of 2");
  view = TokensHeadsDim(x, 2, 1, 8);
  view.token_stride = 4;  // tokens overlap
  expect(spec, cos, view, "x");
  expect(Spec(7, RopeStyle::kAdjacent), cos, TokensHeadsDim(x, 1, 1, 8), "rotary_dim is 7");
  EXPECT_TRUE(ApplyRope(spec, cos, sin, TokensHeadsDim(x, 0, 1, 8)).ok());
  EXPECT_TRUE(ApplyRope(Spec(0, RopeStyle::kAdjacent), nullptr, nullptr, TokensHeadsDim(x, 1, 1, 8)).ok());
}

}  // namespace
}  // namespace headlane
