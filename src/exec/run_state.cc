#include "exec/run_state.h"

namespace headlane::internal {

Slot RunMemory::slot(int64_t index) const {
  const SlotLayout& at = layout_.slot;
  std::byte* const base = base_ + layout_.slots + index * at.bytes;
  const auto floats = [base](int64_t offset) { return reinterpret_cast<float*>(base + offset); };
  Slot slot;
  slot.q = floats(at.q);
  slot.s = floats(at.s);
  for (int i = 0; i < 2; ++i) {
    slot.o[i] = floats(at.o[i]);
    slot.m[i] = floats(at.m[i]);
    slot.l[i] = floats(at.l[i]);
  }
  slot.l16 = floats(at.l16);
  slot.c = floats(at.c);
  slot.lane_begin = reinterpret_cast<int32_t*>(base + at.lane_begin);
  slot.lane_end = reinterpret_cast<int32_t*>(base + at.lane_end);
  slot.live = reinterpret_cast<uint16_t*>(base + at.live);
  slot.keys = reinterpret_cast<RowKeys*>(base + at.keys);
  slot.visible = reinterpret_cast<uint16_t*>(base + at.visible);
  slot.packed_visible = reinterpret_cast<uint16_t*>(base + at.packed_visible);
  slot.bias = floats(at.bias);
  slot.slopes = floats(at.slopes);
  slot.row_offset = reinterpret_cast<int64_t*>(base + at.row_offset);
  slot.sub_offset = reinterpret_cast<int64_t*>(base + at.sub_offset);
  slot.key_offset = reinterpret_cast<int32_t*>(base + at.key_offset);
  slot.sinks = floats(at.sinks);
  slot.zeros = floats(at.zeros);
  slot.out_rows = reinterpret_cast<void**>(base + at.out_rows);
  slot.lse_rows = reinterpret_cast<float**>(base + at.lse_rows);
  slot.k_tiles = base + at.k_tiles;
  slot.v_tiles = base + at.v_tiles;
  return slot;
}

void RunMemory::Reset(const PlanImpl& plan) const {
  for (int64_t i = 0; i < layout_.num_slots; ++i) {
    ::new (base_ + layout_.claims + i * static_cast<int64_t>(sizeof(std::atomic<int32_t>))) std::atomic<int32_t>(0);
  }
  int64_t i = 0;
  for (const int32_t num_items : plan.work().counters) {
    ::new (base_ + layout_.counters + i++ * static_cast<int64_t>(sizeof(std::atomic<int32_t>)))
        std::atomic<int32_t>(num_items);
  }
  ::new (base_) RunHeader{.next_item = 0, .num_items = static_cast<int64_t>(plan.work().items.size()), .stopped = 0};
}

void RunMemory::ResetEmpty() const { ::new (base_) RunHeader{.next_item = 0, .num_items = 0, .stopped = 0}; }

}  // namespace headlane::internal
