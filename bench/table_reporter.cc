#include "bench/table_reporter.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "bench/machine.h"
#include "bench/statistics.h"
#include "headlane/target.h"

namespace headlane::bench {
namespace {

// A timed stretch with less of its threads' time than this was cut up by other programs.
constexpr double kLeastCpuShare = 0.9;

// Google Benchmark 1.8 turned the flag into an enum that also knows skipping.
template <typename Run>
std::string ErrorOf(const Run& run) {
  if constexpr (requires { run.error_occurred; }) {
    return run.error_occurred ? (run.error_message.empty() ? "failed" : run.error_message) : "";
  } else {
    return static_cast<int>(run.skipped) != 0 ? (run.skip_message.empty() ? "failed" : run.skip_message) : "";
  }
}

template <typename Map>
double MedianOf(const Map& counters, const char* name) {
  const auto found = counters.find(name);
  return found == counters.end() ? 0 : Median(found->second);
}

// "-" for what there is not.
std::string Number(double value, int decimals) {
  if (value == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

std::string Milliseconds(double value) { return Number(value, value < 0.1 ? 5 : value < 10 ? 3 : value < 100 ? 2 : 1); }

std::string Percent(double value) { return value == 0 ? "-" : Number(value, value < 10 ? 1 : 0) + "%"; }

// The middle parts of a name that another name does not share.
std::string Distinct(const std::string& name, const std::string& other) {
  auto same =
      static_cast<size_t>(std::mismatch(name.begin(), name.end(), other.begin(), other.end()).first - name.begin());
  while (same > 0 && name[same - 1] != '/') --same;
  return name.substr(same, name.rfind("/threads:") - same);
}

}  // namespace

bool TableReporter::ReportContext(const Context&) {
  for (const auto& [name, entry] : session_.cases()) name_width_ = std::max(name_width_, static_cast<int>(name.size()));
  std::printf("%s, %u processors, kernels for %s, priority: %s\n", ProcessorName().c_str(),
              std::thread::hardware_concurrency(), ActiveTarget().name, priority_.c_str());
  for (const int threads : session_.options().threads) {
    const MachineLimits& limits = session_.limits(threads);
    std::printf("limits of %d thread%s: %.1f GFLOP/s (%s; median %.1f), %.1f GB/s (%s; median %.1f)\n", limits.threads,
                limits.threads == 1 ? "" : "s", limits.fma_gflops, limits.fma_kernel.c_str(), limits.fma_gflops_median,
                limits.read_gbps, limits.read_kernel.c_str(), limits.read_gbps_median);
  }
  return true;
}

void TableReporter::PrintHeading(const std::string& group) {
  std::printf("\n%-*s %10s %7s %9s %8s %11s %9s %9s %8s  %s\n", name_width_, group.c_str(), "ms", "spread", "GFLOP/s",
              "GB/s", "% of limit", "required", "x oneDNN", "x Graph", "");
}

TableReporter::Verdict TableReporter::Judge(const std::string& name, const Line& line) const {
  Verdict verdict;
  const Case& entry = session_.cases().at(name);
  if (entry.requirement == Requirement::kNone) return verdict;
  verdict.requirement = entry.requirement;
  const RequirementRow& row = RowOf(entry.requirement);
  const bool ran = line.error.empty();
  const double ratio = ran ? MedianOf(line.counters, kTimesReference) : 0;
  const bool ratio_holds = ratio > 0 && ratio <= row.most_ratio;
  if (row.least_percent > 0) {
    verdict.required = ran ? MedianOf(line.counters, kPercentRequired) : row.least_percent;
    if (ran) verdict.reached = MedianOf(line.counters, kPercentOfLimit);
    verdict.passed = verdict.reached >= verdict.required && (row.most_ratio == 0 || ratio_holds);
  } else if (row.most_ratio > 0) {
    verdict.required = row.most_ratio;
    verdict.reached = ratio;
    verdict.passed = ratio_holds;
  } else {
    verdict.required = row.most_microseconds;
    if (ran) verdict.reached = 1e3 * Median(line.milliseconds);
    verdict.passed = ran && verdict.reached <= verdict.required;
  }
  return verdict;
}

void TableReporter::ReportRuns(const std::vector<Run>& runs) {
  Line line;
  std::string name;
  for (const Run& run : runs) {
    if (run.run_type != Run::RT_Iteration) continue;
    name = run.run_name.function_name;
    if (const std::string error = ErrorOf(run); !error.empty()) {
      line.error = error;
      continue;
    }
    line.label = run.report_label;
    line.milliseconds.push_back(run.real_accumulated_time / static_cast<double>(run.iterations) * 1e3);
    for (const auto& [counter, value] : run.counters) line.counters[counter].push_back(value.value);
  }
  if (name.empty()) return;  // aggregates, which the table makes itself
  if (const std::string group = name.substr(0, name.find('/')); group != group_) {
    group_ = group;
    PrintHeading(group);
  }
  PrintLine(name, line);
  lines_[name] = line;
}

void TableReporter::PrintLine(const std::string& name, const Line& line) {
  const Verdict verdict = Judge(name, line);
  if (verdict.requirement != Requirement::kNone) verdicts_[name] = verdict;
  if (!line.error.empty()) {
    const bool refused = line.error.rfind(kRefused, 0) == 0;
    ++(refused ? num_refused_ : num_failures_);
    std::printf("%-*s %s%s\n", name_width_, name.c_str(), refused ? "" : "FAILED: ", line.error.c_str());
    std::fflush(stdout);
    return;
  }
  const double percent = MedianOf(line.counters, kPercentOfLimit);
  std::string limit = Percent(percent);
  if (percent > 0) limit += MedianOf(line.counters, kMemoryBound) > 0.5 ? " mem" : " fma";
  std::string required = "-";
  if (verdict.requirement != Requirement::kNone) {
    required = Number(verdict.required, verdict.required < 10 ? 2 : 0) + (verdict.passed ? " PASS" : " MISS");
  }
  std::string remark;
  const auto add = [&](const std::string& text) { remark += (remark.empty() ? "" : "; ") + text; };
  if (const double rate = MedianOf(line.counters, kItemsPerSecond); rate > 0) add(Number(rate, 2) + " G/s");
  if (const double share = MedianOf(line.counters, kPercentOfRun); share > 0) add(Number(share, 3) + "% of a run");
  if (const double naive = MedianOf(line.counters, kVersusNaive); naive > 0) add(Number(naive, 0) + "x naive");
  if (const double times = MedianOf(line.counters, kTimesReference); times > 0) {
    add(Number(times, times < 0.1 ? 4 : 2) + " times " + Distinct(session_.cases().at(name).reference, name));
  }
  if (!line.label.empty()) add(line.label);
  if (MedianOf(line.counters, kCpuShare) < kLeastCpuShare) {
    ++num_disturbed_;
    add("disturbed");
  }
  std::printf("%-*s %10s %7s %9s %8s %11s %9s %9s %8s  %s\n", name_width_, name.c_str(),
              Milliseconds(Median(line.milliseconds)).c_str(),
              line.milliseconds.size() < 2 ? "-" : Percent(100 * Spread(line.milliseconds)).c_str(),
              Number(MedianOf(line.counters, kGflops), 1).c_str(), Number(MedianOf(line.counters, kGbytes), 2).c_str(),
              limit.c_str(), required.c_str(), Number(MedianOf(line.counters, kVersusOneDnn), 2).c_str(),
              Number(MedianOf(line.counters, kVersusOneDnnGraph), 2).c_str(), remark.c_str());
  std::fflush(stdout);
}

// Cost should grow with the number of (row, key) pairs, and memory with the number of tokens.
void TableReporter::PrintScaling() {
  constexpr int64_t kShortest = 512;  // shorter ones have too little work for the threads
  constexpr int64_t kLongest = 8192;
  std::map<std::string, std::map<int64_t, std::string>> series;
  for (const auto& [name, line] : lines_) {
    const Case& entry = session_.cases().at(name);
    if (name.rfind("prefill/", 0) == 0 && !IsBaseline(entry) && line.error.empty() && entry.length >= kShortest) {
      series[entry.series][entry.length] = name;
    }
  }
  bool first = true;
  for (const auto& [name, by_length] : series) {
    if (by_length.size() < 2) continue;
    if (first) {
      std::printf(
          "\nprefill: time / tokens^2 relative to the shortest (bytes per token of keys, values and workspace)\n");
    }
    first = false;
    std::printf("%-*s", name_width_, name.c_str());
    const auto cost = [&](int64_t length, const std::string& entry) {
      return Median(lines_[entry].milliseconds) / (static_cast<double>(length) * static_cast<double>(length));
    };
    const double base = cost(by_length.begin()->first, by_length.begin()->second);
    double most = 0;
    for (const auto& [length, entry] : by_length) {
      const double ratio = cost(length, entry) / base;
      most = std::max(most, ratio);
      const double megabytes =
          MedianOf(lines_[entry].counters, kStoredMb) + MedianOf(lines_[entry].counters, kWorkspaceMb);
      std::printf("  %lld: %.3f (%.0f)", static_cast<long long>(length), ratio,
                  megabytes * 1e6 / static_cast<double>(length));
    }
    if (by_length.begin()->first == kShortest && by_length.rbegin()->first == kLongest) {
      const double required = RowOf(Requirement::kScaling).most_ratio;
      verdicts_[name] = {Requirement::kScaling, required, most, most <= required};
      std::printf("  %s", most <= required ? "PASS" : "MISS");
    }
    std::printf("\n");
  }
}

void TableReporter::PrintRequirements() {
  if (verdicts_.empty()) return;
  std::printf("\n%-66s %9s  %-17s %s\n", "what is required (of kinds that were run)", "required", "reached", "cases");
  for (const RequirementRow& row : kRequirements) {
    std::vector<double> reached;
    double required = 0;
    int num_cases = 0, num_passed = 0;
    for (const auto& [name, verdict] : verdicts_) {
      if (verdict.requirement != row.requirement) continue;
      ++num_cases;
      num_passed += verdict.passed ? 1 : 0;
      required = verdict.required;
      if (verdict.reached > 0) reached.push_back(verdict.reached);
    }
    if (num_cases == 0) continue;
    const bool percent = row.least_percent > 0;
    const char* const unit = percent ? " %" : row.most_microseconds > 0 ? " us" : "";
    const int decimals = percent ? 0 : row.most_microseconds > 0 ? 1 : row.most_ratio < 0.1 ? 4 : 2;
    std::string range = "-";
    if (!reached.empty()) {
      range = Number(Minimum(reached), decimals) + " .. " + Number(Maximum(reached), decimals) + unit;
    }
    std::printf("%-66s %9s  %-17s %d of %d  %s\n", row.work,
                ((percent ? ">= " : "<= ") + Number(required, decimals) + unit).c_str(), range.c_str(), num_passed,
                num_cases, num_passed == num_cases ? "PASS" : "MISS");
  }
  for (const auto& [name, verdict] : verdicts_) {
    if (verdict.passed) continue;
    std::printf("MISS %-*s %s, required %s\n", name_width_, name.c_str(),
                verdict.reached > 0 ? Number(verdict.reached, verdict.required < 10 ? 2 : 1).c_str() : "no figure",
                Number(verdict.required, verdict.required < 10 ? 2 : 0).c_str());
  }
}

void TableReporter::PrintLimits() {
  std::vector<double> read;
  for (const auto& [name, line] : lines_) {
    if (const double gbps = MedianOf(line.counters, kReadLimit); gbps > 0) read.push_back(gbps);
  }
  if (!read.empty()) {
    std::printf("\nread bandwidth around each case: %.1f .. %.1f GB/s, median %.1f\n", Minimum(read), Maximum(read),
                Median(read));
  }
  session_.DropInputs();  // the limits want their own memory
  const std::vector<MachineLimits> again = session_.MeasureLimitsAgain();
  std::printf("\n");
  for (size_t i = 0; i < again.size(); ++i) {
    const MachineLimits& before = session_.limits(session_.options().threads[i]);
    const MachineLimits& after = again[i];
    const auto change = [](double a, double b) { return a > 0 ? 100 * (b / a - 1) : 0; };
    const double fma = change(before.fma_gflops, after.fma_gflops);
    const double read = change(before.read_gbps, after.read_gbps);
    constexpr double kSteadyPercent = 5;
    const bool steady = std::abs(fma) < kSteadyPercent && std::abs(read) < kSteadyPercent;
    std::printf("limits of %d thread%s at the end: %.1f GFLOP/s (%+.1f %%), %.1f GB/s (%+.1f %%)%s\n", after.threads,
                after.threads == 1 ? "" : "s", after.fma_gflops, fma, after.read_gbps, read,
                steady ? "" : "  the machine changed: compare with care");
  }
}

void TableReporter::Finalize() {
  if (lines_.empty()) return;
  PrintScaling();
  PrintRequirements();
  PrintLimits();
  if (!filtered_) {
    for (const auto& [name, why] : session_.skipped()) std::printf("left out: %s: %s\n", name.c_str(), why.c_str());
  }
  if (num_disturbed_ > 0) {
    std::printf("%d case%s disturbed: its threads got less than %.0f %% of their time\n", num_disturbed_,
                num_disturbed_ == 1 ? " was" : "s were", 100 * kLeastCpuShare);
  }
  std::printf("%zu cases, %d failed, %d refused\n", lines_.size(), num_failures_, num_refused_);
}

}  // namespace headlane::bench
