// The operators of ops.h on tensors of heads: ApplyRope, RmsNormHeads and HadamardHeads.
//
// Separate from the operators on rows because of strides and 16-bit types: what the kernels can't take as it lies is
// copied, widened to f32, into a small array on the stack, and rounded back from there.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <limits>

#include "base/fp_environment.h"
#include "base/view_check.h"
#include "headlane/ops.h"
#include "kernels/kernel_api.h"
#include "ops/rope_frequencies.h"

namespace headlane {
namespace {

using internal::ActiveKernels;
using internal::InDefaultFpEnvironment;

// Calls body(head, token), head at its first feature, token counted over the batch.
template <typename Body>
void ForEachHead(const TensorView& x, const Body& body) {
  const int64_t bytes = DTypeBytes(x.dtype);
  char* data = static_cast<char*>(x.data);
  for (int64_t batch = 0; batch < x.num_batch; ++batch) {
    for (int64_t token = 0; token < x.num_tokens; ++token) {
      for (int64_t head = 0; head < x.num_heads; ++head) {
        body(data + (batch * x.batch_stride + token * x.token_stride + head * x.head_stride) * bytes,
             batch * x.num_tokens + token);
      }
    }
  }
}

// The rotation of one tensor: how its pairs lie, and the kernels.
class Rotation {
 public:
  Rotation(const RopeSpec& spec, const TensorView& x)
      : kernels_(ActiveKernels().elementwise),
        dtype_(x.dtype),
        dim_stride_(x.dim_stride),
        dim_bytes_(x.dim_stride * DTypeBytes(x.dtype)),
        num_pairs_(spec.rotary_dim / 2),
        is_adjacent_(spec.style == RopeStyle::kAdjacent) {}

  void operator()(char* head, const float* cos, const float* sin) const {
    if (dtype_ == DType::kF32) {
      float* even = reinterpret_cast<float*>(head);
      float* odd = even + (is_adjacent_ ? 1 : num_pairs_) * dim_stride_;
      return kernels_.rope(even, odd, is_adjacent_ ? 2 * dim_stride_ : dim_stride_, cos, sin, num_pairs_);
    }
    for (int64_t begin = 0; begin < num_pairs_; begin += kPairs) {
      const int64_t n = std::min(kPairs, num_pairs_ - begin);
      if (is_adjacent_) {
        RotateAdjacent(head + 2 * begin * dim_bytes_, cos + begin, sin + begin, n);
      } else {
        RotateHalves(head + begin * dim_bytes_, head + (num_pairs_ + begin) * dim_bytes_, cos + begin, sin + begin, n);
      }
    }
  }

 private:
  // Pairs of 16-bit elements that are widened together. A multiple of every vector, so that only a head's end is a
  // tail.
  static constexpr int64_t kPairs = 64;

  void Load(const char* from, int64_t n, float* to) const { kernels_.scale(from, dtype_, dim_stride_, 1.0f, n, to); }
  void Store(const float* from, int64_t n, char* to) const { kernels_.store(from, n, dtype_, dim_stride_, to); }

  void RotateAdjacent(char* pairs, const float* cos, const float* sin, int64_t n) const {
    alignas(64) std::array<float, 2 * kPairs> wide;
    Load(pairs, 2 * n, wide.data());
    kernels_.rope(wide.data(), wide.data() + 1, 2, cos, sin, n);
    Store(wide.data(), 2 * n, pairs);
  }

  void RotateHalves(char* even, char* odd, const float* cos, const float* sin, int64_t n) const {
    alignas(64) std::array<float, kPairs> wide_even;
    alignas(64) std::array<float, kPairs> wide_odd;
    Load(even, n, wide_even.data());
    Load(odd, n, wide_odd.data());
    kernels_.rope(wide_even.data(), wide_odd.data(), 1, cos, sin, n);
    Store(wide_even.data(), n, even);
    Store(wide_odd.data(), n, odd);
  }

  const internal::ElementwiseKernels& kernels_;
  DType dtype_;
  int64_t dim_stride_;
  int64_t dim_bytes_;
  int64_t num_pairs_;
  bool is_adjacent_;
};

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
  const int64_t num_pairs = spec.rotary_dim / 2;
  InDefaultFpEnvironment([&] {
    ForEachHead(x, [&, rotate = Rotation(spec, x)](char* head, int64_t token) {
      rotate(head, cos + token * num_pairs, sin + token * num_pairs);
    });
  });
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
  const internal::ElementwiseKernels& kernels = ActiveKernels().elementwise;
  InDefaultFpEnvironment([&] {
    alignas(64) std::array<float, kMaxBufferedHeadDim> wide;
    ForEachHead(x, [&](char* head, int64_t) {
      if (in_place) {
        float* row = reinterpret_cast<float*>(head);
        return kernels.rms_norm(row, weight, epsilon, x.dim, row);
      }
      kernels.scale(head, x.dtype, x.dim_stride, 1.0f, x.dim, wide.data());
      kernels.rms_norm(wide.data(), weight, epsilon, x.dim, wide.data());
      kernels.store(wide.data(), x.dim, x.dtype, x.dim_stride, head);
    });
  });
  return OkStatus();
}

Status HadamardHeads(const TensorView& x) noexcept {
  HEADLANE_RETURN_IF_ERROR(internal::CheckView("hadamard: x", x));
  const bool in_place = x.dtype == DType::kF32 && x.dim_stride == 1;
  if (!in_place && x.dim > kMaxBufferedHeadDim) {
    return MakeStatus(StatusCode::kUnsupported,
                      "hadamard: heads of %" PRId64 " features, more than %" PRId64
                      ", need f32 and dim_stride 1, not %s and %" PRId64,
                      x.dim, kMaxBufferedHeadDim, DTypeName(x.dtype), x.dim_stride);
  }
  const internal::KernelTable& kernels = ActiveKernels();
  InDefaultFpEnvironment([&] {
    alignas(64) std::array<float, kMaxBufferedHeadDim> wide;
    ForEachHead(x, [&](char* head, int64_t) {
      if (in_place) return kernels.hadamard(reinterpret_cast<float*>(head), x.dim);
      kernels.elementwise.scale(head, x.dtype, x.dim_stride, 1.0f, x.dim, wide.data());
      kernels.hadamard(wide.data(), x.dim);
      kernels.elementwise.store(wide.data(), x.dim, x.dtype, x.dim_stride, head);
    });
  });
  return OkStatus();
}

}  // namespace headlane
