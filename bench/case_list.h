// The library on shapes out of a file, for setting it beside other implementations that were timed elsewhere on the
// same shapes: one line of JSON per case, element type and storage, to join by name.
#ifndef HEADLANE_BENCH_CASE_LIST_H_
#define HEADLANE_BENCH_CASE_LIST_H_

#include "bench/options.h"
#include "headlane/status.h"

namespace headlane::bench {

// Prints to standard output. A case that the library refuses has a line with the reason. Errors: InvalidArgument
// (file), Internal (a case failed; the others were timed all the same).
Status RunCaseList(const Options& options);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_CASE_LIST_H_
