#include "plan/work.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace headlane::internal {
namespace {

// How many items per worker there should be at least, where cutting can give them. Longest first, the last worker is
// then late by less than 1/8 of a share.
constexpr int64_t kItemsPerWorker = 8;
// Blocks of more rows are made smaller before they are cut along the keys: their states would take more room than
// reading the keys once more takes time.
constexpr int64_t kMaxCutRows = 96;
// Cutting that leaves an item with more than this share of the keys is not worth a merge.
constexpr double kWorthCutting = 0.85;
// Reading one key and value costs as much as multiplying with so many rows: 4 bytes at 10 GB/s take as long as 12 FMAs
// at 30 G/s. A plain tensor's are transposed on the way.
constexpr double kLoadRowsCache = 12;
constexpr double kLoadRowsPlain = 32;
// An item's fixed cost: 2 microseconds, in FMAs of a 128-wide key and value.
constexpr double kItemOverhead = 256;
// Less is not worth an item of its own.
constexpr double kMinItemCost = 8 * kItemOverhead;
// States may take so much per worker, or what one decode block needs.
constexpr int64_t kStateBytesPerWorker = int64_t{4} << 20;

constexpr int64_t kSaturated = int64_t{1} << 60;
int64_t SaturatingMul(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kSaturated : std::min(product, kSaturated);
}

// No less than the states of `rows` rows in `num_blocks` blocks take.
int64_t MostStateBytes(int64_t rows, int64_t num_blocks, int64_t o_pitch) {
  return SaturatingMul(SaturatingMul(rows, o_pitch + 2) + SaturatingMul(num_blocks, 2 * kTileKeys), sizeof(float));
}

double LoadRows(const Problem& problem) { return problem.from_cache ? kLoadRowsCache : kLoadRowsPlain; }

// Keys that are touched for `keys` within [begin, end): whole tiles.
double TouchedKeys(const KeyInterval& keys, int64_t begin, int64_t end) {
  const KeyInterval part = Intersect(keys, begin, end);
  if (part.empty()) return 0;
  const int64_t first_tile = part.begin / kTileKeys;
  return static_cast<double>(RoundUp(part.end, kTileKeys) - first_tile * kTileKeys);
}

// One batch member, with what its blocks have in common.
struct Member {
  const Problem& problem;
  const SequenceSpec& sequence;
  int64_t rows;

  KeyInterval HullOfRows(int64_t row_begin, int64_t row_end) const {
    const int64_t token_end = (row_end - 1) / problem.group + 1;
    return VisibleHull(problem.mask, sequence.q_len, sequence.kv_len, row_begin / problem.group, token_end);
  }

  // Cost of splits [split_begin, split_end) of a block.
  double Cost(const RowBlock& block, int64_t split_begin, int64_t split_end) const {
    const int64_t begin = split_begin * kSplitKeys, end = split_end * kSplitKeys;
    double cost = kItemOverhead + LoadRows(problem) * TouchedKeys(block.keys.hull(), begin, end);
    const int64_t row_end = block.row_begin + block.num_rows;
    for (int64_t row = block.row_begin; row < row_end; row += block.sub_rows) {
      const int64_t num_rows = std::min<int64_t>(block.sub_rows, row_end - row);
      cost += static_cast<double>(num_rows) * TouchedKeys(HullOfRows(row, row + num_rows), begin, end);
    }
    return cost;
  }

  // At least the cost of the dearest block of `block_rows` rows.
  double DearestBlock(int64_t block_rows) const {
    // The row that sees most is the first, the last, or the last one that still has a new key (top-left, windowed).
    int64_t most = 0;
    for (const int64_t token : {int64_t{0}, sequence.q_len - 1, std::min(sequence.q_len, sequence.kv_len) - 1}) {
      if (token < 0) continue;
      most = std::max(most, VisibleInterval(problem.mask, sequence.q_len, sequence.kv_len, token).size());
    }
    const int64_t hull = std::min(most + block_rows / problem.group + 1, sequence.kv_len);
    return kItemOverhead + (static_cast<double>(block_rows) + LoadRows(problem)) * static_cast<double>(hull);
  }

  // Roughly the cost of all its blocks of one KV head.
  double TotalCost(int64_t block_rows) const {
    const double pairs =
        VisiblePairs(problem.mask, sequence.q_len, sequence.kv_len) * static_cast<double>(problem.group);
    return pairs * (1 + LoadRows(problem) / static_cast<double>(block_rows));
  }
};

// Rows per block, all blocks nearly equal, none above `most`.
int64_t EvenBlockRows(int64_t rows, int64_t most) { return RoundUp(CeilDiv(rows, CeilDiv(rows, most)), kSubRows); }

class Builder {
 public:
  Builder(const Problem& problem, const WorkLimits& limits, Work* work)
      : problem_(problem),
        limits_(limits),
        work_(*work),
        extra_blocks_(limits.extra_blocks),
        extra_items_(limits.extra_items) {
    work_.blocks.clear();
    work_.items.clear();
    work_.counters.clear();
    work_.num_items_of_cut_blocks = 0;
    work_.num_decode_blocks = 0;
  }

  void Build(std::span<const SequenceSpec> sequences) {
    double total = 0;
    for (const SequenceSpec& sequence : sequences) {
      const Member member = MemberOf(sequence);
      if (member.rows == 0) continue;
      total += member.TotalCost(std::min(member.rows, limits_.tile_rows)) * static_cast<double>(problem_.num_kv_heads);
    }
    // One worker needs no more items than there are.
    target_ = limits_.num_workers <= 1
                  ? std::numeric_limits<double>::infinity()
                  : std::max(kMinItemCost, total / static_cast<double>(limits_.num_workers * kItemsPerWorker));
    for (size_t i = 0; i < sequences.size(); ++i) {
      const Member member = MemberOf(sequences[i]);
      if (member.rows != 0) AddMember(member, static_cast<int32_t>(i));
    }
    const auto longest_first = [](const WorkItem& a, const WorkItem& b) {
      if (a.cost != b.cost) return a.cost > b.cost;
      return a.rank != b.rank ? a.rank < b.rank : a.split_begin < b.split_begin;
    };
    if (!std::is_sorted(work_.items.begin(), work_.items.end(), longest_first)) {
      std::sort(work_.items.begin(), work_.items.end(), longest_first);
    }
  }

 private:
  Member MemberOf(const SequenceSpec& sequence) const {
    return {problem_, sequence, problem_.RowsPerKvHead(sequence.q_len)};
  }

  struct Shape {
    int64_t block_rows;
    bool may_cut;
  };

  // The largest blocks that give enough items; blocks cost a pass over the keys each, and cuts cost room and a merge.
  Shape ChooseShape(const Member& member) {
    const int64_t heads = problem_.num_kv_heads;
    const KeyInterval hull = member.HullOfRows(0, member.rows);
    const int64_t num_splits = hull.empty() ? 0 : (hull.end - 1) / kSplitKeys - hull.begin / kSplitKeys + 1;
    if (member.rows <= kDecodeRows) {
      return {member.rows, StatesFit(member.rows, 1, num_splits)};
    }
    const int64_t most_rows = EvenBlockRows(member.rows, limits_.tile_rows);
    const int64_t fewest_blocks = CeilDiv(member.rows, most_rows);
    Shape shape{most_rows, false};
    for (int64_t rows = most_rows; rows > 0; rows = rows / 2 / kSubRows * kSubRows) {
      const int64_t block_rows = EvenBlockRows(member.rows, rows);
      const int64_t num_blocks = CeilDiv(member.rows, block_rows);
      if ((num_blocks - fewest_blocks) * heads > extra_blocks_) break;
      shape = {block_rows,
               block_rows <= kMaxCutRows && num_splits > 1 && StatesFit(member.rows, num_blocks, num_splits)};
      const double cost = member.DearestBlock(block_rows);
      if (cost <= target_ || (shape.may_cut && cost <= target_ * static_cast<double>(num_splits))) break;
    }
    extra_blocks_ -= (CeilDiv(member.rows, shape.block_rows) - fewest_blocks) * heads;
    return shape;
  }

  // Whether all rows of a member could leave a state per split, in all heads.
  bool StatesFit(int64_t rows, int64_t num_blocks, int64_t num_splits) const {
    const int64_t per_head = MostStateBytes(rows, num_blocks, problem_.o_pitch);
    return SaturatingMul(SaturatingMul(per_head, problem_.num_kv_heads), num_splits) <=
           limits_.state_bytes - state_bytes_;
  }

  void AddMember(const Member& member, int32_t index) {
    const Shape shape = ChooseShape(member);
    const bool decode = member.rows <= kDecodeRows;
    const int64_t num_blocks = CeilDiv(member.rows, shape.block_rows);
    for (int64_t b = 0; b < num_blocks; ++b) {
      RowBlock block;
      block.row_begin = b * shape.block_rows;
      block.num_rows = static_cast<int32_t>(std::min(shape.block_rows, member.rows - block.row_begin));
      block.sub_rows = decode ? block.num_rows : static_cast<int32_t>(kSubRows);
      block.sequence = index;
      block.keys.rest = member.HullOfRows(block.row_begin, block.row_begin + block.num_rows);
      if (!block.keys.empty()) {
        block.first_split = static_cast<int32_t>(block.keys.rest.begin / kSplitKeys);
        block.num_splits = static_cast<int32_t>((block.keys.rest.end - 1) / kSplitKeys + 1 - block.first_split);
      }
      block.first_item_splits = block.num_splits;
      work_.num_decode_blocks += decode ? problem_.num_kv_heads : 0;
      AddItems(member, block, shape.may_cut, b, num_blocks);
    }
    next_rank_ += num_blocks * problem_.num_kv_heads;
  }

  // The same pieces of a block for every KV head.
  void AddItems(const Member& member, RowBlock block, bool may_cut, int64_t b, int64_t num_blocks) {
    const double cost = member.Cost(block, block.first_split, block.first_split + block.num_splits);
    const int64_t wanted = may_cut ? PiecesOf(block, cost) : 1;
    for (int64_t head = 0; head < problem_.num_kv_heads; ++head) {
      block.kv_head = static_cast<int32_t>(head);
      int64_t pieces = wanted;
      block.counter = -1;
      block.first_item_splits = block.num_splits;
      if (pieces > 1) {
        block.first_item_splits = static_cast<int32_t>(block.num_splits / pieces);
        const int64_t bytes = block.NumStates() * MakeStateLayout(block.num_rows, problem_.o_pitch).bytes;
        if (pieces - 1 <= extra_items_ && bytes <= limits_.state_bytes - state_bytes_) {
          extra_items_ -= pieces - 1;
          block.counter = static_cast<int32_t>(work_.counters.size());
          block.state_offset = state_bytes_;
          state_bytes_ += bytes;
          work_.counters.push_back(static_cast<int32_t>(pieces));
          work_.num_items_of_cut_blocks += pieces;
        } else {
          pieces = 1;
          block.first_item_splits = block.num_splits;
        }
      }
      const int32_t block_index = static_cast<int32_t>(work_.blocks.size());
      const int64_t rank = next_rank_ + head * num_blocks + b;
      work_.blocks.push_back(block);
      for (int64_t i = 0; i < pieces; ++i) {
        WorkItem item;
        item.block = block_index;
        item.rank = rank;
        item.split_begin = static_cast<int32_t>(block.num_splits * i / pieces);
        item.split_end = static_cast<int32_t>(block.num_splits * (i + 1) / pieces);
        item.cost = pieces == 1
                        ? cost
                        : member.Cost(block, block.SplitAt(item.split_begin), block.SplitAt(item.split_end - 1) + 1);
        work_.items.push_back(item);
      }
    }
  }

  int64_t PiecesOf(const RowBlock& block, double cost) const {
    if (block.num_splits <= 1 || !(cost > target_)) return 1;
    // A little more than its share is no reason for another piece: pieces of unequal length wait for each other.
    const double wanted = std::ceil(cost / target_ - 0.1);
    if (!(wanted > 1)) return 1;
    const int64_t pieces =
        wanted < static_cast<double>(block.num_splits) ? static_cast<int64_t>(wanted) : block.num_splits;
    const int64_t longest = CeilDiv(block.num_splits, pieces) * kSplitKeys;
    return static_cast<double>(longest) > kWorthCutting * static_cast<double>(block.keys.size()) ? 1 : pieces;
  }

  const Problem& problem_;
  const WorkLimits& limits_;
  Work& work_;
  double target_ = 0;
  int64_t extra_blocks_;
  int64_t extra_items_;
  int64_t state_bytes_ = 0;
  int64_t next_rank_ = 0;
};

}  // namespace

StateLayout MakeStateLayout(int64_t num_rows, int64_t o_pitch) noexcept {
  StateLayout layout;
  layout.l = RoundUp(num_rows, kTileKeys);
  layout.o = 2 * layout.l;
  layout.bytes = (layout.o + num_rows * o_pitch) * static_cast<int64_t>(sizeof(float));
  return layout;
}

WorkLimits MakeWorkLimits(const Problem& problem, int num_workers, int64_t max_sequences, int64_t max_q_tokens,
                          int64_t max_kv_len) noexcept {
  WorkLimits limits;
  limits.num_workers = num_workers;
  limits.tile_rows = TileRows(problem.qk_dim, problem.v_dim);
  if (num_workers <= 1 || problem.num_kv_heads == 0 || max_sequences == 0 || max_q_tokens == 0) return limits;
  const int64_t pieces = num_workers * kItemsPerWorker;
  limits.extra_blocks = 4 * pieces;
  const int64_t max_splits = CeilDiv(max_kv_len, kSplitKeys);
  if (max_splits <= 1) return limits;
  // Only blocks dearer than the target are cut, so there are fewer than `pieces` of them, and their pieces are fewer
  // than twice as many.
  limits.extra_items = 2 * pieces;
  const int64_t all_rows = std::min(SaturatingMul(max_q_tokens, problem.num_q_heads), kMaxQueryRows);
  const int64_t rows = std::min(all_rows, pieces * kMaxCutRows);
  const int64_t needed = SaturatingMul(MostStateBytes(rows, rows, problem.o_pitch), max_splits);
  const int64_t one_block =
      SaturatingMul(MostStateBytes(std::min(all_rows, kDecodeRows), 1, problem.o_pitch), max_splits);
  limits.state_bytes = std::min(needed, std::max(kStateBytesPerWorker * num_workers, one_block));
  return limits;
}

WorkCapacity MakeWorkCapacity(const Problem& problem, const WorkLimits& limits, int64_t max_sequences,
                              int64_t max_q_tokens) noexcept {
  WorkCapacity capacity;
  if (problem.group == 0) return capacity;
  const int64_t rows = std::min(SaturatingMul(max_q_tokens, problem.group), kMaxQueryRows);
  // EvenBlockRows never makes more blocks than blocks of tile_rows would be.
  const int64_t per_head = std::min(rows, CeilDiv(rows, limits.tile_rows) + max_sequences);
  capacity.num_blocks = SaturatingMul(per_head, problem.num_kv_heads) + limits.extra_blocks;
  capacity.num_items = capacity.num_blocks + limits.extra_items;
  capacity.num_counters = std::min(limits.extra_items, capacity.num_blocks);
  capacity.rows_per_block = std::min(rows, std::max(limits.tile_rows, kDecodeRows));
  return capacity;
}

void BuildWork(const Problem& problem, std::span<const SequenceSpec> sequences, const WorkLimits& limits, Work* work) {
  Builder(problem, limits, work).Build(sequences);
  HEADLANE_DCHECK(static_cast<int64_t>(work->counters.size()) <= limits.extra_items);
}

}  // namespace headlane::internal
