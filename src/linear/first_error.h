// Which of several errors of a parallel loop is reported: the same for any number of threads.
//
// Separate from the backends, whose packing is such a loop.
#ifndef HEADLANE_SRC_LINEAR_FIRST_ERROR_H_
#define HEADLANE_SRC_LINEAR_FIRST_ERROR_H_

#include <atomic>
#include <cstdint>
#include <mutex>

#include "headlane/status.h"

namespace headlane::internal {

// The error of the lowest item that failed. Items are handed out in ascending order, so all below it were tried
// whatever the others did.
class FirstError {
 public:
  // Whether `item` can still matter: above an item that failed nothing does.
  bool ShouldTry(int64_t item) const noexcept { return item < lowest_.load(std::memory_order_relaxed); }

  void Report(int64_t item, const Status& status) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (item >= lowest_.load(std::memory_order_relaxed)) return;
    lowest_.store(item, std::memory_order_relaxed);
    status_ = status;
  }

  // Ok if no item failed. Requires: the loop is over.
  const Status& status() const noexcept { return status_; }

 private:
  std::atomic<int64_t> lowest_{INT64_MAX};
  std::mutex mutex_;
  Status status_;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_FIRST_ERROR_H_
