// The golden cases: inputs from an integer generator, and the hashes of the bits that every machine with FMA must
// reproduce. For operator/golden_test.cc, which also asks the scalar program, and targets/golden_target_test.cc, which
// runs target by target.
#ifndef HEADLANE_TESTS_OPERATOR_GOLDEN_CASES_H_
#define HEADLANE_TESTS_OPERATOR_GOLDEN_CASES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "operator/runner.h"

namespace headlane::testing {

struct GoldenInputs {
  Sequence sequence;
  RunOptions options;
};

struct GoldenCase {
  std::string name;  // letters, digits and underscores: "shape_3", "window_alibi_tree"
  size_t index;
  uint64_t out_hash;
  uint64_t lse_hash;
  GoldenInputs (*inputs)(size_t index);
  // The line of the table that such an output would have.
  std::string (*line)(size_t index, const Output& output);
};

// Shapes of attention without modifiers; and modifiers, masks and element types.
std::vector<GoldenCase> GoldenShapes();
std::vector<GoldenCase> GoldenModifiers();

void ExpectHashes(const GoldenCase& golden, const Output& output);

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_GOLDEN_CASES_H_
