#include "headlane/dtype.h"

namespace headlane {

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kI8:
      return "int8";
    case DType::kF8E4M3:
      return "fp8";
    case DType::kI4:
      return "int4";
  }
  return "?";
}

int64_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kI4:
      return 0;
  }
  return 0;
}

}  // namespace headlane
