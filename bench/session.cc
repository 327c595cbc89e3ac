#include "bench/session.h"

#include "bench/machine.h"
#include "bench/statistics.h"

namespace headlane::bench {

void Session::MeasureLimits() {
  for (const int threads : options_.threads) limits_[threads] = bench::MeasureLimits(threads);
}

std::vector<MachineLimits> Session::MeasureLimitsAgain() const {
  std::vector<MachineLimits> limits;
  for (const int threads : options_.threads) limits.push_back(bench::MeasureLimits(threads));
  return limits;
}

void Session::Register(const Case& entry, bool quick, bool once,
                       std::function<void(benchmark::State&, const Case&)> function) {
  if (options_.quick && !quick) return;
  cases_[entry.name] = entry;
  auto* registered = benchmark::RegisterBenchmark(
      entry.name.c_str(), [entry, function](benchmark::State& state) { function(state, entry); });
  registered->UseRealTime()->Unit(benchmark::kMillisecond);
  if (once) registered->Repetitions(1);
}

double Session::Time(benchmark::State& state, const Case& entry, const std::function<Status()>& run) {
  const double cpu_start = ProcessCpuSeconds();
  const Stopwatch watch;
  for (auto _ : state) {
    if (const Status status = run(); !status.ok()) {
      state.SkipWithError(status.c_str());
      return 0;
    }
  }
  const double elapsed = watch.Seconds();
  const double cpu = ProcessCpuSeconds() - cpu_start;
  const double seconds = elapsed / static_cast<double>(state.iterations());

  state.counters[kCpuShare] = cpu / elapsed / entry.threads;
  if (entry.work.flops > 0) state.counters[kGflops] = entry.work.flops / seconds / 1e9;
  if (entry.work.bytes > 0) state.counters[kGbytes] = entry.work.bytes / seconds / 1e9;
  const MachineLimits& machine = limits(entry.threads);
  if (const double least = RooflineSeconds(entry.work, machine); least > 0) {
    const double percent = 100 * least / seconds;
    state.counters[kPercentOfLimit] = percent;
    state.counters[kMemoryBound] = BoundByMemory(entry.work, machine) ? 1 : 0;
    // Calls that are too short to be timed well are not judged.
    constexpr double kJudgedSeconds = 0.01;
    if (percent > 100 && elapsed > kJudgedSeconds) {
      const std::string message = "at " + std::to_string(percent) +
                                  " % of the limit: faster than the machine can be, so the case or the limit is wrong";
      state.SkipWithError(message.c_str());
      return 0;
    }
  }
  const auto versus = [&](const char* variant, const char* counter) {
    const auto found = seconds_.find({entry.task, variant});
    if (entry.variant == variant || found == seconds_.end()) return;
    state.counters[counter] = Median(found->second) / seconds;
  };
  versus("onednn", kVersusOneDnn);
  versus("naive", kVersusNaive);
  seconds_[{entry.task, entry.variant}].push_back(seconds);
  return seconds;
}

}  // namespace headlane::bench
