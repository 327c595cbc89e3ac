#include "reference/canonical_ops.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "reference/canonical.h"
#include "reference/canonical_math.h"

namespace headlane::reference {
namespace {

// Without the factor. n is a power of two.
void Transform(float* x, int64_t n) {
  if (n == 1) return;
  const int64_t half = n / 2;
  Transform(x, half);
  Transform(x + half, half);
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = a + b;
    x[half + i] = a - b;
  }
}

}  // namespace

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

void CanonicalHadamard(float* x, int64_t n) {
  for (int64_t begin = 0; begin < n;) {
    const int64_t size = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n - begin)));
    Transform(x + begin, size);
    const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
    for (int64_t i = 0; i < size; ++i) x[begin + i] = x[begin + i] * factor;
    begin += size;
  }
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
