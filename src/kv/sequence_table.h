// The sequences of a cache: which ids are alive, how long they are, and which pages they hold in which order.
//
// Separate from the pool, which knows no tokens, and from the cache, which keeps the two in agreement. Called by
// KVCacheImpl only.
//
// Every slot has a block table for each layer group, long enough for all pages of the group's pool, or for the longest
// sequence where a window gives pages back. That is max_sequences * table_pages numbers of address space, but memory is
// taken only where a table was ever filled: at most 4 bytes per page of the longest sequence that a slot has had,
// beside pages of many kilobytes. In exchange a page is found in one load, and no operation has to find memory for a
// table that grows.
#ifndef HEADLANE_SRC_KV_SEQUENCE_TABLE_H_
#define HEADLANE_SRC_KV_SEQUENCE_TABLE_H_

#include <cstdint>

#include "base/aligned_buffer.h"
#include "headlane/kv_cache.h"
#include "headlane/status.h"

namespace headlane::internal {

// Where a sequence is in one layer group.
struct SequenceGroup {
  // [table_pages] page numbers; -1: given back, all of its tokens are lost.
  int32_t* pages;
  // Tokens [num_always_visible, first_kept) are lost: the window has passed them. Never falls but by roll-back to where
  // none are.
  int64_t first_kept;
};

struct Sequence {
  int64_t id;         // -1 while the slot is free
  int64_t length;     // committed tokens
  int64_t reserved;   // tokens behind them that have pages
  int64_t num_pages;  // entries of the block tables in use: ceil((length + reserved) / page_tokens)
  int64_t next_id;    // the id that this slot gives out next
  int64_t next_free;  // next slot in the list of free ones, or -1
  SequenceGroup groups[kMaxLayerGroups];
};

class SequenceTable {
 public:
  SequenceTable() noexcept = default;

  // `table_pages` [num_groups] are the lengths of a sequence's block tables. Requires: num_groups <= kMaxLayerGroups.
  // Errors: InvalidArgument (sizes past 64 bits), ResourceExhausted.
  static Result<SequenceTable> Create(int64_t max_sequences, const int64_t* table_pages, int64_t num_groups) noexcept;

  // An empty sequence. Errors: ResourceExhausted.
  Result<SequenceId> Add() noexcept;

  int64_t num_groups() const noexcept { return num_groups_; }

  // The slots that were ever used; those with an id of -1 are free.
  int64_t num_slots() const noexcept { return num_touched_; }
  const Sequence& slot(int64_t index) const noexcept { return slots_.as<Sequence>()[index]; }

  // The id is invalid from then on. Requires: it holds no pages.
  void Remove(Sequence* sequence) noexcept;

  // As if it had never been added, when all that were added after it are gone, too: its id is given out again.
  // Requires: it is the last one added of those alive, its id was told to nobody, and it holds no pages.
  void UndoAdd(Sequence* sequence) noexcept;

  // The live sequence with this id, or null: an id is generation * max_sequences + slot, so that one comparison tells a
  // stale one.
  Sequence* Find(SequenceId id) noexcept;
  const Sequence* Find(SequenceId id) const noexcept { return const_cast<SequenceTable*>(this)->Find(id); }

  int64_t num_sequences() const noexcept { return num_sequences_; }

 private:
  Sequence* slots() noexcept { return slots_.as<Sequence>(); }

  AlignedBuffer slots_;   // [max_sequences] Sequence
  AlignedBuffer tables_;  // [max_sequences][num_groups][table_pages of the group] int32_t
  int64_t max_sequences_ = 0;
  int64_t num_groups_ = 0;
  int64_t table_pages_[kMaxLayerGroups] = {};
  int64_t all_pages_ = 0;  // their sum
  int64_t num_sequences_ = 0;
  int64_t num_touched_ = 0;  // slots beyond have never been used and are not initialised
  int64_t first_free_ = -1;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_SEQUENCE_TABLE_H_
