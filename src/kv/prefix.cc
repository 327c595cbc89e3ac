// Token ids of pages, and the longest prefix of a prompt that some sequence has computed already.
//
// Ids belong to pages, so that forks share them and copies take them along; a full page whose predecessors are full has
// a hash of all ids from the sequence's beginning, which tells apart in one comparison what is not equal.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/checked_math.h"
#include "kv/kv_cache_impl.h"

namespace headlane::internal {
namespace {

long long LL(int64_t value) { return static_cast<long long>(value); }

constexpr uint64_t kEmptyHash = 0x6A09E667F3BCC909u;

uint64_t Chain(uint64_t hash, const int32_t* ids, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    hash = (hash ^ static_cast<uint32_t>(ids[i])) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

Result<PageIds> PageIds::Create(int64_t total_pages, int64_t page_tokens) noexcept {
  PageIds ids;
  int64_t id_bytes = 0;
  int64_t hash_bytes = 0;
  if (!CheckedProduct({total_pages, page_tokens, int64_t{sizeof(int32_t)}}, &id_bytes) ||
      !CheckedMul(total_pages, int64_t{sizeof(uint64_t)}, &hash_bytes)) {
    return MakeStatus(StatusCode::kInvalidArgument, "KV cache: the ids of %lld pages of %lld tokens pass 64 bits",
                      LL(total_pages), LL(page_tokens));
  }
  HEADLANE_ASSIGN_OR_RETURN(ids.ids_, AlignedBuffer::Create(id_bytes, "KV cache token ids"));
  HEADLANE_ASSIGN_OR_RETURN(ids.hashes_, AlignedBuffer::Create(hash_bytes, "KV cache prefix hashes"));
  HEADLANE_ASSIGN_OR_RETURN(ids.counts_, AlignedBuffer::Create(hash_bytes, "KV cache id counts"));
  ids.page_tokens_ = page_tokens;
  return ids;
}

void PageIds::Forget(int64_t page, int64_t first) noexcept {
  int64_t& count = counts_.as<int64_t>()[page];
  if (count > first) count = first;
}

void PageIds::CopyPage(int64_t from, int64_t to, int64_t num_tokens) noexcept {
  const int64_t n = std::min(Count(from), num_tokens);
  std::memcpy(OwnIdsOf(to), IdsOf(from), static_cast<size_t>(n) * sizeof(int32_t));
  counts_.as<int64_t>()[to] = n;
  hashes_.as<uint64_t>()[to] = Hash(from);
}

void PageIds::Set(int64_t page, int64_t first, const int32_t* ids, int64_t n) noexcept {
  HEADLANE_DCHECK(first >= 0 && first <= Count(page) && first + n <= page_tokens_);
  std::memcpy(OwnIdsOf(page) + first, ids, static_cast<size_t>(n) * sizeof(int32_t));
  counts_.as<int64_t>()[page] = std::max(Count(page), first + n);
}

Status KVCacheImpl::CheckHasIds() const noexcept {
  if (ids_group_ >= 0) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported,
                    "KV cache: all %lld layer groups have windows, prefixes can only be found where pages are kept",
                    LL(layout_.num_groups));
}

void KVCacheImpl::ForgetIds(const Sequence& sequence, int64_t first) noexcept {
  if (ids_group_ < 0) return;
  for (int64_t i = first / spec_.page_tokens; i < sequence.num_pages; ++i) {
    if (IsShared(sequence, ids_group_, i)) continue;
    page_ids_.Forget(sequence.groups[ids_group_].pages[i], std::max<int64_t>(first - i * spec_.page_tokens, 0));
  }
}

Status KVCacheImpl::SetTokens(SequenceId id, const int32_t* ids, int64_t n, int64_t begin) noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  HEADLANE_RETURN_IF_ERROR(CheckHasIds());
  if (!RangeFits(begin, n, sequence->length)) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: %lld token ids from %lld on, it has %lld tokens",
                      LL(id.value), LL(n), LL(begin), LL(sequence->length));
  }
  if (n > 0 && ids == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "sequence %lld: ids is null, but n is %lld", LL(id.value), LL(n));
  }
  const int32_t* const pages = sequence->groups[ids_group_].pages;
  for (int64_t i = 0; i * spec_.page_tokens < begin; ++i) {
    const int64_t wanted = std::min(spec_.page_tokens, begin - i * spec_.page_tokens);
    if (page_ids_.Count(pages[i]) >= wanted) continue;
    return MakeStatus(StatusCode::kFailedPrecondition,
                      "sequence %lld: token ids from %lld on, but only those up to %lld are known", LL(id.value),
                      LL(begin), LL(i * spec_.page_tokens + page_ids_.Count(pages[i])));
  }
  // Calls f(page index, first slot, ids, number) for the part of each page.
  const auto for_each_page = [&](const auto& f) {
    for (int64_t at = begin; at < begin + n;) {
      const int64_t first = at % spec_.page_tokens;
      const int64_t count = std::min(spec_.page_tokens - first, begin + n - at);
      if (!f(at / spec_.page_tokens, first, ids + (at - begin), count)) return;
      at += count;
    }
  };
  // A token keeps its id: whoever shares its page relies on it.
  int64_t differs = -1;
  int32_t known = 0;
  for_each_page([&](int64_t index, int64_t first, const int32_t* part, int64_t count) {
    const int32_t page = pages[index];
    for (int64_t i = 0; i < count && first + i < page_ids_.Count(page); ++i) {
      if (page_ids_.IdsOf(page)[first + i] == part[i]) continue;
      differs = index * spec_.page_tokens + first + i;
      known = page_ids_.IdsOf(page)[first + i];
      return false;
    }
    return true;
  });
  if (differs >= 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "sequence %lld: token %lld has id %d already, not %d", LL(id.value),
                      LL(differs), known, ids[differs - begin]);
  }
  for_each_page([&](int64_t index, int64_t first, const int32_t* part, int64_t count) {
    const int32_t page = pages[index];
    page_ids_.Set(page, first, part, count);
    if (first + count == spec_.page_tokens) {
      const uint64_t before = index == 0 ? kEmptyHash : page_ids_.Hash(pages[index - 1]);
      page_ids_.SetHash(page, Chain(before, page_ids_.IdsOf(page), spec_.page_tokens));
    }
    return true;
  });
  return OkStatus();
}

void KVCacheImpl::HashIds(const Sequence& sequence) noexcept {
  if (ids_group_ < 0) return;
  uint64_t hash = kEmptyHash;
  for (int64_t i = 0; (i + 1) * spec_.page_tokens <= sequence.length; ++i) {
    const int32_t page = sequence.groups[ids_group_].pages[i];
    if (page_ids_.Count(page) != spec_.page_tokens) return;
    hash = Chain(hash, page_ids_.IdsOf(page), spec_.page_tokens);
    page_ids_.SetHash(page, hash);
  }
}

// Whether page number `index` of the sequence is full of the ids of the prompt's same page.
bool KVCacheImpl::HasPage(const Sequence& sequence, int64_t index, const int32_t* ids) const noexcept {
  if ((index + 1) * spec_.page_tokens > sequence.length) return false;
  const int32_t page = sequence.groups[ids_group_].pages[index];
  return page_ids_.Count(page) == spec_.page_tokens &&
         std::memcmp(page_ids_.IdsOf(page), ids + index * spec_.page_tokens,
                     static_cast<size_t>(spec_.page_tokens) * sizeof(int32_t)) == 0;
}

Result<SequenceId> KVCacheImpl::ForkPrefix(const int32_t* ids, int64_t n, int64_t* matched) noexcept {
  if (matched == nullptr) return MakeStatus(StatusCode::kInvalidArgument, "KV cache: matched is null");
  *matched = 0;
  HEADLANE_RETURN_IF_ERROR(CheckHasIds());
  if (n < 0 || (n > 0 && ids == nullptr)) {
    return MakeStatus(StatusCode::kInvalidArgument, "KV cache: cannot look up a prefix of %lld tokens at %p", LL(n),
                      static_cast<const void*>(ids));
  }
  // A last token is left to be computed: its output is what the caller is after.
  const int64_t most = n == 0 ? 0 : (n - 1) / spec_.page_tokens;
  const Sequence* best = nullptr;
  int64_t num_pages = 0;
  uint64_t hash =
      most > 0 ? Chain(kEmptyHash, ids, spec_.page_tokens) : 0;  // of the prompt's first num_pages + 1 pages
  for (int64_t slot = 0; slot < sequences_.num_slots() && num_pages < most; ++slot) {
    const Sequence& sequence = sequences_.slot(slot);
    if (sequence.id < 0 || sequence.length < (num_pages + 1) * spec_.page_tokens) continue;
    const int32_t page = sequence.groups[ids_group_].pages[num_pages];
    if (page_ids_.Count(page) != spec_.page_tokens || page_ids_.Hash(page) != hash) continue;
    int64_t count = 0;
    while (count < most && HasPage(sequence, count, ids)) ++count;
    if (count <= num_pages || !CheckRollBack(SequenceId{sequence.id}, sequence, count * spec_.page_tokens).ok())
      continue;
    best = &sequence;
    for (; num_pages < count; ++num_pages) {
      if (num_pages + 1 < most) hash = Chain(hash, ids + (num_pages + 1) * spec_.page_tokens, spec_.page_tokens);
    }
  }
  if (best == nullptr) return CreateSequence();
  HEADLANE_ASSIGN_OR_RETURN(const SequenceId id, Fork(SequenceId{best->id}, num_pages * spec_.page_tokens));
  *matched = num_pages * spec_.page_tokens;
  return id;
}

}  // namespace headlane::internal
