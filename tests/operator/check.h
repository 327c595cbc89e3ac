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

// Whether the mask shows another set of keys to any row when all rows stand `shift` positions later.
inline bool ShiftMatters(const reference::Problem& problem, int64_t shift) {
  reference::Problem shifted = problem;
  shifted.shift_rows += shift;
  for (int64_t row = 0; row < problem.q_len; ++row) {
    for (int64_t key = 0; key < problem.kv_len; ++key) {
      if (reference::Visible(problem, 0, row, key) != reference::Visible(shifted, 0, row, key)) return true;
    }
  }
  return false;
}

// The check itself, checked: against an oracle that is off by one position, the same output must fail.
inline void ExpectShiftedOracleDisagrees(const reference::Problem& problem, const Output& output) {
  for (int64_t shift : {-1, 1}) {
    if (!ShiftMatters(problem, shift)) continue;
    reference::Problem shifted = problem;
    shifted.shift_rows += shift;
    EXPECT_FALSE(NearOracle(shifted, output)) << "shift " << shift << " is not noticed";
  }
}

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_CHECK_H_
