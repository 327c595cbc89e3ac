#include "tools/common/cache_options.h"

#include <algorithm>
#include <string_view>

#include "headlane/kv_cache.h"

namespace headlane::tools {
namespace {

Result<DType> ParseType(std::string_view name) {
  std::string names;
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType type = static_cast<DType>(i);
    if (name == DTypeName(type)) return type;
    names += std::string(i > 0 ? ", " : "") + DTypeName(type);
  }
  return MakeStatus(StatusCode::kInvalidArgument, "'%.40s' is no type of a KV cache; there are %s",
                    std::string(name).c_str(), names.c_str());
}

std::vector<std::string> TypeNames() {
  std::vector<std::string> names;
  names.reserve(kNumDTypes);
  for (int i = 0; i < kNumDTypes; ++i) names.emplace_back(DTypeName(static_cast<DType>(i)));
  return names;
}

}  // namespace

std::string CacheTypes::Name() const {
  std::string name = DTypeName(k);
  if (k != v) name += std::string("/") + DTypeName(v);
  return rotate ? name + " rotated" : name;
}

void AddCacheOptions(Arguments& arguments, CacheOptions& options) {
  arguments.Choice("--kv-type", options.type, TypeNames(), "Type in which the KV cache stores keys and values");
  arguments.Choice("--kv-type-k", options.k_type, TypeNames(), "Of the keys, instead of --kv-type");
  arguments.Choice("--kv-type-v", options.v_type, TypeNames(), "Of the values, instead of --kv-type");
  arguments.Flag(
      "--kv-rotate", options.rotate,
      "Store keys and values rotated (Walsh-Hadamard), as by default where keys are int4: it loses much less "
      "of keys with outliers");
  arguments.Flag("--no-kv-rotate", options.plain, "Store int4 keys as they are, too");
  arguments.Number("--page", options.page, 16, 256,
                   "Tokens of a page of the cache, a multiple of 16; changes no result");
  arguments.Number("--window", options.window, 0, int64_t{1} << 24,
                   "Every layer sees only the newest so many tokens, and no others are kept; 0: all");
  arguments.Number("--sinks", options.sinks, 0, int64_t{1} << 24,
                   "With --window: so many tokens at the beginning stay visible");
}

Status SetCacheOptions(const CacheOptions& options, SessionOptions& session) {
  HEADLANE_ASSIGN_OR_RETURN(session.k_dtype, ParseType(options.k_type.empty() ? options.type : options.k_type));
  HEADLANE_ASSIGN_OR_RETURN(session.v_dtype, ParseType(options.v_type.empty() ? options.type : options.v_type));
  if (options.rotate && options.plain)
    return MakeStatus(StatusCode::kInvalidArgument, "--kv-rotate and --no-kv-rotate exclude each other");
  if (options.rotate || options.plain) session.rotate = options.rotate;
  session.page_tokens = options.page;
  session.window = options.window;
  session.num_sinks = options.sinks;
  return OkStatus();
}

Result<std::vector<CacheTypes>> ParseCacheTypes(const std::string& list) {
  std::vector<CacheTypes> types;
  for (size_t begin = 0; begin <= list.size();) {
    constexpr std::string_view kRotated = "+rotate";
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string_view item = std::string_view(list).substr(begin, end - begin);
    begin = end + 1;
    if (item == "all") {
      types.reserve(types.size() + kNumDTypes + 1);
      for (int i = 0; i < kNumDTypes; ++i) types.push_back({static_cast<DType>(i), static_cast<DType>(i), false});
      types.push_back({DType::kI4, DType::kI4, true});
      continue;
    }
    CacheTypes type;
    type.rotate = item.ends_with(kRotated);
    if (type.rotate) item.remove_suffix(kRotated.size());
    const size_t slash = item.find('/');
    HEADLANE_ASSIGN_OR_RETURN(type.k, ParseType(item.substr(0, slash)));
    type.v = type.k;
    if (slash != std::string_view::npos) {
      HEADLANE_ASSIGN_OR_RETURN(type.v, ParseType(item.substr(slash + 1)));
    }
    types.push_back(type);
  }
  return types;
}

Result<int64_t> CacheBytesPerToken(const ModelInfo& info, CacheTypes types) {
  KVCacheSpec spec;
  spec.num_layers = info.num_layers;
  spec.num_kv_heads = info.num_kv_heads;
  spec.qk_dim = info.qk_dim;
  spec.v_dim = info.v_dim;
  spec.k_dtype = types.k;
  spec.v_dtype = types.v;
  spec.page_tokens = 16;
  spec.max_tokens = spec.page_tokens;
  HEADLANE_ASSIGN_OR_RETURN(const int64_t page_bytes, KVCache::RequiredBytes(spec));
  return page_bytes / spec.page_tokens;
}

Json CacheJson(const SessionOptions& options, const SessionMemory& memory) {
  return {{"k_type", DTypeName(options.k_dtype)},
          {"v_type", DTypeName(options.v_dtype)},
          {"rotated", options.rotates()},
          {"page_tokens", options.page_tokens},
          {"window", options.window},
          {"sinks", options.num_sinks},
          {"bytes_per_token", memory.kv_bytes_per_token},
          {"page_bytes", memory.page_bytes},
          {"allocated_bytes", memory.cache_bytes},
          {"used_bytes", memory.cache_used_bytes},
          {"kept_tokens", memory.kept_tokens},
          {"waste_bytes", memory.waste_bytes()}};
}

}  // namespace headlane::tools
