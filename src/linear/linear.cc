// The public face of the linear layers: checks arguments and hands over to a backend.
#include "headlane/linear.h"

#include <cinttypes>
#include <utility>

#include "base/checked_math.h"
#include "linear/linear_impl.h"
#include "linear/onednn_linear.h"
#include "linear/tile_linear.h"

namespace headlane {
namespace {

Status CheckRows(const char* name, const float* data, int64_t rows, int64_t stride, int64_t features) {
  if (data == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "linear: %s is null for %" PRId64 " rows", name, rows);
  }
  if (stride < features) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "linear: %s_stride is %" PRId64 ", shorter than a row of %" PRId64 " features", name, stride,
                      features);
  }
  int64_t extent = 0;
  if (!internal::CheckedProduct({rows, stride, int64_t{sizeof(float)}}, &extent)) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "linear: %" PRId64 " rows of %s at a stride of %" PRId64 " exceed memory", rows, name, stride);
  }
  return OkStatus();
}

}  // namespace

const char* LinearBackendName(LinearBackend backend) noexcept {
  switch (backend) {
    case LinearBackend::kTile:
      return "tile";
    case LinearBackend::kOneDnn:
      return "onednn";
  }
  return "?";
}

bool HasLinearBackend(LinearBackend backend) noexcept {
  switch (backend) {
    case LinearBackend::kTile:
      return true;
    case LinearBackend::kOneDnn:
      return HEADLANE_WITH_ONEDNN != 0;
  }
  return false;
}

Linear::Linear(std::unique_ptr<internal::LinearImpl> impl) noexcept : impl_(std::move(impl)) {}
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;
Linear::~Linear() = default;

Result<Linear> Linear::Create(LinearBackend backend, int64_t out_features, int64_t in_features, const WeightRows& rows,
                              Executor& executor) noexcept {
  if (out_features <= 0 || in_features <= 0) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "linear: weights of [%" PRId64 ", %" PRId64 "], both must be above 0", out_features, in_features);
  }
  if (rows.read == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "linear: nothing to read the weights with: rows.read is null");
  }
  std::unique_ptr<internal::LinearImpl> impl;
  switch (backend) {
    case LinearBackend::kTile:
      HEADLANE_RETURN_IF_ERROR(internal::CreateTileLinear(out_features, in_features, rows, executor, &impl));
      break;
    case LinearBackend::kOneDnn:
#if HEADLANE_WITH_ONEDNN
      HEADLANE_RETURN_IF_ERROR(internal::CreateOneDnnLinear(out_features, in_features, rows, executor, &impl));
      break;
#else
      return MakeStatus(StatusCode::kUnsupported, "linear: backend 'onednn' is not in this build; 'tile' is");
#endif
    default:
      return MakeStatus(StatusCode::kInvalidArgument, "linear: backend %d is none of 0 .. 1",
                        static_cast<int>(backend));
  }
  return Linear(std::move(impl));
}

Status Linear::Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
                   Executor& executor) const noexcept {
  if (impl_ == nullptr) return MakeStatus(StatusCode::kFailedPrecondition, "linear: the layer was moved away");
  if (rows < 0) return MakeStatus(StatusCode::kInvalidArgument, "linear: %" PRId64 " rows, fewer than 0", rows);
  if (rows == 0) return OkStatus();
  HEADLANE_RETURN_IF_ERROR(CheckRows("x", x, rows, x_stride, impl_->in_features()));
  HEADLANE_RETURN_IF_ERROR(CheckRows("y", y, rows, y_stride, impl_->out_features()));
  return impl_->Run(x, x_stride, rows, y, y_stride, executor);
}

int64_t Linear::in_features() const noexcept { return impl_ == nullptr ? 0 : impl_->in_features(); }
int64_t Linear::out_features() const noexcept { return impl_ == nullptr ? 0 : impl_->out_features(); }
LinearBackend Linear::backend() const noexcept { return impl_ == nullptr ? LinearBackend::kTile : impl_->backend(); }
size_t Linear::weight_bytes() const noexcept { return impl_ == nullptr ? 0 : impl_->weight_bytes(); }
const char* Linear::implementation() const noexcept { return impl_ == nullptr ? "" : impl_->implementation(); }

}  // namespace headlane
