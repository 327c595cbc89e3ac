// Ranges of keys, which is what masks become.
//
// Separate from visibility.h so that whoever works on ranges needs to know no mask.
#ifndef HEADLANE_SRC_MASK_INTERVAL_H_
#define HEADLANE_SRC_MASK_INTERVAL_H_

#include <cstdint>

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

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_MASK_INTERVAL_H_
