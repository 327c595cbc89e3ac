// The small operators around attention in a decoder. Each works on the rows it is given, on the calling thread,
// allocates nothing, and computes every row in one fixed order of operations: the bits of a row do not depend on which
// rows are given together.
#ifndef HEADLANE_OPS_H_
#define HEADLANE_OPS_H_

#include <cstdint>

#include "headlane/status.h"
#include "headlane/view.h"

namespace headlane {

// y[r][i] = x[r][i] / sqrt(mean_i(x[r][i]^2) + epsilon) * weight[i] (Zhang and Sennrich 2019).
// Shapes: x, y [rows][n] with row strides in elements, weight [n]. y may be x. Requires: rows >= 0, n >= 0. Threads:
// any.
void RmsNorm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows, int64_t n, float* y,
             int64_t y_stride) noexcept;

// y[r][i] = silu(gate[r][i]) * up[r][i], silu(x) = x / (1 + exp(-x)) (Shazeer 2020). y may be gate or up. Threads: any.
void SiluMul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int64_t rows, int64_t n,
             float* y, int64_t y_stride) noexcept;

// y[r][i] += x[r][i]. Threads: any.
void AddTo(const float* x, int64_t x_stride, int64_t rows, int64_t n, float* y, int64_t y_stride) noexcept;

// ln sum_i exp(x[i]) of one row; -inf for n == 0 or all -inf; NaN if a value is NaN or +inf. Threads: any.
float LogSumExp(const float* x, int64_t n) noexcept;

// How a rotary embedding pairs the features of a head.
enum class RopeStyle : int32_t {
  kAdjacent = 0,  // (0, 1), (2, 3), ...: llama-architecture GGUF files
  kHalfSplit,     // (i, i + rotary_dim / 2): the layout of most published checkpoints
};

enum class RopeScaling : int32_t {
  kNone = 0,
  kLinear,  // angle / factor
  kLlama3,  // long wavelengths divided by factor, short ones kept, in between interpolated
};

// Rotary position embedding (Su et al. 2021): pair j of position p turns by p * frequency_j, frequency_j = base^(-2 j /
// rotary_dim).
struct RopeSpec {
  int64_t rotary_dim = 0;  // even, at most the head's width; the features behind it stay as they are
  double base = 10000.0;
  RopeStyle style = RopeStyle::kAdjacent;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;                        // kLinear, kLlama3
  double low_frequency_factor = 1.0;          // kLlama3
  double high_frequency_factor = 4.0;         // kLlama3
  double original_context = 8192.0;           // kLlama3
  const float* frequency_divisors = nullptr;  // optional, [rotary_dim / 2]: one divisor per pair's frequency
};

// cos and sin of every pair at the given positions, correct to the last bit of f32 up to |position| 2^24, from our own
// code (no libm). Shapes: positions [n], cos and sin [n][rotary_dim / 2]. Errors: InvalidArgument (odd or negative
// rotary_dim; base or another parameter in use outside of [1e-100, 1e100], a divisor outside of [1e-30, 1e30]),
// OutOfRange
// (|position| beyond 2^53, an angle beyond 2^50). Allocation: none. Threads: any.
Status RopeAngles(const RopeSpec& spec, const int64_t* positions, int64_t n, float* cos, float* sin) noexcept;

// Rotates heads in place: x [1, n, num_heads, dim] f32, angles as RopeAngles gives them for the n tokens.
//   even' = even * cos - odd * sin, odd' = even * sin + odd * cos
// Errors: InvalidArgument (dim < rotary_dim, dtype, null data). Threads: any.
Status ApplyRope(const RopeSpec& spec, const float* cos, const float* sin, const TensorView& x) noexcept;

}  // namespace headlane

#endif  // HEADLANE_OPS_H_
