// The constants of the canonical order of operations. They are part of the numerics version: changing one changes
// results.
#ifndef HEADLANE_SRC_BASE_BLOCKING_H_
#define HEADLANE_SRC_BASE_BLOCKING_H_

#include <cstdint>

namespace headlane::internal {

// Keys per tile and features per stripe: the lanes of the widest vector, on every machine.
inline constexpr int64_t kTileKeys = 16;
// One online-softmax step.
inline constexpr int64_t kBlockKeys = 128;
// One softmax state; states are folded in ascending order.
inline constexpr int64_t kSplitKeys = 1024;

inline constexpr int64_t kTilesPerBlock = kBlockKeys / kTileKeys;
inline constexpr int64_t kBlocksPerSplit = kSplitKeys / kBlockKeys;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_BLOCKING_H_
