#include "targets/under_test.h"

#include <map>

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
  // These have code of their own for integer dot products only.
  static const std::map<std::string, std::string> shares_code_of = {
      {"AVX3_ZEN4", "AVX3"}, {"AVX3_SPR", "AVX3"}, {"NEON_BF16", "NEON"}, {"SVE2", "SVE"}};
  const auto shared = shares_code_of.find(name);
  int num_own = 0;
  for (const char* compiled_for : kernels.compiled_for) {
    num_own += compiled_for == name;
    EXPECT_TRUE(compiled_for == name || (shared != shares_code_of.end() && compiled_for == shared->second))
        << compiled_for << " for " << name;
  }
  EXPECT_GE(num_own, 2);
  if (!::testing::Test::HasFailure()) Ran().insert(name);
}

}  // namespace headlane::testing
