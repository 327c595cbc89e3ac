#include "reference/canonical_ops.h"

#include <array>
#include <cmath>
#include <limits>

#include "reference/canonical.h"
#include "reference/canonical_math.h"

namespace headlane::reference {

float CanonicalLinear(const float* x, const float* w, int64_t n, float start) {
  float y = start;
  for (int64_t k = 0; k < n; ++k) y = std::fma(x[k], w[k], y);
  return y;
}

void CanonicalRmsNorm(const float* x, const float* weight, float epsilon, int64_t n, float* y) {
  std::array<float, kLanes> squares{};
  for (int64_t i = 0; i < n; ++i) squares[i % kLanes] = std::fma(x[i], x[i], squares[i % kLanes]);
  const float sum = CanonicalReduce(squares);
  const float r = 1.0f / std::sqrt(sum / static_cast<float>(n) + epsilon);
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] * r) * weight[i];
}

float CanonicalSiluMul(float gate, float up) { return (gate / (1.0f + CanonicalExp(-gate))) * up; }

void CanonicalRope(float cos, float sin, float* even, float* odd) {
  const float e = *even;
  const float o = *odd;
  *even = std::fma(e, cos, -(o * sin));
  *odd = std::fma(e, sin, o * cos);
}

float CanonicalLogSumExp(const float* x, int64_t n) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  float m = -kInf;
  bool any = false;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] > m) m = x[i];
    any = any || x[i] != -kInf;
  }
  if (!any) return -kInf;
  std::array<float, kLanes> sums{};
  for (int64_t i = 0; i < n; ++i) sums[i % kLanes] = sums[i % kLanes] + CanonicalExp(x[i] - m);
  return m + CanonicalLn(CanonicalReduce(sums));
}

}  // namespace headlane::reference
