// The ways of running a problem that the named tests go through: few, and different in everything.
#ifndef HEADLANE_TESTS_OPERATOR_WAYS_H_
#define HEADLANE_TESTS_OPERATOR_WAYS_H_

#include <vector>

#include "operator/runner.h"

namespace headlane::testing {

// Plain and cached, one thread and two, planned for one worker and for many. The first is RunOptions{}.
inline const std::vector<RunOptions>& AllWays() {
  static OpenMPExecutor two(2);
  static const std::vector<RunOptions> ways = [] {
    std::vector<RunOptions> list(4);
    list[1].cache = true;
    list[2].executor = &two;
    list[2].plan_workers = 8;
    list[3] = list[2];
    list[3].cache = true;
    list[3].page_tokens = 64;
    return list;
  }();
  return ways;
}

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_WAYS_H_
