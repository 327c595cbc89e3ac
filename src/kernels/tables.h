// The parts of a KernelTable, one per translation unit, for one of the targets that are built and that the machine has.
#ifndef HEADLANE_SRC_KERNELS_TABLES_H_
#define HEADLANE_SRC_KERNELS_TABLES_H_

#include <cstdint>

#include "kernels/kernel_api.h"

namespace headlane::internal {

KvKernels KvF32(int64_t target);
KvKernels KvF16(int64_t target);
KvKernels KvBF16(int64_t target);
KvKernels KvInt8(int64_t target);
KvKernels KvFp8(int64_t target);
KvKernels KvInt4(int64_t target);
using KToVTileFn = void (*)(const KToVTileArgs&) noexcept;
KToVTileFn KToVTile(int64_t target);
struct RowsKernels {
  void (*qk)(const QkRowsArgs&) noexcept;
  void (*pv)(const PvRowsArgs&) noexcept;
  const char* compiled_for;
};
RowsKernels Rows(int64_t target);
SoftmaxKernels Softmax(int64_t target);
ElementwiseKernels Elementwise(int64_t target);
struct LinearKernels {
  void (*f32)(const LinearArgs&) noexcept;
  WeightKernels weights;
  RegisterBlock (*register_block)(int64_t rows) noexcept;
  int vector_bytes;
  const char* compiled_for;
};
LinearKernels Linear(int64_t target);
// One or two formats of weights.
struct WeightTables {
  WeightKernels first, second;
  const char* compiled_for;
};
WeightTables Weights16Bit(int64_t target);  // F16, BF16
WeightTables WeightsQ8(int64_t target);     // Q8_0
WeightTables WeightsQ4(int64_t target);     // Q4_0, Q4_1
WeightTables WeightsQ5(int64_t target);     // Q5_0, Q5_1
WeightTables WeightsQ45K(int64_t target);   // Q4_K, Q5_K
WeightTables WeightsQ6K(int64_t target);    // Q6_K
// Quantised activations: what is the same for several formats, and all formats.
struct Int8Shared {
  void (*quantize)(const QuantizeArgs&) noexcept;
  void (*groups_of_32)(const Int8Args&) noexcept;
  void (*groups_of_32_with_min)(const Int8Args&) noexcept;
  void (*groups_of_16)(const Int8Args&) noexcept;
  void (*bytes)(const Int8Args&) noexcept;  // groups of 32
  const char* compiled_for;
};
Int8Shared WeightsInt8Rows(int64_t target);
struct Int8Table {
  Int8Kernels formats[kNumWeightFormats];  // without what Int8Shared has
  const char* compiled_for;
};
Int8Table WeightsInt8(int64_t target);
struct HadamardKernels {
  void (*row)(float* x, int64_t n) noexcept;
  const char* compiled_for;
};
HadamardKernels Hadamard(int64_t target);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KERNELS_TABLES_H_
