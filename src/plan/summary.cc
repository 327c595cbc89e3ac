#include "plan/summary.h"

#include <algorithm>
#include <bit>

#include "base/blocking.h"
#include "base/tile_layout.h"

namespace headlane::internal {
namespace {

// Rows [begin, end) of a sub-block, counted from the sequence's first.
struct SubRows {
  int64_t begin;
  int64_t end;
};

RowKeys Within(const RowKeys& keys, int64_t begin, int64_t end) {
  return {Intersect(keys.first, begin, end), Intersect(keys.rest, begin, end)};
}

// Tiles of the key block at `base` that some row sees a key of, as bits.
uint32_t DraftedTiles(const SequenceRows& rows, const SubRows& sub, int64_t base) {
  uint32_t tiles = 0;
  const int64_t token_end = (sub.end - 1) / rows.group + 1;
  for (int64_t token = sub.begin / rows.group; token < token_end; ++token) {
    uint16_t bits[kTilesPerBlock];
    IntervalBits(VisibleKeys(rows.mask, token), base, bits);
    AndTreeBits(rows.mask, token, base, bits);
    for (int64_t t = 0; t < kTilesPerBlock; ++t) tiles |= (bits[t] != 0 ? 1u : 0u) << t;
  }
  return tiles;
}

}  // namespace

Visits VisitsOf(const SequenceRows& rows, const RowBlock& block) noexcept {
  Visits visits;
  if (block.keys.empty()) return visits;
  // Blocks of keys with drafted ones go by bits, all others by intervals, whose unions over rows are exact.
  const int64_t kv_len = rows.mask.kv_len;
  const int64_t by_bits =
      rows.mask.has_tree() ? (kv_len - rows.mask.q_len) / kBlockKeys * kBlockKeys : RoundUp(kv_len, kBlockKeys);
  visits.tiles = NumTiles(Within(block.keys, 0, by_bits));
  const int64_t end = block.row_begin + block.head_rows();
  for (int64_t row = block.row_begin; row < end; row += block.sub_rows) {
    const int64_t sub_end = std::min<int64_t>(row + block.sub_rows, end);
    visits.row_tiles += (sub_end - row) * NumTiles(Within(rows.Hull(row, sub_end), 0, by_bits));
  }
  for (int64_t base = by_bits; base < kv_len; base += kBlockKeys) {
    uint32_t any = 0;
    for (int64_t row = block.row_begin; row < end; row += block.sub_rows) {
      const SubRows sub{row, std::min<int64_t>(row + block.sub_rows, end)};
      const uint32_t tiles = DraftedTiles(rows, sub, base);
      visits.row_tiles += (sub.end - sub.begin) * std::popcount(tiles);
      any |= tiles;
    }
    visits.tiles += std::popcount(any);
  }
  return visits;
}

PlanSummary Summarize(const PlanImpl& plan) noexcept {
  const Problem& problem = plan.problem();
  const Work& work = plan.work();
  PlanSummary summary;
  summary.target = plan.kernels().target;
  for (const WorkItem& item : work.items) {
    const bool decode = work.blocks[static_cast<size_t>(item.block)].decode();
    ++(decode ? summary.num_decode_items : summary.num_tile_items);
  }
  summary.kernel = work.items.empty()              ? "none"
                   : summary.num_tile_items == 0   ? "decode"
                   : summary.num_decode_items == 0 ? "tile"
                                                   : "decode+tile";
  summary.num_items = static_cast<int64_t>(work.items.size());
  summary.num_splits = work.num_items_of_cut_blocks;
  summary.workspace_bytes = static_cast<size_t>(plan.layout().bytes);

  const double width = static_cast<double>(problem.qk_dim + problem.v_dim);
  const double key_bytes = StoredBytes(problem.k_dtype, problem.qk_dim) +
                           (problem.values_in_keys ? 0 : StoredBytes(problem.v_dtype, problem.v_dim));
  double pairs = 0, keys = 0;
  for (const SequenceSpec& sequence : plan.sequences()) {
    summary.num_rows += sequence.q_len * problem.num_q_heads;
    if (sequence.q_len == 0 || problem.group == 0) continue;
    const SequenceRows rows(problem, sequence);
    pairs += VisiblePairs(rows.mask);
    keys += static_cast<double>(rows.Hull(0, rows.num_rows()).size());
  }
  summary.flops = 2 * pairs * static_cast<double>(problem.num_q_heads) * width;
  summary.kv_bytes = keys * static_cast<double>(problem.num_kv_heads) * key_bytes;

  // The blocks of all heads are alike.
  double tiles = 0, row_tiles = 0;
  for (const RowBlock& block : work.blocks) {
    if (block.kv_head != 0) continue;
    const SequenceRows rows(problem, plan.sequences()[static_cast<size_t>(block.sequence)]);
    const Visits visits = VisitsOf(rows, block);
    tiles += static_cast<double>(visits.tiles);
    row_tiles += static_cast<double>(visits.row_tiles);
  }
  const double heads = static_cast<double>(problem.num_kv_heads);
  summary.touched_kv_bytes = tiles * heads * static_cast<double>(plan.tile_bytes());
  summary.touched_flops = 2 * static_cast<double>(kTileKeys) * row_tiles * heads * width;
  return summary;
}

}  // namespace headlane::internal
