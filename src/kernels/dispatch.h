// Picks one target's entry of a Highway dispatch table, without touching Highway's own choice, which other code in the
// process may be using. For the translation units of src/kernels only, after highway.h.
#ifndef HEADLANE_SRC_KERNELS_DISPATCH_H_
#define HEADLANE_SRC_KERNELS_DISPATCH_H_

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace headlane::internal {

// Where the code for `target` stands in tables made by HWY_EXPORT. A target that this file leaves out shares AVX3's
// (kernels/targets.h).
inline size_t TableIndex(int64_t target) {
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
  (void)target;
  return 0;  // The table has one entry.
#else
  hwy::ChosenTarget chosen;
  chosen.Update((HWY_TARGETS & target) != 0 ? target : HWY_AVX3);
  return chosen.GetIndex();
#endif
}

}  // namespace headlane::internal

// Calls the exported function of that target.
#define HEADLANE_CALL_FOR_TARGET(function, target) \
  HWY_DISPATCH_TABLE(function)[::headlane::internal::TableIndex(target)]()

#endif  // HEADLANE_SRC_KERNELS_DISPATCH_H_
