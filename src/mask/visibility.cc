// Every row of a sequence without a tree sees [0, first_end) and [begin, end), where from one row to the next
//   first_end, begin and end never fall, and
//   begin grows past the last row's end never: what consecutive rows see of the second touches,
// so that the union over any rows is made of the bounds of two of them. The same bounds are piecewise linear in the
// row's position, which is what VisiblePairs sums.
#include "mask/visibility.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/blocking.h"
#include "base/check.h"

namespace headlane::internal {
namespace {

// Larger than any distance between positions, small enough that a few of them add up without overflow.
constexpr int64_t kUnlimited = int64_t{1} << 60;

int64_t FloorMultiple(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest < 0 ? a - rest - b : a - rest;
}

bool IsCausal(const SequenceMask& m) { return m.mask.causality != Causality::kFull; }

struct Bounds {
  int64_t first_end;  // always visible: [0, first_end), nothing where it is not positive
  int64_t begin;      // and [begin, end), nothing where begin >= end
  int64_t end;
};

// What a row at `position` sees of keys that stand at their index. Requires: window is not 0.
Bounds BoundsAt(const SequenceMask& m, int64_t position) {
  int64_t end = m.kv_len;
  if (IsCausal(m)) end = std::min(end, std::max(position + 1, m.prefix_len));
  if (m.mask.window_right >= 0) end = std::min(end, position + m.mask.window_right + 1);
  Bounds bounds{std::min(m.mask.num_always_visible, end), 0, end};
  if (m.mask.window > 0) bounds.begin = std::max(bounds.begin, position - m.mask.window + 1);
  if (m.mask.chunk > 0) {
    const int64_t chunk_begin = FloorMultiple(position, m.mask.chunk);
    bounds.begin = std::max(bounds.begin, chunk_begin);
    bounds.end = std::min(bounds.end, chunk_begin + m.mask.chunk);
  }
  return bounds;
}

RowKeys Join(const Bounds& bounds) {
  const KeyInterval first = bounds.first_end > 0 ? KeyInterval{0, bounds.first_end} : KeyInterval{};
  if (bounds.begin >= bounds.end) return {first, {}};
  if (first.empty() || first.end < bounds.begin) return {first, {bounds.begin, bounds.end}};
  return {{}, {0, std::max(first.end, bounds.end)}};
}

// Rows with a position in [begin, end) see something of [begin, end) of their Bounds; others don't.
struct Positions {
  int64_t begin;
  int64_t end;
};
Positions PositionsThatSee(const SequenceMask& m) {
  Positions positions{-kUnlimited, kUnlimited};
  if (IsCausal(m) && m.prefix_len == 0) positions.begin = 0;
  if (m.mask.window_right >= 0) positions.begin = std::max(positions.begin, -m.mask.window_right);
  if (m.mask.window > 0) positions.end = m.kv_len + m.mask.window - 1;
  if (m.mask.chunk > 0) {
    positions.begin = std::max<int64_t>(positions.begin, 0);
    positions.end = std::min(positions.end, FloorMultiple(m.kv_len - 1, m.mask.chunk) + m.mask.chunk);
  }
  return positions;
}

bool SeesNothing(const SequenceMask& m) { return m.kv_len <= 0 || m.mask.window == 0; }

// --- Trees ---

int64_t FirstDrafted(const SequenceMask& m) { return m.kv_len - m.q_len; }

const uint64_t* TreeRow(const SequenceMask& m, int64_t row) { return m.tree.bits + row * m.tree.row_words; }

// Whether a window or chunk may tell drafted keys, or the positions of drafted rows, apart.
bool DepthMatters(const SequenceMask& m) {
  const int64_t most = m.q_len - 1;  // between the positions of a row and of a drafted key
  if (m.mask.window > 0 && m.mask.window <= most) return true;
  if (m.mask.window_right >= 0 && m.mask.window_right < most) return true;
  return m.mask.chunk > 0 && FloorMultiple(FirstDrafted(m), m.mask.chunk) != FloorMultiple(m.kv_len - 1, m.mask.chunk);
}

// Bits of a row that are set.
int64_t CountDrafted(const SequenceMask& m, int64_t row) {
  const uint64_t* const words = TreeRow(m, row);
  int64_t count = 0;
  int64_t j = 0;
  for (; j + 64 <= m.q_len; j += 64) count += std::popcount(words[j / 64]);
  if (j < m.q_len) count += std::popcount(words[j / 64] & ((uint64_t{1} << (m.q_len - j)) - 1));
  return count;
}

// Position of drafted token i.
int64_t DraftedPosition(const SequenceMask& m, int64_t i) {
  const int64_t sees_itself = TreeRow(m, i)[i / 64] >> (i % 64) & 1;
  return FirstDrafted(m) + CountDrafted(m, i) - sees_itself;
}

// Whether windows and chunks let a row see a drafted key.
bool NearEnough(const SequenceMask& m, int64_t row_position, int64_t key_position) {
  if (m.mask.window_right >= 0 && key_position > row_position + m.mask.window_right) return false;
  if (key_position < m.mask.num_always_visible) return true;
  if (m.mask.window > 0 && key_position <= row_position - m.mask.window) return false;
  return m.mask.chunk <= 0 || FloorMultiple(key_position, m.mask.chunk) == FloorMultiple(row_position, m.mask.chunk);
}

// What a drafted row at `position` sees of the kept keys, and drafted ones before `end`. Nothing is behind a row but
// drafted keys, so neither causality nor a right window hides a kept one.
RowKeys DraftedRowKeys(const SequenceMask& m, int64_t position, int64_t end) {
  const int64_t kept = FirstDrafted(m);
  int64_t begin = 0;
  if (m.mask.window > 0) begin = std::max(begin, position - m.mask.window + 1);
  if (m.mask.chunk > 0) begin = std::max(begin, FloorMultiple(position, m.mask.chunk));
  return Join({std::min(m.mask.num_always_visible, kept), std::min(begin, kept), end});
}

// Drafted tokens from this one on are in no row of [row_begin, row_end).
int64_t EndOfDrafted(const SequenceMask& m, int64_t row_begin, int64_t row_end) {
  for (int64_t word = (m.q_len - 1) / 64; word >= 0; --word) {
    uint64_t any = 0;
    for (int64_t row = row_begin; row < row_end; ++row) any |= TreeRow(m, row)[word];
    if (m.q_len - word * 64 < 64) any &= (uint64_t{1} << (m.q_len - word * 64)) - 1;
    if (any != 0) return word * 64 + 64 - std::countl_zero(any);
  }
  return 0;
}

// 16 drafted bits from drafted token `j` on; those that do not exist are 0.
uint32_t SixteenBits(const uint64_t* words, int64_t q_len, int64_t j) {
  if (j >= q_len) return 0;
  const int64_t word = j / 64, shift = j % 64;
  uint64_t bits = words[word] >> shift;
  if (shift > 48 && (word + 1) * 64 < q_len) bits |= words[word + 1] << (64 - shift);
  return static_cast<uint32_t>(bits & 0xFFFF);
}

// --- Sums over rows ---

// Sum of `count` whole numbers that grow evenly from `first` to `last`; exact below 2^53.
double SumEven(double first, double last, int64_t count) {
  const double n = static_cast<double>(count);
  return count % 2 == 0 ? n / 2 * (first + last) : n * ((first + last) / 2);
}

double SizeAt(const SequenceMask& m, int64_t position) {
  return static_cast<double>(Join(BoundsAt(m, position)).size());
}

// Positions at which one of the bounds' lines crosses another, chunks aside: at most kMaxCrossings. The lines are
// constant (0, kv_len, prefix_len, num_always_visible) or a constant distance from the position.
constexpr int64_t kMaxLines = 6;
constexpr int64_t kMaxCrossings = 3 * kMaxLines;
struct Crossings {
  int64_t at[kMaxCrossings];
  int64_t count = 0;

  Crossings(const SequenceMask& m, const int64_t* lines, int64_t num_lines) {
    for (int64_t i = 0; i < num_lines; ++i) {
      at[count++] = lines[i] - 1;
      if (m.mask.window > 0) at[count++] = lines[i] - 1 + m.mask.window;
      if (m.mask.window_right >= 0) at[count++] = lines[i] - 1 - m.mask.window_right;
    }
    std::sort(at, at + count);
  }
};

// Sum of the sizes at positions [begin, end), which lie in one chunk.
double PairsWithinChunk(const SequenceMask& m, int64_t begin, int64_t end) {
  int64_t lines[kMaxLines] = {0, m.kv_len, m.prefix_len, m.mask.num_always_visible};
  int64_t num_lines = 4;
  if (m.mask.chunk > 0) {
    lines[num_lines++] = FloorMultiple(begin, m.mask.chunk);
    lines[num_lines++] = FloorMultiple(begin, m.mask.chunk) + m.mask.chunk;
  }
  const Crossings crossings(m, lines, num_lines);
  double sum = 0;
  for (int64_t i = 0; i <= crossings.count && begin < end; ++i) {
    const int64_t stop = i < crossings.count ? std::min(crossings.at[i], end) : end;
    if (stop <= begin) continue;
    sum += SumEven(SizeAt(m, begin), SizeAt(m, stop - 1), stop - begin);
    begin = stop;
  }
  return sum;
}

// The same over whole chunks [begin, end): between crossings the sum of a chunk is a line of its number, too.
double PairsOfChunks(const SequenceMask& m, int64_t begin, int64_t end) {
  const int64_t lines[] = {0, m.kv_len, m.prefix_len, m.mask.num_always_visible};
  const Crossings crossings(m, lines, 4);
  const int64_t chunk = m.mask.chunk;
  const auto whole = [&](int64_t number) { return PairsWithinChunk(m, number * chunk, (number + 1) * chunk); };
  double sum = 0;
  const auto add_run = [&](int64_t stop) {
    if (stop <= begin) return;
    sum += SumEven(whole(begin), whole(stop - 1), stop - begin);
    begin = stop;
  };
  for (int64_t i = 0; i < crossings.count && begin < end; ++i) {
    // A right window reaches into the next chunk from the last positions of one, and ends at that chunk's end.
    const int64_t number = FloorMultiple(crossings.at[i], chunk) / chunk;
    if (number < begin) continue;
    add_run(std::min(number, end));
    add_run(std::min(number + 1, end));
  }
  add_run(end);
  return sum;
}

uint64_t LoadLittleEndian(const uint8_t* bytes) {
  uint64_t x = 0;
  for (int i = 0; i < 8; ++i) x |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return x;
}

// Bit i: byte i of eight is not 0.
uint32_t NonZeroBytes(uint64_t x) {
  constexpr uint64_t kLow = 0x7F7F7F7F7F7F7F7F;
  const uint64_t top = (((x & kLow) + kLow) | x) & ~kLow;
  return static_cast<uint32_t>(((top >> 7) * 0x0102040810204080) >> 56);
}

}  // namespace

SequenceMask ResolveMask(const Mask& mask, const SequenceSpec& sequence) noexcept {
  SequenceMask m;
  m.mask = mask;
  m.mask.window = std::min(mask.window, kUnlimited);
  m.mask.window_right = std::min(mask.window_right, kUnlimited);
  m.mask.chunk = std::min(mask.chunk, kUnlimited);
  m.mask.num_always_visible = std::clamp<int64_t>(mask.num_always_visible, 0, sequence.kv_len);
  m.tree = sequence.tree;
  m.q_len = sequence.q_len;
  m.kv_len = sequence.kv_len;
  m.q_pos = sequence.q_pos                          ? *sequence.q_pos
            : mask.causality == Causality::kTopLeft ? 0
                                                    : sequence.kv_len - sequence.q_len;
  m.prefix_len = std::clamp<int64_t>(sequence.prefix_len, 0, sequence.kv_len);
  return m;
}

int64_t RowPosition(const SequenceMask& mask, int64_t row) noexcept {
  return mask.has_tree() ? DraftedPosition(mask, row) : mask.q_pos + row;
}

int64_t KeyPosition(const SequenceMask& mask, int64_t key) noexcept {
  if (!mask.has_tree() || key < FirstDrafted(mask)) return key;
  return DraftedPosition(mask, key - FirstDrafted(mask));
}

RowKeys VisibleKeys(const SequenceMask& mask, int64_t row) noexcept {
  if (SeesNothing(mask)) return {};
  if (mask.has_tree()) {
    const bool by_depth = mask.mask.window > 0 || mask.mask.chunk > 0;
    return DraftedRowKeys(mask, by_depth ? DraftedPosition(mask, row) : FirstDrafted(mask), mask.kv_len);
  }
  return Join(BoundsAt(mask, mask.q_pos + row));
}

RowKeys VisibleHull(const SequenceMask& mask, int64_t row_begin, int64_t row_end) noexcept {
  if (row_begin >= row_end || SeesNothing(mask)) return {};
  if (mask.has_tree()) {
    int64_t lowest = FirstDrafted(mask);
    if (mask.mask.window > 0 || mask.mask.chunk > 0) {
      lowest = mask.kv_len;
      for (int64_t row = row_begin; row < row_end; ++row) lowest = std::min(lowest, DraftedPosition(mask, row));
    }
    return DraftedRowKeys(mask, lowest, FirstDrafted(mask) + EndOfDrafted(mask, row_begin, row_end));
  }
  const int64_t last = mask.q_pos + row_end - 1;
  Bounds hull{BoundsAt(mask, last).first_end, 0, 0};
  const Positions positions = PositionsThatSee(mask);
  const int64_t lo = std::max(mask.q_pos + row_begin, positions.begin);
  const int64_t hi = std::min(last, positions.end - 1);
  if (lo <= hi) {
    hull.begin = BoundsAt(mask, lo).begin;
    hull.end = BoundsAt(mask, hi).end;
  }
  return Join(hull);
}

double VisiblePairs(const SequenceMask& mask) noexcept {
  if (SeesNothing(mask)) return 0;
  double pairs = 0;
  if (mask.has_tree()) {
    const int64_t kept = FirstDrafted(mask);
    const bool by_depth = DepthMatters(mask);
    for (int64_t row = 0; row < mask.q_len; ++row) {
      const RowKeys keys = VisibleKeys(mask, row);
      int64_t count = Intersect(keys.first, 0, kept).size() + Intersect(keys.rest, 0, kept).size();
      if (!by_depth) {
        count += CountDrafted(mask, row);
      } else {
        for (int64_t block = kept / kBlockKeys * kBlockKeys; block < mask.kv_len; block += kBlockKeys) {
          uint16_t bits[kTilesPerBlock];
          IntervalBits({{}, Intersect(keys.rest, kept, mask.kv_len)}, block, bits);
          AndTreeBits(mask, row, block, bits);
          for (const uint16_t tile : bits) count += std::popcount(tile);
        }
      }
      pairs += static_cast<double>(count);
    }
    return pairs;
  }
  const int64_t begin = mask.q_pos, end = mask.q_pos + mask.q_len;
  constexpr int64_t kFewRows = 32;  // sooner added up than taken apart
  if (end - begin <= kFewRows) {
    for (int64_t position = begin; position < end; ++position) pairs += SizeAt(mask, position);
    return pairs;
  }
  if (mask.mask.chunk <= 0) return PairsWithinChunk(mask, begin, end);
  const int64_t chunk = mask.mask.chunk;
  const int64_t whole_begin = FloorMultiple(begin + chunk - 1, chunk), whole_end = FloorMultiple(end, chunk);
  if (whole_begin > whole_end) return PairsWithinChunk(mask, begin, end);
  return PairsWithinChunk(mask, begin, whole_begin) + PairsOfChunks(mask, whole_begin / chunk, whole_end / chunk) +
         PairsWithinChunk(mask, whole_end, end);
}

void IntervalBits(const RowKeys& keys, int64_t block_begin, uint16_t* bits) noexcept {
  for (int64_t t = 0; t < kTilesPerBlock; ++t) {
    const int64_t base = block_begin + t * kTileKeys;
    uint32_t tile = 0;
    for (const KeyInterval& interval : {keys.first, keys.rest}) {
      const int64_t begin = std::clamp<int64_t>(interval.begin - base, 0, kTileKeys);
      const int64_t end = std::clamp<int64_t>(interval.end - base, 0, kTileKeys);
      if (begin < end) tile |= (1u << end) - (1u << begin);
    }
    bits[t] = static_cast<uint16_t>(tile);
  }
}

void AndTreeBits(const SequenceMask& mask, int64_t row, int64_t block_begin, uint16_t* bits) noexcept {
  HEADLANE_DCHECK(mask.has_tree());
  const int64_t kept = FirstDrafted(mask);
  if (block_begin + kBlockKeys <= kept) return;
  const uint64_t* const words = TreeRow(mask, row);
  const bool by_depth = DepthMatters(mask);
  const int64_t position = by_depth ? DraftedPosition(mask, row) : 0;
  for (int64_t t = 0; t < kTilesPerBlock; ++t) {
    const int64_t drafted = block_begin + t * kTileKeys - kept;  // of the tile's first key; negative: not drafted
    if (drafted <= -kTileKeys || bits[t] == 0) continue;
    const uint32_t kept_bits = drafted < 0 ? (1u << -drafted) - 1 : 0;
    uint32_t tile = drafted < 0 ? SixteenBits(words, mask.q_len, 0) << -drafted | kept_bits
                                : SixteenBits(words, mask.q_len, drafted);
    tile &= bits[t];
    if (by_depth) {
      for (uint32_t left = tile & ~kept_bits; left != 0; left &= left - 1) {
        const int lane = std::countr_zero(left);
        if (!NearEnough(mask, position, DraftedPosition(mask, drafted + lane))) tile &= ~(1u << lane);
      }
    }
    bits[t] = static_cast<uint16_t>(tile);
  }
}

void AndBoolBits(const uint8_t* row, BoolMaskView::Format format, int64_t kv_len, int64_t block_begin,
                 uint16_t* bits) noexcept {
  for (int64_t t = 0; t < kTilesPerBlock; ++t) {
    if (bits[t] == 0) continue;
    const int64_t column = block_begin + t * kTileKeys;
    const int64_t num_columns = std::min(kTileKeys, kv_len - column);
    uint32_t tile = 0;
    if (format == BoolMaskView::Format::kBits) {
      tile = row[column / 8];
      if (num_columns > 8) tile |= static_cast<uint32_t>(row[column / 8 + 1]) << 8;
    } else if (num_columns == kTileKeys) {
      tile = NonZeroBytes(LoadLittleEndian(row + column)) | NonZeroBytes(LoadLittleEndian(row + column + 8)) << 8;
    } else {
      for (int64_t i = 0; i < num_columns; ++i) tile |= (row[column + i] != 0 ? 1u : 0u) << i;
    }
    bits[t] = static_cast<uint16_t>(bits[t] & tile);
  }
}

}  // namespace headlane::internal
