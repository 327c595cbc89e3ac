// How the Walsh-Hadamard transform takes a row of any length: in blocks, the largest power of two that is left at a
// time.
//
// Separate from the kernel, so that the cache can tell whether a row's first features are blocks of their own.
#ifndef HEADLANE_SRC_BASE_HADAMARD_BLOCKS_H_
#define HEADLANE_SRC_BASE_HADAMARD_BLOCKS_H_

#include <bit>
#include <cstdint>

namespace headlane::internal {

// Whether a block of a row of `dim` features begins or ends at feature `at`. Requires: 0 <= at <= dim.
constexpr bool IsHadamardBoundary(int64_t dim, int64_t at) {
  int64_t begin = 0;
  while (begin < at) begin += static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(dim - begin)));
  return begin == at;
}

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_HADAMARD_BLOCKS_H_
