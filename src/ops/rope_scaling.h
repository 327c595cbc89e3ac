// The attention factor that a rotary embedding's scaling implies.
//
// Separate from the frequencies, which it does not depend on. Called by rope_angles.cc; the rest of rope_scaling.cc is
// public.
#ifndef HEADLANE_SRC_OPS_ROPE_SCALING_H_
#define HEADLANE_SRC_OPS_ROPE_SCALING_H_

#include "headlane/ops.h"

namespace headlane::internal {

// What multiplies cos and sin. Requires: a checked spec; the default floating-point environment.
double AttentionFactor(const RopeSpec& spec) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_OPS_ROPE_SCALING_H_
