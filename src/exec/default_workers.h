// How many workers a plan is cut for when nobody says.
//
// Separate from the public executor, so that planning can ask without making one.
#ifndef HEADLANE_SRC_EXEC_DEFAULT_WORKERS_H_
#define HEADLANE_SRC_EXEC_DEFAULT_WORKERS_H_

namespace headlane::internal {

// What OpenMPExecutor() would use: OpenMP's own default (OMP_NUM_THREADS, CPU affinity), and no more than the process's
// CPU quota if nobody chose a number; 1 in a build without OpenMP. At least 1. Threads: any.
int DefaultNumWorkers() noexcept;

// CPUs that the process's control group may use at a time, rounded up; 0 when there is no limit or none can be read.
// Reads files.
int CpuQuota() noexcept;

// The same from the text of cgroup v2's cpu.max ("max 100000", "150000 100000"); 0 for anything else.
int ParseCpuMax(const char* text) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_EXEC_DEFAULT_WORKERS_H_
