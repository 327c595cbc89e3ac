// Keys and values stored as int4: scores, weighted sums, packing of tiles, widening.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_int4.cc"
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

KvKernels KvInt4Table() {
  return {&ScaledQk<Int4Tile>,     &ScaledPv<Int4Tile>,     &PackScaledK<Int4Codec>,     &PackScaledV<Int4Codec>,
          &WidenScaledK<Int4Tile>, &WidenScaledV<Int4Tile>, hwy::TargetName(HWY_TARGET), &ScaledBlockOfRows<Int4Tile>};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(KvInt4Table);
KvKernels KvInt4(int64_t target) { return HEADLANE_CALL_FOR_TARGET(KvInt4Table, target); }
}  // namespace headlane::internal
#endif
