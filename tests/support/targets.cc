#include "support/targets.h"

#include <gtest/gtest.h>

namespace headlane::testing {

std::vector<TargetInfo> UsableTargets() {
  TargetInfo infos[32];
  const int n = ListTargets(infos, 32);
  std::vector<TargetInfo> usable;
  for (int i = 0; i < n && i < 32; ++i) {
    if (infos[i].supported) usable.push_back(infos[i]);
  }
  return usable;
}

std::vector<TargetInfo> UsableFmaTargets() {
  std::vector<TargetInfo> usable;
  for (const TargetInfo& info : UsableTargets()) {
    if (info.has_fma) usable.push_back(info);
  }
  return usable;
}

ScopedTarget::ScopedTarget(const char* name) : previous_(ActiveTarget().name) {
  const Status status = ForceTarget(name);
  EXPECT_TRUE(status.ok()) << status.c_str();
}

ScopedTarget::~ScopedTarget() {
  const Status status = ForceTarget(previous_.c_str());
  EXPECT_TRUE(status.ok()) << status.c_str();
}

}  // namespace headlane::testing
