// Normalisation of heads in place: bits of the canonical program in every element type and order, on every SIMD target.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "headlane/ops.h"
#include "ops/helpers.h"
#include "ops/typed_heads.h"
#include "reference/canonical_ops.h"
#include "support/guarded_buffer.h"

namespace headlane {
namespace {

void CheckNorm(int64_t dim, bool has_weight, DType type, bool has_fma) {
  SCOPED_TRACE(dim);
  SCOPED_TRACE(DTypeName(type));
  const HeadsShape shape = {2, 2, 3, dim};
  std::vector<float> x = Floats(shape.size(), dim);
  for (float& v : x) v = Through(type, v);
  const std::vector<float> weight = has_weight ? Floats(dim, 1) : std::vector<float>(static_cast<size_t>(dim), 1.0f);
  const testing::GuardedFloats guarded_weight(weight);
  constexpr float kEpsilon = 1e-5f;
  std::vector<float> expected(x.size());
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(dim)) {
    reference::CanonicalRmsNorm(&x[begin], weight.data(), kEpsilon, dim, &expected[begin]);
  }
  const float step = type == DType::kF32 ? 1e-6f : type == DType::kF16 ? 1e-3f : 8e-3f;
  for (const HeadsOrder order : {HeadsOrder::kTokensHeadsDim, HeadsOrder::kHeadsTokensDim, HeadsOrder::kDimOutermost}) {
    for (const int64_t gap : {1, 2}) {
      TypedHeads heads(type, shape, order, gap);
      for (int64_t i = 0; i < shape.size(); ++i) heads.Set(i, x[static_cast<size_t>(i)]);
      ASSERT_TRUE(RmsNormHeads(has_weight ? guarded_weight.data() : nullptr, kEpsilon, heads.view()).ok());
      for (int64_t i = 0; i < shape.size(); ++i) {
        const float want = Through(type, expected[static_cast<size_t>(i)]);
        if (has_fma) {
          ASSERT_EQ(Bits(heads.Get(i)), Bits(want)) << i << ", order " << static_cast<int>(order) << ", gap " << gap;
        }
        ASSERT_NEAR(heads.Get(i), want, std::fabs(want) * step + 1e-7f) << i;
      }
      EXPECT_TRUE(heads.GapsAreUntouched());
    }
  }
}

TEST(RmsNormHeads, CanonicalBitsInEveryTypeAndOrder) {
  OnEveryTarget([](bool has_fma) {
    for (const int64_t dim : {1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 80, 128, 257}) {
      for (const DType type : kAllTypes) {
        CheckNorm(dim, true, type, has_fma);
        CheckNorm(dim, false, type, has_fma);
      }
    }
  });
}

TEST(RmsNormHeads, TheLargestBufferedHeadAndBeyond) {
  OnEveryTarget([](bool has_fma) {
    for (const DType type : kAllTypes) {
      CheckNorm(kMaxBufferedHeadDim, true, type, has_fma);
      CheckNorm(kMaxBufferedHeadDim, false, type, has_fma);
    }
  });
  constexpr int64_t kDim = kMaxBufferedHeadDim + 1;
  const std::vector<float> weight = Floats(kDim, 1), x = Floats(kDim, 2);
  std::vector<float> expected(x.size()), y = x;
  RmsNorm(x.data(), kDim, weight.data(), 1e-5f, 1, kDim, expected.data(), kDim);
  ASSERT_TRUE(RmsNormHeads(weight.data(), 1e-5f, TokensHeadsDim(y.data(), 1, 1, kDim)).ok());
  EXPECT_EQ(expected, y);
  const auto expect_refused = [&](const float* w, const TensorView& view, const char* part) {
    const Status status = RmsNormHeads(w, 1e-5f, view);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << part;
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message();
  };
  expect_refused(nullptr, TokensHeadsDim(y.data(), 1, 1, kDim), "4097 features, more than 4096");
  TensorView half = TokensHeadsDim(y.data(), 1, 1, kDim);
  half.dtype = DType::kBF16;
  expect_refused(weight.data(), half, "bf16");
  std::vector<float> strided(2 * kDim);
  TensorView gaps = TokensHeadsDim(strided.data(), 1, 1, kDim);
  gaps.dim_stride = 2;
  expect_refused(weight.data(), gaps, "dim_stride 1");
  EXPECT_EQ(expected, y);
}

TEST(RmsNormHeads, LargeValuesIn16BitsDoNotOverflow) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    TypedHeads heads(type, {1, 1, 1, 32}, HeadsOrder::kTokensHeadsDim, 1);
    for (int64_t i = 0; i < 32; ++i) heads.Set(i, i % 2 == 0 ? 60000.0f : -60000.0f);
    ASSERT_TRUE(RmsNormHeads(nullptr, 0.0f, heads.view()).ok());
    for (int64_t i = 0; i < 32; ++i) EXPECT_EQ(heads.Get(i), i % 2 == 0 ? 1.0f : -1.0f);
  }
}

TEST(RmsNormHeads, Errors) {
  float x[16] = {}, weight[8] = {};
  const auto expect = [&](float epsilon, const TensorView& view, const char* part) {
    const Status status = RmsNormHeads(weight, epsilon, view);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << part;
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message();
  };
  const float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {-1e-6f, kNaN, kInfinity, -kInfinity}) {
    expect(bad, TokensHeadsDim(x, 1, 1, 8), "epsilon is");
  }
  expect(0.0f, TokensHeadsDim(static_cast<float*>(nullptr), 1, 1, 8), "null");
  TensorView view = TokensHeadsDim(x, 2, 1, 8);
  view.token_stride = 7;
  expect(0.0f, view, "overlap");
  view = TokensHeadsDim(x, 2, 1, 8);
  view.dtype = static_cast<DType>(kNumDTypes);
  expect(0.0f, view, "dtype 6");
  EXPECT_TRUE(RmsNormHeads(weight, 0.0f, TokensHeadsDim(x, 0, 1, 8)).ok());
  EXPECT_TRUE(RmsNormHeads(weight, 0.0f, TokensHeadsDim(x, 1, 1, 0)).ok());
}

}  // namespace
}  // namespace headlane
