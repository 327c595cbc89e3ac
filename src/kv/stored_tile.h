// Tiles as they are saved, and whether a tile could have been stored by an append.
//
// Separate from saving and restoring, which know pages: what the bytes of a tile mean is known here, for each element
// type. Called by save.cc and restore.cc.
#ifndef HEADLANE_SRC_KV_STORED_TILE_H_
#define HEADLANE_SRC_KV_STORED_TILE_H_

#include <cstddef>
#include <cstdint>

#include "headlane/dtype.h"

namespace headlane::internal {

// One kind of tile: K's or V's, of this many features.
struct TileKind {
  DType dtype;
  bool is_k;
  int64_t dim;
  int64_t bytes;       // between tiles
  int64_t used_bytes;  // codes and scales
};
TileKind KTileKind(DType dtype, int64_t qk_dim);
TileKind VTileKind(DType dtype, int64_t v_dim);

// The tile with its first `count` slots, and 0 wherever it holds nothing of them. Requires: count in 1 .. 16, their
// tokens are written.
void CopyClean(const TileKind& kind, const std::byte* tile, int64_t count, std::byte* out) noexcept;

// null if the tile is what CopyClean makes of a tile that was written by appends, or else what is wrong with it.
// *non_finite: whether one of the first value_dim features of a slot is not finite; not looked at for value_dim 0.
const char* CheckClean(const TileKind& kind, const std::byte* tile, int64_t count, int64_t value_dim,
                       bool* non_finite) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_STORED_TILE_H_
