// Which SIMD instruction set runs. The best one that the machine has is chosen by itself.
#ifndef HEADLANE_TARGET_H_
#define HEADLANE_TARGET_H_

#include <cstdint>

#include "headlane/status.h"

namespace headlane {

struct TargetInfo {
  const char* name = "";   // Highway's name: "AVX2", "AVX3", "NEON", ...
  int vector_bytes = 0;    // width of a vector on this machine; 0 when the machine can't run it
  bool has_fma = false;    // targets without FMA are accurate, but their bits differ from those of the others
  bool supported = false;  // this machine can run it
  bool active = false;     // what calls run on at this moment
  // Its vector registers, and how its kernels use them where there are many rows: a block of rows x cols sums that stay
  // in registers, cols counting vectors of f32. All 0 when the machine can't run it.
  int num_registers = 0;
  int block_rows = 0;
  int block_cols = 0;
};

// Fills infos[0 .. min(n, capacity)) best first and returns n, the number of targets in this build. Allocation: none.
// Threads: any.
int ListTargets(TargetInfo* infos, int capacity) noexcept;

// The target that plans and operators made from now on run on. Threads: any.
TargetInfo ActiveTarget() noexcept;

// Forces a target by name, or the machine's best with nullptr or "". Plans made before keep theirs. The environment
// variable HEADLANE_TARGET does the same at the first use of the library; a value that names no usable target is then
// ignored, and TargetFromEnvironment() tells. Errors: NotFound (no such target in this build), Unsupported (the machine
// lacks it). Threads: not at the same time as other calls.
Status ForceTarget(const char* name) noexcept;

// Ok when HEADLANE_TARGET is unset or in force, else the error that ForceTarget gave for it.
Status TargetFromEnvironment() noexcept;

}  // namespace headlane

#endif  // HEADLANE_TARGET_H_
