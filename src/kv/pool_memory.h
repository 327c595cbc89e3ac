// The memory of the pool: the system's, taken untouched, or the caller's.
//
// Separate from the page pools, which know numbers only: all layer groups share one block of memory. Called by
// KVCacheImpl only.
#ifndef HEADLANE_SRC_KV_POOL_MEMORY_H_
#define HEADLANE_SRC_KV_POOL_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "base/aligned_buffer.h"
#include "headlane/executor.h"
#include "headlane/status.h"

namespace headlane::internal {

class PoolMemory {
 public:
  PoolMemory() noexcept = default;

  // None of it is touched. Errors: ResourceExhausted.
  static Result<PoolMemory> Create(int64_t bytes) noexcept;
  // Errors: InvalidArgument (alignment, size; names both numbers).
  static Result<PoolMemory> Over(void* data, int64_t memory_bytes, int64_t bytes) noexcept;

  std::byte* data() const noexcept { return data_; }

  // Writes to every page of the system's, what stands there already, from the executor's workers.
  void FirstTouch(Executor& executor) noexcept;

 private:
  AlignedBuffer own_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_POOL_MEMORY_H_
