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

namespace headlane::internal {

// Arguments as Linear::Create, checked. Errors: ResourceExhausted, Internal (oneDNN failed), Unsupported (it has
// nothing but its slow reference implementation), and what rows.read returns.
Status CreateOneDnnLinear(int64_t out_features, int64_t in_features, const WeightRows& rows, Executor& executor,
                          std::unique_ptr<LinearImpl>* impl) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_ONEDNN_LINEAR_H_
