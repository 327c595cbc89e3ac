// RopeAngles and RopeAnglesFrom of ops.h: sine and cosine of position * frequency.
#include <cinttypes>

#include "base/fp_environment.h"
#include "headlane/ops.h"
#include "ops/double_double.h"
#include "ops/rope_frequencies.h"
#include "ops/rope_scaling.h"
#include "ops/sin_cos.h"

namespace headlane {
namespace {

using internal::DoubleDouble;

// Doubles hold every integer up to here.
constexpr int64_t kMaxPosition = int64_t{1} << 53;

int64_t Magnitude(int64_t position) { return position < 0 ? -position : position; }

// Position of token i: listed, or counted up from `first` when there is no list.
struct Positions {
  const int64_t* list;
  int64_t first;
  int64_t operator[](int64_t i) const { return list != nullptr ? list[i] : first + i; }
};

// Requires: n >= 0; counted positions do not overflow.
Status LargestPosition(const Positions& positions, int64_t n, int64_t* largest) {
  *largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t position = positions[i];
    if (position < -kMaxPosition || position > kMaxPosition) {
      return MakeStatus(StatusCode::kOutOfRange, "rope: position %" PRId64 " of token %" PRId64 " is beyond %" PRId64,
                        position, i, kMaxPosition);
    }
    if (Magnitude(position) > *largest) *largest = Magnitude(position);
  }
  return OkStatus();
}

Status CheckedRopeAngles(const RopeSpec& spec, const Positions& positions, int64_t n, float* cos, float* sin) noexcept {
  const int64_t num_pairs = spec.rotary_dim / 2;
  int64_t largest = 0;
  HEADLANE_RETURN_IF_ERROR(LargestPosition(positions, n, &largest));
  const double scale = internal::AttentionFactor(spec);
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
      internal::SinCos(angle, scale, sin + i * num_pairs + pair, cos + i * num_pairs + pair);
    }
  }
  return OkStatus();
}

// What can be said before looking at positions; *nothing_to_do when no angle is asked for.
Status CheckArguments(const RopeSpec& spec, int64_t n, const float* cos, const float* sin, bool* nothing_to_do) {
  HEADLANE_RETURN_IF_ERROR(internal::CheckRopeSpec(spec));
  if (n < 0) return MakeStatus(StatusCode::kInvalidArgument, "rope: n is %" PRId64 ", not a number of positions", n);
  *nothing_to_do = n == 0 || spec.rotary_dim == 0;
  if (!*nothing_to_do && (cos == nullptr || sin == nullptr)) {
    return MakeStatus(StatusCode::kInvalidArgument, "rope: cos or sin is null");
  }
  return OkStatus();
}

}  // namespace

Status RopeAngles(const RopeSpec& spec, const int64_t* positions, int64_t n, float* cos, float* sin) noexcept {
  Status status;
  internal::InDefaultFpEnvironment([&] {
    bool nothing_to_do = false;
    status = CheckArguments(spec, n, cos, sin, &nothing_to_do);
    if (!status.ok() || nothing_to_do) return;
    if (positions == nullptr) {
      status = MakeStatus(StatusCode::kInvalidArgument, "rope: positions is null");
      return;
    }
    status = CheckedRopeAngles(spec, {positions, 0}, n, cos, sin);
  });
  return status;
}

Status RopeAnglesFrom(const RopeSpec& spec, int64_t first_position, int64_t n, float* cos, float* sin) noexcept {
  Status status;
  internal::InDefaultFpEnvironment([&] {
    bool nothing_to_do = false;
    status = CheckArguments(spec, n, cos, sin, &nothing_to_do);
    if (!status.ok() || nothing_to_do) return;
    // Before counting, which could overflow or take forever.
    if (first_position < -kMaxPosition || first_position > kMaxPosition || n - 1 > kMaxPosition - first_position) {
      status = MakeStatus(StatusCode::kOutOfRange,
                          "rope: %" PRId64 " positions from %" PRId64 " on are not all within %" PRId64, n,
                          first_position, kMaxPosition);
      return;
    }
    status = CheckedRopeAngles(spec, {nullptr, first_position}, n, cos, sin);
  });
  return status;
}

}  // namespace headlane
