// A parallel loop over an executor, for operators whose work is a range of equal pieces: linear layers, packing.
//
// Separate from the executors because it keeps their promise for the caller: pieces are pulled from one counter, so
// that any number of workers, in any order, does all of them; and each runs in the default floating-point environment.
#ifndef HEADLANE_SRC_EXEC_PARALLEL_FOR_H_
#define HEADLANE_SRC_EXEC_PARALLEL_FOR_H_

#include <cstdint>
#include <memory>
#include <type_traits>

#include "headlane/executor.h"

namespace headlane::internal {

using RangeBody = void (*)(void* context, int64_t begin, int64_t end, int worker) noexcept;

// Calls body(context, begin, end, worker) for consecutive ranges of `grain` (the last one may be shorter) that cover
// [0, n) once, and returns when all have returned. Requires: n >= 0, grain >= 1. `worker` is what the executor says: a
// hint. One range runs on the calling thread. Allocation: none. Threads: the executor's.
void ParallelRanges(Executor& executor, int64_t n, int64_t grain, RangeBody body, void* context) noexcept;

// The same for anything callable as function(begin, end) or function(begin, end, worker).
template <typename Function>
void ParallelFor(Executor& executor, int64_t n, int64_t grain, Function&& function) noexcept {
  using F = std::remove_reference_t<Function>;
  ParallelRanges(
      executor, n, grain,
      [](void* context, int64_t begin, int64_t end, int worker) noexcept {
        F& f = *static_cast<F*>(context);
        if constexpr (std::is_invocable_v<F&, int64_t, int64_t, int>) {
          f(begin, end, worker);
        } else {
          f(begin, end);
        }
      },
      const_cast<std::remove_const_t<F>*>(std::addressof(function)));
}

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_EXEC_PARALLEL_FOR_H_
