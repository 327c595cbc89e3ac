#include "ops/rope_frequencies.h"

#include <cinttypes>

namespace headlane::internal {
namespace {

constexpr DoubleDouble kTwoPi = {0x1.921fb54442d18p+2, 0x1.1a62633145c07p-52};

// Far from where the error-free products would overflow or lose their low parts.
constexpr double kMinParameter = 1e-100;
constexpr double kMaxParameter = 1e100;

// A power is computed afresh for every so many pairs and multiplied up in between, which costs a tenth and adds little
// error.
constexpr int64_t kPairsPerPower = 32;

Status CheckParameter(const char* name, double value) {
  // Written so that NaN fails.
  if (value >= kMinParameter && value <= kMaxParameter) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "rope: %s is %g, not a number in [%g, %g]", name, value,
                    kMinParameter, kMaxParameter);
}

}  // namespace

Status CheckRopeSpec(const RopeSpec& spec) noexcept {
  if (spec.rotary_dim < 0 || spec.rotary_dim % 2 != 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: rotary_dim is %" PRId64 ", not an even number >= 0",
                      spec.rotary_dim);
  }
  if (spec.style != RopeStyle::kAdjacent && spec.style != RopeStyle::kHalfSplit) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: style %d is none of 0 .. 1", static_cast<int>(spec.style));
  }
  HEADLANE_RETURN_IF_ERROR(CheckParameter("base", spec.base));
  switch (spec.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      HEADLANE_RETURN_IF_ERROR(CheckParameter("factor", spec.factor));
      break;
    case RopeScaling::kLlama3:
      HEADLANE_RETURN_IF_ERROR(CheckParameter("factor", spec.factor));
      HEADLANE_RETURN_IF_ERROR(CheckParameter("low_frequency_factor", spec.low_frequency_factor));
      HEADLANE_RETURN_IF_ERROR(CheckParameter("high_frequency_factor", spec.high_frequency_factor));
      HEADLANE_RETURN_IF_ERROR(CheckParameter("original_context", spec.original_context));
      if (!(spec.low_frequency_factor < spec.high_frequency_factor)) {
        return MakeStatus(StatusCode::kInvalidArgument,
                          "rope: low_frequency_factor %g is not below high_frequency_factor %g",
                          spec.low_frequency_factor, spec.high_frequency_factor);
      }
      break;
    default:
      return MakeStatus(StatusCode::kInvalidArgument, "rope: scaling %d is none of 0 .. 2",
                        static_cast<int>(spec.scaling));
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
  // base^(-2 / rotary_dim)
  log2_ratio_ = Divide(Multiply(Log2(spec.base), -2.0), static_cast<double>(spec.rotary_dim));
  ratio_ = Exp2(log2_ratio_);
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
      break;
    case RopeScaling::kLinear:
      return Divide(frequency, spec_.factor);
    case RopeScaling::kLlama3: {
      // How often the pair turns within the original context decides: at least high_frequency_factor times: kept; at
      // most low_frequency_factor times: divided; a weighted mean in between. Continuous, so that no comparison is a
      // matter of rounding.
      const DoubleDouble turns = Divide(Multiply(frequency, spec_.original_context), kTwoPi);
      if (turns.hi >= spec_.high_frequency_factor) return frequency;
      const DoubleDouble divided = Divide(frequency, spec_.factor);
      if (turns.hi <= spec_.low_frequency_factor) return divided;
      const DoubleDouble range = TwoSum(spec_.high_frequency_factor, -spec_.low_frequency_factor);
      const DoubleDouble weight = Divide(Add(turns, -spec_.low_frequency_factor), range);
      return Add(Multiply(Add(Negate(weight), 1.0), divided), Multiply(weight, frequency));
    }
  }
  return frequency;
}

}  // namespace headlane::internal
