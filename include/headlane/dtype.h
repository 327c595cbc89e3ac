// Element types of tensors and of the cache.
#ifndef HEADLANE_DTYPE_H_
#define HEADLANE_DTYPE_H_

#include <cstdint>

namespace headlane {

enum class DType : int32_t {
  kF32 = 0,  // IEEE binary32
  kF16,      // IEEE binary16
  kBF16,     // the upper 16 bits of binary32
  // Quantised: stored by a KVCache only, never in tensors. A number is code * scale (kv_cache.h).
  kI8,      // codes -127 .. 127
  kF8E4M3,  // codes with 4 bits of exponent and 3 of mantissa, as OCP's E4M3: up to 448, no infinity
  kI4,      // codes -8 .. 7, two in a byte
};
inline constexpr int kNumDTypes = 6;

// Whether elements are codes that mean something with a scale only.
constexpr bool IsQuantized(DType dtype) {
  return dtype == DType::kI8 || dtype == DType::kF8E4M3 || dtype == DType::kI4;
}

// "f32", "f16", "bf16", "int8", "fp8", "int4"; "?" for a value outside the enum.
const char* DTypeName(DType dtype);

// Bytes of one element of a tensor; 0 for quantised types, which no tensor has, and for a value outside the enum.
int64_t DTypeBytes(DType dtype);

}  // namespace headlane

#endif  // HEADLANE_DTYPE_H_
