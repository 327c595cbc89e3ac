// Which keys a query row sees.
//
// A sequence has kv_len keys at positions 0 .. kv_len - 1 and q_len query rows. Row i stands at position
//   a = kv_len - q_len + i     (bottom-right: the last row is the newest token)
// unless the mask says otherwise. A key at position p is visible to it when every condition below holds; hidden keys
// never influence the row, whatever their memory holds.
#ifndef HEADLANE_MASK_H_
#define HEADLANE_MASK_H_

#include <cstdint>

namespace headlane {

enum class Causality : int32_t {
  kFull = 0,     // all keys
  kBottomRight,  // p <= a: causal as in incremental decoding. Rows with a < 0 (q_len > kv_len) see nothing.
  kTopLeft,  // p <= i, and the row's own position is i: only for callers that align the first row with the first key.
};

// No limit, for Mask::window.
inline constexpr int64_t kNoWindow = -1;

struct Mask {
  Causality causality = Causality::kBottomRight;
  // Sliding window: how many keys a row sees to the left, its own position included: positions (a - window, a]. Limits
  // the left side only; the right side is causality's. 0 hides every key.
  int64_t window = kNoWindow;
};

}  // namespace headlane

#endif  // HEADLANE_MASK_H_
