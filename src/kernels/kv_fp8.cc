// Keys and values stored as fp8: scores, weighted sums, packing of tiles, widening.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_fp8.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/scaled_kernels-inl.h"
#include "kernels/scaled_widen-inl.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

KvKernels KvFp8Table() {
  return {&ScaledQk<F8Tile>,     &ScaledPv<F8Tile>,     &PackScaledK<F8Codec>,       &PackScaledV<F8Codec>,
          &WidenScaledK<F8Tile>, &WidenScaledV<F8Tile>, hwy::TargetName(HWY_TARGET), &ScaledBlockOfRows<F8Tile>};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(KvFp8Table);
KvKernels KvFp8(int64_t target) { return HEADLANE_CALL_FOR_TARGET(KvFp8Table, target); }
}  // namespace headlane::internal
#endif
