// Biases and outputs for a backend that only multiplies.
//
// Separate from the backends: oneDNN's has all parts side by side in one matrix, and this makes of its sums what the
// tile backend makes of its own.
#ifndef HEADLANE_SRC_LINEAR_WITH_OUTPUT_H_
#define HEADLANE_SRC_LINEAR_WITH_OUTPUT_H_

#include <memory>

#include "headlane/linear.h"
#include "headlane/status.h"
#include "linear/linear_impl.h"
#include "linear/weight_layout.h"

namespace headlane::internal {

// Replaces *impl, whose features are those of all parts, where the checked spec has biases or another output than
// kStore. Its runs allocate. Errors: ResourceExhausted.
Status AddOutput(const LinearSpec& spec, const WeightLayout& layout, std::unique_ptr<LinearImpl>* impl) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_WITH_OUTPUT_H_
