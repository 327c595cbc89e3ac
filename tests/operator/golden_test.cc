// Golden hashes: the bits of a few outputs, written down once, that every machine with FMA must reproduce. The scalar
// canonical program is asked as well, so that the table can't be regenerated from a wrong kernel: to change a line is
// to change the order of operations, and that is a new kNumericsVersion.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "operator/check.h"
#include "operator/golden_cases.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

void ExpectOfTheScalarProgram(const std::vector<GoldenCase>& cases) {
  ASSERT_GE(cases.size(), 8u);
  std::string table;
  for (const GoldenCase& golden : cases) {
    SCOPED_TRACE(golden.name);
    const Sequence s = golden.inputs(golden.index).sequence;
    const Output canonical = reference::CanonicalAttention(s.problem);
    ExpectHashes(golden, canonical);
    EXPECT_TRUE(NearOracle(s.problem, canonical));
    table += golden.line(golden.index, canonical);
  }
  if (::testing::Test::HasFailure()) std::printf("The scalar program gives\n%s", table.c_str());
}

void ExpectOfEveryFmaTarget(const std::vector<GoldenCase>& cases) {
  for (const TargetInfo& target : UsableFmaTargets()) {
    const ScopedTarget scope(target.name);
    for (const GoldenCase& golden : cases) {
      GoldenInputs inputs = golden.inputs(golden.index);
      for (bool cache : {false, true}) {
        SCOPED_TRACE(::testing::Message() << target.name << " " << golden.name << " cache " << cache);
        inputs.options.cache = cache;
        ExpectHashes(golden, RunLibrary(inputs.sequence, inputs.options));
      }
    }
  }
}

TEST(GoldenTest, TheScalarProgramHasTheseBits) { ExpectOfTheScalarProgram(GoldenShapes()); }
TEST(GoldenTest, TheScalarProgramHasTheseBitsWithModifiers) { ExpectOfTheScalarProgram(GoldenModifiers()); }
TEST(GoldenTest, EveryFmaTargetHasTheseBits) { ExpectOfEveryFmaTarget(GoldenShapes()); }
TEST(GoldenTest, EveryFmaTargetHasTheseBitsWithModifiers) { ExpectOfEveryFmaTarget(GoldenModifiers()); }

}  // namespace
}  // namespace headlane::testing
