// A block of aligned memory that nobody has touched yet, for the few large allocations of the library: the cache's
// pages, workspaces, packed weights.
//
// Separate from std::vector and operator new because these blocks must report failure as a Status, must not be zeroed
// or touched by the thread that creates them (the first to touch a page decides on which NUMA node it lies), and want
// huge pages.
#ifndef HEADLANE_SRC_BASE_ALIGNED_BUFFER_H_
#define HEADLANE_SRC_BASE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdint>

#include "headlane/status.h"

namespace headlane::internal {

inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

class AlignedBuffer {
 public:
  AlignedBuffer() noexcept = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  // `bytes` >= 0 of memory aligned to at least 4096 bytes, and to kHugePageBytes with the advice to use huge pages when
  // it is that large. Fresh from the system: reads as zeros until written, and takes memory only where written. Where
  // the system allows it, a page that can't be accessed follows the last used one, so that running off the end is a
  // fault and not a wrong number. `what` names the block in the error. Errors: ResourceExhausted (names what and
  // bytes). bytes == 0: data() is null.
  static Result<AlignedBuffer> Create(int64_t bytes, const char* what) noexcept;

  std::byte* data() noexcept { return data_; }
  const std::byte* data() const noexcept { return data_; }
  int64_t bytes() const noexcept { return bytes_; }

  // The block as an array. Requires: T is trivial and fits the alignment.
  template <typename T>
  T* as() noexcept {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const noexcept {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  void Free() noexcept;

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  // What was mapped, guard and alignment slack included.
  void* mapping_ = nullptr;
  int64_t mapping_bytes_ = 0;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_ALIGNED_BUFFER_H_
