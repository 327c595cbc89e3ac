#include "kv/row_feed.h"

#include <cstring>

#include "base/check.h"
#include "base/hadamard_blocks.h"

namespace headlane::internal {
namespace {

long long LL(int64_t value) { return static_cast<long long>(value); }

// One element after the other: strides are the caller's. The size is a constant, so that a copy is a load and a store.
template <size_t kBytes>
void CopyRow(const std::byte* from, int64_t stride, int64_t n, std::byte* to) {
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(to + i * static_cast<int64_t>(kBytes), from + i * stride * static_cast<int64_t>(kBytes), kBytes);
  }
}

}  // namespace

Status CheckRotation(const char* what, int64_t qk_dim, int64_t v_dim, bool values_in_keys) noexcept {
  const int64_t most = std::max(qk_dim, v_dim);
  if (most > kMaxBufferedHeadDim) {
    return MakeStatus(StatusCode::kUnsupported, "%s: rotate is set and a head has %lld features, more than %lld", what,
                      LL(most), LL(kMaxBufferedHeadDim));
  }
  if (!values_in_keys || v_dim > qk_dim || IsHadamardBoundary(qk_dim, v_dim)) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported,
                    "%s: rotate is set, but v_dim %lld is within a block of the rotation of qk_dim %lld", what,
                    LL(v_dim), LL(qk_dim));
}

Status CheckTransform(const KeyTransform& transform, int64_t qk_dim, int64_t values) noexcept {
  const RopeShift& rope = transform.rope;
  if (!transform.norm && rope.rope.rotary_dim == 0) return OkStatus();
  if (qk_dim > kMaxBufferedHeadDim) {
    return MakeStatus(StatusCode::kUnsupported, "keys of %lld features, more than %lld, are not transformed",
                      LL(qk_dim), LL(kMaxBufferedHeadDim));
  }
  if (transform.norm) {
    // A tensor without tokens: only the arguments are looked at.
    float unused = 0;
    HEADLANE_RETURN_IF_ERROR(
        RmsNormHeads(transform.norm_weight, transform.norm_epsilon, TokensHeadsDim(&unused, 0, 1, qk_dim)));
  }
  const int64_t dim = rope.rope.rotary_dim;
  if (dim == 0) return OkStatus();
  float unused = 0;
  HEADLANE_RETURN_IF_ERROR(RopeAngles(rope.rope, nullptr, 0, &unused, &unused));
  if (rope.first_feature < 0 || rope.first_feature > qk_dim || dim > qk_dim - rope.first_feature) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: %lld features from %lld on, keys have %lld", LL(dim),
                      LL(rope.first_feature), LL(qk_dim));
  }
  if (rope.first_feature < values) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: features from %lld on, but the first %lld are the values",
                      LL(rope.first_feature), LL(values));
  }
  if ((transform.cos == nullptr) != (transform.sin == nullptr)) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: %s is null, %s is not",
                      transform.cos == nullptr ? "cos" : "sin", transform.cos == nullptr ? "sin" : "cos");
  }
  return OkStatus();
}

Status CheckPositions(const KeyTransform& transform, int64_t first, int64_t num_tokens) noexcept {
  const RopeSpec& rope = transform.rope.rope;
  if (rope.rotary_dim == 0 || transform.cos != nullptr || num_tokens == 0) return OkStatus();
  // Those farthest from 0 on either side stand for the others.
  int64_t extremes[2] = {first, first + num_tokens - 1};
  if (transform.positions != nullptr) {
    const auto [low, high] = std::minmax_element(transform.positions, transform.positions + num_tokens);
    extremes[0] = *low;
    extremes[1] = *high;
  }
  // One pair at a time, the first turns fastest: no buffer for all angles.
  if (rope.rotary_dim > kMaxBufferedHeadDim) return OkStatus();
  alignas(64) std::array<float, kMaxBufferedHeadDim> angles;
  for (const int64_t position : extremes) {
    HEADLANE_RETURN_IF_ERROR(RopeAngles(rope, &position, 1, angles.data(), angles.data() + rope.rotary_dim / 2));
  }
  return OkStatus();
}

RowFeed::RowFeed(const ConstTensorView& view, int64_t batch, const KeyTransform* transform, bool rotate,
                 int64_t first_position, RowBuffers* buffers) noexcept
    : view_(view),
      data_(static_cast<const std::byte*>(view.data)),
      transform_(transform),
      buffers_(*buffers),
      rotate_(rotate),
      first_position_(first_position) {
  if (data_ != nullptr) data_ += batch * view.batch_stride * DTypeBytes(view.dtype);
  if (transform_ != nullptr && !transform_->norm && transform_->rope.rope.rotary_dim == 0) transform_ = nullptr;
  changes_ = rotate_ || transform_ != nullptr;
  if (!changes_) return;
  HEADLANE_DCHECK(view.dim <= RowBuffers::kSize);
  rows_per_piece_ = RowBuffers::kSize / std::max<int64_t>(view.dim, 1);
  if (transform_ == nullptr) return;
  num_pairs_ = transform_->rope.rope.rotary_dim / 2;
  if (num_pairs_ > 0 && transform_->cos == nullptr)
    max_tokens_ = std::min(kTileKeys, RowBuffers::kSize / 2 / num_pairs_);
}

void RowFeed::Prepare(int64_t token, int64_t count) noexcept {
  if (num_pairs_ == 0) return;
  if (transform_->cos != nullptr) {
    prepared_ = 0;
    cos_ = transform_->cos;
    sin_ = transform_->sin;
    return;
  }
  HEADLANE_DCHECK(count <= max_tokens_);
  prepared_ = token;
  float* const cos = buffers_.angles.data();
  float* const sin = cos + count * num_pairs_;
  cos_ = cos;
  sin_ = sin;
  const RopeSpec& rope = transform_->rope.rope;
  const Status made = transform_->positions != nullptr
                          ? RopeAngles(rope, transform_->positions + token, count, cos, sin)
                          : RopeAnglesFrom(rope, first_position_ + token, count, cos, sin);
  HEADLANE_DCHECK(made.ok());
  (void)made;
}

PackTileArgs RowFeed::AsTheyLie(int64_t token, int64_t head, int64_t count) const noexcept {
  PackTileArgs pack{};
  pack.rows = data_ + (token * view_.token_stride + head * view_.head_stride) * DTypeBytes(view_.dtype);
  pack.rows_dtype = view_.dtype;
  pack.row_stride = view_.token_stride;
  pack.dim_stride = view_.dim_stride;
  pack.dim = view_.dim;
  pack.num_keys = count;
  return pack;
}

PackTileArgs RowFeed::Make(int64_t token, int64_t head, int64_t count) noexcept {
  const int64_t dim = view_.dim;
  PackTileArgs pack = AsTheyLie(token, head, count);
  pack.row_stride = dim;
  pack.dim_stride = 1;
  const std::byte* row = static_cast<const std::byte*>(pack.rows);
  const int64_t row_bytes = view_.token_stride * DTypeBytes(view_.dtype);
  const KernelTable& kernels = ActiveKernels();
  if (transform_ == nullptr) {
    for (int64_t r = 0; r < count; ++r, row += row_bytes) {
      kernels.elementwise.scale(row, view_.dtype, view_.dim_stride, 1.0f, dim, buffers_.wide.data() + r * dim);
      kernels.hadamard(buffers_.wide.data() + r * dim, dim);
    }
    pack.rows = buffers_.wide.data();
    pack.rows_dtype = DType::kF32;
    return pack;
  }

  const auto copy = DTypeBytes(view_.dtype) == 4 ? &CopyRow<4> : &CopyRow<2>;
  for (int64_t r = 0; r < count; ++r, row += row_bytes) {
    copy(row, view_.dim_stride, dim, buffers_.raw.data() + r * dim * DTypeBytes(view_.dtype));
  }
  TensorView rows{buffers_.raw.data(), view_.dtype, 1, count, 1, dim, count * dim, dim, dim, 1};
  if (transform_->norm) {
    const Status normed = RmsNormHeads(transform_->norm_weight, transform_->norm_epsilon, rows);
    HEADLANE_DCHECK(normed.ok());
    (void)normed;
  }
  if (num_pairs_ > 0) {
    TensorView turned = rows;
    turned.data = buffers_.raw.data() + transform_->rope.first_feature * DTypeBytes(view_.dtype);
    turned.dim = dim - transform_->rope.first_feature;
    const int64_t first = (token - prepared_) * num_pairs_;
    const Status applied = ApplyRope(transform_->rope.rope, cos_ + first, sin_ + first, turned);
    HEADLANE_DCHECK(applied.ok());
    (void)applied;
  }
  pack.rows = buffers_.raw.data();
  if (!rotate_) return pack;
  for (int64_t r = 0; r < count; ++r) {
    float* const wide = buffers_.wide.data() + r * dim;
    kernels.elementwise.scale(buffers_.raw.data() + r * dim * DTypeBytes(view_.dtype), view_.dtype, 1, 1.0f, dim, wide);
    kernels.hadamard(wide, dim);
  }
  pack.rows = buffers_.wide.data();
  pack.rows_dtype = DType::kF32;
  return pack;
}

}  // namespace headlane::internal
