#include "bench/onednn_threads.h"

#if HEADLANE_WITH_ONEDNN

#if HEADLANE_WITH_OPENMP
#include <omp.h>
#else
#include <thread>
#endif

namespace headlane::bench {

Status SetOneDnnThreads(int threads) {
#if HEADLANE_WITH_OPENMP
  omp_set_num_threads(threads);
  return OkStatus();
#else
  if (threads == static_cast<int>(std::thread::hardware_concurrency())) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported, "without OpenMP oneDNN's threads can't be set to %d", threads);
#endif
}

}  // namespace headlane::bench

#endif  // HEADLANE_WITH_ONEDNN
