// The CPU quota of the process's control group. OpenMP runtimes look at affinity only, so that a container with two
// CPUs' worth of time on a machine with 64 would get 64 threads, most of them asleep at any time.
#include <climits>
#include <cstdio>
#include <cstdlib>

#include "exec/default_workers.h"

namespace headlane::internal {
namespace {

// The first line of a small file. Reading happens when an executor is made, never during a run.
bool ReadLine(const char* path, char* line, int size) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  const bool ok = std::fgets(line, size, file) != nullptr;
  std::fclose(file);
  return ok;
}

int RoundedUp(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  const long long cpus = quota / period + (quota % period != 0 ? 1 : 0);
  return cpus > INT_MAX ? 0 : static_cast<int>(cpus);
}

}  // namespace

int ParseCpuMax(const char* text) noexcept {
  char* end = nullptr;
  const long long quota = std::strtoll(text, &end, 10);  // "max" gives 0
  if (end == text) return 0;
  return RoundedUp(quota, std::strtoll(end, nullptr, 10));
}

int CpuQuota() noexcept {
  char line[128];
  // Inside a container its own group is mounted as the root. Outside, where a process may sit deeper, there is usually
  // no quota.
  if (ReadLine("/sys/fs/cgroup/cpu.max", line, sizeof(line))) return ParseCpuMax(line);
  char period[128];
  if (ReadLine("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof(line)) &&
      ReadLine("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof(period))) {
    return RoundedUp(std::strtoll(line, nullptr, 10), std::strtoll(period, nullptr, 10));
  }
  return 0;
}

}  // namespace headlane::internal
