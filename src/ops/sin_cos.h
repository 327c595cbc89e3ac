// Sine and cosine rounded to float, the same bits on every machine.
//
// Separate from the rotary embedding so that both of its ways, the quick one and the exact one, can be tested directly.
#ifndef HEADLANE_SRC_OPS_SIN_COS_H_
#define HEADLANE_SRC_OPS_SIN_COS_H_

#include "ops/double_double.h"

namespace headlane::internal {

// Angles up to this size are reduced without loss.
inline constexpr double kMaxAngle = 1125899906842624.0;  // 2^50

// Sine and cosine, times `scale`, of an angle that is itself known to kAngleError * |angle|: the float next to the true
// product, unless that is closer to the middle between two floats than that error. So the result is within 0.5 ulp +
// kAngleError * |angle| * scale.
inline constexpr double kAngleError = 0x1p-95;

// Requires: |angle| <= kMaxAngle, 1e-30 <= scale <= 1e30.
void SinCos(const DoubleDouble& angle, double scale, float* sin, float* cos) noexcept;

// The exact way of SinCos, which takes it once in millions of times, where the quick way can't tell to which side to
// round.
void SinCosExact(const DoubleDouble& angle, double scale, float* sin, float* cos) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_OPS_SIN_COS_H_
