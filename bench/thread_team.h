// Threads that start a piece of work at the same moment, for timing what they do together.
//
// Separate from the library's executors: those hand out work, this one measures the machine without the library.
// Threads are started once and spin between pieces, so that no wake-up is in what is timed.
#ifndef HEADLANE_BENCH_THREAD_TEAM_H_
#define HEADLANE_BENCH_THREAD_TEAM_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

namespace headlane::bench {

class ThreadTeam {
 public:
  // The caller is thread 0. size() tells how many the system gave.
  explicit ThreadTeam(int threads) {
    try {
      for (int id = 1; id < threads; ++id) others_.emplace_back([this, id] { Loop(id); });
    } catch (const std::system_error&) {  // no more threads: those that run are the team
    }
  }
  ~ThreadTeam() {
    work_ = nullptr;
    piece_.fetch_add(1, std::memory_order_release);
    for (std::thread& thread : others_) thread.join();
  }
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return 1 + static_cast<int>(others_.size()); }

  // Calls work(id) on every thread and returns the seconds from the start until the last one is done.
  double Run(const std::function<void(int id)>& work) {
    const int num_others = size() - 1;
    Spin([&] { return ready_.load(std::memory_order_acquire) == num_others; });
    ready_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    work_ = &work;
    const auto start = std::chrono::steady_clock::now();
    piece_.fetch_add(1, std::memory_order_release);
    work(0);
    Spin([&] { return done_.load(std::memory_order_acquire) == num_others; });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  // Gives way after a while, for machines with fewer processors than threads.
  template <typename Condition>
  static void Spin(Condition&& condition) {
    for (int i = 0; !condition(); ++i) {
      if (i > 10000) std::this_thread::yield();
    }
  }

  void Loop(int id) {
    for (int piece = 1;; ++piece) {
      ready_.fetch_add(1, std::memory_order_release);
      Spin([&] { return piece_.load(std::memory_order_acquire) >= piece; });
      if (work_ == nullptr) return;
      (*work_)(id);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  std::vector<std::thread> others_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<int> piece_{0};
  std::atomic<int> ready_{0};
  std::atomic<int> done_{0};
};

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_THREAD_TEAM_H_
