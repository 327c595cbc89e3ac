#include "kv/tile_marks.h"

#include <cstring>

#include "base/check.h"
#include "base/checked_math.h"

namespace headlane::internal {

Result<TileMarks> TileMarks::Create(int64_t num_kv_heads, const KVLayout& layout, const int64_t* first_slab) noexcept {
  int64_t num_tiles = 0;
  int64_t num_flags = 0;
  int64_t written_bytes = 0;
  if (!CheckedMul(layout.num_slabs, layout.tiles_per_page, &num_tiles) ||
      !CheckedMul(num_tiles, num_kv_heads, &num_flags) ||
      !CheckedMul(num_tiles, int64_t{sizeof(uint16_t)}, &written_bytes)) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "KV cache: the tiles of %lld pages of one layer and %lld heads pass 64 bits",
                      static_cast<long long>(layout.num_slabs), static_cast<long long>(num_kv_heads));
  }
  TileMarks marks;
  HEADLANE_ASSIGN_OR_RETURN(marks.written_, AlignedBuffer::Create(written_bytes, "KV cache slot marks"));
  HEADLANE_ASSIGN_OR_RETURN(marks.non_finite_, AlignedBuffer::Create(num_flags, "KV cache tile flags"));
  marks.tiles_per_page_ = layout.tiles_per_page;
  marks.flags_.base = marks.non_finite_.as<uint8_t>();
  marks.flags_.first_slab = first_slab;
  marks.flags_.head_stride = layout.tiles_per_page;
  marks.flags_.page_stride = num_kv_heads * layout.tiles_per_page;
  return marks;
}

void TileMarks::Forget(int64_t layer, int64_t page, int64_t first) noexcept {
  HEADLANE_DCHECK(page >= 0 && first >= 0 && first <= tiles_per_page_ * kTileKeys);
  const int64_t first_tile = first / kTileKeys;
  const uint16_t kept = static_cast<uint16_t>((1u << (first % kTileKeys)) - 1u);
  for (int64_t tile = first_tile; tile < tiles_per_page_; ++tile) {
    uint16_t& written = Written(layer, page, tile);
    written = static_cast<uint16_t>(tile == first_tile ? (written & kept) : 0);
  }
}

void TileMarks::CopyPage(int64_t layer, int64_t from, int64_t to, int64_t num_tokens) noexcept {
  std::memcpy(&Written(layer, to, 0), &Written(layer, from, 0),
              static_cast<size_t>(tiles_per_page_) * sizeof(uint16_t));
  std::memcpy(flags_.Tiles(layer, to, 0), flags_.Tiles(layer, from, 0), static_cast<size_t>(flags_.page_stride));
  Forget(layer, to, num_tokens);
}

}  // namespace headlane::internal
