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
// reading the keys once more takes time. Values in keys are worth the room: their rows must stay together.
constexpr int64_t kMaxCutRows = 96;
// Cutting that leaves an item with more than this share of the keys is not worth a merge.
constexpr double kWorthCutting = 0.85;
// Reading one key and value costs as much as multiplying with so many rows: 4 bytes at 10 GB/s take as long as 12 FMAs
// at 30 G/s. A plain tensor's are transposed on the way, and so are values in keys; two bytes take half the time, and
// widening them the other half.
constexpr double kLoadRowsCache = 12;
constexpr double kLoadRowsTransposed = 32;
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

double LoadRows(const Problem& problem) {
  return problem.from_cache && !problem.values_in_keys ? kLoadRowsCache : kLoadRowsTransposed;
}

KeyInterval TilesOf(const KeyInterval& keys) {
  if (keys.empty()) return {};
  return {keys.begin / kTileKeys, CeilDiv(keys.end, kTileKeys)};
}

// Keys of the tiles that hold some of `keys` within [begin, end), both multiples of a split.
double TouchedKeys(const RowKeys& keys, int64_t begin, int64_t end) {
  const RowKeys part{Intersect(keys.first, begin, end), Intersect(keys.rest, begin, end)};
  return static_cast<double>(NumTiles(part) * kTileKeys);
}

// Splits that hold some of `keys`: [0, first_end), then [rest_begin, rest_end).
struct SplitRanges {
  int64_t first_end = 0;
  int64_t rest_begin = 0;
  int64_t rest_end = 0;

  explicit SplitRanges(const RowKeys& keys) {
    if (!keys.rest.empty()) {
      rest_begin = keys.rest.begin / kSplitKeys;
      rest_end = (keys.rest.end - 1) / kSplitKeys + 1;
    }
    if (keys.first.empty()) return;
    first_end = (keys.first.end - 1) / kSplitKeys + 1;
    if (keys.rest.empty()) {
      rest_end = first_end;
    } else if (first_end >= rest_begin) {
      rest_begin = 0;
    } else {
      return;
    }
    first_end = 0;
  }
  int64_t count() const { return first_end + rest_end - rest_begin; }
};

void SetSplits(RowBlock* block) {
  const SplitRanges splits(block->keys);
  block->num_splits = static_cast<int32_t>(splits.count());
  block->first_item_splits = block->num_splits;
  block->first_split = static_cast<int32_t>(splits.first_end > 0 ? 0 : splits.rest_begin);
  block->gap_begin = static_cast<int32_t>(splits.first_end);
  block->gap_splits = static_cast<int32_t>(splits.first_end > 0 ? splits.rest_begin - splits.first_end : 0);
}

// One batch member, with what its blocks have in common.
struct Member {
  const Problem& problem;
  SequenceRows rows_of;
  int64_t rows;

  Member(const Problem& p, const SequenceSpec& sequence) : problem(p), rows_of(p, sequence), rows(rows_of.num_rows()) {}

  // Cost of the block's splits [begin, end), by number within the block.
  double Cost(const RowBlock& block, int64_t begin, int64_t end) const {
    if (begin >= end) return kItemOverhead;
    const int64_t key_begin = block.SplitAt(begin) * kSplitKeys, key_end = (block.SplitAt(end - 1) + 1) * kSplitKeys;
    double cost = kItemOverhead + block.num_heads * LoadRows(problem) * TouchedKeys(block.keys, key_begin, key_end);
    if (block.decode()) {
      return cost + static_cast<double>(block.num_rows) * TouchedKeys(block.keys, key_begin, key_end);
    }
    const int64_t row_end = block.row_begin + block.num_rows;
    for (int64_t row = block.row_begin; row < row_end; row += block.sub_rows) {
      const int64_t num_rows = std::min<int64_t>(block.sub_rows, row_end - row);
      cost += static_cast<double>(num_rows) * TouchedKeys(rows_of.Hull(row, row + num_rows), key_begin, key_end);
    }
    return cost;
  }

  // Roughly the cost of the dearest block of `block_rows` rows, rather more than less.
  double DearestBlock(int64_t block_rows) const {
    const SequenceMask& mask = rows_of.mask;
    // The row that sees most is the first, the last, the last that still has a new key, or the last of a chunk.
    const int64_t last = mask.q_len - 1;
    int64_t candidates[] = {0, last, mask.kv_len - 1 - mask.q_pos, last};
    if (mask.mask.chunk > 0) candidates[3] = last - 1 - (mask.q_pos + last) % mask.mask.chunk;
    int64_t most = 0;
    for (const int64_t token : candidates) {
      if (token >= 0 && token <= last) most = std::max(most, VisibleKeys(mask, token).size());
    }
    const int64_t hull = std::min(most + block_rows / problem.group + 1, mask.kv_len);
    return kItemOverhead + (static_cast<double>(block_rows) + LoadRows(problem)) * static_cast<double>(hull);
  }

  // Roughly the cost of all its blocks of one KV head.
  double TotalCost(int64_t block_rows) const {
    const double pairs = rows_of.mask.has_tree()
                             ? static_cast<double>(rows) * static_cast<double>(rows_of.Hull(0, rows).size())
                             : VisiblePairs(rows_of.mask) * static_cast<double>(problem.group);
    return pairs * (1 + LoadRows(problem) / static_cast<double>(block_rows));
  }
};

// How many KV heads the blocks of a few rows have at most: many are read at more of the memory's bandwidth, few can be
// shared out better.
class HeadsPerBlock {
 public:
  HeadsPerBlock(const Problem& problem, int num_workers)
      : num_heads_(problem.num_kv_heads), num_workers_(num_workers) {}

  // A sequence's keys, with so many rows of each head.
  void Add(int64_t rows, int64_t num_keys) {
    const int64_t num_whole = num_keys / kSplitKeys;
    const auto whole = static_cast<double>(num_whole);
    const double part = static_cast<double>(num_keys % kSplitKeys) / kSplitKeys;
    for (Candidate& c : candidates_) {
      const int64_t blocks = CeilDiv(num_heads_, Most(rows, c.heads));
      const double time = static_cast<double>(num_heads_) / Speed(CeilDiv(num_heads_, blocks));
      c.items += whole * static_cast<double>(blocks);
      c.time += whole * time;
      c.short_items += part > 0 ? static_cast<double>(blocks) : 0;
      c.short_time += part * time;
    }
  }

  // For all that was added.
  int64_t Choose() const {
    if (num_workers_ <= 1) return kDecodeRows;
    const double workers = num_workers_;
    int64_t best = 1;
    double best_time = std::numeric_limits<double>::infinity();
    for (const Candidate& c : candidates_) {
      // Items of whole splits in rounds; short ones fill up the last of these, or make rounds of their own.
      double time = c.items > 0 ? std::ceil(c.items / workers) * (c.time / c.items) : 0;
      if (c.short_items > 0 && std::fmod(c.items, workers) == 0) {
        time += std::ceil(c.short_items / workers) * (c.short_time / c.short_items);
      }
      time = std::max(time, (c.time + c.short_time) / workers);
      if (time >= best_time) continue;
      best_time = time;
      best = c.heads;
    }
    return best;
  }

  // Heads of a block with so many rows of each, no more than `most`.
  static int64_t Most(int64_t rows, int64_t most) { return std::clamp<int64_t>(kDecodeRows / rows, 1, most); }

 private:
  struct Candidate {
    int64_t heads;
    double items = 0, time = 0;              // of one worker, in splits of one head at full speed
    double short_items = 0, short_time = 0;  // of less than a split
  };

  // Share of the bandwidth that items of so many heads get: of 32 heads of 128 features in f32 on a Zen 3. All heads
  // are rows without gaps.
  double Speed(int64_t heads) const {
    if (heads == num_heads_ || heads >= 8) return heads >= 16 ? 1.0 : 0.93;
    return heads >= 4 ? 0.83 : heads >= 2 ? 0.6 : 0.48;
  }

  int64_t num_heads_;
  int num_workers_;
  Candidate candidates_[6] = {{32}, {16}, {8}, {4}, {2}, {1}};
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
  }

  void Build(std::span<const SequenceSpec> sequences) {
    double total = 0;
    HeadsPerBlock heads(problem_, limits_.num_workers);
    for (const SequenceSpec& sequence : sequences) {
      const Member member(problem_, sequence);
      if (member.rows == 0) continue;
      total += member.TotalCost(std::min(member.rows, limits_.tile_rows)) * static_cast<double>(problem_.num_kv_heads);
      if (SharesHeads(member)) heads.Add(member.rows, member.rows_of.Hull(0, member.rows).size());
    }
    most_heads_ = heads.Choose();
    // One worker needs no more items than there are.
    target_ = limits_.num_workers <= 1
                  ? std::numeric_limits<double>::infinity()
                  : std::max(kMinItemCost, total / static_cast<double>(limits_.num_workers * kItemsPerWorker));
    for (size_t i = 0; i < sequences.size(); ++i) {
      const Member member(problem_, sequences[i]);
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
  struct Shape {
    int64_t block_rows;
    bool may_cut;
  };

  bool SharesHeads(const Member& member) const { return problem_.SharesHeads() && member.rows <= kInPlaceRows; }

  // The largest blocks that give enough items; blocks cost a pass over the keys each, and cuts cost room and a merge.
  Shape ChooseShape(const Member& member) {
    const int64_t heads = problem_.num_kv_heads;
    const int64_t num_splits = SplitRanges(member.rows_of.Hull(0, member.rows)).count();
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
               block_rows <= limits_.cut_rows && num_splits > 1 && StatesFit(member.rows, num_blocks, num_splits)};
      const int64_t num_items = shape.may_cut ? num_splits : 1;  // of a block, at most
      const double cost = member.DearestBlock(block_rows);
      if (cost <= target_ * static_cast<double>(num_items)) break;
      // Smaller blocks would transpose the same values again; so no more of them than keep all workers busy.
      if (problem_.values_in_keys && num_blocks * num_items * heads >= limits_.num_workers) break;
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
    const int64_t num_blocks = CeilDiv(member.rows, shape.block_rows);
    for (int64_t b = 0; b < num_blocks; ++b) {
      RowBlock block;
      block.row_begin = b * shape.block_rows;
      block.num_rows = static_cast<int32_t>(std::min(shape.block_rows, member.rows - block.row_begin));
      block.sub_rows =
          std::min(block.num_rows, static_cast<int32_t>(block.num_rows <= kDecodeRows ? kDecodeRows : kSubRows));
      block.sequence = index;
      block.keys = member.rows_of.Hull(block.row_begin, block.row_begin + block.num_rows);
      SetSplits(&block);
      AddItems(member, block, shape.may_cut, b, num_blocks);
    }
    next_rank_ += num_blocks * problem_.num_kv_heads;
  }

  // The same pieces of a block for every KV head, or for as many as share a block.
  void AddItems(const Member& member, RowBlock block, bool may_cut, int64_t b, int64_t num_blocks) {
    const int64_t most_heads = SharesHeads(member) ? HeadsPerBlock::Most(member.rows, most_heads_) : 1;
    const int64_t parts = CeilDiv(problem_.num_kv_heads, most_heads);
    const int32_t head_rows = block.num_rows;
    double cost = 0;
    int64_t wanted = 1;
    int64_t previous_pieces = 0;
    block.num_heads = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t head = problem_.num_kv_heads * part / parts;
      const int32_t num_heads = static_cast<int32_t>(problem_.num_kv_heads * (part + 1) / parts - head);
      block.kv_head = static_cast<int32_t>(head);
      if (num_heads != block.num_heads) {
        block.num_heads = num_heads;
        block.num_rows = head_rows * num_heads;
        cost = member.Cost(block, 0, block.num_splits);
        wanted = may_cut ? PiecesOf(block, cost) : 1;
        previous_pieces = 0;
      }
      const int64_t pieces = Cut(wanted, &block);
      const int32_t block_index = static_cast<int32_t>(work_.blocks.size());
      work_.blocks.push_back(block);
      for (int64_t i = 0; i < pieces; ++i) {
        WorkItem item;
        item.block = block_index;
        item.rank = next_rank_ + head * num_blocks + b;
        item.split_begin = static_cast<int32_t>(block.num_splits * i / pieces);
        item.split_end = static_cast<int32_t>(block.num_splits * (i + 1) / pieces);
        item.cost = pieces == 1                 ? cost
                    : pieces == previous_pieces ? work_.items[work_.items.size() - static_cast<size_t>(pieces)].cost
                                                : member.Cost(block, item.split_begin, item.split_end);
        work_.items.push_back(item);
      }
      previous_pieces = pieces;
    }
  }

  // Makes room for a block of so many items, or of as many as there is room for, and returns the number.
  int64_t Cut(int64_t pieces, RowBlock* block) {
    block->counter = -1;
    pieces = std::min(pieces, extra_items_ + 1);
    block->first_item_splits = static_cast<int32_t>(block->num_splits / pieces);
    if (pieces == 1) return 1;
    const int64_t bytes = block->NumStates() * MakeStateLayout(block->num_rows, problem_.o_pitch).bytes;
    if (bytes > limits_.state_bytes - state_bytes_) {
      block->first_item_splits = block->num_splits;
      return 1;
    }
    extra_items_ -= pieces - 1;
    block->counter = static_cast<int32_t>(work_.counters.size());
    block->state_offset = state_bytes_;
    state_bytes_ += bytes;
    work_.counters.push_back(static_cast<int32_t>(pieces));
    work_.num_items_of_cut_blocks += pieces;
    return pieces;
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
  int64_t most_heads_ = 1;
  int64_t extra_blocks_;
  int64_t extra_items_;
  int64_t state_bytes_ = 0;
  int64_t next_rank_ = 0;
};

}  // namespace

int64_t TileRows(const Problem& problem) noexcept {
  constexpr int64_t kMaxRows = 384;  // beyond, the keys' traffic is small change already
  constexpr int64_t kMinRows = 48;   // below, reading the keys would take longer than computing
  constexpr int64_t kFloats = 960 * 1024 / 4;
  const int64_t width = problem.qk_dim + problem.v_dim;
  if (width == 0) return kMaxRows;
  const int64_t rows = (kFloats - kBlockKeys * width) / width / kSubRows * kSubRows;
  const int64_t least = problem.values_in_keys ? std::max(kMinRows, RoundUp(problem.group, kSubRows)) : kMinRows;
  return std::min(std::max(rows, least), kMaxRows);
}

int64_t NumTiles(const RowKeys& keys) noexcept {
  const KeyInterval first = TilesOf(keys.first), rest = TilesOf(keys.rest);
  const bool share = !first.empty() && !rest.empty() && first.end > rest.begin;
  return first.size() + rest.size() - (share ? 1 : 0);
}

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
  limits.tile_rows = TileRows(problem);
  limits.cut_rows = problem.values_in_keys ? std::max(kMaxCutRows, limits.tile_rows) : kMaxCutRows;
  if (num_workers <= 1 || problem.num_kv_heads == 0 || max_sequences == 0 || max_q_tokens == 0) return limits;
  const int64_t pieces = num_workers * kItemsPerWorker;
  limits.extra_blocks = 4 * pieces;
  const int64_t max_splits = CeilDiv(max_kv_len, kSplitKeys);
  if (max_splits <= 1) return limits;
  // Only blocks dearer than the target are cut, and so there would be fewer than `pieces` of them, with fewer than
  // twice as many pieces; but the target is made of an estimate, which is low by a factor of up to 7/3 for small
  // blocks.
  limits.extra_items = 4 * pieces;
  const int64_t all_rows = std::min(SaturatingMul(max_q_tokens, problem.num_q_heads), kMaxQueryRows);
  const int64_t rows = std::min(all_rows, 2 * pieces * limits.cut_rows);
  const int64_t needed = SaturatingMul(MostStateBytes(rows, rows, problem.o_pitch), max_splits);
  const int64_t block_rows = problem.values_in_keys ? std::max(kDecodeRows, problem.group) : kDecodeRows;
  const int64_t one_block =
      SaturatingMul(MostStateBytes(std::min(all_rows, block_rows), 1, problem.o_pitch), max_splits);
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
  if (problem.SharesHeads()) {
    const int64_t all_rows = SaturatingMul(max_q_tokens, problem.num_q_heads);
    capacity.rows_per_block = std::max(capacity.rows_per_block, std::min(all_rows, kDecodeRows));
  }
  return capacity;
}

void BuildWork(const Problem& problem, std::span<const SequenceSpec> sequences, const WorkLimits& limits, Work* work) {
  Builder(problem, limits, work).Build(sequences);
  HEADLANE_DCHECK(static_cast<int64_t>(work->counters.size()) <= limits.extra_items);
}

}  // namespace headlane::internal
