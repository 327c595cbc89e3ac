// Which keys a query row sees, as an interval: the library's one definition of visibility.
//
// Separate from planning and execution so that both ask the same function, and so that no kernel ever knows a mask:
// masks become intervals of keys per row, and those become tiles to visit. A later mask kind that is not an interval
// keeps this as the hull of what a row sees, and adds its bits beside it. Called by src/plan (what to visit) and
// src/exec (which lanes count).
#ifndef HEADLANE_SRC_MASK_INTERVAL_H_
#define HEADLANE_SRC_MASK_INTERVAL_H_

#include <cstdint>

#include "headlane/mask.h"

namespace headlane::internal {

// Keys [begin, end). An empty one is [0, 0).
struct KeyInterval {
  int64_t begin = 0;
  int64_t end = 0;

  bool empty() const { return begin >= end; }
  int64_t size() const { return empty() ? 0 : end - begin; }
  friend bool operator==(const KeyInterval&, const KeyInterval&) = default;
};

// The part of `a` that lies in [begin, end).
constexpr KeyInterval Intersect(const KeyInterval& a, int64_t begin, int64_t end) {
  const int64_t lo = a.begin > begin ? a.begin : begin;
  const int64_t hi = a.end < end ? a.end : end;
  return lo < hi ? KeyInterval{lo, hi} : KeyInterval{};
}

// What query row `row` (a token of the sequence, 0 .. q_len - 1) sees of keys [0, kv_len).
// Requires: q_len, kv_len >= 0; any window, a negative one being none. No value overflows.
KeyInterval VisibleInterval(const Mask& mask, int64_t q_len, int64_t kv_len, int64_t row) noexcept;

// The smallest interval with everything that rows [row_begin, row_end) see. Constant time.
KeyInterval VisibleHull(const Mask& mask, int64_t q_len, int64_t kv_len, int64_t row_begin, int64_t row_end) noexcept;

// Sum of the sizes of VisibleInterval over all rows. Constant time; exact below 2^53.
double VisiblePairs(const Mask& mask, int64_t q_len, int64_t kv_len) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_MASK_INTERVAL_H_
