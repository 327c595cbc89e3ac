// The operators of ops.h on tensors of heads: ApplyRope and RmsNormHeads.
//
// Separate from the operators on rows because of strides and 16-bit types: what the kernels can't take as it lies is
// copied, widened to f32, into a small array on the stack, and rounded back from there.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <limits>
#include <type_traits>

#include "base/float16.h"
#include "base/fp_environment.h"
#include "base/view_check.h"
#include "headlane/ops.h"
#include "kernels/kernel_api.h"
#include "ops/rope_frequencies.h"

namespace headlane {
namespace {

using internal::ActiveKernels;
using internal::InDefaultFpEnvironment;

// Element types: what is stored, and how it becomes f32 and back.
struct F32 {
  using Stored = float;
  static float Load(Stored x) noexcept { return x; }
  static Stored Store(float x) noexcept { return x; }
};
struct F16 {
  using Stored = uint16_t;
  static float Load(Stored x) noexcept { return internal::F16ToF32(x); }
  static Stored Store(float x) noexcept { return internal::F32ToF16(x); }
};
struct BF16 {
  using Stored = uint16_t;
  static float Load(Stored x) noexcept { return internal::BF16ToF32(x); }
  static Stored Store(float x) noexcept { return internal::F32ToBF16(x); }
};

// Calls body(Type()) for the type that a checked view has.
template <typename Body>
void WithType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(F32());
    case DType::kF16:
      return body(F16());
    case DType::kBF16:
      return body(BF16());
  }
}

// Calls body(head, token), head at its first feature, token counted over the batch.
template <typename Type, typename Body>
void ForEachHead(const TensorView& x, const Body& body) {
  auto* data = static_cast<typename Type::Stored*>(x.data);
  for (int64_t batch = 0; batch < x.num_batch; ++batch) {
    for (int64_t token = 0; token < x.num_tokens; ++token) {
      for (int64_t head = 0; head < x.num_heads; ++head) {
        body(data + (batch * x.batch_stride + token * x.token_stride + head * x.head_stride),
             batch * x.num_tokens + token);
      }
    }
  }
}

template <typename Type>
void LoadRow(const typename Type::Stored* from, int64_t stride, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = Type::Load(from[i * stride]);
}

template <typename Type>
void StoreRow(const float* from, int64_t n, int64_t stride, typename Type::Stored* to) {
  for (int64_t i = 0; i < n; ++i) to[i * stride] = Type::Store(from[i]);
}

template <typename Type>
void Rotate(const RopeSpec& spec, const float* cos, const float* sin, const TensorView& x) {
  const int64_t num_pairs = spec.rotary_dim / 2;
  const bool is_adjacent = spec.style == RopeStyle::kAdjacent;
  const int64_t pair_stride = is_adjacent ? 2 * x.dim_stride : x.dim_stride;
  const int64_t odd_offset = is_adjacent ? x.dim_stride : num_pairs * x.dim_stride;
  const auto kernel = ActiveKernels().elementwise.rope;
  ForEachHead<Type>(x, [=](typename Type::Stored* even, int64_t token) {
    const float* head_cos = cos + token * num_pairs;
    const float* head_sin = sin + token * num_pairs;
    if constexpr (std::is_same_v<Type, F32>) {
      kernel(even, even + odd_offset, pair_stride, head_cos, head_sin, num_pairs);
    } else {
      // A multiple of every vector, so that only a head's end is a tail.
      constexpr int64_t kPairs = 64;
      alignas(64) std::array<float, 2 * kPairs> pairs;
      float* wide_even = pairs.data();
      float* wide_odd = pairs.data() + kPairs;
      for (int64_t begin = 0; begin < num_pairs; begin += kPairs) {
        const int64_t n = std::min(kPairs, num_pairs - begin);
        typename Type::Stored* first = even + begin * pair_stride;
        LoadRow<Type>(first, pair_stride, n, wide_even);
        LoadRow<Type>(first + odd_offset, pair_stride, n, wide_odd);
        kernel(wide_even, wide_odd, 1, head_cos + begin, head_sin + begin, n);
        StoreRow<Type>(wide_even, n, pair_stride, first);
        StoreRow<Type>(wide_odd, n, pair_stride, first + odd_offset);
      }
    }
  });
}

// For heads without a weight: x * r * 1 is x * r.
constexpr std::array<float, kMaxBufferedHeadDim> kOnes = [] {
  std::array<float, kMaxBufferedHeadDim> ones{};
  ones.fill(1.0f);
  return ones;
}();

// Whether the kernel can work where the heads lie.
bool NormsInPlace(const float* weight, const TensorView& x) {
  return x.dtype == DType::kF32 && x.dim_stride == 1 && (weight != nullptr || x.dim <= kMaxBufferedHeadDim);
}

}  // namespace

Status ApplyRope(const RopeSpec& spec, const float* cos, const float* sin, const TensorView& x) noexcept {
  HEADLANE_RETURN_IF_ERROR(internal::CheckRopeSpec(spec));
  HEADLANE_RETURN_IF_ERROR(internal::CheckView("rope: x", x));
  if (x.dim < spec.rotary_dim) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "rope: x has heads of %" PRId64 " features, fewer than rotary_dim %" PRId64, x.dim,
                      spec.rotary_dim);
  }
  if (spec.rotary_dim == 0 || x.num_batch == 0 || x.num_tokens == 0 || x.num_heads == 0) return OkStatus();
  if (cos == nullptr || sin == nullptr) return MakeStatus(StatusCode::kInvalidArgument, "rope: cos or sin is null");
  InDefaultFpEnvironment([&] { WithType(x.dtype, [&](auto type) { Rotate<decltype(type)>(spec, cos, sin, x); }); });
  return OkStatus();
}

Status RmsNormHeads(const float* weight, float epsilon, const TensorView& x) noexcept {
  HEADLANE_RETURN_IF_ERROR(internal::CheckView("rms_norm: x", x));
  // Written so that NaN fails.
  if (!(epsilon >= 0.0f && epsilon <= std::numeric_limits<float>::max())) {
    return MakeStatus(StatusCode::kInvalidArgument, "rms_norm: epsilon is %g, not a number >= 0",
                      static_cast<double>(epsilon));
  }
  const bool in_place = NormsInPlace(weight, x);
  if (!in_place && x.dim > kMaxBufferedHeadDim) {
    return MakeStatus(StatusCode::kUnsupported,
                      "rms_norm: heads of %" PRId64 " features, more than %" PRId64
                      ", need f32, dim_stride 1 and a weight, not %s, %" PRId64 " and %s",
                      x.dim, kMaxBufferedHeadDim, DTypeName(x.dtype), x.dim_stride, weight == nullptr ? "none" : "one");
  }
  if (weight == nullptr) weight = kOnes.data();
  const auto kernel = ActiveKernels().elementwise.rms_norm;
  InDefaultFpEnvironment([&] {
    WithType(x.dtype, [&](auto type) {
      using Type = decltype(type);
      alignas(64) std::array<float, kMaxBufferedHeadDim> wide;
      ForEachHead<Type>(x, [&](typename Type::Stored* head, int64_t) {
        if constexpr (std::is_same_v<Type, F32>) {
          if (in_place) return kernel(head, weight, epsilon, x.dim, head);
        }
        LoadRow<Type>(head, x.dim_stride, x.dim, wide.data());
        kernel(wide.data(), weight, epsilon, x.dim, wide.data());
        StoreRow<Type>(wide.data(), x.dim, x.dim_stride, head);
      });
    });
  });
  return OkStatus();
}

}  // namespace headlane
