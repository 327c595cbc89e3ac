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
// that do not exist get weights of 0. `tile` has WeightTileBytes(format, in_features).
void PackWeightTile(WeightFormat format, const uint8_t* const* rows, int64_t num_rows, int64_t in_features,
                    uint8_t* tile) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_PACK_WEIGHTS_H_
