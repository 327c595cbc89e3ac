// The token ids of pages, as far as the caller has told them, and a hash of each prefix that ends with a full page.
//
// Separate from the marks of tiles, which say what was written: ids are the caller's, and a cache works without. Called
// by KVCacheImpl only (prefix.cc).
#ifndef HEADLANE_SRC_KV_PAGE_IDS_H_
#define HEADLANE_SRC_KV_PAGE_IDS_H_

#include <cstdint>

#include "base/aligned_buffer.h"
#include "headlane/status.h"

namespace headlane::internal {

class PageIds {
 public:
  PageIds() noexcept = default;

  // No ids are known. Errors: InvalidArgument (sizes past 64 bits), ResourceExhausted.
  static Result<PageIds> Create(int64_t total_pages, int64_t page_tokens) noexcept;

  // How many of the page's first tokens have ids.
  int64_t Count(int64_t page) const noexcept { return counts_.as<int64_t>()[page]; }
  const int32_t* IdsOf(int64_t page) const noexcept { return ids_.as<int32_t>() + page * page_tokens_; }
  // Of all ids from the sequence's beginning to the page's end. Requires: the page is full of ids.
  uint64_t Hash(int64_t page) const noexcept { return hashes_.as<uint64_t>()[page]; }

  // Requires: first <= Count(page), first + n <= page_tokens.
  void Set(int64_t page, int64_t first, const int32_t* ids, int64_t n) noexcept;
  void SetHash(int64_t page, uint64_t hash) noexcept { hashes_.as<uint64_t>()[page] = hash; }
  // For ids that are known before the page is: room for [page_tokens] of them, and how many there are then.
  int32_t* RoomOf(int64_t page) noexcept { return OwnIdsOf(page); }
  void SetCount(int64_t page, int64_t count) noexcept { counts_.as<int64_t>()[page] = count; }
  // Forgets the ids from token `first` of the page on.
  void Forget(int64_t page, int64_t first) noexcept;
  // `to` gets the ids of the first num_tokens tokens of `from`.
  void CopyPage(int64_t from, int64_t to, int64_t num_tokens) noexcept;

 private:
  int32_t* OwnIdsOf(int64_t page) noexcept { return ids_.as<int32_t>() + page * page_tokens_; }

  AlignedBuffer ids_;     // [total_pages][page_tokens] int32_t
  AlignedBuffer hashes_;  // [total_pages] uint64_t
  AlignedBuffer counts_;  // [total_pages] int64_t
  int64_t page_tokens_ = 0;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_PAGE_IDS_H_
