// What is known about the contents of each tile: which slots hold tokens, and whether its V is all finite.
//
// Separate from the pages, so that the pages hold operands only and stay as dense as the kernels read them, and so that
// a page can be handed on without touching its memory. Called by KVCacheImpl only; execution reads the flags through
// KVFlagAddressing.
//
// A slot is written when its token was written in this layer, for all heads. A tile without written slots is *stale*:
// its memory is of an earlier life, and whoever writes first into it clears it.
#ifndef HEADLANE_SRC_KV_TILE_MARKS_H_
#define HEADLANE_SRC_KV_TILE_MARKS_H_

#include <cstdint>

#include "base/aligned_buffer.h"
#include "headlane/status.h"
#include "kv/layout.h"

namespace headlane::internal {

class TileMarks {
 public:
  TileMarks() noexcept = default;

  // `first_slab` as KVAddressing's, [num_layers]; must outlive the marks. Errors: InvalidArgument (sizes past 64 bits),
  // ResourceExhausted.
  static Result<TileMarks> Create(int64_t num_kv_heads, const KVLayout& layout, const int64_t* first_slab) noexcept;

  // Bit i: slot i of the tile is written.
  uint16_t& Written(int64_t layer, int64_t page, int64_t tile) noexcept {
    return written_.as<uint16_t>()[(flags_.first_slab[layer] + page) * tiles_per_page_ + tile];
  }
  uint16_t Written(int64_t layer, int64_t page, int64_t tile) const noexcept {
    return const_cast<TileMarks*>(this)->Written(layer, page, tile);
  }

  // Forgets the page's slots from `first` (0 .. page_tokens) on, in one layer.
  void Forget(int64_t layer, int64_t page, int64_t first) noexcept;

  // What is known of the first num_tokens slots of `from` becomes what is known of `to`; its other slots are not
  // written.
  void CopyPage(int64_t layer, int64_t from, int64_t to, int64_t num_tokens) noexcept;

  const KVFlagAddressing& flags() const noexcept { return flags_; }

 private:
  AlignedBuffer written_;     // [num_layers][pages of its group][tiles_per_page] uint16_t
  AlignedBuffer non_finite_;  // [num_layers][pages of its group][num_kv_heads][tiles_per_page] uint8_t
  KVFlagAddressing flags_;
  int64_t tiles_per_page_ = 0;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_TILE_MARKS_H_
