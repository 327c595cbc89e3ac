// Slopes of ALiBi against the recursion of the paper's appendix in high precision.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "headlane/ops.h"
#include "ops/helpers.h"

namespace headlane {
namespace {

struct AlibiVector {
  int64_t num_heads;
  std::vector<uint32_t> bits;
};

TEST(AlibiSlopes, EverySlopeIsCorrectlyRounded) {
  const std::vector<AlibiVector> vectors = {
#include "ops/alibi_vectors.inc"
  };
  for (const AlibiVector& v : vectors) {
    ASSERT_EQ(static_cast<size_t>(v.num_heads), v.bits.size());
    std::vector<float> slopes(v.bits.size());
    ASSERT_TRUE(AlibiSlopes(v.num_heads, slopes).ok());
    for (size_t head = 0; head < slopes.size(); ++head) {
      EXPECT_EQ(Bits(slopes[head]), v.bits[head]) << "head " << head << " of " << v.num_heads;
    }
  }
}

// The figures that the paper prints for 8 heads, and a model with 12.
TEST(AlibiSlopes, KnownFigures) {
  std::vector<float> slopes(8);
  ASSERT_TRUE(AlibiSlopes(8, slopes).ok());
  EXPECT_EQ(slopes, (std::vector<float>{0.5f, 0.25f, 0.125f, 0.0625f, 0x1p-5f, 0x1p-6f, 0x1p-7f, 0x1p-8f}));
  slopes.resize(12);
  ASSERT_TRUE(AlibiSlopes(12, slopes).ok());
  EXPECT_EQ(slopes[7], 0x1p-8f);
  EXPECT_EQ(Bits(slopes[8]), Bits(0.70710678f));
  EXPECT_EQ(Bits(slopes[9]), Bits(0.35355339f));
}

TEST(AlibiSlopes, ManyHeads) {
  constexpr int64_t kHeads = (1 << 20) + 1;
  std::vector<float> slopes(kHeads);
  ASSERT_TRUE(AlibiSlopes(kHeads, slopes).ok());
  EXPECT_EQ(slopes[(1 << 20) - 1], 0x1p-8f);
  EXPECT_EQ(slopes[(1 << 17) - 1], 0.5f);
  EXPECT_GT(slopes[1 << 20], slopes[0]);
  EXPECT_LT(slopes[1 << 20], 1.0f);
}

TEST(AlibiSlopes, Errors) {
  std::vector<float> slopes(4, 7.0f);
  for (const int64_t heads : {int64_t{3}, int64_t{5}, int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    const Status status = AlibiSlopes(heads, slopes);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << heads;
    EXPECT_NE(std::string(status.message()).find("4 slopes for " + std::to_string(heads) + " heads"), std::string::npos)
        << status.message();
    EXPECT_EQ(slopes, std::vector<float>(4, 7.0f));
  }
  EXPECT_TRUE(AlibiSlopes(0, {}).ok());
}

}  // namespace
}  // namespace headlane
