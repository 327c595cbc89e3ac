// headlane_bench: how fast the library is, as a share of what this machine can do. --help tells.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/case_list.h"
#include "bench/machine.h"
#include "bench/options.h"
#include "bench/session.h"
#include "bench/table_reporter.h"
#include "headlane/target.h"

namespace headlane::bench {
namespace {

std::string Fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", value);
  return text;
}

// The head of the JSON file.
void AddContext(Session& session, const std::string& priority) {
  benchmark::AddCustomContext("processor", ProcessorName());
  benchmark::AddCustomContext("target", ActiveTarget().name);
  benchmark::AddCustomContext("priority", priority);
  for (const int threads : session.options().threads) {
    const MachineLimits& limits = session.limits(threads);
    const std::string suffix = "/threads:" + std::to_string(threads);
    benchmark::AddCustomContext("fma_gflops" + suffix, Fixed(limits.fma_gflops));
    benchmark::AddCustomContext("fma_gflops_median" + suffix, Fixed(limits.fma_gflops_median));
    benchmark::AddCustomContext("fma_kernel" + suffix, limits.fma_kernel);
    benchmark::AddCustomContext("read_gbps" + suffix, Fixed(limits.read_gbps));
    benchmark::AddCustomContext("read_gbps_median" + suffix, Fixed(limits.read_gbps_median));
    benchmark::AddCustomContext("read_kernel" + suffix, limits.read_kernel);
  }
}

int Main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const Result<Options> parsed = ParseOptions(arguments, static_cast<int>(std::thread::hardware_concurrency()));
  Status status = parsed.status();
  if (status.ok()) status = TargetFromEnvironment();
  if (!status.ok()) {
    std::fprintf(stderr, "headlane_bench: %s\n", status.c_str());
    return 2;
  }
  const Options& options = parsed.value();
  if (options.help) {
    std::fputs(kUsage, stdout);
    return 0;
  }

  if (!options.cases_file.empty()) {
    if (!arguments.empty()) {
      std::fprintf(stderr, "headlane_bench: with --cases, what is %s?\n", arguments.front().c_str());
      return 2;
    }
    status = RunCaseList(options);
    if (status.ok()) return 0;
    std::fprintf(stderr, "headlane_bench: %s\n", status.c_str());
    return status.code() == StatusCode::kInternal ? 1 : 2;
  }

  // Defaults come first: what the user gives overrides them.
  std::vector<std::string> all = {argv[0], "--benchmark_repetitions=3", "--benchmark_min_time=0.06"};
  if (options.quick) all.back() = "--benchmark_min_time=0.04";
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& argument : all) pointers.push_back(argument.data());
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  benchmark::Initialize(&count, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;

  Session session(options);
  RegisterAttention(session);
  RegisterFeatures(session);
  RegisterLinear(session);
  RegisterCache(session);
  RegisterMath(session);
  RegisterPlan(session);

  const auto given = [&](const std::string& prefix) {
    return std::any_of(arguments.begin(), arguments.end(),
                       [&](const std::string& argument) { return argument.rfind(prefix, 0) == 0; });
  };
  const bool list_only = given("--benchmark_list_tests") && !given("--benchmark_list_tests=false");
  if (list_only) {
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  }
  const auto priority = options.top_priority ? std::make_unique<TopPriority>() : nullptr;
  const std::string outcome = priority ? priority->outcome() : "normal";
  session.MeasureLimits();
  AddContext(session, outcome);
  TableReporter reporter(session, outcome, given("--benchmark_filter"));
  const size_t num_cases = benchmark::RunSpecifiedBenchmarks(&reporter);
  session.DropInputs();
  benchmark::Shutdown();
  if (num_cases == 0) {
    std::fprintf(stderr, "headlane_bench: no case matches the filter\n");
    return 2;
  }
  return reporter.num_failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace headlane::bench

int main(int argc, char** argv) { return headlane::bench::Main(argc, argv); }
