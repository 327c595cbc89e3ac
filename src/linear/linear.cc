// The public face of the linear layers: checks arguments and hands over to a backend.
#include "headlane/linear.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "base/checked_math.h"
#include "base/fp_environment.h"
#include "base/weight_tile.h"
#include "linear/linear_impl.h"
#include "linear/onednn_linear.h"
#include "linear/tile_linear.h"
#include "linear/weight_layout.h"
#include "linear/with_output.h"

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

Status CheckOperands(const internal::LinearImpl* impl, const LinearOperands& operands) {
  if (impl == nullptr) return MakeStatus(StatusCode::kFailedPrecondition, "linear: the layer was moved away");
  if (operands.rows < 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "linear: %" PRId64 " rows, fewer than 0", operands.rows);
  }
  if (operands.rows == 0) return OkStatus();
  HEADLANE_RETURN_IF_ERROR(CheckRows("x", operands.x, operands.rows, operands.x_stride, impl->in_features()));
  HEADLANE_RETURN_IF_ERROR(CheckRows("y", operands.y, operands.rows, operands.y_stride, impl->out_features()));
  if (operands.scratch.empty()) return OkStatus();
  const int64_t needed = impl->ScratchBytes(operands.rows);
  if (operands.scratch.size() < static_cast<uint64_t>(needed) ||
      reinterpret_cast<uintptr_t>(operands.scratch.data()) % 64 != 0) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "linear: scratch of %zu bytes at %p; %" PRId64 " rows need %" PRId64 " at a multiple of 64",
                      operands.scratch.size(), static_cast<const void*>(operands.scratch.data()), operands.rows,
                      needed);
  }
  return OkStatus();
}

Status CheckItems(const internal::LinearImpl& impl) {
  if (impl.backend() == LinearBackend::kTile) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported, "linear: backend '%s' has neither items nor weights to read",
                    LinearBackendName(impl.backend()));
}

bool IsBackend(LinearBackend backend) {
  return backend == LinearBackend::kTile || backend == LinearBackend::kOneDnn || backend == LinearBackend::kOneDnnBf16;
}

Status NoSuchBackend(LinearBackend backend) {
  return MakeStatus(StatusCode::kInvalidArgument, "linear: backend %d is none of 0 .. 2", static_cast<int>(backend));
}

// A layer of oneDNN's, of a checked spec and the rows of all parts one behind the other.
Status CreateOther([[maybe_unused]] const LinearSpec& spec, [[maybe_unused]] const internal::WeightLayout& layout,
                   [[maybe_unused]] const WeightRows& rows, [[maybe_unused]] Executor& executor,
                   [[maybe_unused]] std::unique_ptr<internal::LinearImpl>* impl) {
#if HEADLANE_WITH_ONEDNN
  HEADLANE_RETURN_IF_ERROR(internal::CreateOneDnnLinear(spec, layout, rows, executor, impl));
  if (spec.output == LinearOutput::kSwiGlu) return internal::AddSwiGlu(impl);
  return OkStatus();
#else
  return MakeStatus(StatusCode::kUnsupported, "linear: backend '%s' is not in this build; 'tile' is",
                    LinearBackendName(spec.backend));
#endif
}

// Tiles know what the weights are.
WeightRows RowsOfTiles(const internal::LinearImpl& tiles) {
  return {&tiles, [](const void* context, int64_t row, float* out) noexcept {
            internal::InDefaultFpEnvironment(
                [&] { static_cast<const internal::LinearImpl*>(context)->ReadWeights(row, out); });
            return OkStatus();
          }};
}

}  // namespace

const char* LinearBackendName(LinearBackend backend) noexcept {
  switch (backend) {
    case LinearBackend::kTile:
      return "tile";
    case LinearBackend::kOneDnn:
      return "onednn";
    case LinearBackend::kOneDnnBf16:
      return "onednn-bf16";
  }
  return "?";
}

const char* LinearPrecisionName(LinearPrecision precision) noexcept {
  switch (precision) {
    case LinearPrecision::kExact:
      return "exact";
    case LinearPrecision::kInt8:
      return "int8";
  }
  return "?";
}

bool HasLinearBackend(LinearBackend backend) noexcept {
  switch (backend) {
    case LinearBackend::kTile:
      return true;
    case LinearBackend::kOneDnn:
    case LinearBackend::kOneDnnBf16:
      return HEADLANE_WITH_ONEDNN != 0;
  }
  return false;
}

Linear::Linear(std::unique_ptr<internal::LinearImpl> impl) noexcept : impl_(std::move(impl)) {}
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;
Linear::~Linear() = default;

Result<Linear> Linear::Create(const LinearSpec& spec, Executor& executor) noexcept {
  if (!IsBackend(spec.backend)) return NoSuchBackend(spec.backend);
  internal::WeightLayout layout;
  HEADLANE_RETURN_IF_ERROR(internal::CheckLinearSpec(spec, /*with_rows=*/true, &layout));
  std::unique_ptr<internal::LinearImpl> impl;
  if (spec.backend == LinearBackend::kTile) {
    HEADLANE_RETURN_IF_ERROR(internal::CreateTileLinear(spec, layout, executor, &impl));
    return Linear(std::move(impl));
  }
  if (!HasLinearBackend(spec.backend)) return CreateOther(spec, layout, {}, executor, &impl);
  std::unique_ptr<internal::LinearImpl> tiles;
  HEADLANE_RETURN_IF_ERROR(internal::CreateTileLinear(spec, layout, executor, &tiles));
  HEADLANE_RETURN_IF_ERROR(CreateOther(spec, layout, RowsOfTiles(*tiles), executor, &impl));
  return Linear(std::move(impl));
}

Result<Linear> Linear::CreateFromTiles(const LinearSpec& spec, const Linear& tiles, Executor& executor) noexcept {
  if (!IsBackend(spec.backend)) return NoSuchBackend(spec.backend);
  internal::WeightLayout layout;
  HEADLANE_RETURN_IF_ERROR(internal::CheckLinearSpec(spec, /*with_rows=*/false, &layout));
  if (spec.backend == LinearBackend::kTile || tiles.impl_ == nullptr || tiles.backend() != LinearBackend::kTile) {
    return MakeStatus(StatusCode::kInvalidArgument, "linear: from tiles to another backend, not from '%s' to '%s'",
                      tiles.impl_ == nullptr ? "nothing" : LinearBackendName(tiles.backend()),
                      LinearBackendName(spec.backend));
  }
  if (tiles.in_features() != spec.in_features || tiles.impl_->num_weight_rows() != layout.weight_rows) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "linear: the tiles have weights of [%" PRId64 ", %" PRId64 "], and the layer [%" PRId64
                      ", %" PRId64 "]",
                      tiles.impl_->num_weight_rows(), tiles.in_features(), layout.weight_rows, spec.in_features);
  }
  std::unique_ptr<internal::LinearImpl> impl;
  HEADLANE_RETURN_IF_ERROR(CreateOther(spec, layout, RowsOfTiles(*tiles.impl_), executor, &impl));
  return Linear(std::move(impl));
}

Result<Linear> Linear::Create(LinearBackend backend, int64_t out_features, int64_t in_features, const WeightRows& rows,
                              Executor& executor) noexcept {
  if (rows.read == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "linear: nothing to read the weights with: rows.read is null");
  }
  LinearPart part;
  part.out_features = out_features;
  part.rows.context = &rows;
  part.rows.read = [](const void* context, int64_t row, void* out) noexcept {
    const WeightRows& from = *static_cast<const WeightRows*>(context);
    return from.read(from.context, row, static_cast<float*>(out));
  };
  LinearSpec spec;
  spec.backend = backend;
  spec.in_features = in_features;
  spec.parts = {&part, 1};
  if (backend != LinearBackend::kTile && HasLinearBackend(backend)) {
    internal::WeightLayout layout;
    HEADLANE_RETURN_IF_ERROR(internal::CheckLinearSpec(spec, /*with_rows=*/true, &layout));
    std::unique_ptr<internal::LinearImpl> impl;
    HEADLANE_RETURN_IF_ERROR(CreateOther(spec, layout, rows, executor, &impl));
    return Linear(std::move(impl));
  }
  return Create(spec, executor);
}

Result<Linear> Linear::CreateFromPacked(const LinearSpec& spec, std::span<const std::byte> packed) noexcept {
  if (!IsBackend(spec.backend)) return NoSuchBackend(spec.backend);
  if (spec.backend != LinearBackend::kTile) {
    return MakeStatus(StatusCode::kUnsupported, "linear: packed weights are for backend 'tile', not '%s'",
                      LinearBackendName(spec.backend));
  }
  internal::WeightLayout layout;
  HEADLANE_RETURN_IF_ERROR(internal::CheckLinearSpec(spec, /*with_rows=*/false, &layout));
  if (packed.data() == nullptr || packed.size() != static_cast<uint64_t>(layout.packed_bytes)) {
    return MakeStatus(StatusCode::kInvalidArgument, "linear: %zu packed bytes; these weights have %" PRId64,
                      packed.size(), layout.packed_bytes);
  }
  if (reinterpret_cast<uintptr_t>(packed.data()) % internal::kWeightTileAlignment != 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "linear: packed bytes at %p, which is no multiple of %d",
                      static_cast<const void*>(packed.data()), static_cast<int>(internal::kWeightTileAlignment));
  }
  std::unique_ptr<internal::LinearImpl> impl;
  HEADLANE_RETURN_IF_ERROR(internal::CreatePackedTileLinear(spec, layout, packed, &impl));
  return Linear(std::move(impl));
}

Result<int64_t> Linear::PackedBytes(const LinearSpec& spec) noexcept {
  internal::WeightLayout layout;
  HEADLANE_RETURN_IF_ERROR(internal::CheckLinearSpec(spec, /*with_rows=*/false, &layout));
  return layout.packed_bytes;
}

uint64_t Linear::PackedLayout(const LinearSpec& spec) noexcept { return internal::WeightLayoutNumber(spec); }

Status Linear::Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
                   Executor& executor) const noexcept {
  return Run({x, x_stride, rows, y, y_stride}, executor);
}

Status Linear::Run(const LinearOperands& operands, Executor& executor) const noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckOperands(impl_.get(), operands));
  if (operands.rows == 0) return OkStatus();
  return impl_->Run(operands, executor);
}

int64_t Linear::NumItems(int64_t rows, int num_workers) const noexcept {
  if (impl_ == nullptr || rows <= 0) return 0;
  return impl_->NumItems(rows, std::max(num_workers, 1));
}

Status Linear::RunItems(const LinearOperands& operands, int num_workers, int64_t begin, int64_t end) const noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckOperands(impl_.get(), operands));
  HEADLANE_RETURN_IF_ERROR(CheckItems(*impl_));
  const int64_t num_items = NumItems(operands.rows, num_workers);
  if (begin > end || !internal::RangeFits(begin, end - begin, num_items)) {
    return MakeStatus(StatusCode::kOutOfRange, "linear: items %" PRId64 " to %" PRId64 " of %" PRId64, begin, end,
                      num_items);
  }
  internal::InDefaultFpEnvironment([&] { impl_->RunItems(operands, std::max(num_workers, 1), begin, end); });
  return OkStatus();
}

Status Linear::RunWorker(const LinearOperands& operands, int num_workers, std::atomic<int64_t>& next) const noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckOperands(impl_.get(), operands));
  HEADLANE_RETURN_IF_ERROR(CheckItems(*impl_));
  const int64_t num_items = NumItems(operands.rows, num_workers);
  internal::InDefaultFpEnvironment([&] {
    for (;;) {
      const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= num_items) return;
      impl_->RunItems(operands, std::max(num_workers, 1), item, item + 1);
    }
  });
  return OkStatus();
}

Status Linear::ReadWeights(int64_t feature, float* out) const noexcept {
  if (impl_ == nullptr) return MakeStatus(StatusCode::kFailedPrecondition, "linear: the layer was moved away");
  HEADLANE_RETURN_IF_ERROR(CheckItems(*impl_));
  if (feature < 0 || feature >= impl_->num_weight_rows()) {
    return MakeStatus(StatusCode::kOutOfRange, "linear: feature %" PRId64 " of %" PRId64, feature,
                      impl_->num_weight_rows());
  }
  internal::InDefaultFpEnvironment([&] { impl_->ReadWeights(feature, out); });
  return OkStatus();
}

int64_t Linear::ScratchBytes(int64_t rows) const noexcept {
  return impl_ == nullptr || rows <= 0 ? 0 : impl_->ScratchBytes(rows);
}

int64_t Linear::in_features() const noexcept { return impl_ == nullptr ? 0 : impl_->in_features(); }
int64_t Linear::out_features() const noexcept { return impl_ == nullptr ? 0 : impl_->out_features(); }
LinearPrecision Linear::precision() const noexcept {
  return impl_ == nullptr ? LinearPrecision::kExact : impl_->precision();
}
LinearBackend Linear::backend() const noexcept { return impl_ == nullptr ? LinearBackend::kTile : impl_->backend(); }
size_t Linear::weight_bytes() const noexcept { return impl_ == nullptr ? 0 : impl_->weight_bytes(); }
std::span<const std::byte> Linear::packed() const noexcept {
  return impl_ == nullptr ? std::span<const std::byte>() : impl_->packed();
}
const char* Linear::implementation() const noexcept { return impl_ == nullptr ? "" : impl_->implementation(); }

}  // namespace headlane
