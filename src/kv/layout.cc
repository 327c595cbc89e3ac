#include "kv/layout.h"

#include <limits>

#include "base/checked_math.h"
#include "base/tile_layout.h"

namespace headlane::internal {
namespace {

Status FieldError(const char* field, int64_t value, const char* must_be) {
  return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: %s is %lld, must be %s", field,
                    static_cast<long long>(value), must_be);
}

Status CheckDType(const char* field, DType dtype) {
  if (DTypeBytes(dtype) != 0) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported, "KVCacheSpec: %s is %s (%d), must be f32, f16 or bf16", field,
                    DTypeName(dtype), static_cast<int>(dtype));
}

Status CheckSpec(const KVCacheSpec& spec) {
  const struct {
    const char* field;
    int64_t value;
  } positive[] = {{"num_layers", spec.num_layers}, {"num_kv_heads", spec.num_kv_heads},
                  {"qk_dim", spec.qk_dim},         {"v_dim", spec.v_dim},
                  {"max_tokens", spec.max_tokens}, {"max_sequences", spec.max_sequences}};
  for (const auto& [field, value] : positive) {
    if (value < 1) return FieldError(field, value, "at least 1");
  }
  if (spec.page_tokens < kTileKeys || spec.page_tokens > kMaxPageTokens || spec.page_tokens % kTileKeys != 0) {
    return FieldError("page_tokens", spec.page_tokens, "a multiple of 16 in 16 .. 256");
  }
  if (spec.max_sequences > kMaxSequences) return FieldError("max_sequences", spec.max_sequences, "at most 1048576");
  HEADLANE_RETURN_IF_ERROR(CheckDType("k_dtype", spec.k_dtype));
  if (!spec.values_in_keys) return CheckDType("v_dtype", spec.v_dtype);
  if (spec.v_dim <= spec.qk_dim) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: v_dim is %lld, values in keys have at most qk_dim %lld",
                    static_cast<long long>(spec.v_dim), static_cast<long long>(spec.qk_dim));
}

bool CheckedKTileBytes(DType dtype, int64_t qk_dim, int64_t* bytes) {
  return CheckedRoundUp(qk_dim, TilePack(dtype), bytes) &&
         CheckedProduct({*bytes, kTileKeys, DTypeBytes(dtype)}, bytes) && CheckedRoundUp(*bytes, kTileAlignment, bytes);
}
bool CheckedVTileBytes(DType dtype, int64_t v_dim, int64_t* bytes) {
  return CheckedRoundUp(v_dim, kTileKeys, bytes) && CheckedProduct({*bytes, kTileKeys, DTypeBytes(dtype)}, bytes);
}

}  // namespace

Result<KVLayout> MakeKVLayout(const KVCacheSpec& spec) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckSpec(spec));
  KVLayout layout;
  layout.tiles_per_page = spec.page_tokens / kTileKeys;
  layout.total_pages = CeilDiv(spec.max_tokens, spec.page_tokens);
  if (layout.total_pages > std::numeric_limits<int32_t>::max()) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "KVCacheSpec: max_tokens %lld is %lld pages of %lld, at most %lld can be numbered",
                      static_cast<long long>(spec.max_tokens), static_cast<long long>(layout.total_pages),
                      static_cast<long long>(spec.page_tokens),
                      static_cast<long long>(std::numeric_limits<int32_t>::max()));
  }
  int64_t v_head_bytes = 0;
  if (!CheckedKTileBytes(spec.k_dtype, spec.qk_dim, &layout.k_tile_bytes) ||
      !(spec.values_in_keys || CheckedVTileBytes(spec.v_dtype, spec.v_dim, &layout.v_tile_bytes)) ||
      !CheckedMul(layout.k_tile_bytes, layout.tiles_per_page, &layout.v_offset) ||
      !CheckedMul(layout.v_tile_bytes, layout.tiles_per_page, &v_head_bytes) ||
      !CheckedAdd(layout.v_offset, v_head_bytes, &layout.head_bytes) ||
      !CheckedMul(layout.head_bytes, spec.num_kv_heads, &layout.slab_bytes) ||
      !CheckedMul(layout.slab_bytes, spec.num_layers, &layout.page_bytes) ||
      !CheckedMul(layout.slab_bytes, layout.total_pages, &layout.layer_bytes) ||
      !CheckedMul(layout.page_bytes, layout.total_pages, &layout.pool_bytes)) {
    return MakeStatus(
        StatusCode::kInvalidArgument,
        "KVCacheSpec: %lld tokens in %lld layers of %lld heads with qk_dim %lld and v_dim %lld pass 64 bits of bytes",
        static_cast<long long>(spec.max_tokens), static_cast<long long>(spec.num_layers),
        static_cast<long long>(spec.num_kv_heads), static_cast<long long>(spec.qk_dim),
        static_cast<long long>(spec.v_dim));
  }
  return layout;
}

}  // namespace headlane::internal
