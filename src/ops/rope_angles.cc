// RopeAngles of ops.h: sine and cosine of position * frequency.
#include <cinttypes>

#include "base/fp_environment.h"
#include "headlane/ops.h"
#include "ops/double_double.h"
#include "ops/rope_frequencies.h"
#include "ops/sin_cos.h"

namespace headlane {
namespace {

using internal::DoubleDouble;

// Doubles hold every integer up to here.
constexpr int64_t kMaxPosition = int64_t{1} << 53;

int64_t Magnitude(int64_t position) { return position < 0 ? -position : position; }

Status CheckedRopeAngles(const RopeSpec& spec, const int64_t* positions, int64_t n, float* cos, float* sin) noexcept {
  HEADLANE_RETURN_IF_ERROR(internal::CheckRopeSpec(spec));
  if (n < 0) return MakeStatus(StatusCode::kInvalidArgument, "rope: n is %" PRId64 ", not a number of positions", n);
  const int64_t num_pairs = spec.rotary_dim / 2;
  if (n == 0 || num_pairs == 0) return OkStatus();
  if (positions == nullptr || cos == nullptr || sin == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: positions, cos or sin is null");
  }
  int64_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (positions[i] < -kMaxPosition || positions[i] > kMaxPosition) {
      return MakeStatus(StatusCode::kOutOfRange, "rope: position %" PRId64 " of token %" PRId64 " is beyond %" PRId64,
                        positions[i], i, kMaxPosition);
    }
    if (Magnitude(positions[i]) > largest) largest = Magnitude(positions[i]);
  }
  internal::RopeFrequencies frequencies(spec);
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const DoubleDouble frequency = frequencies.Next();
    if (frequency.hi * static_cast<double>(largest) > internal::kMaxAngle) {
      return MakeStatus(StatusCode::kOutOfRange,
                        "rope: position %" PRId64 " turns pair %" PRId64 " by more than %g (frequency %g)", largest,
                        pair, internal::kMaxAngle, frequency.hi);
    }
    for (int64_t i = 0; i < n; ++i) {
      const DoubleDouble angle = Multiply(frequency, static_cast<double>(positions[i]));
      internal::SinCos(angle, sin + i * num_pairs + pair, cos + i * num_pairs + pair);
    }
  }
  return OkStatus();
}

}  // namespace

Status RopeAngles(const RopeSpec& spec, const int64_t* positions, int64_t n, float* cos, float* sin) noexcept {
  Status status;
  internal::InDefaultFpEnvironment([&] { status = CheckedRopeAngles(spec, positions, n, cos, sin); });
  return status;
}

}  // namespace headlane
