// The frequencies of a rotary embedding in twice double's precision: a position of 2^24 turns a rounding error of 2^-53
// in a frequency into an angle that is wrong in the last bits of float.
//
// Separate from the angles so that the scalings, which follow published models, stand by themselves. Called by
// rope_angles.cc.
#ifndef HEADLANE_SRC_OPS_ROPE_FREQUENCIES_H_
#define HEADLANE_SRC_OPS_ROPE_FREQUENCIES_H_

#include <cstdint>

#include "headlane/ops.h"
#include "headlane/status.h"
#include "ops/double_double.h"

namespace headlane::internal {

// Ok when `spec` describes an embedding. Names the field and its value otherwise.
Status CheckRopeSpec(const RopeSpec& spec) noexcept;

// Ok when a spec's parameter `value`, called `name` in the error, can be computed with.
inline constexpr double kMinRopeParameter = 1e-100;
inline constexpr double kMaxRopeParameter = 1e100;
Status CheckRopeParameter(const char* name, double value) noexcept;

// Hands out frequency 0, 1, 2, ... of a checked spec, each within 2^-96 relative. (A YaRN ramp without yarn_truncate
// whose betas nearly agree amplifies the error of its ends; published ones span a factor of 32.)
class RopeFrequencies {
 public:
  explicit RopeFrequencies(const RopeSpec& spec) noexcept;
  // The frequency of the next pair, scaled and divided as the spec says. Requires: called at most rotary_dim / 2 times.
  DoubleDouble Next() noexcept;

 private:
  DoubleDouble Scale(const DoubleDouble& frequency) const noexcept;
  DoubleDouble ScaleLlama3(const DoubleDouble& frequency) const noexcept;
  DoubleDouble ScaleYarn(const DoubleDouble& frequency) const noexcept;
  // The pair that turns `turns` times within the original context, not rounded; cut to [0, rotary_dim - 1].
  DoubleDouble YarnPair(double turns) const noexcept;

  const RopeSpec& spec_;
  DoubleDouble log2_ratio_;  // of each frequency to the one before
  DoubleDouble ratio_;
  DoubleDouble frequency_;   // unscaled, of pair pair_
  DoubleDouble ramp_begin_;  // of YaRN, in pairs
  DoubleDouble ramp_width_;
  int64_t pair_ = 0;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_OPS_ROPE_FREQUENCIES_H_
