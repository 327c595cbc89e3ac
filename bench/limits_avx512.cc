// The loops with AVX-512. Compiled with its flag; run only where the machine has it.
#include <immintrin.h>

#include <cstdint>

#include "bench/limits_kernels.h"

namespace headlane::bench {
namespace {

constexpr int64_t kVectorBytes = 64;
typedef float Vector __attribute__((vector_size(64), may_alias));
constexpr int kChains = 24;  // of 32 registers
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }

#include "bench/limits_kernels-inl.h"

constexpr LimitKernels kKernels{"AVX-512", kLanes, kChains, MultiplyAddLoop<kChains>, kReads, kNumReads};

}  // namespace

const LimitKernels& Avx512LimitKernels() { return kKernels; }

}  // namespace headlane::bench
