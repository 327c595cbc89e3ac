// Targets that an emulator executes although its CPUID does not list them (AVX3_ZEN4 wants an AMD processor, for one).
// A door for the programs of tests/targets and for counting instructions: a user who forced such a target would meet an
// illegal instruction.
#ifndef HEADLANE_SRC_KERNELS_TARGETS_FOR_TEST_H_
#define HEADLANE_SRC_KERNELS_TARGETS_FOR_TEST_H_

#include "headlane/status.h"

namespace headlane::internal {

// A target of this build counts as supported from now on; it can be forced, and is never chosen without that. Errors:
// NotFound (not in this build), FailedPrecondition (the library was used before). Threads: one.
Status AddTargetForTest(const char* name) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KERNELS_TARGETS_FOR_TEST_H_
