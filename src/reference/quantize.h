// The quantised cache types as scalar programs: what a row of keys or values becomes when it is stored and read back.
//
// Independent of the kernels: arithmetic in doubles and integers, one number at a time. For tests, which compare codes,
// scales and numbers bit by bit.
#ifndef HEADLANE_SRC_REFERENCE_QUANTIZE_H_
#define HEADLANE_SRC_REFERENCE_QUANTIZE_H_

#include <cstdint>
#include <vector>

namespace headlane::reference {

enum class QuantizedType { kI8, kF8E4M3, kI4 };

struct QuantizedRow {
  std::vector<int> codes;     // per element: int8 and int4 the integer, fp8 the 8 bits
  std::vector<float> scales;  // per group
  int64_t group = 0;          // elements per scale
};

// One row: a key or a value of one head.
QuantizedRow Quantize(QuantizedType type, const float* row, int64_t dim);

// The numbers that it stands for.
std::vector<float> Dequantize(QuantizedType type, const QuantizedRow& row);

}  // namespace headlane::reference

#endif  // HEADLANE_SRC_REFERENCE_QUANTIZE_H_
