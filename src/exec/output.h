// From the states of a row block to what the caller gets: out, lse and the states themselves.
//
// Separate from the items because it is all that writes to the caller's memory. Called by items, and by whoever folds a
// cut row block.
#ifndef HEADLANE_SRC_EXEC_OUTPUT_H_
#define HEADLANE_SRC_EXEC_OUTPUT_H_

#include "exec/run_state.h"
#include "plan/work.h"

namespace headlane::internal {

// Unnormalised states of consecutive rows.
struct State {
  float* m;  // [rows]
  float* l;  // [rows]
  float* o;  // [rows][o_pitch]
};

// A cut row block's index-th state.
State StateInWorkspace(const RunContext& run, const RowBlock& block, int64_t index);
State StateInSlot(const Slot& slot, int index);

// a = a and then b, row by row.
void Fold(const RunContext& run, int64_t num_rows, const State& a, const State& b);

// Folds the sinks into `state` and writes out, lse and states, as far as they are wanted.
void Finish(const RunContext& run, const RowBlock& block, const Slot& slot, const State& state);

// Writes NaN to all of it.
void FinishWithNaN(const RunContext& run, const RowBlock& block, const Slot& slot);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_EXEC_OUTPUT_H_
