// Rotation of heads in place: bits of the canonical program in every element type, style, order and tail, on every SIMD
// target of this machine.
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
#include "support/bits.h"
#include "support/guarded_buffer.h"

namespace headlane {
namespace {

RopeSpec Spec(int64_t rotary_dim, RopeStyle style) {
  RopeSpec spec;
  spec.rotary_dim = rotary_dim;
  spec.style = style;
  return spec;
}

// What x [batch][tokens][heads][dim], all of `type`, should become.
std::vector<float> Expected(const RopeSpec& spec, const HeadsShape& shape, DType type, std::vector<float> x,
                            const std::vector<float>& cos, const std::vector<float>& sin) {
  const bool is_adjacent = spec.style == RopeStyle::kAdjacent;
  const int64_t pairs = spec.rotary_dim / 2;
  for (int64_t row = 0; row < shape.size() / shape.dim; ++row) {
    float* head = x.data() + row * shape.dim;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      float* even = head + (is_adjacent ? 2 * pair : pair);
      float* odd = even + (is_adjacent ? 1 : pairs);
      const size_t angle = static_cast<size_t>(row / shape.heads * pairs + pair);
      reference::CanonicalRope(cos[angle], sin[angle], even, odd);
      *even = Through(type, *even);
      *odd = Through(type, *odd);
    }
  }
  return x;
}

// Heads that are three features wider than what rotates.
void CheckRope(const RopeSpec& spec, bool has_fma) {
  const HeadsShape shape = {2, 3, 2, spec.rotary_dim + 3};
  const int64_t pairs = spec.rotary_dim / 2;
  const int64_t positions[6] = {0, 77, 131071, 5, 6, 7};
  std::vector<float> cos(static_cast<size_t>(6 * pairs)), sin(cos);
  ASSERT_TRUE(RopeAngles(spec, positions, 6, cos.data(), sin.data()).ok());
  const testing::GuardedFloats guarded_cos(cos), guarded_sin(sin);
  for (const DType type : kAllTypes) {
    SCOPED_TRACE(DTypeName(type));
    std::vector<float> x = Floats(shape.size(), 11 + spec.rotary_dim);
    for (float& v : x) v = Through(type, v);
    const std::vector<float> expected = Expected(spec, shape, type, x, cos, sin);
    const float step = type == DType::kF32 ? 1e-6f : type == DType::kF16 ? 2e-3f : 1.6e-2f;
    for (const HeadsOrder order :
         {HeadsOrder::kTokensHeadsDim, HeadsOrder::kHeadsTokensDim, HeadsOrder::kDimOutermost}) {
      for (const int64_t gap : {1, 3}) {
        TypedHeads heads(type, shape, order, gap);
        for (int64_t i = 0; i < shape.size(); ++i) heads.Set(i, x[static_cast<size_t>(i)]);
        ASSERT_TRUE(ApplyRope(spec, guarded_cos.data(), guarded_sin.data(), heads.view()).ok());
        for (int64_t i = 0; i < shape.size(); ++i) {
          const float want = expected[static_cast<size_t>(i)];
          if (has_fma) {
            ASSERT_EQ(Bits(heads.Get(i)), Bits(want)) << i << ", order " << static_cast<int>(order) << ", gap " << gap;
          }
          ASSERT_NEAR(heads.Get(i), want, step) << i;
        }
        EXPECT_TRUE(heads.GapsAreUntouched());
      }
    }
  }
}

TEST(ApplyRope, CanonicalBitsInEveryTypeStyleAndOrder) {
  OnEveryTarget([](bool has_fma) {
    for (const int64_t rotary_dim : {2, 4, 6, 8, 14, 16, 18, 30, 32, 34, 64, 66, 126, 128, 130, 258}) {
      SCOPED_TRACE(rotary_dim);
      CheckRope(Spec(rotary_dim, RopeStyle::kAdjacent), has_fma);
      CheckRope(Spec(rotary_dim, RopeStyle::kHalfSplit), has_fma);
    }
  });
}

TEST(ApplyRope, TheWholeHeadIsRotatedWithoutATail) {
  OnEveryTarget([](bool) {
    for (const DType type : kAllTypes) {
      TypedHeads heads(type, {1, 1, 1, 2}, HeadsOrder::kTokensHeadsDim, 1);
      heads.Set(0, 1.0f);
      heads.Set(1, 0.5f);
      const float cos = 0.0f, sin = 1.0f;
      ASSERT_TRUE(ApplyRope(Spec(2, RopeStyle::kHalfSplit), &cos, &sin, heads.view()).ok());
      EXPECT_EQ(heads.Get(0), -0.5f);
      EXPECT_EQ(heads.Get(1), 1.0f);
    }
  });
}

TEST(ApplyRope, BackwardStrides) {
  for (const DType type : kAllTypes) {
    TypedHeads forward(type, {1, 2, 2, 6}, HeadsOrder::kTokensHeadsDim, 1);
    TypedHeads backward(type, {1, 2, 2, 6}, HeadsOrder::kTokensHeadsDim, 1);
    const RopeSpec spec = Spec(4, RopeStyle::kAdjacent);
    std::vector<float> cos(4), sin(4);
    ASSERT_TRUE(RopeAnglesFrom(spec, 3, 2, cos.data(), sin.data()).ok());
    for (int64_t i = 0; i < 24; ++i) {
      forward.Set(i, static_cast<float>(i));
      backward.Set(23 - i, static_cast<float>(i));
    }
    ASSERT_TRUE(ApplyRope(spec, cos.data(), sin.data(), forward.view()).ok());
    TensorView view = backward.view();
    view.data = static_cast<unsigned char*>(view.data) + 23 * DTypeBytes(type);
    view.token_stride = -view.token_stride;
    view.head_stride = -view.head_stride;
    view.dim_stride = -1;
    ASSERT_TRUE(ApplyRope(spec, cos.data(), sin.data(), view).ok());
    for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(Bits(forward.Get(i)), Bits(backward.Get(23 - i))) << i;
  }
}

TEST(ApplyRope, SpecialValuesIn16Bits) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float cos[] = {1.0f, 0.5f, 1.0f}, sin[] = {0.0f, 0.5f, 1.0f};
  for (const DType type : {DType::kF16, DType::kBF16}) {
    TypedHeads heads(type, {1, 1, 1, 6}, HeadsOrder::kTokensHeadsDim, 1);
    const float largest = type == DType::kF16 ? 65504.0f : 0x1.FEp127f;
    const float smallest = type == DType::kF16 ? 0x1p-24f : 0x1p-133f;
    const float x[] = {nan, 1.0f, smallest, 0.0f, largest, largest};
    for (int64_t i = 0; i < 6; ++i) heads.Set(i, x[i]);
    ASSERT_TRUE(ApplyRope(Spec(6, RopeStyle::kAdjacent), cos, sin, heads.view()).ok());
    const uint16_t* codes = static_cast<const uint16_t*>(heads.view().data);
    const uint16_t canonical = type == DType::kF16 ? 0x7E00 : 0x7FC0;
    EXPECT_EQ(codes[0], canonical);
    EXPECT_EQ(codes[1], canonical);  // 0 * NaN
    EXPECT_EQ(heads.Get(2), 0.0f);   // half of the smallest denormal: the tie goes to 0
    EXPECT_EQ(heads.Get(4), 0.0f);
    EXPECT_EQ(heads.Get(5), inf);
  }
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
  view.dtype = static_cast<DType>(9);
  expect(spec, cos, view, "dtype 9");
  view = TokensHeadsDim(x, 2, 1, 8);
  view.token_stride = 4;
  expect(spec, cos, view, "overlap");
  view = TokensHeadsDim(x, 1, 1, 8);
  view.dim_stride = 0;
  expect(spec, cos, view, "overlap");
  view = TokensHeadsDim(x, -1, 1, 8);
  expect(spec, cos, view, "num_tokens is -1");
  view = TokensHeadsDim(x, 2, 2, 8);
  view.token_stride = INT64_MAX / 2;
  expect(spec, cos, view, "address space");
  expect(Spec(7, RopeStyle::kAdjacent), cos, TokensHeadsDim(x, 1, 1, 8), "rotary_dim is 7");
  EXPECT_TRUE(ApplyRope(spec, cos, sin, TokensHeadsDim(x, 0, 1, 8)).ok());
  EXPECT_TRUE(ApplyRope(spec, cos, sin, TokensHeadsDim(x, 1, 0, 8)).ok());
  view = TokensHeadsDim(x, 1, 1, 8);
  view.num_batch = 0;
  EXPECT_TRUE(ApplyRope(spec, nullptr, nullptr, view).ok());
  EXPECT_TRUE(ApplyRope(Spec(0, RopeStyle::kAdjacent), nullptr, nullptr, TokensHeadsDim(x, 1, 1, 8)).ok());
}

}  // namespace
}  // namespace headlane
