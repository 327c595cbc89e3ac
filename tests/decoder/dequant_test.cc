// Expansion of quantised blocks: to the bit what the format's own reader gives, and what the formula says.
#include "decoder/dequant.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "decoder/expect_status.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

struct Vector {
  TensorType type;
  std::vector<uint8_t> block;
  std::vector<uint32_t> bits;
};
const std::vector<Vector>& Vectors() {
  static const std::vector<Vector> vectors = {
#include "decoder/dequant_vectors.inc"
  };
  return vectors;
}

std::vector<float> Expand(TensorType type, const std::vector<uint8_t>& bytes, int64_t n) {
  const GuardedArray<uint8_t> in(bytes);
  const GuardedFloats out(static_cast<size_t>(n));
  const Status status = DequantizeRow(type, {in.data(), in.size()}, n, out.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return std::vector<float>(out.data(), out.data() + n);
}

// By ldexp, from the definition of binary16.
float HalfToFloat(uint32_t half) {
  const int exponent = static_cast<int>(half >> 10 & 31);
  const int mantissa = static_cast<int>(half & 1023);
  const double sign = half >> 15 != 0 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa == 0 ? static_cast<float>(sign * INFINITY) : NAN;
  const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>(sign * value);
}

TEST(DequantTest, EqualsTheReferenceToTheBit) {
  size_t types_seen = 0;
  TensorType last = TensorType::kF32;
  for (const Vector& vector : Vectors()) {
    if (vector.type != last) ++types_seen;
    last = vector.type;
    const TensorTypeInfo* info = FindTensorType(vector.type);
    ASSERT_NE(info, nullptr);
    ASSERT_EQ(vector.block.size(), static_cast<size_t>(info->block_bytes)) << info->name;
    ASSERT_EQ(vector.bits.size(), static_cast<size_t>(info->block_len)) << info->name;
    const std::vector<float> out = Expand(vector.type, vector.block, info->block_len);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), vector.bits[i]) << info->name << " value " << i << " is " << out[i];
    }
  }
  EXPECT_EQ(types_seen, 8u);
}

TEST(DequantTest, ExpandsSeveralBlocksOneBehindTheOther) {
  for (const TensorTypeInfo& info : SupportedTensorTypes()) {
    std::vector<uint8_t> bytes;
    std::vector<float> expected;
    for (const Vector& vector : Vectors()) {
      if (vector.type != info.type) continue;
      bytes.insert(bytes.end(), vector.block.begin(), vector.block.end());
      for (const uint32_t bits : vector.bits) expected.push_back(std::bit_cast<float>(bits));
    }
    EXPECT_EQ(Expand(info.type, bytes, static_cast<int64_t>(expected.size())), expected) << info.name;
  }
}

TEST(DequantTest, EveryF16) {
  std::vector<uint8_t> bytes(2 * 65536);
  for (size_t i = 0; i < 65536; ++i) {
    bytes[2 * i] = static_cast<uint8_t>(i);
    bytes[2 * i + 1] = static_cast<uint8_t>(i >> 8);
  }
  const std::vector<float> out = Expand(TensorType::kF16, bytes, 65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    const float expected = HalfToFloat(i);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(out[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected)) << i;
    }
  }
}

TEST(DequantTest, F32AndBF16KeepEveryBit) {
  Random random(1);
  std::vector<uint8_t> bytes(4 * 1000);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  const std::vector<float> f32 = Expand(TensorType::kF32, bytes, 1000);
  EXPECT_EQ(std::memcmp(f32.data(), bytes.data(), bytes.size()), 0);
  const std::vector<float> bf16 = Expand(TensorType::kBF16, bytes, 2000);
  for (size_t i = 0; i < bf16.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &bf16[i], 4);
    ASSERT_EQ(bits, static_cast<uint32_t>(bytes[2 * i] | bytes[2 * i + 1] << 8) << 16) << i;
  }
}

// The promise of the canonical numerics: a value is the exact d * q + m rounded once, for every scale a file can hold.
TEST(DequantTest, RoundsOnce) {
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint8_t> block(24);
    for (uint8_t& byte : block) byte = static_cast<uint8_t>(random.Next());
    block[1] &= 0xFB;  // exponents below 31: finite
    block[3] &= 0xFB;
    const float d = HalfToFloat(static_cast<uint32_t>(block[0] | block[1] << 8));
    const float m = HalfToFloat(static_cast<uint32_t>(block[2] | block[3] << 8));
    const std::vector<float> q5 = Expand(TensorType::kQ5_1, block, 32);
    const std::vector<float> q4 = Expand(TensorType::kQ4_1, {block.begin(), block.begin() + 20}, 32);
    uint32_t fifth;
    std::memcpy(&fifth, block.data() + 4, 4);
    for (size_t i = 0; i < 32; ++i) {
      const auto nibble = [&](size_t start) { return block[start + i % 16] >> (i / 16 * 4) & 15; };
      const int code = nibble(8) | static_cast<int>(fifth >> i & 1) << 4;
      ASSERT_EQ(q5[i], std::fma(d, static_cast<float>(code), m)) << d << " " << code << " " << m;
      ASSERT_EQ(q4[i], std::fma(d, static_cast<float>(nibble(4)), m)) << d << " " << nibble(4) << " " << m;
    }
  }
}

TEST(DequantTest, TheTableAgreesWithItself) {
  std::string names;
  for (const TensorTypeInfo& info : SupportedTensorTypes()) {
    names += (names.empty() ? "" : ", ") + std::string(info.name);
    EXPECT_EQ(FindTensorType(info.type), &info);
    EXPECT_STREQ(TensorTypeName(static_cast<uint32_t>(info.type)), info.name);
    EXPECT_EQ(TensorRowBytes(info.type, 3 * info.block_len).value(), 3 * info.block_bytes);
    EXPECT_EQ(TensorRowBytes(info.type, 0).value(), 0);
  }
  EXPECT_EQ(SupportedTensorTypeNames(), names);
  EXPECT_EQ(SupportedTensorTypes().size(), 11u);
}

TEST(DequantTest, NamesWhatItRefuses) {
  float out[64];
  const std::vector<uint8_t> bytes(64);
  EXPECT_ERROR(DequantizeRow(static_cast<TensorType>(10), bytes, 256, out), kUnsupported, "tensor type 10 (Q2_K)");
  EXPECT_ERROR(DequantizeRow(static_cast<TensorType>(77), bytes, 256, out), kUnsupported, "tensor type 77 (unknown)");
  EXPECT_ERROR(DequantizeRow(TensorType::kQ4_0, bytes, 33, out), kInvalidArgument,
               "33 values is no whole number of Q4_0 blocks of 32");
  EXPECT_ERROR(DequantizeRow(TensorType::kQ4_0, bytes, -32, out), kInvalidArgument, "-32 values");
  EXPECT_ERROR(DequantizeRow(TensorType::kQ4_0, bytes, 64, out), kInvalidArgument, "take 36 bytes, but 64 were given");
  EXPECT_ERROR(TensorRowBytes(TensorType::kF32, int64_t{1} << 61), kInvalidArgument, "more bytes than 64 bits count");
  EXPECT_ERROR(TensorRowBytes(TensorType::kQ6_K, 255), kInvalidArgument, "blocks of 256");
}

}  // namespace
}  // namespace headlane::testing
