#include "kv/slot_copy.h"

#include <cstring>

#include "base/blocking.h"
#include "base/tile_layout.h"

namespace headlane::internal {
namespace {

void CopyElement(int64_t bytes, const std::byte* from, int64_t from_index, std::byte* to, int64_t to_index) {
  std::memcpy(to + to_index * bytes, from + from_index * bytes, static_cast<size_t>(bytes));
}

}  // namespace

// Padded features with the others: what a tile holds there is part of what its writer promised.
void CopyKSlot(DType dtype, int64_t qk_dim, const std::byte* from, int64_t from_slot, std::byte* to,
               int64_t to_slot) noexcept {
  const int64_t bytes = DTypeBytes(dtype);
  const int64_t padded = RoundUp(qk_dim, TilePack(dtype));
  for (int64_t d = 0; d < padded; ++d) {
    CopyElement(bytes, from, KTileIndex(dtype, d, from_slot), to, KTileIndex(dtype, d, to_slot));
  }
}

void CopyVSlot(DType dtype, int64_t v_dim, const std::byte* from, int64_t from_slot, std::byte* to,
               int64_t to_slot) noexcept {
  const int64_t bytes = DTypeBytes(dtype);
  const int64_t padded = RoundUp(v_dim, kTileKeys);
  for (int64_t d = 0; d < padded; ++d) {
    CopyElement(bytes, from, VTileIndex(dtype, d, from_slot), to, VTileIndex(dtype, d, to_slot));
  }
}

}  // namespace headlane::internal
