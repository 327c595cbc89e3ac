// Which keys a query row sees.
//
// A sequence has kv_len keys at positions 0 .. kv_len - 1 and q_len query rows. Row i stands at position a = q_pos + i,
// where q_pos is
//   kv_len - q_len     with kBottomRight and kFull: the last row is the newest token
//   0                  with kTopLeft
//   SequenceSpec::q_pos if the sequence names it
// and may be negative or behind the last key. A key at position p is visible to the row when every condition below
// holds; hidden keys never influence the row, whatever their memory holds. All conditions combine.
#ifndef HEADLANE_MASK_H_
#define HEADLANE_MASK_H_

#include <cstdint>

namespace headlane {

enum class Causality : int32_t {
  kFull = 0,     // all keys
  kBottomRight,  // p <= a: causal as in incremental decoding. Rows with a < 0 (q_len > kv_len) see nothing.
  kTopLeft,      // p <= a, rows counted from the first key: only for callers that align the first row with it.
};

// No limit, for Mask::window and Mask::window_right.
inline constexpr int64_t kNoWindow = -1;

struct Mask {
  Causality causality = Causality::kBottomRight;
  // Sliding window, left side: how many keys a row sees up to its own position, that one included: p > a - window.
  // 0 hides every key, with kFull too. (Mistral, Gemma; "left" of other libraries is window - 1.)
  int64_t window = kNoWindow;
  // Right side: p <= a + window_right. Of use with kFull; 0 hides what is right of the row's own position.
  int64_t window_right = kNoWindow;
  // The first so many positions are hidden neither by the window's left side (unless window is 0) nor by chunks:
  // "attention sinks" of streaming models (Xiao et al. 2024).
  int64_t num_always_visible = 0;
  // Blocks of so many positions that don't see each other: floor(p / chunk) == floor(a / chunk) (Llama 4). 0: none.
  int64_t chunk = 0;
};

// Drafted tokens of one sequence that form a tree (speculative decoding): the last q_len keys of the sequence are the
// drafted tokens, and row i is drafted token i. Row i sees drafted key j where bit j % 64 of bits[i * row_words + j /
// 64] is set, and every key before the drafted ones, as far as windows and chunks allow; the bits take the place of
// causality. Drafted token i stands at position kv_len - q_len + (how many other drafted keys it sees), which is its
// depth in the tree if each sees its ancestors. The memory must live as long as the plan that was made or updated with
// it.
struct TreeMask {
  const uint64_t* bits = nullptr;  // nullptr: no tree
  int64_t row_words = 0;           // words per row, at least ceil(q_len / 64)
};

}  // namespace headlane

#endif  // HEADLANE_MASK_H_
