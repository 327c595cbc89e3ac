// What all cases of one run of the benchmark program share: options, the machine's limits, the one set of inputs that
// is in memory at a time, and the timings so far. Everything that knows Google Benchmark goes through here or the
// reporter.
#ifndef HEADLANE_BENCH_SESSION_H_
#define HEADLANE_BENCH_SESSION_H_

#include <benchmark/benchmark.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/limits.h"
#include "bench/options.h"
#include "bench/roofline.h"
#include "bench/statistics.h"
#include "bench/targets.h"
#include "headlane/status.h"

namespace headlane::bench {

// One line of the report.
struct Case {
  std::string name;     // "prefill/llama-3-8b/2048/cache/threads:2"
  std::string task;     // the same work, whoever does it: "prefill/llama-3-8b/2048/threads:2"
  std::string series;   // the same but for the length: "prefill/llama-3-8b/cache/threads:2"
  std::string variant;  // "cache", "plain", "tile", ...; the baselines are "onednn", "onednn-graph" and "naive"
  int64_t length = 0;
  int threads = 1;
  Work work = {};  // zeros: no limit to compare with
  Requirement requirement = Requirement::kNone;
  std::string reference = {};  // name of the case whose time is the unit of kTimesReference
  double reference_times = 1;  // or so many times that
};
bool IsBaseline(const Case& entry);

// Names of counters, in JSON and for the table.
inline constexpr char kGflops[] = "GFLOP/s";
inline constexpr char kGbytes[] = "GB/s";
inline constexpr char kPercentOfLimit[] = "%limit";
inline constexpr char kPercentRequired[] = "%required";
inline constexpr char kReadLimit[] = "read_limit_GB/s";  // around the time when it was timed
inline constexpr char kMemoryBound[] = "memory_bound";
inline constexpr char kCpuShare[] = "cpu_share";
inline constexpr char kVersusOneDnn[] = "x_onednn";
inline constexpr char kVersusOneDnnGraph[] = "x_onednn_graph";
inline constexpr char kVersusNaive[] = "x_naive";
inline constexpr char kTimesReference[] = "x_reference";  // time / time of the reference case
inline constexpr char kWorkspaceMb[] = "workspace_MB";
inline constexpr char kStoredMb[] = "stored_MB";  // keys and values of one copy
inline constexpr char kPercentOfRun[] = "%run";
inline constexpr char kItemsPerSecond[] = "Gitem/s";

// How the message of a case begins that an implementation does not offer.
inline constexpr char kRefused[] = "refused: ";

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

  struct Selection {
    bool quick = false;    // a part of --quick
    bool targets = false;  // a part of --targets
    int repetitions = 0;   // 0: as many as Google Benchmark is told
  };
  // Declares a case for Google Benchmark, unless the options leave it out. `function` calls Time().
  void Register(const Case& entry, const Selection& selection,
                std::function<void(benchmark::State&, const Case&)> function);
  void Register(const Case& entry, bool quick, bool once,
                std::function<void(benchmark::State&, const Case&)> function) {
    Register(entry, {quick, /*targets=*/false, once ? 1 : 0}, std::move(function));
  }
  // A case of the whole set that can't be, with the reason for the report.
  void RegisterSkipped(const std::string& name, const std::string& why) { skipped_[name] = why; }
  const std::map<std::string, std::string>& skipped() const { return skipped_; }

  // The inputs called `key`, made by `make` if others are in memory, which are dropped first.
  template <typename Inputs>
  Result<Inputs*> GetInputs(const std::string& key, const std::function<Result<std::unique_ptr<Inputs>>()>& make) {
    if (inputs_key_ != key) {
      inputs_.reset();
      inputs_key_.clear();
      HEADLANE_ASSIGN_OR_RETURN(std::unique_ptr<Inputs> inputs, make());
      inputs_ = std::shared_ptr<void>(std::move(inputs));
      inputs_key_ = key;
    }
    return static_cast<Inputs*>(inputs_.get());
  }
  // Likewise the part of inputs that several of them share, one after the other.
  template <typename Part>
  Result<std::shared_ptr<Part>> GetShared(const std::string& key,
                                          const std::function<Result<std::shared_ptr<Part>>()>& make) {
    if (shared_key_ != key) {
      shared_.reset();
      shared_key_.clear();
      HEADLANE_ASSIGN_OR_RETURN(std::shared_ptr<Part> part, make());
      shared_ = std::move(part);
      shared_key_ = key;
    }
    return std::static_pointer_cast<Part>(shared_);
  }
  void DropInputs() {
    inputs_.reset();
    inputs_key_.clear();
    shared_.reset();
    shared_key_.clear();
  }

  // The timed loop and the counters that follow from it. Fails the case when `run` does, when `check`, called after the
  // loop where there is one, does, or when it was faster than the limits of the machine. Returns the seconds of one
  // call, 0 when it failed.
  double Time(benchmark::State& state, const Case& entry, const std::function<Status()>& run,
              const std::function<Status()>& check = nullptr);
  // Ends a case without a time: failed, or refused if that is what the status says.
  static void Fail(benchmark::State& state, const Status& status);

 private:
  // Of this moment; what was found less than `age` seconds ago will do.
  double ReadGbps(int threads, double age);

  Options options_;
  std::map<int, MachineLimits> limits_;
  std::map<std::string, Case> cases_;
  std::map<std::string, std::string> skipped_;
  std::optional<ReadProbe> probe_;
  double probe_gbps_ = 0;
  int probe_threads_ = 0;
  Stopwatch since_probe_;
  std::string inputs_key_;
  std::shared_ptr<void> inputs_;
  std::string shared_key_;
  std::shared_ptr<void> shared_;
  // By task and variant: seconds per call of each repetition.
  std::map<std::pair<std::string, std::string>, std::vector<double>> seconds_;
  std::map<std::string, std::vector<double>> seconds_by_name_;
};

void RegisterAttention(Session& session);  // prefill, decode, rows
void RegisterFeatures(Session& session);   // windows, latent attention, modifiers
void RegisterLinear(Session& session);
void RegisterCache(Session& session);
void RegisterMath(Session& session);
void RegisterPlan(Session& session);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_SESSION_H_
