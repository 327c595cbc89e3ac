// The loops with AVX2 and FMA. Compiled with their flags; run only where the machine has them.
#include <immintrin.h>

#include <cstdint>

#include "bench/limits_kernels.h"

namespace headlane::bench {
namespace {

constexpr int64_t kVectorBytes = 32;
typedef float Vector __attribute__((vector_size(32), may_alias));
constexpr int kChains = 12;  // two units of latency 4 or 5, and x and y beside them in 16 registers
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }

#include "bench/limits_kernels-inl.h"

constexpr LimitKernels kKernels{"AVX2", kLanes, kChains, MultiplyAddLoop<kChains>, kReads, kNumReads};

}  // namespace

const LimitKernels& Avx2LimitKernels() { return kKernels; }

}  // namespace headlane::bench
