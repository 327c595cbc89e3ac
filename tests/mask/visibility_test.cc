// What rows see, against the sentences of headlane/mask.h taken key by key: every kind of mask and every combination at
// small sizes, random ones at large sizes, and 128-bit arithmetic at the extremes.
#include "mask/visibility.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/random.h"

namespace headlane::internal {
namespace {

using ::headlane::testing::Random;

constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();

// A mask, its sequence, and a tree's memory.
struct Masked {
  Mask mask;
  SequenceSpec sequence;
  std::vector<uint64_t> words;

  SequenceMask Resolve() const { return ResolveMask(mask, sequence); }
  bool has_tree() const { return sequence.tree.bits != nullptr; }
  bool TreeBit(int64_t row, int64_t drafted) const {
    return (words[static_cast<size_t>(row * sequence.tree.row_words + drafted / 64)] >> (drafted % 64) & 1) != 0;
  }
};

std::string Describe(const Masked& m) {
  std::string text = "causality " + std::to_string(static_cast<int>(m.mask.causality)) + " window " +
                     std::to_string(m.mask.window) + " right " + std::to_string(m.mask.window_right) + " always " +
                     std::to_string(m.mask.num_always_visible) + " chunk " + std::to_string(m.mask.chunk) + " q_len " +
                     std::to_string(m.sequence.q_len) + " kv_len " + std::to_string(m.sequence.kv_len) + " prefix " +
                     std::to_string(m.sequence.prefix_len);
  if (m.sequence.q_pos) text += " q_pos " + std::to_string(*m.sequence.q_pos);
  if (m.has_tree()) text += " tree";
  return text;
}

__int128 FloorDiv(__int128 a, __int128 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

__int128 PositionOfRow(const Masked& m, int64_t row) {
  const SequenceSpec& s = m.sequence;
  if (m.has_tree()) {
    __int128 position = __int128{s.kv_len} - s.q_len;
    for (int64_t j = 0; j < s.q_len; ++j) position += j != row && m.TreeBit(row, j) ? 1 : 0;
    return position;
  }
  if (s.q_pos) return __int128{*s.q_pos} + row;
  if (m.mask.causality == Causality::kTopLeft) return row;
  return __int128{s.kv_len} - s.q_len + row;
}

__int128 PositionOfKey(const Masked& m, int64_t key) {
  const int64_t kept = m.sequence.kv_len - m.sequence.q_len;
  return m.has_tree() && key >= kept ? PositionOfRow(m, key - kept) : __int128{key};
}

// One sentence of the contract per line.
bool IsVisible(const Masked& m, int64_t row, int64_t key) {
  const SequenceSpec& s = m.sequence;
  const __int128 a = PositionOfRow(m, row);
  const __int128 p = PositionOfKey(m, key);
  const bool drafted = m.has_tree() && key >= s.kv_len - s.q_len;
  const bool always = p < m.mask.num_always_visible;
  if (drafted && !m.TreeBit(row, key - (s.kv_len - s.q_len))) return false;
  if (!drafted && m.mask.causality != Causality::kFull && p > a && p >= s.prefix_len) return false;
  if (m.mask.window == 0) return false;
  if (m.mask.window > 0 && p <= a - m.mask.window && !always) return false;
  if (m.mask.window_right >= 0 && p > a + m.mask.window_right) return false;
  if (m.mask.chunk > 0 && FloorDiv(p, m.mask.chunk) != FloorDiv(a, m.mask.chunk) && !always) return false;
  return true;
}

bool Contains(const RowKeys& keys, int64_t key) {
  return (keys.first.begin <= key && key < keys.first.end) || (keys.rest.begin <= key && key < keys.rest.end);
}

// What headers promise of any two intervals.
void ExpectWellFormed(const RowKeys& keys, int64_t kv_len) {
  for (const KeyInterval& interval : {keys.first, keys.rest}) {
    if (interval.empty()) {
      EXPECT_EQ(interval, KeyInterval{});
    } else {
      EXPECT_GE(interval.begin, 0);
      EXPECT_LE(interval.end, kv_len);
    }
  }
  if (!keys.first.empty()) {
    EXPECT_EQ(keys.first.begin, 0);
  }
  if (!keys.first.empty() && !keys.rest.empty()) {
    EXPECT_LT(keys.first.end, keys.rest.begin) << "they would be one";
  }
}

// Bits of a row over all blocks, as execution gets them.
std::vector<bool> RowBits(const SequenceMask& mask, int64_t row) {
  std::vector<bool> visible(static_cast<size_t>(mask.kv_len));
  const RowKeys keys = VisibleKeys(mask, row);
  for (int64_t block = 0; block < mask.kv_len; block += 128) {
    uint16_t bits[8];
    IntervalBits(keys, block, bits);
    if (mask.has_tree()) AndTreeBits(mask, row, block, bits);
    for (int64_t i = 0; i < 128; ++i) {
      const bool bit = (bits[i / 16] >> (i % 16) & 1) != 0;
      if (block + i < mask.kv_len) {
        visible[static_cast<size_t>(block + i)] = bit;
      } else {
        EXPECT_FALSE(bit) << "a key behind the last one";
      }
    }
  }
  return visible;
}

// Everything about a mask without a tree: rows, hulls of all ranges of rows, pairs.
void CheckEverything(const Masked& m) {
  const SequenceMask mask = m.Resolve();
  const int64_t q_len = m.sequence.q_len, kv_len = m.sequence.kv_len;
  int64_t pairs = 0;
  std::vector<std::vector<bool>> seen(static_cast<size_t>(q_len));
  for (int64_t row = 0; row < q_len; ++row) {
    EXPECT_EQ(RowPosition(mask, row), static_cast<int64_t>(PositionOfRow(m, row)));
    const RowKeys keys = VisibleKeys(mask, row);
    ExpectWellFormed(keys, kv_len);
    for (int64_t key = 0; key < kv_len; ++key) {
      const bool visible = IsVisible(m, row, key);
      EXPECT_EQ(Contains(keys, key), visible) << "row " << row << " key " << key;
      seen[static_cast<size_t>(row)].push_back(visible);
      pairs += visible ? 1 : 0;
    }
  }
  EXPECT_EQ(VisiblePairs(mask), static_cast<double>(pairs));
  for (int64_t begin = 0; begin <= q_len; ++begin) {
    EXPECT_EQ(VisibleHull(mask, begin, begin), RowKeys{});
    std::vector<bool> by_any(static_cast<size_t>(kv_len));
    for (int64_t end = begin + 1; end <= q_len; ++end) {
      const RowKeys hull = VisibleHull(mask, begin, end);
      ExpectWellFormed(hull, kv_len);
      for (int64_t key = 0; key < kv_len; ++key) {
        const size_t k = static_cast<size_t>(key);
        by_any[k] = by_any[k] || seen[static_cast<size_t>(end - 1)][k];
        EXPECT_EQ(Contains(hull, key), by_any[k]) << "rows [" << begin << ", " << end << ") key " << key;
      }
    }
  }
}

std::vector<Masked> SmallMasks(int64_t q_len, int64_t kv_len) {
  std::vector<Masked> all;
  for (const Causality causality : {Causality::kFull, Causality::kBottomRight, Causality::kTopLeft}) {
    for (const int64_t window : {kNoWindow, int64_t{0}, int64_t{1}, int64_t{3}, kMax64}) {
      for (const int64_t right : {kNoWindow, int64_t{0}, int64_t{2}}) {
        for (const int64_t always : {0, 1, 3}) {
          for (const int64_t chunk : {0, 1, 2, 5}) {
            for (const int64_t prefix : {int64_t{0}, int64_t{2}, kv_len}) {
              Masked m;
              m.mask = {causality, window, right, always, chunk};
              m.sequence.q_len = q_len;
              m.sequence.kv_len = kv_len;
              m.sequence.prefix_len = prefix;
              all.push_back(m);
            }
          }
        }
      }
    }
  }
  return all;
}

TEST(Visibility, IsWhatTheContractSaysKeyByKey) {
  for (const int64_t q_len : {0, 1, 2, 3, 5, 8}) {
    for (const int64_t kv_len : {0, 1, 2, 4, 7, 9}) {
      for (const Masked& m : SmallMasks(q_len, kv_len)) {
        SCOPED_TRACE(Describe(m));
        CheckEverything(m);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Visibility, RowsMayStandAnywhere) {
  for (const int64_t q_pos : {-9, -3, -1, 0, 1, 4, 7, 12, 20}) {
    for (const int64_t q_len : {1, 4, 6}) {
      for (Masked m : SmallMasks(q_len, 7)) {
        m.sequence.q_pos = q_pos;
        SCOPED_TRACE(Describe(m));
        CheckEverything(m);
        if (HasFailure()) return;
      }
    }
  }
}

int64_t RandomLimit(Random& random, int64_t most) {
  if (random.OneIn(4)) return random.Int(0, 4);
  return random.OneIn(8) ? kMax64 - random.Int(0, 2) : random.Int(0, most);
}

Masked RandomMasked(Random& random, int64_t most_rows, int64_t most_keys) {
  Masked m;
  m.mask.causality = static_cast<Causality>(random.Int(0, 2));
  m.sequence.kv_len = random.Int(0, most_keys);
  m.sequence.q_len = random.OneIn(3) ? random.Int(0, most_rows) : random.Int(0, std::min(most_rows, int64_t{3}));
  if (random.OneIn(2)) m.mask.window = RandomLimit(random, most_keys);
  if (random.OneIn(3)) m.mask.window_right = RandomLimit(random, most_keys);
  if (random.OneIn(2)) m.mask.num_always_visible = RandomLimit(random, most_keys);
  if (random.OneIn(2)) m.mask.chunk = RandomLimit(random, most_keys);
  if (random.OneIn(3)) m.sequence.prefix_len = random.Int(0, 2 * most_keys);
  if (random.OneIn(3)) m.sequence.q_pos = random.Int(-2 * most_keys, 2 * most_keys);
  return m;
}

TEST(Visibility, RandomMasksOfManyRows) {
  Random random(1);
  for (int trial = 0; trial < 600; ++trial) {
    const Masked m = RandomMasked(random, 90, 200);
    SCOPED_TRACE(Describe(m));
    CheckEverything(m);
    if (HasFailure()) return;
  }
}

// Sums over more rows than can be taken pair by pair: those of the rows' intervals.
TEST(Visibility, PairsAreTheSumOfTheRows) {
  Random random(2);
  for (int trial = 0; trial < 400; ++trial) {
    Masked m = RandomMasked(random, 5000, 8000);
    m.sequence.q_len = random.Int(0, 5000);
    SCOPED_TRACE(Describe(m));
    const SequenceMask mask = m.Resolve();
    double pairs = 0;
    for (int64_t row = 0; row < m.sequence.q_len; ++row) pairs += static_cast<double>(VisibleKeys(mask, row).size());
    ASSERT_EQ(VisiblePairs(mask), pairs);
  }
}

// The largest lengths and positions that a plan accepts, with any limits.
TEST(Visibility, ExtremesDoNotOverflow) {
  constexpr int64_t kFar = int64_t{1} << 40;
  constexpr int64_t kRows = int64_t{1} << 30;
  Random random(3);
  for (int trial = 0; trial < 20000; ++trial) {
    Masked m;
    const auto pick = [&](std::vector<int64_t> from) { return random.Pick(from); };
    m.mask.causality = static_cast<Causality>(random.Int(0, 2));
    m.mask.window = pick({kNoWindow, std::numeric_limits<int64_t>::min(), 1, 5, kFar, kMax64 - 1, kMax64});
    m.mask.window_right = pick({kNoWindow, 0, 5, kFar, kMax64 - 1, kMax64});
    m.mask.num_always_visible = pick({0, 1, 5, kFar, kMax64});
    m.mask.chunk = pick({0, 1, 7, kFar, kMax64 - 1, kMax64});
    m.sequence.q_len = pick({1, 2, 40, kRows - 1, kRows});
    m.sequence.kv_len = pick({0, 1, 2, 1000, kFar - 1, kFar});
    m.sequence.prefix_len = pick({0, 3, kFar});
    if (random.OneIn(2)) m.sequence.q_pos = pick({-kFar, -kFar + 1, -1, 0, 17, kFar - 1, kFar});
    SCOPED_TRACE(Describe(m));
    const SequenceMask mask = m.Resolve();
    const int64_t q_len = m.sequence.q_len, kv_len = m.sequence.kv_len;
    for (const int64_t row : {int64_t{0}, q_len / 2, q_len - 1}) {
      const RowKeys keys = VisibleKeys(mask, row);
      ASSERT_EQ(VisibleHull(mask, row, row + 1), keys);
      const int64_t own = static_cast<int64_t>(PositionOfRow(m, row));
      for (const int64_t near :
           {int64_t{0}, own, kv_len / 2, kv_len - 1, keys.first.end, keys.rest.begin, keys.rest.end}) {
        for (int64_t key = std::max<int64_t>(0, near - 2); key <= std::min(near + 2, kv_len - 1); ++key) {
          ASSERT_EQ(Contains(keys, key), IsVisible(m, row, key)) << "row " << row << " key " << key;
        }
      }
    }
    const RowKeys hull = VisibleHull(mask, 0, q_len);
    ExpectWellFormed(hull, kv_len);
    const double pairs = VisiblePairs(mask);
    ASSERT_GE(pairs, 0.0);
    ASSERT_LE(pairs, static_cast<double>(q_len) * static_cast<double>(kv_len));
    ASSERT_EQ(pairs == 0, hull.empty());
  }
}

// --- Trees ---

Masked WithTree(Random& random, int64_t q_len, int64_t kv_len) {
  Masked m;
  m.sequence.q_len = q_len;
  m.sequence.kv_len = kv_len;
  m.sequence.tree.row_words = (q_len + 63) / 64 + random.Int(0, 1);
  // Ancestors of a random tree, or any bits at all; bits that name no drafted key are noise.
  m.words.resize(static_cast<size_t>(std::max<int64_t>(1, q_len * m.sequence.tree.row_words)));
  for (uint64_t& word : m.words) word = static_cast<uint64_t>(random.Int(0, kMax64)) * 3;
  const bool is_tree = random.OneIn(2);
  for (int64_t i = 0; i < q_len && is_tree; ++i) {
    uint64_t* const row = m.words.data() + i * m.sequence.tree.row_words;
    const int64_t parent = random.Int(-1, i - 1);
    for (int64_t j = 0; j < q_len; ++j) {
      const bool bit = j == i || (parent >= 0 && m.TreeBit(parent, j));
      row[j / 64] = (row[j / 64] & ~(uint64_t{1} << (j % 64))) | static_cast<uint64_t>(bit) << (j % 64);
    }
  }
  m.sequence.tree.bits = m.words.data();
  return m;
}

TEST(Visibility, TreesAreWhatTheContractSaysKeyByKey) {
  Random random(4);
  for (int trial = 0; trial < 600; ++trial) {
    const int64_t q_len = random.OneIn(3) ? random.Int(0, 150) : random.Int(0, 9);
    Masked m = WithTree(random, q_len, q_len + (random.OneIn(3) ? random.Int(0, 300) : random.Int(0, 5)));
    m.sequence.tree.bits = m.words.data();
    m.mask.causality = static_cast<Causality>(random.Int(0, 2));
    if (random.OneIn(2)) m.mask.window = RandomLimit(random, q_len + 20);
    if (random.OneIn(3)) m.mask.window_right = RandomLimit(random, q_len);
    if (random.OneIn(3)) m.mask.num_always_visible = RandomLimit(random, m.sequence.kv_len);
    if (random.OneIn(3)) m.mask.chunk = RandomLimit(random, q_len + 20);
    if (random.OneIn(3)) m.sequence.prefix_len = random.Int(0, m.sequence.kv_len);
    SCOPED_TRACE(Describe(m));
    const SequenceMask mask = m.Resolve();
    int64_t pairs = 0;
    std::vector<std::vector<bool>> seen;
    for (int64_t row = 0; row < q_len; ++row) {
      ASSERT_EQ(RowPosition(mask, row), static_cast<int64_t>(PositionOfRow(m, row)));
      ExpectWellFormed(VisibleKeys(mask, row), m.sequence.kv_len);
      seen.push_back(RowBits(mask, row));
      for (int64_t key = 0; key < m.sequence.kv_len; ++key) {
        const bool visible = seen.back()[static_cast<size_t>(key)];
        ASSERT_EQ(visible, IsVisible(m, row, key)) << "row " << row << " key " << key;
        pairs += visible ? 1 : 0;
      }
    }
    for (int64_t key = 0; key < m.sequence.kv_len; ++key) {
      ASSERT_EQ(KeyPosition(mask, key), static_cast<int64_t>(PositionOfKey(m, key)));
    }
    ASSERT_EQ(VisiblePairs(mask), static_cast<double>(pairs));
    const int64_t begin = random.Int(0, q_len), end = random.Int(begin, q_len);
    const RowKeys hull = VisibleHull(mask, begin, end);
    ExpectWellFormed(hull, m.sequence.kv_len);
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t key = 0; key < m.sequence.kv_len; ++key) {
        ASSERT_TRUE(!seen[static_cast<size_t>(row)][static_cast<size_t>(key)] || Contains(hull, key));
      }
    }
    // Little more: kept keys that a row sees, and drafted ones before the last that a row has a bit for.
    const int64_t kept = m.sequence.kv_len - q_len;
    int64_t drafted_end = 0;
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t j = drafted_end; j < q_len; ++j) drafted_end = m.TreeBit(row, j) ? j + 1 : drafted_end;
    }
    for (int64_t key = 0; key < m.sequence.kv_len; ++key) {
      bool by_any = key >= kept && key < kept + drafted_end && begin < end && m.mask.window != 0;
      for (int64_t row = begin; row < end && key < kept; ++row) {
        by_any = by_any || seen[static_cast<size_t>(row)][static_cast<size_t>(key)];
      }
      ASSERT_EQ(Contains(hull, key), by_any) << key;
    }
  }
}

// --- Bits ---

TEST(IntervalBits, AreThoseOfTheIntervals) {
  Random random(5);
  for (int trial = 0; trial < 2000; ++trial) {
    const int64_t block = random.Int(0, 3) * 128;
    RowKeys keys;
    keys.rest = {random.Int(0, 500), random.Int(0, 700)};
    if (keys.rest.empty()) keys.rest = {};
    if (!keys.rest.empty() && random.OneIn(2)) keys.first = {0, random.Int(0, keys.rest.begin)};
    uint16_t bits[8];
    IntervalBits(keys, block, bits);
    for (int64_t i = 0; i < 128; ++i) {
      ASSERT_EQ((bits[i / 16] >> (i % 16) & 1) != 0, Contains(keys, block + i)) << block << " + " << i;
    }
  }
}

TEST(AndBoolBits, BytesAndBitsHideWhatIsZero) {
  Random random(6);
  for (int trial = 0; trial < 600; ++trial) {
    const int64_t kv_len = random.Int(1, 400);
    const auto format = random.OneIn(2) ? BoolMaskView::Format::kBytes : BoolMaskView::Format::kBits;
    const bool bytes = format == BoolMaskView::Format::kBytes;
    // Exactly as long as it must be: a sanitizer sees what is read behind.
    std::vector<uint8_t> row(static_cast<size_t>(bytes ? kv_len : (kv_len + 7) / 8));
    for (uint8_t& byte : row) {
      byte = static_cast<uint8_t>(random.Int(0, 255));
      if (bytes && random.OneIn(2)) byte = random.OneIn(2) ? 0 : random.Pick(std::vector<uint8_t>{1, 127, 128, 255});
    }
    const int64_t block = random.Int(0, (kv_len - 1) / 128) * 128;
    const int64_t begin = random.Int(0, kv_len - 1);
    const RowKeys keys{{}, {begin, random.Int(begin + 1, kv_len)}};
    uint16_t bits[8];
    IntervalBits(keys, block, bits);
    AndBoolBits(row.data(), format, kv_len, block, bits);
    for (int64_t i = 0; i < 128; ++i) {
      const int64_t key = block + i;
      const bool shown = key < kv_len && (bytes ? row[static_cast<size_t>(key)] != 0
                                                : (row[static_cast<size_t>(key / 8)] >> (key % 8) & 1) != 0);
      ASSERT_EQ((bits[i / 16] >> (i % 16) & 1) != 0, shown && Contains(keys, key)) << key;
    }
  }
}

}  // namespace
}  // namespace headlane::internal
