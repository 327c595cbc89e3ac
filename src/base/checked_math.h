// Integer arithmetic that says when it overflows, for sizes that come from users and files.
//
// Separate from blocking.h, whose CeilDiv and RoundUp are for numbers already known to be small. Called by whoever
// turns a caller's extents or a file's header into bytes or addresses.
#ifndef HEADLANE_SRC_BASE_CHECKED_MATH_H_
#define HEADLANE_SRC_BASE_CHECKED_MATH_H_

#include <cstdint>
#include <initializer_list>

namespace headlane::internal {

// *out = a + b and true, or false on overflow; *out is then unspecified.
[[nodiscard]] constexpr bool CheckedAdd(int64_t a, int64_t b, int64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}

[[nodiscard]] constexpr bool CheckedSub(int64_t a, int64_t b, int64_t* out) {
  return !__builtin_sub_overflow(a, b, out);
}

[[nodiscard]] constexpr bool CheckedMul(int64_t a, int64_t b, int64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}

// The product of all factors, from left to right. A factor 0 behind an overflow does not undo it: a header whose first
// extents already overflow is wrong whatever follows.
[[nodiscard]] constexpr bool CheckedProduct(std::initializer_list<int64_t> factors, int64_t* out) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (!CheckedMul(product, factor, &product)) return false;
  }
  *out = product;
  return true;
}

// a rounded up to a multiple of b. Requires: a >= 0, b > 0.
[[nodiscard]] constexpr bool CheckedRoundUp(int64_t a, int64_t b, int64_t* out) {
  const int64_t remainder = a % b;
  return CheckedAdd(a, remainder == 0 ? 0 : b - remainder, out);
}

// True when [begin, begin + count) lies in [0, size), for any values: no sum that could wrap is formed. An empty range
// may stand at `size`.
[[nodiscard]] constexpr bool RangeFits(int64_t begin, int64_t count, int64_t size) {
  return begin >= 0 && count >= 0 && begin <= size && count <= size - begin;
}

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_CHECKED_MATH_H_
