// Picks one target's entry of a Highway dispatch table, without touching Highway's own choice, which other code in the
// process may be using. For the translation units of src/kernels only, after highway.h.
#ifndef HEADLANE_SRC_KERNELS_DISPATCH_H_
#define HEADLANE_SRC_KERNELS_DISPATCH_H_

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace headlane::internal {

// Whose code a target runs in files that leave it out (kernels/targets.h).
inline int64_t SharedTarget(int64_t target) {
  switch (target) {
    case HWY_AVX3_ZEN4:
    case HWY_AVX3_SPR:
      return HWY_AVX3;
    case HWY_NEON_BF16:
      return HWY_NEON;
    case HWY_SVE2:
      return HWY_SVE;
    default:
      return target;
  }
}

// Where the code for `target` stands in tables made by HWY_EXPORT.
inline size_t TableIndex(int64_t target) {
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
  (void)target;
  return 0;  // The table has one entry.
#else
  hwy::ChosenTarget chosen;
  chosen.Update((HWY_TARGETS & target) != 0 ? target : SharedTarget(target));
  return chosen.GetIndex();
#endif
}

}  // namespace headlane::internal

// Calls the exported function of that target.
#define HEADLANE_CALL_FOR_TARGET(function, target) \
  HWY_DISPATCH_TABLE(function)[::headlane::internal::TableIndex(target)]()

#endif  // HEADLANE_SRC_KERNELS_DISPATCH_H_
