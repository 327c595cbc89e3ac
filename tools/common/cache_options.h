// How the KV cache stores keys and values: the options that several programs share.
//
// Separate from the model's options, which headlane-lesson and others take without a cache.
#ifndef HEADLANE_TOOLS_COMMON_CACHE_OPTIONS_H_
#define HEADLANE_TOOLS_COMMON_CACHE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "headlane/decoder.h"
#include "headlane/dtype.h"
#include "headlane/status.h"
#include "tools/common/arguments.h"
#include "tools/common/json.h"

namespace headlane::tools {

// Element types of keys and values, and whether they are stored rotated.
struct CacheTypes {
  DType k = DType::kF32;
  DType v = DType::kF32;
  bool rotate = false;

  bool operator==(const CacheTypes&) const = default;
  // "int8", "int8/f16" where they differ, "int4 rotated".
  std::string Name() const;
};

struct CacheOptions {
  std::string type = "f32";
  std::string k_type;  // "": type
  std::string v_type;
  bool rotate = false;
  bool plain = false;  // not even int4 keys are rotated
  int64_t page = SessionOptions().page_tokens;
  int64_t window = 0;
  int64_t sinks = 0;
};

// --kv-type, --kv-type-k, --kv-type-v, --kv-rotate, --no-kv-rotate, --page, --window, --sinks.
void AddCacheOptions(Arguments& arguments, CacheOptions& options);
// Puts them into a session's options. Errors: InvalidArgument (no such type: names it and what there is; --kv-rotate
// with --no-kv-rotate).
Status SetCacheOptions(const CacheOptions& options, SessionOptions& session);

// Names with commas between, each "T", or "T/T" for keys and values apart, and with "+rotate" behind it if they are
// stored rotated; or "all": each type, and int4 rotated. Errors: InvalidArgument.
Result<std::vector<CacheTypes>> ParseCacheTypes(const std::string& list);

// Bytes that a token of the model takes in such a cache, all layers and heads. Errors: as KVCache::RequiredBytes.
Result<int64_t> CacheBytesPerToken(const ModelInfo& info, CacheTypes types);

// Types, bytes per token, of a page, allocated, used, and what of that is not tokens: for --json.
Json CacheJson(const SessionOptions& options, const SessionMemory& memory);

}  // namespace headlane::tools

#endif  // HEADLANE_TOOLS_COMMON_CACHE_OPTIONS_H_
