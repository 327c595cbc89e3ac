// Linear layers on f32 weights in tiles: the micro-kernel of the scores; and how large its register blocks are.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/linear_tiles-inl.h"
#include "kernels/micro_kernel-inl.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

void LinearF32Block(const LinearArgs& args) noexcept { MultiplyTiles<F32Tile>(args, args.w, args.w_tile_stride); }

RegisterBlock BlockOfRows(int64_t rows) noexcept {
  const int64_t group = RowGroups(rows, kMaxRows).size(0);
  const int cols = MaxCols(static_cast<int>(group));
  return {group, cols, kTileKeys / VectorsPerTile(), RegistersOfBlock(static_cast<int>(group), cols), kNumRegisters};
}

LinearKernels LinearTable() {
  return {&LinearF32Block,
          {&TilesTimesRows<F32Tile>, nullptr},
          &BlockOfRows,
          static_cast<int>(hn::Lanes(hn::ScalableTag<uint8_t>())),
          hwy::TargetName(HWY_TARGET)};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(LinearTable);
LinearKernels Linear(int64_t target) { return HEADLANE_CALL_FOR_TARGET(LinearTable, target); }
}  // namespace headlane::internal
#endif
