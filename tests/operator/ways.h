// The ways of running a problem that the named tests go through: few, and different in everything.
#ifndef HEADLANE_TESTS_OPERATOR_WAYS_H_
#define HEADLANE_TESTS_OPERATOR_WAYS_H_

#include <vector>

#include "operator/runner.h"

namespace headlane::testing {

// Plain, cached and in pages of each kind, one thread and two, planned for one worker and for many. The first is
// RunOptions{}.
inline const std::vector<RunOptions>& AllWays() {
  static OpenMPExecutor two(2);
  static const std::vector<RunOptions> ways = [] {
    std::vector<RunOptions> list(7);
    list[1].cache = true;
    list[2].executor = &two;
    list[2].plan_workers = 8;
    list[3] = list[2];
    list[3].cache = true;
    list[3].page_tokens = 64;
    list[4].pages = Pages::kTiles;
    list[4].page_tokens = 32;
    list[5].pages = Pages::kTokenRows;
    list[5].executor = &two;
    list[5].plan_workers = 8;
    list[6].pages = Pages::kHeadRows;
    list[6].page_tokens = 24;  // tiles span pages
    return list;
  }();
  return ways;
}

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_WAYS_H_
