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
  std::unique_ptr<KVCacheImpl> impl;
  try {
    impl.reset(new KVCacheImpl(spec, layout, kernels));
  } catch (const std::bad_alloc&) {
    return MakeStatus(StatusCode::kResourceExhausted, "KV cache: the system has no %lld bytes of memory",
                      static_cast<long long>(sizeof(KVCacheImpl)));
  }
  HEADLANE_RETURN_IF_ERROR(impl->Allocate());
  return impl;
}

Status KVCacheImpl::Allocate() noexcept {
  int64_t table_pages[kMaxLayerGroups] = {};
  for (int64_t g = 0; g < layout_.num_groups; ++g) table_pages[g] = layout_.groups[g].table_pages;
  int64_t slab_table_bytes = 0;
  int64_t scratch_bytes = 0;
  if (!CheckedMul(spec_.num_layers, int64_t{sizeof(int64_t)}, &slab_table_bytes) ||
      !CheckedProduct({spec_.qk_dim, 3, int64_t{sizeof(float)}}, &scratch_bytes)) {
    return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: num_layers %lld or qk_dim %lld is too large",
                      static_cast<long long>(spec_.num_layers), static_cast<long long>(spec_.qk_dim));
  }
  // Before the pages, the largest: what is refused should not cost the system their address space first.
  HEADLANE_ASSIGN_OR_RETURN(first_slab_, AlignedBuffer::Create(slab_table_bytes, "KV cache layers"));
  HEADLANE_ASSIGN_OR_RETURN(sequences_, SequenceTable::Create(spec_.max_sequences, table_pages, layout_.num_groups));
  HEADLANE_ASSIGN_OR_RETURN(marks_, TileMarks::Create(spec_.num_kv_heads, layout_, first_slab_.as<int64_t>()));
  if (spec_.memory != nullptr) {
    HEADLANE_ASSIGN_OR_RETURN(memory_, PoolMemory::Over(spec_.memory, spec_.memory_bytes, layout_.pool_bytes));
  } else {
    HEADLANE_ASSIGN_OR_RETURN(memory_, PoolMemory::Create(layout_.pool_bytes));
  }
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    HEADLANE_ASSIGN_OR_RETURN(pools_[g], PagePool::Create(layout_.groups[g].total_pages));
  }
  HEADLANE_ASSIGN_OR_RETURN(key_scratch_, AlignedBuffer::Create(scratch_bytes, "KV cache scratch"));
  for (int64_t g = layout_.num_groups - 1; g >= 0; --g) {
    if (!layout_.groups[g].has_window()) ids_group_ = g;
  }
  if (ids_group_ >= 0) {
    HEADLANE_ASSIGN_OR_RETURN(page_ids_, PageIds::Create(layout_.groups[ids_group_].total_pages, spec_.page_tokens));
  }
  int64_t slab = 0;
  for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
    first_slab_.as<int64_t>()[layer] = slab;
    slab += layout_.groups[GroupOf(spec_, layer)].total_pages;
  }
  addressing_ = KVAddressing{memory_.data(),       first_slab_.as<int64_t>(), layout_.slab_bytes, layout_.head_bytes,
                             layout_.k_tile_bytes, layout_.v_tile_bytes,      layout_.v_offset};
  return OkStatus();
}

KVCacheUsage KVCacheImpl::usage() const noexcept {
  KVCacheUsage usage;
  usage.page_bytes = layout_.page_bytes;
  usage.bytes_per_token = layout_.page_bytes / spec_.page_tokens;
  usage.total_pages = layout_.total_pages;
  usage.limit_bytes = layout_.pool_bytes;
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    usage.used_pages += pools_[g].used_pages();
    usage.used_bytes += pools_[g].used_pages() * layout_.groups[g].page_bytes;
    usage.free_bytes += pools_[g].free_pages() * layout_.groups[g].page_bytes;
  }
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
  const auto copies = [&](int64_t g) { return n > 0 && in_first > 0 && IsShared(*sequence, g, first); };
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    const int64_t more = wanted - sequence->num_pages + (copies(g) ? 1 : 0);
    if (more <= pools_[g].free_pages()) continue;
    return MakeStatus(StatusCode::kResourceExhausted,
                      "sequence %lld: %lld more tokens need %lld more pages, %lld are free in layer group %lld",
                      static_cast<long long>(id.value), static_cast<long long>(n), static_cast<long long>(more),
                      static_cast<long long>(pools_[g].free_pages()), static_cast<long long>(g));
  }
  if (end > layout_.max_positions) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: %lld tokens and %lld more pass max_positions %lld",
                      static_cast<long long>(id.value), static_cast<long long>(sequence->length),
                      static_cast<long long>(n), static_cast<long long>(layout_.max_positions));
  }
  // From here on nothing fails. Pages of an earlier reservation are kept where they serve this one.
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    if (copies(g)) TakeCopy(sequence, g, first, in_first);
  }
  Forget(*sequence, sequence->length);
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    int32_t* const pages = sequence->groups[g].pages;
    for (int64_t i = wanted; i < sequence->num_pages; ++i) pools_[g].Release(pages[i]);
    for (int64_t i = sequence->num_pages; i < wanted; ++i) {
      pages[i] = pools_[g].Take();
      ForgetPage(g, pages[i], 0);
    }
  }
  sequence->num_pages = wanted;
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
  ReleasePassed(sequence);
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
  HEADLANE_RETURN_IF_ERROR(CheckRollBack(id, *sequence, length));
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

void KVCacheImpl::CopyPageIds(SequenceId id, int64_t num_pages, int32_t* out, int64_t group) const noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  HEADLANE_DCHECK(sequence != nullptr && num_pages >= 0 && num_pages <= sequence->num_pages);
  std::copy_n(sequence->groups[group].pages, num_pages, out);
}

void KVCacheImpl::ForgetPage(int64_t group, int32_t page, int64_t first) noexcept {
  for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
    if (GroupOf(spec_, layer) == group) marks_.Forget(layer, page, first);
  }
  if (group == ids_group_) page_ids_.Forget(page, first);
}

void KVCacheImpl::Forget(const Sequence& sequence, int64_t first) noexcept {
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    for (int64_t i = first / spec_.page_tokens; i < sequence.num_pages; ++i) {
      const int32_t page = sequence.groups[g].pages[i];
      if (page < 0 || IsShared(sequence, g, i)) continue;
      ForgetPage(g, page, std::max<int64_t>(first - i * spec_.page_tokens, 0));
    }
  }
}

void KVCacheImpl::Shrink(Sequence* sequence, int64_t length) noexcept {
  const int64_t wanted = CeilDiv(length, spec_.page_tokens);
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    SequenceGroup& held = sequence->groups[g];
    for (int64_t i = wanted; i < sequence->num_pages; ++i) {
      if (held.pages[i] >= 0) pools_[g].Release(held.pages[i]);
    }
    held.first_kept = std::min(held.first_kept, length);
  }
  sequence->num_pages = std::min(sequence->num_pages, wanted);
  Forget(*sequence, length);
  num_tokens_ -= sequence->length - length;
  sequence->length = length;
  sequence->reserved = 0;
}

void KVCacheImpl::PoisonUnusedForTesting() const noexcept {
  for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
    const PagePool& pool = pools_[GroupOf(spec_, layer)];
    for (int64_t page = 0; page < pool.total_pages(); ++page) {
      const bool free = pool.holders(static_cast<int32_t>(page)) == 0;
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
