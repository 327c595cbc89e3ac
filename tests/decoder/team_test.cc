// A team in one region: every loop is done once and completely, by however many workers come, whenever they come.
#include "decoder/team.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "headlane/executor.h"

namespace headlane::internal {
namespace {

// Sums of rows, loop by loop, each on what the loop before has written: a loop that is left early, done twice, or not
// seen by the next one changes the result.
int64_t ChainOfLoops(Executor& executor, int num_loops, int64_t num_items) {
  struct Loop {
    std::atomic<int64_t> next;
    const std::vector<int64_t>* from;
    std::vector<int64_t>* to;
  };
  std::vector<int64_t> a(static_cast<size_t>(num_items), 1), b = a;
  for (int i = 0; i < num_loops; ++i) {
    Loop loop{{0}, &a, &b};
    executor.Run(
        executor.num_workers(),
        [](void* context, int) noexcept {
          Loop& l = *static_cast<Loop*>(context);
          const int64_t n = static_cast<int64_t>(l.to->size());
          for (int64_t item = l.next.fetch_add(1); item < n; item = l.next.fetch_add(1)) {
            const auto at = static_cast<size_t>(item);
            (*l.to)[at] = (3 * (*l.from)[at] + (*l.from)[static_cast<size_t>((item + 1) % n)] + item) % 1000003;
          }
        },
        &loop);
    std::swap(a, b);
  }
  int64_t sum = 0;
  for (const int64_t value : a) sum += value;
  return sum;
}

int64_t ChainInTeam(Executor& executor, int num_loops, int64_t num_items) {
  int64_t sum = -1;
  Team::Lead(executor, [&](Team& team) { sum = ChainOfLoops(team, num_loops, num_items); });
  return sum;
}

// Pools of callers.
void OneAfterTheOther(void*, int n, Executor::Task task, void* context) {
  for (int i = 0; i < n; ++i) task(context, i);
}
void OnlyTheLast(void*, int n, Executor::Task task, void* context) { task(context, n - 1); }
void OnThreads(void* late, int n, Executor::Task task, void* context) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) {
    threads.emplace_back([=] {
      if (late != nullptr && i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(i));
      task(context, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Team, EveryLoopIsDoneOnceWhoeverComes) {
  const int64_t expected = ChainOfLoops(SerialExecutor(), 2000, 37);
  EXPECT_EQ(ChainInTeam(SerialExecutor(), 2000, 37), expected);
  int late = 0;
  for (int workers = 1; workers <= 5; ++workers) {
    OpenMPExecutor openmp(workers);
    EXPECT_EQ(ChainInTeam(openmp, 2000, 37), expected) << workers;
    CallbackExecutor serial(nullptr, workers, &OneAfterTheOther);
    EXPECT_EQ(ChainInTeam(serial, 2000, 37), expected) << workers;
    CallbackExecutor last(nullptr, workers, &OnlyTheLast);
    EXPECT_EQ(ChainInTeam(last, 2000, 37), expected) << workers;
    CallbackExecutor threads(nullptr, workers, &OnThreads);
    EXPECT_EQ(ChainInTeam(threads, 2000, 37), expected) << workers;
    CallbackExecutor slow(&late, workers, &OnThreads);
    EXPECT_EQ(ChainInTeam(slow, 2000, 37), expected) << workers;
  }
}

// Without helpers the test above would prove nothing.
TEST(Team, HelpersHelp) {
  CallbackExecutor threads(nullptr, 3, &OnThreads);
  std::atomic<int> seen{0};
  Team::Lead(threads, [&](Team& team) {
    EXPECT_EQ(team.num_workers(), 3);
    // Nobody leaves before all three are there.
    team.Run(
        3,
        [](void* context, int) noexcept {
          std::atomic<int>& n = *static_cast<std::atomic<int>*>(context);
          n.fetch_add(1);
          while (n.load() < 3) std::this_thread::yield();
        },
        &seen);
  });
  EXPECT_EQ(seen.load(), 3);
}

TEST(Team, OneWorkerIsTheLeader) {
  CallbackExecutor threads(nullptr, 3, &OnThreads);
  Team::Lead(threads, [&](Team& team) {
    const std::thread::id leader = std::this_thread::get_id();
    for (int i = 0; i < 200; ++i) {
      std::thread::id worker;
      team.Run(
          1, [](void* id, int) noexcept { *static_cast<std::thread::id*>(id) = std::this_thread::get_id(); }, &worker);
      EXPECT_EQ(worker, leader);
    }
  });
}

TEST(Team, WithinAnotherRegion) {
  const int64_t expected = ChainOfLoops(SerialExecutor(), 300, 11);
  OpenMPExecutor outer(2);
  std::atomic<int> num_right{0};
  struct Context {
    std::atomic<int>* num_right;
    int64_t expected;
  } context{&num_right, expected};
  outer.Run(
      2,
      [](void* opaque, int) noexcept {
        const Context& c = *static_cast<Context*>(opaque);
        OpenMPExecutor inner(2);
        if (ChainInTeam(inner, 300, 11) == c.expected) c.num_right->fetch_add(1);
      },
      &context);
  EXPECT_GE(num_right.load(), 1);
  EXPECT_LE(num_right.load(), 2);
}

TEST(Team, InAChildAfterFork) {
  OpenMPExecutor executor(2);
  const int64_t expected = ChainInTeam(executor, 100, 11);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(ChainInTeam(executor, 100, 11) == expected ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace headlane::internal
