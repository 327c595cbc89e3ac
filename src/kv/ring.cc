// Layer groups with a window: which pages a sequence may give back, and what can't be done any more without them.
#include <algorithm>

#include "base/check.h"
#include "kv/kv_cache_impl.h"

namespace headlane::internal {
namespace {

long long LL(int64_t value) { return static_cast<long long>(value); }

}  // namespace

void KVCacheImpl::ReleasePassed(Sequence* sequence) noexcept {
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    const KVGroupLayout& group = layout_.groups[g];
    if (!group.has_window()) continue;
    SequenceGroup& held = sequence->groups[g];
    const int64_t first_kept = group.FirstNeeded(sequence->length);
    if (first_kept <= held.first_kept) continue;
    // A page is given back when none of its tokens is kept. Those before the earlier first_kept were.
    const int64_t begin =
        std::max(CeilDiv(group.num_always_visible, spec_.page_tokens), held.first_kept / spec_.page_tokens);
    const int64_t end = std::min(first_kept / spec_.page_tokens, sequence->num_pages);
    for (int64_t i = begin; i < end; ++i) {
      HEADLANE_DCHECK(held.pages[i] >= 0);
      pools_[g].Release(held.pages[i]);
      held.pages[i] = -1;
    }
    held.first_kept = first_kept;
  }
}

Status KVCacheImpl::CheckRollBack(SequenceId id, const Sequence& sequence, int64_t length) const noexcept {
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    const KVGroupLayout& group = layout_.groups[g];
    const int64_t first_kept = sequence.groups[g].first_kept;
    // Nothing is lost, or nothing that was lost is left.
    if (first_kept <= group.num_always_visible || length <= group.num_always_visible) continue;
    if (length - group.window + 1 >= first_kept) continue;
    return MakeStatus(StatusCode::kFailedPrecondition,
                      "sequence %lld: cannot go back to %lld tokens, layer group %lld with window %lld keeps what %lld "
                      "and more need",
                      LL(id.value), LL(length), LL(g), LL(group.window), LL(first_kept + group.window - 1));
  }
  return OkStatus();
}

Status KVCacheImpl::CheckKept(SequenceId id, int64_t group, int64_t begin, int64_t end) const noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  const int64_t first_lost = std::max(begin, layout_.groups[group].num_always_visible);
  const int64_t first_kept = sequence->groups[group].first_kept;
  if (first_lost >= end || first_lost >= first_kept) return OkStatus();
  return MakeStatus(
      StatusCode::kFailedPrecondition,
      "sequence %lld: token %lld is wanted, but layer group %lld with window %lld keeps those from %lld on",
      LL(id.value), LL(first_lost), LL(group), LL(layout_.groups[group].window), LL(first_kept));
}

}  // namespace headlane::internal
