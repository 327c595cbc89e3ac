// Keys and values stored as bf16: scores, weighted sums, packing of tiles, widening.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_bf16.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/kv_kernels-inl.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

KvKernels KvBF16Table() {
  return {&Qk<BF16Tile>,     &Pv<BF16Tile>,     &PackK<BF16Tile>,           &PackV<BF16Tile>,
          &WidenK<BF16Tile>, &WidenV<BF16Tile>, hwy::TargetName(HWY_TARGET)};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(KvBF16Table);
KvKernels KvBF16(int64_t target) { return HEADLANE_CALL_FOR_TARGET(KvBF16Table, target); }
}  // namespace headlane::internal
#endif
