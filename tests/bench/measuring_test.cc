// Limits, work, statistics and arguments of the benchmarks. No figure depends on how fast the machine is.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "bench/limits.h"
#include "bench/memory_block.h"
#include "bench/options.h"
#include "bench/roofline.h"
#include "bench/statistics.h"
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
    const AttentionShape shape{model, 3, q_len, kv_len};
    const Work work = AttentionWork(shape);
    EXPECT_EQ(work.flops, CountPairs(shape) * 2 * (24 + 40) * 6 * 3);
    EXPECT_EQ(work.bytes, 3.0 * static_cast<double>(kv_len) * 2 * (24 + 40) * 4);
    EXPECT_EQ(AttentionWork(shape, 2).bytes, work.bytes / 2);
    EXPECT_EQ(AttentionWork(shape, 2).flops, work.flops);
  }
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
}

TEST(Work, CopiesAddUpToColdMemory) {
  for (const double bytes : {1e3, 33554432.0, 6e8, 2e9}) {
    const double total = bytes * static_cast<double>(ColdCopies(bytes));
    EXPECT_GE(total, kColdBytes);
    EXPECT_LT(total - bytes, kColdBytes);
  }
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
  text += "|";
  for (const std::string& rest : arguments) text += " " + rest;
  return text;
}

TEST(Options, TakeTheirOwnAndLeaveTheRest) {
  EXPECT_EQ(Parse({}), "8 1 |");
  EXPECT_EQ(Parse({"--threads", "1,4,2,4"}), "4 2 1 |");
  EXPECT_EQ(Parse({"--threads=3"}), "3 |");
  EXPECT_EQ(Parse({"--quick", "--benchmark_filter=x", "--no-baselines", "--no-priority", "--other"}),
            "8 1 quick no-baselines no-priority | --benchmark_filter=x --other");
  EXPECT_EQ(Parse({"--help"}), "8 1 help |");
}

TEST(Options, RefuseWhatIsNoListOfNumbers) {
  for (const char* list : {"", "0", "-1", "1,", ",1", "1,,2", "two", "1 2", "5000", "99999999999999999999"}) {
    const std::string message = Parse({"--threads", list});
    EXPECT_NE(message.find("--threads"), std::string::npos) << list;
    EXPECT_NE(message.find("4096"), std::string::npos) << message;
  }
  EXPECT_EQ(Parse({"--threads"}), "--threads needs a list of numbers");
}

}  // namespace
}  // namespace headlane::bench
