#include "kv/layout.h"

#include <algorithm>
#include <limits>

#include "base/checked_math.h"
#include "base/tile_layout.h"
#include "kv/row_feed.h"

namespace headlane::internal {
namespace {

Status FieldError(const char* field, int64_t value, const char* must_be) {
  return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: %s is %lld, must be %s", field,
                    static_cast<long long>(value), must_be);
}

Status CheckDType(const char* field, DType dtype) {
  if (DTypeBytes(dtype) != 0 || IsQuantized(dtype)) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported, "KVCacheSpec: %s is %s (%d), must be f32, f16, bf16, int8, fp8 or int4",
                    field, DTypeName(dtype), static_cast<int>(dtype));
}

Status CheckSpec(const KVCacheSpec& spec) {
  const struct {
    const char* field;
    int64_t value;
  } positive[] = {{"num_layers", spec.num_layers},
                  {"num_kv_heads", spec.num_kv_heads},
                  {"qk_dim", spec.qk_dim},
                  {"v_dim", spec.v_dim},
                  {"max_sequences", spec.max_sequences}};
  for (const auto& [field, value] : positive) {
    if (value < 1) return FieldError(field, value, "at least 1");
  }
  // Where nothing says how large the pool is, max_tokens is what is missing.
  bool sized = spec.max_tokens > 0 || spec.max_bytes > 0 || spec.memory != nullptr;
  bool all_sized = !spec.groups.empty();
  for (const KVLayerGroup& group : spec.groups) all_sized = all_sized && group.max_tokens > 0;
  sized = sized || all_sized;
  if (spec.max_tokens < 0 || !sized) return FieldError("max_tokens", spec.max_tokens, "at least 1");
  if (spec.max_bytes < 0) return FieldError("max_bytes", spec.max_bytes, "at least 0");
  if (spec.memory_bytes < 0) return FieldError("memory_bytes", spec.memory_bytes, "at least 0");
  if (spec.max_positions < 0) return FieldError("max_positions", spec.max_positions, "at least 0");
  if (spec.page_tokens < kTileKeys || spec.page_tokens > kMaxPageTokens || spec.page_tokens % kTileKeys != 0) {
    return FieldError("page_tokens", spec.page_tokens, "a multiple of 16 in 16 .. 256");
  }
  if (spec.max_sequences > kMaxSequences) return FieldError("max_sequences", spec.max_sequences, "at most 1048576");
  HEADLANE_RETURN_IF_ERROR(CheckDType("k_dtype", spec.k_dtype));
  if (spec.rotate) {
    HEADLANE_RETURN_IF_ERROR(CheckRotation("KVCacheSpec", spec.qk_dim, spec.v_dim, spec.values_in_keys));
  }
  if (!spec.values_in_keys) return CheckDType("v_dtype", spec.v_dtype);
  if (spec.v_dim <= spec.qk_dim) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: v_dim is %lld, values in keys have at most qk_dim %lld",
                    static_cast<long long>(spec.v_dim), static_cast<long long>(spec.qk_dim));
}

// Dims whose tiles would pass 64 bits if elements took 8 bytes are refused first, so that KTileBytes and VTileBytes
// cannot overflow.
bool IsSane(int64_t dim) {
  int64_t bytes = 0;
  return CheckedProduct({dim, kTileKeys, 8}, &bytes) && CheckedAdd(bytes, 1 << 16, &bytes);
}
bool CheckedKTileBytes(DType dtype, int64_t qk_dim, int64_t* bytes) {
  if (!IsSane(qk_dim)) return false;
  *bytes = KTileBytes(dtype, qk_dim);
  return true;
}
bool CheckedVTileBytes(DType dtype, int64_t v_dim, int64_t* bytes) {
  if (!IsSane(v_dim)) return false;
  *bytes = VTileBytes(dtype, v_dim);
  return true;
}

// The caller's memory is the limit where nothing else is.
int64_t LimitBytes(const KVCacheSpec& spec) {
  if (spec.memory != nullptr && spec.max_tokens == 0 && spec.max_bytes == 0) return spec.memory_bytes;
  return spec.max_bytes;
}

Status CheckGroup(int64_t index, const KVLayerGroup& group) {
  const struct {
    const char* field;
    int64_t value, least;
  } fields[] = {{"window", group.window, group.window == kNoWindow ? kNoWindow : 1},
                {"num_always_visible", group.num_always_visible, 0},
                {"max_in_flight", group.max_in_flight, 0},
                {"max_tokens", group.max_tokens, 0}};
  constexpr int64_t kMost = int64_t{1} << 60;  // sums of a few still fit
  for (const auto& [field, value, least] : fields) {
    if (value >= least && value <= kMost) continue;
    return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: groups[%lld].%s is %lld, must be in %lld .. %lld",
                      static_cast<long long>(index), field, static_cast<long long>(value),
                      static_cast<long long>(least), static_cast<long long>(kMost));
  }
  return OkStatus();
}

// What the spec says of its groups, but for the pages. Requires: num_layers was checked.
Status ReadGroups(const KVCacheSpec& spec, KVLayout* layout) {
  if (spec.groups.size() > static_cast<size_t>(kMaxLayerGroups)) {
    return FieldError("groups.size()", static_cast<int64_t>(spec.groups.size()), "at most 8");
  }
  layout->num_groups = spec.groups.empty() ? 1 : static_cast<int64_t>(spec.groups.size());
  for (size_t g = 0; g < spec.groups.size(); ++g) {
    const KVLayerGroup& group = spec.groups[g];
    HEADLANE_RETURN_IF_ERROR(CheckGroup(static_cast<int64_t>(g), group));
    layout->groups[g].window = group.window;
    layout->groups[g].num_always_visible = group.num_always_visible;
    layout->groups[g].max_in_flight = group.max_in_flight;
  }
  if (spec.group_of_layer.empty()) {
    layout->groups[0].num_layers = spec.num_layers;
  } else if (spec.group_of_layer.size() != static_cast<uint64_t>(spec.num_layers)) {
    return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: group_of_layer has %lld entries, num_layers is %lld",
                      static_cast<long long>(spec.group_of_layer.size()), static_cast<long long>(spec.num_layers));
  }
  for (size_t i = 0; i < spec.group_of_layer.size(); ++i) {
    const int32_t group = spec.group_of_layer[i];
    if (group < 0 || group >= layout->num_groups) {
      return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: group_of_layer[%lld] is %d, there are %lld groups",
                        static_cast<long long>(i), group, static_cast<long long>(layout->num_groups));
    }
    ++layout->groups[group].num_layers;
  }
  for (int64_t g = 0; g < layout->num_groups; ++g) {
    if (layout->groups[g].num_layers > 0) continue;
    return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: group %lld of %lld has no layer",
                      static_cast<long long>(g), static_cast<long long>(layout->num_groups));
  }
  return OkStatus();
}

Status TooLarge(const KVCacheSpec& spec) {
  return MakeStatus(
      StatusCode::kInvalidArgument,
      "KVCacheSpec: %lld tokens in %lld layers of %lld heads with qk_dim %lld and v_dim %lld pass 64 bits of bytes",
      static_cast<long long>(spec.max_tokens), static_cast<long long>(spec.num_layers),
      static_cast<long long>(spec.num_kv_heads), static_cast<long long>(spec.qk_dim),
      static_cast<long long>(spec.v_dim));
}

int64_t MaxTokens(const KVCacheSpec& spec, int64_t group) {
  const int64_t own = spec.groups.empty() ? 0 : spec.groups[static_cast<size_t>(group)].max_tokens;
  return own > 0 ? own : spec.max_tokens;
}

// How many pages each group gets. Requires: its page_bytes are known.
Status ShareOut(const KVCacheSpec& spec, KVLayout* layout) {
  // Groups that name no size have what the limit leaves, the same number of pages each.
  int64_t fixed_bytes = 0;
  int64_t open_page_bytes = 0;
  for (int64_t g = 0; g < layout->num_groups; ++g) {
    KVGroupLayout& group = layout->groups[g];
    group.total_pages = CeilDiv(MaxTokens(spec, g), spec.page_tokens);
    int64_t bytes = 0;
    if (!CheckedMul(group.total_pages, group.page_bytes, &bytes) || !CheckedAdd(fixed_bytes, bytes, &fixed_bytes)) {
      return TooLarge(spec);
    }
    if (group.total_pages == 0) open_page_bytes += group.page_bytes;
  }
  const int64_t limit = LimitBytes(spec);
  if (limit > 0 && (fixed_bytes > limit || open_page_bytes > limit - fixed_bytes)) {
    // One group takes what there is; several would have to be told how.
    KVGroupLayout& only = layout->groups[0];
    if (layout->num_groups == 1 && only.page_bytes <= limit) {
      only.total_pages = limit / only.page_bytes;
    } else {
      int64_t needed = 0;
      if (!CheckedAdd(fixed_bytes, open_page_bytes, &needed)) return TooLarge(spec);
      return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: max_bytes is %lld, but %lld are needed",
                        static_cast<long long>(limit), static_cast<long long>(needed));
    }
  } else if (open_page_bytes > 0) {
    if (limit <= 0) return FieldError("memory_bytes", limit, "at least 1");
    const int64_t pages = (limit - fixed_bytes) / open_page_bytes;
    for (int64_t g = 0; g < layout->num_groups; ++g) {
      if (layout->groups[g].total_pages == 0) layout->groups[g].total_pages = pages;
    }
  }
  for (int64_t g = 0; g < layout->num_groups; ++g) {
    const KVGroupLayout& group = layout->groups[g];
    if (group.total_pages > std::numeric_limits<int32_t>::max()) {
      return MakeStatus(StatusCode::kInvalidArgument,
                        "KVCacheSpec: max_tokens %lld is %lld pages of %lld, at most %lld can be numbered",
                        static_cast<long long>(MaxTokens(spec, g)), static_cast<long long>(group.total_pages),
                        static_cast<long long>(spec.page_tokens),
                        static_cast<long long>(std::numeric_limits<int32_t>::max()));
    }
    int64_t slabs = 0;
    if (!CheckedMul(group.total_pages, group.num_layers, &slabs) ||
        !CheckedAdd(layout->num_slabs, slabs, &layout->num_slabs)) {
      return TooLarge(spec);
    }
    layout->total_pages += group.total_pages;
    layout->max_positions = std::max(layout->max_positions, group.total_pages * spec.page_tokens);
  }
  return CheckedMul(layout->num_slabs, layout->slab_bytes, &layout->pool_bytes) ? OkStatus() : TooLarge(spec);
}

}  // namespace

Result<KVLayout> MakeKVLayout(const KVCacheSpec& spec) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckSpec(spec));
  KVLayout layout;
  HEADLANE_RETURN_IF_ERROR(ReadGroups(spec, &layout));
  layout.tiles_per_page = spec.page_tokens / kTileKeys;
  int64_t v_head_bytes = 0;
  if (!CheckedKTileBytes(spec.k_dtype, spec.qk_dim, &layout.k_tile_bytes) ||
      !(spec.values_in_keys || CheckedVTileBytes(spec.v_dtype, spec.v_dim, &layout.v_tile_bytes)) ||
      !CheckedMul(layout.k_tile_bytes, layout.tiles_per_page, &layout.v_offset) ||
      !CheckedMul(layout.v_tile_bytes, layout.tiles_per_page, &v_head_bytes) ||
      !CheckedAdd(layout.v_offset, v_head_bytes, &layout.head_bytes) ||
      !CheckedMul(layout.head_bytes, spec.num_kv_heads, &layout.slab_bytes) ||
      !CheckedMul(layout.slab_bytes, spec.num_layers, &layout.page_bytes)) {
    return TooLarge(spec);
  }
  for (int64_t g = 0; g < layout.num_groups; ++g) {
    layout.groups[g].page_bytes = layout.slab_bytes * layout.groups[g].num_layers;
  }
  HEADLANE_RETURN_IF_ERROR(ShareOut(spec, &layout));
  if (spec.max_positions > 0) layout.max_positions = spec.max_positions;
  for (int64_t g = 0; g < layout.num_groups; ++g) {
    KVGroupLayout& group = layout.groups[g];
    group.table_pages = CeilDiv(layout.max_positions, spec.page_tokens);
    if (!group.has_window()) group.table_pages = std::min(group.table_pages, group.total_pages);
  }
  return layout;
}

}  // namespace headlane::internal
