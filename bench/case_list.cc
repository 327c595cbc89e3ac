#include "bench/case_list.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "bench/attention_runner.h"
#include "bench/case_file.h"
#include "bench/machine.h"
#include "bench/statistics.h"
#include "headlane/target.h"

namespace headlane::bench {
namespace {

constexpr double kSeconds = 0.5;      // of timed calls per case
constexpr int kMinRuns = 5;           // but so many
constexpr double kLongSeconds = 1.5;  // a single call above it is timed once

struct Timing {
  std::vector<double> seconds;  // of each call
  double cpu_share = 0;
};

Result<Timing> TimeCase(AttentionRunner& runner, int64_t num_copies, int threads) {
  Timing timing;
  const double cpu_start = ProcessCpuSeconds();
  const Stopwatch all;
  for (int64_t i = 0;; ++i) {
    const Stopwatch watch;
    HEADLANE_RETURN_IF_ERROR(runner.Run(i % num_copies));
    timing.seconds.push_back(watch.Seconds());
    const bool enough = std::ssize(timing.seconds) >= kMinRuns || timing.seconds.front() > kLongSeconds;
    if (enough && all.Seconds() >= kSeconds) break;
  }
  timing.cpu_share = (ProcessCpuSeconds() - cpu_start) / all.Seconds() / threads;
  return timing;
}

std::string Json(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + "\"";
}

Result<Timing> Run(const FileCase& entry, const AttentionShape& shape, const Implementation& implementation,
                   int threads) {
  const Source source(shape);
  const int64_t num_copies = entry.kind == "prefill" ? 1 : ColdCopies(KvBytes(shape));
  HEADLANE_ASSIGN_OR_RETURN(std::shared_ptr<KeysValues> data,
                            KeysValues::Make(source, implementation.storage, num_copies));
  HEADLANE_ASSIGN_OR_RETURN(std::unique_ptr<AttentionRunner> runner, implementation.make(source, std::move(data)));
  HEADLANE_RETURN_IF_ERROR(runner->SetThreads(threads));
  HEADLANE_RETURN_IF_ERROR(runner->Run(num_copies - 1));
  HEADLANE_RETURN_IF_ERROR(CheckOutputs(source, *runner, num_copies - 1));
  return TimeCase(*runner, num_copies, threads);
}

// False when the case failed, which a refused one did not.
bool PrintCase(const FileCase& entry, DType dtype, const Implementation& implementation, int threads) {
  AttentionShape shape{{"case", entry.hq, entry.hkv, entry.d, entry.dv}, entry.b, entry.sq, entry.skv, dtype};
  std::printf("{\"peer\":\"headlane\",\"storage\":\"%s\",\"case\":%s,\"dtype\":\"%s\",\"threads\":%d",
              implementation.name, Json(entry.name).c_str(), DTypeName(dtype), threads);
  const Result<Timing> timing = Run(entry, shape, implementation, threads);
  if (!timing.ok()) {
    std::printf(",\"skipped\":%s}\n", Json(std::string(timing.status().message())).c_str());
    std::fflush(stdout);
    return timing.status().code() != StatusCode::kInternal;
  }
  std::vector<double> seconds = timing->seconds;
  std::sort(seconds.begin(), seconds.end());
  const double median = Median(seconds);
  const Work work = entry.kind == "prefill" ? PrefillWork(shape) : AttentionWork(shape);
  std::printf(
      ",\"median_ms\":%.5g,\"min_ms\":%.5g,\"p90_ms\":%.5g,\"runs\":%zu,\"cpu_share\":%.3f,\"gflops\":%.4g,"
      "\"gbytes_per_s\":%.4g}\n",
      median * 1e3, seconds.front() * 1e3, seconds[seconds.size() * 9 / 10] * 1e3, seconds.size(), timing->cpu_share,
      work.flops / median / 1e9, work.bytes / median / 1e9);
  std::fflush(stdout);
  return true;
}

}  // namespace

Status RunCaseList(const Options& options) {
  std::ifstream file(options.cases_file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return MakeStatus(StatusCode::kInvalidArgument, "can't read %.200s", options.cases_file.c_str());
  const Result<std::vector<FileCase>> cases = ParseCases(text);
  if (!cases.ok()) {
    return MakeStatus(StatusCode::kInvalidArgument, "%.100s, %s", options.cases_file.c_str(), cases.status().c_str());
  }
  const auto priority = options.top_priority ? std::make_unique<TopPriority>() : nullptr;
  const int threads = options.threads.front();
  const MachineLimits limits = MeasureLimits(threads);
  std::printf(
      "{\"peer\":\"headlane\",\"processor\":%s,\"target\":\"%s\",\"threads\":%d,\"fma_gflops\":%.2f,\"read_gbps\":%.2f}"
      "\n",
      Json(ProcessorName()).c_str(), ActiveTarget().name, threads, limits.fma_gflops, limits.read_gbps);
  std::fflush(stdout);
  int num_failed = 0;
  for (const FileCase& entry : *cases) {
    for (const DType dtype : options.types) {
      for (const Implementation& implementation : {kCache, kPlain}) {
        if (std::find(options.storages.begin(), options.storages.end(), implementation.name) ==
            options.storages.end()) {
          continue;
        }
        if (!PrintCase(entry, dtype, implementation, threads)) ++num_failed;
      }
    }
  }
  if (num_failed == 0) return OkStatus();
  return MakeStatus(StatusCode::kInternal, "%d cases failed", num_failed);
}

}  // namespace headlane::bench
