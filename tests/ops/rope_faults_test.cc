// Faults that other implementations of rotary embeddings shipped, as tests. F47: positions or frequencies held in the
// tensor's type make neighbouring positions share a rotation. F49: pairs are adjacent in some files and halves apart in
// others.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "headlane/ops.h"
#include "ops/helpers.h"
#include "ops/typed_heads.h"

namespace headlane {
namespace {

RopeSpec Spec(int64_t rotary_dim, RopeStyle style) {
  RopeSpec spec;
  spec.rotary_dim = rotary_dim;
  spec.style = style;
  return spec;
}

struct TurnedUnit {
  int64_t position;
  uint32_t f32[2];
  uint16_t f16[2];
  uint16_t bf16[2];
};
constexpr TurnedUnit kTurnedUnits[] = {
#include "ops/rope_16_bit_vectors.inc"
};

// x = (1, 0) at `position`, rotated by an embedding of one pair, whose frequency is 1.
TypedHeads TurnUnit(DType type, RopeStyle style, int64_t position) {
  TypedHeads heads(type, {1, 1, 1, 2}, HeadsOrder::kTokensHeadsDim, 1);
  heads.Set(0, 1.0f);
  heads.Set(1, 0.0f);
  float cos = 0.0f, sin = 0.0f;
  EXPECT_TRUE(RopeAnglesFrom(Spec(2, style), position, 1, &cos, &sin).ok());
  EXPECT_TRUE(ApplyRope(Spec(2, style), &cos, &sin, heads.view()).ok());
  return heads;
}

TEST(RopeFaults, F47PositionsAreExactInEveryType) {
  OnEveryTarget([](bool) {
    for (const TurnedUnit& v : kTurnedUnits) {
      SCOPED_TRACE(v.position);
      for (const RopeStyle style : {RopeStyle::kAdjacent, RopeStyle::kHalfSplit}) {
        const TypedHeads f32 = TurnUnit(DType::kF32, style, v.position);
        const TypedHeads f16 = TurnUnit(DType::kF16, style, v.position);
        const TypedHeads bf16 = TurnUnit(DType::kBF16, style, v.position);
        for (int i = 0; i < 2; ++i) {
          EXPECT_EQ(Bits(f32.Get(i)), v.f32[i]);
          EXPECT_EQ(static_cast<const uint16_t*>(f16.view().data)[i], v.f16[i]);
          EXPECT_EQ(static_cast<const uint16_t*>(bf16.view().data)[i], v.bf16[i]);
        }
      }
    }
  });
}

TEST(RopeFaults, F47NeighboursStayApart) {
  for (const DType type : kAllTypes) {
    SCOPED_TRACE(DTypeName(type));
    const TypedHeads a = TurnUnit(type, RopeStyle::kAdjacent, 256), b = TurnUnit(type, RopeStyle::kAdjacent, 257);
    EXPECT_NEAR(a.Get(0), -0.039790760f, 2e-4f);
    EXPECT_NEAR(b.Get(0), 0.819305529f, 4e-3f);
    // One radian between neighbours is a dot product of cos 1, wherever they are.
    for (const int64_t position : {256, 257, 2049, 4097, 65537, 131070, (1 << 24) - 1}) {
      const TypedHeads x = TurnUnit(type, RopeStyle::kAdjacent, position);
      const TypedHeads y = TurnUnit(type, RopeStyle::kAdjacent, position + 1);
      EXPECT_NEAR(x.Get(0) * y.Get(0) + x.Get(1) * y.Get(1), 0.5403023f, 8e-3f) << position;
    }
  }
}

// The second pair of 128 at 131071: where a product in f32 is off by 0.007.
TEST(RopeFaults, F47TheSecondPairOf128) {
  const RopeSpec spec = Spec(128, RopeStyle::kHalfSplit);
  std::vector<float> cos(64), sin(64);
  ASSERT_TRUE(RopeAnglesFrom(spec, 131071, 1, cos.data(), sin.data()).ok());
  const double angle = 131071.0 * std::pow(10000.0, -2.0 / 128.0);
  EXPECT_NEAR(cos[1], std::cos(angle), 1e-7);
  EXPECT_NEAR(sin[1], std::sin(angle), 1e-7);
}

// Head of 4, base 1e4, position 1: the first pair turns by 1, the second by 0.01.
TEST(RopeFaults, F49StylesPairWhatTheyShould) {
  const RopeSpec adjacent = Spec(4, RopeStyle::kAdjacent), half = Spec(4, RopeStyle::kHalfSplit);
  float cos[2], sin[2];
  ASSERT_TRUE(RopeAnglesFrom(adjacent, 1, 1, cos, sin).ok());
  const auto expect = [&](const RopeSpec& spec, const std::vector<float>& x, const std::vector<float>& expected) {
    for (const DType type : kAllTypes) {
      TypedHeads heads(type, {1, 1, 1, static_cast<int64_t>(x.size())}, HeadsOrder::kTokensHeadsDim, 1);
      for (size_t i = 0; i < x.size(); ++i) heads.Set(static_cast<int64_t>(i), x[i]);
      ASSERT_TRUE(ApplyRope(spec, cos, sin, heads.view()).ok());
      const float relative = type == DType::kF32 ? 2e-6f : type == DType::kF16 ? 6e-4f : 5e-3f;
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(heads.Get(static_cast<int64_t>(i)), expected[i], relative * std::fabs(expected[i])) << i;
      }
    }
  };
  expect(adjacent, {1, 0, 0, 0}, {0.540302f, 0.841471f, 0, 0});
  expect(half, {1, 0, 0, 0}, {0.540302f, 0, 0.841471f, 0});
  expect(adjacent, {0, 1, 0, 0}, {-0.841471f, 0.540302f, 0, 0});
  expect(half, {0, 1, 0, 0}, {0, 0.99995f, 0, 0.00999983f});
  // Two of four features rotate, the others stay: halves are halves of what rotates, not of the head.
  const RopeSpec partial = Spec(2, RopeStyle::kHalfSplit);
  ASSERT_TRUE(RopeAnglesFrom(partial, 1, 1, cos, sin).ok());
  expect(partial, {1, 0, 5, 6}, {0.540302f, 0.841471f, 5, 6});
  expect(Spec(2, RopeStyle::kAdjacent), {1, 0, 5, 6}, {0.540302f, 0.841471f, 5, 6});
}

// Converters permute the features of each q and k head from halves to pairs. Rotating the permuted head by pairs is
// permuting the head rotated by halves: bit by bit, for q and for k with its fewer heads.
TEST(RopeFaults, F49PermutedHeadsRotateAlike) {
  constexpr int64_t kTokens = 3, kDim = 10, kRotary = 8, kPairs = kRotary / 2;
  const auto permuted = [](int64_t i) {  // where feature i of a head of halves goes
    return i >= kRotary ? i : i < kPairs ? 2 * i : 2 * (i - kPairs) + 1;
  };
  std::vector<float> cos(kTokens * kPairs), sin(kTokens * kPairs);
  ASSERT_TRUE(RopeAnglesFrom(Spec(kRotary, RopeStyle::kAdjacent), 41, kTokens, cos.data(), sin.data()).ok());
  OnEveryTarget([&](bool) {
    for (const int64_t num_heads : {4, 2}) {
      for (const DType type : kAllTypes) {
        const HeadsShape shape = {1, kTokens, num_heads, kDim};
        TypedHeads halves(type, shape, HeadsOrder::kTokensHeadsDim, 1);
        TypedHeads pairs(type, shape, HeadsOrder::kTokensHeadsDim, 1);
        const std::vector<float> x = Floats(shape.size(), num_heads);
        const auto place = [&](int64_t i) { return i / kDim * kDim + permuted(i % kDim); };
        for (int64_t i = 0; i < shape.size(); ++i) {
          halves.Set(i, x[static_cast<size_t>(i)]);
          pairs.Set(place(i), x[static_cast<size_t>(i)]);
        }
        ASSERT_TRUE(ApplyRope(Spec(kRotary, RopeStyle::kHalfSplit), cos.data(), sin.data(), halves.view()).ok());
        ASSERT_TRUE(ApplyRope(Spec(kRotary, RopeStyle::kAdjacent), cos.data(), sin.data(), pairs.view()).ok());
        for (int64_t i = 0; i < shape.size(); ++i) ASSERT_EQ(Bits(halves.Get(i)), Bits(pairs.Get(place(i)))) << i;
      }
    }
  });
}

}  // namespace
}  // namespace headlane
