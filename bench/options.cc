#include "bench/options.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

namespace headlane::bench {

const char kUsage[] =
    R"(usage: headlane_bench [--quick | --targets] [--threads LIST] [--no-baselines] [--no-priority] [--benchmark_...]
       headlane_bench --cases FILE.json [--types LIST] [--storages LIST] [--threads N] [--no-priority]

Times the library beside the machine's limits, which it measures first, and beside oneDNN and naive loops. Each output
is compared with a double-precision reference before it is timed. A figure over 100 % of a limit is a failure. What an
implementation does not offer is "refused", with its message, and no failure.

  --quick            the cases that matter most, in under a minute
  --targets          the cases whose speed is required (targets.h), with what they are compared with; every run that has
                     such cases ends with a table of what is required, what was reached, and PASS or MISS
  --threads LIST     numbers of threads, comma-separated (default: all processors)
  --no-baselines     leave out oneDNN and the naive loops
  --no-priority      do not ask the scheduler for top priority (which takes root)

  --cases FILE.json  times the library on the shapes of a file, which bench/README.md describes, and prints one line of
                     JSON for each, element type and storage
  --types LIST       of f32, f16, bf16 (default: all)
  --storages LIST    of cache, plain (default: both)

Names are GROUP/MODEL/.../STORAGE/threads:N. Google Benchmark's own, among others:
  --benchmark_filter=REGEX        e.g. '^prefill/llama-3-8b/2048/'
  --benchmark_list_tests          names only
  --benchmark_repetitions=N       default 3: the table has their median and spread
  --benchmark_min_time=SECONDS    default 0.06 per repetition
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

std::vector<std::string> Split(std::string_view list) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t comma = list.find(',');
    parts.emplace_back(list.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    list.remove_prefix(comma + 1);
  }
}

Status ParseTypes(std::string_view list, std::vector<DType>& types) {
  types.clear();
  for (const std::string& name : Split(list)) {
    bool found = false;
    for (int i = 0; i < kNumDTypes; ++i) {
      if (name != DTypeName(static_cast<DType>(i)) || IsQuantized(static_cast<DType>(i))) continue;
      types.push_back(static_cast<DType>(i));
      found = true;
    }
    if (!found) {
      return MakeStatus(StatusCode::kInvalidArgument, "--types: f32, f16, bf16 are known, \"%.80s\" is not",
                        name.c_str());
    }
  }
  return OkStatus();
}

Status ParseStorages(std::string_view list, std::vector<std::string>& storages) {
  storages = Split(list);
  for (const std::string& name : storages) {
    if (name == "cache" || name == "plain") continue;
    return MakeStatus(StatusCode::kInvalidArgument, "--storages: cache, plain are known, \"%.80s\" is not",
                      name.c_str());
  }
  return OkStatus();
}

Status ParseFile(std::string_view name, std::string& file) {
  file = name;
  return file.empty() ? MakeStatus(StatusCode::kInvalidArgument, "--cases needs the name of a file") : OkStatus();
}

}  // namespace

Result<Options> ParseOptions(std::vector<std::string>& arguments, int num_processors) {
  Options options;
  options.threads = {std::max(1, num_processors)};
  struct Flag {
    std::string_view name;
    bool& target;
    bool value;
  };
  const Flag flags[] = {{"--quick", options.quick, true},
                        {"--targets", options.targets, true},
                        {"--no-baselines", options.baselines, false},
                        {"--no-priority", options.top_priority, false},
                        {"--help", options.help, true},
                        {"-h", options.help, true}};
  struct Valued {
    std::string_view name;
    const char* needs;
    std::function<Status(std::string_view)> parse;
  };
  const Valued valued[] = {
      {"--threads", "a list of numbers", [&](std::string_view value) { return ParseThreads(value, options.threads); }},
      {"--types", "a list of element types", [&](std::string_view value) { return ParseTypes(value, options.types); }},
      {"--storages", "a list of storages",
       [&](std::string_view value) { return ParseStorages(value, options.storages); }},
      {"--cases", "the name of a file", [&](std::string_view value) { return ParseFile(value, options.cases_file); }},
  };
  std::vector<std::string> rest;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto flag =
        std::find_if(std::begin(flags), std::end(flags), [&](const Flag& f) { return argument == f.name; });
    if (flag != std::end(flags)) {
      flag->target = flag->value;
      continue;
    }
    const std::string name = argument.substr(0, argument.find('='));
    const auto option =
        std::find_if(std::begin(valued), std::end(valued), [&](const Valued& v) { return name == v.name; });
    if (option == std::end(valued)) {
      rest.push_back(argument);
    } else if (name.size() < argument.size()) {
      HEADLANE_RETURN_IF_ERROR(option->parse(std::string_view(argument).substr(name.size() + 1)));
    } else if (++i < arguments.size()) {
      HEADLANE_RETURN_IF_ERROR(option->parse(arguments[i]));
    } else {
      return MakeStatus(StatusCode::kInvalidArgument, "%s needs %s", name.c_str(), option->needs);
    }
  }
  if (options.quick && options.targets) {
    return MakeStatus(StatusCode::kInvalidArgument, "--quick and --targets are two different selections: give one");
  }
  std::sort(options.threads.begin(), options.threads.end(), std::greater<>());
  options.threads.erase(std::unique(options.threads.begin(), options.threads.end()), options.threads.end());
  arguments = std::move(rest);
  return options;
}

}  // namespace headlane::bench
