// The small operators around attention: RMS-norm, SwiGLU, sums, log-sum-exp, rotation of pairs, scaling, conversion.
// One row per call.
//
// Sums over a row keep 16 partial sums by index modulo 16, whatever the width of a vector, and join them in one fixed
// tree. Elements that do not exist add +0 to their lane, which changes no bit: a partial sum is never -0.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/element-inl.h"
#include "kernels/simd_math-inl.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kTileKeys>;
using VF = hn::Vec<DF>;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

HWY_INLINE int64_t NumLanes() { return static_cast<int64_t>(hn::Lanes(DF())); }

// 16 numbers, aligned for every vector.
struct alignas(64) Lanes16 {
  float v[kTileKeys];
};

HWY_INLINE float TreeSum(const Lanes16& partial) {
  const float* HWY_RESTRICT l = partial.v;
  float sum[8];
  for (int64_t j = 0; j < 8; ++j) sum[j] = l[j] + l[j + 8];
  for (int64_t step = 4; step > 0; step /= 2) {
    for (int64_t j = 0; j < step; ++j) sum[j] += sum[j + step];
  }
  return sum[0];
}

// partial[i % 16] = f(partial[i % 16], x[i]), i ascending. f(sum, 0-padded x, count) knows how many of the lanes exist.
template <class F>
HWY_INLINE void AccumulateBy16(const F& f, const float* HWY_RESTRICT x, int64_t n, Lanes16& partial) {
  const DF d;
  const int64_t lanes = NumLanes();
  const int64_t whole = n / kTileKeys * kTileKeys;
  // Up to four accumulators, named since SVE has no arrays of vectors: on 4 lanes all are used, on 16 one.
  VF a = hn::Zero(d), b = a, c = a, e = a;
  const size_t full = static_cast<size_t>(lanes);
  for (int64_t i = 0; i < whole; i += kTileKeys) {
    a = f(a, hn::LoadU(d, x + i), full);
    if (lanes <= 8) b = f(b, hn::LoadU(d, x + i + lanes), full);
    if (lanes <= 4) {
      c = f(c, hn::LoadU(d, x + i + 2 * lanes), full);
      e = f(e, hn::LoadU(d, x + i + 3 * lanes), full);
    }
  }
  hn::Store(a, d, partial.v);
  if (lanes <= 8) hn::Store(b, d, partial.v + lanes);
  if (lanes <= 4) {
    hn::Store(c, d, partial.v + 2 * lanes);
    hn::Store(e, d, partial.v + 3 * lanes);
  }
  for (int64_t i = whole; i < n; i += lanes) {
    const size_t count = static_cast<size_t>(HWY_MIN(lanes, n - i));
    float* sum = partial.v + (i - whole);
    hn::Store(f(hn::Load(d, sum), hn::LoadN(d, x + i, count), count), d, sum);
  }
}

struct SquareOp {
  HWY_INLINE VF operator()(VF sum, VF x, size_t) const { return hn::MulAdd(x, x, sum); }
};

void RmsNormRow(const float* x, const float* weight, float epsilon, int64_t n, float* y) noexcept {
  if (n <= 0) return;
  const DF d;
  const int64_t lanes = NumLanes();
  Lanes16 partial;
  AccumulateBy16(SquareOp(), x, n, partial);
  // In a vector, because std::sqrt may be a call into libm.
  const VF mean = hn::Div(hn::Set(d, TreeSum(partial)), hn::Set(d, static_cast<float>(n)));
  const VF r = hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::Add(mean, hn::Set(d, epsilon))));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), r), hn::LoadU(d, weight + i)), d, y + i);
  }
  if (i == n) return;
  const size_t count = static_cast<size_t>(n - i);
  hn::StoreN(hn::Mul(hn::Mul(hn::LoadN(d, x + i, count), r), hn::LoadN(d, weight + i, count)), d, y + i, count);
}

HWY_INLINE VF SiluMulVector(DF d, VF gate, VF up) {
  const VF silu = hn::Div(gate, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(gate))));
  return hn::Mul(silu, up);
}

void SiluMulRow(const float* gate, const float* up, int64_t n, float* y) noexcept {
  const DF d;
  const int64_t lanes = NumLanes();
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(SiluMulVector(d, hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, y + i);
  }
  if (i >= n) return;
  const size_t count = static_cast<size_t>(n - i);
  hn::StoreN(SiluMulVector(d, hn::LoadN(d, gate + i, count), hn::LoadN(d, up + i, count)), d, y + i, count);
}

void AddRow(const float* x, int64_t n, float* y) noexcept {
  const DF d;
  const int64_t lanes = NumLanes();
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Add(hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i);
  if (i >= n) return;
  const size_t count = static_cast<size_t>(n - i);
  hn::StoreN(hn::Add(hn::LoadN(d, y + i, count), hn::LoadN(d, x + i, count)), d, y + i, count);
}

template <class Element>
HWY_INLINE void ScaleElements(const typename Element::T* x, int64_t x_stride, float scale, int64_t n, float* y) {
  if (x_stride != 1) {
    for (int64_t i = 0; i < n; ++i) y[i] = Element::ToF32(x[i * x_stride]) * scale;
    return;
  }
  const DF d;
  const int64_t lanes = NumLanes();
  const VF factor = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(Element::Load(d, x + i), factor), d, y + i);
  if (i >= n) return;
  const size_t count = static_cast<size_t>(n - i);
  hn::StoreN(hn::Mul(Element::LoadN(d, x + i, count), factor), d, y + i, count);
}

void ScaleRow(const void* x, DType dtype, int64_t x_stride, float scale, int64_t n, float* y) noexcept {
  switch (dtype) {
    case DType::kF32:
      return ScaleElements<F32Element>(static_cast<const float*>(x), x_stride, scale, n, y);
    case DType::kF16:
      return ScaleElements<F16Element>(static_cast<const uint16_t*>(x), x_stride, scale, n, y);
    case DType::kBF16:
      return ScaleElements<BF16Element>(static_cast<const uint16_t*>(x), x_stride, scale, n, y);
    default:  // no tensor's type
      break;
  }
}

template <class Element>
HWY_INLINE void StoreElements(const float* x, int64_t n, int64_t y_stride, typename Element::T* y) {
  if (y_stride != 1) {
    for (int64_t i = 0; i < n; ++i) y[i * y_stride] = Element::FromF32(x[i]);
    return;
  }
  const DF d;
  const int64_t lanes = NumLanes();
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) Element::StoreN(d, hn::LoadU(d, x + i), y + i, static_cast<size_t>(lanes));
  if (i >= n) return;
  const size_t count = static_cast<size_t>(n - i);
  Element::StoreN(d, hn::LoadN(d, x + i, count), y + i, count);
}

void StoreRow(const float* x, int64_t n, DType dtype, int64_t y_stride, void* y) noexcept {
  switch (dtype) {
    case DType::kF32:
      return StoreElements<F32Element>(x, n, y_stride, static_cast<float*>(y));
    case DType::kF16:
      return StoreElements<F16Element>(x, n, y_stride, static_cast<uint16_t*>(y));
    case DType::kBF16:
      return StoreElements<BF16Element>(x, n, y_stride, static_cast<uint16_t*>(y));
    default:  // no tensor's type
      break;
  }
}

// The largest number, NaNs passed over: by comparison, since Max treats NaN as the target likes. -inf if there is none.
float LargestNumber(const float* x, int64_t n) {
  const DF d;
  const int64_t lanes = NumLanes();
  VF m = hn::Set(d, -kInfinity);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const VF v = hn::LoadU(d, x + i);
    m = hn::IfThenElse(hn::Gt(v, m), v, m);
  }
  Lanes16 largest;
  hn::Store(m, d, largest.v);
  float result = -kInfinity;
  for (int64_t j = 0; j < lanes; ++j) result = largest.v[j] > result ? largest.v[j] : result;
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// m is no vector: SVE's can't be members.
struct ExpSumOp {
  float m;
  HWY_INLINE VF operator()(VF sum, VF x, size_t count) const {
    const DF d;
    return hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, count), ExpNonPositive(d, hn::Sub(x, hn::Set(d, m)))));
  }
};

float LogSumExpRow(const float* x, int64_t n) noexcept {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const VF nan = hn::BitCast(d, hn::Set(du, 0x7FC00000u));
  const float m = LargestNumber(x, n);
  if (m == -kInfinity) {
    for (int64_t i = 0; i < n; ++i) {
      if (x[i] != x[i]) return hn::GetLane(nan);
    }
    return -kInfinity;
  }
  Lanes16 partial;
  AccumulateBy16(ExpSumOp{m}, x, n, partial);
  const VF result = hn::Add(hn::Set(d, m), Log(d, hn::Set(d, TreeSum(partial))));
  return hn::GetLane(hn::IfThenElse(hn::IsNaN(result), nan, result));
}

HWY_INLINE void RotatePair(VF& even, VF& odd, VF cos, VF sin) {
  const VF new_even = hn::MulSub(even, cos, hn::Mul(odd, sin));
  odd = hn::MulAdd(even, sin, hn::Mul(odd, cos));
  even = new_even;
}

// Pairs [begin, num_pairs) of any stride, through arrays of 16.
HWY_INLINE void RotateStrided(float* even, float* odd, int64_t stride, const float* cos, const float* sin,
                              int64_t begin, int64_t num_pairs) {
  const DF d;
  const int64_t lanes = NumLanes();
  for (int64_t i = begin; i < num_pairs; i += lanes) {
    const int64_t count = HWY_MIN(lanes, num_pairs - i);
    Lanes16 e, o;
    hn::Store(hn::Zero(d), d, e.v);
    hn::Store(hn::Zero(d), d, o.v);
    for (int64_t j = 0; j < count; ++j) {
      e.v[j] = even[(i + j) * stride];
      o.v[j] = odd[(i + j) * stride];
    }
    VF ev = hn::Load(d, e.v), ov = hn::Load(d, o.v);
    RotatePair(ev, ov, hn::LoadN(d, cos + i, static_cast<size_t>(count)),
               hn::LoadN(d, sin + i, static_cast<size_t>(count)));
    hn::Store(ev, d, e.v);
    hn::Store(ov, d, o.v);
    for (int64_t j = 0; j < count; ++j) {
      even[(i + j) * stride] = e.v[j];
      odd[(i + j) * stride] = o.v[j];
    }
  }
}

void RotatePairs(float* even, float* odd, int64_t stride, const float* cos, const float* sin,
                 int64_t num_pairs) noexcept {
  const DF d;
  const int64_t lanes = NumLanes();
  int64_t i = 0;
  if (stride == 1) {
    for (; i + lanes <= num_pairs; i += lanes) {
      VF e = hn::LoadU(d, even + i), o = hn::LoadU(d, odd + i);
      RotatePair(e, o, hn::LoadU(d, cos + i), hn::LoadU(d, sin + i));
      hn::StoreU(e, d, even + i);
      hn::StoreU(o, d, odd + i);
    }
  } else if (stride == 2 && odd == even + 1) {
    for (; i + lanes <= num_pairs; i += lanes) {
      VF e, o;
      hn::LoadInterleaved2(d, even + 2 * i, e, o);
      RotatePair(e, o, hn::LoadU(d, cos + i), hn::LoadU(d, sin + i));
      hn::StoreInterleaved2(e, o, d, even + 2 * i);
    }
  }
  RotateStrided(even, odd, stride, cos, sin, i, num_pairs);
}

ElementwiseKernels ElementwiseTable() {
  return {&RmsNormRow, &SiluMulRow,   &AddRow,      &ScaleRow,
          &StoreRow,   &LogSumExpRow, &RotatePairs, hwy::TargetName(HWY_TARGET)};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(ElementwiseTable);
ElementwiseKernels Elementwise(int64_t target) { return HEADLANE_CALL_FOR_TARGET(ElementwiseTable, target); }
}  // namespace headlane::internal
#endif
