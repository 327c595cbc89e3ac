// Quantised elements of tiles as numbers: what reading the cache back needs.
//
// Separate from the kernels, which decode whole vectors and alone encode. A stored number is float(code) * scale;
// scales have so few bits that the product is exact.
#ifndef HEADLANE_SRC_BASE_QUANTIZED_H_
#define HEADLANE_SRC_BASE_QUANTIZED_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/float16.h"
#include "base/tile_layout.h"
#include "headlane/dtype.h"

namespace headlane::internal {

// No scale but 0 is smaller: products are far from denormals, which engines flush and processors compute slowly.
inline constexpr float kMinScale = 0x1p-100f;

// Exact. 0x7F and 0xFF are NaN.
constexpr float F8E4M3ToF32(uint8_t code) noexcept {
  const uint32_t magnitude = code & 0x7Fu;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (magnitude >= 8) return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
  return static_cast<float>(magnitude) * (sign != 0 ? -0x1p-9f : 0x1p-9f);  // denormal
}

// The scale of a feature of the key or value in a slot. `scales`: behind the tile's codes.
inline float TileScale(DType dtype, const std::byte* scales, int64_t feature, int64_t slot) {
  if (dtype == DType::kI4) {
    uint16_t bits;
    std::memcpy(&bits, scales + (feature / kInt4Group * kTileKeys + slot) * int64_t{sizeof(bits)}, sizeof(bits));
    return BF16ToF32(bits);
  }
  float scale;
  std::memcpy(&scale, scales + slot * int64_t{sizeof(scale)}, sizeof(scale));
  return scale;
}

// `is_upper`: which half of the byte, for int4.
inline float QuantizedNumber(DType dtype, std::byte code, bool is_upper, float scale) {
  const uint8_t bits = static_cast<uint8_t>(code);
  if (dtype == DType::kI8) return static_cast<float>(static_cast<int8_t>(bits)) * scale;
  if (dtype == DType::kF8E4M3) return F8E4M3ToF32(bits) * scale;
  const int half = is_upper ? bits >> 4 : bits & 15;
  return static_cast<float>(half < 8 ? half : half - 16) * scale;
}

// One element of a quantised tile.
inline float KTileElement(DType dtype, const std::byte* tile, int64_t qk_dim, int64_t feature, int64_t slot) {
  return QuantizedNumber(dtype, tile[KTileIndex(dtype, feature, slot)], feature % 2 != 0,
                         TileScale(dtype, tile + KTileCodeBytes(dtype, qk_dim), feature, slot));
}
inline float VTileElement(DType dtype, const std::byte* tile, int64_t v_dim, int64_t feature, int64_t slot) {
  return QuantizedNumber(dtype, tile[VTileIndex(dtype, feature, slot)], slot % 2 != 0,
                         TileScale(dtype, tile + VTileCodeBytes(dtype, v_dim), feature, slot));
}

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_QUANTIZED_H_
