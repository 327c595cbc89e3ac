// The loops with what every machine of this architecture has: SSE2, NEON, or vectors of 16 bytes as the compiler sees
// fit.
#include <cstdint>

#include "bench/limits_kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace headlane::bench {
namespace {

constexpr int64_t kVectorBytes = 16;
typedef float Vector __attribute__((vector_size(16), may_alias));

#if defined(__aarch64__)
constexpr const char* kName = "NEON";
constexpr int kChains = 24;  // of 32 registers; 4 units of latency 4
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) {
  return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
#if defined(__x86_64__)
constexpr const char* kName = "SSE2";
#else
constexpr const char* kName = "baseline";
#endif
constexpr int kChains = 12;
// Two instructions, as there is no fused one: still two operations.
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return a * b + c; }
#endif

#include "bench/limits_kernels-inl.h"

constexpr LimitKernels kKernels{kName, kLanes, kChains, MultiplyAddLoop<kChains>, kReads, kNumReads};

}  // namespace

const LimitKernels& BaselineLimitKernels() { return kKernels; }

}  // namespace headlane::bench
