// The public face of pages that the caller manages, and what is refused of their description.
#include "headlane/kv_pages.h"

#include <cstdint>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/checked_math.h"
#include "base/tile_layout.h"
#include "base/view_check.h"
#include "kernels/kernel_api.h"
#include "kv/kv_pages_impl.h"
#include "kv/layout.h"
#include "kv/row_feed.h"

namespace headlane {
namespace internal {
namespace {

using LL = long long;

// Far beyond what there is, and products of two still fit.
constexpr int64_t kMostPages = int64_t{1} << 31;
constexpr int64_t kMostPageTokens = int64_t{1} << 20;

Status FieldError(const char* field, int64_t value, const char* must_be) {
  return MakeStatus(StatusCode::kInvalidArgument, "KVPagesSpec: %s is %lld, must be %s", field, static_cast<LL>(value),
                    must_be);
}

Status CheckDType(const char* field, DType dtype, bool tiles) {
  if (DTypeBytes(dtype) != 0 || (tiles && IsQuantized(dtype))) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported, "KVPagesSpec: %s is %s (%d), must be f32, f16%s", field, DTypeName(dtype),
                    static_cast<int>(dtype), tiles ? ", bf16, int8, fp8 or int4" : " or bf16 in pages of rows");
}

// All but the memory.
Status CheckShape(const KVPagesSpec& spec) {
  const bool tiles = spec.kind == KVPageKind::kTiles;
  if (!tiles && spec.kind != KVPageKind::kRows) {
    return MakeStatus(StatusCode::kInvalidArgument, "KVPagesSpec: kind is %d, not one of the 2 known",
                      static_cast<int>(spec.kind));
  }
  const struct {
    const char* field;
    int64_t value;
  } positive[] = {{"num_kv_heads", spec.num_kv_heads}, {"qk_dim", spec.qk_dim}, {"v_dim", spec.v_dim}};
  for (const auto& [field, value] : positive) {
    if (value < 1 || value > kMostPageTokens) return FieldError(field, value, "in 1 .. 1048576");
  }
  if (tiles &&
      (spec.page_tokens < kTileKeys || spec.page_tokens > kMaxPageTokens || spec.page_tokens % kTileKeys != 0)) {
    return FieldError("page_tokens", spec.page_tokens, "a multiple of 16 in 16 .. 256");
  }
  if (spec.page_tokens < 1 || spec.page_tokens > kMostPageTokens) {
    return FieldError("page_tokens", spec.page_tokens, "in 1 .. 1048576");
  }
  HEADLANE_RETURN_IF_ERROR(CheckDType("k_dtype", spec.k_dtype, tiles));
  if (!spec.values_in_keys) HEADLANE_RETURN_IF_ERROR(CheckDType("v_dtype", spec.v_dtype, tiles));
  if (spec.values_in_keys && spec.v_dim > spec.qk_dim) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "KVPagesSpec: v_dim is %lld, values in keys have at most qk_dim %lld",
                      static_cast<LL>(spec.v_dim), static_cast<LL>(spec.qk_dim));
  }
  return spec.rotate ? CheckRotation("KVPagesSpec", spec.qk_dim, spec.v_dim, spec.values_in_keys) : OkStatus();
}

// Whether bytes [0, bytes) from `data` on have addresses.
bool Addressable(const void* data, int64_t bytes) {
  return static_cast<uint64_t>(bytes) <= UINTPTR_MAX - reinterpret_cast<uintptr_t>(data);
}

Status CheckTiles(const KVPagesSpec& spec, int64_t page_bytes) {
  if (spec.page_stride < page_bytes || spec.page_stride % kTileAlignment != 0) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "KVPagesSpec: page_stride is %lld, must be a multiple of 64, and at least the %lld of a page",
                      static_cast<LL>(spec.page_stride), static_cast<LL>(page_bytes));
  }
  int64_t bytes = 0;
  if (!CheckedMul(spec.num_pages, spec.page_stride, &bytes)) {
    return MakeStatus(StatusCode::kInvalidArgument, "KVPagesSpec: %lld pages of %lld bytes pass 64 bits",
                      static_cast<LL>(spec.num_pages), static_cast<LL>(spec.page_stride));
  }
  for (size_t i = 0; spec.num_pages > 0 && i < spec.layers.size(); ++i) {
    const void* const tiles = spec.layers[i].tiles;
    const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tiles) % kTileAlignment);
    if (tiles == nullptr || past != 0) {
      return MakeStatus(StatusCode::kInvalidArgument, "KVPagesSpec: layers[%lld].tiles %s%lld %s", static_cast<LL>(i),
                        tiles == nullptr ? "is null, for " : "stands ",
                        static_cast<LL>(tiles == nullptr ? spec.num_pages : past),
                        tiles == nullptr ? "pages" : "bytes past a multiple of 64");
    }
    if (!Addressable(tiles, bytes)) {
      return MakeStatus(StatusCode::kInvalidArgument,
                        "KVPagesSpec: layers[%lld].tiles: %lld bytes reach past the address space", static_cast<LL>(i),
                        static_cast<LL>(bytes));
    }
  }
  return OkStatus();
}

Status CheckTensor(const KVPagesSpec& spec, size_t layer, const char* name, const TensorView& view, DType dtype,
                   int64_t dim) {
  char what[48];
  std::snprintf(what, sizeof(what), "KVPagesSpec: layers[%lld].%s", static_cast<LL>(layer), name);
  const struct {
    const char* field;
    int64_t value, wanted;
  } extents[] = {{"num_batch (pages)", view.num_batch, spec.num_pages},
                 {"num_tokens", view.num_tokens, spec.page_tokens},
                 {"num_heads", view.num_heads, spec.num_kv_heads},
                 {"dim", view.dim, dim}};
  for (const auto& [field, value, wanted] : extents) {
    if (value == wanted) continue;
    return MakeStatus(StatusCode::kInvalidArgument, "%s: %s is %lld, must be %lld", what, field, static_cast<LL>(value),
                      static_cast<LL>(wanted));
  }
  if (view.dtype != dtype) {
    return MakeStatus(StatusCode::kInvalidArgument, "%s: dtype is %s, must be %s", what, DTypeName(view.dtype),
                      DTypeName(dtype));
  }
  return CheckView(what, view);
}

Status CheckRowTensors(const KVPagesSpec& spec) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const KVLayerPages& pages = spec.layers[i];
    HEADLANE_RETURN_IF_ERROR(CheckTensor(spec, i, "k", pages.k, spec.k_dtype, spec.qk_dim));
    if (spec.values_in_keys) continue;
    HEADLANE_RETURN_IF_ERROR(CheckTensor(spec, i, "v", pages.v, spec.v_dtype, spec.v_dim));
  }
  return OkStatus();
}

// Requires: the shape was checked, of tiles.
Result<KVPageLayout> LayoutOf(const KVPagesSpec& spec) {
  KVPageLayout layout;
  const int64_t tiles = spec.page_tokens / kTileKeys;
  layout.k_tile_bytes = KTileBytes(spec.k_dtype, spec.qk_dim);
  if (!spec.values_in_keys) layout.v_tile_bytes = VTileBytes(spec.v_dtype, spec.v_dim);
  layout.v_offset = tiles * layout.k_tile_bytes;
  layout.head_bytes = layout.v_offset + tiles * layout.v_tile_bytes;
  // Dims, heads and tiles are below 2^20, 2^20 and 2^4, so that products of them fit.
  layout.marks_offset = spec.num_kv_heads * layout.head_bytes;
  layout.page_bytes = RoundUp(layout.marks_offset + spec.num_kv_heads * tiles, kTileAlignment);
  return layout;
}

}  // namespace

Result<std::unique_ptr<KVPagesImpl>> KVPagesImpl::Create(const KVPagesSpec& spec,
                                                         const KvKernels (&kernels)[kNumDTypes]) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckShape(spec));
  if (spec.num_pages < 0 || spec.num_pages > kMostPages) {
    return FieldError("num_pages", spec.num_pages, "in 0 .. 2147483648");
  }
  std::unique_ptr<KVPagesImpl> impl;
  try {
    impl.reset(new KVPagesImpl(spec));
  } catch (const std::bad_alloc&) {
    return MakeStatus(StatusCode::kResourceExhausted, "no memory to describe %lld layers of pages",
                      static_cast<LL>(spec.layers.size()));
  } catch (const std::length_error&) {
    return MakeStatus(StatusCode::kResourceExhausted, "no memory to describe %lld layers of pages",
                      static_cast<LL>(spec.layers.size()));
  }
  KVPagesSpec& own = impl->spec_;
  if (impl->has_tiles()) {
    HEADLANE_ASSIGN_OR_RETURN(impl->layout_, LayoutOf(own));
    if (own.page_stride == 0) own.page_stride = impl->layout_.page_bytes;
    HEADLANE_RETURN_IF_ERROR(CheckTiles(own, impl->layout_.page_bytes));
  } else {
    HEADLANE_RETURN_IF_ERROR(CheckRowTensors(own));
  }
  impl->num_slots_ = own.num_pages * own.page_tokens;
  HEADLANE_ASSIGN_OR_RETURN(
      impl->named_, AlignedBuffer::Create(CeilDiv(impl->num_slots_, 64) * int64_t{sizeof(uint64_t)}, "slots of pages"));
  const auto kernels_of = [&](DType dtype) { return &kernels[static_cast<int>(dtype)]; };
  impl->format_ = {own.k_dtype,
                   own.v_dtype,
                   own.qk_dim,
                   own.v_dim,
                   own.values_in_keys,
                   kernels_of(own.k_dtype),
                   own.values_in_keys ? nullptr : kernels_of(own.v_dtype)};
  return impl;
}

}  // namespace internal

KVPages::KVPages(std::unique_ptr<internal::KVPagesImpl> impl) noexcept : impl_(std::move(impl)) {}
KVPages::KVPages(KVPages&&) noexcept = default;
KVPages& KVPages::operator=(KVPages&&) noexcept = default;
KVPages::~KVPages() = default;

Result<KVPageLayout> TilePageLayout(const KVPagesSpec& spec) noexcept {
  HEADLANE_RETURN_IF_ERROR(internal::CheckShape(spec));
  if (spec.kind == KVPageKind::kTiles) return internal::LayoutOf(spec);
  return MakeStatus(StatusCode::kUnsupported, "KVPagesSpec: pages of rows are laid out by the caller's strides");
}

Result<KVPages> KVPages::Create(const KVPagesSpec& spec) noexcept {
  HEADLANE_ASSIGN_OR_RETURN(std::unique_ptr<internal::KVPagesImpl> impl,
                            internal::KVPagesImpl::Create(spec, internal::ActiveKernels().kv));
  return KVPages(std::move(impl));
}

const KVPagesSpec& KVPages::spec() const noexcept { return impl_->spec(); }
const KVPageLayout& KVPages::layout() const noexcept { return impl_->layout(); }
Status KVPages::Write(int64_t layer, const ConstTensorView& k, const ConstTensorView& v, std::span<const int64_t> slots,
                      int64_t batch) noexcept {
  return impl_->Write(layer, k, v, slots, nullptr, batch);
}
Status KVPages::Write(int64_t layer, const ConstTensorView& k, const ConstTensorView& v, std::span<const int64_t> slots,
                      const KeyTransform& transform, int64_t batch) noexcept {
  return impl_->Write(layer, k, v, slots, &transform, batch);
}
Status KVPages::Read(std::span<const int32_t> page_ids, int64_t layer, int64_t begin, const TensorView& k,
                     const TensorView& v) const noexcept {
  return impl_->Read(page_ids, layer, begin, k, v);
}

}  // namespace headlane
