#include "targets/under_test.h"

#include "kernels/kernel_api.h"

namespace headlane::testing {
namespace {

std::set<std::string>& Ran() {
  static std::set<std::string> ran;
  return ran;
}

}  // namespace

TargetOptions& TheOptions() {
  static TargetOptions options;
  return options;
}

std::vector<std::string> TargetsUnderTest() {
  std::vector<std::string> names;
  for (const TargetInfo& target : UsableTargets()) {
    if (TheOptions().only.empty() || TheOptions().only.contains(target.name)) names.emplace_back(target.name);
  }
  return names;
}

const std::set<std::string>& TargetsThatRan() { return Ran(); }

OnTarget::OnTarget(const std::string& name) : scope_(name.c_str()), info_(ActiveTarget()) {
  const internal::KernelTable& kernels = internal::ActiveKernels();
  EXPECT_EQ(info_.name, name);
  EXPECT_EQ(kernels.target, name);
  for (const char* compiled_for : kernels.compiled_for) EXPECT_EQ(compiled_for, name);
  if (!::testing::Test::HasFailure()) Ran().insert(name);
}

}  // namespace headlane::testing
