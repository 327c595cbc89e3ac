// HadamardHeads: the canonical program's bits at every dim, type and layout; orthogonal and its own inverse; by its
// definition in double.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "headlane/ops.h"
#include "ops/typed_heads.h"
#include "reference/canonical_ops.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace headlane {
namespace {

TEST(HadamardHeads, EveryDimHasTheBitsOfTheCanonicalProgram) {
  testing::Random random(1);
  for (int64_t dim = 0; dim <= 600; ++dim) {
    const std::vector<float> x = random.Floats(static_cast<size_t>(dim), 3.0f);
    std::vector<float> expected = x;
    reference::CanonicalHadamard(expected.data(), dim);
    const testing::GuardedFloats row(x);
    ASSERT_TRUE(HadamardHeads(TokensHeadsDim(row.data(), 1, 1, dim)).ok());
    ASSERT_EQ(std::vector<float>(row.data(), row.data() + dim), expected) << dim;
  }
}

TEST(HadamardHeads, AnyTypeAndLayout) {
  testing::Random random(2);
  for (const DType type : kAllTypes) {
    for (const HeadsOrder order :
         {HeadsOrder::kTokensHeadsDim, HeadsOrder::kHeadsTokensDim, HeadsOrder::kDimOutermost}) {
      for (const int64_t gap : {1, 3}) {
        const HeadsShape shape{.batch = 2, .tokens = 3, .heads = 2, .dim = 52};
        TypedHeads heads(type, shape, order, gap);
        std::vector<float> expected;
        for (int64_t i = 0; i < shape.size(); ++i) expected.push_back(Through(type, random.Float()));
        for (int64_t i = 0; i < shape.size(); ++i) heads.Set(i, expected[static_cast<size_t>(i)]);
        for (int64_t i = 0; i < shape.size(); i += shape.dim) {
          float* const row = expected.data() + i;
          reference::CanonicalHadamard(row, shape.dim);
          for (int64_t d = 0; d < shape.dim; ++d) row[d] = Through(type, row[d]);
        }
        ASSERT_TRUE(HadamardHeads(heads.view()).ok());
        for (int64_t i = 0; i < shape.size(); ++i) {
          ASSERT_EQ(heads.Get(i), expected[static_cast<size_t>(i)]) << DTypeName(type) << " gap " << gap << " " << i;
        }
        EXPECT_TRUE(heads.GapsAreUntouched());
      }
    }
  }
}

// A unit vector becomes a row of the matrix; 1 / sqrt(2) and its halves are the floats next to them.
TEST(HadamardHeads, IsTheMatrixOfItsDefinition) {
  for (const int64_t n : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    const float size = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
    for (int64_t j = 0; j < n; ++j) {
      std::vector<float> x(static_cast<size_t>(n), 0.0f);
      x[static_cast<size_t>(j)] = 1.0f;
      ASSERT_TRUE(HadamardHeads(TokensHeadsDim(x.data(), 1, 1, n)).ok());
      for (int64_t i = 0; i < n; ++i) {
        const bool negative = std::popcount(static_cast<uint64_t>(i & j)) % 2 != 0;
        ASSERT_EQ(x[static_cast<size_t>(i)], negative ? -size : size) << n << " " << i << " " << j;
      }
    }
  }
}

// Blocks of 64, 16 and 4 of 84 features do not mix.
TEST(HadamardHeads, BlocksAreThePowersOfTwoOfTheDim) {
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 64}, {64, 80}, {80, 84}}) {
    std::vector<float> x(84, 0.0f);
    x[begin] = 1.0f;
    ASSERT_TRUE(HadamardHeads(TokensHeadsDim(x.data(), 1, 1, 84)).ok());
    for (size_t i = 0; i < 84; ++i) EXPECT_EQ(x[i] != 0.0f, i >= begin && i < end) << i;
  }
}

TEST(HadamardHeads, KeepsLengthsAndUndoesItself) {
  testing::Random random(3);
  for (const int64_t dim : {2, 64, 96, 128, 300, 576, 4096}) {
    const std::vector<float> x = random.Floats(static_cast<size_t>(dim));
    std::vector<float> y = x;
    ASSERT_TRUE(HadamardHeads(TokensHeadsDim(y.data(), 1, 1, dim)).ok());
    double before = 0, after = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      before += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      after += static_cast<double>(y[i]) * static_cast<double>(y[i]);
    }
    EXPECT_NEAR(after / before, 1.0, 1e-6);
    EXPECT_NE(x, y);
    ASSERT_TRUE(HadamardHeads(TokensHeadsDim(y.data(), 1, 1, dim)).ok());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 2e-6f);
  }
}

TEST(HadamardHeads, RefusesWhatItCannotDo) {
  std::vector<float> x(3 * 5000, 1.0f);
  TensorView view = TokensHeadsDim(x.data(), 1, 1, 5000);
  EXPECT_TRUE(HadamardHeads(view).ok());  // in place
  view.dim_stride = 3;
  EXPECT_EQ(HadamardHeads(view).code(), StatusCode::kUnsupported);
  view = TokensHeadsDim(x.data(), 2, 1, 64);
  view.token_stride = 63;
  EXPECT_EQ(HadamardHeads(view).code(), StatusCode::kInvalidArgument);
  view.data = nullptr;
  EXPECT_EQ(HadamardHeads(view).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headlane
