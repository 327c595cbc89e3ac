// The tensors of a run against its plan, before anything is read or written.
//
// Separate from the run because it is all a user ever sees of a mistake. Called by PrepareRun only.
#ifndef HEADLANE_SRC_EXEC_CHECK_ARGS_H_
#define HEADLANE_SRC_EXEC_CHECK_ARGS_H_

#include "headlane/attention.h"
#include "headlane/status.h"
#include "plan/plan_impl.h"

namespace headlane::internal {

// Errors: those of RunAttention, but for the workspace. A tensor that the batch does not touch (no query rows; no keys)
// is not looked at.
Status CheckArgs(const PlanImpl& plan, const AttentionArgs& args) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_EXEC_CHECK_ARGS_H_
