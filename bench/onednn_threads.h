// oneDNN takes its threads from OpenMP; both baselines of it ask here.
#ifndef HEADLANE_BENCH_ONEDNN_THREADS_H_
#define HEADLANE_BENCH_ONEDNN_THREADS_H_

#include "headlane/status.h"

namespace headlane::bench {

// Errors: Unsupported in a build without OpenMP, for any other number than all processors.
Status SetOneDnnThreads(int threads);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_ONEDNN_THREADS_H_
