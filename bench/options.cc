#include "bench/options.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>

namespace headlane::bench {

const char kUsage[] =
    R"(usage: headlane_bench [--quick] [--threads LIST] [--no-baselines] [--no-priority] [--benchmark_...]

Times the library beside the machine's limits, which it measures first, and beside oneDNN and naive loops. Each output
is compared with a double-precision reference before it is timed. A figure over 100 % of a limit is a failure.

  --quick            the cases that matter most, in under a minute
  --threads LIST     numbers of threads, comma-separated (default: 1 and all processors)
  --no-baselines     leave out oneDNN and the naive loops
  --no-priority      do not ask the scheduler for top priority (which takes root)

Names are GROUP/MODEL/.../STORAGE/threads:N. Google Benchmark's own, among others:
  --benchmark_filter=REGEX        e.g. '^prefill/llama-3-8b/2048/'
  --benchmark_list_tests          names only
  --benchmark_repetitions=N       default 3: the table has their median and spread
  --benchmark_min_time=SECONDS    default 0.1 per repetition
  --benchmark_out=FILE --benchmark_out_format=json

Exit status: 0, or 1 when a case failed, or 2 for wrong arguments.
)";

namespace {

Status ParseThreads(std::string_view list, std::vector<int>& threads) {
  threads.clear();
  constexpr int kMaxThreads = 4096;
  const char* at = list.data();
  const char* const end = at + list.size();
  for (;;) {
    int n = 0;
    const auto [next, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 1 || n > kMaxThreads || (next != end && *next != ',')) {
      return MakeStatus(StatusCode::kInvalidArgument, "--threads %.*s: a list of numbers in 1 .. %d is needed",
                        static_cast<int>(std::min<size_t>(list.size(), 80)), list.data(), kMaxThreads);
    }
    threads.push_back(n);
    if (next == end) return OkStatus();
    at = next + 1;
  }
}

}  // namespace

Result<Options> ParseOptions(std::vector<std::string>& arguments, int num_processors) {
  Options options;
  options.threads = {1, std::max(1, num_processors)};
  std::vector<std::string> rest;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    constexpr std::string_view kThreads = "--threads";
    if (argument == "--quick") {
      options.quick = true;
    } else if (argument == "--no-baselines") {
      options.baselines = false;
    } else if (argument == "--no-priority") {
      options.top_priority = false;
    } else if (argument == "--help" || argument == "-h") {
      options.help = true;
    } else if (argument == kThreads) {
      if (++i == arguments.size()) return MakeStatus(StatusCode::kInvalidArgument, "--threads needs a list of numbers");
      HEADLANE_RETURN_IF_ERROR(ParseThreads(arguments[i], options.threads));
    } else if (argument.rfind(std::string(kThreads) + "=", 0) == 0) {
      HEADLANE_RETURN_IF_ERROR(ParseThreads(std::string_view(argument).substr(kThreads.size() + 1), options.threads));
    } else {
      rest.push_back(argument);
    }
  }
  std::sort(options.threads.begin(), options.threads.end(), std::greater<>());
  options.threads.erase(std::unique(options.threads.begin(), options.threads.end()), options.threads.end());
  arguments = std::move(rest);
  return options;
}

}  // namespace headlane::bench
