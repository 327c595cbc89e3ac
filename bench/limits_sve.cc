// Multiply-adds with SVE, whose vectors may be wider than NEON's. Compiled with its flag; run only where the machine
// has it.
//
// Not through limits_kernels-inl.h: SVE vectors have no size at compile time, so there are no arrays of them. Reading
// memory takes no wider loads than NEON's, so there are no reads here.
#include <arm_sve.h>

#include <cstdint>

#include "bench/limits_kernels.h"

namespace headlane::bench {
namespace {

// Of 32 registers: two units of latency 9 keep 18 busy.
// clang-format off
#define HEADLANE_CHAINS(DO)                                                         \
  DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)         \
  DO(12) DO(13) DO(14) DO(15) DO(16) DO(17) DO(18) DO(19) DO(20) DO(21) DO(22) DO(23)
// clang-format on
constexpr int kChains = 24;

float MultiplyAddLoop(int64_t iterations) {
  const svbool_t all = svptrue_b32();
  const svfloat32_t x = svdup_n_f32(0.999f);
  const svfloat32_t y = svdup_n_f32(0.001f);
#define HEADLANE_DECLARE(i) svfloat32_t a##i = svdup_n_f32(0.5f + i);
  HEADLANE_CHAINS(HEADLANE_DECLARE)
#undef HEADLANE_DECLARE
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
#define HEADLANE_MULTIPLY_ADD(i) a##i = svmad_f32_x(all, a##i, x, y);
    HEADLANE_CHAINS(HEADLANE_MULTIPLY_ADD)
#undef HEADLANE_MULTIPLY_ADD
  }
  float sum = 0;
#define HEADLANE_ADD(i) sum += svaddv_f32(all, a##i);
  HEADLANE_CHAINS(HEADLANE_ADD)
#undef HEADLANE_ADD
  return sum;
}
#undef HEADLANE_CHAINS

}  // namespace

const LimitKernels& SveLimitKernels() {
  static const LimitKernels kernels{"SVE", static_cast<int>(svcntw()), kChains, MultiplyAddLoop, nullptr, 0};
  return kernels;
}

}  // namespace headlane::bench
