// Rows to tiles and back: Write, Append, Read, and what must be true of the rows before a byte is moved.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked_math.h"
#include "base/fp_environment.h"
#include "kv/kv_cache_impl.h"
#include "kv/row_feed.h"
#include "kv/tile_rows.h"

namespace headlane::internal {
namespace {

long long LL(int64_t value) { return static_cast<long long>(value); }

Status CheckLayer(SequenceId id, int64_t layer, int64_t num_layers) {
  if (RangeFits(layer, 1, num_layers)) return OkStatus();
  return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: layer %lld of %lld", LL(id.value), LL(layer),
                    LL(num_layers));
}

// The bits of slots [begin, begin + count).
uint16_t SlotBits(int64_t begin, int64_t count) { return static_cast<uint16_t>(((1u << count) - 1u) << begin); }

}  // namespace

Status KVCacheImpl::CheckRows(SequenceId id, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                              const KeyTransform* transform, int64_t batch) const noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckLayer(id, layer, spec_.num_layers));
  HEADLANE_RETURN_IF_ERROR(CheckRowsView("k", k, k.num_tokens, spec_.num_kv_heads, spec_.qk_dim));
  HEADLANE_RETURN_IF_ERROR(CheckBatchEntry("k", batch, k.num_batch));
  if (transform != nullptr) {
    HEADLANE_RETURN_IF_ERROR(CheckTransform(*transform, spec_.qk_dim, spec_.values_in_keys ? spec_.v_dim : 0));
  }
  if (spec_.values_in_keys) return OkStatus();
  HEADLANE_RETURN_IF_ERROR(CheckRowsView("v", v, k.num_tokens, spec_.num_kv_heads, spec_.v_dim));
  return CheckBatchEntry("v", batch, v.num_batch);
}

Status KVCacheImpl::Write(SequenceId id, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                          const KeyTransform* transform, int64_t begin, int64_t batch) noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  HEADLANE_RETURN_IF_ERROR(CheckRows(id, layer, k, v, transform, batch));
  if (!RangeFits(begin, k.num_tokens, sequence->reserved)) {
    return MakeStatus(StatusCode::kOutOfRange,
                      "sequence %lld: cannot write %lld tokens at %lld behind its length, %lld are reserved",
                      LL(id.value), LL(k.num_tokens), LL(begin), LL(sequence->reserved));
  }
  if (transform != nullptr) {
    HEADLANE_RETURN_IF_ERROR(CheckPositions(*transform, sequence->length + begin, k.num_tokens));
  }
  InDefaultFpEnvironment([&] { WriteRows(*sequence, layer, k, v, transform, begin, batch); });
  return OkStatus();
}

Status KVCacheImpl::Append(SequenceId id, const ConstTensorView& k, const ConstTensorView& v,
                           const KeyTransform* transform) noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  if (spec_.num_layers != 1) {
    return MakeStatus(StatusCode::kFailedPrecondition,
                      "sequence %lld: Append is for caches of 1 layer, this one has %lld: use Reserve, Write, Commit",
                      LL(id.value), LL(spec_.num_layers));
  }
  // All that can fail comes before Reserve, which drops an earlier reservation, or is Reserve.
  HEADLANE_RETURN_IF_ERROR(CheckRows(id, 0, k, v, transform, 0));
  if (transform != nullptr) HEADLANE_RETURN_IF_ERROR(CheckPositions(*transform, sequence->length, k.num_tokens));
  HEADLANE_RETURN_IF_ERROR(Reserve(id, k.num_tokens));
  InDefaultFpEnvironment([&] { WriteRows(*sequences_.Find(id), 0, k, v, transform, 0, 0); });
  return Commit(id, k.num_tokens);
}

void KVCacheImpl::WriteRows(const Sequence& sequence, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                            const KeyTransform* transform, int64_t begin, int64_t batch) noexcept {
  const TileFormat format = tile_format();
  RowBuffers buffers;
  RowFeed k_feed(k, batch, transform, spec_.rotate, sequence.length + begin, &buffers);
  RowFeed v_feed(v, batch, nullptr, spec_.rotate, 0, &buffers);
  int64_t count = 0;
  for (int64_t token = 0; token < k.num_tokens; token += count) {
    const TokenPlace place = PlaceOf(sequence.length + begin + token, spec_.page_tokens);
    count = std::min({kTileKeys - place.slot, k.num_tokens - token, k_feed.max_tokens()});
    k_feed.Prepare(token, count);
    const int64_t page = PagesOf(sequence, layer)[place.page];
    uint16_t& written = marks_.Written(layer, page, place.tile);
    const bool stale = written == 0;
    for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
      std::byte* const k_tile = addressing_.KTile(layer, page, head, place.tile);
      std::byte* const v_tile = addressing_.VTile(layer, page, head, place.tile);
      // Slots that hold no token take part in the arithmetic with weight 0, which is only harmless for finite values.
      if (stale && count < kTileKeys) {
        std::memset(k_tile, 0, static_cast<size_t>(layout_.k_tile_bytes));
        std::memset(v_tile, 0, static_cast<size_t>(layout_.v_tile_bytes));
      }
      const bool non_finite = format.Write(k_feed, v_feed, token, head, place.slot, count, k_tile, v_tile);
      uint8_t& flag = marks_.flags().Tiles(layer, page, head)[place.tile];
      // A later roll-back leaves what was written in the tile's memory, so the flag stays until all of the tile is new.
      const bool all_new = stale || count == kTileKeys;
      flag = static_cast<uint8_t>((all_new ? 0 : flag) | (non_finite ? 1 : 0));
    }
    written = static_cast<uint16_t>(written | SlotBits(place.slot, count));
  }
}

Status KVCacheImpl::CheckWritten(SequenceId id, const Sequence& sequence, int64_t n) const noexcept {
  int64_t count = 0;
  for (int64_t token = 0; token < n; token += count) {
    const TokenPlace place = PlaceOf(sequence.length + token, spec_.page_tokens);
    count = std::min(kTileKeys - place.slot, n - token);
    const uint16_t wanted = SlotBits(place.slot, count);
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      const unsigned missing =
          wanted & ~static_cast<unsigned>(marks_.Written(layer, PagesOf(sequence, layer)[place.page], place.tile));
      if (missing == 0) continue;
      return MakeStatus(StatusCode::kFailedPrecondition,
                        "sequence %lld: cannot commit %lld tokens, number %lld of them was not written in layer %lld",
                        LL(id.value), LL(n), LL(token + std::countr_zero(missing) - place.slot), LL(layer));
    }
  }
  return OkStatus();
}

Status KVCacheImpl::Read(SequenceId id, int64_t layer, int64_t begin, const TensorView& k,
                         const TensorView& v) const noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  HEADLANE_RETURN_IF_ERROR(CheckLayer(id, layer, spec_.num_layers));
  HEADLANE_RETURN_IF_ERROR(CheckReadsRows("k", k, spec_.k_dtype, k.num_tokens, spec_.num_kv_heads, spec_.qk_dim));
  if (!spec_.values_in_keys) {
    HEADLANE_RETURN_IF_ERROR(CheckReadsRows("v", v, spec_.v_dtype, k.num_tokens, spec_.num_kv_heads, spec_.v_dim));
  }
  if (!RangeFits(begin, k.num_tokens, sequence->length)) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: cannot read %lld tokens from %lld on, it has %lld",
                      LL(id.value), LL(k.num_tokens), LL(begin), LL(sequence->length));
  }
  HEADLANE_RETURN_IF_ERROR(CheckKept(id, GroupOfLayer(layer), begin, begin + k.num_tokens));
  const TileFormat format = tile_format();
  for (int64_t token = 0; token < k.num_tokens; ++token) {
    const TokenPlace place = PlaceOf(begin + token, spec_.page_tokens);
    const int64_t page = PagesOf(*sequence, layer)[place.page];
    for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
      format.ReadKey(addressing_.KTile(layer, page, head, place.tile), place.slot, k.dtype, RowOf(k, token, head),
                     k.dim_stride);
      if (spec_.values_in_keys) continue;
      format.ReadValue(addressing_.VTile(layer, page, head, place.tile), place.slot, v.dtype, RowOf(v, token, head),
                       v.dim_stride);
    }
  }
  return OkStatus();
}

}  // namespace headlane::internal
