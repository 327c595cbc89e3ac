// Which keys a query row sees: the library's one definition of visibility.
//
// Separate from planning and execution so that both ask the same functions, and so that no kernel ever knows a mask:
// a mask becomes at most two intervals of keys per row, and bits where an interval is not enough (trees, and both
// intervals in one block). Called by src/plan (what to visit) and src/exec (which lanes count).
#ifndef HEADLANE_SRC_MASK_VISIBILITY_H_
#define HEADLANE_SRC_MASK_VISIBILITY_H_

#include <cstdint>

#include "headlane/attention.h"
#include "headlane/mask.h"
#include "mask/interval.h"

namespace headlane::internal {

// The mask of one sequence, with its defaults resolved. Small: made anew where it is needed. Limits are cut to what
// cannot overflow; lengths and positions are those that a plan accepts.
struct SequenceMask {
  Mask mask;
  TreeMask tree;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t q_pos = 0;       // position of row 0; not used with a tree
  int64_t prefix_len = 0;  // in [0, kv_len]

  bool has_tree() const { return tree.bits != nullptr; }
};
SequenceMask ResolveMask(const Mask& mask, const SequenceSpec& sequence) noexcept;

// What a row, or the union of what several rows, can see: `first`, then `rest`, which begin in ascending order and
// don't touch. `first` is empty unless always-visible positions lie apart from the rest, or are all there is. Empty
// intervals are [0, 0).
struct RowKeys {
  KeyInterval first;
  KeyInterval rest;

  bool empty() const { return rest.empty() && first.empty(); }
  // The smallest interval around both.
  KeyInterval hull() const { return first.empty() ? rest : rest.empty() ? first : KeyInterval{first.begin, rest.end}; }
  int64_t size() const { return first.size() + rest.size(); }
  friend bool operator==(const RowKeys&, const RowKeys&) = default;
};

// Position of a query row; with a tree, its depth behind the keys that are not drafted.
int64_t RowPosition(const SequenceMask& mask, int64_t row) noexcept;
// Position of a key: its index, but for drafted keys of a tree.
int64_t KeyPosition(const SequenceMask& mask, int64_t key) noexcept;

// What query row `row` (a token of the sequence, 0 .. q_len - 1) sees of keys [0, kv_len), as intervals: exactly, but
// for drafted keys of a tree, where `rest` reaches to kv_len and AndTreeBits says which count.
RowKeys VisibleKeys(const SequenceMask& mask, int64_t row) noexcept;

// The union of what rows [row_begin, row_end) see, in constant time. With a tree: everything that they see of drafted
// keys and what lies between, in time linear in the rows.
RowKeys VisibleHull(const SequenceMask& mask, int64_t row_begin, int64_t row_end) noexcept;

// Number of visible (row, key) pairs. Constant time without a tree, else linear in the rows; exact below 2^53.
double VisiblePairs(const SequenceMask& mask) noexcept;

// Bits of the 128 keys from `block_begin` (a multiple of 128) on: bit i % 16 of bits[i / 16] = key block_begin + i is
// in `keys`.
void IntervalBits(const RowKeys& keys, int64_t block_begin, uint16_t* bits) noexcept;

// Clears the bits of drafted keys that the row does not see. Requires: a tree.
void AndTreeBits(const SequenceMask& mask, int64_t row, int64_t block_begin, uint16_t* bits) noexcept;

// Clears the bits of columns that a row of a boolean mask hides. `row` points at column 0; columns at and behind kv_len
// are not read (their bits are clear already).
void AndBoolBits(const uint8_t* row, BoolMaskView::Format format, int64_t kv_len, int64_t block_begin,
                 uint16_t* bits) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_MASK_VISIBILITY_H_
