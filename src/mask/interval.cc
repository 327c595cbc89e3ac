#include "mask/interval.h"

#include <algorithm>

namespace headlane::internal {
namespace {

// Row i stands at position i + offset.
int64_t PositionOffset(const Mask& mask, int64_t q_len, int64_t kv_len) {
  return mask.causality == Causality::kTopLeft ? 0 : kv_len - q_len;
}

// Rows [begin, end) of all possible rows that see something; outside of them the formulas of VisibleInterval give
// nothing. Between them both ends of the interval never fall from one row to the next.
struct RowRange {
  int64_t begin;
  int64_t end;
};
RowRange RowsThatSee(const Mask& mask, int64_t q_len, int64_t kv_len) {
  if (kv_len <= 0 || mask.window == 0) return {0, 0};
  const int64_t offset = PositionOffset(mask, q_len, kv_len);
  // Causal rows before the first key see nothing.
  const int64_t begin = mask.causality == Causality::kFull ? 0 : std::max<int64_t>(0, -offset);
  // Nor does a row whose window starts behind the last key: position >= kv_len + window - 1. Compared so that nothing
  // overflows.
  int64_t end = q_len;
  if (mask.window > 0 && q_len + offset > kv_len && q_len + offset - kv_len > mask.window - 1) {
    end = kv_len + mask.window - 1 - offset;
  }
  return {std::min(begin, end), end};
}

// Sum of max(0, x - shift) for x in [begin, end). Requires: 0 <= begin <= end, shift >= 0.
double SumAbove(int64_t begin, int64_t end, int64_t shift) {
  if (end - 1 <= shift) return 0;
  const double first = static_cast<double>(std::max(begin, shift) - shift);
  const double last = static_cast<double>(end - 1 - shift);
  return (first + last) * (last - first + 1) / 2;
}

}  // namespace

KeyInterval VisibleInterval(const Mask& mask, int64_t q_len, int64_t kv_len, int64_t row) noexcept {
  if (mask.window == 0) return {};
  const int64_t position = row + PositionOffset(mask, q_len, kv_len);
  KeyInterval visible{0, kv_len};
  if (mask.causality != Causality::kFull) visible.end = position < kv_len ? position + 1 : kv_len;
  // Positions (position - window, ...]. The comparison keeps huge windows from wrapping.
  if (mask.window > 0 && position >= mask.window) visible.begin = position - mask.window + 1;
  return visible.empty() ? KeyInterval{} : visible;
}

KeyInterval VisibleHull(const Mask& mask, int64_t q_len, int64_t kv_len, int64_t row_begin, int64_t row_end) noexcept {
  const RowRange rows = RowsThatSee(mask, q_len, kv_len);
  const int64_t first = std::max(row_begin, rows.begin);
  const int64_t last = std::min(row_end, rows.end) - 1;
  if (first > last) return {};
  return {VisibleInterval(mask, q_len, kv_len, first).begin, VisibleInterval(mask, q_len, kv_len, last).end};
}

double VisiblePairs(const Mask& mask, int64_t q_len, int64_t kv_len) noexcept {
  const RowRange rows = RowsThatSee(mask, q_len, kv_len);
  if (rows.begin >= rows.end) return 0;
  const int64_t offset = PositionOffset(mask, q_len, kv_len);
  const double num_rows = static_cast<double>(rows.end - rows.begin);
  double pairs = num_rows * static_cast<double>(kv_len);  // sum of the ends: all kv_len, ...
  if (mask.causality != Causality::kFull) {
    // ... or position + 1 where that is less.
    const int64_t begin = rows.begin + offset, end = rows.end + offset;
    const double positions = (static_cast<double>(begin) + static_cast<double>(end - 1)) * num_rows / 2;
    pairs = positions + num_rows - SumAbove(begin, end, kv_len - 1);
  }
  // Minus the sum of the begins. Full rows before position 0 see all keys whatever their window.
  if (mask.window > 0 && rows.end + offset > 0) {
    pairs -= SumAbove(std::max<int64_t>(0, rows.begin + offset), rows.end + offset, mask.window - 1);
  }
  return std::max(0.0, pairs);  // rounding beyond 2^53
}

}  // namespace headlane::internal
