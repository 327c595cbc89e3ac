// Keys and values stored as int8: scores, weighted sums, packing of tiles, widening.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_int8.cc"
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

KvKernels KvInt8Table() {
  return {&ScaledQk<Int8Tile>,     &ScaledPv<Int8Tile>,     &PackScaledK<Int8Codec>,     &PackScaledV<Int8Codec>,
          &WidenScaledK<Int8Tile>, &WidenScaledV<Int8Tile>, hwy::TargetName(HWY_TARGET), &ScaledBlockOfRows<Int8Tile>};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(KvInt8Table);
KvKernels KvInt8(int64_t target) { return HEADLANE_CALL_FOR_TARGET(KvInt8Table, target); }
}  // namespace headlane::internal
#endif
