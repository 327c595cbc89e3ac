// What changes scores between the products and the softmax: softcap, additive bias, ALiBi.
//
// Separate from the online softmax, which does not know them: most models have none. Called through
// SoftmaxKernels::scores.
#if defined(HEADLANE_SRC_KERNELS_SCORE_MODIFIERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_SCORE_MODIFIERS_INL_H_
#undef HEADLANE_SRC_KERNELS_SCORE_MODIFIERS_INL_H_
#else
#define HEADLANE_SRC_KERNELS_SCORE_MODIFIERS_INL_H_
#endif

#include <limits>

#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// s = cap * tanh(s / cap), s = s + bias. The division is one, not a product with a rounded 1 / cap.
HWY_INLINE void CapAndBias(float* HWY_RESTRICT s, int64_t num_keys, float softcap, const float* bias) {
  const hn::CappedTag<float, kTileKeys> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto cap = hn::Set(d, softcap);
  const auto hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < num_keys; i += lanes) {
    auto v = hn::Load(d, s + i);
    if (softcap > 0.0f) v = hn::Mul(cap, Tanh(d, hn::Div(v, cap)));
    if (bias != nullptr) {
      // -inf hides its key whatever the score is, NaN included, which a sum would keep.
      const auto b = hn::LoadU(d, bias + i);
      v = hn::IfThenElse(hn::Eq(b, hidden), b, hn::Add(v, b));
    }
    hn::Store(v, d, s + i);
  }
}

// s = fma(slope, float(row_offset + key_offset), s): the distance is an integer and is rounded to float once.
HWY_INLINE void AddDistances(float* HWY_RESTRICT s, int64_t num_keys, float slope, int64_t row_offset,
                             const int32_t* HWY_RESTRICT key_offset, bool fits_int32) {
  const hn::CappedTag<float, kTileKeys> d;
  const hn::RebindToSigned<decltype(d)> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, slope);
  if (fits_int32) {
    const auto row = hn::Set(di, static_cast<int32_t>(row_offset));
    for (int64_t i = 0; i < num_keys; i += lanes) {
      const auto distance = hn::ConvertTo(d, hn::Add(row, hn::LoadU(di, key_offset + i)));
      hn::Store(hn::MulAdd(factor, distance, hn::Load(d, s + i)), d, s + i);
    }
    return;
  }
  // Positions so far apart are rare; Highway has no conversion of 64-bit integers to f32.
  alignas(64) float distance[kTileKeys];
  for (int64_t i = 0; i < num_keys; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) distance[j] = static_cast<float>(row_offset + key_offset[i + j]);
    hn::Store(hn::MulAdd(factor, hn::Load(d, distance), hn::Load(d, s + i)), d, s + i);
  }
}

inline HWY_MAYBE_UNUSED void ModifyScores(const ScoreArgs& args) noexcept {
  const int64_t num_keys = args.num_tiles * kTileKeys;
  const bool caps = args.softcap > 0.0f || args.bias != nullptr;
  int32_t low = 0, high = 0;
  if (args.slopes != nullptr) {
    low = high = args.key_offset[0];
    for (int64_t i = 1; i < num_keys; ++i) {
      low = HWY_MIN(low, args.key_offset[i]);
      high = HWY_MAX(high, args.key_offset[i]);
    }
  }
  for (int64_t r = 0; r < args.rows; ++r) {
    float* const s = args.s + r * kBlockKeys;
    if (caps) CapAndBias(s, num_keys, args.softcap, args.bias == nullptr ? nullptr : args.bias + r * kBlockKeys);
    if (args.slopes == nullptr) continue;
    const int64_t offset = args.row_offset[r];
    // The offset alone must fit, too: it becomes a vector of int32.
    const int64_t least = HWY_MIN(offset, offset + low), most = HWY_MAX(offset, offset + high);
    const bool fits = least >= std::numeric_limits<int32_t>::min() && most <= std::numeric_limits<int32_t>::max();
    AddDistances(s, num_keys, args.slopes[r], offset, args.key_offset, fits);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_SCORE_MODIFIERS_INL_H_
