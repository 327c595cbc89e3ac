// Pages that the caller manages, behind KVPages: checks of what he hands in, and rows to slots and back.
//
// Separate from the public header so that planning and execution see addresses and users don't. Called by KVPages
// (kv_pages.cc), by planning (CheckTable) and by execution (addresses).
#ifndef HEADLANE_SRC_KV_KV_PAGES_IMPL_H_
#define HEADLANE_SRC_KV_KV_PAGES_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/aligned_buffer.h"
#include "headlane/kv_pages.h"
#include "kernels/kernel_api.h"
#include "kv/tile_rows.h"

namespace headlane::internal {

class KVPagesImpl {
 public:
  // `kernels` as KVCacheImpl::Create's. Errors: see KVPages::Create.
  static Result<std::unique_ptr<KVPagesImpl>> Create(const KVPagesSpec& spec,
                                                     const KvKernels (&kernels)[kNumDTypes]) noexcept;

  const KVPagesSpec& spec() const noexcept { return spec_; }
  const KVPageLayout& layout() const noexcept { return layout_; }
  bool has_tiles() const noexcept { return spec_.kind == KVPageKind::kTiles; }
  int64_t page_stride() const noexcept { return spec_.page_stride; }  // kTiles
  int64_t num_layers() const noexcept { return static_cast<int64_t>(spec_.layers.size()); }
  const KVLayerPages& layer(int64_t layer) const noexcept { return spec_.layers[static_cast<size_t>(layer)]; }

  // As KVPages' methods; `transform` may be null.
  Status Write(int64_t layer, const ConstTensorView& k, const ConstTensorView& v, std::span<const int64_t> slots,
               const KeyTransform* transform, int64_t batch) noexcept;
  Status Read(std::span<const int32_t> page_ids, int64_t layer, int64_t begin, const TensorView& k,
              const TensorView& v) const noexcept;

  // Ok when the list has pages for kv_len tokens, each -1, which is none, or a page. Errors: InvalidArgument (null),
  // OutOfRange.
  Status CheckTable(std::span<const int32_t> page_ids, int64_t kv_len) const noexcept;
  // Ok when tokens [begin, end) are in pages. Requires: the list is long enough. Errors: OutOfRange.
  Status CheckPages(std::span<const int32_t> page_ids, int64_t begin, int64_t end) const noexcept;

  // Bytes of 16 tokens of a head, as stored.
  int64_t TileBytes() const noexcept;

 private:
  explicit KVPagesImpl(const KVPagesSpec& spec) : spec_(spec) {}

  Status CheckRows(int64_t layer, const ConstTensorView& k, const ConstTensorView& v, std::span<const int64_t> slots,
                   const KeyTransform* transform, int64_t batch) const noexcept;
  // Slots that exist, each named once.
  Status CheckSlots(std::span<const int64_t> slots) noexcept;
  Status CheckDistinct(std::span<const int64_t> slots) noexcept;
  void WriteTiles(const KVLayerPages& pages, RowFeed& k, RowFeed& v, std::span<const int64_t> slots) noexcept;
  void WriteRows(const KVLayerPages& pages, RowFeed& k, RowFeed& v, std::span<const int64_t> slots) noexcept;
  std::byte* Head(const KVLayerPages& pages, int64_t page, int64_t head) const noexcept {
    return static_cast<std::byte*>(pages.tiles) + page * spec_.page_stride + head * layout_.head_bytes;
  }
  uint8_t& Mark(const KVLayerPages& pages, int64_t page, int64_t head, int64_t tile) const noexcept {
    std::byte* const marks = static_cast<std::byte*>(pages.tiles) + page * spec_.page_stride + layout_.marks_offset;
    return *reinterpret_cast<uint8_t*>(marks + head * (spec_.page_tokens / kTileKeys) + tile);
  }

  KVPagesSpec spec_;
  KVPageLayout layout_;
  TileFormat format_;
  int64_t num_slots_ = 0;
  AlignedBuffer named_;  // a bit per slot, all 0 between calls: the slots that a call names
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_KV_PAGES_IMPL_H_
