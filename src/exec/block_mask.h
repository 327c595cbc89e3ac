// Which tiles of a block of keys the rows of an item visit, and which keys of them count for which row.
//
// Separate from the item, whose loop knows only lists of tiles: intervals, trees and boolean masks end here. Hidden
// tiles are not visited, and tiles that all rows see in full need no mask.
#ifndef HEADLANE_SRC_EXEC_BLOCK_MASK_H_
#define HEADLANE_SRC_EXEC_BLOCK_MASK_H_

#include <cstdint>

#include "base/blocking.h"
#include "exec/run_state.h"
#include "kernels/kernel_api.h"
#include "mask/visibility.h"

namespace headlane::internal {

// Rows that go through a kernel together, of one KV head.
struct SubBlock {
  int64_t row_begin = 0;  // within the row block
  int64_t num_rows = 0;
  int64_t kv_head = 0;
  int64_t head_row = 0;  // its first row among all of the KV head
  RowKeys seen;          // hulls of what its rows see; the two may overlap
  KeyInterval by_all;    // in the `rest` of every row
  bool started = false;  // in the present split
  uint32_t tiles = 0;    // of the present block: bit t, tile t is visited
  bool by_bits = false;  // of the present block: visibility is in Slot::visible, not in the intervals
};

class BlockMask {
 public:
  BlockMask(const RunContext& run, const RowBlock& block, const SequenceMask& mask, const Slot& slot)
      : run_(run), block_(block), mask_(mask), slot_(slot) {}

  // Requires: slot.keys are filled.
  void FindSubBlocks();

  int64_t num_sub_blocks() const { return num_sub_blocks_; }
  SubBlock& sub_block(int64_t i) { return sub_blocks_[i]; }

  // Finds the tiles of the block at key `base` for every sub-block. Returns those that any of them visits.
  uint32_t Prepare(int64_t base);
  // The same for one sub-block.
  void PrepareSubBlock(int64_t base, SubBlock* sub) const;

  // What counts among the visited tiles of a sub-block of the prepared block, `tiles` being their numbers in the block.
  void SetVisible(const SubBlock& sub, int64_t base, const int32_t* tiles, int64_t num_tiles, SoftmaxArgs* args) const;

 private:
  bool NeedsBits(const SubBlock& sub, int64_t base) const;
  void FillBits(const SubBlock& sub, int64_t base) const;
  void SetIntervals(const SubBlock& sub, int64_t lane_base, int64_t num_lanes) const;

  // TileRows() gives at most 384 rows; of several heads each has a sub-block.
  static constexpr int64_t kMaxSubBlocks = kDecodeRows;
  static_assert(kMaxSubBlocks * kSubRows >= 384);

  const RunContext& run_;
  const RowBlock& block_;
  const SequenceMask& mask_;
  const Slot& slot_;
  int64_t num_sub_blocks_ = 0;
  SubBlock sub_blocks_[kMaxSubBlocks];
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_EXEC_BLOCK_MASK_H_
