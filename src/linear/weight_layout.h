// A checked LinearSpec: where the weights of each part stand in the packed bytes of a layer.
//
// Separate from the backends, of which one stores such bytes and the other is fed from them. Called by linear.cc and
// tile_linear.cc.
#ifndef HEADLANE_SRC_LINEAR_WEIGHT_LAYOUT_H_
#define HEADLANE_SRC_LINEAR_WEIGHT_LAYOUT_H_

#include <cstdint>

#include "headlane/linear.h"
#include "headlane/status.h"

namespace headlane::internal {

struct WeightLayout {
  int64_t packed_bytes = 0;
  int64_t weight_rows = 0;   // features of all parts
  int64_t out_features = 0;  // of y
};

// Errors: InvalidArgument, Unsupported (format), as Linear::Create. With `with_rows` the parts' rows are checked too.
Status CheckLinearSpec(const LinearSpec& spec, bool with_rows, WeightLayout* layout) noexcept;

// Requires: a checked spec.
uint64_t WeightLayoutNumber(const LinearSpec& spec) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_WEIGHT_LAYOUT_H_
