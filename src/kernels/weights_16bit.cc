// Weights stored as F16 and BF16: layers of few rows, and expansion.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/weights_16bit.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/linear_tiles-inl.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

template <class Tile>
void ExpandTile(const ExpandArgs& args) noexcept {
  const DF d;
  const int64_t lanes = kTileKeys / VectorsPerTile();
  const auto* line = reinterpret_cast<const typename Tile::T*>(args.tile) + args.k_begin / Tile::kSteps * Tile::kLine;
  float* out = args.out;
  for (int64_t k = args.k_begin; k < args.k_end; k += Tile::kSteps, line += Tile::kLine) {
    for (int64_t lane = 0; lane < kTileKeys; lane += lanes, out += lanes) {
      hn::Store(Tile::template Load<0>(d, line + Tile::Column(lane)), d, out);
    }
    if (k + 1 == args.k_end) break;
    for (int64_t lane = 0; lane < kTileKeys; lane += lanes, out += lanes) {
      hn::Store(Tile::template Load<1>(d, line + Tile::Column(lane)), d, out);
    }
  }
}

template <class Tile>
WeightKernels TileTable() {
  return {&TilesTimesRows<Tile>, &ExpandTile<Tile>};
}

WeightTables Weights16BitTable() { return {TileTable<F16Tile>(), TileTable<BF16Tile>(), hwy::TargetName(HWY_TARGET)}; }

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(Weights16BitTable);
WeightTables Weights16Bit(int64_t target) { return HEADLANE_CALL_FOR_TARGET(Weights16BitTable, target); }
}  // namespace headlane::internal
#endif
