#include "plan/workspace_layout.h"

#include <algorithm>

#include "base/checked_math.h"
#include "mask/visibility.h"

namespace headlane::internal {
namespace {

constexpr int64_t kAlignment = 64;

// Hands out aligned offsets one after the other, and remembers an overflow.
class Allocator {
 public:
  int64_t Take(int64_t count, int64_t element_bytes) {
    const int64_t offset = next_;
    int64_t size = 0;
    if (!CheckedProduct({count, element_bytes}, &size) || !CheckedRoundUp(size, kAlignment, &size) ||
        !CheckedAdd(next_, size, &next_)) {
      overflow_ = true;
      next_ = 0;
    }
    return offset;
  }
  int64_t next() const { return next_; }
  bool overflow() const { return overflow_; }

 private:
  int64_t next_ = 0;
  bool overflow_ = false;
};

bool LayOutSlot(const Problem& problem, int64_t rows, SlotLayout* slot) {
  constexpr int64_t kFloat = sizeof(float);
  constexpr int64_t kPointer = sizeof(void*);
  const int64_t sub = std::min(rows, std::max(kSubRows, kDecodeRows));
  Allocator allocator;
  slot->q = allocator.Take(rows * problem.q_pitch, kFloat);
  slot->s = allocator.Take(sub * kBlockKeys, kFloat);
  for (int i = 0; i < 2; ++i) {
    slot->o[i] = allocator.Take(rows * problem.o_pitch, kFloat);
    slot->m[i] = allocator.Take(rows, kFloat);
    slot->l[i] = allocator.Take(rows, kFloat);
  }
  slot->l16 = allocator.Take(rows * kTileKeys, kFloat);
  slot->c = allocator.Take(sub, kFloat);
  slot->lane_begin = allocator.Take(sub, sizeof(int32_t));
  slot->lane_end = allocator.Take(sub, sizeof(int32_t));
  slot->live = allocator.Take(sub * kTilesPerBlock, sizeof(uint16_t));
  slot->keys = allocator.Take(rows, sizeof(RowKeys));
  slot->visible = allocator.Take(rows * kTilesPerBlock, sizeof(uint16_t));
  slot->packed_visible = allocator.Take(sub * kTilesPerBlock, sizeof(uint16_t));
  slot->bias = allocator.Take(sub * kBlockKeys, kFloat);
  slot->slopes = allocator.Take(rows, kFloat);
  slot->row_offset = allocator.Take(rows, sizeof(int64_t));
  slot->sub_offset = allocator.Take(sub, sizeof(int64_t));
  slot->key_offset = allocator.Take(kBlockKeys, sizeof(int32_t));
  slot->sinks = allocator.Take(2 * rows, kFloat);
  slot->zeros = allocator.Take(problem.o_pitch, kFloat);
  slot->out_rows = allocator.Take(rows, kPointer);
  slot->lse_rows = allocator.Take(rows, kPointer);
  if (!problem.from_cache) {
    slot->k_tiles = allocator.Take(kBlockKeys * problem.qk_dim, kFloat);
    slot->v_tiles = allocator.Take(kBlockKeys * problem.o_pitch, kFloat);
  }
  slot->bytes = allocator.next();
  return !allocator.overflow();
}

}  // namespace

Status MakeWorkspaceLayout(const Problem& problem, const WorkLimits& limits, const WorkCapacity& capacity,
                           WorkspaceLayout* layout) noexcept {
  WorkspaceLayout w;
  const bool slot_fits = LayOutSlot(problem, capacity.rows_per_block, &w.slot);
  w.num_slots = std::min<int64_t>(limits.num_workers, capacity.num_items);
  w.num_counters = capacity.num_counters;
  Allocator allocator;
  allocator.Take(kRunHeaderBytes, 1);
  w.claims = allocator.Take(w.num_slots, sizeof(int32_t));
  w.counters = allocator.Take(w.num_counters, sizeof(int32_t));
  w.slots = allocator.Take(w.num_slots, w.slot.bytes);
  w.states = allocator.Take(limits.state_bytes, 1);
  allocator.Take(kAlignment, 1);
  w.bytes = allocator.next();
  if (!slot_fits || allocator.overflow()) {
    return MakeStatus(StatusCode::kResourceExhausted,
                      "a workspace for %lld workers and rows of %lld + %lld floats does not fit 64 bits",
                      static_cast<long long>(w.num_slots), static_cast<long long>(problem.q_pitch),
                      static_cast<long long>(problem.o_pitch));
  }
  *layout = w;
  return OkStatus();
}

}  // namespace headlane::internal
