// Random calls of everything that the operator offers, all together: for the tests that compare the library with the
// reference at random.
#ifndef HEADLANE_TESTS_OPERATOR_DRAW_H_
#define HEADLANE_TESTS_OPERATOR_DRAW_H_

#include <cstdint>
#include <vector>

#include "operator/runner.h"
#include "operator/sequence.h"
#include "support/random.h"

namespace headlane::testing {

struct Call {
  std::vector<Sequence> sequences;  // which agree in everything that one call shares
  RunOptions options;               // element types; the rest is the caller's to change
};

// `work`: roughly how many multiplications the call takes. Keys and values that no row sees are NaN now and then.
Call DrawCall(Random& random, int64_t work);

// The same numbers, run in another way: another layout, cache, pages, planned workers, mask format.
RunOptions AnotherWay(Random& random, const Call& call);

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_DRAW_H_
