// SwiGLU for a backend that only multiplies.
//
// Separate from the backends: oneDNN's has both parts side by side in one matrix, and this makes of its sums what the
// tile backend makes of its own.
#ifndef HEADLANE_SRC_LINEAR_WITH_OUTPUT_H_
#define HEADLANE_SRC_LINEAR_WITH_OUTPUT_H_

#include <memory>

#include "headlane/linear.h"
#include "headlane/status.h"
#include "linear/linear_impl.h"

namespace headlane::internal {

// Replaces *impl, whose features are those of gates and ups, by a layer that gives silu(gate) * up. Errors:
// ResourceExhausted.
Status AddSwiGlu(std::unique_ptr<LinearImpl>* impl) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_WITH_OUTPUT_H_
