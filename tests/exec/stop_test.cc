// A run that its caller stops: a typed status, rows that are complete or NaN, and a workspace that can be used again.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "exec/naive_attention.h"
#include "headlane/attention.h"

namespace headlane {
namespace {

using testing::MakeBatch;
using testing::Outputs;
using testing::TestBatch;

TestBatch Batch(int64_t q_len, int64_t kv_len) {
  AttentionSpec spec;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.qk_dim = 16;
  spec.v_dim = 12;
  return MakeBatch(spec, {{q_len, kv_len}, {2, 30}}, 3);
}

// Says stop from its n-th call on.
struct StopAfter {
  explicit StopAfter(int64_t n) : left(n) {}
  std::atomic<int64_t> left;
  static bool Ask(void* context) noexcept { return static_cast<StopAfter*>(context)->left.fetch_sub(1) <= 0; }
};

Outputs Attend(const TestBatch& batch, Executor& executor, StopAfter* stop, Status* status, Workspace* workspace,
               const AttentionPlan& plan) {
  Outputs outputs(batch);
  AttentionArgs args = batch.PlainArgs(outputs.out.data(), outputs.lse.data());
  if (stop != nullptr) {
    args.should_stop = &StopAfter::Ask;
    args.stop_context = stop;
  }
  *status = RunAttention(plan, args, *workspace, executor);
  return outputs;
}

TEST(Stop, EveryRowIsCompleteOrNaN) {
  OpenMPExecutor two(2);
  for (const auto& [q_len, kv_len] : {std::pair<int64_t, int64_t>{200, 300}, {1, 9000}, {3, 5000}}) {
    const TestBatch batch = Batch(q_len, kv_len);
    PlanOptions options;
    options.num_workers = 4;
    auto plan = PlanAttention(batch.spec, batch.sequences, options);
    ASSERT_TRUE(plan.ok());
    auto workspace = Workspace::Create(*plan);
    ASSERT_TRUE(workspace.ok());
    Status status;
    const Outputs whole = Attend(batch, SerialExecutor(), nullptr, &status, &*workspace, *plan);
    ASSERT_TRUE(status.ok());
    int64_t num_cancelled = 0, num_partly = 0;
    for (int64_t after = 0; after < 60; ++after) {
      StopAfter stop(after);
      Executor& executor = after % 2 == 0 ? static_cast<Executor&>(two) : SerialExecutor();
      const Outputs stopped = Attend(batch, executor, &stop, &status, &*workspace, *plan);
      if (status.ok()) {
        EXPECT_TRUE(stopped.SameBits(whole));
        continue;
      }
      ++num_cancelled;
      EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.c_str();
      const size_t v_dim = static_cast<size_t>(batch.spec.v_dim);
      size_t num_nan = 0;
      for (size_t row = 0; row < batch.LseSize(); ++row) {
        const bool nan = std::isnan(stopped.lse[row]);
        num_nan += nan;
        EXPECT_FALSE(Outputs::IsUnwritten(stopped.lse[row]));
        for (size_t i = row * v_dim; i < (row + 1) * v_dim; ++i) {
          EXPECT_FALSE(Outputs::IsUnwritten(stopped.out[i]));
          EXPECT_EQ(std::isnan(stopped.out[i]), nan);
          EXPECT_TRUE(nan || stopped.out[i] == whole.out[i]);
        }
      }
      EXPECT_GT(num_nan, 0u);
      num_partly += num_nan < batch.LseSize();
    }
    EXPECT_GT(num_cancelled, 0);
    EXPECT_GT(num_partly, 0);
    // The workspace is as good as before.
    EXPECT_TRUE(Attend(batch, two, nullptr, &status, &*workspace, *plan).SameBits(whole));
    EXPECT_TRUE(status.ok());
  }
}

TEST(Stop, StatesBecomeNaNToo) {
  const TestBatch batch = Batch(5, 40);
  auto plan = PlanAttention(batch.spec, batch.sequences);
  ASSERT_TRUE(plan.ok());
  auto workspace = Workspace::Create(*plan);
  ASSERT_TRUE(workspace.ok());
  const int64_t rows = batch.q_tokens * 4;
  std::vector<float> m(static_cast<size_t>(rows), 1.0f), l(m), o(static_cast<size_t>(rows * 12), 1.0f);
  Outputs outputs(batch);
  AttentionArgs args = batch.PlainArgs(outputs.out.data(), outputs.lse.data());
  args.state.m = {m.data(), 0, 4, 1};
  args.state.l = {l.data(), 0, 4, 1};
  args.state.o = TokensHeadsDim(o.data(), batch.q_tokens, 4, 12);
  StopAfter stop(0);
  args.should_stop = &StopAfter::Ask;
  args.stop_context = &stop;
  EXPECT_EQ(RunAttention(*plan, args, *workspace, SerialExecutor()).code(), StatusCode::kCancelled);
  for (const std::vector<float>* values : {&m, &l, &o}) {
    for (const float x : *values) EXPECT_TRUE(std::isnan(x));
  }
}

TEST(Stop, ThreadsThatCallRunWorkerAskFinishRun) {
  const TestBatch batch = Batch(100, 400);
  auto plan = PlanAttention(batch.spec, batch.sequences, {.num_workers = 3});
  ASSERT_TRUE(plan.ok());
  auto workspace = Workspace::Create(*plan);
  ASSERT_TRUE(workspace.ok());
  Outputs outputs(batch);
  AttentionArgs args = batch.PlainArgs(outputs.out.data(), outputs.lse.data());
  for (const int64_t after : {int64_t{0}, int64_t{1} << 40}) {
    StopAfter stop(after);
    args.should_stop = &StopAfter::Ask;
    args.stop_context = &stop;
    ASSERT_TRUE(PrepareRun(*plan, args, *workspace).ok());
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&, i] { RunWorker(*plan, args, *workspace, i); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(FinishRun(*plan, *workspace).code(), after == 0 ? StatusCode::kCancelled : StatusCode::kOk);
  }
}

}  // namespace
}  // namespace headlane
