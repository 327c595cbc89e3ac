#include "kv/slot_copy.h"

#include <cstring>

#include "base/blocking.h"
#include "base/tile_layout.h"

namespace headlane::internal {
namespace {

using IndexFn = int64_t (*)(DType, int64_t, int64_t);

// The size of an element is a constant, so that a copy is one load and one store.
template <typename T>
void CopyElements(IndexFn index_of, DType dtype, int64_t dim, const std::byte* from, int64_t from_slot, std::byte* to,
                  int64_t to_slot) {
  constexpr int64_t kBytes = sizeof(T);
  for (int64_t d = 0; d < dim; ++d) {
    std::memcpy(to + index_of(dtype, d, to_slot) * kBytes, from + index_of(dtype, d, from_slot) * kBytes, sizeof(T));
  }
}

// int4's codes are halves of bytes: which one is told by the feature for K, by the slot for V.
void CopyHalves(bool is_k, int64_t dim, const std::byte* from, int64_t from_slot, std::byte* to, int64_t to_slot) {
  const IndexFn index_of = is_k ? &KTileIndex : &VTileIndex;
  const auto shift = [&](int64_t feature, int64_t slot) { return (is_k ? feature : slot) % 2 * 4; };
  for (int64_t d = 0; d < dim; ++d) {
    const std::byte code = from[index_of(DType::kI4, d, from_slot)] >> shift(d, from_slot) & std::byte{15};
    std::byte& written = to[index_of(DType::kI4, d, to_slot)];
    written = (written & ~(std::byte{15} << shift(d, to_slot))) | code << shift(d, to_slot);
  }
}

// Codes [0, dim), padding included, and the scale of each group of features. `code_bytes`: of the tile, in front of its
// scales.
void CopyQuantizedSlot(DType dtype, bool is_k, int64_t dim, int64_t code_bytes, int64_t scale_bytes,
                       const std::byte* from, int64_t from_slot, std::byte* to, int64_t to_slot) {
  if (dtype == DType::kI4) {
    CopyHalves(is_k, dim, from, from_slot, to, to_slot);
  } else {
    CopyElements<uint8_t>(is_k ? &KTileIndex : &VTileIndex, dtype, dim, from, from_slot, to, to_slot);
  }
  const int64_t bytes = dtype == DType::kI4 ? 2 : 4;
  for (int64_t group = code_bytes; group < code_bytes + scale_bytes; group += kTileKeys * bytes) {
    std::memcpy(to + group + to_slot * bytes, from + group + from_slot * bytes, static_cast<size_t>(bytes));
  }
}

}  // namespace

// Padded features with the others: what a tile holds there is part of what its writer promised.
void CopyKSlot(DType dtype, int64_t qk_dim, const std::byte* from, int64_t from_slot, std::byte* to,
               int64_t to_slot) noexcept {
  if (IsQuantized(dtype)) {
    return CopyQuantizedSlot(dtype, true, RoundUp(qk_dim, dtype == DType::kI4 ? 2 : 1), KTileCodeBytes(dtype, qk_dim),
                             TileScaleBytes(dtype, qk_dim), from, from_slot, to, to_slot);
  }
  const int64_t padded = RoundUp(qk_dim, TilePack(dtype));
  const auto copy = DTypeBytes(dtype) == 4 ? &CopyElements<uint32_t> : &CopyElements<uint16_t>;
  copy(&KTileIndex, dtype, padded, from, from_slot, to, to_slot);
}

void CopyVSlot(DType dtype, int64_t v_dim, const std::byte* from, int64_t from_slot, std::byte* to,
               int64_t to_slot) noexcept {
  const int64_t padded = RoundUp(v_dim, kTileKeys);
  if (IsQuantized(dtype)) {
    return CopyQuantizedSlot(dtype, false, padded, VTileCodeBytes(dtype, v_dim), TileScaleBytes(dtype, v_dim), from,
                             from_slot, to, to_slot);
  }
  const auto copy = DTypeBytes(dtype) == 4 ? &CopyElements<uint32_t> : &CopyElements<uint16_t>;
  copy(&VTileIndex, dtype, padded, from, from_slot, to, to_slot);
}

}  // namespace headlane::internal
