// Weights stored as Q6_K: layers of few rows, and expansion.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/weights_q6_k.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/tables.h"
#include "kernels/weight_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

WeightTables WeightsQ6KTable() { return {WeightTable<Q6KWeights>(), {}, hwy::TargetName(HWY_TARGET)}; }

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(WeightsQ6KTable);
WeightTables WeightsQ6K(int64_t target) { return HEADLANE_CALL_FOR_TARGET(WeightsQ6KTable, target); }
}  // namespace headlane::internal
#endif
