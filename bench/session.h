// What all cases of one run of the benchmark program share: options, the machine's limits, the one set of inputs that
// is in memory at a time, and the timings so far. Everything that knows Google Benchmark goes through here or the
// reporter.
#ifndef HEADLANE_BENCH_SESSION_H_
#define HEADLANE_BENCH_SESSION_H_

#include <benchmark/benchmark.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/limits.h"
#include "bench/options.h"
#include "bench/roofline.h"
#include "headlane/status.h"

namespace headlane::bench {

// One line of the report.
struct Case {
  std::string name;     // "prefill/llama-3-8b/2048/cache/threads:2"
  std::string task;     // the same work, whoever does it: "prefill/llama-3-8b/2048/threads:2"
  std::string series;   // the same but for the length: "prefill/llama-3-8b/cache/threads:2"
  std::string variant;  // "cache", "plain", "tile", ...; "onednn" and "naive" are the baselines
  int64_t length = 0;
  int threads = 1;
  Work work;  // zeros: no limit to compare with
};

// Names of counters, in JSON and for the table.
inline constexpr char kGflops[] = "GFLOP/s";
inline constexpr char kGbytes[] = "GB/s";
inline constexpr char kPercentOfLimit[] = "%limit";
inline constexpr char kMemoryBound[] = "memory_bound";
inline constexpr char kCpuShare[] = "cpu_share";
inline constexpr char kVersusOneDnn[] = "x_onednn";
inline constexpr char kVersusNaive[] = "x_naive";
inline constexpr char kWorkspaceMb[] = "workspace_MB";
inline constexpr char kPercentOfRun[] = "%run";
inline constexpr char kItemsPerSecond[] = "Gitem/s";

class Session {
 public:
  explicit Session(const Options& options) : options_(options) {}

  const Options& options() const { return options_; }
  const std::map<std::string, Case>& cases() const { return cases_; }
  const MachineLimits& limits(int threads) { return limits_[threads]; }
  // Measures for each number of threads; called before the first case, and once more at the end to see whether they
  // still hold.
  void MeasureLimits();
  std::vector<MachineLimits> MeasureLimitsAgain() const;

  // Declares a case for Google Benchmark. `function` calls Time(). `quick`: a part of --quick. `once`: one repetition
  // has to do, as it takes seconds.
  void Register(const Case& entry, bool quick, bool once, std::function<void(benchmark::State&, const Case&)> function);
  // A case of the whole set that can't be, with the reason for the report.
  void RegisterSkipped(const std::string& name, const std::string& why) { skipped_[name] = why; }
  const std::map<std::string, std::string>& skipped() const { return skipped_; }

  // The inputs called `key`, made by `make` if others are in memory, which are dropped first.
  template <typename Inputs>
  Result<Inputs*> GetInputs(const std::string& key, const std::function<Result<std::unique_ptr<Inputs>>()>& make) {
    if (inputs_key_ != key) {
      DropInputs();
      HEADLANE_ASSIGN_OR_RETURN(std::unique_ptr<Inputs> inputs, make());
      inputs_ = std::shared_ptr<void>(std::move(inputs));
      inputs_key_ = key;
    }
    return static_cast<Inputs*>(inputs_.get());
  }
  void DropInputs() {
    inputs_.reset();
    inputs_key_.clear();
  }

  // The timed loop and the counters that follow from it. Fails the case when `run` does, or when it was faster than the
  // limits of the machine. Returns the seconds of one call, 0 when it failed.
  double Time(benchmark::State& state, const Case& entry, const std::function<Status()>& run);

 private:
  Options options_;
  std::map<int, MachineLimits> limits_;
  std::map<std::string, Case> cases_;
  std::map<std::string, std::string> skipped_;
  std::string inputs_key_;
  std::shared_ptr<void> inputs_;
  // By task and variant: seconds per call of each repetition.
  std::map<std::pair<std::string, std::string>, std::vector<double>> seconds_;
};

void RegisterAttention(Session& session);
void RegisterLinear(Session& session);
void RegisterCache(Session& session);
void RegisterMath(Session& session);
void RegisterPlan(Session& session);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_SESSION_H_
