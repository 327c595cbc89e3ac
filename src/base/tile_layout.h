// Where an element stands in a K or V tile, and what a tile takes: numbers only, for each element type.
//
// Separate from the kernels so that the cache's accounting and its reading back, planning and packing agree on one
// definition. In bf16 two features of a key (K) or two keys of a feature (V) stand side by side, so that a vector of
// 32-bit lanes widens by a shift and a mask.
//
// A quantised tile is codes in the order of an f32 tile, and behind them its scales:
//   int8, fp8   K [qk_dim][16] bytes, V [stripes][16 keys][16] bytes; then [16 keys] f32
//   int4        K [ceil(qk_dim / 2)][16] bytes of features 2i (low half) and 2i + 1, V [stripes][8][16] bytes of keys
//   2i
//               and 2i + 1; then [ceil(dim / 32)][16 keys] bf16
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

// Features of int4 that have a scale in common.
inline constexpr int64_t kInt4Group = 32;

// In elements from the tile's beginning; in bytes for int4, whose odd features (K) or slots (V) are the upper halves.
constexpr int64_t KTileIndex(DType dtype, int64_t feature, int64_t slot) {
  if (dtype == DType::kI4) return feature / 2 * kTileKeys + slot;
  const int64_t pack = TilePack(dtype);
  return feature / pack * (kTileKeys * pack) + slot * pack + feature % pack;
}
constexpr int64_t VTileIndex(DType dtype, int64_t feature, int64_t slot) {
  if (dtype == DType::kI4) {
    return feature / kTileKeys * (kTileKeys * kTileKeys / 2) + slot / 2 * kTileKeys + feature % kTileKeys;
  }
  const int64_t pack = TilePack(dtype);
  const int64_t stripe = feature / kTileKeys * (kTileKeys * kTileKeys);
  return stripe + slot / pack * (kTileKeys * pack) + feature % kTileKeys * pack + slot % pack;
}

// Bytes of a tile's elements or codes, and so where its scales begin. DTypeBytes is no constant expression. Requires:
// no overflow.
constexpr int64_t TileCodeBytes(DType dtype, int64_t num_codes) {
  if (dtype == DType::kI4) return num_codes / 2;
  return num_codes * (dtype == DType::kF32 ? 4 : IsQuantized(dtype) ? 1 : 2);
}
constexpr int64_t KTileCodeBytes(DType dtype, int64_t qk_dim) {
  return TileCodeBytes(dtype, RoundUp(qk_dim, dtype == DType::kI4 ? 2 : TilePack(dtype)) * kTileKeys);
}
constexpr int64_t VTileCodeBytes(DType dtype, int64_t v_dim) {
  return TileCodeBytes(dtype, RoundUp(v_dim, kTileKeys) * kTileKeys);
}

// Bytes of a tile's scales.
constexpr int64_t TileScaleBytes(DType dtype, int64_t dim) {
  if (!IsQuantized(dtype)) return 0;
  return kTileKeys * (dtype == DType::kI4 ? CeilDiv(dim, kInt4Group) * 2 : 4);
}

// Bytes between tiles.
constexpr int64_t KTileBytes(DType dtype, int64_t qk_dim) {
  return RoundUp(KTileCodeBytes(dtype, qk_dim) + TileScaleBytes(dtype, qk_dim), kTileAlignment);
}
constexpr int64_t VTileBytes(DType dtype, int64_t v_dim) {
  return RoundUp(VTileCodeBytes(dtype, v_dim) + TileScaleBytes(dtype, v_dim), kTileAlignment);
}

// What one key or value of so many features takes, without padding.
constexpr double StoredBytes(DType dtype, int64_t dim) {
  return static_cast<double>(TileCodeBytes(dtype, dim * kTileKeys) + TileScaleBytes(dtype, dim)) /
         static_cast<double>(kTileKeys);
}

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_TILE_LAYOUT_H_
