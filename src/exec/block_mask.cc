#include "exec/block_mask.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace headlane::internal {
namespace {

void Widen(const KeyInterval& keys, KeyInterval* hull) {
  if (keys.empty()) return;
  *hull = hull->empty() ? keys : KeyInterval{std::min(hull->begin, keys.begin), std::max(hull->end, keys.end)};
}

bool Touches(const KeyInterval& keys, int64_t base) { return !Intersect(keys, base, base + kBlockKeys).empty(); }

// Bits of the tiles of the block at `base` that hold some of `keys`.
uint32_t TilesOf(const KeyInterval& keys, int64_t base) {
  const KeyInterval part = Intersect(keys, base, base + kBlockKeys);
  if (part.empty()) return 0;
  const int64_t begin = (part.begin - base) / kTileKeys;
  const int64_t end = CeilDiv(part.end - base, kTileKeys);
  return ((1u << end) - 1) & ~((1u << begin) - 1);
}

}  // namespace

void BlockMask::FindSubBlocks() {
  num_sub_blocks_ = CeilDiv(block_.num_rows, block_.sub_rows);
  HEADLANE_DCHECK(num_sub_blocks_ <= kMaxSubBlocks);
  for (int64_t i = 0; i < num_sub_blocks_; ++i) {
    SubBlock& sub = sub_blocks_[i];
    sub.row_begin = i * block_.sub_rows;
    sub.num_rows = std::min<int64_t>(block_.sub_rows, block_.num_rows - sub.row_begin);
    sub.kv_head = block_.kv_head + sub.row_begin / block_.head_rows();
    sub.head_row = block_.row_begin + sub.row_begin % block_.head_rows();
    sub.by_all = slot_.keys[sub.row_begin].rest;
    for (int64_t r = sub.row_begin; r < sub.row_begin + sub.num_rows; ++r) {
      const RowKeys& keys = slot_.keys[r];
      Widen(keys.first, &sub.seen.first);
      Widen(keys.rest, &sub.seen.rest);
      sub.by_all = Intersect(sub.by_all, keys.rest.begin, keys.rest.end);
    }
  }
}

bool BlockMask::NeedsBits(const SubBlock& sub, int64_t base) const {
  if (run_.args.mask.data != nullptr) return true;
  if (mask_.has_tree() && base + kBlockKeys > mask_.kv_len - mask_.q_len) return true;
  return Touches(sub.seen.first, base) && Touches(sub.seen.rest, base);
}

uint32_t BlockMask::Prepare(int64_t base) {
  uint32_t tiles = 0;
  for (int64_t i = 0; i < num_sub_blocks_; ++i) {
    PrepareSubBlock(base, &sub_blocks_[i]);
    tiles |= sub_blocks_[i].tiles;
  }
  return tiles;
}

void BlockMask::PrepareSubBlock(int64_t base, SubBlock* sub) const {
  sub->tiles = TilesOf(sub->seen.first, base) | TilesOf(sub->seen.rest, base);
  sub->by_bits = sub->tiles != 0 && NeedsBits(*sub, base);
  if (!sub->by_bits) return;
  FillBits(*sub, base);
  uint32_t seen = 0;
  for (int64_t t = 0; t < kTilesPerBlock; ++t) {
    uint32_t any = 0;
    for (int64_t r = 0; r < sub->num_rows; ++r) any |= slot_.visible[(sub->row_begin + r) * kTilesPerBlock + t];
    seen |= (any != 0 ? 1u : 0u) << t;
  }
  sub->tiles = seen;
}

void BlockMask::FillBits(const SubBlock& sub, int64_t base) const {
  const Problem& problem = run_.plan.problem();
  const SequenceSpec& sequence = run_.plan.sequences()[static_cast<size_t>(block_.sequence)];
  const BoolMaskView& view = run_.args.mask;
  const auto* const first_row = static_cast<const uint8_t*>(view.data);
  int64_t last_token = -1;
  for (int64_t r = sub.row_begin; r < sub.row_begin + sub.num_rows; ++r) {
    uint16_t* const bits = slot_.visible + r * kTilesPerBlock;
    const int64_t row = sub.head_row + r - sub.row_begin;
    const int64_t token = row / problem.group;
    // The heads of a token see the same, unless a mask says otherwise.
    if (token == last_token && (view.data == nullptr || view.head_stride == 0)) {
      std::memcpy(bits, bits - kTilesPerBlock, kTilesPerBlock * sizeof(uint16_t));
      continue;
    }
    last_token = token;
    IntervalBits(slot_.keys[r], base, bits);
    if (mask_.has_tree()) AndTreeBits(mask_, token, base, bits);
    if (view.data != nullptr) {
      const int64_t head = sub.kv_head * problem.group + row % problem.group;
      AndBoolBits(first_row + sequence.batch * view.batch_stride + (sequence.q_begin + token) * view.token_stride +
                      head * view.head_stride,
                  view.format, sequence.kv_len, base, bits);
    }
  }
}

void BlockMask::SetVisible(const SubBlock& sub, int64_t base, const int32_t* tiles, int64_t num_tiles,
                           SoftmaxArgs* args) const {
  args->begin = slot_.lane_begin;
  args->end = slot_.lane_end;
  args->visible = nullptr;
  if (!sub.by_bits) {
    SetIntervals(sub, base + tiles[0] * kTileKeys, num_tiles * kTileKeys);
    return;
  }
  uint32_t all = 0xFFFF;
  for (int64_t r = 0; r < sub.num_rows; ++r) {
    const uint16_t* const bits = slot_.visible + (sub.row_begin + r) * kTilesPerBlock;
    uint16_t* const packed = slot_.packed_visible + r * kTilesPerBlock;
    for (int64_t i = 0; i < num_tiles; ++i) {
      packed[i] = bits[tiles[i]];
      all &= packed[i];
    }
  }
  if (all == 0xFFFF) {
    std::fill_n(slot_.lane_begin, sub.num_rows, 0);
    std::fill_n(slot_.lane_end, sub.num_rows, static_cast<int32_t>(num_tiles * kTileKeys));
  } else {
    args->visible = slot_.packed_visible;
  }
}

// Tiles without bits are consecutive, and each row sees an interval of them.
void BlockMask::SetIntervals(const SubBlock& sub, int64_t lane_base, int64_t num_lanes) const {
  if (sub.by_all.begin <= lane_base && sub.by_all.end >= lane_base + num_lanes) {
    std::fill_n(slot_.lane_begin, sub.num_rows, 0);
    std::fill_n(slot_.lane_end, sub.num_rows, static_cast<int32_t>(num_lanes));
    return;
  }
  for (int64_t r = 0; r < sub.num_rows; ++r) {
    const RowKeys& keys = slot_.keys[sub.row_begin + r];
    const KeyInterval first = Intersect(keys.first, lane_base, lane_base + num_lanes);
    const KeyInterval& part = first.empty() ? keys.rest : first;
    slot_.lane_begin[r] = static_cast<int32_t>(std::clamp<int64_t>(part.begin - lane_base, 0, num_lanes));
    slot_.lane_end[r] = static_cast<int32_t>(std::clamp<int64_t>(part.end - lane_base, 0, num_lanes));
  }
}

}  // namespace headlane::internal
