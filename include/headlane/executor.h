// Who runs the work: OpenMP, the calling thread, or the engine's own pool. Results never depend on the choice.
#ifndef HEADLANE_EXECUTOR_H_
#define HEADLANE_EXECUTOR_H_

#include "headlane/status.h"

namespace headlane {

// Runs `task(context, worker)` for workers 0 .. n - 1, n <= num_workers chosen by the executor, and returns when all
// that were started have finished. Every operator of the library pulls its work from a shared counter, so that it is
// complete as soon as one worker has returned from its task: an executor may start fewer workers than asked, one after
// the other, or in any order, but at least one. Worker numbers need not be distinct or dense; they are hints for
// placing memory.
class Executor {
 public:
  using Task = void (*)(void* context, int worker) noexcept;

  virtual ~Executor() = default;

  // How many workers this executor would like to use: at least 1. Plans are made for it, and work with any other
  // number.
  virtual int num_workers() const noexcept = 0;

  // Requires: 1 <= num_workers. Allocation: none by the library. Threads: as the implementation says.
  virtual void Run(int num_workers, Task task, void* context) noexcept = 0;
};

// Runs everything on the calling thread. Threads: any, at the same time.
Executor& SerialExecutor() noexcept;

// An OpenMP parallel region per call. Inside another parallel region, under OMP_THREAD_LIMIT, with OMP_DYNAMIC or in a
// build without OpenMP it gets fewer threads, down to one, and the results stay the same. In a child process after
// fork() it runs on the calling thread: OpenMP runtimes can hang there. Never changes OpenMP's settings. Threads: any,
// at the same time.
class OpenMPExecutor final : public Executor {
 public:
  // num_threads 0: what OpenMP would use by default at this moment (OMP_NUM_THREADS, cgroup limits), read once here.
  explicit OpenMPExecutor(int num_threads = 0) noexcept;

  int num_workers() const noexcept override { return num_threads_; }
  void Run(int num_workers, Task task, void* context) noexcept override;

  // False in a build without OpenMP.
  static bool HasOpenMP() noexcept;

 private:
  int num_threads_;
};

// The engine's own thread pool: `parallel(pool, n, task, context)` calls task(context, i) for i in 0 .. n - 1 on
// threads of its choice and returns when all calls have returned. The callback must not throw.
class CallbackExecutor final : public Executor {
 public:
  using Parallel = void (*)(void* pool, int num_workers, Task task, void* context);

  CallbackExecutor(void* pool, int num_workers, Parallel parallel) noexcept
      : pool_(pool), num_workers_(num_workers < 1 ? 1 : num_workers), parallel_(parallel) {}

  int num_workers() const noexcept override { return num_workers_; }
  void Run(int num_workers, Task task, void* context) noexcept override {
    parallel_(pool_, num_workers, task, context);
  }

 private:
  void* pool_;
  int num_workers_;
  Parallel parallel_;
};

}  // namespace headlane

#endif  // HEADLANE_EXECUTOR_H_
