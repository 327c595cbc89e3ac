#include "linear/with_output.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/checked_math.h"
#include "exec/parallel_for.h"
#include "kernels/kernel_api.h"

namespace headlane::internal {
namespace {

class WithOutput final : public LinearImpl {
 public:
  WithOutput(const LinearSpec& spec, const WeightLayout& layout, std::unique_ptr<LinearImpl> product) noexcept
      : LinearImpl(product->backend(), layout.out_features, spec.in_features),
        kernels_(ActiveKernels()),
        output_(spec.output),
        product_(std::move(product)) {}

  Status Init(const LinearSpec& spec) noexcept;
  Status Run(const LinearOperands& operands, Executor& executor) const noexcept override;
  size_t weight_bytes() const noexcept override { return product_->weight_bytes(); }
  const char* implementation() const noexcept override { return product_->implementation(); }

 private:
  const KernelTable& kernels_;
  LinearOutput output_;
  std::unique_ptr<LinearImpl> product_;
  AlignedBuffer bias_;  // of all parts, 0 where there is none
  bool has_bias_ = false;
};

Status WithOutput::Init(const LinearSpec& spec) noexcept {
  for (const LinearPart& part : spec.parts) has_bias_ = has_bias_ || part.bias != nullptr;
  if (!has_bias_) return OkStatus();
  HEADLANE_ASSIGN_OR_RETURN(
      bias_, AlignedBuffer::Create(product_->out_features() * int64_t{sizeof(float)}, "biases of a linear layer"));
  float* bias = bias_.as<float>();
  for (const LinearPart& part : spec.parts) {
    if (part.bias != nullptr) std::copy_n(part.bias, part.out_features, bias);
    bias += part.out_features;
  }
  return OkStatus();
}

Status WithOutput::Run(const LinearOperands& operands, Executor& executor) const noexcept {
  const int64_t width = product_->out_features();
  int64_t bytes = 0;
  if (!CheckedProduct({operands.rows, width, int64_t{sizeof(float)}}, &bytes)) {
    return MakeStatus(StatusCode::kResourceExhausted, "linear: the sums of %lld rows exceed memory",
                      static_cast<long long>(operands.rows));
  }
  HEADLANE_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Create(bytes, "the sums of a linear layer"));
  float* const sums = buffer.as<float>();
  HEADLANE_RETURN_IF_ERROR(product_->Run({operands.x, operands.x_stride, operands.rows, sums, width}, executor));
  ParallelFor(executor, operands.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const s = sums + row * width;
      float* const y = operands.y + row * operands.y_stride;
      if (has_bias_) kernels_.elementwise.add(bias_.as<float>(), width, s);
      switch (output_) {
        case LinearOutput::kStore:
          std::memcpy(y, s, static_cast<size_t>(width) * sizeof(float));
          break;
        case LinearOutput::kAdd:
          kernels_.elementwise.add(s, width, y);
          break;
        case LinearOutput::kSwiGlu:
          kernels_.elementwise.silu_mul(s, s + width / 2, width / 2, y);
          break;
      }
    }
  });
  return OkStatus();
}

}  // namespace

Status AddOutput(const LinearSpec& spec, const WeightLayout& layout, std::unique_ptr<LinearImpl>* impl) noexcept {
  bool is_needed = spec.output != LinearOutput::kStore;
  for (const LinearPart& part : spec.parts) is_needed = is_needed || part.bias != nullptr;
  if (!is_needed) return OkStatus();
  std::unique_ptr<WithOutput> layer(new (std::nothrow) WithOutput(spec, layout, std::move(*impl)));
  if (layer == nullptr) return MakeStatus(StatusCode::kResourceExhausted, "linear: no memory for a layer");
  HEADLANE_RETURN_IF_ERROR(layer->Init(spec));
  *impl = std::move(layer);
  return OkStatus();
}

}  // namespace headlane::internal
