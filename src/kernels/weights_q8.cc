// Weights stored as Q8_0: layers of few rows, and expansion.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/weights_q8.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/tables.h"
#include "kernels/weight_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

WeightTables WeightsQ8Table() {
  return {WeightTable<SimpleWeights<WeightFormat::kQ8_0>>(), {}, hwy::TargetName(HWY_TARGET)};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(WeightsQ8Table);
WeightTables WeightsQ8(int64_t target) { return HEADLANE_CALL_FOR_TARGET(WeightsQ8Table, target); }
}  // namespace headlane::internal
#endif
