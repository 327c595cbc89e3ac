// Nothing is allocated between plan and result, nor by moving a plan to the next step, on any thread; and planning
// reports what it can't get.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "exec/naive_attention.h"
#include "kv/allocation_hooks.h"
#include "support/random.h"

namespace headlane {
namespace {

using internal::CanFailAllocations;
using internal::FailAllocation;
using internal::NumAllocations;
using internal::NumLiveAllocations;
using testing::CachedBatch;
using testing::MakeBatch;
using testing::Outputs;
using testing::TestBatch;

TestBatch Batch() {
  AttentionSpec spec;
  spec.num_q_heads = 6;
  spec.num_kv_heads = 2;
  spec.qk_dim = 24;
  spec.v_dim = 40;
  return MakeBatch(spec, {{1, 4000}, {60, 90}, {0, 3}, {3, 0}}, 4);
}

TEST(Allocation, NoneInRunsAndUpdates) {
  const TestBatch batch = Batch();
  const CachedBatch cached(batch, 32);
  PlanOptions options;
  options.num_workers = 3;
  options.max_sequences = 6;
  options.max_q_tokens = 200;
  options.max_kv_len = 8000;
  auto plain = PlanAttention(batch.spec, batch.sequences, options);
  auto from_cache = PlanAttention(batch.spec, *cached.cache, cached.sequences, options);
  ASSERT_TRUE(plain.ok() && from_cache.ok());
  auto workspace = Workspace::Create(plain->workspace_bytes() > from_cache->workspace_bytes() ? *plain : *from_cache);
  ASSERT_TRUE(workspace.ok());
  Outputs outputs(batch);
  const AttentionArgs plain_args = batch.PlainArgs(outputs.out.data(), outputs.lse.data());
  const AttentionArgs cache_args = cached.Args(batch, outputs.out.data(), outputs.lse.data());
  OpenMPExecutor openmp(3);
  // The runtime's threads, once.
  ASSERT_TRUE(RunAttention(*plain, plain_args, *workspace, openmp).ok());

  // Sequences of one token and of many, in another order, and none.
  std::vector<SequenceSpec> reversed(cached.sequences.rbegin(), cached.sequences.rend());
  const std::vector<SequenceSpec> one = {cached.sequences[0]};
  bool all_ok = true;
  const int64_t before = NumAllocations();
  for (int step = 0; step < 3; ++step) {
    all_ok = all_ok && plain->Update(reversed).ok() && from_cache->Update(*cached.cache, reversed).ok();
    all_ok = all_ok && plain->Update(one).ok() && from_cache->Update(*cached.cache, one).ok();
    all_ok = all_ok && plain->Update(cached.sequences).ok() && from_cache->Update(*cached.cache, cached.sequences).ok();
    for (Executor* executor : {&SerialExecutor(), static_cast<Executor*>(&openmp)}) {
      all_ok = all_ok && RunAttention(*plain, plain_args, *workspace, *executor).ok();
      all_ok = all_ok && RunAttention(*from_cache, cache_args, *workspace, *executor).ok();
    }
    // Errors come without memory too.
    AttentionArgs bad = plain_args;
    bad.q.dim = 1;
    all_ok = all_ok && !RunAttention(*plain, bad, *workspace, SerialExecutor()).ok();
  }
  EXPECT_EQ(NumAllocations() - before, 0);
  EXPECT_TRUE(all_ok);
  testing::ExpectNear(batch, outputs);
}

TEST(Allocation, EveryOneThatFailsIsReportedAndNothingLeaks) {
  if (!CanFailAllocations()) GTEST_SKIP() << "the heap belongs to a sanitizer";
  const TestBatch batch = Batch();
  const CachedBatch cached(batch, 32);
  PlanOptions options;
  options.num_workers = 3;
  for (const bool use_cache : {false, true}) {
    int num_failed = 0;
    for (int64_t n = 1; n < 100; ++n) {
      const int64_t live = NumLiveAllocations();
      bool done = false;
      {
        FailAllocation(n);
        auto plan = use_cache ? PlanAttention(batch.spec, *cached.cache, cached.sequences, options)
                              : PlanAttention(batch.spec, batch.sequences, options);
        if (plan.ok()) {
          auto workspace = Workspace::Create(*plan);
          FailAllocation(0);
          done = workspace.ok();
          if (!done) {
            EXPECT_EQ(workspace.status().code(), StatusCode::kResourceExhausted) << workspace.status().c_str();
          }
        } else {
          FailAllocation(0);
          EXPECT_EQ(plan.status().code(), StatusCode::kResourceExhausted) << plan.status().c_str();
        }
      }
      EXPECT_EQ(NumLiveAllocations(), live) << n;
      if (done) break;
      ++num_failed;
    }
    EXPECT_GE(num_failed, 5);
    EXPECT_LT(num_failed, 99);
  }
}

}  // namespace
}  // namespace headlane
