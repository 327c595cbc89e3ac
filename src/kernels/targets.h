// Which SIMD targets are built, in one place. Include before any Highway header.
//
// x86-64: SSE2 (the baseline, no FMA), AVX2 (with FMA), AVX3 (AVX-512 F/BW/CD/DQ/VL), AVX3_ZEN4 (AMD, with BF16) and
// AVX3_SPR (Sapphire Rapids, with FP16).
// AArch64: NEON (the baseline), NEON_BF16, SVE, SVE2, SVE_256 and SVE2_128. Highway itself leaves out what a compiler
// gets wrong: NEON_BF16 before g++ 13.2 and clang 17, SVE before g++ 10 and, from Highway 1.3 on, before clang 20. Left
// out, with the reason:
//   SSSE3, SSE4       like SSE2 they have no FMA and add only shuffles, for seconds of compile time each
//   AVX3_DL           adds instructions on integers, which no kernel uses, to AVX3; its machines run AVX3
//   NEON_WITHOUT_AES  for Highway ARM's baseline. NEON is the same code, because no kernel encrypts, so it is made the
//                     baseline and runs without AES as well
//   SCALAR, EMU128    Highway's own stand-ins, worse than the baselines above
// Some run the code of another, except in files that define HEADLANE_EVERY_TARGET before they include this: those with
// integer dot products, which is all that the kernels have of what the newer target adds. Of everything else compilers
// make the same instructions, but for a few (up to one in 20) where rows are packed, converted or finished:
//   AVX3_ZEN4, AVX3_SPR  AVX3's, compared with g++ 12
//   NEON_BF16            NEON's, compared with clang 19
//   SVE2                 SVE's, compared with g++ 12
// kernels/dispatch.h has the same pairs.
// HEADLANE_LEFT_OUT_TARGETS leaves out more, as a build wants it; the baseline can't be left out.
// HEADLANE_NATIVE_ONLY builds the best target of the compiler's -march alone: quick to compile, for development.
#ifndef HEADLANE_SRC_KERNELS_TARGETS_H_
#define HEADLANE_SRC_KERNELS_TARGETS_H_

#if defined(HWY_DETECT_TARGETS_H_) || defined(HIGHWAY_HWY_DETECT_TARGETS_H_)
#error "kernels/targets.h must come before Highway's headers"
#endif

#if !defined(HEADLANE_LEFT_OUT_TARGETS)
#define HEADLANE_LEFT_OUT_TARGETS 0
#endif
#if defined(HEADLANE_EVERY_TARGET) || defined(HEADLANE_NATIVE_ONLY)
#define HEADLANE_SHARING_TARGETS 0
#else
// Highway's names have no values before its headers; a conditional works in #if as well. NEON is the baseline, and so
// always there.
#define HEADLANE_SHARING_TARGETS                                                   \
  (((HEADLANE_LEFT_OUT_TARGETS & HWY_AVX3) ? 0 : (HWY_AVX3_ZEN4 | HWY_AVX3_SPR)) | \
   ((HEADLANE_LEFT_OUT_TARGETS & HWY_SVE) ? 0 : HWY_SVE2) | HWY_NEON_BF16)
#endif
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HEADLANE_SHARING_TARGETS | HEADLANE_LEFT_OUT_TARGETS)

#if defined(HEADLANE_NATIVE_ONLY)
#define HWY_COMPILE_ONLY_STATIC
#elif defined(__aarch64__)
#define HWY_BASELINE_TARGETS HWY_NEON
#endif

#if defined(__FAST_MATH__)
#error "the canonical order of operations does not survive -ffast-math"
#endif

#include <cfloat>
static_assert(FLT_EVAL_METHOD == 0, "float arithmetic must round to float");

#endif  // HEADLANE_SRC_KERNELS_TARGETS_H_
