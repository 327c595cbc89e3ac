// A list of attention shapes in a file: a JSON array of flat objects. What the fields mean stands in bench/README.md.
//
// A reader of its own for the little JSON that such a list needs, because benchmarks link no JSON library. Called by
// the program's --cases.
#ifndef HEADLANE_BENCH_CASE_FILE_H_
#define HEADLANE_BENCH_CASE_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headlane/status.h"

namespace headlane::bench {

struct FileCase {
  std::string name;
  std::string kind;  // "prefill", "decode", "chunk"
  int64_t b = 0;     // sequences
  int64_t sq = 0;    // query rows of each
  int64_t skv = 0;   // keys of each
  int64_t hq = 0;    // query heads
  int64_t hkv = 0;   // KV heads
  int64_t d = 0;     // features of queries and keys
  int64_t dv = 0;    // features of values; d if the file does not say
};

// Unknown fields are an error, as a misspelt one would be another shape. Errors: InvalidArgument, with the line.
Result<std::vector<FileCase>> ParseCases(std::string_view json);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_CASE_FILE_H_
