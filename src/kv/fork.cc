// Sharing: forks, the copies that are taken of shared pages before they are written, and who holds what.
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
  const int64_t num_pages = CeilDiv(length, spec_.page_tokens);
  const int64_t in_last = length % spec_.page_tokens;
  const bool copies = parent->reserved > 0 && in_last > 0 && num_pages - 1 == parent->length / spec_.page_tokens;
  if (copies && pool_.free_pages() == 0) {
    return MakeStatus(StatusCode::kResourceExhausted,
                      "sequence %lld: a fork of %lld tokens needs 1 page, for the one with reserved tokens; 0 are free",
                      static_cast<long long>(id.value), static_cast<long long>(length));
  }
  HEADLANE_ASSIGN_OR_RETURN(const SequenceId child_id, sequences_.Add());
  Sequence* const child = sequences_.Find(child_id);
  for (int64_t i = 0; i < num_pages; ++i) {
    child->pages[i] = parent->pages[i];
    pool_.Share(child->pages[i]);
  }
  child->num_pages = num_pages;
  child->length = length;
  num_tokens_ += length;
  if (copies) TakeCopy(child, num_pages - 1, in_last);
  return child_id;
}

void KVCacheImpl::TakeCopy(Sequence* sequence, int64_t index, int64_t num_tokens) noexcept {
  HEADLANE_DCHECK(num_tokens > 0 && num_tokens <= spec_.page_tokens);
  const int32_t from = sequence->pages[index];
  const int32_t to = pool_.Take();
  const int64_t num_tiles = CeilDiv(num_tokens, kTileKeys);
  // Whole tiles: a slot behind the last token holds what it held, and the tile's flag goes with it.
  for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
    for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
      std::memcpy(addressing_.KTile(layer, to, head, 0), addressing_.KTile(layer, from, head, 0),
                  static_cast<size_t>(num_tiles * layout_.k_tile_bytes));
      std::memcpy(addressing_.VTile(layer, to, head, 0), addressing_.VTile(layer, from, head, 0),
                  static_cast<size_t>(num_tiles * layout_.v_tile_bytes));
    }
  }
  marks_.CopyPage(from, to, num_tokens);
  sequence->pages[index] = to;
  pool_.Release(from);
}

Result<KVSequenceUsage> KVCacheImpl::SequenceUsage(SequenceId id) const noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  KVSequenceUsage usage;
  usage.pages = sequence->num_pages;
  usage.bytes = usage.pages * layout_.page_bytes;
  for (int64_t i = 0; i < sequence->num_pages; ++i) {
    if (pool_.holders(sequence->pages[i]) > 1) ++usage.shared_pages;
  }
  return usage;
}

}  // namespace headlane::internal
