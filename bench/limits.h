// What this machine can do at most, measured now: f32 multiply-adds per second and bytes read from memory per second.
//
// Every figure of the benchmarks is given as a share of these two. Separate from the benchmarks, and a library of its
// own without dependencies, because headlane-info shows them too.
#ifndef HEADLANE_BENCH_LIMITS_H_
#define HEADLANE_BENCH_LIMITS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace headlane::bench {

struct MachineLimits {
  int threads = 0;  // that took part: fewer than asked when the system gives no more

  // 10^9 f32 operations per second, a multiply-add counting as two: best of the instruction sets that the machine has
  // (the widest, as a rule) and of the repetitions (the best figure reached twice); and the median of that instruction
  // set's repetitions.
  double fma_gflops = 0;
  double fma_gflops_median = 0;
  std::string fma_kernel;  // "AVX2, 12 chains of 8 lanes"
  int fma_lanes = 0;       // 8

  // 10^9 bytes per second out of memory: best of the access patterns and repetitions, in the same way; and the median
  // of that pattern's.
  double read_gbps = 0;
  double read_gbps_median = 0;
  std::string read_kernel;  // "AVX2, 4 streams per thread, prefetch 2048 bytes ahead to L2"
  int64_t read_buffer_bytes = 0;
};

struct LimitsOptions {
  // Memory to read from, all threads together. Far beyond any cache: a virtual machine's L3 is not what CPUID says.
  // Halved until the system grants it.
  int64_t buffer_bytes = int64_t{512} << 20;
  // Seconds of the multiply-adds of one instruction set, and of the passes over memory; at least a few repetitions
  // each.
  double fma_seconds = 0.15;
  double read_seconds = 0.8;
};

// Takes about a second. Starts `threads` - 1 threads and ends them. Figures are 0 when there is no memory to read from.
// Requires: threads >= 1. Allocation: options.buffer_bytes, given back. Threads: one call at a time, or they share the
// machine.
MachineLimits MeasureLimits(int threads, const LimitsOptions& options);
MachineLimits MeasureLimits(int threads);

// The read bandwidth of this moment. What a machine shares with others changes within seconds, so that a figure is
// compared with what was there just before and after it was taken. Keeps the memory that it reads.
class ReadProbe {
 public:
  ReadProbe();
  ~ReadProbe();
  ReadProbe(const ReadProbe&) = delete;
  ReadProbe& operator=(const ReadProbe&) = delete;

  // Calls work(id) with each id in 0 .. threads - 1, at the same time, on threads that are there already, and returns
  // the seconds that it took. Starting threads of its own would move others to other processors, and what is timed then
  // would be slower for a while.
  using Parallel = std::function<double(const std::function<void(int id)>& work)>;

  // In 10^9 bytes per second: the best that was reached twice, in about 20 ms. 0 when there is no memory to read from.
  double Gbps(int threads, const Parallel& parallel);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_LIMITS_H_
