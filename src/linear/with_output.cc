#include "linear/with_output.h"

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "base/checked_math.h"
#include "exec/parallel_for.h"
#include "kernels/kernel_api.h"
#include "linear/run_scratch.h"

namespace headlane::internal {
namespace {

class SwiGluLinear final : public LinearImpl {
 public:
  explicit SwiGluLinear(std::unique_ptr<LinearImpl> product) noexcept
      : LinearImpl(product->backend(), product->out_features() / 2, product->in_features()),
        kernels_(ActiveKernels()),
        product_(std::move(product)) {}

  Status Run(const LinearOperands& operands, Executor& executor) const noexcept override;
  int64_t ScratchBytes(int64_t rows) const noexcept override {
    return SaturatingSum(SumBytes(rows), product_->ScratchBytes(rows));
  }
  size_t weight_bytes() const noexcept override { return product_->weight_bytes(); }
  const char* implementation() const noexcept override { return product_->implementation(); }

 private:
  int64_t SumBytes(int64_t rows) const noexcept {
    return ScratchArrayBytes(rows, product_->out_features(), int64_t{sizeof(float)});
  }

  const KernelTable& kernels_;
  std::unique_ptr<LinearImpl> product_;
};

Status SwiGluLinear::Run(const LinearOperands& operands, Executor& executor) const noexcept {
  const int64_t width = product_->out_features();
  RunScratch scratch;
  HEADLANE_RETURN_IF_ERROR(scratch.Take(operands.scratch, ScratchBytes(operands.rows)));
  const size_t sum_bytes = static_cast<size_t>(SumBytes(operands.rows));
  float* const sums = reinterpret_cast<float*>(scratch.bytes().data());
  HEADLANE_RETURN_IF_ERROR(product_->Run(
      {operands.x, operands.x_stride, operands.rows, sums, width, scratch.bytes().subspan(sum_bytes)}, executor));
  ParallelFor(executor, operands.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const gates = sums + row * width;
      kernels_.elementwise.silu_mul(gates, gates + width / 2, width / 2, operands.y + row * operands.y_stride);
    }
  });
  return OkStatus();
}

}  // namespace

Status AddSwiGlu(std::unique_ptr<LinearImpl>* impl) noexcept {
  std::unique_ptr<LinearImpl> layer(new (std::nothrow) SwiGluLinear(std::move(*impl)));
  if (layer == nullptr) return MakeStatus(StatusCode::kResourceExhausted, "linear: no memory for a layer");
  *impl = std::move(layer);
  return OkStatus();
}

}  // namespace headlane::internal
