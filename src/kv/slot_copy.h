// Copies one token's key or value from a slot of a tile to a slot of another, or of the same one: the stored bytes, so
// that nothing is rounded.
//
// Separate from the cache, which knows pages: what one slot of a tile consists of is known here, for each element type.
// Called by KVCacheImpl for drafts and removals.
#ifndef HEADLANE_SRC_KV_SLOT_COPY_H_
#define HEADLANE_SRC_KV_SLOT_COPY_H_

#include <cstddef>
#include <cstdint>

#include "headlane/dtype.h"

namespace headlane::internal {

void CopyKSlot(DType dtype, int64_t qk_dim, const std::byte* from, int64_t from_slot, std::byte* to,
               int64_t to_slot) noexcept;
void CopyVSlot(DType dtype, int64_t v_dim, const std::byte* from, int64_t from_slot, std::byte* to,
               int64_t to_slot) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_SLOT_COPY_H_
