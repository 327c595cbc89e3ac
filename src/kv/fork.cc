// Sharing: forks, the copies that are taken of shared pages before they are written, and who holds what.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kv/kv_cache_impl.h"

namespace headlane::internal {

Result<SequenceId> KVCacheImpl::Fork(SequenceId id, int64_t length) noexcept {
  const Sequence* const parent = sequences_.Find(id);
  if (parent == nullptr) return NoSequence(id);
  if (length == kWholeSequence) length = parent->length;
  if (length < 0 || length > parent->length) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: cannot fork %lld tokens, it has %lld",
                      static_cast<long long>(id.value), static_cast<long long>(length),
                      static_cast<long long>(parent->length));
  }
  HEADLANE_RETURN_IF_ERROR(CheckRollBack(id, *parent, length));
  const int64_t num_pages = CeilDiv(length, spec_.page_tokens);
  const int64_t in_last = length % spec_.page_tokens;
  const bool copies = parent->reserved > 0 && in_last > 0 && num_pages - 1 == parent->length / spec_.page_tokens;
  for (int64_t g = 0; copies && g < layout_.num_groups; ++g) {
    if (pools_[g].free_pages() > 0) continue;
    return MakeStatus(StatusCode::kResourceExhausted,
                      "sequence %lld: a fork of %lld tokens needs 1 page, for the one with reserved tokens; 0 are free "
                      "in layer group %lld",
                      static_cast<long long>(id.value), static_cast<long long>(length), static_cast<long long>(g));
  }
  HEADLANE_ASSIGN_OR_RETURN(const SequenceId child_id, sequences_.Add());
  Sequence* const child = sequences_.Find(child_id);
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    const SequenceGroup& from = parent->groups[g];
    SequenceGroup& to = child->groups[g];
    for (int64_t i = 0; i < num_pages; ++i) {
      to.pages[i] = from.pages[i];
      if (to.pages[i] >= 0) pools_[g].Share(to.pages[i]);
    }
    to.first_kept = std::min(from.first_kept, length);
    if (copies) TakeCopy(child, g, num_pages - 1, in_last);
  }
  child->num_pages = num_pages;
  child->length = length;
  num_tokens_ += length;
  return child_id;
}

bool KVCacheImpl::IsShared(const Sequence& sequence, int64_t group, int64_t index) const noexcept {
  const int32_t page = sequence.groups[group].pages[index];
  return page >= 0 && pools_[group].holders(page) > 1;
}

void KVCacheImpl::TakeCopy(Sequence* sequence, int64_t group, int64_t index, int64_t num_tokens) noexcept {
  HEADLANE_DCHECK(num_tokens > 0 && num_tokens <= spec_.page_tokens);
  int32_t& place = sequence->groups[group].pages[index];
  const int32_t from = place;
  const int32_t to = pools_[group].Take();
  const int64_t num_tiles = CeilDiv(num_tokens, kTileKeys);
  // Whole tiles: a slot behind the last token holds what it held, and the tile's flag goes with it.
  for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
    if (GroupOf(spec_, layer) != group) continue;
    for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
      std::memcpy(addressing_.KTile(layer, to, head, 0), addressing_.KTile(layer, from, head, 0),
                  static_cast<size_t>(num_tiles * layout_.k_tile_bytes));
      std::memcpy(addressing_.VTile(layer, to, head, 0), addressing_.VTile(layer, from, head, 0),
                  static_cast<size_t>(num_tiles * layout_.v_tile_bytes));
    }
    marks_.CopyPage(layer, from, to, num_tokens);
  }
  if (group == ids_group_) page_ids_.CopyPage(from, to, num_tokens);
  place = to;
  pools_[group].Release(from);
}

Result<KVSequenceUsage> KVCacheImpl::SequenceUsage(SequenceId id) const noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  KVSequenceUsage usage;
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    for (int64_t i = 0; i < sequence->num_pages; ++i) {
      if (sequence->groups[g].pages[i] < 0) continue;
      ++usage.pages;
      usage.bytes += layout_.groups[g].page_bytes;
      if (IsShared(*sequence, g, i)) ++usage.shared_pages;
    }
  }
  return usage;
}

}  // namespace headlane::internal
