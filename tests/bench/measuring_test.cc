// Limits, work, statistics and arguments of the benchmarks. No figure depends on how fast the machine is.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/case_file.h"
#include "bench/limits.h"
#include "bench/memory_block.h"
#include "bench/options.h"
#include "bench/roofline.h"
#include "bench/statistics.h"
#include "bench/targets.h"
#include "bench/thread_team.h"

namespace headlane::bench {
namespace {

TEST(Limits, AreNumbersForEachNumberOfThreads) {
  LimitsOptions options;  // little of everything: this looks at what is reported, not at how fast the machine is
  options.buffer_bytes = int64_t{32} << 20;
  options.fma_seconds = 0;
  options.read_seconds = 0;
  for (const int threads : {1, 2, 3}) {
    const MachineLimits limits = MeasureLimits(threads, options);
    EXPECT_EQ(limits.threads, threads);
    for (const double figure :
         {limits.fma_gflops, limits.fma_gflops_median, limits.read_gbps, limits.read_gbps_median}) {
      EXPECT_TRUE(std::isfinite(figure));
      EXPECT_GT(figure, 0);
    }
    EXPECT_GE(limits.fma_gflops, limits.fma_gflops_median);
    EXPECT_GE(limits.read_gbps, limits.read_gbps_median);
    EXPECT_EQ(limits.read_buffer_bytes, options.buffer_bytes);
    EXPECT_NE(limits.fma_kernel, "");
    EXPECT_NE(limits.read_kernel, "");
  }
}

TEST(Limits, ProbesAreNumbersAgainAndAgain) {
  ReadProbe probe;
  for (const int threads : {2, 1, 2}) {
    ThreadTeam team(threads);
    const double gbps = probe.Gbps(threads, [&](const std::function<void(int)>& work) { return team.Run(work); });
    EXPECT_TRUE(std::isfinite(gbps));
    EXPECT_GT(gbps, 0);
  }
}

TEST(ThreadTeam, EachPieceRunsOnceOnEachThread) {
  constexpr int kThreads = 5;
  ThreadTeam team(kThreads);
  ASSERT_EQ(team.size(), kThreads);
  std::vector<std::atomic<int>> calls(kThreads);
  for (int piece = 1; piece <= 50; ++piece) {
    EXPECT_GE(team.Run([&](int id) { calls[static_cast<size_t>(id)].fetch_add(1); }), 0);
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count.load(), piece);
  }
}

TEST(Statistics, MedianSpreadAndConfirmedMaximum) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({9, 1, 5, 7}), 6);
  EXPECT_EQ(Spread({8, 10, 13}), 0.5);
  EXPECT_EQ(Spread({}), 0);
  EXPECT_EQ(ConfirmedMaximum({2, 50, 7, 1}), 7);
  EXPECT_EQ(ConfirmedMaximum({4, 4}), 4);
  EXPECT_EQ(ConfirmedMaximum({4}), 4);
  EXPECT_EQ(ConfirmedMaximum({}), 0);
}

// Counted one by one.
double CountPairs(const AttentionShape& shape) {
  double pairs = 0;
  for (int64_t row = 0; row < shape.q_len; ++row) {
    for (int64_t key = 0; key < shape.kv_len; ++key) pairs += key <= shape.kv_len - shape.q_len + row;
  }
  return pairs;
}

TEST(Work, CountsPairsAndBytes) {
  const ModelShape model{"test", 6, 2, 24, 40};
  for (const auto& [q_len, kv_len] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 77}, {5, 77}, {64, 64}}) {
    AttentionShape shape{model, 3, q_len, kv_len};
    const Work work = AttentionWork(shape);
    EXPECT_EQ(work.flops, CountPairs(shape) * 2 * (24 + 40) * 6 * 3);
    EXPECT_EQ(work.bytes, 3.0 * static_cast<double>(kv_len) * 2 * (24 + 40) * 4);
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      shape.dtype = dtype;
      EXPECT_EQ(AttentionWork(shape).bytes, work.bytes / 2);
      EXPECT_EQ(AttentionWork(shape).flops, work.flops);
    }
  }
}

TEST(Work, LatentValuesAreNotReadTwice) {
  AttentionShape shape{{"latent", 4, 1, 24, 16, true}, 2, 1, 10};
  EXPECT_EQ(KvBytes(shape), 2.0 * 10 * 24 * 4);
  EXPECT_EQ(AttentionWork(shape).flops, 2.0 * 4 * 10 * 2 * (24 + 16));
}

TEST(Work, KeysBehindAWindowCostNothing) {
  AttentionShape shape{{"window", 2, 1, 8, 8}, 1, 3, 100};
  shape.modifiers.window = 5;
  EXPECT_EQ(shape.FirstVisible(0), 93);
  EXPECT_EQ(shape.FirstVisible(2), 95);
  EXPECT_EQ(shape.VisibleEnd(2), 100);
  EXPECT_EQ(AttentionWork(shape).flops, 3.0 * 5 * 2 * 16 * 2);
  EXPECT_EQ(AttentionWork(shape).bytes, 7.0 * 16 * 4);
  shape.modifiers.window = 1000;
  const double all = AttentionWork(shape).bytes;
  shape.modifiers.window = -1;
  EXPECT_EQ(AttentionWork(shape).bytes, all);
}

TEST(Work, PrefillIsHalfTheSquare) {
  const ModelShape& model = *FindModelShape("llama-3-8b");
  const AttentionShape shape{model, 1, 2048, 2048};
  EXPECT_EQ(PrefillWork(shape).flops, 32 * 4.0 * 2048 * 2048 * 128 / 2);
  // The convention leaves half of the diagonal out: it never flatters.
  EXPECT_LT(PrefillWork(shape).flops, AttentionWork(shape).flops);
  EXPECT_EQ(FindModelShape("no-such-model"), nullptr);
}

TEST(Work, RooflineIsTheSlowerOfTheTwo) {
  MachineLimits limits;
  limits.fma_gflops = 100;
  limits.read_gbps = 10;
  EXPECT_DOUBLE_EQ(RooflineSeconds({200e9, 10e9}, limits), 2);
  EXPECT_FALSE(BoundByMemory({200e9, 10e9}, limits));
  EXPECT_DOUBLE_EQ(RooflineSeconds({200e9, 30e9}, limits), 3);
  EXPECT_TRUE(BoundByMemory({200e9, 30e9}, limits));
  EXPECT_EQ(RooflineSeconds({0, 0}, limits), 0);
  EXPECT_EQ(RooflineSeconds({1, 1}, MachineLimits()), 0);
  EXPECT_EQ(LinearWork(3, 10, 20).flops, 1200);
  EXPECT_EQ(LinearWork(3, 10, 20).bytes, 800);
  Work integers = LinearWork(3, 10, 20);
  MachineLimits slow_fma;
  slow_fma.fma_gflops = 1e-6;
  slow_fma.read_gbps = 1;
  EXPECT_FALSE(BoundByMemory(integers, slow_fma));
  integers.on_integers = true;
  EXPECT_TRUE(BoundByMemory(integers, slow_fma));
  EXPECT_EQ(RooflineSeconds(integers, slow_fma), 800e-9);
}

TEST(Work, CopiesAddUpToColdMemory) {
  for (const double bytes : {1e3, 33554432.0, 6e8, 2e9}) {
    const double total = bytes * static_cast<double>(ColdCopies(bytes));
    EXPECT_GE(total, kColdBytes);
    EXPECT_LT(total - bytes, kColdBytes);
  }
}

TEST(Requirements, OneRowEach) {
  for (int i = 1; i <= static_cast<int>(Requirement::kFork); ++i) {
    const auto requirement = static_cast<Requirement>(i);
    int found = 0;
    for (const RequirementRow& row : kRequirements) found += row.requirement == requirement;
    EXPECT_EQ(found, 1) << i;
    EXPECT_EQ(RowOf(requirement).requirement, requirement);
    const RequirementRow& row = RowOf(requirement);
    // A limit in microseconds stands alone.
    EXPECT_NE(row.least_percent > 0 || row.most_ratio > 0, row.most_microseconds > 0) << row.work;
  }
}

TEST(Requirements, WideVectorsMayFallShorterWhereTheyCount) {
  MachineLimits narrow, wide;
  narrow.fma_lanes = 8;
  wide.fma_lanes = 16;
  EXPECT_EQ(LeastPercent(Requirement::kPrefillLong, false, narrow), 80);
  EXPECT_EQ(LeastPercent(Requirement::kPrefillLong, false, wide), 70);
  EXPECT_EQ(LeastPercent(Requirement::kDecode, true, wide), 90);
  EXPECT_EQ(LeastPercent(Requirement::kWindow, false, wide), 0);
  EXPECT_EQ(LeastPercent(Requirement::kNone, false, narrow), 0);
}

TEST(Requirements, DecodeByGroupTypeAndStorage) {
  const auto of = [](const char* model, DType dtype, bool plain) {
    AttentionShape shape{*FindModelShape(model), 1, 1, 4096, dtype};
    return DecodeRequirement(shape, plain);
  };
  EXPECT_EQ(of("llama-2-7b", DType::kBF16, false), Requirement::kDecode);
  EXPECT_EQ(of("llama-3-8b", DType::kF32, false), Requirement::kDecode);
  EXPECT_EQ(of("llama-3-8b", DType::kF16, false), Requirement::kDecodeBalanced);
  EXPECT_EQ(of("smollm2-135m", DType::kF32, true), Requirement::kDecodePlain);
  EXPECT_EQ(of("gemma-2b", DType::kF32, false), Requirement::kDecodeBalanced);
  EXPECT_EQ(of("gemma-2b", DType::kF32, true), Requirement::kDecodeBalancedPlain);
}

TEST(MemoryBlock, IsAlignedAndRefusesPolitely) {
  MemoryBlock block;
  ASSERT_TRUE(block.Allocate(3 << 20));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block.floats()) % (2 << 20), 0u);
  EXPECT_EQ(block.floats()[(3 << 18) - 1], 0.0f);
  block.floats()[(3 << 18) - 1] = 1.0f;
  EXPECT_FALSE(block.Allocate(int64_t{1} << 60));
  EXPECT_EQ(block.bytes(), 0);
  EXPECT_FALSE(block.Allocate(-1));
  EXPECT_GT(AvailableMemoryBytes(), 0);
}

std::string Parse(std::vector<std::string> arguments) {
  const Result<Options> options = ParseOptions(arguments, 8);
  if (!options.ok()) return options.status().c_str();
  std::string text;
  for (const int threads : options->threads) text += std::to_string(threads) + " ";
  if (options->quick) text += "quick ";
  if (!options->baselines) text += "no-baselines ";
  if (!options->top_priority) text += "no-priority ";
  if (options->help) text += "help ";
  if (options->targets) text += "targets ";
  if (!options->cases_file.empty()) text += "cases=" + options->cases_file + " ";
  if (options->types.size() != 3) {
    for (const DType type : options->types) text += std::string(DTypeName(type)) + " ";
  }
  if (options->storages.size() != 2) text += options->storages.front() + " ";
  text += "|";
  for (const std::string& rest : arguments) text += " " + rest;
  return text;
}

TEST(Options, TakeTheirOwnAndLeaveTheRest) {
  EXPECT_EQ(Parse({}), "8 |");
  EXPECT_EQ(Parse({"--threads", "1,4,2,4"}), "4 2 1 |");
  EXPECT_EQ(Parse({"--threads=3"}), "3 |");
  EXPECT_EQ(Parse({"--quick", "--benchmark_filter=x", "--no-baselines", "--no-priority", "--other"}),
            "8 quick no-baselines no-priority | --benchmark_filter=x --other");
  EXPECT_EQ(Parse({"--help"}), "8 help |");
  EXPECT_EQ(Parse({"--targets", "--cases=a.json", "--types", "bf16,f32", "--storages=plain"}),
            "8 targets cases=a.json bf16 f32 plain |");
}

TEST(Options, RefuseWhatTheyDoNotKnow) {
  for (const auto& [arguments, part] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{{{"--types", "f32,f64"}, "\"f64\""},
                                                                     {{"--types="}, "\"\""},
                                                                     {{"--storages", "paged"}, "\"paged\""},
                                                                     {{"--cases="}, "--cases"},
                                                                     {{"--cases"}, "--cases needs"},
                                                                     {{"--quick", "--targets"}, "give one"}}) {
    EXPECT_NE(Parse(arguments).find(part), std::string::npos) << Parse(arguments);
  }
}

TEST(Options, RefuseWhatIsNoListOfNumbers) {
  for (const char* list : {"", "0", "-1", "1,", ",1", "1,,2", "two", "1 2", "5000", "99999999999999999999"}) {
    const std::string message = Parse({"--threads", list});
    EXPECT_NE(message.find("--threads"), std::string::npos) << list;
    EXPECT_NE(message.find("4096"), std::string::npos) << message;
  }
  EXPECT_EQ(Parse({"--threads"}), "--threads needs a list of numbers");
}

constexpr char kCase[] = R"([
  {"name": "a", "kind": "decode", "b": 2, "sq": 1, "skv": 4096, "hq": 32, "hkv": 8, "d": 128},
  {"kind":"chunk","name":"b-2","b":1,"sq":4,"skv":64,"hq":3,"hkv":3,"d":576,"dv":512}
])";

TEST(CaseFile, ReadsShapes) {
  const Result<std::vector<FileCase>> cases = ParseCases(kCase);
  ASSERT_TRUE(cases.ok()) << cases.status().c_str();
  ASSERT_EQ(cases->size(), 2u);
  const FileCase& a = cases->at(0);
  EXPECT_EQ(a.name + a.kind, "adecode");
  EXPECT_EQ((std::vector<int64_t>{a.b, a.sq, a.skv, a.hq, a.hkv, a.d, a.dv}),
            (std::vector<int64_t>{2, 1, 4096, 32, 8, 128, 128}));
  EXPECT_EQ(cases->at(1).name, "b-2");
  EXPECT_EQ(cases->at(1).dv, 512);
  EXPECT_TRUE(ParseCases(" [ ] ").ok());
}

TEST(CaseFile, RefusesWhatIsNoListOfShapes) {
  const std::string good = R"({"name":"a","kind":"decode","b":1,"sq":1,"skv":4,"hq":4,"hkv":2,"d":8})";
  ASSERT_TRUE(ParseCases("[" + good + "]").ok());
  // Nothing that is cut off anywhere is a list.
  for (size_t length = 0; length <= good.size(); ++length) {
    EXPECT_FALSE(ParseCases("[" + good.substr(0, length)).ok()) << length;
  }
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return "[\n" + text.replace(text.find(from), from.size(), to) + "]";
  };
  for (const auto& [text, part] :
       std::vector<std::pair<std::string, std::string>>{{changed("\"b\":1", "\"b\":0"), "number"},
                                                        {changed("\"b\":1", "\"b\":99999999999999999999"), "number"},
                                                        {changed("\"b\":1", "\"b\":\"1\""), "number"},
                                                        {changed("\"b\":1,", ""), "missing"},
                                                        {changed("\"skv\"", "\"kv\""), "\"kv\""},
                                                        {changed("decode", "other"), "other"},
                                                        {changed("\"hkv\":2", "\"hkv\":3"), "divide"},
                                                        {changed("\"sq\":1", "\"sq\":5"), "sq is more"},
                                                        {changed("\"a\"", "\"a\\\"\""), "escape"},
                                                        {"[" + good + "] x", "follows"},
                                                        {"{}", "'['"}}) {
    const Result<std::vector<FileCase>> cases = ParseCases(text);
    ASSERT_FALSE(cases.ok()) << text;
    EXPECT_NE(std::string(cases.status().c_str()).find(part), std::string::npos) << cases.status().c_str();
  }
  EXPECT_NE(std::string(ParseCases(changed("decode", "x")).status().c_str()).find("line 2"), std::string::npos);
}

}  // namespace
}  // namespace headlane::bench
