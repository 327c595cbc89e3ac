// Keys and values as tiles, packed here by the plainest loops, each tile against a guard page: the kernels' operands,
// independent of the kernels that pack and of the library's own index functions.
#ifndef HEADLANE_TESTS_KERNELS_TILES_H_
#define HEADLANE_TESTS_KERNELS_TILES_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/float16.h"
#include "headlane/dtype.h"
#include "support/guarded_buffer.h"

namespace headlane::testing {

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// The nearest number of the type.
inline float Rounded(DType dtype, float x) {
  if (dtype == DType::kF16) return internal::F16ToF32(internal::F32ToF16(x));
  if (dtype == DType::kBF16) return internal::BF16ToF32(internal::F32ToBF16(x));
  return x;
}
inline void Round(DType dtype, std::vector<float>& values) {
  for (float& x : values) x = Rounded(dtype, x);
}

// Elements [index] of memory that holds numbers of the type.
inline void StoreElement(DType dtype, void* memory, int64_t index, float x) {
  if (dtype == DType::kF32) return static_cast<void>(std::memcpy(static_cast<float*>(memory) + index, &x, 4));
  static_cast<uint16_t*>(memory)[index] = dtype == DType::kF16 ? internal::F32ToF16(x) : internal::F32ToBF16(x);
}
// Its bits, widened to 32.
inline uint32_t ElementBits(DType dtype, const void* memory, int64_t index) {
  if (dtype != DType::kF32) return static_cast<const uint16_t*>(memory)[index];
  return static_cast<const uint32_t*>(memory)[index];
}

// Where an element stands.
inline int64_t KIndex(DType dtype, int64_t d, int64_t slot) {
  return dtype == DType::kBF16 ? d / 2 * 32 + slot * 2 + d % 2 : d * 16 + slot;
}
inline int64_t VIndex(DType dtype, int64_t d, int64_t slot) {
  return d / 16 * 256 + (dtype == DType::kBF16 ? slot / 2 * 32 + d % 16 * 2 + slot % 2 : slot * 16 + d % 16);
}
inline int64_t KElements(DType dtype, int64_t dim) { return 16 * (dtype == DType::kBF16 ? (dim + 1) / 2 * 2 : dim); }
inline int64_t VElements(int64_t dim) { return (dim + 15) / 16 * 256; }

class Tiles {
 public:
  const void* const* pointers() const { return pointers_.data(); }
  void* tile(int64_t t) const { return tiles_[static_cast<size_t>(t)].data(); }
  int64_t num_tiles() const { return static_cast<int64_t>(tiles_.size()); }

  // keys: [num_keys][dim]. What holds no key's feature keeps 0xFF.
  static Tiles OfKeys(DType dtype, const std::vector<float>& keys, int64_t num_keys, int64_t dim) {
    Tiles tiles((num_keys + 15) / 16, KElements(dtype, dim) * DTypeBytes(dtype));
    for (int64_t key = 0; key < num_keys; ++key) {
      for (int64_t d = 0; d < dim; ++d) {
        StoreElement(dtype, tiles.tile(key / 16), KIndex(dtype, d, key % 16), keys[static_cast<size_t>(key * dim + d)]);
      }
    }
    return tiles;
  }

  // values: [num_keys][dim]. Slots without a key and features behind dim are 0.
  static Tiles OfValues(DType dtype, const std::vector<float>& values, int64_t num_keys, int64_t dim) {
    Tiles tiles((num_keys + 15) / 16, VElements(dim) * DTypeBytes(dtype));
    for (int64_t key = 0; key < tiles.num_tiles() * 16; ++key) {
      for (int64_t d = 0; d < VElements(dim) / 16; ++d) {
        const bool exists = key < num_keys && d < dim;
        StoreElement(dtype, tiles.tile(key / 16), VIndex(dtype, d, key % 16),
                     exists ? values[static_cast<size_t>(key * dim + d)] : 0.0f);
      }
    }
    return tiles;
  }

 private:
  // Tiles begin at multiples of 64 bytes: where they end at none, something is between them and the guard page.
  Tiles(int64_t num_tiles, int64_t bytes) {
    for (int64_t t = 0; t < num_tiles; ++t) tiles_.emplace_back(static_cast<size_t>((bytes + 63) / 64 * 64));
    for (const GuardedBuffer& tile : tiles_) pointers_.push_back(tile.data());
  }

  std::vector<GuardedBuffer> tiles_;
  std::vector<const void*> pointers_;
};

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_KERNELS_TILES_H_
