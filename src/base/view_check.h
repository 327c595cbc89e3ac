// Checks of tensor views that callers hand in, before anything is read or written through them.
//
// Separate from the operators because all of them need the same ones. Called at the border of the library: cache writes
// and reads, operators.
#ifndef HEADLANE_SRC_BASE_VIEW_CHECK_H_
#define HEADLANE_SRC_BASE_VIEW_CHECK_H_

#include "headlane/status.h"
#include "headlane/view.h"

namespace headlane::internal {

// The view can be addressed: known dtype, no negative extent, and, unless an extent is 0, data that is neither null nor
// misaligned and strides whose farthest element still has an address. `what` names the tensor in the error. Errors:
// InvalidArgument. That the memory exists remains the caller's word.
Status CheckView(const char* what, const ConstTensorView& view) noexcept;

// The same, and no two elements share an address: sorted by stride, each dimension steps over everything below it.
// (Layouts that interleave dimensions without overlap are refused too; nobody has them.)
Status CheckView(const char* what, const TensorView& view) noexcept;

// Known format, no negative extent, and, unless an extent is 0, strides whose farthest byte still has an address.
// Requires: data is not null.
Status CheckView(const char* what, const BoolMaskView& view) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_VIEW_CHECK_H_
