// F55: parallel regions inside parallel regions, fewer threads than planned, more threads than work, workspaces shared
// by layers, engines that bring their own threads, and a child after fork(). Same bits everywhere, nothing out of
// bounds, no hang.
//
// ctest runs this program several times, under OMP_THREAD_LIMIT=1, OMP_DYNAMIC=true and other settings.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <thread>
#include <vector>

#include "operator/check.h"
#include "operator/runner.h"
#include "support/guarded_buffer.h"

#if HEADLANE_WITH_OPENMP
#include <omp.h>
#endif
#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define HEADLANE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEADLANE_TSAN 1
#endif
#endif

namespace headlane::testing {
namespace {

// Enough work for several items: decode over many splits, a prompt, and short rows.
std::vector<Sequence> Batch() {
  Random random(55);
  std::vector<Sequence> sequences;
  sequences.push_back(RandomSequence(random, {4, 2, 16, 24}, {}, 1, 5000));
  sequences.push_back(RandomSequence(random, {4, 2, 16, 24}, {}, 150, 150));
  sequences.push_back(RandomSequence(random, {4, 2, 16, 24}, {}, 3, 1200));
  sequences.push_back(RandomSequence(random, {4, 2, 16, 24}, {}, 1, 1));
  return sequences;
}

const std::vector<Output>& Expected() {
  static const std::vector<Output> expected = RunLibrary(Batch());
  return expected;
}

// One planned call whose tensors can be run again and again.
struct Planned {
  explicit Planned(int workers, int64_t num_q_heads = 4, uint64_t seed = 55, int64_t kv_len = 5000) {
    Random random(seed);
    sequence = RandomSequence(random, {num_q_heads, 2, 16, 24}, {}, 2, kv_len);
    SequenceSpec spec;
    spec.q_len = 2;
    spec.kv_len = kv_len;
    PlanOptions options;
    options.num_workers = workers;
    Result<AttentionPlan> made = PlanAttention(SpecOf(sequence.problem), std::vector<SequenceSpec>{spec}, options);
    EXPECT_TRUE(made.ok());
    plan = std::make_unique<AttentionPlan>(std::move(made).value());
    expected = RunLibrary(sequence);
  }

  // Arguments that write to `output`.
  AttentionArgs ArgsFor(Output& output) const {
    const reference::Problem& p = sequence.problem;
    output.out.assign(expected.out.size(), 7.0f);
    output.lse.assign(expected.lse.size(), 7.0f);
    AttentionArgs args;
    args.q = TokensHeadsDim(p.q, p.q_len, p.num_q_heads, p.qk_dim);
    args.k = TokensHeadsDim(p.k, p.kv_len, p.num_kv_heads, p.qk_dim);
    args.v = TokensHeadsDim(p.v, p.kv_len, p.num_kv_heads, p.v_dim);
    args.out = TokensHeadsDim(output.out.data(), p.q_len, p.num_q_heads, p.v_dim);
    args.lse = {output.lse.data(), 0, p.num_q_heads, 1};
    return args;
  }

  ::testing::AssertionResult RunsRight(Executor& executor) const {
    Result<Workspace> workspace = Workspace::Create(*plan);
    if (!workspace.ok()) return ::testing::AssertionFailure() << workspace.status().c_str();
    return RunsRight(executor, *workspace);
  }
  ::testing::AssertionResult RunsRight(Executor& executor, Workspace& workspace) const {
    Output output;
    const AttentionArgs args = ArgsFor(output);
    const Status status = RunAttention(*plan, args, workspace, executor);
    if (!status.ok()) return ::testing::AssertionFailure() << status.c_str();
    return SameOutput(expected, output);
  }

  Sequence sequence;
  std::unique_ptr<AttentionPlan> plan;
  Output expected;
};

TEST(ParallelTest, AnyNumberOfThreadsForAnyPlan) {
  for (int planned : {1, 2, 8, 16}) {
    const Planned call(planned);
    for (int threads : {1, 2, 3, 16}) {
      OpenMPExecutor executor(threads);
      EXPECT_TRUE(call.RunsRight(executor)) << "planned for " << planned << ", run by " << threads;
    }
  }
}

TEST(ParallelTest, MoreThreadsThanItems) {
  const Planned call(16, 2, 1, 3);
  OpenMPExecutor executor(16);
  EXPECT_TRUE(call.RunsRight(executor));
}

TEST(ParallelTest, TheDefaultNumberOfWorkers) {
  OpenMPExecutor executor;
  EXPECT_GE(executor.num_workers(), 1);
  const Planned call(0);
  EXPECT_TRUE(call.RunsRight(executor));
}

// Engines call attention from several threads of their own at the same time.
TEST(ParallelTest, CallsFromSeveralThreadsAtOnce) {
  const Planned call(4);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      OpenMPExecutor executor(2);
      for (int i = 0; i < 5; ++i) wrong += call.RunsRight(executor) ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

#if HEADLANE_WITH_OPENMP
TEST(ParallelTest, InsideAParallelRegion) {
  const Planned call(4);
  const int levels_before = omp_get_max_active_levels();
  for (int levels : {1, 2}) {
    omp_set_max_active_levels(levels);
    std::atomic<int> wrong{0};
#pragma omp parallel num_threads(4)
    {
      OpenMPExecutor executor(3);
      wrong += call.RunsRight(executor) ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0) << levels << " active levels";
    EXPECT_EQ(omp_get_max_active_levels(), levels);
  }
  omp_set_max_active_levels(levels_before);
}

TEST(ParallelTest, SettingsOfOpenMPAreLeftAlone) {
  const Planned call(4);
  const int threads = omp_get_max_threads();
  const int dynamic = omp_get_dynamic();
  OpenMPExecutor executor(3);
  EXPECT_TRUE(call.RunsRight(executor));
  EXPECT_EQ(omp_get_max_threads(), threads);
  EXPECT_EQ(omp_get_dynamic(), dynamic);
}
#endif

// ggml's way: every thread of the engine calls the operator.
TEST(ParallelTest, TheEnginesOwnThreads) {
  for (int num_threads : {1, 2, 3, 7}) {
    const Planned call(3);
    Result<Workspace> workspace = Workspace::Create(*call.plan);
    ASSERT_TRUE(workspace.ok());
    Output output;
    const AttentionArgs args = call.ArgsFor(output);
    std::barrier barrier(num_threads);
    std::vector<std::thread> threads;
    Status prepared;
    for (int t = 0; t < num_threads; ++t) {
      threads.emplace_back([&, t] {
        for (int step = 0; step < 10; ++step) {
          if (t == 0) {
            std::fill(output.out.begin(), output.out.end(), 7.0f);
            prepared = PrepareRun(*call.plan, args, *workspace);
          }
          barrier.arrive_and_wait();
          RunWorker(*call.plan, args, *workspace, t);
          barrier.arrive_and_wait();
          if (t == 0) {
            EXPECT_TRUE(SameOutput(call.expected, output)) << "step " << step;
          }
          barrier.arrive_and_wait();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(prepared.ok()) << prepared.c_str();
  }
}

// Layers with 8, 16, 8, 16 heads take turns on one piece of memory, as large as the largest needs.
TEST(ParallelTest, LayersOfDifferentHeadsShareMemory) {
  const Planned small(4, 8, 1);
  const Planned large(4, 16, 2);
  const size_t bytes = (std::max(small.plan->workspace_bytes(), large.plan->workspace_bytes()) + 63) / 64 * 64;
  const GuardedBuffer memory(bytes);
  OpenMPExecutor executor(2);
  for (const Planned* layer : {&small, &large, &small, &large}) {
    Result<Workspace> workspace = Workspace::Over(*layer->plan, memory.data(), bytes);
    ASSERT_TRUE(workspace.ok()) << workspace.status().c_str();
    EXPECT_TRUE(layer->RunsRight(executor, *workspace));
  }
}

TEST(ParallelTest, WholeBatches) {
  for (int planned : {1, 3, 8}) {
    for (int threads : {2, 5}) {
      OpenMPExecutor executor(threads);
      RunOptions options;
      options.executor = &executor;
      options.plan_workers = planned;
      for (bool cache : {false, true}) {
        options.cache = cache;
        const std::vector<Output> outputs = RunLibrary(Batch(), options);
        for (size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(SameOutput(Expected()[i], outputs[i])) << i;
      }
    }
  }
}

#if defined(__unix__) && !defined(HEADLANE_TSAN)
// OpenMP runtimes can hang in a child whose parent has had a parallel region.
TEST(ParallelTest, AChildAfterFork) {
  const Planned call(4);
  OpenMPExecutor executor(4);
  ASSERT_TRUE(call.RunsRight(executor));  // the parent has had its region
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    _exit(call.RunsRight(executor) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "the child hung or crashed";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the child got other bits";
  EXPECT_TRUE(call.RunsRight(executor)) << "the parent afterwards";
}
#endif

}  // namespace
}  // namespace headlane::testing
