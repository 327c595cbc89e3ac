// What the operators' tests share: numbers, their bits, and a loop over SIMD targets.
#ifndef HEADLANE_TESTS_OPS_HELPERS_H_
#define HEADLANE_TESTS_OPS_HELPERS_H_

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "headlane/target.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane {

inline uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }
inline uint64_t Bits(double x) { return std::bit_cast<uint64_t>(x); }

inline std::vector<float> Floats(int64_t n, int64_t seed, float size = 1.0f) {
  return testing::Random(static_cast<uint64_t>(seed)).Floats(static_cast<size_t>(n), size);
}

// Runs `body(has_fma)` on every target that this machine has. Bits are promised of those with FMA.
template <typename Body>
void OnEveryTarget(const Body& body) {
  const std::vector<TargetInfo> targets = testing::UsableTargets();
  ASSERT_FALSE(targets.empty());
  for (const TargetInfo& target : targets) {
    const testing::ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    body(target.has_fma);
  }
}

}  // namespace headlane

#endif  // HEADLANE_TESTS_OPS_HELPERS_H_
