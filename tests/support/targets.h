// Running a test on every SIMD target that the build and the machine have.
#ifndef HEADLANE_TESTS_SUPPORT_TARGETS_H_
#define HEADLANE_TESTS_SUPPORT_TARGETS_H_

#include <string>
#include <vector>

#include "headlane/target.h"

namespace headlane::testing {

// Targets that this machine can run, best first. The bits promise is about those with FMA only.
std::vector<TargetInfo> UsableTargets();
std::vector<TargetInfo> UsableFmaTargets();

// In force until the end of the scope; then what was active before.
class ScopedTarget {
 public:
  explicit ScopedTarget(const char* name);
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;
  ~ScopedTarget();

 private:
  std::string previous_;
};

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_SUPPORT_TARGETS_H_
