// Moving a plan to another batch within its capacity allocates nothing, whatever the batch and its masks are.
#include <gtest/gtest.h>

#include <vector>

#include "kv/allocation_hooks.h"
#include "plan/batch.h"

namespace headlane::internal {
namespace {

TEST(Update, AllocatesNothing) {
  Random random(21);
  for (int trial = 0; trial < 100; ++trial) {
    const Case first = RandomCase(random);
    SCOPED_TRACE(Describe(first));
    PlanOptions options;
    options.num_workers = first.num_workers;
    options.max_sequences = 8;
    options.max_q_tokens = 700;
    options.max_kv_len = 70000;
    // Made for next to nothing, updated to anything.
    const std::vector<SequenceSpec> none;
    auto plan =
        PlanAttention(first.spec, random.OneIn(2) ? none : std::vector<SequenceSpec>{Sequence(0, 1, 1)}, options);
    ASSERT_TRUE(plan.ok()) << plan.status().c_str();
    const size_t workspace_bytes = plan->workspace_bytes();
    for (int step = 0; step < 10; ++step) {
      Case next = first;
      next.sequences.clear();
      int64_t tokens_left = 700;
      for (int64_t i = random.Int(0, 8); i > 0; --i) {
        next.sequences.push_back(RandomSequence(random, i, tokens_left, &next));
        tokens_left -= next.sequences.back().q_len;
      }
      const int64_t before = NumAllocations();
      const bool ok = plan->Update(next.sequences).ok();
      const PlanSummary summary = plan->summary();
      const int64_t after = NumAllocations();
      ASSERT_TRUE(ok) << Describe(next);
      ASSERT_EQ(after, before) << Describe(next);
      ASSERT_EQ(summary.workspace_bytes, workspace_bytes);
    }
  }
}

// A plan whose memory can't be had is refused, and an explanation, too.
TEST(Plan, ReportsMemoryItCannotGet) {
  if (!CanFailAllocations()) GTEST_SKIP() << "the heap belongs to a sanitizer";
  const AttentionSpec spec = MakeSpec(8, 2, 64, 64);
  const std::vector<SequenceSpec> sequences = {Sequence(0, 3, 5000), Sequence(1, 200, 300)};
  PlanOptions options;
  options.num_workers = 4;
  bool planned = false;
  for (int64_t n = 1; n < 100 && !planned; ++n) {
    FailAllocation(n);
    auto plan = PlanAttention(spec, sequences, options);
    FailAllocation(0);
    planned = plan.ok();
    if (!planned) {
      EXPECT_EQ(plan.status().code(), StatusCode::kResourceExhausted);
    }
  }
  ASSERT_TRUE(planned);
  auto plan = PlanAttention(spec, sequences, options);
  ASSERT_TRUE(plan.ok());
  FailAllocation(1);
  const auto text = plan->Explain();
  FailAllocation(0);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace headlane::internal
