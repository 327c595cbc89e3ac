// Rows to tiles and back: Write, Append, Read, and what must be true of the rows before a byte is moved.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked_math.h"
#include "base/view_check.h"
#include "kv/kv_cache_impl.h"

namespace headlane::internal {
namespace {

long long LL(int64_t value) { return static_cast<long long>(value); }

// Extents and dtype of one of k and v. View is ConstTensorView or TensorView.
template <typename View>
Status CheckRowsView(const char* name, const View& view, int64_t num_tokens, int64_t num_heads, int64_t dim,
                     DType stored) {
  if (DTypeBytes(view.dtype) != 0 && view.dtype != DType::kF32) {
    return MakeStatus(StatusCode::kUnsupported, "%s: rows are %s, a cache of %s takes and gives f32", name,
                      DTypeName(view.dtype), DTypeName(stored));
  }
  const struct {
    const char* field;
    int64_t value;
    int64_t expected;
  } extents[] = {
      {"num_heads", view.num_heads, num_heads}, {"dim", view.dim, dim}, {"num_tokens", view.num_tokens, num_tokens}};
  for (const auto& [field, value, expected] : extents) {
    if (value != expected) {
      return MakeStatus(StatusCode::kInvalidArgument, "%s: %s is %lld, must be %lld", name, field, LL(value),
                        LL(expected));
    }
  }
  return CheckView(name, view);
}

Status CheckBatch(const char* name, int64_t batch, int64_t num_batch) {
  if (RangeFits(batch, 1, num_batch)) return OkStatus();
  return MakeStatus(StatusCode::kOutOfRange, "%s: batch entry %lld of %lld", name, LL(batch), LL(num_batch));
}

Status CheckLayer(SequenceId id, int64_t layer, int64_t num_layers) {
  if (RangeFits(layer, 1, num_layers)) return OkStatus();
  return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: layer %lld of %lld", LL(id.value), LL(layer),
                    LL(num_layers));
}

// The bits of slots [begin, begin + count).
uint16_t SlotBits(int64_t begin, int64_t count) { return static_cast<uint16_t>(((1u << count) - 1u) << begin); }

}  // namespace

Status KVCacheImpl::CheckRows(SequenceId id, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                              int64_t batch) const noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckLayer(id, layer, spec_.num_layers));
  HEADLANE_RETURN_IF_ERROR(CheckRowsView("k", k, k.num_tokens, spec_.num_kv_heads, spec_.qk_dim, spec_.k_dtype));
  HEADLANE_RETURN_IF_ERROR(CheckRowsView("v", v, k.num_tokens, spec_.num_kv_heads, spec_.v_dim, spec_.v_dtype));
  HEADLANE_RETURN_IF_ERROR(CheckBatch("k", batch, k.num_batch));
  return CheckBatch("v", batch, v.num_batch);
}

Status KVCacheImpl::Write(SequenceId id, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                          int64_t begin, int64_t batch) noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  HEADLANE_RETURN_IF_ERROR(CheckRows(id, layer, k, v, batch));
  if (!RangeFits(begin, k.num_tokens, sequence->reserved)) {
    return MakeStatus(StatusCode::kOutOfRange,
                      "sequence %lld: cannot write %lld tokens at %lld behind its length, %lld are reserved",
                      LL(id.value), LL(k.num_tokens), LL(begin), LL(sequence->reserved));
  }
  WriteRows(*sequence, layer, k, v, begin, batch);
  return OkStatus();
}

Status KVCacheImpl::Append(SequenceId id, const ConstTensorView& k, const ConstTensorView& v) noexcept {
  if (sequences_.Find(id) == nullptr) return NoSequence(id);
  if (spec_.num_layers != 1) {
    return MakeStatus(StatusCode::kFailedPrecondition,
                      "sequence %lld: Append is for caches of 1 layer, this one has %lld: use Reserve, Write, Commit",
                      LL(id.value), LL(spec_.num_layers));
  }
  // All that can fail comes before Reserve, which drops an earlier reservation, or is Reserve.
  HEADLANE_RETURN_IF_ERROR(CheckRows(id, 0, k, v, 0));
  HEADLANE_RETURN_IF_ERROR(Reserve(id, k.num_tokens));
  WriteRows(*sequences_.Find(id), 0, k, v, 0, 0);
  return Commit(id, k.num_tokens);
}

void KVCacheImpl::WriteRows(const Sequence& sequence, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                            int64_t begin, int64_t batch) noexcept {
  int64_t count = 0;
  for (int64_t token = 0; token < k.num_tokens; token += count) {
    const TokenPlace place = PlaceOf(sequence.length + begin + token, spec_.page_tokens);
    count = std::min(kTileKeys - place.slot, k.num_tokens - token);
    const int64_t page = sequence.pages[place.page];
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
      bool non_finite = false;
      const float* const k_rows =
          static_cast<const float*>(k.data) + batch * k.batch_stride + token * k.token_stride + head * k.head_stride;
      const float* const v_rows =
          static_cast<const float*>(v.data) + batch * v.batch_stride + token * v.token_stride + head * v.head_stride;
      PackTileArgs pack{.rows = k_rows,
                        .rows_dtype = DType::kF32,
                        .row_stride = k.token_stride,
                        .dim_stride = k.dim_stride,
                        .dim = spec_.qk_dim,
                        .num_keys = count,
                        .slot_begin = place.slot,
                        .tile = k_tile,
                        .non_finite = nullptr};
      kernels_->pack_k(pack);
      pack.rows = v_rows;
      pack.row_stride = v.token_stride;
      pack.dim_stride = v.dim_stride;
      pack.dim = spec_.v_dim;
      pack.tile = v_tile;
      pack.non_finite = &non_finite;
      kernels_->pack_v(pack);
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
          wanted & ~static_cast<unsigned>(marks_.Written(layer, sequence.pages[place.page], place.tile));
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
  HEADLANE_RETURN_IF_ERROR(CheckRowsView("k", k, k.num_tokens, spec_.num_kv_heads, spec_.qk_dim, spec_.k_dtype));
  HEADLANE_RETURN_IF_ERROR(CheckRowsView("v", v, k.num_tokens, spec_.num_kv_heads, spec_.v_dim, spec_.v_dtype));
  HEADLANE_RETURN_IF_ERROR(CheckBatch("k", 0, k.num_batch));
  HEADLANE_RETURN_IF_ERROR(CheckBatch("v", 0, v.num_batch));
  if (!RangeFits(begin, k.num_tokens, sequence->length)) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: cannot read %lld tokens from %lld on, it has %lld",
                      LL(id.value), LL(k.num_tokens), LL(begin), LL(sequence->length));
  }
  for (int64_t token = 0; token < k.num_tokens; ++token) {
    const TokenPlace place = PlaceOf(begin + token, spec_.page_tokens);
    const int64_t page = sequence->pages[place.page];
    for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
      const float* const k_tile = reinterpret_cast<const float*>(addressing_.KTile(layer, page, head, place.tile));
      const float* const v_tile = reinterpret_cast<const float*>(addressing_.VTile(layer, page, head, place.tile));
      float* const k_row = static_cast<float*>(k.data) + token * k.token_stride + head * k.head_stride;
      float* const v_row = static_cast<float*>(v.data) + token * v.token_stride + head * v.head_stride;
      // memcpy of the bytes: on some targets a float that is loaded and stored may lose its NaN payload.
      for (int64_t i = 0; i < spec_.qk_dim; ++i) {
        std::memcpy(&k_row[i * k.dim_stride], &k_tile[i * kTileKeys + place.slot], sizeof(float));
      }
      for (int64_t i = 0; i < spec_.v_dim; ++i) {
        const int64_t stripe = i / kTileKeys;
        const int64_t lane = i % kTileKeys;
        std::memcpy(&v_row[i * v.dim_stride], &v_tile[(stripe * kTileKeys + place.slot) * kTileKeys + lane],
                    sizeof(float));
      }
    }
  }
  return OkStatus();
}

}  // namespace headlane::internal
