// headlane-info: what this machine and this build have, and which kernel attention of a given shape gets, and why.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "headlane/attention.h"
#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/target.h"
#include "tools/common/report.h"
#include "tools/common/tool.h"

#if HEADLANE_HAVE_LIMITS
#include "bench/limits.h"
#endif

namespace headlane::tools {
namespace {

struct Options {
  int64_t q_heads = 32;
  int64_t kv_heads = 8;
  int64_t qk_dim = 128;
  int64_t v_dim = 0;  // 0: qk_dim
  std::vector<int64_t> q_lens = {1, 4, 32, 512};
  std::vector<int64_t> kv_lens = {4096};
  int threads = 0;
  bool explain = false;
  bool no_measure = false;
  bool json = false;
};

struct Cache {
  int level;
  std::string type;
  std::string size;
};

// Of the first processor, as the system tells; in a virtual machine this may be the host's and not what one gets.
std::vector<Cache> Caches() {
  std::vector<Cache> caches;
  for (int i = 0; i < 16; ++i) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    Cache cache{};
    if (!(std::ifstream(folder + "level") >> cache.level)) break;
    std::ifstream(folder + "type") >> cache.type;
    std::ifstream(folder + "size") >> cache.size;
    caches.push_back(cache);
  }
  return caches;
}

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::vector<TargetInfo> Targets() {
  std::vector<TargetInfo> targets(static_cast<size_t>(ListTargets(nullptr, 0)));
  ListTargets(targets.data(), static_cast<int>(targets.size()));
  return targets;
}

// FMA peak and read bandwidth of all threads together; both 0 where they were not measured.
struct Limits {
  double gflops = 0;
  double read_gb_per_second = 0;
  std::string how;
};

#if HEADLANE_HAVE_LIMITS
constexpr bool kHaveLimits = true;
Limits MeasureLimits(int threads) {
  const bench::MachineLimits limits = bench::MeasureLimits(threads);
  return {limits.fma_gflops, limits.read_gbps,
          Format("%d threads; %s; %s", limits.threads, limits.fma_kernel.c_str(), limits.read_kernel.c_str())};
}
#else
constexpr bool kHaveLimits = false;
Limits MeasureLimits(int) { return {}; }
#endif

struct ShapePlan {
  int64_t q_len;
  int64_t kv_len;
  PlanSummary summary;
  std::string why;
  std::string explanation;  // of the whole plan; empty unless asked for
};

std::string Why(const Options& options, const ShapePlan& plan, const Limits& limits) {
  const std::string kernel = plan.summary.kernel;
  const int64_t rows = plan.q_len * (options.q_heads / options.kv_heads);
  const double intensity = Ratio(plan.summary.flops, plan.summary.kv_bytes);
  std::string why =
      Format("%lld rows per KV head, %.1f FLOP per byte of K and V", static_cast<long long>(rows), intensity);
  if (kernel == "decode") why += ": few rows, so each tile is streamed once and used from registers";
  if (kernel == "tile") why += ": many rows, so blocks of rows and keys are multiplied out of the caches";
  if (limits.gflops > 0 && limits.read_gb_per_second > 0) {
    why += intensity < limits.gflops / limits.read_gb_per_second ? "; bound by memory" : "; bound by FMAs";
  }
  return why;
}

int Threads(const Options& options) { return OpenMPExecutor(options.threads).num_workers(); }

Result<ShapePlan> PlanShape(const Options& options, const Limits& limits, int64_t q_len, int64_t kv_len) {
  AttentionSpec spec;
  spec.num_q_heads = options.q_heads;
  spec.num_kv_heads = options.kv_heads;
  spec.qk_dim = options.qk_dim;
  spec.v_dim = options.v_dim > 0 ? options.v_dim : options.qk_dim;
  SequenceSpec sequence;
  sequence.q_len = q_len;
  sequence.kv_len = kv_len;
  PlanOptions plan_options;
  plan_options.num_workers = options.threads;
  HEADLANE_ASSIGN_OR_RETURN(const AttentionPlan plan,
                            PlanAttention(spec, std::span<const SequenceSpec>(&sequence, 1), plan_options));
  ShapePlan shape{q_len, kv_len, plan.summary(), "", ""};
  shape.why = Why(options, shape, limits);
  if (options.explain) {
    HEADLANE_ASSIGN_OR_RETURN(shape.explanation, plan.Explain({limits.gflops, limits.read_gb_per_second}));
  }
  return shape;
}

void PrintText(const Options& options, const std::vector<TargetInfo>& targets, const Limits& limits,
               const std::vector<ShapePlan>& plans) {
  std::printf("processor  %s\n", ProcessorName().c_str());
  std::printf("threads    %d by default, OpenMP %s\n", OpenMPExecutor().num_workers(),
              OpenMPExecutor::HasOpenMP() ? "built in" : "left out of this build");
  std::printf("linear     tile%s\n",
              HasLinearBackend(LinearBackend::kOneDnn) ? ", onednn" : " (onednn left out of this build)");
  std::printf("numerics   version %d\n\n", kNumericsVersion);

  std::vector<std::vector<std::string>> rows = {
      {"SIMD target", "vector bits", "FMA", "registers", "block of sums", "this machine"}};
  for (const TargetInfo& target : targets) {
    rows.push_back({target.name, target.vector_bytes > 0 ? Format("%d", 8 * target.vector_bytes) : "-",
                    target.has_fma ? "yes" : "no", target.supported ? Format("%d", target.num_registers) : "-",
                    target.supported ? Format("%d rows x %d vectors", target.block_rows, target.block_cols) : "-",
                    target.active      ? "in use"
                    : target.supported ? "can"
                                       : "cannot"});
  }
  PrintTable(stdout, rows, true);
  std::printf("\n");

  rows = {{"cache", "size"}};
  for (const Cache& cache : Caches()) rows.push_back({Format("L%d %s", cache.level, cache.type.c_str()), cache.size});
  if (rows.size() > 1) {
    PrintTable(stdout, rows, true);
    std::printf("\n");
  }

  if (limits.gflops > 0) {
    std::printf("measured   %.1f GFLOP/s of f32 FMAs, %.1f GB/s read (%s)\n\n", limits.gflops,
                limits.read_gb_per_second, limits.how.c_str());
  } else {
    std::printf("measured   not %s\n\n", kHaveLimits ? "asked for" : "in this build");
  }

  std::printf("attention with %lld query heads, %lld KV heads, width %lld, causal, f32\n",
              static_cast<long long>(options.q_heads), static_cast<long long>(options.kv_heads),
              static_cast<long long>(options.qk_dim));
  rows = {{"q_len", "kv_len", "kernel", "target", "items", "splits", "workspace"}};
  for (const ShapePlan& p : plans) {
    rows.push_back({Format("%lld", static_cast<long long>(p.q_len)), Format("%lld", static_cast<long long>(p.kv_len)),
                    p.summary.kernel, p.summary.target, Format("%lld", static_cast<long long>(p.summary.num_items)),
                    Format("%lld", static_cast<long long>(p.summary.num_splits)),
                    FormatBytes(static_cast<double>(p.summary.workspace_bytes))});
  }
  PrintTable(stdout, rows, true);
  for (const ShapePlan& p : plans) {
    std::printf("  q_len %lld, kv_len %lld: %s\n", static_cast<long long>(p.q_len), static_cast<long long>(p.kv_len),
                p.why.c_str());
  }
  for (const ShapePlan& p : plans) {
    if (p.explanation.empty()) continue;
    std::printf("\nplan of q_len %lld, kv_len %lld\n%s", static_cast<long long>(p.q_len),
                static_cast<long long>(p.kv_len), p.explanation.c_str());
  }
}

void PrintAsJson(const Options& options, const std::vector<TargetInfo>& targets, const Limits& limits,
                 const std::vector<ShapePlan>& plans) {
  Json json = {{"processor", ProcessorName()},
               {"default_threads", OpenMPExecutor().num_workers()},
               {"openmp", OpenMPExecutor::HasOpenMP()},
               {"onednn", HasLinearBackend(LinearBackend::kOneDnn)},
               {"numerics_version", kNumericsVersion},
               {"targets", Json::MakeArray()},
               {"caches", Json::MakeArray()},
               {"limits", nullptr},
               {"shapes", Json::MakeArray()}};
  for (const TargetInfo& t : targets) {
    json["targets"].Append({{"name", t.name},
                            {"vector_bytes", t.vector_bytes},
                            {"fma", t.has_fma},
                            {"registers", t.num_registers},
                            {"block_rows", t.block_rows},
                            {"block_cols", t.block_cols},
                            {"supported", t.supported},
                            {"active", t.active}});
  }
  for (const Cache& c : Caches()) json["caches"].Append({{"level", c.level}, {"type", c.type}, {"size", c.size}});
  if (limits.gflops > 0)
    json["limits"] = {
        {"fma_gflops", limits.gflops}, {"read_gb_per_second", limits.read_gb_per_second}, {"how", limits.how}};
  for (const ShapePlan& p : plans) {
    json["shapes"].Append({{"q_heads", options.q_heads},
                           {"kv_heads", options.kv_heads},
                           {"qk_dim", options.qk_dim},
                           {"q_len", p.q_len},
                           {"kv_len", p.kv_len},
                           {"kernel", p.summary.kernel},
                           {"target", p.summary.target},
                           {"items", p.summary.num_items},
                           {"splits", p.summary.num_splits},
                           {"flops", p.summary.flops},
                           {"kv_bytes", p.summary.kv_bytes},
                           {"workspace_bytes", p.summary.workspace_bytes},
                           {"why", p.why},
                           {"explanation", p.explanation}});
  }
  PrintJson(json);
}

Status Run(const Options& options) {
  // Shapes that are refused are refused before anything takes time.
  for (const int64_t q_len : options.q_lens) {
    HEADLANE_RETURN_IF_ERROR(PlanShape(options, Limits(), q_len, options.kv_lens.front()).status());
  }
  const Limits limits = options.no_measure ? Limits() : MeasureLimits(Threads(options));
  std::vector<ShapePlan> plans;
  for (const int64_t q_len : options.q_lens) {
    for (const int64_t kv_len : options.kv_lens) {
      HEADLANE_ASSIGN_OR_RETURN(ShapePlan plan, PlanShape(options, limits, q_len, kv_len));
      plans.push_back(std::move(plan));
    }
  }
  const std::vector<TargetInfo> targets = Targets();
  (options.json ? PrintAsJson : PrintText)(options, targets, limits, plans);
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  Arguments arguments(
      "headlane-info",
      "Shows the SIMD targets of this build and which of them the machine has, its caches and limits, and which kernel "
      "attention of a given shape gets, and why.");
  constexpr int64_t kMaxHeads = int64_t{1} << 14;
  constexpr int64_t kMaxLength = int64_t{1} << 24;
  arguments.Number("--q-heads", options.q_heads, 1, kMaxHeads, "Query heads");
  arguments.Number("--kv-heads", options.kv_heads, 1, kMaxHeads, "KV heads: a divisor of the query heads");
  arguments.Number("--dim", options.qk_dim, 1, kMaxHeads, "Width of queries and keys");
  arguments.Number("--v-dim", options.v_dim, 0, kMaxHeads, "Width of values; 0: the same");
  arguments.Numbers("--q-len", options.q_lens, 0, kMaxLength, "Query tokens");
  arguments.Numbers("--kv-len", options.kv_lens, 0, kMaxLength, "Keys");
  arguments.Number("-t,--threads", options.threads, 0, 1024,
                   "Threads that the work is cut for; 0: as many as OpenMP would use");
  arguments.Flag("--explain", options.explain, "Print each shape's plan: items, workspace, bytes, FLOPs, roofline");
  arguments.Flag("--no-measure", options.no_measure,
                 "Skip measuring FMA peak and read bandwidth, which takes a second");
  arguments.Flag("--json", options.json, "One JSON object");
  return RunTool(arguments, argc, argv,
                 "  headlane-info\n"
                 "  headlane-info --q-heads 9 --kv-heads 3 --dim 64 --q-len 1,512 --kv-len 512,8192\n"
                 "  HEADLANE_TARGET=AVX2 headlane-info --json\n",
                 [&] { return Run(options); });
}

}  // namespace
}  // namespace headlane::tools

int main(int argc, char** argv) {
  return headlane::tools::RunMain("headlane-info", argc, argv, &headlane::tools::Main);
}
