#include "bench/targets.h"

#include <algorithm>
#include <iterator>

namespace headlane::bench {

const RequirementRow& RowOf(Requirement requirement) {
  return *std::find_if(std::begin(kRequirements), std::end(kRequirements),
                       [&](const RequirementRow& row) { return row.requirement == requirement; });
}

Requirement DecodeRequirement(const AttentionShape& shape, bool plain) {
  if (shape.dtype == DType::kI8) {
    return shape.group() == 1 ? Requirement::kDecodeInt8 : Requirement::kDecodeBalancedInt8;
  }
  if (shape.dtype == DType::kF8E4M3) return Requirement::kDecodeFp8;
  if (shape.dtype == DType::kI4) return Requirement::kDecodeInt4;
  const bool memory = shape.group() == 1 || (shape.group() <= 4 && shape.dtype == DType::kF32);
  if (plain) return memory ? Requirement::kDecodePlain : Requirement::kDecodeBalancedPlain;
  return memory ? Requirement::kDecode : Requirement::kDecodeBalanced;
}

double LeastPercent(Requirement requirement, bool bound_by_memory, const MachineLimits& limits) {
  if (requirement == Requirement::kNone) return 0;
  const double percent = RowOf(requirement).least_percent;
  constexpr int kWideLanes = 16;
  constexpr double kWideAllowance = 10;
  return percent > 0 && !bound_by_memory && limits.fma_lanes >= kWideLanes ? percent - kWideAllowance : percent;
}

}  // namespace headlane::bench
