// Keys and values in pages that the caller manages: for engines with a block table of their own. The engine owns the
// memory, decides which page a token goes to, and names the pages of each sequence; Headlane writes tokens into slots
// and attends to them. Results have the bits of a KVCache with the same element types.
//
//   1. KVPages::Create over the memory of all layers, once.
//   2. Per step and layer, Write(layer, k, v, slots): token i goes to slot slots[i] = page * page_tokens + offset; -1
//      skips it.
//   3. Per step, plan with SequenceSpec::page_ids = the pages of each sequence in order, and run with
//      AttentionArgs::pages.
//
// Pages are of one of two kinds.
//
// kTiles: what attention reads fastest, in any element type. One page of one layer is `page_bytes` of memory:
//   head h   at h * head_bytes: tiles of 16 keys, k_tile_bytes each, and from v_offset on tiles of 16 values,
//            v_tile_bytes each, laid out as in a KVCache (kv_cache.h)
//   marks    at marks_offset + h * page_tokens / 16 + t: a byte, 0 unless values of tile t may not be finite
// Pages may be copied, moved and swapped out as bytes. Memory may hold anything at first; marks that are 0 then save
// time. Write sets marks; whoever writes tiles by other means has to, too.
//
// kRows: rows of f32, f16 or bf16 at any strides, [page][token][head][dim] and [page][head][token][dim] among them; the
// rows of one tensor of all pages. They are transposed on the way to the arithmetic, as plain tensors are.
//
// There is no window's ring here: an engine that gives pages back behind a window puts -1 in their place in page_ids.
#ifndef HEADLANE_KV_PAGES_H_
#define HEADLANE_KV_PAGES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "headlane/dtype.h"
#include "headlane/kv_cache.h"
#include "headlane/status.h"
#include "headlane/view.h"

namespace headlane {

enum class KVPageKind : int32_t {
  kTiles = 0,
  kRows,
};

// One layer's memory, which outlives every use of the pages.
struct KVLayerPages {
  void* tiles = nullptr;  // kTiles: page 0, aligned to 64 bytes
  // kRows: [num_pages, page_tokens, num_kv_heads, qk_dim] and [.., v_dim]: the batch entries are the pages. Elements
  // must not overlap. v is not looked at where the values are in the keys.
  TensorView k;
  TensorView v;
};

struct KVPagesSpec {
  KVPageKind kind = KVPageKind::kTiles;
  int64_t num_kv_heads = 0;
  int64_t qk_dim = 0;
  int64_t v_dim = 0;
  DType k_dtype = DType::kF32;  // kRows: f32, f16 or bf16, as the layers' tensors
  DType v_dtype = DType::kF32;
  bool values_in_keys = false;  // as in KVCacheSpec, both of them
  bool rotate = false;
  int64_t page_tokens = 16;  // kTiles: a multiple of 16 in 16 .. 256; kRows: 1 .. 2^20, multiples of 16 read fastest
  int64_t num_pages = 0;     // that the memory has
  int64_t page_stride = 0;   // kTiles: bytes from page to page, a multiple of 64; 0: KVPageLayout::page_bytes
  std::vector<KVLayerPages> layers;
};

// Where things are in a page of tiles, in bytes.
struct KVPageLayout {
  int64_t k_tile_bytes = 0;
  int64_t v_tile_bytes = 0;  // 0 where the values are in the keys
  int64_t v_offset = 0;
  int64_t head_bytes = 0;
  int64_t marks_offset = 0;
  int64_t page_bytes = 0;  // of one layer, a multiple of 64
};

// For an engine that is about to allocate; num_pages and layers are not looked at. Errors: InvalidArgument (names the
// field), Unsupported (dtype, rotate; kRows, whose layout is the caller's).
Result<KVPageLayout> TilePageLayout(const KVPagesSpec& spec) noexcept;

namespace internal {
class KVPagesImpl;
}

// Threads: Write must not run at the same time as any other call on the same pages; reading (attention, Read) may run
// on any number of threads.
class KVPages {
 public:
  // Touches no page. Errors: InvalidArgument (names the field, the layer and both numbers), Unsupported (dtype,
  // rotate), ResourceExhausted.
  static Result<KVPages> Create(const KVPagesSpec& spec) noexcept;

  KVPages(KVPages&&) noexcept;
  KVPages& operator=(KVPages&&) noexcept;
  ~KVPages();

  const KVPagesSpec& spec() const noexcept;
  const KVPageLayout& layout() const noexcept;  // kTiles

  // Encodes tokens of batch entry `batch` of k [.., n, num_kv_heads, qk_dim] and v [.., n, num_kv_heads, v_dim], f32,
  // f16 or bf16 each, into the slots of a layer; nothing else of the pages changes, but for marks. slots: [n]. With a
  // transform, keys are changed before as by KVCache::Write; its positions, or cosines and sines, are listed for all n.
  // Errors: OutOfRange (layer; a slot, named with the number of slots), InvalidArgument (shapes, null data, a slot that
  // is named twice, a transform that turns keys to positions it does not have), Unsupported, and as KVCache::Write;
  // nothing is written then. Allocation: none.
  Status Write(int64_t layer, const ConstTensorView& k, const ConstTensorView& v, std::span<const int64_t> slots,
               int64_t batch = 0) noexcept;
  Status Write(int64_t layer, const ConstTensorView& k, const ConstTensorView& v, std::span<const int64_t> slots,
               const KeyTransform& transform, int64_t batch = 0) noexcept;

  // Reads tokens [begin, begin + k.num_tokens) of the sequence that has these pages, as KVCache::Read does. Errors:
  // OutOfRange (layer, tokens past the pages, a page number that is not one), InvalidArgument, Unsupported. Allocation:
  // none.
  Status Read(std::span<const int32_t> page_ids, int64_t layer, int64_t begin, const TensorView& k,
              const TensorView& v) const noexcept;

  // For the library itself.
  const internal::KVPagesImpl& impl() const noexcept { return *impl_; }

 private:
  explicit KVPages(std::unique_ptr<internal::KVPagesImpl> impl) noexcept;
  std::unique_ptr<internal::KVPagesImpl> impl_;
};

}  // namespace headlane

#endif  // HEADLANE_KV_PAGES_H_
