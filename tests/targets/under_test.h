// What target_test runs on, one SIMD target at a time, and a record of which of them it really ran on.
//
// Separate from support/targets.h because here a target is a parameter of the test: each is a test of its own name, and
// one that was expected and did not run fails the program.
#ifndef HEADLANE_TESTS_TARGETS_UNDER_TEST_H_
#define HEADLANE_TESTS_TARGETS_UNDER_TEST_H_

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "headlane/target.h"
#include "support/targets.h"

namespace headlane::testing {

// What the command line says; main.cc fills it before tests are named.
struct TargetOptions {
  std::set<std::string> only;      // empty: all that are usable
  std::vector<std::string> added;  // usable because the command line says so
};
TargetOptions& TheOptions();

// Names, best first.
std::vector<std::string> TargetsUnderTest();

// The targets whose kernels tests have run on so far.
const std::set<std::string>& TargetsThatRan();

// Forces a target for its scope, and proves it by what the kernels in use say that they were compiled for.
class OnTarget {
 public:
  explicit OnTarget(const std::string& name);
  const TargetInfo& info() const { return info_; }

 private:
  ScopedTarget scope_;
  TargetInfo info_;
};

// A fixture whose parameter is the name of a target.
class EachTarget : public ::testing::TestWithParam<std::string> {
 protected:
  EachTarget() : target_(GetParam()) {}
  const TargetInfo& target() const { return target_.info(); }

 private:
  OnTarget target_;
};

// Names of tests end in the target's name, so that --gtest_filter=*_on_NEON means this one alone.
inline std::string NameOn(const ::testing::TestParamInfo<std::string>& info) { return "on_" + info.param; }

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_TARGETS_UNDER_TEST_H_
