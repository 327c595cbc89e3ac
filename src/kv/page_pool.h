// Who holds which page of one layer group.
//
// Separate from the sequences, which know tokens: the pool knows page numbers, a free list and holders; and from the
// memory (pool_memory.h). A page is the same number in every layer of its group. Called by KVCacheImpl only.
#ifndef HEADLANE_SRC_KV_PAGE_POOL_H_
#define HEADLANE_SRC_KV_PAGE_POOL_H_

#include <cstdint>

#include "base/aligned_buffer.h"
#include "headlane/status.h"

namespace headlane::internal {

class PagePool {
 public:
  PagePool() noexcept = default;

  // Errors: ResourceExhausted.
  static Result<PagePool> Create(int64_t total_pages) noexcept;

  int64_t total_pages() const noexcept { return total_pages_; }
  int64_t free_pages() const noexcept { return num_free_; }
  int64_t used_pages() const noexcept { return total_pages_ - num_free_; }

  // A page that nobody holds, held once from now on. The last one given back comes first: it is the likeliest to be in
  // a CPU cache. Requires: free_pages() > 0.
  int32_t Take() noexcept;

  // The page that the i-th Take from now on will give, counted from 0. Requires: i < free_pages().
  int32_t Next(int64_t i) const noexcept { return free_.as<int32_t>()[num_free_ - 1 - i]; }

  // One more holder. Requires: the page is held.
  void Share(int32_t page) noexcept;

  // One holder fewer; the page is free when it was the last. Requires: the page is held.
  void Release(int32_t page) noexcept;

  // Number of holders; 0: free.
  int32_t holders(int32_t page) const noexcept { return holders_.as<int32_t>()[page]; }

 private:
  AlignedBuffer holders_;  // [total_pages] int32_t
  AlignedBuffer free_;     // [total_pages] int32_t, a stack: the first num_free_ are free pages
  int64_t total_pages_ = 0;
  int64_t num_free_ = 0;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_PAGE_POOL_H_
