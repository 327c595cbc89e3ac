// Sequences and their pages: creation, reservation, commitment, roll-back, accounting.
#include "kv/kv_cache_impl.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "base/check.h"
#include "base/checked_math.h"

namespace headlane::internal {

Status NoSequence(SequenceId id) noexcept {
  return MakeStatus(StatusCode::kNotFound, "no sequence %lld in this KV cache", static_cast<long long>(id.value));
}

Result<std::unique_ptr<KVCacheImpl>> KVCacheImpl::Create(const KVCacheSpec& spec,
                                                         const KvKernels (&kernels)[kNumDTypes]) noexcept {
  HEADLANE_ASSIGN_OR_RETURN(const KVLayout layout, MakeKVLayout(spec));
  std::unique_ptr<KVCacheImpl> impl(new (std::nothrow) KVCacheImpl(spec, layout, kernels));
  if (impl == nullptr) {
    return MakeStatus(StatusCode::kResourceExhausted, "KV cache: the system has no %lld bytes of memory",
                      static_cast<long long>(sizeof(KVCacheImpl)));
  }
  // Before the pages, the largest: what is refused should not cost the system their address space first.
  HEADLANE_ASSIGN_OR_RETURN(impl->sequences_, SequenceTable::Create(spec.max_sequences, layout.total_pages));
  HEADLANE_ASSIGN_OR_RETURN(impl->marks_, TileMarks::Create(spec.num_layers, spec.num_kv_heads, layout));
  HEADLANE_ASSIGN_OR_RETURN(impl->pool_, PagePool::Create(layout.total_pages, layout.pool_bytes));
  impl->addressing_ = KVAddressing{impl->pool_.memory(), layout.layer_bytes,  layout.slab_bytes, layout.head_bytes,
                                   layout.k_tile_bytes,  layout.v_tile_bytes, layout.v_offset};
  return impl;
}

KVCacheUsage KVCacheImpl::usage() const noexcept {
  KVCacheUsage usage;
  usage.page_bytes = layout_.page_bytes;
  usage.bytes_per_token = layout_.page_bytes / spec_.page_tokens;
  usage.total_pages = pool_.total_pages();
  usage.used_pages = pool_.used_pages();
  usage.limit_bytes = layout_.pool_bytes;
  usage.used_bytes = pool_.used_pages() * layout_.page_bytes;
  usage.free_bytes = pool_.free_pages() * layout_.page_bytes;
  usage.num_sequences = sequences_.num_sequences();
  usage.num_tokens = num_tokens_;
  return usage;
}

Status KVCacheImpl::DropSequence(SequenceId id) noexcept {
  Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  Shrink(sequence, 0);
  sequences_.Remove(sequence);
  return OkStatus();
}

Result<int64_t> KVCacheImpl::Length(SequenceId id) const noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  return sequence->length;
}

Status KVCacheImpl::Reserve(SequenceId id, int64_t n) noexcept {
  Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  if (n < 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "sequence %lld: cannot reserve %lld tokens",
                      static_cast<long long>(id.value), static_cast<long long>(n));
  }
  int64_t end = 0;
  if (!CheckedAdd(sequence->length, n, &end)) end = std::numeric_limits<int64_t>::max();
  const int64_t wanted = CeilDiv(end, spec_.page_tokens);
  // Pages with reserved tokens are held by nobody else, so that Write never has to look; a partly filled one that is
  // shared is copied for it.
  const int64_t first = sequence->length / spec_.page_tokens;
  const int64_t in_first = sequence->length % spec_.page_tokens;
  const bool copies = n > 0 && in_first > 0 && pool_.holders(sequence->pages[first]) > 1;
  const int64_t more = wanted - sequence->num_pages + (copies ? 1 : 0);
  if (more > pool_.free_pages()) {
    return MakeStatus(StatusCode::kResourceExhausted,
                      "sequence %lld: %lld more tokens need %lld more pages, %lld are free",
                      static_cast<long long>(id.value), static_cast<long long>(n), static_cast<long long>(more),
                      static_cast<long long>(pool_.free_pages()));
  }
  // From here on nothing fails. Pages of an earlier reservation are kept where they serve this one.
  if (copies) TakeCopy(sequence, first, in_first);
  Forget(*sequence, sequence->length);
  while (sequence->num_pages > wanted) pool_.Release(sequence->pages[--sequence->num_pages]);
  while (sequence->num_pages < wanted) {
    const int32_t page = pool_.Take();
    marks_.Forget(page, 0);
    sequence->pages[sequence->num_pages++] = page;
  }
  sequence->reserved = n;
  return OkStatus();
}

Status KVCacheImpl::Commit(SequenceId id, int64_t n) noexcept {
  Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  if (n < 0 || n > sequence->reserved) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: cannot commit %lld tokens, %lld are reserved",
                      static_cast<long long>(id.value), static_cast<long long>(n),
                      static_cast<long long>(sequence->reserved));
  }
  HEADLANE_RETURN_IF_ERROR(CheckWritten(id, *sequence, n));
  sequence->length += n;
  sequence->reserved -= n;
  num_tokens_ += n;
  return OkStatus();
}

Status KVCacheImpl::Abandon(SequenceId id) noexcept {
  Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  Shrink(sequence, sequence->length);
  return OkStatus();
}

Status KVCacheImpl::Truncate(SequenceId id, int64_t length) noexcept {
  Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  if (length < 0 || length > sequence->length) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: cannot truncate to %lld tokens, it has %lld",
                      static_cast<long long>(id.value), static_cast<long long>(length),
                      static_cast<long long>(sequence->length));
  }
  Shrink(sequence, length);
  return OkStatus();
}

Status KVCacheImpl::CheckReadable(SequenceId id, int64_t kv_len) const noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  if (kv_len < 0 || kv_len > sequence->length + sequence->reserved) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: kv_len is %lld, it has %lld tokens and %lld reserved",
                      static_cast<long long>(id.value), static_cast<long long>(kv_len),
                      static_cast<long long>(sequence->length), static_cast<long long>(sequence->reserved));
  }
  return OkStatus();
}

void KVCacheImpl::CopyPageIds(SequenceId id, int64_t num_pages, int32_t* out) const noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  HEADLANE_DCHECK(sequence != nullptr && num_pages >= 0 && num_pages <= sequence->num_pages);
  std::copy_n(sequence->pages, num_pages, out);
}

void KVCacheImpl::Forget(const Sequence& sequence, int64_t first) noexcept {
  for (int64_t i = first / spec_.page_tokens; i < sequence.num_pages; ++i) {
    if (pool_.holders(sequence.pages[i]) > 1) continue;
    marks_.Forget(sequence.pages[i], std::max<int64_t>(first - i * spec_.page_tokens, 0));
  }
}

void KVCacheImpl::Shrink(Sequence* sequence, int64_t length) noexcept {
  const int64_t wanted = CeilDiv(length, spec_.page_tokens);
  while (sequence->num_pages > wanted) pool_.Release(sequence->pages[--sequence->num_pages]);
  Forget(*sequence, length);
  num_tokens_ -= sequence->length - length;
  sequence->length = length;
  sequence->reserved = 0;
}

void KVCacheImpl::PoisonUnusedForTesting() const noexcept {
  for (int64_t page = 0; page < pool_.total_pages(); ++page) {
    const bool free = pool_.holders(static_cast<int32_t>(page)) == 0;
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
        for (int64_t tile = 0; tile < layout_.tiles_per_page; ++tile) {
          if (!free && marks_.Written(layer, page, tile) != 0) continue;
          std::memset(addressing_.KTile(layer, page, head, tile), 0xFF, static_cast<size_t>(layout_.k_tile_bytes));
          std::memset(addressing_.VTile(layer, page, head, tile), 0xFF, static_cast<size_t>(layout_.v_tile_bytes));
          marks_.flags().Tiles(layer, page, head)[tile] = 0xFF;
        }
      }
    }
  }
}

}  // namespace headlane::internal
