// headlane-decode-bench: prompt and decode speed of a whole model at given depths of the KV cache.
//
// Axes and words are those of llama-bench where it has them: "pp512" is a prompt of 512 tokens, "tg32 @ d4096" is 32
// tokens, one by one, behind 4096.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "headlane/decoder.h"
#include "headlane/target.h"
#include "tools/common/cache_options.h"
#include "tools/common/model_options.h"
#include "tools/common/report.h"
#include "tools/common/tool.h"

#if HEADLANE_HAVE_LIMITS
#include "bench/limits.h"
#endif

namespace headlane::tools {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 22;

struct Options {
  ModelOptions model;
  CacheOptions cache;
  std::vector<int64_t> prompts = {512};
  std::vector<int64_t> generations = {32};
  std::vector<int64_t> depths = {0, 512, 4096};
  std::vector<int> threads = {0};
  int repetitions = 5;
  bool no_warmup = false;
  std::string fill = "random";
  int64_t chunk = SessionOptions().chunk;
  bool no_limits = false;
  bool markdown = false;
  bool json = false;
};

// One kind of work at one depth on one number of threads.
struct Test {
  bool is_prompt;
  int64_t tokens;
  int64_t depth;

  std::string Name() const {
    std::string name = Format(is_prompt ? "pp%lld" : "tg%lld", static_cast<long long>(tokens));
    if (depth > 0) name += Format(" @ d%lld", static_cast<long long>(depth));
    return name;
  }
};

struct Measurement {
  Test test;
  int threads = 0;
  std::vector<double> rates;         // tokens per second of each repetition
  std::vector<double> step_seconds;  // decode: of each step; prompt: of each prompt, its first token included
  PhaseStats stats;                  // of all repetitions
  SessionMemory memory;              // with all of the test's tokens
};

// What the machine can do at most with so many threads; both 0 where it was not measured.
struct Limits {
  double gflops = 0;
  double read_gbps = 0;

  // Seconds that this takes at least, bytes and operations at the same time.
  double Seconds(double bytes, double flops) const {
    return std::max(Ratio(bytes, 1e9 * read_gbps), Ratio(flops, 1e9 * gflops));
  }
};

#if HEADLANE_HAVE_LIMITS
Limits MeasureLimits(int threads) {
  const bench::MachineLimits limits = bench::MeasureLimits(threads);
  return {limits.fma_gflops, limits.read_gbps};
}
#else
Limits MeasureLimits(int) { return {}; }
#endif

// Bytes of this process that are in memory, mapped files included; 0 where the system does not say.
int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  return file >> pages >> resident ? resident * static_cast<int64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

// Ids that stand for any text: time does not depend on them.
std::vector<int32_t> SomeIds(int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  uint64_t state = 1;
  for (int32_t& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size));
  }
  return ids;
}

Status GoToDepth(const Options& options, Session& session, int64_t depth, int64_t vocab_size) {
  if (session.length() > depth) {
    const Status status = session.Truncate(depth);
    if (status.code() != StatusCode::kFailedPrecondition) return status;
    // A window has passed it.
    HEADLANE_RETURN_IF_ERROR(session.Truncate(0));
  }
  if (options.fill == "random") return session.FillRandom(depth, 1);
  ProgressLine progress("filling the cache", "tokens");
  return session.Prefill(SomeIds(depth - session.length(), vocab_size), progress.Callback());
}

// One repetition; with `out` its figures are kept.
Status RunOnce(const Test& test, Session& session, const std::vector<int32_t>& ids, TokenSampler& sampler,
               Measurement* out) {
  HEADLANE_RETURN_IF_ERROR(session.Truncate(test.depth));
  session.ResetStats();
  std::vector<double> seconds;
  const double start = Now();
  if (test.is_prompt) {
    HEADLANE_RETURN_IF_ERROR(session.Prefill(ids));
    HEADLANE_RETURN_IF_ERROR(sampler.Next(session.logits()).status());
    seconds.push_back(Now() - start);
  } else {
    for (const int32_t id : ids) {
      const double step_start = Now();
      HEADLANE_RETURN_IF_ERROR(session.Step(id).status());
      seconds.push_back(Now() - step_start);
    }
  }
  const double total = Now() - start;
  if (out == nullptr) return OkStatus();
  out->rates.push_back(Ratio(static_cast<double>(ids.size()), total));
  out->step_seconds.insert(out->step_seconds.end(), seconds.begin(), seconds.end());
  const PhaseStats& stats = test.is_prompt ? session.prompt_stats() : session.step_stats();
  out->stats.tokens += stats.tokens;
  out->stats.calls += stats.calls;
  out->stats.total += stats.total;
  out->stats.attention += stats.attention;
  out->stats.append += stats.append;
  out->stats.linear += stats.linear;
  out->stats.kv_bytes += stats.kv_bytes;
  out->stats.weight_bytes += stats.weight_bytes;
  out->stats.attention_flops += stats.attention_flops;
  out->stats.linear_flops += stats.linear_flops;
  return OkStatus();
}

Result<Measurement> Measure(const Options& options, const Model& model, const Test& test, Session& session) {
  Measurement m;
  m.test = test;
  m.threads = session.num_workers();
  const std::vector<int32_t> ids = SomeIds(test.tokens, model.info().vocab_size);
  HEADLANE_ASSIGN_OR_RETURN(TokenSampler sampler, TokenSampler::Create(model.info().vocab_size, SamplingOptions()));
  HEADLANE_RETURN_IF_ERROR(GoToDepth(options, session, test.depth, model.info().vocab_size));
  if (!options.no_warmup) {
    const size_t count = test.is_prompt ? ids.size() : std::min<size_t>(ids.size(), 4);
    const std::vector<int32_t> some(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
    HEADLANE_RETURN_IF_ERROR(RunOnce(test, session, some, sampler, nullptr));
  }
  for (int i = 0; i < options.repetitions; ++i) HEADLANE_RETURN_IF_ERROR(RunOnce(test, session, ids, sampler, &m));
  m.memory = session.memory();
  std::sort(m.rates.begin(), m.rates.end());
  std::sort(m.step_seconds.begin(), m.step_seconds.end());
  return m;
}

// Shares of their rooflines.
double AttentionOfRoofline(const PhaseStats& s, const Limits& limits) {
  return Ratio(limits.Seconds(s.kv_bytes, s.attention_flops), s.attention);
}
double LinearOfRoofline(const PhaseStats& s, const Limits& limits) {
  return Ratio(limits.Seconds(s.weight_bytes, s.linear_flops), s.linear);
}

Json MeasurementJson(const Measurement& m, const Limits& limits) {
  Json json = {{"test", m.test.Name()},
               {"n_prompt", m.test.is_prompt ? m.test.tokens : 0},
               {"n_gen", m.test.is_prompt ? 0 : m.test.tokens},
               {"n_depth", m.test.depth},
               {"n_threads", m.threads},
               {"repetitions", m.rates.size()},
               {"tokens_per_second", Median(m.rates)},
               {"tokens_per_second_min", m.rates.front()},
               {"tokens_per_second_max", m.rates.back()},
               {"samples_tokens_per_second", m.rates}};
  if (m.test.is_prompt) {
    json["time_to_first_token_ms"] = 1e3 * Median(m.step_seconds);
  } else {
    json["step_p50_ms"] = 1e3 * Quantile(m.step_seconds, 0.5);
    json["step_p99_ms"] = 1e3 * Quantile(m.step_seconds, 0.99);
  }
  json["phase"] = PhaseJson(m.stats);
  json["attention_flops"] = m.stats.attention_flops;
  json["linear_flops"] = m.stats.linear_flops;
  if (limits.gflops > 0) {
    json["attention_of_roofline"] = AttentionOfRoofline(m.stats, limits);
    json["linear_of_roofline"] = LinearOfRoofline(m.stats, limits);
  }
  json["kv_used_bytes"] = m.memory.cache_used_bytes;
  json["kv_kept_tokens"] = m.memory.kept_tokens;
  json["kv_waste_bytes"] = m.memory.waste_bytes();
  return json;
}

constexpr const char* kHeading[] = {"test",        "threads", "tokens/s",  "+-",          "TTFT ms",
                                    "p50 ms",      "p99 ms",  "attention", "of roofline", "linear",
                                    "of roofline", "rest",    "KV GB/s",   "weights GB/s"};

std::vector<std::string> TableRow(const Measurement& m, const Limits& limits) {
  const auto roofline = [&](double share) { return limits.gflops > 0 ? Format("%.0f %%", 100 * share) : "-"; };
  const PhaseStats& s = m.stats;
  const double median = Median(m.rates);
  const double spread = 100 * Ratio(m.rates.back() - m.rates.front(), 2 * median);
  const bool is_prompt = m.test.is_prompt;
  return {m.test.Name(),
          Format("%d", m.threads),
          Format("%.2f", median),
          Format("%.1f %%", spread),
          is_prompt ? Format("%.1f", 1e3 * Median(m.step_seconds)) : "-",
          is_prompt ? "-" : Format("%.2f", 1e3 * Quantile(m.step_seconds, 0.5)),
          is_prompt ? "-" : Format("%.2f", 1e3 * Quantile(m.step_seconds, 0.99)),
          Format("%.1f %%", 100 * Ratio(s.attention, s.total)),
          roofline(AttentionOfRoofline(s, limits)),
          Format("%.1f %%", 100 * Ratio(s.linear, s.total)),
          roofline(LinearOfRoofline(s, limits)),
          Format("%.1f %%", 100 * Ratio(s.append + s.rest(), s.total)),
          Format("%.1f", 1e-9 * Ratio(s.kv_bytes, s.attention)),
          Format("%.1f", 1e-9 * Ratio(s.weight_bytes, s.linear))};
}

// "| a | b |" for a README: the first column to the left, the others to the right.
void PrintMarkdown(const std::vector<std::vector<std::string>>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    std::printf("|");
    for (const std::string& cell : rows[i]) std::printf(" %s |", cell.c_str());
    std::printf("\n");
    if (i > 0) continue;
    for (size_t column = 0; column < rows[0].size(); ++column) std::printf(column == 0 ? "|---" : "|--:");
    std::printf("|\n");
  }
}

// What the process holds. `resident`: when a session was there and all tests had run.
std::vector<std::vector<std::string>> MemoryRows(const Model& model, const SessionMemory& memory, int64_t resident) {
  const auto text = [](int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); };
  std::vector<std::vector<std::string>> rows = {{"memory", "bytes"}};
  if (model.info().file_bytes > 0) rows.push_back({"model file", text(model.info().file_bytes)});
  rows.push_back({model.packed_weights().mapped ? "weights, mapped" : "weights",
                  text(model.weight_bytes() - model.weight_copy_bytes())});
  if (model.weight_copy_bytes() > 0) rows.push_back({"weights, copies for prompts", text(model.weight_copy_bytes())});
  rows.push_back({"KV cache", text(memory.cache_bytes)});
  rows.push_back({"scratch", text(memory.scratch_bytes)});
  if (resident > 0) rows.push_back({"resident", text(resident)});
  return rows;
}

// Bytes of a token in every type, so that one run shows what another would take; then what this one took.
Status PrintCache(const Model& model, const SessionOptions& options, const SessionMemory& memory,
                  const SessionMemory& last) {
  std::string others;
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType type = static_cast<DType>(i);
    HEADLANE_ASSIGN_OR_RETURN(const int64_t bytes, CacheBytesPerToken(model.info(), {type, type, false}));
    others += Format("%s%s %lld", i > 0 ? ", " : "", DTypeName(type), static_cast<long long>(bytes));
  }
  const auto text = [](int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); };
  std::printf("KV cache %s: %lld bytes per token (%s)\n",
              CacheTypes{options.k_dtype, options.v_dtype, options.rotates()}.Name().c_str(),
              static_cast<long long>(memory.kv_bytes_per_token), others.c_str());
  std::printf(
      "         %s allocated in pages of %lld tokens, %s; the last test used %s for %lld tokens, %s of it waste\n",
      text(memory.cache_bytes).c_str(), static_cast<long long>(options.page_tokens), text(memory.page_bytes).c_str(),
      text(last.cache_used_bytes).c_str(), static_cast<long long>(last.kept_tokens), text(last.waste_bytes()).c_str());
  if (options.window > 0) {
    std::printf("         window of %lld tokens, the first %lld always visible\n",
                static_cast<long long>(options.window), static_cast<long long>(options.num_sinks));
  }
  std::printf("\n");
  return OkStatus();
}

Status Run(const Options& options) {
  HEADLANE_ASSIGN_OR_RETURN(Model model, OpenModel(options.model));
  std::vector<Test> tests;
  int64_t max_context = 1;
  for (const int64_t depth : options.depths) {
    for (const int64_t n : options.prompts) {
      if (n > 0) tests.push_back({true, n, depth});
    }
    for (const int64_t n : options.generations) {
      if (n > 0) tests.push_back({false, n, depth});
    }
  }
  for (const Test& test : tests) max_context = std::max(max_context, test.depth + test.tokens);
  if (tests.empty()) return MakeStatus(StatusCode::kInvalidArgument, "nothing to measure: -p and -n are both 0");

  const double start = Now();
  HEADLANE_RETURN_IF_ERROR(LoadModel(options.model, 0, model));
  const double load_seconds = Now() - start;

  const std::string heading =
      Format("%s, %.1f M parameters (%s), weights %s in memory, loaded in %.2f s; SIMD target %s, linear layers %s",
             model.info().name.c_str(), 1e-6 * static_cast<double>(model.info().num_parameters),
             model.info().weight_type.c_str(), FormatBytes(static_cast<double>(model.weight_bytes())).c_str(),
             load_seconds, ActiveTarget().name, model.linear_implementation());
  if (!options.json) std::printf("%s\n", heading.c_str());

  std::vector<std::vector<std::string>> rows = {{std::begin(kHeading), std::end(kHeading)}};
  Json limits_json = Json::MakeArray();
  std::string limits_text;
  int64_t resident = 0;
  Json results = Json::MakeArray();
  SessionMemory memory;
  SessionMemory last;
  SessionOptions session_options;
  session_options.max_context = max_context;
  session_options.chunk = options.chunk;
  HEADLANE_RETURN_IF_ERROR(SetCacheOptions(options.cache, session_options));
  // Every repetition begins at the same depth.
  for (const Test& test : tests) session_options.rollback = std::max(session_options.rollback, test.tokens);
  for (const int threads : options.threads) {
    session_options.threads = threads;
    HEADLANE_ASSIGN_OR_RETURN(Session session, Session::Create(model, session_options));
    memory = session.memory();
    Limits limits;
    if (!options.no_limits) limits = MeasureLimits(session.num_workers());
    if (limits.gflops > 0) {
      limits_text += Format("%s%d threads %.1f GB/s, %.1f GFLOP/s", limits_text.empty() ? "" : "; ",
                            session.num_workers(), limits.read_gbps, limits.gflops);
      limits_json.Append({{"n_threads", session.num_workers()},
                          {"read_gb_per_second", limits.read_gbps},
                          {"fma_gflop_per_second", limits.gflops}});
    }
    for (size_t i = 0; i < tests.size(); ++i) {
      ProgressLine progress(tests[i].Name(), "tests");
      progress.Callback()(static_cast<int64_t>(i), static_cast<int64_t>(tests.size()));
      HEADLANE_ASSIGN_OR_RETURN(const Measurement m, Measure(options, model, tests[i], session));
      last = m.memory;
      rows.push_back(TableRow(m, limits));
      results.Append(MeasurementJson(m, limits));
    }
    resident = ResidentBytes();
  }
  if (options.json) {
    PrintJson({{"model", ModelJson(model)},
               {"load_seconds", load_seconds},
               {"target", ActiveTarget().name},
               {"linear_implementation", model.linear_implementation()},
               {"fill", options.fill},
               {"kv_bytes_per_token", memory.kv_bytes_per_token},
               {"kv_cache_bytes", memory.cache_bytes},
               {"kv_cache", CacheJson(session_options, memory)},
               {"scratch_bytes", memory.scratch_bytes},
               {"resident_bytes", resident},
               {"weights_mapped", model.packed_weights().mapped},
               {"limits", limits_json},
               {"results", results}});
    return OkStatus();
  }
  HEADLANE_RETURN_IF_ERROR(PrintCache(model, session_options, memory, last));
  if (!limits_text.empty()) std::printf("machine: read and FMA peak, measured now: %s\n\n", limits_text.c_str());
  const auto memory_rows = MemoryRows(model, memory, resident);
  if (options.markdown) {
    PrintMarkdown(rows);
    std::printf("\n");
    PrintMarkdown(memory_rows);
  } else {
    PrintTable(stdout, rows, true);
    std::printf("\n");
    PrintTable(stdout, memory_rows, true);
  }
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  Arguments arguments(
      "headlane-decode-bench",
      "Measures a model's speed at given depths of the KV cache: prompts (pp) and token-by-token decode (tg). Prints "
      "medians over the repetitions, half the range as spread, time to first token, median and 99th percentile of a "
      "step, shares of time of attention and linear layers and how near each is to its roofline (the longer of its "
      "bytes at the machine's read bandwidth and its operations at the FMA peak), and what is read per second by "
      "attention (KV) and by linear layers (weights).");
  AddModelOptions(arguments, options.model);
  arguments.Numbers("-p,--n-prompt", options.prompts, 0, kMaxTokens, "Lengths of prompts; 0: none");
  arguments.Numbers("-n,--n-gen", options.generations, 0, kMaxTokens,
                    "Numbers of tokens to decode one by one; 0: none");
  arguments.Numbers("-d,--depth,--n-depth", options.depths, 0, kMaxTokens, "Tokens that are in the cache before");
  arguments.Numbers("-t,--threads", options.threads, 0, kMaxThreads, "Threads; 0: as many as OpenMP would use");
  arguments.Number("-r,--repetitions", options.repetitions, 1, 10000, "How often each test runs");
  arguments.Flag("--no-warmup", options.no_warmup, "Count the first run too");
  arguments.Choice(
      "--fill", options.fill, {"random", "prompt"},
      "How the cache gets to its depth: random (keys and values made up: quick, and the same to read) or prompt "
      "(computed)");
  AddCacheOptions(arguments, options.cache);
  arguments.Number("--chunk", options.chunk, 1, kMaxTokens, "Tokens of a prompt that go through the layers together");
  arguments.Flag("--no-limits", options.no_limits,
                 "Skip measuring read bandwidth and FMA peak, which takes a second per number of threads");
  arguments.Flag("--markdown", options.markdown, "The tables as Markdown");
  arguments.Flag("--json", options.json, "One JSON object instead of the tables");
  return RunTool(arguments, argc, argv,
                 "  headlane-decode-bench --model model.gguf --depth 0,512,4096 --threads 1,2\n"
                 "  headlane-decode-bench --model model.gguf --depth 0,512,4096,8192 --kv-type bf16 --markdown\n"
                 "  headlane-decode-bench --synthetic llama-3.2-1b -p 0 -n 16 -d 4096 -r 3 --kv-type int8\n"
                 "  headlane-decode-bench --synthetic llama-3-8b:4 -p 128 -n 8 --json\n",
                 [&] { return Run(options); });
}

}  // namespace
}  // namespace headlane::tools

int main(int argc, char** argv) {
  return headlane::tools::RunMain("headlane-decode-bench", argc, argv, &headlane::tools::Main);
}
