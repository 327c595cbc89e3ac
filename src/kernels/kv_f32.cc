// Keys and values stored as f32: scores, weighted sums, packing of tiles, values from keys.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/kv_kernels-inl.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

KvKernels KvF32Table() {
  return {&Qk<F32Tile>, &Pv<F32Tile>, &PackK<F32Tile>, &PackV<F32Tile>, nullptr, nullptr, hwy::TargetName(HWY_TARGET)};
}

KToVTileFn KToVTileTable() { return &KToVTile; }

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(KvF32Table);
KvKernels KvF32(int64_t target) { return HEADLANE_CALL_FOR_TARGET(KvF32Table, target); }
HWY_EXPORT(KToVTileTable);
KToVTileFn KToVTile(int64_t target) { return HEADLANE_CALL_FOR_TARGET(KToVTileTable, target); }
}  // namespace headlane::internal
#endif
