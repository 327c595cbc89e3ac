// What a plan says of itself in numbers.
//
// Separate from planning because a decoder updates its plan at every step and asks for this once, if ever. Called by
// plan.cc and explain.cc.
#ifndef HEADLANE_SRC_PLAN_SUMMARY_H_
#define HEADLANE_SRC_PLAN_SUMMARY_H_

#include <cstdint>
#include <string>

#include "headlane/attention.h"
#include "plan/plan_impl.h"

namespace headlane::internal {

// Tiles that a row block visits in each of its heads: those that some row sees a key of, decided per sub-block as
// execution does.
struct Visits {
  int64_t tiles = 0;      // once per block
  int64_t row_tiles = 0;  // once per row of a sub-block that visits them
};
Visits VisitsOf(const SequenceRows& rows, const RowBlock& block) noexcept;

PlanSummary Summarize(const PlanImpl& plan) noexcept;

// See AttentionPlan::Explain. Allocates.
std::string Explain(const PlanImpl& plan, const MachinePeaks& peaks);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_PLAN_SUMMARY_H_
