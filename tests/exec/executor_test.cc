// Executors: work is done once and completely, wherever they are called from and however few workers they get.
#include "headlane/executor.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "exec/default_workers.h"
#include "exec/naive_attention.h"
#include "exec/parallel_for.h"

#if HEADLANE_WITH_OPENMP
#include <omp.h>
#endif

namespace headlane {
namespace {

using internal::ParallelFor;
using testing::MakeBatch;
using testing::Outputs;
using testing::TestBatch;

// Whether a loop of `n` over the executor covers every index once.
bool CoversAll(Executor& executor, int64_t n, int64_t grain) {
  std::vector<std::atomic<int>> count(static_cast<size_t>(n));
  ParallelFor(executor, n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) count[static_cast<size_t>(i)].fetch_add(1);
  });
  for (const std::atomic<int>& c : count) {
    if (c.load() != 1) return false;
  }
  return true;
}

AttentionSpec SmallSpec() {
  AttentionSpec spec;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.qk_dim = 32;
  spec.v_dim = 32;
  return spec;
}

// Attention by `executor` of a batch with a decode that is cut, a prefill and an empty sequence.
const TestBatch& SmallBatch() {
  static const TestBatch batch = MakeBatch(SmallSpec(), {{1, 5000}, {40, 60}, {0, 0}}, 1);
  return batch;
}
Outputs AttendWith(Executor& executor) {
  const TestBatch& batch = SmallBatch();
  Outputs outputs(batch);
  const Status status =
      Attention(batch.spec, batch.sequences, batch.PlainArgs(outputs.out.data(), outputs.lse.data()), executor);
  EXPECT_TRUE(status.ok()) << status.c_str();
  return outputs;
}

void FewerAndBackwards(void* pool, int num_workers, Executor::Task task, void* context) {
  const int most = *static_cast<int*>(pool);
  for (int i = std::min(most, num_workers); i > 0; --i) task(context, num_workers - i);
}

TEST(ParallelFor, CoversEveryIndexOnce) {
  OpenMPExecutor two(2), seven(7);
  int one = 1;
  CallbackExecutor callback(&one, 5, &FewerAndBackwards);
  for (Executor* executor : {static_cast<Executor*>(&two), static_cast<Executor*>(&seven), &SerialExecutor(),
                             static_cast<Executor*>(&callback)}) {
    EXPECT_GE(executor->num_workers(), 1);
    for (const int64_t n : {0, 1, 2, 7, 100, 1000}) {
      for (const int64_t grain : {int64_t{1}, int64_t{3}, int64_t{1000}, int64_t{1} << 62}) {
        EXPECT_TRUE(CoversAll(*executor, n, grain)) << n << " by " << grain;
      }
    }
  }
}

TEST(ParallelFor, RangesAreConsecutivePiecesOfTheGrain) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  ParallelFor(SerialExecutor(), 10, 4, [&](int64_t begin, int64_t end, int worker) {
    EXPECT_EQ(worker, 0);
    ranges.emplace_back(begin, end);
  });
  EXPECT_EQ(ranges, (std::vector<std::pair<int64_t, int64_t>>{{0, 4}, {4, 8}, {8, 10}}));
}

TEST(Executor, ACallbackMayGiveFewerWorkersThanAsked) {
  const Outputs expected = AttendWith(SerialExecutor());
  for (int most : {1, 2, 3}) {
    CallbackExecutor executor(&most, 8, &FewerAndBackwards);
    EXPECT_EQ(executor.num_workers(), 8);
    EXPECT_TRUE(expected.SameBits(AttendWith(executor))) << most;
  }
  EXPECT_EQ(CallbackExecutor(nullptr, -3, &FewerAndBackwards).num_workers(), 1);
}

TEST(OpenMPExecutor, AsksForNoMoreThanItWasMadeFor) {
  EXPECT_EQ(OpenMPExecutor(3).num_workers(), 3);
  EXPECT_GE(OpenMPExecutor().num_workers(), 1);
  EXPECT_EQ(OpenMPExecutor().num_workers(), internal::DefaultNumWorkers());
  OpenMPExecutor two(2);
  std::atomic<int> most{0}, calls{0};
  struct Context {
    std::atomic<int>&most, &calls;
  } context{most, calls};
  two.Run(
      100,
      [](void* c, int worker) noexcept {
        Context& x = *static_cast<Context*>(c);
        x.calls.fetch_add(1);
        for (int seen = x.most.load(); worker > seen && !x.most.compare_exchange_weak(seen, worker);) {
        }
      },
      &context);
  EXPECT_LE(most, 1);
  EXPECT_GE(calls, 1);
  EXPECT_LE(calls, 2);
}

TEST(OpenMPExecutor, SameBitsForAnyNumberOfThreads) {
  const Outputs expected = AttendWith(SerialExecutor());
  for (const int threads : {1, 2, 3, 7, 16}) {
    OpenMPExecutor executor(threads);
    EXPECT_TRUE(expected.SameBits(AttendWith(executor))) << threads;
  }
}

#if HEADLANE_WITH_OPENMP

// How deep regions are nested. ThreadSanitizer's OpenMP tool now and then calls it a race when memory is used again
// after a team inside a team, which had it, was joined.
#if !defined(__has_feature)
#define __has_feature(name) 0
#endif
constexpr int kMostLevels = __has_feature(thread_sanitizer) ? 1 : 2;

TEST(OpenMPExecutor, RunsInsideParallelRegionsAndLeavesSettingsAlone) {
  EXPECT_TRUE(OpenMPExecutor::HasOpenMP());
  const Outputs expected = AttendWith(SerialExecutor());
  const int max_levels = omp_get_max_active_levels();
  for (int levels = 1; levels <= kMostLevels; ++levels) {
    omp_set_max_active_levels(levels);
    const int threads = omp_get_max_threads(), dynamic = omp_get_dynamic();
    std::atomic<int> num_right{0}, num_calls{0};
#pragma omp parallel num_threads(4)
    {
      OpenMPExecutor executor(3);
      for (int i = 0; i < 3; ++i) {
        num_calls += 1;
        num_right += expected.SameBits(AttendWith(executor));
      }
    }
    EXPECT_EQ(num_right, num_calls) << levels;
    EXPECT_EQ(omp_get_max_threads(), threads);
    EXPECT_EQ(omp_get_dynamic(), dynamic);
    EXPECT_EQ(omp_get_max_active_levels(), levels);
  }
  omp_set_max_active_levels(max_levels);
}

#endif

TEST(OpenMPExecutor, RunsInAChildOfFork) {
  OpenMPExecutor executor(4);
  const Outputs expected = AttendWith(executor);  // the runtime has its threads now
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a hang ends here
    const bool same = expected.SameBits(AttendWith(executor)) && CoversAll(executor, 100, 1);
    _exit(same ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(expected.SameBits(AttendWith(executor))) << "the parent goes on";
}

// What the test below starts itself again for.
TEST(OpenMPExecutor, AttendsUnderTheSettingsOfTheEnvironment) {
  const Outputs expected = AttendWith(SerialExecutor());
  OpenMPExecutor executor(8), by_default;
  EXPECT_TRUE(expected.SameBits(AttendWith(executor)));
  EXPECT_TRUE(expected.SameBits(AttendWith(by_default)));
  if (const char* wanted = std::getenv("HEADLANE_TEST_THREADS")) {
    EXPECT_EQ(by_default.num_workers(), std::atoi(wanted));
  }
}

TEST(OpenMPExecutor, ObeysLimitsFromTheEnvironment) {
  const struct {
    const char* name;
    const char* value;
    const char* threads;
  } settings[] = {{"OMP_THREAD_LIMIT", "1", "1"}, {"OMP_NUM_THREADS", "3", "3"}, {"OMP_DYNAMIC", "true", nullptr}};
  for (const auto& setting : settings) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      setenv(setting.name, setting.value, 1);
      if (setting.threads != nullptr && OpenMPExecutor::HasOpenMP())
        setenv("HEADLANE_TEST_THREADS", setting.threads, 1);
      execl("/proc/self/exe", "executor_test", "--gtest_brief=1",
            "--gtest_filter=OpenMPExecutor.AttendsUnderTheSettingsOfTheEnvironment", nullptr);
      _exit(127);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << setting.name << " status " << status;
  }
}

TEST(OpenMPExecutor, SeveralThreadsAtOnce) {
  const Outputs expected = AttendWith(SerialExecutor());
  std::atomic<int> num_right{0};
  OpenMPExecutor shared(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int run = 0; run < 3; ++run) num_right += expected.SameBits(AttendWith(shared));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, 12);
}

TEST(CpuQuota, ReadsWhatControlGroupsWrite) {
  EXPECT_EQ(internal::ParseCpuMax("max 100000\n"), 0);
  EXPECT_EQ(internal::ParseCpuMax("200000 100000\n"), 2);
  EXPECT_EQ(internal::ParseCpuMax("150000 100000\n"), 2);
  EXPECT_EQ(internal::ParseCpuMax("1000 100000\n"), 1);
  EXPECT_EQ(internal::ParseCpuMax("9223372036854775807 1\n"), 0);
  EXPECT_EQ(internal::ParseCpuMax("100000 0\n"), 0);
  EXPECT_EQ(internal::ParseCpuMax("-1 100000\n"), 0);
  EXPECT_EQ(internal::ParseCpuMax("100000"), 0);
  EXPECT_EQ(internal::ParseCpuMax(""), 0);
  EXPECT_GE(internal::CpuQuota(), 0);
}

}  // namespace
}  // namespace headlane
