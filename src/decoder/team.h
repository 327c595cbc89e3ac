// One parallel region for a whole pass: an executor for many short loops, over workers that another one provides once.
//
// A pass through a model is hundreds of loops of some ten microseconds each, and opening a region for every one of them
// costs a good part of that. Here a region of the caller's executor is opened once; the first worker that comes leads,
// that is, it runs the pass as ordinary straight-line code, and the others help with whatever loop is open at the
// moment. Nobody waits for a worker that has not come: so it works with fewer workers than asked, one after the other,
// in a child after fork(), and in any pool. Called by session_core.cc.
#ifndef HEADLANE_SRC_DECODER_TEAM_H_
#define HEADLANE_SRC_DECODER_TEAM_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "headlane/executor.h"

namespace headlane::internal {

// Valid on the leader during Lead only. Loops must keep the executor's rule: complete when one worker has returned.
class Team final : public Executor {
 public:
  // Runs lead(team) on one worker of `executor`, and returns when it has. Must not throw. Allocation: none.
  template <typename Function>
  static void Lead(Executor& executor, const Function& lead) noexcept {
    Team team(
        executor.num_workers(),
        [](Team& self, const void* context) noexcept { (*static_cast<const Function*>(context))(self); },
        std::addressof(lead));
    team.Start(executor);
  }

  int num_workers() const noexcept override { return num_workers_; }
  // Requires: called by `lead`, on its thread, and not from within a task. Its share is done here and by the helpers
  // that come while it is; with num_workers 1 by nobody else.
  void Run(int num_workers, Task task, void* context) noexcept override;

 private:
  using Function = void (*)(Team& team, const void* context) noexcept;

  Team(int num_workers, Function lead, const void* context) noexcept
      : num_workers_(num_workers), lead_(lead), lead_context_(context) {}

  void Start(Executor& executor) noexcept;
  void Enter(int worker) noexcept;
  void Help(int worker) noexcept;

  // The loop that is open, in one word, so that to join it is one step: its number above, then whether it is open, then
  // how many helpers are in it.
  static constexpr uint64_t kOpen = uint64_t{1} << 16;
  static constexpr uint64_t kHelpers = kOpen - 1;
  static constexpr uint64_t kNextLoop = kOpen << 1;

  const int num_workers_;
  const Function lead_;
  const void* const lead_context_;
  int leader_ = 0;       // the leader's worker number
  Task task_ = nullptr;  // of the open loop; written while it is closed and empty
  void* task_context_ = nullptr;
  std::atomic<bool> led_{false};
  // Lines of their own: helpers spin on the first, and read the rest once per loop.
  alignas(64) std::atomic<uint64_t> loop_{0};
  alignas(64) std::atomic<bool> over_{false};
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_TEAM_H_
