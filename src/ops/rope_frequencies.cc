#include "ops/rope_frequencies.h"

#include <cinttypes>

namespace headlane::internal {
namespace {

constexpr DoubleDouble kLog2TwoPi = {0x1.536439a4c6efcp+1, -0x1.49e49a361efebp-53};
constexpr DoubleDouble kTwoPi = {0x1.921fb54442d18p+2, 0x1.1a62633145c07p-52};

// A power is computed afresh for every so many pairs and multiplied up in between, which costs a tenth and adds little
// error.
constexpr int64_t kPairsPerPower = 32;

// The largest integer up to a. Requires: |a| < 2^51.
DoubleDouble Floor(const DoubleDouble& a) {
  const double nearest = RoundToInteger(a.hi);
  const DoubleDouble rest = Add(a, -nearest);
  return {rest.hi < 0.0 ? nearest - 1.0 : nearest, 0.0};
}

Status CheckLlama3(const RopeSpec& spec) {
  HEADLANE_RETURN_IF_ERROR(CheckRopeParameter("low_frequency_factor", spec.low_frequency_factor));
  HEADLANE_RETURN_IF_ERROR(CheckRopeParameter("high_frequency_factor", spec.high_frequency_factor));
  HEADLANE_RETURN_IF_ERROR(CheckRopeParameter("original_context", spec.original_context));
  if (spec.low_frequency_factor < spec.high_frequency_factor) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "rope: low_frequency_factor %g is not below high_frequency_factor %g",
                    spec.low_frequency_factor, spec.high_frequency_factor);
}

Status CheckYarn(const RopeSpec& spec) {
  HEADLANE_RETURN_IF_ERROR(CheckRopeParameter("beta_fast", spec.beta_fast));
  HEADLANE_RETURN_IF_ERROR(CheckRopeParameter("beta_slow", spec.beta_slow));
  HEADLANE_RETURN_IF_ERROR(CheckRopeParameter("original_context", spec.original_context));
  if (!(spec.base >= 2.0)) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: base is %g, below 2: YaRN divides by its logarithm",
                      spec.base);
  }
  if (spec.beta_slow < spec.beta_fast) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "rope: beta_slow %g is not below beta_fast %g", spec.beta_slow,
                    spec.beta_fast);
}

Status CheckScaling(const RopeSpec& spec) {
  switch (spec.scaling) {
    case RopeScaling::kNone:
      return OkStatus();
    case RopeScaling::kLinear:
    case RopeScaling::kNtk:
      return CheckRopeParameter("factor", spec.factor);
    case RopeScaling::kLlama3:
      HEADLANE_RETURN_IF_ERROR(CheckRopeParameter("factor", spec.factor));
      return CheckLlama3(spec);
    case RopeScaling::kYarn:
      HEADLANE_RETURN_IF_ERROR(CheckRopeParameter("factor", spec.factor));
      return CheckYarn(spec);
    case RopeScaling::kDynamicNtk:
      return MakeStatus(StatusCode::kInvalidArgument,
                        "rope: dynamic NTK scaling has no factor yet: ResolveRope fixes it for a sequence");
  }
  return MakeStatus(StatusCode::kInvalidArgument, "rope: scaling %d is none of 0 .. 5", static_cast<int>(spec.scaling));
}

}  // namespace

Status CheckRopeParameter(const char* name, double value) noexcept {
  // Far from where the error-free products would overflow or lose their low parts. Written so that NaN fails.
  if (value >= kMinRopeParameter && value <= kMaxRopeParameter) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "rope: %s is %g, not a number in [%g, %g]", name, value,
                    kMinRopeParameter, kMaxRopeParameter);
}

Status CheckRopeSpec(const RopeSpec& spec) noexcept {
  if (spec.rotary_dim < 0 || spec.rotary_dim % 2 != 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: rotary_dim is %" PRId64 ", not an even number >= 0",
                      spec.rotary_dim);
  }
  if (spec.style != RopeStyle::kAdjacent && spec.style != RopeStyle::kHalfSplit) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: style %d is none of 0 .. 1", static_cast<int>(spec.style));
  }
  HEADLANE_RETURN_IF_ERROR(CheckRopeParameter("base", spec.base));
  HEADLANE_RETURN_IF_ERROR(CheckScaling(spec));
  if (!(spec.attention_factor == 0.0 || (spec.attention_factor >= 1e-30 && spec.attention_factor <= 1e30))) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "rope: attention_factor is %g, neither 0 nor a number in [1e-30, 1e30]", spec.attention_factor);
  }
  if (spec.frequency_divisors == nullptr) return OkStatus();
  for (int64_t pair = 0; pair < spec.rotary_dim / 2; ++pair) {
    const double divisor = static_cast<double>(spec.frequency_divisors[pair]);
    if (!(divisor >= 1e-30 && divisor <= 1e30)) {
      return MakeStatus(StatusCode::kInvalidArgument,
                        "rope: frequency divisor %" PRId64 " is %g, not a number in [1e-30, 1e30]", pair, divisor);
    }
  }
  return OkStatus();
}

RopeFrequencies::RopeFrequencies(const RopeSpec& spec) noexcept : spec_(spec) {
  if (spec.rotary_dim == 0) return;
  const double dim = static_cast<double>(spec.rotary_dim);
  // base^(-2 / rotary_dim)
  log2_ratio_ = Divide(Multiply(Log2(spec.base), -2.0), dim);
  if (spec.scaling == RopeScaling::kNtk && spec.rotary_dim > 2) {
    // (base * factor^(d / (d - 2)))^(-2 / d) = base^(-2 / d) * factor^(-2 / (d - 2))
    log2_ratio_ = Add(log2_ratio_, Divide(Multiply(Log2(spec.factor), -2.0), dim - 2.0));
  }
  ratio_ = Exp2(log2_ratio_);
  if (spec.scaling == RopeScaling::kYarn) {
    ramp_begin_ = YarnPair(spec.beta_fast);
    DoubleDouble ramp_end = YarnPair(spec.beta_slow);
    if (spec.yarn_truncate) {
      ramp_begin_ = Floor(ramp_begin_);
      ramp_end = Negate(Floor(Negate(ramp_end)));
    }
    ramp_width_ = Add(ramp_end, Negate(ramp_begin_));
    if (ramp_width_.hi < 0.001) ramp_width_ = {0.001, 0.0};
  }
}

DoubleDouble RopeFrequencies::Next() noexcept {
  if (pair_ % kPairsPerPower == 0) {
    frequency_ = Exp2(Multiply(log2_ratio_, static_cast<double>(pair_)));
  } else {
    frequency_ = Multiply(frequency_, ratio_);
  }
  DoubleDouble scaled = Scale(frequency_);
  if (spec_.frequency_divisors != nullptr) {
    scaled = Divide(scaled, static_cast<double>(spec_.frequency_divisors[pair_]));
  }
  ++pair_;
  return scaled;
}

DoubleDouble RopeFrequencies::Scale(const DoubleDouble& frequency) const noexcept {
  switch (spec_.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kNtk:         // is in the ratio
    case RopeScaling::kDynamicNtk:  // not in a checked spec
      break;
    case RopeScaling::kLinear:
      return Divide(frequency, spec_.factor);
    case RopeScaling::kLlama3:
      return ScaleLlama3(frequency);
    case RopeScaling::kYarn:
      return ScaleYarn(frequency);
  }
  return frequency;
}

// How often the pair turns within the original context decides: at least high_frequency_factor times: kept; at most
// low_frequency_factor times: divided; a weighted mean in between. Continuous, so that no comparison is a matter of
// rounding.
DoubleDouble RopeFrequencies::ScaleLlama3(const DoubleDouble& frequency) const noexcept {
  const DoubleDouble turns = Divide(Multiply(frequency, spec_.original_context), kTwoPi);
  if (turns.hi >= spec_.high_frequency_factor) return frequency;
  const DoubleDouble divided = Divide(frequency, spec_.factor);
  if (turns.hi <= spec_.low_frequency_factor) return divided;
  const DoubleDouble range = TwoSum(spec_.high_frequency_factor, -spec_.low_frequency_factor);
  const DoubleDouble weight = Divide(Add(turns, -spec_.low_frequency_factor), range);
  return Add(Multiply(Add(Negate(weight), 1.0), divided), Multiply(weight, frequency));
}

DoubleDouble RopeFrequencies::ScaleYarn(const DoubleDouble& frequency) const noexcept {
  const DoubleDouble ramp = Divide(Add(Negate(ramp_begin_), static_cast<double>(pair_)), ramp_width_);
  if (ramp.hi <= 0.0) return frequency;
  const DoubleDouble divided = Divide(frequency, spec_.factor);
  if (ramp.hi >= 1.0) return divided;
  return Add(Multiply(Add(Negate(ramp), 1.0), frequency), Multiply(ramp, divided));
}

DoubleDouble RopeFrequencies::YarnPair(double turns) const noexcept {
  const double last = static_cast<double>(spec_.rotary_dim) - 1.0;
  const DoubleDouble log2_wavelengths = Add(Add(Log2(spec_.original_context), Negate(Log2(turns))), Negate(kLog2TwoPi));
  const DoubleDouble pair = Divide(log2_wavelengths, Negate(log2_ratio_));
  if (pair.hi < 0.0) return {};
  if (pair.hi >= last) return {last, 0.0};
  return pair;
}

}  // namespace headlane::internal
