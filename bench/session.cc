#include "bench/session.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "bench/machine.h"
#include "bench/statistics.h"
#include "headlane/executor.h"

namespace headlane::bench {

bool IsBaseline(const Case& entry) {
  return entry.variant == "onednn" || entry.variant == "onednn-graph" || entry.variant == "naive";
}

void Session::MeasureLimits() {
  for (const int threads : options_.threads) limits_[threads] = bench::MeasureLimits(threads);
}

std::vector<MachineLimits> Session::MeasureLimitsAgain() const {
  std::vector<MachineLimits> limits;
  for (const int threads : options_.threads) limits.push_back(bench::MeasureLimits(threads));
  return limits;
}

void Session::Register(const Case& entry, const Selection& selection,
                       std::function<void(benchmark::State&, const Case&)> function) {
  if (options_.quick && !selection.quick) return;
  if (options_.targets && !selection.targets) return;
  cases_[entry.name] = entry;
  auto* registered = benchmark::RegisterBenchmark(
      entry.name.c_str(), [entry, function](benchmark::State& state) { function(state, entry); });
  registered->UseRealTime()->Unit(benchmark::kMillisecond);
  if (selection.repetitions > 0) registered->Repetitions(selection.repetitions);
}

void Session::Fail(benchmark::State& state, const Status& status) {
  const bool refused = status.code() == StatusCode::kUnsupported || status.code() == StatusCode::kInvalidArgument ||
                       status.code() == StatusCode::kResourceExhausted;
  state.SkipWithError(((refused ? kRefused : "") + std::string(status.message())).c_str());
}

namespace {

// On the threads that the library runs on.
double RunOnExecutor(int threads, const std::function<void(int)>& work) {
  struct Context {
    const std::function<void(int)>& work;
    std::atomic<int> workers{0};
  };
  Context context{work};
  OpenMPExecutor executor(threads);
  const Stopwatch watch;
  executor.Run(
      threads,
      [](void* opaque, int worker) noexcept {
        Context& all = *static_cast<Context*>(opaque);
        all.work(worker);
        ++all.workers;
      },
      &context);
  // With fewer threads than asked for there is no figure.
  return context.workers == threads ? watch.Seconds() : std::numeric_limits<double>::infinity();
}

}  // namespace

double Session::ReadGbps(int threads, double age) {
  if (!probe_) probe_.emplace();
  if (probe_threads_ != threads || since_probe_.Seconds() > age) {
    probe_gbps_ =
        probe_->Gbps(threads, [&](const std::function<void(int)>& work) { return RunOnExecutor(threads, work); });
    if (probe_gbps_ == 0) probe_gbps_ = limits(threads).read_gbps;
    probe_threads_ = threads;
    since_probe_ = Stopwatch();
  }
  return probe_gbps_;
}

double Session::Time(benchmark::State& state, const Case& entry, const std::function<Status()>& run,
                     const std::function<Status()>& check) {
  // Memory is shared with whatever else the machine does: its speed is taken before and after.
  constexpr double kRecently = 0.25;
  MachineLimits machine = limits(entry.threads);
  const double session_gbps = machine.read_gbps;
  if (entry.work.bytes > 0) machine.read_gbps = ReadGbps(entry.threads, kRecently);
  const double cpu_start = ProcessCpuSeconds();
  const Stopwatch watch;
  for (auto _ : state) {
    if (const Status status = run(); !status.ok()) {
      Fail(state, status);
      return 0;
    }
  }
  const double elapsed = watch.Seconds();
  const double cpu = ProcessCpuSeconds() - cpu_start;
  const double seconds = elapsed / static_cast<double>(state.iterations());
  if (check) {
    if (const Status status = check(); !status.ok()) {
      Fail(state, status);
      return 0;
    }
  }

  state.counters[kCpuShare] = cpu / elapsed / entry.threads;
  if (entry.work.flops > 0) state.counters[kGflops] = entry.work.flops / seconds / 1e9;
  if (entry.work.bytes > 0) state.counters[kGbytes] = entry.work.bytes / seconds / 1e9;
  // Shorter ones are Google Benchmark's search for the number of calls.
  constexpr double kReportedSeconds = 0.03;
  if (entry.work.bytes > 0 && elapsed > kReportedSeconds) {
    machine.read_gbps = std::max(machine.read_gbps, ReadGbps(entry.threads, 0));
  }
  double least = RooflineSeconds(entry.work, machine);
  if (least > seconds && machine.read_gbps < session_gbps) {  // it was faster in between
    machine.read_gbps = session_gbps;
    least = RooflineSeconds(entry.work, machine);
  }
  if (least > 0) {
    const double percent = 100 * least / seconds;
    if (entry.work.bytes > 0) state.counters[kReadLimit] = machine.read_gbps;
    state.counters[kPercentOfLimit] = percent;
    const bool memory_bound = BoundByMemory(entry.work, machine);
    state.counters[kMemoryBound] = memory_bound ? 1 : 0;
    if (const double required = LeastPercent(entry.requirement, memory_bound, machine); required > 0) {
      state.counters[kPercentRequired] = required;
    }
    // Calls that are too short to be timed well are not judged.
    constexpr double kJudgedSeconds = 0.01;
    if (percent > 100 && elapsed > kJudgedSeconds) {
      const std::string message = "at " + std::to_string(percent) +
                                  " % of the limit: faster than the machine can be, so the case or the limit is wrong";
      state.SkipWithError(message.c_str());
      return 0;
    }
  }
  const auto versus = [&](const std::string& task, const char* variant, const char* counter) {
    const auto found = seconds_.find({task, variant});
    if (entry.variant == variant || found == seconds_.end()) return;
    state.counters[counter] = Median(found->second) / seconds;
  };
  versus(entry.task, "onednn", kVersusOneDnn);
  versus(entry.task, "onednn-graph", kVersusOneDnnGraph);
  // The naive loops have one thread, whatever they are compared with.
  versus(entry.task.substr(0, entry.task.rfind("/threads:")) + "/threads:1", "naive", kVersusNaive);
  if (const auto found = seconds_by_name_.find(entry.reference); found != seconds_by_name_.end()) {
    state.counters[kTimesReference] = seconds / (entry.reference_times * Median(found->second));
  }
  seconds_[{entry.task, entry.variant}].push_back(seconds);
  seconds_by_name_[entry.name].push_back(seconds);
  return seconds;
}

}  // namespace headlane::bench
