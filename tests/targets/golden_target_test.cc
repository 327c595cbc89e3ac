// The golden hashes, target by target: one table for all that have FMA. Targets without are as near to the oracle as
// the bound says.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "operator/check.h"
#include "operator/golden_cases.h"
#include "targets/under_test.h"

namespace headlane::testing {
namespace {

struct GoldenRun {
  std::string target;
  GoldenCase golden;
  bool cache;
};

std::vector<GoldenRun> GoldenRuns() {
  std::vector<GoldenRun> runs;
  for (const std::string& target : TargetsUnderTest()) {
    for (const auto& cases : {GoldenShapes(), GoldenModifiers()}) {
      for (const GoldenCase& golden : cases) {
        for (bool cache : {false, true}) runs.push_back({target, golden, cache});
      }
    }
  }
  return runs;
}

class GoldenTargetTest : public ::testing::TestWithParam<GoldenRun> {};

TEST_P(GoldenTargetTest, HasTheBits) {
  const GoldenRun& run = GetParam();
  const OnTarget on(run.target);
  GoldenInputs inputs = run.golden.inputs(run.golden.index);
  inputs.options.cache = run.cache;
  const Output output = RunLibrary(inputs.sequence, inputs.options);
  if (on.info().has_fma) {
    ExpectHashes(run.golden, output);
  } else {
    EXPECT_TRUE(NearOracle(inputs.sequence.problem, output));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, GoldenTargetTest, ::testing::ValuesIn(GoldenRuns()),
                         [](const ::testing::TestParamInfo<GoldenRun>& info) {
                           return info.param.golden.name + (info.param.cache ? "_cache" : "_plain") + "_on_" +
                                  info.param.target;
                         });

}  // namespace
}  // namespace headlane::testing
