// Weights stored as Q5_0 and Q5_1: layers of few rows, and expansion.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/weights_q5.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/tables.h"
#include "kernels/weight_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

WeightTables WeightsQ5Table() {
  return {WeightTable<SimpleWeights<WeightFormat::kQ5_0>>(), WeightTable<SimpleWeights<WeightFormat::kQ5_1>>(),
          hwy::TargetName(HWY_TARGET)};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(WeightsQ5Table);
WeightTables WeightsQ5(int64_t target) { return HEADLANE_CALL_FOR_TARGET(WeightsQ5Table, target); }
}  // namespace headlane::internal
#endif
