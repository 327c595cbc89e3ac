// The normalised Walsh-Hadamard transform of a row, in place: a rotation that spreads outliers over many features.
//
// A row is cut into blocks, the largest power of two that is left at a time (80 = 64 + 16). Within a block of n: for
// h = 1, 2, 4, ... n / 2: pairs (i, i + h) become (a + b, a - b); then every number is multiplied by the f32 nearest to
// 1 / sqrt(n). Sums and one product only, so that there is nothing to fuse: the same bits with and without FMA.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hadamard.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The f32 next to 1 / sqrt(2); its products with powers of two are exact.
inline constexpr float kSqrtHalf = 0x1.6A09E6p-1f;

// Steps h = 1 and h = 2 of x[0, n), n a multiple of 16. Vectors of 4 lanes, so that four of them are at most 16
// numbers.
HWY_INLINE void FirstTwoSteps(float* HWY_RESTRICT x, int64_t n) {
  const hn::CappedTag<float, 4> d;
  const int64_t step = 4 * static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += step) {
    auto a = hn::Zero(d), b = a, c = a, e = a;
    hn::LoadInterleaved4(d, x + i, a, b, c, e);
    const auto ab = hn::Add(a, b), a_b = hn::Sub(a, b), ce = hn::Add(c, e), c_e = hn::Sub(c, e);
    hn::StoreInterleaved4(hn::Add(ab, ce), hn::Add(a_b, c_e), hn::Sub(ab, ce), hn::Sub(a_b, c_e), d, x + i);
  }
}

// Step h, a multiple of the lanes of `d`.
template <class D>
HWY_INLINE void Step(D d, float* HWY_RESTRICT x, int64_t n, int64_t h) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t block = 0; block < n; block += 2 * h) {
    for (int64_t i = block; i < block + h; i += lanes) {
      const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + h);
      hn::StoreU(hn::Add(a, b), d, x + i);
      hn::StoreU(hn::Sub(a, b), d, x + i + h);
    }
  }
}

// Blocks of 1 to 8.
HWY_INLINE void SmallBlock(float* x, int64_t n, float factor) {
  for (int64_t h = 1; h < n; h *= 2) {
    for (int64_t block = 0; block < n; block += 2 * h) {
      for (int64_t i = block; i < block + h; ++i) {
        const float a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
  }
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

HWY_INLINE void Block(float* x, int64_t n, float factor) {
  if (n < kTileKeys) return SmallBlock(x, n, factor);
  const hn::CappedTag<float, 4> d4;
  const hn::CappedTag<float, kTileKeys> d;
  FirstTwoSteps(x, n);
  Step(d4, x, n, 4);
  Step(d4, x, n, 8);
  for (int64_t h = 16; h < n; h *= 2) Step(d, x, n, h);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factors = hn::Set(d, factor);
  for (int64_t i = 0; i < n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factors), d, x + i);
}

void HadamardRow(float* x, int64_t n) noexcept {
  while (n > 0) {
    int64_t size = 1;
    float power = 1.0f;  // 2^-(log2(size) / 2), the exponent rounded down
    bool is_square = true;
    for (; size <= n / 2; size *= 2) {
      if (!is_square) power *= 0.5f;
      is_square = !is_square;
    }
    Block(x, size, is_square ? power : power * kSqrtHalf);
    x += size;
    n -= size;
  }
}

HadamardKernels HadamardTable() { return {&HadamardRow, hwy::TargetName(HWY_TARGET)}; }

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(HadamardTable);
HadamardKernels Hadamard(int64_t target) { return HEADLANE_CALL_FOR_TARGET(HadamardTable, target); }
}  // namespace headlane::internal
#endif
