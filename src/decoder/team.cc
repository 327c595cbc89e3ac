#include "decoder/team.h"

#include <thread>

namespace headlane::internal {
namespace {

// Waits a little longer each time: a few microseconds awake, which is how long the serial pieces between two loops
// take, then giving the processor away to whoever needs it more.
class Patience {
 public:
  void Wait() noexcept {
    if (spins_ < kSpins) {
      ++spins_;
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
      asm volatile("yield" ::: "memory");
#endif
    } else {
      std::this_thread::yield();
    }
  }
  void Reset() noexcept { spins_ = 0; }

 private:
  static constexpr int kSpins = 2000;
  int spins_ = 0;
};

}  // namespace

void Team::Start(Executor& executor) noexcept {
  if (num_workers_ <= 1) {
    lead_(*this, lead_context_);
    return;
  }
  executor.Run(num_workers_, [](void* team, int worker) noexcept { static_cast<Team*>(team)->Enter(worker); }, this);
}

void Team::Enter(int worker) noexcept {
  if (led_.exchange(true, std::memory_order_relaxed)) {
    Help(worker);
    return;
  }
  leader_ = worker;
  lead_(*this, lead_context_);
  over_.store(true, std::memory_order_release);
}

void Team::Help(int worker) noexcept {
  uint64_t last = 0;  // the loop that was helped with last: it is not joined again, its work is all taken
  Patience patience;
  while (!over_.load(std::memory_order_acquire)) {
    uint64_t now = loop_.load(std::memory_order_relaxed);
    if ((now & kOpen) == 0 || now / kNextLoop == last) {
      patience.Wait();
      continue;
    }
    // Fails when the loop was closed meanwhile, or another helper was quicker.
    if (!loop_.compare_exchange_weak(now, now + 1, std::memory_order_acquire, std::memory_order_relaxed)) continue;
    last = now / kNextLoop;
    task_(task_context_, worker);
    loop_.fetch_sub(1, std::memory_order_release);
    patience.Reset();
  }
}

void Team::Run(int num_workers, Task task, void* context) noexcept {
  if (num_workers <= 1 || num_workers_ <= 1) {
    task(context, leader_);
    return;
  }
  task_ = task;
  task_context_ = context;
  const uint64_t open = (loop_.load(std::memory_order_relaxed) & ~(kNextLoop - 1)) + kNextLoop + kOpen;
  loop_.store(open, std::memory_order_release);
  task(context, leader_);
  loop_.fetch_and(~kOpen, std::memory_order_relaxed);
  Patience patience;
  while ((loop_.load(std::memory_order_acquire) & kHelpers) != 0) patience.Wait();
}

}  // namespace headlane::internal
