// Keys and values as tiles, packed here by the plainest loops, each tile against a guard page: the kernels' operands,
// independent of the kernels that pack.
#ifndef HEADLANE_TESTS_KERNELS_TILES_H_
#define HEADLANE_TESTS_KERNELS_TILES_H_

#include <cstdint>
#include <vector>

#include "base/blocking.h"
#include "support/guarded_buffer.h"

namespace headlane::testing {

class Tiles {
 public:
  const void* const* pointers() const { return pointers_.data(); }
  float* tile(int64_t t) const { return tiles_[static_cast<size_t>(t)].data(); }
  int64_t num_tiles() const { return static_cast<int64_t>(tiles_.size()); }

  // [dim][16] each; keys: [num_keys][dim]. Slots without a key keep 0xFF.
  static Tiles OfKeys(const std::vector<float>& keys, int64_t num_keys, int64_t dim) {
    Tiles tiles(internal::CeilDiv(num_keys, internal::kTileKeys), dim * internal::kTileKeys);
    for (int64_t key = 0; key < num_keys; ++key) {
      for (int64_t d = 0; d < dim; ++d)
        tiles.tile(key / 16)[d * 16 + key % 16] = keys[static_cast<size_t>(key * dim + d)];
    }
    return tiles;
  }

  // [stripes][16 keys][16] each; values: [num_keys][dim]. Slots without a key and features behind dim are 0.
  static Tiles OfValues(const std::vector<float>& values, int64_t num_keys, int64_t dim) {
    const int64_t stripes = internal::CeilDiv(dim, internal::kTileKeys);
    Tiles tiles(internal::CeilDiv(num_keys, internal::kTileKeys), stripes * 256);
    for (int64_t key = 0; key < tiles.num_tiles() * 16; ++key) {
      for (int64_t d = 0; d < stripes * 16; ++d) {
        const bool exists = key < num_keys && d < dim;
        tiles.tile(key / 16)[d / 16 * 256 + key % 16 * 16 + d % 16] =
            exists ? values[static_cast<size_t>(key * dim + d)] : 0.0f;
      }
    }
    return tiles;
  }

 private:
  Tiles(int64_t num_tiles, int64_t floats) {
    for (int64_t t = 0; t < num_tiles; ++t) tiles_.emplace_back(static_cast<size_t>(floats));
    for (const GuardedFloats& tile : tiles_) pointers_.push_back(tile.data());
  }

  std::vector<GuardedFloats> tiles_;
  std::vector<const void*> pointers_;
};

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_KERNELS_TILES_H_
