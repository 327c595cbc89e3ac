// Rows to tiles and back: Write, Append, Read, and what must be true of the rows before a byte is moved.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked_math.h"
#include "base/float16.h"
#include "base/fp_environment.h"
#include "base/quantized.h"
#include "base/tile_layout.h"
#include "base/view_check.h"
#include "kv/kv_cache_impl.h"

namespace headlane::internal {
namespace {

long long LL(int64_t value) { return static_cast<long long>(value); }

// Extents of one of k and v. View is ConstTensorView or TensorView.
template <typename View>
Status CheckRowsView(const char* name, const View& view, int64_t num_tokens, int64_t num_heads, int64_t dim) {
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

// Rows are given back as what holds every stored number exactly.
Status CheckReadsF32(const char* name, const TensorView& view) {
  if (DTypeBytes(view.dtype) == 0 || view.dtype == DType::kF32) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported, "%s: rows are %s, a cache gives f32", name, DTypeName(view.dtype));
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

// Whether one of features [0, dim) of slots [begin, begin + count) of a K tile is not finite.
template <typename T>
bool HoldsNonFinite(DType dtype, const std::byte* tile, T exponent, int64_t dim, int64_t begin, int64_t count) {
  bool found = false;
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t slot = begin; slot < begin + count; ++slot) {
      T bits;
      std::memcpy(&bits, tile + KTileIndex(dtype, d, slot) * static_cast<int64_t>(sizeof(T)), sizeof(T));
      found |= (bits & exponent) == exponent;
    }
  }
  return found;
}
bool HoldsNonFinite(DType dtype, const std::byte* tile, int64_t qk_dim, int64_t dim, int64_t begin, int64_t count) {
  if (IsQuantized(dtype)) {
    bool found = false;
    for (int64_t d = 0; d < dim; ++d) {
      for (int64_t slot = begin; slot < begin + count; ++slot) {
        const float x = KTileElement(dtype, tile, qk_dim, d, slot);
        found |= !(x - x == 0.0f);
      }
    }
    return found;
  }
  if (dtype == DType::kF32) return HoldsNonFinite<uint32_t>(dtype, tile, 0x7F800000u, dim, begin, count);
  const uint16_t exponent = dtype == DType::kF16 ? 0x7C00 : 0x7F80;
  return HoldsNonFinite<uint16_t>(dtype, tile, exponent, dim, begin, count);
}

// The number at `index` of a tile, exactly. Its bytes are copied: on some targets a float that is loaded and stored may
// lose its NaN payload.
void ReadElement(DType dtype, const std::byte* tile, int64_t index, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, tile + index * static_cast<int64_t>(sizeof(float)), sizeof(float));
    return;
  }
  uint16_t bits;
  std::memcpy(&bits, tile + index * static_cast<int64_t>(sizeof(bits)), sizeof(bits));
  *out = dtype == DType::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
}

// A feature of the key or value in a slot.
void ReadKeyElement(const KVCacheSpec& spec, const std::byte* tile, int64_t feature, int64_t slot, float* out) {
  if (!IsQuantized(spec.k_dtype)) return ReadElement(spec.k_dtype, tile, KTileIndex(spec.k_dtype, feature, slot), out);
  *out = KTileElement(spec.k_dtype, tile, spec.qk_dim, feature, slot);
}
void ReadValueElement(const KVCacheSpec& spec, const std::byte* tile, int64_t feature, int64_t slot, float* out) {
  if (!IsQuantized(spec.v_dtype)) return ReadElement(spec.v_dtype, tile, VTileIndex(spec.v_dtype, feature, slot), out);
  *out = VTileElement(spec.v_dtype, tile, spec.v_dim, feature, slot);
}

// Rows of `count` tokens of a view as a kernel's argument.
PackTileArgs RowsOf(const ConstTensorView& view, int64_t batch, int64_t token, int64_t head, int64_t count) {
  PackTileArgs pack{};
  const int64_t first = batch * view.batch_stride + token * view.token_stride + head * view.head_stride;
  pack.rows = static_cast<const std::byte*>(view.data) + first * DTypeBytes(view.dtype);
  pack.rows_dtype = view.dtype;
  pack.row_stride = view.token_stride;
  pack.dim_stride = view.dim_stride;
  pack.dim = view.dim;
  pack.num_keys = count;
  return pack;
}

}  // namespace

Status KVCacheImpl::CheckRows(SequenceId id, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                              int64_t batch) const noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckLayer(id, layer, spec_.num_layers));
  HEADLANE_RETURN_IF_ERROR(CheckRowsView("k", k, k.num_tokens, spec_.num_kv_heads, spec_.qk_dim));
  HEADLANE_RETURN_IF_ERROR(CheckBatch("k", batch, k.num_batch));
  if (spec_.values_in_keys) return OkStatus();
  HEADLANE_RETURN_IF_ERROR(CheckRowsView("v", v, k.num_tokens, spec_.num_kv_heads, spec_.v_dim));
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
  InDefaultFpEnvironment([&] { WriteRows(*sequence, layer, k, v, begin, batch); });
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
  InDefaultFpEnvironment([&] { WriteRows(*sequences_.Find(id), 0, k, v, 0, 0); });
  return Commit(id, k.num_tokens);
}

void KVCacheImpl::WriteRows(const Sequence& sequence, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                            int64_t begin, int64_t batch) noexcept {
  int64_t count = 0;
  for (int64_t token = 0; token < k.num_tokens; token += count) {
    const TokenPlace place = PlaceOf(sequence.length + begin + token, spec_.page_tokens);
    count = std::min(kTileKeys - place.slot, k.num_tokens - token);
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
      PackTileArgs pack = RowsOf(k, batch, token, head, count);
      pack.slot_begin = place.slot;
      pack.tile = k_tile;
      k_kernels_->pack_k(pack);
      bool non_finite = false;
      if (spec_.values_in_keys) {
        non_finite = HoldsNonFinite(spec_.k_dtype, k_tile, spec_.qk_dim, spec_.v_dim, place.slot, count);
      } else {
        pack = RowsOf(v, batch, token, head, count);
        pack.slot_begin = place.slot;
        pack.tile = v_tile;
        pack.non_finite = &non_finite;
        v_kernels_->pack_v(pack);
      }
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

void KVCacheImpl::ReadKey(const std::byte* k_tile, int64_t slot, float* row, int64_t dim_stride) const noexcept {
  for (int64_t i = 0; i < spec_.qk_dim; ++i) {
    ReadKeyElement(spec_, k_tile, i, slot, &row[i * dim_stride]);
  }
}

Status KVCacheImpl::Read(SequenceId id, int64_t layer, int64_t begin, const TensorView& k,
                         const TensorView& v) const noexcept {
  const Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  HEADLANE_RETURN_IF_ERROR(CheckLayer(id, layer, spec_.num_layers));
  HEADLANE_RETURN_IF_ERROR(CheckReadsF32("k", k));
  HEADLANE_RETURN_IF_ERROR(CheckRowsView("k", k, k.num_tokens, spec_.num_kv_heads, spec_.qk_dim));
  HEADLANE_RETURN_IF_ERROR(CheckBatch("k", 0, k.num_batch));
  if (!spec_.values_in_keys) {
    HEADLANE_RETURN_IF_ERROR(CheckReadsF32("v", v));
    HEADLANE_RETURN_IF_ERROR(CheckRowsView("v", v, k.num_tokens, spec_.num_kv_heads, spec_.v_dim));
    HEADLANE_RETURN_IF_ERROR(CheckBatch("v", 0, v.num_batch));
  }
  if (!RangeFits(begin, k.num_tokens, sequence->length)) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: cannot read %lld tokens from %lld on, it has %lld",
                      LL(id.value), LL(k.num_tokens), LL(begin), LL(sequence->length));
  }
  HEADLANE_RETURN_IF_ERROR(CheckKept(id, GroupOfLayer(layer), begin, begin + k.num_tokens));
  for (int64_t token = 0; token < k.num_tokens; ++token) {
    const TokenPlace place = PlaceOf(begin + token, spec_.page_tokens);
    const int64_t page = PagesOf(*sequence, layer)[place.page];
    for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
      const std::byte* const k_tile = addressing_.KTile(layer, page, head, place.tile);
      float* const k_row = static_cast<float*>(k.data) + token * k.token_stride + head * k.head_stride;
      ReadKey(k_tile, place.slot, k_row, k.dim_stride);
      if (spec_.values_in_keys) continue;
      const std::byte* const v_tile = addressing_.VTile(layer, page, head, place.tile);
      float* const v_row = static_cast<float*>(v.data) + token * v.token_stride + head * v.head_stride;
      for (int64_t i = 0; i < spec_.v_dim; ++i) {
        ReadValueElement(spec_, v_tile, i, place.slot, &v_row[i * v.dim_stride]);
      }
    }
  }
  return OkStatus();
}

}  // namespace headlane::internal
