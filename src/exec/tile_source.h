// Where the tiles of a block of keys are: in the cache's pages, or packed from plain tensors into the worker's scratch.
//
// Separate from the item so that the loop over blocks is one, whatever holds the keys; pages and strides end here.
#ifndef HEADLANE_SRC_EXEC_TILE_SOURCE_H_
#define HEADLANE_SRC_EXEC_TILE_SOURCE_H_

#include <cstdint>

#include "base/blocking.h"
#include "exec/run_state.h"
#include "kv/layout.h"

namespace headlane::internal {

// Tiles [begin, end) of one block, at their index in the block.
struct BlockTiles {
  const void* k[kTilesPerBlock];
  const void* v[kTilesPerBlock];
  uint32_t non_finite = 0;  // bit t: V tile t may hold something that is not finite
  int32_t begin = 0;
  int32_t end = 0;
};

// Tiles of one sequence and one KV head.
class TileSource {
 public:
  TileSource(const RunContext& run, const RowBlock& block, const Slot& slot);

  // Finds or packs the tiles of block number `block` (of the whole sequence) that hold `keys`, a part of it.
  // Packed tiles are overwritten by the next call; slots behind kv_len are zeros then.
  void Load(int64_t block, const KeyInterval& keys, BlockTiles* tiles) const {
    tiles->begin = static_cast<int32_t>((keys.begin - block * kBlockKeys) / kTileKeys);
    tiles->end = static_cast<int32_t>(CeilDiv(keys.end - block * kBlockKeys, kTileKeys));
    if (from_cache_) {
      Find(block, tiles);
    } else {
      Pack(block, tiles);
    }
  }

  // Whether tiles are where they were appended, in memory, rather than just packed and in a cache of the processor.
  bool from_cache() const { return from_cache_; }

 private:
  void Find(int64_t block, BlockTiles* tiles) const;
  void Pack(int64_t block, BlockTiles* tiles) const;

  bool from_cache_;

  // Cache: addresses of the layer's and the head's tiles in page 0.
  const int32_t* pages_ = nullptr;
  int64_t tiles_per_page_ = 1;
  const std::byte* k_base_ = nullptr;
  const std::byte* v_base_ = nullptr;
  const uint8_t* flags_base_ = nullptr;
  int64_t page_stride_ = 0;
  int64_t flags_page_stride_ = 0;

  // Plain tensors: the first key and value.
  const KvKernels* kernels_ = nullptr;
  const float* k_rows_ = nullptr;
  const float* v_rows_ = nullptr;
  int64_t k_row_stride_ = 0, k_dim_stride_ = 0;
  int64_t v_row_stride_ = 0, v_dim_stride_ = 0;
  int64_t kv_len_ = 0;
  int64_t qk_dim_ = 0, v_dim_ = 0;
  std::byte* k_tiles_ = nullptr;
  std::byte* v_tiles_ = nullptr;

  int64_t k_tile_bytes_ = 0;
  int64_t v_tile_bytes_ = 0;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_EXEC_TILE_SOURCE_H_
