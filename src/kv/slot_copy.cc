#include "kv/slot_copy.h"

#include <cstring>

#include "base/blocking.h"
#include "base/tile_layout.h"

namespace headlane::internal {
namespace {

// The size of an element is a constant, so that a copy is one load and one store.
template <typename T>
void CopyElements(int64_t (*index_of)(DType, int64_t, int64_t), DType dtype, int64_t dim, const std::byte* from,
                  int64_t from_slot, std::byte* to, int64_t to_slot) {
  constexpr int64_t kBytes = sizeof(T);
  for (int64_t d = 0; d < dim; ++d) {
    std::memcpy(to + index_of(dtype, d, to_slot) * kBytes, from + index_of(dtype, d, from_slot) * kBytes, sizeof(T));
  }
}

}  // namespace

// Padded features with the others: what a tile holds there is part of what its writer promised.
void CopyKSlot(DType dtype, int64_t qk_dim, const std::byte* from, int64_t from_slot, std::byte* to,
               int64_t to_slot) noexcept {
  const int64_t padded = RoundUp(qk_dim, TilePack(dtype));
  const auto copy = DTypeBytes(dtype) == 4 ? &CopyElements<uint32_t> : &CopyElements<uint16_t>;
  copy(&KTileIndex, dtype, padded, from, from_slot, to, to_slot);
}

void CopyVSlot(DType dtype, int64_t v_dim, const std::byte* from, int64_t from_slot, std::byte* to,
               int64_t to_slot) noexcept {
  const int64_t padded = RoundUp(v_dim, kTileKeys);
  const auto copy = DTypeBytes(dtype) == 4 ? &CopyElements<uint32_t> : &CopyElements<uint16_t>;
  copy(&VTileIndex, dtype, padded, from, from_slot, to, to_slot);
}

}  // namespace headlane::internal
