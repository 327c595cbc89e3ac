// One item of work: the rows of a block x a range of splits, from queries to states or outputs.
//
// Separate from attention.cc, which knows workers and counters. Called by RunWorker only.
#ifndef HEADLANE_SRC_EXEC_ITEM_H_
#define HEADLANE_SRC_EXEC_ITEM_H_

#include "exec/run_state.h"
#include "plan/work.h"

namespace headlane::internal {

// Writes the rows of a block that is not cut; of a cut one leaves the states of the item's splits in the workspace.
// Uses the whole slot. Returns false if the caller stopped the run meanwhile; nothing is written then, and states are
// not to be used. Allocation: none.
bool RunItem(const RunContext& run, const WorkItem& item, const Slot& slot) noexcept;

// Folds the states of a cut block and writes its rows. Requires: all its items have run.
void FoldAndFinish(const RunContext& run, const RowBlock& block, const Slot& slot) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_EXEC_ITEM_H_
