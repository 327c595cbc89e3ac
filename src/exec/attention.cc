// The public calls of attention: planning with its defaults, and running a plan.
//
// A worker pulls items from one counter until none is left. Whoever finishes the last item of a cut row block folds it,
// in the order of its splits; so there is no second phase, no barrier, and no worker waits for another.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/fp_environment.h"
#include "exec/check_args.h"
#include "exec/default_workers.h"
#include "exec/item.h"
#include "exec/output.h"
#include "exec/run_state.h"
#include "headlane/attention.h"
#include "plan/plan_impl.h"

namespace headlane {
namespace {

using internal::PlanImpl;
using internal::RunContext;
using internal::RunHeader;
using internal::RunMemory;

Result<AttentionPlan> Plan(const AttentionSpec& spec, const internal::KeyStore& store,
                           std::span<const SequenceSpec> sequences, PlanOptions options) noexcept {
  if (options.num_workers == 0) options.num_workers = internal::DefaultNumWorkers();
  Status status;
  std::unique_ptr<PlanImpl> plan;
  internal::InDefaultFpEnvironment([&] {
    auto result = PlanImpl::Create(spec, store, sequences, options);
    if (result.ok()) {
      plan = std::move(result).value();
    } else {
      status = result.status();
    }
  });
  if (plan == nullptr) return status;
  return AttentionPlan(std::move(plan));
}

Status CheckWorkspace(const AttentionPlan& plan, const Workspace& workspace) {
  if (workspace.data() == nullptr || workspace.bytes() < plan.workspace_bytes()) {
    return MakeStatus(StatusCode::kInvalidArgument, "the workspace has %zu bytes, but the plan needs %zu",
                      workspace.data() == nullptr ? size_t{0} : workspace.bytes(), plan.workspace_bytes());
  }
  return OkStatus();
}

// A slot that no other worker of this run has, or -1. The hint gives a worker the same one in every run, so that its
// memory stays near it.
int64_t ClaimSlot(const PlanImpl& plan, const RunMemory& memory, int worker) {
  const int64_t num_slots = plan.layout().num_slots;
  const int64_t first = worker < 0 || num_slots == 0 ? 0 : worker % num_slots;
  for (int64_t i = 0; i < num_slots; ++i) {
    const int64_t slot = first + i < num_slots ? first + i : first + i - num_slots;
    std::atomic<int32_t>& claim = memory.claim(slot);
    if (claim.load(std::memory_order_relaxed) == 0 && claim.exchange(1, std::memory_order_relaxed) == 0) return slot;
  }
  return -1;
}

void RunItems(const RunContext& run, int64_t slot_index) noexcept {
  const internal::Work& work = run.plan.work();
  const internal::Slot slot = run.memory.slot(slot_index);
  RunHeader& header = *run.memory.header();
  for (;;) {
    const int64_t next = header.next_item.fetch_add(1, std::memory_order_relaxed);
    if (next >= header.num_items) return;
    const internal::WorkItem& item = work.items[static_cast<size_t>(next)];
    const internal::RowBlock& block = work.blocks[static_cast<size_t>(item.block)];
    const bool complete = !run.Stopped() && internal::RunItem(run, item, slot);
    if (!block.cut()) {
      if (!complete) internal::FinishWithNaN(run, block, slot);
      continue;
    }
    // The release makes this item's states visible to whoever comes last; the acquire makes all of them visible here.
    std::atomic<int32_t>& counter = run.memory.counter(block.counter);
    if (!complete) counter.fetch_or(internal::kAbandoned, std::memory_order_relaxed);
    const int32_t left = counter.fetch_sub(1, std::memory_order_acq_rel) - 1;
    HEADLANE_DCHECK(left >= 0);
    if ((left & ~internal::kAbandoned) != 0) continue;
    if (left == 0) {
      internal::FoldAndFinish(run, block, slot);
    } else {
      internal::FinishWithNaN(run, block, slot);
    }
  }
}

struct RunTask {
  const AttentionPlan& plan;
  const AttentionArgs& args;
  Workspace& workspace;
};

}  // namespace

float DefaultScale(int64_t qk_dim) noexcept {
  if (qk_dim <= 0) return 1.0f;
  float scale = 1.0f;
  // Division and square root are exactly rounded operations, so that every machine gets the same bits.
  internal::InDefaultFpEnvironment([&] { scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(qk_dim))); });
  return scale;
}

Result<AttentionPlan> PlanAttention(const AttentionSpec& spec, std::span<const SequenceSpec> sequences,
                                    const PlanOptions& options) noexcept {
  return Plan(spec, {}, sequences, options);
}

Result<AttentionPlan> PlanAttention(const AttentionSpec& spec, const KVCache& cache,
                                    std::span<const SequenceSpec> sequences, const PlanOptions& options) noexcept {
  return Plan(spec, {.cache = &cache}, sequences, options);
}

Result<AttentionPlan> PlanAttention(const AttentionSpec& spec, const KVPages& pages,
                                    std::span<const SequenceSpec> sequences, const PlanOptions& options) noexcept {
  return Plan(spec, {.pages = &pages}, sequences, options);
}

Status PrepareRun(const AttentionPlan& plan, const AttentionArgs& args, Workspace& workspace) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckWorkspace(plan, workspace));
  const RunMemory memory(plan.impl(), workspace);
  const Status status = internal::CheckArgs(plan.impl(), args);
  // Workers that run all the same find nothing to do.
  if (!status.ok()) {
    memory.ResetEmpty();
    return status;
  }
  memory.Reset(plan.impl());
  return OkStatus();
}

void RunWorker(const AttentionPlan& plan, const AttentionArgs& args, Workspace& workspace, int worker) noexcept {
  if (!CheckWorkspace(plan, workspace).ok()) return;
  const RunContext run{plan.impl(), args, RunMemory(plan.impl(), workspace)};
  const RunHeader& header = *run.memory.header();
  if (header.next_item.load(std::memory_order_relaxed) >= header.num_items) return;
  const int64_t slot = ClaimSlot(run.plan, run.memory, worker);
  if (slot < 0) return;
  internal::InDefaultFpEnvironment([&run, slot] { RunItems(run, slot); });
}

Status FinishRun(const AttentionPlan& plan, const Workspace& workspace) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckWorkspace(plan, workspace));
  const RunMemory memory(plan.impl(), workspace);
  if (memory.header()->stopped.load(std::memory_order_relaxed) == 0) return OkStatus();
  return MakeStatus(StatusCode::kCancelled, "the run was stopped by its caller; rows that were not complete are NaN");
}

Status RunAttention(const AttentionPlan& plan, const AttentionArgs& args, Workspace& workspace,
                    Executor& executor) noexcept {
  HEADLANE_RETURN_IF_ERROR(PrepareRun(plan, args, workspace));
  const int64_t num_items = static_cast<int64_t>(plan.impl().work().items.size());
  const int64_t useful = std::min(num_items, plan.impl().layout().num_slots);
  if (useful == 0) return OkStatus();
  RunTask task{plan, args, workspace};
  executor.Run(
      static_cast<int>(std::clamp<int64_t>(executor.num_workers(), 1, useful)),
      [](void* context, int worker) noexcept {
        const RunTask& t = *static_cast<RunTask*>(context);
        RunWorker(t.plan, t.args, t.workspace, worker);
      },
      &task);
  return FinishRun(plan, workspace);
}

Status Attention(const AttentionSpec& spec, std::span<const SequenceSpec> sequences, const AttentionArgs& args,
                 Executor& executor) noexcept {
  PlanOptions options;
  options.num_workers = std::max(executor.num_workers(), 1);
  HEADLANE_ASSIGN_OR_RETURN(
      const AttentionPlan plan,
      Plan(spec, {.cache = args.cache, .pages = args.cache == nullptr ? args.pages : nullptr}, sequences, options));
  HEADLANE_ASSIGN_OR_RETURN(Workspace workspace, Workspace::Create(plan));
  return RunAttention(plan, args, workspace, executor);
}

}  // namespace headlane
