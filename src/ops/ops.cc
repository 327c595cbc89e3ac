// The operators of ops.h over rows: the kernels do one row, this file walks and, where a call can fail, checks.
#include "headlane/ops.h"

#include <cinttypes>

#include "base/fp_environment.h"
#include "base/view_check.h"
#include "kernels/kernel_api.h"
#include "ops/rope_frequencies.h"

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

Status ApplyRope(const RopeSpec& spec, const float* cos, const float* sin, const TensorView& x) noexcept {
  HEADLANE_RETURN_IF_ERROR(internal::CheckRopeSpec(spec));
  HEADLANE_RETURN_IF_ERROR(internal::CheckView("rope: x", x));
  if (x.dtype != DType::kF32) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: x is %s, not f32", DTypeName(x.dtype));
  }
  if (x.num_batch != 1) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: x has a batch of %" PRId64 ", not 1", x.num_batch);
  }
  if (x.dim < spec.rotary_dim) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "rope: x has heads of %" PRId64 " features, fewer than rotary_dim %" PRId64, x.dim,
                      spec.rotary_dim);
  }
  const int64_t num_pairs = spec.rotary_dim / 2;
  if (num_pairs == 0 || x.num_tokens == 0 || x.num_heads == 0) return OkStatus();
  if (cos == nullptr || sin == nullptr) return MakeStatus(StatusCode::kInvalidArgument, "rope: cos or sin is null");

  const bool is_adjacent = spec.style == RopeStyle::kAdjacent;
  const int64_t pair_stride = is_adjacent ? 2 * x.dim_stride : x.dim_stride;
  const int64_t odd_offset = is_adjacent ? x.dim_stride : num_pairs * x.dim_stride;
  const auto kernel = ActiveKernels().elementwise.rope;
  InDefaultFpEnvironment([&] {
    for (int64_t token = 0; token < x.num_tokens; ++token) {
      for (int64_t head = 0; head < x.num_heads; ++head) {
        float* even = static_cast<float*>(x.data) + token * x.token_stride + head * x.head_stride;
        kernel(even, even + odd_offset, pair_stride, cos + token * num_pairs, sin + token * num_pairs, num_pairs);
      }
    }
  });
  return OkStatus();
}

}  // namespace headlane
