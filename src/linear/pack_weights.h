// Rows of weights as they are stored, to tiles (base/weight_tile.h).
//
// Separate from the layer because it is done once, and by scalar code: the order of bits in a file is nothing for
// vectors.
#ifndef HEADLANE_SRC_LINEAR_PACK_WEIGHTS_H_
#define HEADLANE_SRC_LINEAR_PACK_WEIGHTS_H_

#include <cstdint>

#include "headlane/weight_format.h"

namespace headlane::internal {

// `rows`: num_rows (1 .. 16) stored rows of in_features weights, a whole number of blocks, of any alignment. Features
// that do not exist get weights of 0. `tile` has WeightTileBytes(format, in_features). `int8`: laid out for
// LinearPrecision::kInt8, where the format has blocks.
void PackWeightTile(WeightFormat format, bool int8, const uint8_t* const* rows, int64_t num_rows, int64_t in_features,
                    uint8_t* tile) noexcept;

// The weights of one feature of such a tile with `int8`, of a format with blocks: exact.
void ReadInt8Weights(WeightFormat format, const uint8_t* tile, int64_t lane, int64_t in_features, float* out) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_PACK_WEIGHTS_H_
