// The canonical order of the operators around attention, as scalar programs that every SIMD target must reproduce bit
// for bit.
#ifndef HEADLANE_SRC_REFERENCE_CANONICAL_OPS_H_
#define HEADLANE_SRC_REFERENCE_CANONICAL_OPS_H_

#include <cstdint>

namespace headlane::reference {

// One output of a linear layer: y = start; y = fma(x[k], w[k], y) for k ascending.
float CanonicalLinear(const float* x, const float* w, int64_t n, float start = 0.0f);

// 16 partial sums of squares by index % 16 with fma, added by the tree of steps 8, 4, 2, 1; r = 1 / sqrt(sum / n +
// epsilon); y = (x * r) * weight.
void CanonicalRmsNorm(const float* x, const float* weight, float epsilon, int64_t n, float* y);

// y = (gate / (1 + exp(-gate))) * up
float CanonicalSiluMul(float gate, float up);

// even' = fma(even, cos, -(odd * sin)), odd' = fma(even, sin, odd * cos)
void CanonicalRope(float cos, float sin, float* even, float* odd);

// The normalised Walsh-Hadamard transform in place, in blocks of the largest power of two that is left (80 = 64 + 16).
// Of a block of n: its halves are transformed, without the factor, into a and b; then it is a + b followed by a - b. At
// the end of all each number is multiplied by float(1 / sqrt(n)).
void CanonicalHadamard(float* x, int64_t n);

// m = max by comparison; 16 partial sums of exp(x - m) by index % 16, the same tree; m + ln(sum). -inf for nothing but
// -inf.
float CanonicalLogSumExp(const float* x, int64_t n);

}  // namespace headlane::reference

#endif  // HEADLANE_SRC_REFERENCE_CANONICAL_OPS_H_
