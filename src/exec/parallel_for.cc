#include "exec/parallel_for.h"

#include <algorithm>
#include <atomic>

#include "base/blocking.h"
#include "base/fp_environment.h"

namespace headlane::internal {
namespace {

struct Loop {
  int64_t n;
  int64_t grain;
  int64_t num_ranges;
  RangeBody body;
  void* context;
  std::atomic<int64_t> next{0};
};

void Work(void* context, int worker) noexcept {
  Loop& loop = *static_cast<Loop*>(context);
  InDefaultFpEnvironment([&loop, worker] {
    for (;;) {
      const int64_t i = loop.next.fetch_add(1, std::memory_order_relaxed);
      if (i >= loop.num_ranges) return;
      const int64_t begin = i * loop.grain;
      loop.body(loop.context, begin, std::min(begin + loop.grain, loop.n), worker);
    }
  });
}

}  // namespace

void ParallelRanges(Executor& executor, int64_t n, int64_t grain, RangeBody body, void* context) noexcept {
  if (n <= 0) return;
  const int64_t step = std::clamp<int64_t>(grain, 1, n);
  Loop loop{n, step, CeilDiv(n, step), body, context};
  const int64_t workers = std::min<int64_t>(executor.num_workers(), loop.num_ranges);
  if (workers <= 1) {
    Work(&loop, 0);
  } else {
    executor.Run(static_cast<int>(workers), &Work, &loop);
  }
}

}  // namespace headlane::internal
