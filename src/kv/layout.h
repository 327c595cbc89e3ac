// Where a token's keys and values stand in the cache's memory: arithmetic only, no memory and no state.
//
// Separate from the pool and the sequences so that the whole layout can be tested on numbers, and so that planning and
// kernels' callers can compute addresses without knowing sequences. Called by the cache, by planning and by execution.
//
//   pool   [num_layers][pages of the layer's group] pages of one layer
//   page   [num_kv_heads] heads
//   head   [tiles_per_page] K tiles, then [tiles_per_page] V tiles
//   K tile [qk_dim][16 keys]        V tile [ceil(v_dim / 16)][16 keys][16 features]        (base/tile_layout.h)
// Tiles are rounded up to 64 bytes. Where the values are in the keys there are no V tiles.
// Layers come first because one run of attention reads one layer: its pages then lie as densely as they can. K before V
// of the same head, because a worker streams exactly these two.
#ifndef HEADLANE_SRC_KV_LAYOUT_H_
#define HEADLANE_SRC_KV_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "base/blocking.h"
#include "headlane/kv_cache.h"
#include "headlane/status.h"

namespace headlane::internal {

// Refused beyond these. Sequence numbers are generation * max_sequences + slot, which must not run out in a process's
// life.
inline constexpr int64_t kMaxPageTokens = 256;
inline constexpr int64_t kMaxSequences = int64_t{1} << 20;

// Of one group of layers. Page numbers are a group's own.
struct KVGroupLayout {
  int64_t num_layers = 0;
  int64_t total_pages = 0;
  int64_t table_pages = 0;  // places in a sequence's block table
  int64_t page_bytes = 0;   // one page of all of its layers: what a page costs
  int64_t window = kNoWindow;
  int64_t num_always_visible = 0;
  int64_t max_in_flight = 0;

  bool has_window() const { return window != kNoWindow; }
  // The first token that a sequence of this length has to keep, but for those that are always visible.
  int64_t FirstNeeded(int64_t length) const { return length - max_in_flight - window + 1; }
};

struct KVLayout {
  int64_t tiles_per_page = 0;
  int64_t total_pages = 0;  // of all groups
  int64_t k_tile_bytes = 0;
  int64_t v_tile_bytes = 0;
  int64_t v_offset = 0;    // from a head's first K tile to its first V tile
  int64_t head_bytes = 0;  // one head of one page of one layer
  int64_t slab_bytes = 0;  // one page of one layer, all heads
  int64_t page_bytes = 0;  // one page of all layers
  int64_t num_slabs = 0;   // pages of one layer, of all layers
  int64_t pool_bytes = 0;  // all of them
  int64_t max_positions = 0;
  int64_t num_groups = 0;
  KVGroupLayout groups[kMaxLayerGroups];
};

// Errors: InvalidArgument (a field of the spec; sizes past 64 bits or page numbers past 32), Unsupported (no dtype).
Result<KVLayout> MakeKVLayout(const KVCacheSpec& spec) noexcept;

// The place of the token with index `order` in its sequence.
struct TokenPlace {
  int64_t page;  // index into the sequence's block table
  int64_t tile;  // within the page
  int64_t slot;  // within the tile
};
constexpr TokenPlace PlaceOf(int64_t order, int64_t page_tokens) {
  const int64_t in_page = order % page_tokens;
  return {order / page_tokens, in_page / kTileKeys, in_page % kTileKeys};
}

// The group of a layer.
inline int64_t GroupOf(const KVCacheSpec& spec, int64_t layer) {
  return spec.group_of_layer.empty() ? 0 : spec.group_of_layer[static_cast<size_t>(layer)];
}

// Addresses as one multiply-add per level, in a struct that a caller can keep in registers. Strides in bytes.
struct KVAddressing {
  std::byte* base = nullptr;
  const int64_t* first_slab = nullptr;  // [num_layers] pages of the layers before it
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t k_tile_bytes = 0;
  int64_t v_tile_bytes = 0;
  int64_t v_offset = 0;

  std::byte* Head(int64_t layer, int64_t page, int64_t kv_head) const {
    return base + (first_slab[layer] + page) * page_stride + kv_head * head_stride;
  }
  std::byte* KTile(int64_t layer, int64_t page, int64_t kv_head, int64_t tile) const {
    return Head(layer, page, kv_head) + tile * k_tile_bytes;
  }
  std::byte* VTile(int64_t layer, int64_t page, int64_t kv_head, int64_t tile) const {
    return Head(layer, page, kv_head) + v_offset + tile * v_tile_bytes;
  }
};

// One byte per (layer, page, head, tile), 0 unless a value that is not finite was stored in the tile's V since the tile
// was cleared. While it is 0, a hidden key's V times the weight 0 adds nothing; otherwise hidden keys must be left
// out by selection.
struct KVFlagAddressing {
  uint8_t* base = nullptr;
  const int64_t* first_slab = nullptr;
  int64_t page_stride = 0;
  int64_t head_stride = 0;

  // [tiles_per_page] flags.
  uint8_t* Tiles(int64_t layer, int64_t page, int64_t kv_head) const {
    return base + (first_slab[layer] + page) * page_stride + kv_head * head_stride;
  }
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_LAYOUT_H_
