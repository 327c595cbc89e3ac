// The interval of a row against the sentences of headlane/mask.h, key by key, and against 128-bit arithmetic at the
// extremes.
#include "mask/interval.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace headlane::internal {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// One sentence of the contract per line.
bool IsVisible(const Mask& mask, int64_t q_len, int64_t kv_len, int64_t row, int64_t key) {
  const __int128 p = key;
  const __int128 a = mask.causality == Causality::kTopLeft ? __int128{row} : __int128{kv_len} - q_len + row;
  if (mask.causality != Causality::kFull && p > a) return false;
  if (mask.window == 0) return false;
  if (mask.window > 0 && p <= a - mask.window) return false;
  return true;
}

std::vector<Mask> AllMasks() {
  std::vector<Mask> masks;
  for (const Causality causality : {Causality::kFull, Causality::kBottomRight, Causality::kTopLeft}) {
    for (const int64_t window :
         {kNoWindow, int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{40}, kMax}) {
      masks.push_back({causality, window});
    }
  }
  return masks;
}

TEST(VisibleInterval, IsWhatTheContractSaysKeyByKey) {
  for (const Mask& mask : AllMasks()) {
    for (int64_t q_len = 0; q_len <= 12; ++q_len) {
      for (int64_t kv_len = 0; kv_len <= 12; ++kv_len) {
        for (int64_t row = 0; row < q_len; ++row) {
          const KeyInterval visible = VisibleInterval(mask, q_len, kv_len, row);
          for (int64_t key = 0; key < kv_len; ++key) {
            EXPECT_EQ(visible.begin <= key && key < visible.end, IsVisible(mask, q_len, kv_len, row, key))
                << "causality " << int(mask.causality) << " window " << mask.window << " q_len " << q_len << " kv_len "
                << kv_len << " row " << row << " key " << key;
          }
          EXPECT_GE(visible.begin, 0);
          EXPECT_LE(visible.end, kv_len);
          if (visible.empty()) {
            EXPECT_EQ(visible, KeyInterval{});
          }
        }
      }
    }
  }
}

TEST(VisibleInterval, HullAndPairsAreThoseOfTheRows) {
  for (const Mask& mask : AllMasks()) {
    for (int64_t q_len = 0; q_len <= 11; ++q_len) {
      for (int64_t kv_len = 0; kv_len <= 13; ++kv_len) {
        for (int64_t begin = 0; begin <= q_len; ++begin) {
          KeyInterval hull;
          int64_t pairs = 0;
          for (int64_t end = begin; end <= q_len; ++end) {
            EXPECT_EQ(VisibleHull(mask, q_len, kv_len, begin, end), hull)
                << "causality " << int(mask.causality) << " window " << mask.window << " q_len " << q_len << " kv_len "
                << kv_len << " rows [" << begin << ", " << end << ")";
            if (end == q_len) break;
            const KeyInterval visible = VisibleInterval(mask, q_len, kv_len, end);
            pairs += visible.size();
            if (visible.empty()) continue;
            hull = hull.empty() ? visible
                                : KeyInterval{std::min(hull.begin, visible.begin), std::max(hull.end, visible.end)};
          }
          if (begin == 0) {
            EXPECT_EQ(VisiblePairs(mask, q_len, kv_len), static_cast<double>(pairs))
                << "causality " << int(mask.causality) << " window " << mask.window << " q_len " << q_len << " kv_len "
                << kv_len;
          }
        }
      }
    }
  }
}

// What execution relies on to visit one run of tiles per row block.
TEST(VisibleInterval, BothEndsNeverFallFromRowToRow) {
  for (const Mask& mask : AllMasks()) {
    for (int64_t q_len = 0; q_len <= 30; ++q_len) {
      for (const int64_t kv_len : {1, 5, 20, 64}) {
        KeyInterval previous;
        for (int64_t row = 0; row < q_len; ++row) {
          const KeyInterval visible = VisibleInterval(mask, q_len, kv_len, row);
          if (visible.empty()) continue;
          EXPECT_GE(visible.begin, previous.begin);
          EXPECT_GE(visible.end, previous.end);
          if (!previous.empty()) {
            EXPECT_LE(visible.begin, previous.end);
          }
          previous = visible;
        }
      }
    }
  }
}

TEST(VisibleInterval, ExtremesDoNotOverflow) {
  const std::vector<int64_t> lengths = {0, 1, 2, kMax - 1, kMax};
  for (const Causality causality : {Causality::kFull, Causality::kBottomRight, Causality::kTopLeft}) {
    for (const int64_t window :
         {kNoWindow, int64_t{1}, int64_t{5}, kMax - 1, kMax, std::numeric_limits<int64_t>::min()}) {
      const Mask mask{causality, window};
      for (const int64_t q_len : lengths) {
        for (const int64_t kv_len : lengths) {
          for (const int64_t row : {int64_t{0}, q_len / 2, q_len - 1}) {
            if (row < 0 || row >= q_len) continue;
            const KeyInterval visible = VisibleInterval(mask, q_len, kv_len, row);
            for (const int64_t key : {int64_t{0}, int64_t{1}, kv_len / 2, kv_len - 2, kv_len - 1}) {
              if (key < 0 || key >= kv_len) continue;
              EXPECT_EQ(visible.begin <= key && key < visible.end, IsVisible(mask, q_len, kv_len, row, key))
                  << "causality " << int(causality) << " window " << window << " q_len " << q_len << " kv_len "
                  << kv_len << " row " << row << " key " << key;
            }
            EXPECT_EQ(VisibleHull(mask, q_len, kv_len, row, row + 1), visible);
          }
          EXPECT_GE(VisiblePairs(mask, q_len, kv_len), 0.0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headlane::internal
