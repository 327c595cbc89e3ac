// The small operators around attention in a decoder. Each works on the rows it is given, on the calling thread,
// allocates nothing, and computes every row in one fixed order of operations: the bits of a row do not depend on which
// rows are given together.
#ifndef HEADLANE_OPS_H_
#define HEADLANE_OPS_H_

#include <cstdint>
#include <span>

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

// Each head x[b][t][h][:] of `x` [batch, tokens, heads, dim], in place: x / sqrt(mean(x^2) + epsilon) * weight, as
// RmsNorm does it: the normalisation of q and k heads that some models have before the rotary embedding.
// Shapes: weight [dim], or null for all ones. x f32, f16 or bf16: computed in f32, rounded to nearest even.
// Errors: InvalidArgument (a view that cannot be written, epsilon not in [0, inf)), Unsupported (dim beyond
// kMaxBufferedHeadDim, unless x is f32 with dim_stride 1 and has a weight). Threads: any.
inline constexpr int64_t kMaxBufferedHeadDim = 4096;
Status RmsNormHeads(const float* weight, float epsilon, const TensorView& x) noexcept;

// How a rotary embedding pairs the features of a head.
enum class RopeStyle : int32_t {
  kAdjacent = 0,  // (0, 1), (2, 3), ...: llama-architecture GGUF files
  kHalfSplit,     // (i, i + rotary_dim / 2): the layout of most published checkpoints
};

// What becomes of frequency f_j = base^(-2 j / d) of pair j, d = rotary_dim, when a model is to see more positions than
// it was trained on, original_context.
enum class RopeScaling : int32_t {
  kNone = 0,
  kLinear,  // f_j / factor
  // f_j / factor when the wavelength is long, f_j when it is short, a weighted mean in between.
  kLlama3,
  // base * factor^(d / (d - 2)) in place of base: the fastest pair stays as it is, the slowest is divided by factor.
  // d = 2 has the fastest pair only.
  kNtk,
  // kNtk with 1 + factor * (length / original_context - 1) as its factor, 1 up to original_context. A factor that
  // followed a growing sequence would change the angles of keys already in the cache; so it has to be fixed with
  // ResolveRope before angles are asked for.
  kDynamicNtk,
  // Peng et al. 2023. A pair that turns r times within original_context has index c(r) = d ln(original_context / (2 pi
  // r)) / (2 ln base), not rounded. f_j up to pair low = c(beta_fast), f_j / factor from pair high = c(beta_slow) on, a
  // mean in between weighted by ramp(j) = (j - low) / max(high - low, 0.001) in [0, 1]:
  //   f_j * (1 - ramp(j)) + f_j / factor * ramp(j)
  // where low is rounded down and high up if yarn_truncate (as checkpoints without that setting expect), and both are
  // cut to [0, d - 1]. cos and sin are multiplied by attention_factor.
  kYarn,
};

// Rotary position embedding (Su et al. 2021): pair j of position p turns by p times frequency j.
struct RopeSpec {
  int64_t rotary_dim = 0;  // even, at most the head's width; the features behind it stay as they are
  double base = 10000.0;
  RopeStyle style = RopeStyle::kAdjacent;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;                 // all scalings but kNone
  double low_frequency_factor = 1.0;   // kLlama3
  double high_frequency_factor = 4.0;  // kLlama3
  double original_context = 8192.0;    // kLlama3, kDynamicNtk, kYarn
  // Optional, [rotary_dim / 2]: divides the frequency of each pair, after the scaling. The factors that files carry per
  // pair: Llama 3's, or LongRoPE's. Of LongRoPE's short and long list the caller gives one, for a sequence's whole
  // life.
  const float* frequency_divisors = nullptr;
  double beta_fast = 32.0;    // kYarn
  double beta_slow = 1.0;     // kYarn
  bool yarn_truncate = true;  // kYarn
  // Multiplies cos and sin, so q and k that are both rotated have the scores of the rotated features multiplied by its
  // square. 0: what the scaling implies: YarnMscale(factor, 1) for kYarn, otherwise 1.
  double attention_factor = 0.0;
};

// `spec` for a sequence created to hold up to `context_length` tokens: kDynamicNtk becomes kNtk with the factor of that
// length, rounded to double once; every other spec comes back as it is. To be called once per sequence; what it gives
// stays valid while the sequence grows beyond that length, as an approximation of the same quality as kNtk's.
// Errors: InvalidArgument (context_length < 1, or as RopeAngles). Allocation: none. Threads: any.
Result<RopeSpec> ResolveRope(const RopeSpec& spec, int64_t context_length) noexcept;

// 1 + 0.1 * mscale * ln(factor) for factor > 1, otherwise 1: YaRN's correction of the scores' spread. Models with two
// settings have attention_factor = YarnMscale(factor, mscale) / YarnMscale(factor, mscale_all_dim), and multiply the
// scale of the scores by YarnMscale(factor, mscale_all_dim)^2. The nearest double; NaN if factor is no number in
// [1e-100, 1e100] or mscale none in [-1e100, 1e100]. Threads: any.
double YarnMscale(double factor, double mscale) noexcept;

// sqrt(1 + ln(factor) / ln(original_context)) for factor > 1, otherwise 1: LongRoPE's attention_factor where a
// checkpoint states none. The nearest double; NaN if factor is no number in [1e-100, 1e100] or original_context none in
// [2, 1e100]. Threads: any.
double LongRopeMscale(double factor, double original_context) noexcept;

// cos and sin of every pair at the given positions, times the attention factor, correct to the last bit of f32 up to
// |position| 2^24, from our own code (no libm): the same bits on every machine, whatever type of tensor they rotate.
// Shapes: positions [n], cos and sin [n][rotary_dim / 2].
// Errors: InvalidArgument (odd or negative rotary_dim; base or another parameter in use outside of [1e-100, 1e100], a
// divisor or attention factor outside of [1e-30, 1e30]; kYarn with base < 2; kDynamicNtk, not resolved), OutOfRange
// (|position| beyond 2^53, an angle beyond 2^50). Allocation: none. Threads: any.
Status RopeAngles(const RopeSpec& spec, const int64_t* positions, int64_t n, float* cos, float* sin) noexcept;

// The same for positions first_position, first_position + 1, ..., n of them.
Status RopeAnglesFrom(const RopeSpec& spec, int64_t first_position, int64_t n, float* cos, float* sin) noexcept;

// Rotates heads in place: x [batch, tokens, heads, dim] f32, f16 or bf16 of any strides; cos and sin
// [batch * tokens][rotary_dim / 2] as RopeAngles gives them.
//   even' = even * cos - odd * sin, odd' = even * sin + odd * cos
// in f32; 16-bit types are widened before and rounded to nearest even after, a NaN to 0x7E00 (f16) or 0x7FC0 (bf16).
// Errors: InvalidArgument (dim < rotary_dim, a view that cannot be written, null data, or as RopeAngles). Allocation:
// none. Threads: any.
Status ApplyRope(const RopeSpec& spec, const float* cos, const float* sin, const TensorView& x) noexcept;

// Each head x[b][t][h][:] of `x`, in place: the Walsh-Hadamard transform, normalised, so that it is a rotation and its
// own inverse but for rounding. It takes heads of any dim as blocks, the largest power of two that is left at a time
// (80 = 64 + 16), each transformed for itself: of n features feature i becomes 1 / sqrt(n) times the sum of
// (-1)^popcount(i & j) x[j]. In f32: sums in steps of 1, 2, 4, ... n / 2, then one product; the same bits on every
// target. 16-bit types are widened before and rounded to nearest even after. What KVCacheSpec::rotate does to keys and
// values. Errors: InvalidArgument (a view that cannot be written), Unsupported (dim beyond kMaxBufferedHeadDim, unless
// x is f32 with dim_stride 1). Allocation: none. Threads: any.
Status HadamardHeads(const TensorView& x) noexcept;

// The standard slopes of ALiBi (Press et al. 2022), positive. For a power of two n: slope h = 2^(-8 (h + 1) / n). For
// other head counts: those of the largest power of two n below, then every other one of those of 2 n, from the first
// on. Each is the f32 next to the true value, from our own code.
// Errors: InvalidArgument (num_heads < 0, slopes of another size). Allocation: none. Threads: any.
Status AlibiSlopes(int64_t num_heads, std::span<float> slopes) noexcept;

}  // namespace headlane

#endif  // HEADLANE_OPS_H_
