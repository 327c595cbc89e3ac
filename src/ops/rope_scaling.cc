// Parameters of scaled rotary embeddings that are computed once: dynamic NTK's factor for a sequence, and what
// multiplies cos and sin.
#include "ops/rope_scaling.h"

#include <cinttypes>
#include <cmath>
#include <limits>

#include "base/fp_environment.h"
#include "ops/double_double.h"
#include "ops/rope_frequencies.h"

namespace headlane {
namespace {

using internal::DoubleDouble;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// Doubles hold every integer up to here.
constexpr int64_t kMaxContext = int64_t{1} << 53;

bool IsIn(double value, double low, double high) { return value >= low && value <= high; }

// 0.1 * mscale * ln(factor) = mscale * log2(factor) * ln(2) / 10; the sum is rounded to double by taking its hi.
double YarnMscaleOf(double factor, double mscale) {
  if (factor <= 1.0) return 1.0;
  const DoubleDouble log = Divide(Multiply(internal::Log2(factor), internal::kLn2), 10.0);
  return Add(Multiply(log, mscale), 1.0).hi;
}

double LongRopeMscaleOf(double factor, double original_context) {
  if (factor <= 1.0) return 1.0;
  const DoubleDouble square = Add(Divide(internal::Log2(factor), internal::Log2(original_context)), 1.0);
  // IEEE's own square root, and one step of Newton's iteration with the exact remainder.
  const double root = std::sqrt(square.hi);
  const DoubleDouble remainder = Add(square, Negate(internal::TwoProduct(root, root)));
  return root + remainder.hi / (2.0 * root);
}

Status Resolve(RopeSpec& spec, int64_t context_length) {
  if (context_length < 1 || context_length > kMaxContext) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: context_length is %" PRId64 ", not in 1 .. %" PRId64,
                      context_length, kMaxContext);
  }
  if (spec.scaling != RopeScaling::kDynamicNtk) return internal::CheckRopeSpec(spec);
  HEADLANE_RETURN_IF_ERROR(internal::CheckRopeParameter("factor", spec.factor));
  HEADLANE_RETURN_IF_ERROR(internal::CheckRopeParameter("original_context", spec.original_context));
  const double length = static_cast<double>(context_length);
  if (length <= spec.original_context) {
    spec.factor = 1.0;
  } else {
    const DoubleDouble beyond = internal::TwoSum(length, -spec.original_context);
    spec.factor = Add(Divide(Multiply(beyond, spec.factor), spec.original_context), 1.0).hi;
  }
  spec.scaling = RopeScaling::kNtk;
  return internal::CheckRopeSpec(spec);
}

}  // namespace

Result<RopeSpec> ResolveRope(const RopeSpec& spec, int64_t context_length) noexcept {
  RopeSpec resolved = spec;
  Status status;
  internal::InDefaultFpEnvironment([&] { status = Resolve(resolved, context_length); });
  if (!status.ok()) return status;
  return resolved;
}

double YarnMscale(double factor, double mscale) noexcept {
  if (!IsIn(factor, internal::kMinRopeParameter, internal::kMaxRopeParameter) ||
      !IsIn(mscale, -internal::kMaxRopeParameter, internal::kMaxRopeParameter)) {
    return kNaN;
  }
  double result = 0.0;
  internal::InDefaultFpEnvironment([&] { result = YarnMscaleOf(factor, mscale); });
  return result;
}

double LongRopeMscale(double factor, double original_context) noexcept {
  if (!IsIn(factor, internal::kMinRopeParameter, internal::kMaxRopeParameter) ||
      !IsIn(original_context, 2.0, internal::kMaxRopeParameter)) {
    return kNaN;
  }
  double result = 0.0;
  internal::InDefaultFpEnvironment([&] { result = LongRopeMscaleOf(factor, original_context); });
  return result;
}

namespace internal {

double AttentionFactor(const RopeSpec& spec) noexcept {
  if (spec.attention_factor != 0.0) return spec.attention_factor;
  return spec.scaling == RopeScaling::kYarn ? YarnMscaleOf(spec.factor, 1.0) : 1.0;
}

}  // namespace internal
}  // namespace headlane
