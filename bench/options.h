// The benchmark program's own arguments; all others are Google Benchmark's.
#ifndef HEADLANE_BENCH_OPTIONS_H_
#define HEADLANE_BENCH_OPTIONS_H_

#include <string>
#include <vector>

#include "headlane/dtype.h"
#include "headlane/status.h"

namespace headlane::bench {

struct Options {
  std::vector<int> threads;  // largest first, each once; default: as many as the machine has
  bool quick = false;
  bool targets = false;  // only what targets.h judges, and what it is compared with
  bool baselines = true;
  bool top_priority = true;
  bool help = false;

  // A list of shapes instead of the benchmarks.
  std::string cases_file;
  std::vector<DType> types = {DType::kF32, DType::kF16, DType::kBF16};
  std::vector<std::string> storages = {"cache", "plain"};
};

// Takes what it knows out of `arguments` (without the program's name). Errors: InvalidArgument.
Result<Options> ParseOptions(std::vector<std::string>& arguments, int num_processors);

extern const char kUsage[];

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_OPTIONS_H_
