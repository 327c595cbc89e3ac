// Codes and scales in quantised tiles, by index functions of their own, independent of the library's: for
// quantized_test.cc.
#ifndef HEADLANE_TESTS_KERNELS_QUANTIZED_TILES_H_
#define HEADLANE_TESTS_KERNELS_QUANTIZED_TILES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "headlane/dtype.h"
#include "reference/quantize.h"

namespace headlane::testing {

inline constexpr DType kQuantizedDTypes[] = {DType::kI8, DType::kF8E4M3, DType::kI4};

inline reference::QuantizedType TypeOf(DType dtype) {
  return dtype == DType::kI8       ? reference::QuantizedType::kI8
         : dtype == DType::kF8E4M3 ? reference::QuantizedType::kF8E4M3
                                   : reference::QuantizedType::kI4;
}

// Bytes of a tile's codes.
inline int64_t CodeBytes(DType dtype, bool is_k, int64_t dim) {
  if (dtype == DType::kI4) return is_k ? (dim + 1) / 2 * 16 : (dim + 15) / 16 * 128;
  return (is_k ? dim : (dim + 15) / 16 * 16) * 16;
}
inline int64_t CodeByte(DType dtype, bool is_k, int64_t d, int64_t slot) {
  if (dtype == DType::kI4) return is_k ? d / 2 * 16 + slot : d / 16 * 128 + slot / 2 * 16 + d % 16;
  return is_k ? d * 16 + slot : d / 16 * 256 + slot * 16 + d % 16;
}
inline bool IsUpperHalf(bool is_k, int64_t d, int64_t slot) { return (is_k ? d : slot) % 2 != 0; }
inline int64_t ScaleByte(DType dtype, bool is_k, int64_t dim, int64_t d, int64_t slot) {
  return CodeBytes(dtype, is_k, dim) + (dtype == DType::kI4 ? d / 32 * 32 + slot * 2 : slot * 4);
}

// The bits of a code: 8, or of int4 4.
inline int CodeBitsAt(DType dtype, bool is_k, const unsigned char* tile, int64_t d, int64_t slot) {
  const int byte = tile[CodeByte(dtype, is_k, d, slot)];
  return dtype != DType::kI4 ? byte : IsUpperHalf(is_k, d, slot) ? byte >> 4 : byte & 15;
}
// As reference::QuantizedRow counts codes.
inline int CodeAt(DType dtype, bool is_k, const unsigned char* tile, int64_t /*dim*/, int64_t d, int64_t slot) {
  const int bits = CodeBitsAt(dtype, is_k, tile, d, slot);
  return dtype == DType::kI8 ? static_cast<int8_t>(bits) : dtype == DType::kI4 ? (bits ^ 8) - 8 : bits;
}
inline uint32_t ScaleBitsAt(DType dtype, bool is_k, const unsigned char* tile, int64_t dim, int64_t d, int64_t slot) {
  const unsigned char* const at = tile + ScaleByte(dtype, is_k, dim, d, slot);
  uint32_t bits = 0;
  if (dtype != DType::kI4) {
    std::memcpy(&bits, at, 4);
    return bits;
  }
  uint16_t half = 0;
  std::memcpy(&half, at, 2);
  return static_cast<uint32_t>(half) << 16;
}
inline float ScaleAt(DType dtype, bool is_k, const unsigned char* tile, int64_t dim, int64_t d, int64_t slot) {
  return std::bit_cast<float>(ScaleBitsAt(dtype, is_k, tile, dim, d, slot));
}
// Whether code and scale still are full of ones.
inline bool IsUntouched(DType dtype, bool is_k, const unsigned char* tile, int64_t dim, int64_t d, int64_t slot) {
  const bool is_half = dtype == DType::kI4;
  return CodeBitsAt(dtype, is_k, tile, d, slot) == (is_half ? 15 : 255) &&
         ScaleBitsAt(dtype, is_k, tile, dim, d, slot) == (is_half ? 0xFFFF0000u : 0xFFFFFFFFu);
}
inline void SetScale(DType dtype, bool is_k, unsigned char* tile, int64_t dim, int64_t d, int64_t slot, float scale) {
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  const uint16_t half = static_cast<uint16_t>(bits >> 16);
  unsigned char* const at = tile + ScaleByte(dtype, is_k, dim, d, slot);
  dtype == DType::kI4 ? std::memcpy(at, &half, 2) : std::memcpy(at, &bits, 4);
}
inline void SetCodeBits(DType dtype, bool is_k, unsigned char* tile, int64_t d, int64_t slot, int bits) {
  unsigned char& byte = tile[CodeByte(dtype, is_k, d, slot)];
  if (dtype != DType::kI4) {
    byte = static_cast<unsigned char>(bits);
  } else if (IsUpperHalf(is_k, d, slot)) {
    byte = static_cast<unsigned char>((byte & 0x0F) | bits << 4);
  } else {
    byte = static_cast<unsigned char>((byte & 0xF0) | bits);
  }
}

// All bits that a code can be (fp8's two NaNs are none), and their numbers.
inline std::vector<int> AllCodeBits(DType dtype) {
  std::vector<int> all;
  for (int i = 0; i < (dtype == DType::kI4 ? 16 : 256); ++i) {
    if (dtype != DType::kF8E4M3 || (i & 127) != 127) all.push_back(i);
  }
  return all;
}
inline float CodeNumber(DType dtype, int bits) {
  if (dtype == DType::kI8) return static_cast<float>(static_cast<int8_t>(bits));
  if (dtype == DType::kI4) return static_cast<float>((bits ^ 8) - 8);
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 128) != 0 ? -magnitude : magnitude;
}
// The numbers that are stored, ascending and without duplicates, and the largest magnitude of them.
inline std::vector<float> CodeValues(DType dtype) {
  std::vector<float> values;
  for (int bits : AllCodeBits(dtype)) values.push_back(CodeNumber(dtype, bits) + 0.0f);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  if (dtype == DType::kI8) values.erase(values.begin());  // -128
  return values;
}
inline float LargestCode(DType dtype) { return dtype == DType::kI8 ? 127.0f : dtype == DType::kI4 ? 8.0f : 448.0f; }
// Different, and of few enough bits for every type's scales.
inline float ScaleNumber(int64_t slot) { return static_cast<float>(slot + 1) * 0.03125f; }

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_KERNELS_QUANTIZED_TILES_H_
