// What the workers of one run share, and where each finds its scratch.
//
// Everything lives in the caller's workspace, so that a plan can run any number of times at once and a run allocates
// nothing. Made by PrepareRun, used by RunWorker (run.cc) and by the items (item.cc).
#ifndef HEADLANE_SRC_EXEC_RUN_STATE_H_
#define HEADLANE_SRC_EXEC_RUN_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "headlane/attention.h"
#include "mask/visibility.h"
#include "plan/plan_impl.h"

namespace headlane::internal {

// On cache lines of their own: every worker writes `next_item`.
struct RunHeader {
  alignas(64) std::atomic<int64_t> next_item;
  alignas(64) int64_t num_items;
  std::atomic<int32_t> stopped;  // 1: the caller stopped the run, what is left becomes NaN
};
static_assert(sizeof(RunHeader) <= kRunHeaderBytes);

// Pointers of one slot, see SlotLayout.
struct Slot {
  float* q;
  float* s;
  float* o[2];
  float* m[2];
  float* l[2];
  float* l16;
  float* c;
  int32_t* lane_begin;
  int32_t* lane_end;
  uint16_t* live;
  RowKeys* keys;
  uint16_t* visible;
  uint16_t* packed_visible;
  float* bias;
  float* slopes;
  int64_t* row_offset;
  int64_t* sub_offset;
  int32_t* key_offset;
  float* sinks;
  float* zeros;
  void** out_rows;
  float** lse_rows;
  std::byte* k_tiles;
  std::byte* v_tiles;
};

// A view of a workspace through a plan's layout.
class RunMemory {
 public:
  RunMemory(const PlanImpl& plan, const Workspace& workspace) : layout_(plan.layout()) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(workspace.data());
    base_ = static_cast<std::byte*>(workspace.data()) + ((64 - address % 64) % 64);
  }

  RunHeader* header() const { return std::launder(reinterpret_cast<RunHeader*>(base_)); }
  std::atomic<int32_t>& claim(int64_t slot) const { return Atomics(layout_.claims)[slot]; }
  std::atomic<int32_t>& counter(int64_t counter) const { return Atomics(layout_.counters)[counter]; }
  std::byte* states() const { return base_ + layout_.states; }
  Slot slot(int64_t index) const;

  // Starts the lifetime of everything shared, with all items to be done.
  void Reset(const PlanImpl& plan) const;
  // Leaves nothing to be done. Requires: the workspace is large enough.
  void ResetEmpty() const;

 private:
  std::atomic<int32_t>* Atomics(int64_t offset) const {
    return std::launder(reinterpret_cast<std::atomic<int32_t>*>(base_ + offset));
  }

  const WorkspaceLayout& layout_;
  std::byte* base_;
};

// Set in a cut block's countdown by an item that was not run.
inline constexpr int32_t kAbandoned = 1 << 30;

// One run, as an item sees it.
struct RunContext {
  const PlanImpl& plan;
  const AttentionArgs& args;
  RunMemory memory;

  // Whether the caller wants no more. Asks the caller unless somebody knows already.
  bool Stopped() const {
    if (args.should_stop == nullptr) return false;
    std::atomic<int32_t>& stopped = memory.header()->stopped;
    if (stopped.load(std::memory_order_relaxed) != 0) return true;
    if (!args.should_stop(args.stop_context)) return false;
    stopped.store(1, std::memory_order_relaxed);
    return true;
  }
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_EXEC_RUN_STATE_H_
