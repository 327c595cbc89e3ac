// Weights of all block-quantised formats with activations of 8 bits: one row, and panels for more.
//
// Separate from weights_int8_rows.cc, in which formats are no longer told apart.
#define HEADLANE_EVERY_TARGET
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/weights_int8.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/tables.h"
#include "kernels/weight_int8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

template <WeightFormat kFormat>
Int8Kernels Simple() {
  return Int8TableOf<kFormat, SimpleWeights<kFormat>>();
}

Int8Table WeightsInt8Table() {
  return {{{},
           {},
           {},
           Simple<WeightFormat::kQ8_0>(),
           Simple<WeightFormat::kQ4_0>(),
           Simple<WeightFormat::kQ4_1>(),
           Simple<WeightFormat::kQ5_0>(),
           Simple<WeightFormat::kQ5_1>(),
           Int8TableOf<WeightFormat::kQ4_K, ScaledGroups<WeightFormat::kQ4_K>>(),
           Int8TableOf<WeightFormat::kQ5_K, ScaledGroups<WeightFormat::kQ5_K>>(),
           Int8TableOf<WeightFormat::kQ6_K, Q6KWeights>()},
          hwy::TargetName(HWY_TARGET)};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(WeightsInt8Table);
Int8Table WeightsInt8(int64_t target) { return HEADLANE_CALL_FOR_TARGET(WeightsInt8Table, target); }
}  // namespace headlane::internal
#endif
