// Weights stored as Q4_K and Q5_K: layers of few rows, and expansion.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/weights_q45_k.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/tables.h"
#include "kernels/weight_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

WeightTables WeightsQ45KTable() {
  return {WeightTable<ScaledGroups<WeightFormat::kQ4_K>>(), WeightTable<ScaledGroups<WeightFormat::kQ5_K>>(),
          hwy::TargetName(HWY_TARGET)};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(WeightsQ45KTable);
WeightTables WeightsQ45K(int64_t target) { return HEADLANE_CALL_FOR_TARGET(WeightsQ45KTable, target); }
}  // namespace headlane::internal
#endif
