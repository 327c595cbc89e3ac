// A session's pass is one region of whatever executor it has: the same bits from all of them, in a child after fork(),
// within another region, and with an observer, which is called on the session's thread.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "headlane/decoder.h"
#include "headlane/executor.h"

namespace headlane::testing {
namespace {

constexpr int32_t kIds[] = {5, 200, 31, 7, 7, 90, 411, 2, 64, 100, 3, 8};

class SessionExecutor : public ::testing::Test {
 public:
  void SetUp() override {
    Result<Model> model = Model::Synthetic("tiny", 5);
    ASSERT_TRUE(model.ok() && model->LoadWeights().ok());
    model_.emplace(std::move(model).value());
    expected_ = Logits(&SerialExecutor());
    ASSERT_FALSE(expected_.empty());
  }

  // Of a prompt in two chunks and three steps behind it.
  std::vector<float> Logits(Executor* executor, const LayerObserver& observer = nullptr) const {
    SessionOptions options;
    options.executor = executor;
    options.chunk = 6;
    options.max_context = 64;
    Result<Session> session = Session::Create(*model_, options);
    if (!session.ok()) return {};
    session->Observe(observer);
    if (!session->Prefill(std::span(kIds).first(9)).ok()) return {};
    for (size_t i = 9; i < std::size(kIds); ++i) {
      if (!session->Step(kIds[i]).ok()) return {};
    }
    return {session->logits().begin(), session->logits().end()};
  }
  bool IsExpected(const std::vector<float>& logits) const {
    return logits.size() == expected_.size() &&
           std::memcmp(logits.data(), expected_.data(), logits.size() * sizeof(float)) == 0;
  }

  std::optional<Model> model_;
  std::vector<float> expected_;
};

void OneAfterTheOther(void*, int n, Executor::Task task, void* context) {
  for (int i = 0; i < n; ++i) task(context, i);
}
void OnlyTheLast(void*, int n, Executor::Task task, void* context) { task(context, n - 1); }
// None of them the session's own.
void OnThreads(void*, int n, Executor::Task task, void* context) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back([=] { task(context, i); });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SessionExecutor, EveryOneGivesTheSameBits) {
  for (int workers = 1; workers <= 4; ++workers) {
    OpenMPExecutor openmp(workers);
    EXPECT_TRUE(IsExpected(Logits(&openmp))) << workers;
    CallbackExecutor serial(nullptr, workers, &OneAfterTheOther);
    EXPECT_TRUE(IsExpected(Logits(&serial))) << workers;
    CallbackExecutor last(nullptr, workers, &OnlyTheLast);
    EXPECT_TRUE(IsExpected(Logits(&last))) << workers;
    CallbackExecutor threads(nullptr, workers, &OnThreads);
    EXPECT_TRUE(IsExpected(Logits(&threads))) << workers;
  }
}

TEST_F(SessionExecutor, InAChildAfterFork) {
  OpenMPExecutor executor(2);
  ASSERT_TRUE(IsExpected(Logits(&executor)));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(IsExpected(Logits(&executor)) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(SessionExecutor, SeveralSessionsAtOnceWithinARegion) {
  struct Context {
    const SessionExecutor* test;
    std::atomic<int> right{0}, wrong{0};
  };
  Context context{this};
  OpenMPExecutor outer(2);
  outer.Run(
      2,
      [](void* opaque, int) noexcept {
        Context& c = *static_cast<Context*>(opaque);
        OpenMPExecutor inner(2);
        (c.test->IsExpected(c.test->Logits(&inner)) ? c.right : c.wrong).fetch_add(1);
      },
      &context);
  EXPECT_GE(context.right.load(), 1);
  EXPECT_EQ(context.wrong.load(), 0);
}

TEST_F(SessionExecutor, AnObserverIsCalledOnTheSessionsThread) {
  CallbackExecutor threads(nullptr, 3, &OnThreads);
  const std::thread::id here = std::this_thread::get_id();
  int64_t calls = 0, elsewhere = 0, tokens = 0;
  const std::vector<float> logits = Logits(&threads, [&](const LayerRows& rows) {
    ++calls;
    tokens += static_cast<int64_t>(rows.positions.size());
    if (std::this_thread::get_id() != here) ++elsewhere;
  });
  EXPECT_TRUE(IsExpected(logits));
  EXPECT_EQ(calls, model_->info().num_layers * 5);  // two chunks, three steps
  EXPECT_EQ(tokens, model_->info().num_layers * static_cast<int64_t>(std::size(kIds)));
  EXPECT_EQ(elsewhere, 0);
}

}  // namespace
}  // namespace headlane::testing
