// The parts of a KernelTable, one per translation unit, for the active target.
#ifndef HEADLANE_SRC_KERNELS_TABLES_H_
#define HEADLANE_SRC_KERNELS_TABLES_H_

#include "kernels/kernel_api.h"

namespace headlane::internal {

KvKernels KvF32();
SoftmaxKernels Softmax();
ElementwiseKernels Elementwise();
using LinearF32Fn = void (*)(const LinearArgs&) noexcept;
LinearF32Fn LinearF32();

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KERNELS_TABLES_H_
