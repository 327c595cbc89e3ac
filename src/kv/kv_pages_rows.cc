// Rows to the slots of pages that the caller manages, and back; block tables.
#include <algorithm>
#include <cstring>

#include "base/checked_math.h"
#include "base/float16.h"
#include "base/fp_environment.h"
#include "base/tile_layout.h"
#include "kv/kv_pages_impl.h"

namespace headlane::internal {
namespace {

using LL = long long;

Status CheckLayer(int64_t layer, int64_t num_layers) {
  if (RangeFits(layer, 1, num_layers)) return OkStatus();
  return MakeStatus(StatusCode::kOutOfRange, "layer %lld of %lld", static_cast<LL>(layer), static_cast<LL>(num_layers));
}

std::byte* RowOfPage(const TensorView& view, int64_t page, int64_t token, int64_t head) {
  return static_cast<std::byte*>(view.data) +
         (page * view.batch_stride + token * view.token_stride + head * view.head_stride) * DTypeBytes(view.dtype);
}

template <typename T>
void CopyElements(const std::byte* from, int64_t from_stride, int64_t n, std::byte* to, int64_t to_stride) {
  constexpr int64_t kBytes = sizeof(T);
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(n * kBytes));
    return;
  }
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride * kBytes, from + i * from_stride * kBytes, sizeof(T));
}

// Of one element type: bit by bit.
void CopyRow(DType dtype, const void* from, int64_t from_stride, int64_t n, void* to, int64_t to_stride) {
  const auto copy = DTypeBytes(dtype) == 4 ? &CopyElements<uint32_t> : &CopyElements<uint16_t>;
  copy(static_cast<const std::byte*>(from), from_stride, n, static_cast<std::byte*>(to), to_stride);
}

// A row as a page of rows stores it: rounded to nearest even, where the types differ.
void StoreRow(const PackTileArgs& from, const TensorView& view, std::byte* to) {
  if (from.rows_dtype == view.dtype) {
    return CopyRow(view.dtype, from.rows, from.dim_stride, from.dim, to, view.dim_stride);
  }
  const ElementwiseKernels& kernels = ActiveKernels().elementwise;
  constexpr int64_t kChunk = 256;
  alignas(64) float wide[kChunk];
  const std::byte* const rows = static_cast<const std::byte*>(from.rows);
  for (int64_t i = 0; i < from.dim; i += kChunk) {
    const int64_t n = std::min(kChunk, from.dim - i);
    kernels.scale(rows + i * from.dim_stride * DTypeBytes(from.rows_dtype), from.rows_dtype, from.dim_stride, 1.0f, n,
                  wide);
    kernels.store(wide, n, view.dtype, view.dim_stride, to + i * view.dim_stride * DTypeBytes(view.dtype));
  }
}

// The other way, to f32 or to what is stored.
void LoadRow(const TensorView& view, const std::byte* from, const TensorView& out, void* to) {
  if (out.dtype == view.dtype) return CopyRow(view.dtype, from, view.dim_stride, view.dim, to, out.dim_stride);
  for (int64_t i = 0; i < view.dim; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + i * view.dim_stride * int64_t{sizeof(bits)}, sizeof(bits));
    static_cast<float*>(to)[i * out.dim_stride] = view.dtype == DType::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
  }
}

}  // namespace

int64_t KVPagesImpl::TileBytes() const noexcept {
  if (has_tiles()) return layout_.k_tile_bytes + layout_.v_tile_bytes;
  const int64_t v_bytes = spec_.values_in_keys ? 0 : spec_.v_dim * DTypeBytes(spec_.v_dtype);
  return kTileKeys * (spec_.qk_dim * DTypeBytes(spec_.k_dtype) + v_bytes);
}

Status KVPagesImpl::CheckTable(std::span<const int32_t> page_ids, int64_t kv_len) const noexcept {
  const int64_t num_pages = static_cast<int64_t>(page_ids.size());
  const int64_t wanted = CeilDiv(kv_len, spec_.page_tokens);
  if (wanted > num_pages) {
    return MakeStatus(StatusCode::kOutOfRange, "%lld tokens need %lld pages of %lld, but page_ids has %lld",
                      static_cast<LL>(kv_len), static_cast<LL>(wanted), static_cast<LL>(spec_.page_tokens),
                      static_cast<LL>(num_pages));
  }
  if (wanted > 0 && page_ids.data() == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "page_ids is null, for %lld pages", static_cast<LL>(num_pages));
  }
  for (int64_t i = 0; i < wanted; ++i) {
    const int32_t page = page_ids[static_cast<size_t>(i)];
    if (page >= -1 && page < spec_.num_pages) continue;
    return MakeStatus(StatusCode::kOutOfRange, "page_ids[%lld] is %d, there are %lld pages", static_cast<LL>(i), page,
                      static_cast<LL>(spec_.num_pages));
  }
  return OkStatus();
}

Status KVPagesImpl::CheckPages(std::span<const int32_t> page_ids, int64_t begin, int64_t end) const noexcept {
  if (begin >= end) return OkStatus();
  for (int64_t i = begin / spec_.page_tokens; i <= (end - 1) / spec_.page_tokens; ++i) {
    const int32_t page = page_ids[static_cast<size_t>(i)];
    if (page >= 0 && page < spec_.num_pages) continue;
    return MakeStatus(StatusCode::kOutOfRange, "page_ids[%lld] is %d, but token %lld is wanted; there are %lld pages",
                      static_cast<LL>(i), page, static_cast<LL>(std::max(begin, i * spec_.page_tokens)),
                      static_cast<LL>(spec_.num_pages));
  }
  return OkStatus();
}

Status KVPagesImpl::CheckDistinct(std::span<const int64_t> slots) noexcept {
  // Appending one run of tokens is the usual case.
  bool ascending = true;
  int64_t last = -1;
  for (const int64_t slot : slots) {
    if (slot < 0) continue;
    ascending = ascending && slot > last;
    last = slot;
  }
  if (ascending) return OkStatus();
  uint64_t* const named = named_.as<uint64_t>();
  const auto bit = [](int64_t slot) { return uint64_t{1} << (slot % 64); };
  Status status;
  size_t i = 0;
  for (; i < slots.size(); ++i) {
    const int64_t slot = slots[i];
    if (slot < 0) continue;
    if ((named[slot / 64] & bit(slot)) != 0) {
      const size_t first = static_cast<size_t>(std::find(slots.begin(), slots.end(), slot) - slots.begin());
      status = MakeStatus(StatusCode::kInvalidArgument, "slots[%lld] and slots[%lld] are both %lld",
                          static_cast<LL>(first), static_cast<LL>(i), static_cast<LL>(slot));
      break;
    }
    named[slot / 64] |= bit(slot);
  }
  for (const int64_t slot : slots.first(i)) {
    if (slot >= 0) named[slot / 64] &= ~bit(slot);
  }
  return status;
}

Status KVPagesImpl::CheckSlots(std::span<const int64_t> slots) noexcept {
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] >= -1 && slots[i] < num_slots_) continue;
    return MakeStatus(StatusCode::kOutOfRange, "slots[%lld] is %lld, but %lld pages of %lld tokens have %lld slots",
                      static_cast<LL>(i), static_cast<LL>(slots[i]), static_cast<LL>(spec_.num_pages),
                      static_cast<LL>(spec_.page_tokens), static_cast<LL>(num_slots_));
  }
  return CheckDistinct(slots);
}

Status KVPagesImpl::CheckRows(int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                              std::span<const int64_t> slots, const KeyTransform* transform,
                              int64_t batch) const noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckLayer(layer, num_layers()));
  HEADLANE_RETURN_IF_ERROR(CheckRowsView("k", k, k.num_tokens, spec_.num_kv_heads, spec_.qk_dim));
  HEADLANE_RETURN_IF_ERROR(CheckBatchEntry("k", batch, k.num_batch));
  if (!spec_.values_in_keys) {
    HEADLANE_RETURN_IF_ERROR(CheckRowsView("v", v, k.num_tokens, spec_.num_kv_heads, spec_.v_dim));
    HEADLANE_RETURN_IF_ERROR(CheckBatchEntry("v", batch, v.num_batch));
  }
  if (static_cast<int64_t>(slots.size()) != k.num_tokens) {
    return MakeStatus(StatusCode::kInvalidArgument, "%lld slots for the %lld tokens of k",
                      static_cast<LL>(slots.size()), static_cast<LL>(k.num_tokens));
  }
  if (slots.data() == nullptr && !slots.empty()) {
    return MakeStatus(StatusCode::kInvalidArgument, "slots is null, for %lld tokens", static_cast<LL>(slots.size()));
  }
  if (transform == nullptr) return OkStatus();
  HEADLANE_RETURN_IF_ERROR(CheckTransform(*transform, spec_.qk_dim, spec_.values_in_keys ? spec_.v_dim : 0));
  if (transform->rope.rope.rotary_dim > 0 && transform->cos == nullptr && transform->positions == nullptr &&
      !slots.empty()) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "rope: positions is null, but pages do not know where their %lld tokens stand",
                      static_cast<LL>(slots.size()));
  }
  return CheckPositions(*transform, 0, k.num_tokens);
}

Status KVPagesImpl::Write(int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                          std::span<const int64_t> slots, const KeyTransform* transform, int64_t batch) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckRows(layer, k, v, slots, transform, batch));
  HEADLANE_RETURN_IF_ERROR(CheckSlots(slots));
  InDefaultFpEnvironment([&] {
    RowBuffers buffers;
    RowFeed k_feed(k, batch, transform, spec_.rotate, 0, &buffers);
    RowFeed v_feed(v, batch, nullptr, spec_.rotate, 0, &buffers);
    const KVLayerPages& pages = spec_.layers[static_cast<size_t>(layer)];
    if (has_tiles()) {
      WriteTiles(pages, k_feed, v_feed, slots);
    } else {
      WriteRows(pages, k_feed, v_feed, slots);
    }
  });
  return OkStatus();
}

void KVPagesImpl::WriteTiles(const KVLayerPages& pages, RowFeed& k, RowFeed& v,
                             std::span<const int64_t> slots) noexcept {
  const int64_t num_tokens = static_cast<int64_t>(slots.size());
  int64_t count = 1;
  for (int64_t token = 0; token < num_tokens; token += count) {
    const int64_t slot = slots[static_cast<size_t>(token)];
    count = 1;
    if (slot < 0) continue;
    // As many as stand one after the other in a tile, which never spans pages.
    const int64_t in_tile = slot % kTileKeys;
    const int64_t most = std::min({kTileKeys - in_tile, num_tokens - token, k.max_tokens()});
    while (count < most && slots[static_cast<size_t>(token + count)] == slot + count) ++count;
    k.Prepare(token, count);
    const int64_t page = slot / spec_.page_tokens;
    const int64_t tile = slot % spec_.page_tokens / kTileKeys;
    for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
      std::byte* const first = Head(pages, page, head);
      const bool non_finite = format_.Write(k, v, token, head, in_tile, count, first + tile * layout_.k_tile_bytes,
                                            first + layout_.v_offset + tile * layout_.v_tile_bytes);
      // What else the tile holds is known only when all of it is new.
      uint8_t& mark = Mark(pages, page, head, tile);
      mark = static_cast<uint8_t>((count == kTileKeys ? 0 : mark) | (non_finite ? 1 : 0));
    }
  }
}

void KVPagesImpl::WriteRows(const KVLayerPages& pages, RowFeed& k, RowFeed& v,
                            std::span<const int64_t> slots) noexcept {
  const int64_t num_tokens = static_cast<int64_t>(slots.size());
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int64_t slot = slots[static_cast<size_t>(token)];
    if (slot < 0) continue;
    const int64_t page = slot / spec_.page_tokens;
    const int64_t in_page = slot % spec_.page_tokens;
    k.Prepare(token, 1);
    for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
      k.ForEachPiece(token, head, 1, [&](const PackTileArgs& row, int64_t) {
        StoreRow(row, pages.k, RowOfPage(pages.k, page, in_page, head));
      });
      if (spec_.values_in_keys) continue;
      v.ForEachPiece(token, head, 1, [&](const PackTileArgs& row, int64_t) {
        StoreRow(row, pages.v, RowOfPage(pages.v, page, in_page, head));
      });
    }
  }
}

Status KVPagesImpl::Read(std::span<const int32_t> page_ids, int64_t layer, int64_t begin, const TensorView& k,
                         const TensorView& v) const noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckLayer(layer, num_layers()));
  HEADLANE_RETURN_IF_ERROR(CheckReadsRows("k", k, spec_.k_dtype, k.num_tokens, spec_.num_kv_heads, spec_.qk_dim));
  if (!spec_.values_in_keys) {
    HEADLANE_RETURN_IF_ERROR(CheckReadsRows("v", v, spec_.v_dtype, k.num_tokens, spec_.num_kv_heads, spec_.v_dim));
  }
  int64_t end = 0;
  if (begin < 0 || !CheckedAdd(begin, k.num_tokens, &end)) {
    return MakeStatus(StatusCode::kOutOfRange, "cannot read %lld tokens from %lld on", static_cast<LL>(k.num_tokens),
                      static_cast<LL>(begin));
  }
  HEADLANE_RETURN_IF_ERROR(CheckTable(page_ids, end));
  HEADLANE_RETURN_IF_ERROR(CheckPages(page_ids, begin, end));
  const KVLayerPages& pages = spec_.layers[static_cast<size_t>(layer)];
  for (int64_t token = 0; token < k.num_tokens; ++token) {
    const int64_t page = page_ids[static_cast<size_t>((begin + token) / spec_.page_tokens)];
    const int64_t in_page = (begin + token) % spec_.page_tokens;
    for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
      if (!has_tiles()) {
        LoadRow(pages.k, RowOfPage(pages.k, page, in_page, head), k, RowOf(k, token, head));
        if (!spec_.values_in_keys) LoadRow(pages.v, RowOfPage(pages.v, page, in_page, head), v, RowOf(v, token, head));
        continue;
      }
      const std::byte* const first = Head(pages, page, head);
      const int64_t tile = in_page / kTileKeys;
      const int64_t slot = in_page % kTileKeys;
      format_.ReadKey(first + tile * layout_.k_tile_bytes, slot, k.dtype, RowOf(k, token, head), k.dim_stride);
      if (spec_.values_in_keys) continue;
      format_.ReadValue(first + layout_.v_offset + tile * layout_.v_tile_bytes, slot, v.dtype, RowOf(v, token, head),
                        v.dim_stride);
    }
  }
  return OkStatus();
}

}  // namespace headlane::internal
