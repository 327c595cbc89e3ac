// The two questions about a result: is it right (the oracle, within the derived bound), and are its bits the canonical
// ones.
#ifndef HEADLANE_TESTS_OPERATOR_CHECK_H_
#define HEADLANE_TESTS_OPERATOR_CHECK_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "headlane/target.h"
#include "operator/runner.h"
#include "reference/canonical.h"
#include "reference/error_bound.h"
#include "reference/oracle.h"
#include "support/bits.h"

namespace headlane::testing {

// What was seen of |error| / bound, to be pinned: a bound that is a hundred times too wide hides defects.
struct Observed {
  double out = 0.0;
  double lse = 0.0;
};

// Targets without FMA round each product as well, and reduce the argument of exp with one more rounding.
inline double BoundFactor() { return ActiveTarget().has_fma ? 1.0 : 3.0; }

inline ::testing::AssertionResult NearOracle(const reference::Problem& problem, const Output& output,
                                             Observed* observed = nullptr) {
  const reference::OracleResult oracle = reference::Oracle(problem);
  reference::ErrorBound bound = reference::DeriveErrorBound(problem, oracle);
  for (double& b : bound.out) b *= BoundFactor();
  for (double& b : bound.lse) b *= BoundFactor();
  if (const auto out = Within(oracle.out.data(), output.out.data(), bound.out.data(), bound.out.size()); !out) {
    return ::testing::AssertionFailure() << "out " << out.message();
  }
  if (const auto lse = Within(oracle.lse.data(), output.lse.data(), bound.lse.data(), bound.lse.size()); !lse) {
    return ::testing::AssertionFailure() << "lse " << lse.message();
  }
  const auto ratio = [](const std::vector<double>& expected, const std::vector<float>& actual,
                        const std::vector<double>& limit) {
    double largest = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (limit[i] > 0.0)
        largest = std::max(largest, std::fabs(expected[i] - static_cast<double>(actual[i])) / limit[i]);
    }
    return largest;
  };
  if (observed != nullptr) {
    observed->out = std::max(observed->out, ratio(oracle.out, output.out, bound.out));
    observed->lse = std::max(observed->lse, ratio(oracle.lse, output.lse, bound.lse));
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult IsCanonical(const reference::Problem& problem, const Output& output) {
  return SameOutput(reference::CanonicalAttention(problem), output);
}

// The check itself, checked: against an oracle whose mask, bias or distances are off by one in any of the ways that
// make a difference to some row, the same output must fail. Requires values and weights that differ by more than
// rounding. Returns how many ways there were.
int64_t ExpectShiftedOracleDisagrees(const reference::Problem& problem, const Output& output);

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_CHECK_H_
