#include "kv/page_pool.h"

#include <utility>

#include "base/check.h"

namespace headlane::internal {

Result<PagePool> PagePool::Create(int64_t total_pages) noexcept {
  PagePool pool;
  const int64_t table_bytes = total_pages * static_cast<int64_t>(sizeof(int32_t));
  HEADLANE_ASSIGN_OR_RETURN(pool.holders_, AlignedBuffer::Create(table_bytes, "KV cache page holders"));
  HEADLANE_ASSIGN_OR_RETURN(pool.free_, AlignedBuffer::Create(table_bytes, "KV cache free list"));
  pool.total_pages_ = total_pages;
  pool.num_free_ = total_pages;
  // Descending, so that pages are first given out in ascending order of address.
  for (int64_t i = 0; i < total_pages; ++i) {
    pool.free_.as<int32_t>()[i] = static_cast<int32_t>(total_pages - 1 - i);
    pool.holders_.as<int32_t>()[i] = 0;
  }
  return pool;
}

int32_t PagePool::Take() noexcept {
  HEADLANE_DCHECK(num_free_ > 0);
  const int32_t page = free_.as<int32_t>()[--num_free_];
  HEADLANE_DCHECK(holders(page) == 0);
  holders_.as<int32_t>()[page] = 1;
  return page;
}

void PagePool::Share(int32_t page) noexcept {
  HEADLANE_DCHECK(page >= 0 && page < total_pages_ && holders(page) > 0);
  ++holders_.as<int32_t>()[page];
}

void PagePool::Release(int32_t page) noexcept {
  HEADLANE_DCHECK(page >= 0 && page < total_pages_ && holders(page) > 0);
  if (--holders_.as<int32_t>()[page] == 0) {
    HEADLANE_DCHECK(num_free_ < total_pages_);
    free_.as<int32_t>()[num_free_++] = page;
  }
}

}  // namespace headlane::internal
