// The other backend of the linear layers: oneDNN's matmul, for comparison and for those who prefer it. In builds with
// oneDNN only.
#ifndef HEADLANE_SRC_LINEAR_ONEDNN_LINEAR_H_
#define HEADLANE_SRC_LINEAR_ONEDNN_LINEAR_H_

#include <cstdint>
#include <memory>

#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/status.h"
#include "linear/linear_impl.h"
#include "linear/weight_layout.h"

namespace headlane::internal {

// Arguments as Linear::Create, checked; `rows` gives those of all parts one behind the other. Biases, and with kAdd the
// sum with y, are oneDNN's; with kSwiGlu the layer gives the products of both parts and leaves the rest to AddSwiGlu.
// Errors: ResourceExhausted, Internal (oneDNN failed), Unsupported (it has nothing but its slow reference
// implementation, or no instructions for bf16), and what rows.read returns.
Status CreateOneDnnLinear(const LinearSpec& spec, const WeightLayout& layout, const WeightRows& rows,
                          Executor& executor, std::unique_ptr<LinearImpl>* impl) noexcept;

// Whether an implementation that oneDNN names so is none of its references.
bool IsFastImplementation(const char* implementation) noexcept;
// Whether it multiplies bf16 by instructions for that, on a processor whose instruction sets oneDNN gives so
// (dnnl::cpu_isa, bits). Others convert to f32 and are f32's speed with bf16's rounding.
bool IsFastBf16(uint32_t cpu_isa, const char* implementation) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_ONEDNN_LINEAR_H_
