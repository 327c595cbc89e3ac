#include "kv/sequence_table.h"

#include "base/check.h"
#include "base/checked_math.h"

namespace headlane::internal {

Result<SequenceTable> SequenceTable::Create(int64_t max_sequences, const int64_t* table_pages,
                                            int64_t num_groups) noexcept {
  HEADLANE_DCHECK(num_groups >= 1 && num_groups <= kMaxLayerGroups);
  SequenceTable table;
  bool fits = true;
  for (int64_t g = 0; g < num_groups; ++g) {
    table.table_pages_[g] = table_pages[g];
    fits = fits && CheckedAdd(table.all_pages_, table_pages[g], &table.all_pages_);
  }
  int64_t table_bytes = 0;
  if (!fits || !CheckedProduct({max_sequences, table.all_pages_, int64_t{sizeof(int32_t)}}, &table_bytes)) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "KV cache: the block tables of %lld sequences with up to %lld pages pass 64 bits",
                      static_cast<long long>(max_sequences), static_cast<long long>(table_pages[0]));
  }
  HEADLANE_ASSIGN_OR_RETURN(table.slots_, AlignedBuffer::Create(max_sequences * static_cast<int64_t>(sizeof(Sequence)),
                                                                "KV cache sequences"));
  HEADLANE_ASSIGN_OR_RETURN(table.tables_, AlignedBuffer::Create(table_bytes, "KV cache block tables"));
  table.max_sequences_ = max_sequences;
  table.num_groups_ = num_groups;
  return table;
}

Result<SequenceId> SequenceTable::Add() noexcept {
  if (num_sequences_ == max_sequences_) {
    return MakeStatus(StatusCode::kResourceExhausted, "KV cache: %lld sequences exist, of at most %lld",
                      static_cast<long long>(num_sequences_), static_cast<long long>(max_sequences_));
  }
  int64_t slot = first_free_;
  if (slot >= 0) {
    first_free_ = slots()[slot].next_free;
  } else {
    slot = num_touched_++;
    slots()[slot].next_id = slot;
    int32_t* pages = tables_.as<int32_t>() + slot * all_pages_;
    for (int64_t g = 0; g < num_groups_; ++g) {
      slots()[slot].groups[g].pages = pages;
      pages += table_pages_[g];
    }
  }
  Sequence& sequence = slots()[slot];
  sequence.id = sequence.next_id;
  sequence.next_id += max_sequences_;
  sequence.length = 0;
  sequence.reserved = 0;
  sequence.num_pages = 0;
  sequence.next_free = -1;
  for (int64_t g = 0; g < num_groups_; ++g) sequence.groups[g].first_kept = 0;
  ++num_sequences_;
  return SequenceId{sequence.id};
}

void SequenceTable::Remove(Sequence* sequence) noexcept {
  HEADLANE_DCHECK(sequence->id >= 0 && sequence->num_pages == 0);
  sequence->id = -1;
  sequence->next_free = first_free_;
  first_free_ = sequence - slots();
  --num_sequences_;
}

void SequenceTable::UndoAdd(Sequence* sequence) noexcept {
  sequence->next_id = sequence->id;
  Remove(sequence);
}

Sequence* SequenceTable::Find(SequenceId id) noexcept {
  if (id.value < 0) return nullptr;
  const int64_t slot = id.value % max_sequences_;
  if (slot >= num_touched_ || slots()[slot].id != id.value) return nullptr;
  return &slots()[slot];
}

}  // namespace headlane::internal
