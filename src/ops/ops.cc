// The operators of ops.h on rows of f32: the kernels do one row, this file walks.
#include "headlane/ops.h"

#include "base/fp_environment.h"
#include "kernels/kernel_api.h"

namespace headlane {

using internal::ActiveKernels;
using internal::InDefaultFpEnvironment;

void RmsNorm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows, int64_t n, float* y,
             int64_t y_stride) noexcept {
  const auto kernel = ActiveKernels().elementwise.rms_norm;
  InDefaultFpEnvironment([=] {
    for (int64_t row = 0; row < rows; ++row) kernel(x + row * x_stride, weight, epsilon, n, y + row * y_stride);
  });
}

void SiluMul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int64_t rows, int64_t n,
             float* y, int64_t y_stride) noexcept {
  const auto kernel = ActiveKernels().elementwise.silu_mul;
  InDefaultFpEnvironment([=] {
    for (int64_t row = 0; row < rows; ++row)
      kernel(gate + row * gate_stride, up + row * up_stride, n, y + row * y_stride);
  });
}

void AddTo(const float* x, int64_t x_stride, int64_t rows, int64_t n, float* y, int64_t y_stride) noexcept {
  const auto kernel = ActiveKernels().elementwise.add;
  InDefaultFpEnvironment([=] {
    for (int64_t row = 0; row < rows; ++row) kernel(x + row * x_stride, n, y + row * y_stride);
  });
}

float LogSumExp(const float* x, int64_t n) noexcept {
  const auto kernel = ActiveKernels().elementwise.log_sum_exp;
  float result = 0.0f;
  InDefaultFpEnvironment([&] { result = kernel(x, n); });
  return result;
}

}  // namespace headlane
