// Element types of tensors and of the cache.
#ifndef HEADLANE_DTYPE_H_
#define HEADLANE_DTYPE_H_

#include <cstdint>

namespace headlane {

enum class DType : int32_t {
  kF32 = 0,  // IEEE binary32
  kF16,      // IEEE binary16
  kBF16,     // the upper 16 bits of binary32
};
inline constexpr int kNumDTypes = 3;

// "f32", "f16", "bf16"; "?" for a value outside the enum.
const char* DTypeName(DType dtype);

// Bytes of one element; 0 for a value outside the enum.
int64_t DTypeBytes(DType dtype);

}  // namespace headlane

#endif  // HEADLANE_DTYPE_H_
