// Drafted tokens: the accepted ones of a reservation are moved together and committed.
#include <cstring>

#include "base/check.h"
#include "kv/kv_cache_impl.h"
#include "kv/slot_copy.h"

namespace headlane::internal {
namespace {

long long LL(int64_t value) { return static_cast<long long>(value); }

}  // namespace

Status KVCacheImpl::CheckPath(SequenceId id, const Sequence& sequence, const int64_t* accepted,
                              int64_t n) const noexcept {
  if (n < 0 || n > sequence.reserved) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: cannot commit %lld tokens, %lld are reserved",
                      LL(id.value), LL(n), LL(sequence.reserved));
  }
  if (n > 0 && accepted == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "sequence %lld: accepted is null, but n is %lld", LL(id.value),
                      LL(n));
  }
  for (int64_t i = 0; i < n; ++i) {
    if (accepted[i] < 0 || accepted[i] >= sequence.reserved) {
      return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: accepted[%lld] is %lld, %lld tokens are reserved",
                        LL(id.value), LL(i), LL(accepted[i]), LL(sequence.reserved));
    }
    if (i > 0 && accepted[i] <= accepted[i - 1]) {
      return MakeStatus(StatusCode::kInvalidArgument,
                        "sequence %lld: accepted[%lld] is %lld, not more than the %lld before it", LL(id.value), LL(i),
                        LL(accepted[i]), LL(accepted[i - 1]));
    }
    const TokenPlace place = PlaceOf(sequence.length + accepted[i], spec_.page_tokens);
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      const unsigned written = marks_.Written(layer, PagesOf(sequence, layer)[place.page], place.tile);
      if ((written >> place.slot & 1u) != 0) continue;
      return MakeStatus(StatusCode::kFailedPrecondition,
                        "sequence %lld: cannot commit the reserved token %lld, it was not written in layer %lld",
                        LL(id.value), LL(accepted[i]), LL(layer));
    }
  }
  return OkStatus();
}

Status KVCacheImpl::CommitPath(SequenceId id, const int64_t* accepted, int64_t n) noexcept {
  Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  HEADLANE_RETURN_IF_ERROR(CheckPath(id, *sequence, accepted, n));
  // Ascending, so that no token is overwritten before it is moved: accepted[i] >= i.
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t layer = 0; layer < spec_.num_layers && accepted[i] != i; ++layer) {
      CopyToken(*sequence, layer, sequence->length + accepted[i], sequence->length + i);
    }
  }
  sequence->length += n;
  num_tokens_ += n;
  Shrink(sequence, sequence->length);
  ReleasePassed(sequence);
  return OkStatus();
}

void KVCacheImpl::CopyToken(const Sequence& sequence, int64_t layer, int64_t from, int64_t to) noexcept {
  const TokenPlace source = PlaceOf(from, spec_.page_tokens);
  const TokenPlace target = PlaceOf(to, spec_.page_tokens);
  const int64_t source_page = PagesOf(sequence, layer)[source.page];
  const int64_t target_page = PagesOf(sequence, layer)[target.page];
  HEADLANE_DCHECK(!IsShared(sequence, GroupOf(spec_, layer), target.page));
  uint16_t& written = marks_.Written(layer, target_page, target.tile);
  const bool stale = written == 0;
  for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
    std::byte* const k_tile = addressing_.KTile(layer, target_page, head, target.tile);
    std::byte* const v_tile = addressing_.VTile(layer, target_page, head, target.tile);
    if (stale) {
      std::memset(k_tile, 0, static_cast<size_t>(layout_.k_tile_bytes));
      std::memset(v_tile, 0, static_cast<size_t>(layout_.v_tile_bytes));
    }
    CopyKSlot(spec_.k_dtype, spec_.qk_dim, addressing_.KTile(layer, source_page, head, source.tile), source.slot,
              k_tile, target.slot);
    if (!spec_.values_in_keys) {
      CopyVSlot(spec_.v_dtype, spec_.v_dim, addressing_.VTile(layer, source_page, head, source.tile), source.slot,
                v_tile, target.slot);
    }
    uint8_t& flag = marks_.flags().Tiles(layer, target_page, head)[target.tile];
    flag = static_cast<uint8_t>((stale ? 0 : flag) | marks_.flags().Tiles(layer, source_page, head)[source.tile]);
  }
  written = static_cast<uint16_t>(written | 1u << target.slot);
}

}  // namespace headlane::internal
