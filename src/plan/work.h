// How a batch becomes independent pieces of work.
//
//   row block  rows of one sequence and one KV head that share one pass over the keys; in plain tensors the few rows of
//              several KV heads, whose keys are neighbours in memory and are read together
//   item       a row block and a range of its splits: what a worker takes at a time
// A row block whose items are several is *cut*: its items leave states (m, l, o) in the workspace, and whoever finishes
// the last one folds them in ascending order of splits. The first item hands on one state, folded from its splits as
// they came; every other item must keep the states of its splits apart, or the fold would associate differently. So a
// cut changes no bit of a result.
//
// Separate from plan.cc, which knows caches, capacities and errors: here are only numbers, and nothing can fail.
// Constant time per item.
#ifndef HEADLANE_SRC_PLAN_WORK_H_
#define HEADLANE_SRC_PLAN_WORK_H_

#include <cstdint>
#include <span>
#include <vector>

#include "headlane/attention.h"
#include "mask/interval.h"
#include "mask/visibility.h"
#include "plan/problem.h"

namespace headlane::internal {

struct RowBlock {
  int64_t row_begin = 0;     // first row of each head, see Problem::RowsPerKvHead
  int64_t state_offset = 0;  // cut: bytes from the workspace's states to this block's first
  RowKeys keys;              // what its rows see
  int32_t sequence = 0;
  int32_t kv_head = 0;  // the first of them
  int32_t num_heads = 1;
  int32_t num_rows = 0;  // of all heads together, the same number of each, head by head
  int32_t sub_rows = 0;  // rows per kernel call, all of a head's up to kDecodeRows
  // The splits that hold `keys`, in ascending order: number i is SplitAt(i). Those between `first` and `rest` are left
  // out.
  int32_t first_split = 0;
  int32_t num_splits = 0;  // 0: no row sees anything
  int32_t gap_begin = 0;   // from number gap_begin on, gap_splits more are skipped
  int32_t gap_splits = 0;
  int32_t first_item_splits = 0;  // splits of the first item
  int32_t counter = -1;           // cut: which countdown; -1: not cut

  bool cut() const { return counter >= 0; }
  int32_t head_rows() const { return num_rows / num_heads; }
  bool decode() const { return head_rows() == sub_rows; }
  // Absolute number of the block's i-th split.
  int64_t SplitAt(int64_t i) const { return first_split + i + (i >= gap_begin ? gap_splits : 0); }
  // Which of a cut block's states its i-th split belongs to.
  int64_t StateIndex(int64_t i) const {
    const int64_t behind_first_item = i - first_item_splits;
    return behind_first_item < 0 ? 0 : 1 + behind_first_item;
  }
  int64_t NumStates() const { return 1 + num_splits - first_item_splits; }
};

struct WorkItem {
  double cost = 0;   // in multiplications of one query row with one key
  int64_t rank = 0;  // place among equals: row blocks of the same keys come together
  int32_t block = 0;
  int32_t split_begin = 0;  // numbers within the block, see RowBlock::SplitAt
  int32_t split_end = 0;
};

struct Work {
  std::vector<RowBlock> blocks;
  std::vector<WorkItem> items;    // longest first
  std::vector<int32_t> counters;  // [number of cut blocks] items of each
  int64_t num_items_of_cut_blocks = 0;
};

// What is fixed for the life of a plan.
struct WorkLimits {
  int num_workers = 1;
  int64_t tile_rows = kSubRows;  // most rows per block of the tile path
  int64_t cut_rows = kSubRows;   // most rows of a block that is cut
  int64_t state_bytes = 0;       // room for the states of cut blocks
  int64_t extra_blocks = 0;      // how many row blocks may be added to have enough for the workers
  int64_t extra_items = 0;       // how many items cuts may add
};

// Room for the worst batch within the capacities. Saturates instead of overflowing.
struct WorkCapacity {
  int64_t num_blocks = 0;
  int64_t num_items = 0;
  int64_t num_counters = 0;
  int64_t rows_per_block = 0;
};

// Limits and room for batches of at most `max_sequences` sequences with `max_q_tokens` query tokens in all and
// `max_kv_len` keys each.
WorkLimits MakeWorkLimits(const Problem& problem, int num_workers, int64_t max_sequences, int64_t max_q_tokens,
                          int64_t max_kv_len) noexcept;
WorkCapacity MakeWorkCapacity(const Problem& problem, const WorkLimits& limits, int64_t max_sequences,
                              int64_t max_q_tokens) noexcept;

// The sequence's rows of one KV head, cut into blocks: what the blocks of one of them see and visit.
struct SequenceRows {
  SequenceMask mask;
  int64_t group = 1;

  SequenceRows(const Problem& problem, const SequenceSpec& sequence)
      : mask(ResolveMask(problem.mask, sequence)), group(problem.group) {}

  int64_t num_rows() const { return mask.q_len * group; }
  // Requires: row_begin < row_end.
  RowKeys Hull(int64_t row_begin, int64_t row_end) const {
    return VisibleHull(mask, row_begin / group, (row_end - 1) / group + 1);
  }
};

// Tiles that hold some of `keys`; one that holds some of both intervals counts once.
int64_t NumTiles(const RowKeys& keys) noexcept;

// Bytes of one state (m, l, o) of `num_rows` rows in the workspace, and where its parts stand, in floats.
struct StateLayout {
  int64_t l = 0;
  int64_t o = 0;
  int64_t bytes = 0;
};
StateLayout MakeStateLayout(int64_t num_rows, int64_t o_pitch) noexcept;

// Fills `work`, whose vectors have the capacity (they grow if not). Requires: sequences are checked.
void BuildWork(const Problem& problem, std::span<const SequenceSpec> sequences, const WorkLimits& limits, Work* work);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_PLAN_WORK_H_
