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

// Element types of keys and values.
struct CacheTypes {
  DType k = DType::kF32;
  DType v = DType::kF32;

  bool operator==(const CacheTypes&) const = default;
  // "int8", and "int8/f16" where they differ.
  std::string Name() const;
};

struct CacheOptions {
  std::string type = "f32";
  std::string k_type;  // "": type
  std::string v_type;
  int64_t page = SessionOptions().page_tokens;
  int64_t window = 0;
  int64_t sinks = 0;
};

// --kv-type, --kv-type-k, --kv-type-v, --page, --window, --sinks.
void AddCacheOptions(Arguments& arguments, CacheOptions& options);
// Puts them into a session's options. Errors: InvalidArgument (no such type: names it and what there is).
Status SetCacheOptions(const CacheOptions& options, SessionOptions& session);

// "all", or names with commas between, each "T" or "T/T" for keys and values apart. Errors: InvalidArgument.
Result<std::vector<CacheTypes>> ParseCacheTypes(const std::string& list);

// Types, bytes per token, of a page, allocated, used, and what of that is not tokens: for --json.
Json CacheJson(const SessionOptions& options, const SessionMemory& memory);

}  // namespace headlane::tools

#endif  // HEADLANE_TOOLS_COMMON_CACHE_OPTIONS_H_
