// Where an element stands in a K or V tile, and what a tile takes: numbers only, for each element type.
//
// Separate from the kernels so that the cache's accounting and its reading back, planning and packing agree on one
// definition. In bf16 two features of a key (K) or two keys of a feature (V) stand side by side, so that a vector of
// 32-bit lanes widens by a shift and a mask.
#ifndef HEADLANE_SRC_BASE_TILE_LAYOUT_H_
#define HEADLANE_SRC_BASE_TILE_LAYOUT_H_

#include <cstdint>

#include "base/blocking.h"
#include "headlane/dtype.h"

namespace headlane::internal {

// Tiles and rows of tiles begin at multiples of this.
inline constexpr int64_t kTileAlignment = 64;

// Features (K) or keys (V) that are interleaved.
constexpr int64_t TilePack(DType dtype) { return dtype == DType::kBF16 ? 2 : 1; }

// In elements from the tile's beginning.
constexpr int64_t KTileIndex(DType dtype, int64_t feature, int64_t slot) {
  const int64_t pack = TilePack(dtype);
  return feature / pack * (kTileKeys * pack) + slot * pack + feature % pack;
}
constexpr int64_t VTileIndex(DType dtype, int64_t feature, int64_t slot) {
  const int64_t pack = TilePack(dtype);
  const int64_t stripe = feature / kTileKeys * (kTileKeys * kTileKeys);
  return stripe + slot / pack * (kTileKeys * pack) + feature % kTileKeys * pack + slot % pack;
}

// Bytes between tiles. `element_bytes` is DTypeBytes(dtype), which is no constant expression. Requires: no overflow.
constexpr int64_t KTileBytes(DType dtype, int64_t element_bytes, int64_t qk_dim) {
  return RoundUp(RoundUp(qk_dim, TilePack(dtype)) * kTileKeys * element_bytes, kTileAlignment);
}
constexpr int64_t VTileBytes(int64_t element_bytes, int64_t v_dim) {
  return RoundUp(v_dim, kTileKeys) * kTileKeys * element_bytes;
}

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_TILE_LAYOUT_H_
