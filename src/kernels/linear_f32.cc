// Linear layers on f32 weights in tiles: the micro-kernel of the scores; and how large its register blocks are.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/micro_kernel-inl.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {

struct LinearIO {
  using Tile = F32Tile;
  static constexpr int64_t kLength = 0;
  static constexpr bool kEvenLength = true;
  const LinearArgs& args;
  int64_t row0, col, per_tile, lanes;

  HWY_INLINE const float* A(int64_t) const { return args.x + row0 * args.x_pitch; }
  HWY_INLINE int64_t APitch() const { return args.x_pitch; }
  HWY_INLINE const float* B(int c, int64_t) const {
    return args.w + (col + c) / per_tile * args.w_tile_stride + (col + c) % per_tile * lanes;
  }
  HWY_INLINE static constexpr int64_t LineStep() { return Tile::kLine; }
  HWY_INLINE static const float* Ahead(const float* line) { return AheadInTiles(line); }
  HWY_INLINE float* Y(int r, int c) const { return args.y + (row0 + r) * args.y_pitch + (col + c) * lanes; }
  // Features of this vector that exist and of those behind it: the last tile may be padded.
  HWY_INLINE int64_t Left(int c) const { return args.num_features - (col + c) * lanes; }
  HWY_INLINE VF Load(DF d, int r, int c) const {
    if (!args.accumulate) return hn::Zero(d);
    if (HWY_LIKELY(Left(c) >= lanes)) return hn::LoadU(d, Y(r, c));
    return hn::LoadN(d, Y(r, c), static_cast<size_t>(std::max<int64_t>(Left(c), 0)));
  }
  HWY_INLINE void Store(DF d, int r, int c, VF v) const {
    if (HWY_LIKELY(Left(c) >= lanes)) return hn::StoreU(v, d, Y(r, c));
    hn::StoreN(v, d, Y(r, c), static_cast<size_t>(std::max<int64_t>(Left(c), 0)));
  }
};

struct MakeLinearIO {
  static constexpr Prefetch kPrefetch = Prefetch::kNone;
  static constexpr int kMinGroup = 1;
  static constexpr int kMaxGroup = kMaxRows;
  static constexpr bool kOneTile = false;
  const LinearArgs& args;
  int64_t per_tile, lanes;
  HWY_INLINE LinearIO IO(int64_t row0, int64_t col) const { return {args, row0, col, per_tile, lanes}; }
  HWY_INLINE MakeLinearIO ForOtherGroups() const { return *this; }
};

void LinearF32Block(const LinearArgs& args) noexcept {
  const int64_t per_tile = VectorsPerTile();
  BlockedMultiply(args.rows, args.num_tiles * per_tile, 1, args.k_len,
                  MakeLinearIO{args, per_tile, kTileKeys / per_tile});
}

RegisterBlock BlockOfRows(int64_t rows) noexcept {
  const int64_t group = RowGroups(rows).size(0);
  const int cols = MaxCols(static_cast<int>(group));
  return {group, cols, kTileKeys / VectorsPerTile(), RegistersOfBlock(static_cast<int>(group), cols), kNumRegisters};
}

LinearKernels LinearTable() {
  return {&LinearF32Block, &BlockOfRows, static_cast<int>(hn::Lanes(hn::ScalableTag<uint8_t>())),
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
