// The loops that limits.cc times, one set per instruction set: the seam between it and the files that are compiled with
// that instruction set's flags. Nothing of the standard library but integers, so that no inline function of it is
// compiled with instructions that the machine may lack, and then used elsewhere.
#ifndef HEADLANE_BENCH_LIMITS_KERNELS_H_
#define HEADLANE_BENCH_LIMITS_KERNELS_H_

#include <cstdint>

namespace headlane::bench {

// One way to walk through memory.
struct ReadKernel {
  int streams;         // read side by side
  int64_t step;        // floats of each stream per round: `part` is a multiple of it
  int prefetch_bytes;  // ahead of the load; 0: the hardware's own prefetcher alone
  const char* hint;    // "L1", "L2", "once", "" without prefetch
  // Adds up the floats [s * stride, s * stride + part) for each stream s. `data` and `stride` keep 64-byte alignment.
  float (*read)(const float* data, int64_t stride, int64_t part);
};

struct LimitKernels {
  const char* name;  // "AVX2"
  int lanes;
  int chains;  // multiply-adds that don't depend on each other; one of each per iteration
  float (*multiply_add)(int64_t iterations);
  const ReadKernel* reads;
  int num_reads;
};

// Compiled for the architecture's baseline: SSE2, NEON, or what the compiler makes of it.
const LimitKernels& BaselineLimitKernels();
#if defined(__x86_64__)
const LimitKernels& Avx2LimitKernels();
const LimitKernels& Avx512LimitKernels();
#elif defined(__aarch64__)
const LimitKernels& SveLimitKernels();
#endif

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_LIMITS_KERNELS_H_
