// OpenMPExecutor: the only file that knows OpenMP.
//
// Nothing here depends on how many threads OpenMP really gives: work is pulled from counters, there is no barrier of
// our own, and no array is indexed by a thread number.
#include <algorithm>

#include "exec/default_workers.h"
#include "headlane/executor.h"

#if HEADLANE_WITH_OPENMP
#include <omp.h>
#include <sys/types.h>
#include <unistd.h>
#endif

namespace headlane {

#if HEADLANE_WITH_OPENMP

namespace internal {
namespace {

// The process that loaded the library. In a child of fork() the runtime's threads are gone while its records of them
// are not, and libgomp waits for them for ever. Whoever had a parallel region before the fork, we can't know; so a
// child never opens one. Comparing numbers needs no pthread_atfork handler, which would outlive an unloaded library.
const pid_t g_process = getpid();

bool IsForkedChild() { return g_process != 0 && getpid() != g_process; }

}  // namespace

int DefaultNumWorkers() noexcept {
  const int threads = std::min(omp_get_max_threads(), omp_get_thread_limit());
  // Another number than that of the processors is somebody's choice.
  if (threads == omp_get_num_procs()) {
    static const int quota = CpuQuota();
    if (quota > 0) return std::clamp(threads, 1, quota);
  }
  return std::max(threads, 1);
}

}  // namespace internal

OpenMPExecutor::OpenMPExecutor(int num_threads) noexcept
    : num_threads_(num_threads > 0 ? num_threads : internal::DefaultNumWorkers()) {}

void OpenMPExecutor::Run(int num_workers, Task task, void* context) noexcept {
  const int wanted = std::min(num_workers, num_threads_);
  if (wanted <= 1 || internal::IsForkedChild()) {
    task(context, 0);
    return;
  }
#pragma omp parallel num_threads(wanted) default(none) shared(task, context)
  task(context, omp_get_thread_num());
}

bool OpenMPExecutor::HasOpenMP() noexcept { return true; }

#else

namespace internal {
int DefaultNumWorkers() noexcept { return 1; }
}  // namespace internal

OpenMPExecutor::OpenMPExecutor(int num_threads) noexcept : num_threads_(std::max(num_threads, 1)) {}

void OpenMPExecutor::Run(int, Task task, void* context) noexcept { task(context, 0); }

bool OpenMPExecutor::HasOpenMP() noexcept { return false; }

#endif

}  // namespace headlane
