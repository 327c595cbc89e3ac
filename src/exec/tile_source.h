// Where the tiles of a block of keys are: in the pages of a cache or of the caller, or made in the worker's scratch:
// packed from rows in plain tensors or pages, widened for many rows, or transposed where the values are part of the
// keys.
//
// Separate from the item so that the loop over blocks is one, whatever holds the keys; pages, strides and element types
// end here.
#ifndef HEADLANE_SRC_EXEC_TILE_SOURCE_H_
#define HEADLANE_SRC_EXEC_TILE_SOURCE_H_

#include <cstdint>

#include "base/blocking.h"
#include "exec/run_state.h"
#include "kv/layout.h"

namespace headlane::internal {

// Tiles of one block, at their index in the block.
struct BlockTiles {
  const void* k[kTilesPerBlock];
  const void* v[kTilesPerBlock];
  uint32_t non_finite = 0;  // bit t: V tile t may hold something that is not finite
};

// Tiles of one sequence and one KV head at a time.
class TileSource {
 public:
  TileSource(const RunContext& run, const RowBlock& block, const Slot& slot);

  // Which of the row block's KV heads is meant from now on, the first at the beginning.
  void SelectHead(int64_t head) {
    k_rows_.data = k_first_ + head * k_rows_.head_stride * DTypeBytes(k_rows_.dtype);
    v_rows_.data = v_first_ + head * v_rows_.head_stride * DTypeBytes(v_rows_.dtype);
  }

  // Finds or makes those tiles of block number `block` (of the whole sequence) whose bits are set. What is made is
  // overwritten by the next call; slots behind kv_len are zeros then.
  void Load(int64_t block, uint32_t tile_bits, BlockTiles* tiles) const;

  // For the tiles that Load gives.
  const KvKernels& k_kernels() const { return *k_kernels_; }
  const KvKernels& v_kernels() const { return *v_kernels_; }

  // Whether they are where they were appended, in memory, rather than just made and in a cache of the processor.
  bool k_from_memory() const { return from_cache_ && !make_k_; }
  bool v_from_memory() const { return from_cache_ && !make_v_; }
  // The first tile of a block that perhaps does not exist, to be fetched ahead of time; null: nothing.
  const void* NextKTile(int64_t block) const {
    if (!k_from_memory() || block * kBlockKeys >= kv_len_) return nullptr;
    const int64_t tile = block * kTilesPerBlock;
    const int64_t page = pages_[tile / tiles_per_page_];
    return page < 0 ? nullptr : k_base_ + page * page_stride_ + tile % tiles_per_page_ * k_tile_bytes_;
  }

  // Rows of a plain tensor, or of pages, that few query rows use where they lie, without tiles.
  struct Rows {
    const std::byte* data = nullptr;  // of key 0, or of page 0's first key
    DType dtype = DType::kF32;
    int64_t row_stride = 0;  // elements
    int64_t dim_stride = 0;
    int64_t row_bytes = 0;    // row_stride in bytes
    int64_t head_stride = 0;  // elements
    int64_t page_bytes = 0;   // from page to page
  };
  // Where a key's row of the selected head is.
  const std::byte* RowAt(const Rows& rows, int64_t key) const {
    if (pages_ == nullptr) return rows.data + key * rows.row_bytes;
    return rows.data + pages_[key / page_tokens_] * rows.page_bytes + key % page_tokens_ * rows.row_bytes;
  }
  // Whether the keys' rows go on at `key` as they did before it, so that a kernel's call may. Requires: key is a
  // multiple of 16, not 0, and the tiles on both sides are visited.
  bool GoesOn(const Rows& rows, int64_t key) const {
    return pages_ == nullptr || RowAt(rows, key) == RowAt(rows, key - kTileKeys) + kTileKeys * rows.row_bytes;
  }
  // The same of a key that perhaps does not exist, to be fetched ahead of time; null: nothing.
  const std::byte* NextAt(const Rows& rows, int64_t key) const {
    if (pages_ == nullptr) return rows.data + key * rows.row_bytes;
    return key < kv_len_ && pages_[key / page_tokens_] >= 0 ? RowAt(rows, key) : nullptr;
  }
  // All heads of the row block are in place, and read fastest together: they are neighbours in a token.
  bool heads_together() const { return heads_together_; }
  bool k_in_place() const { return k_in_place_; }
  bool v_in_place() const { return v_in_place_; }
  const Rows& k_rows() const { return k_rows_; }
  const Rows& v_rows() const { return v_rows_; }
  // 2 tiles of f32 that qk_rows may use.
  float* scratch() const { return reinterpret_cast<float*>(k_tiles_); }

  // Bytes that are read for a tile of keys and values.
  int64_t tile_bytes() const { return tile_bytes_; }

 private:
  void InitCache(const RunContext& run, const RowBlock& block);
  void InitTilePages(const RunContext& run, const RowBlock& block);
  void InitTiles(const RunContext& run, const RowBlock& block);
  void InitTensors(const RunContext& run, const SequenceSpec& sequence, const RowBlock& block);
  void InitRowPages(const RunContext& run, const RowBlock& block);
  void InitRows(const RowBlock& block);
  void Find(int64_t block, uint32_t tile_bits, BlockTiles* tiles) const;
  void Pack(int64_t block, uint32_t tile_bits, BlockTiles* tiles) const;
  bool IsWhole(int64_t key, int64_t num_keys) const;
  template <typename F>
  void ForEachPiece(int64_t key, int64_t num_keys, const F& f) const;
  void PackKeys(int64_t key, int64_t num_keys, std::byte* tile) const;
  bool PackValues(int64_t key, int64_t num_keys, std::byte* tile) const;
  void MakeValuesOfKeys(uint32_t tile_bits, BlockTiles* tiles) const;

  bool from_cache_;
  bool values_in_keys_;
  bool make_k_ = false;  // tiles of f32 in the scratch, rather than those of the cache
  bool make_v_ = false;
  bool k_in_place_ = false;
  bool v_in_place_ = false;
  bool heads_together_ = false;
  const KernelTable& kernels_;
  const KvKernels* k_kernels_;
  const KvKernels* v_kernels_;
  int64_t qk_dim_, v_dim_;
  int64_t tile_bytes_ = 0;

  // Scratch: tiles of f32.
  std::byte* k_tiles_;
  std::byte* v_tiles_;
  int64_t k_tile_size_;
  int64_t v_tile_size_;

  // Cache: addresses of the layer's and the head's tiles in page 0.
  const KvKernels* k_stored_ = nullptr;
  const KvKernels* v_stored_ = nullptr;
  const int32_t* pages_ = nullptr;  // null: plain tensors
  int64_t page_tokens_ = 1;
  int64_t tiles_per_page_ = 1;
  int64_t unsure_tile_ = -1;  // one whose slots behind kv_len may hold anything
  const std::byte* k_base_ = nullptr;
  const std::byte* v_base_ = nullptr;
  const uint8_t* flags_base_ = nullptr;
  int64_t page_stride_ = 0;
  int64_t flags_page_stride_ = 0;
  int64_t k_tile_bytes_ = 0;
  int64_t v_tile_bytes_ = 0;

  // Rows: the first key and value of the selected head.
  static Rows RowsOf(const ConstTensorView& view, int64_t batch, int64_t first_token, int64_t head);
  Rows k_rows_;
  Rows v_rows_;
  const std::byte* k_first_ = nullptr;  // of the block's first head
  const std::byte* v_first_ = nullptr;
  int64_t kv_len_ = 0;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_EXEC_TILE_SOURCE_H_
