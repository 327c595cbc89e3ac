// AlibiSlopes of ops.h.
//
// Powers of two in twice double's precision, not repeated square roots: no error adds up from head to head, and each
// slope can be rounded to float once.
#include <bit>
#include <cinttypes>

#include "base/fp_environment.h"
#include "headlane/ops.h"
#include "ops/double_double.h"

namespace headlane {

Status AlibiSlopes(int64_t num_heads, std::span<float> slopes) noexcept {
  if (num_heads < 0 || slopes.size() != static_cast<uint64_t>(num_heads)) {
    return MakeStatus(StatusCode::kInvalidArgument, "alibi: %zu slopes for %" PRId64 " heads", slopes.size(),
                      num_heads);
  }
  if (num_heads == 0) return OkStatus();
  const int64_t power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  internal::InDefaultFpEnvironment([&] {
    for (int64_t head = 0; head < num_heads; ++head) {
      // In steps of 2^(-4 / power): two of them per head of the power, an odd number for the others. Exact in double.
      const int64_t steps = head < power ? 2 * (head + 1) : 2 * (head - power) + 1;
      const double exponent = -4.0 * static_cast<double>(steps) / static_cast<double>(power);
      slopes[static_cast<size_t>(head)] = internal::RoundToFloat(internal::Exp2({exponent, 0.0}));
    }
  });
  return OkStatus();
}

}  // namespace headlane
