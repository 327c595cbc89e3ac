// Keys and values stored as f16: scores, weighted sums, packing of tiles, widening.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_f16.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/kv_kernels-inl.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

KvKernels KvF16Table() {
  return {&Qk<F16Tile>,
          &Pv<F16Tile>,
          &PackK<F16Tile>,
          &PackV<F16Tile>,
          &WidenK<F16Tile>,
          &WidenV<F16Tile>,
          hwy::TargetName(HWY_TARGET)};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(KvF16Table);
KvKernels KvF16(int64_t target) { return HEADLANE_CALL_FOR_TARGET(KvF16Table, target); }
}  // namespace headlane::internal
#endif
