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
  explicit Allocator(std::vector<WorkspacePart>* parts) : parts_(parts) {}

  int64_t Take(const char* name, int64_t count, int64_t element_bytes) {
    const int64_t offset = next_;
    int64_t size = 0;
    if (!CheckedProduct({count, element_bytes}, &size) || !CheckedRoundUp(size, kAlignment, &size) ||
        !CheckedAdd(next_, size, &next_)) {
      overflow_ = true;
      next_ = 0;
    }
    if (parts_ != nullptr && size > 0) parts_->push_back({name, size});
    return offset;
  }
  int64_t next() const { return next_; }
  bool overflow() const { return overflow_; }

 private:
  std::vector<WorkspacePart>* parts_;
  int64_t next_ = 0;
  bool overflow_ = false;
};

bool LayOutSlot(const Problem& problem, int64_t rows, SlotLayout* slot, std::vector<WorkspacePart>* parts) {
  constexpr int64_t kFloat = sizeof(float);
  constexpr int64_t kPointer = sizeof(void*);
  const int64_t sub = std::min(rows, std::max(kSubRows, kDecodeRows));
  Allocator allocator(parts);
  slot->q = allocator.Take("q", rows * problem.q_pitch, kFloat);
  slot->s = allocator.Take("s", sub * kBlockKeys, kFloat);
  for (int i = 0; i < 2; ++i) {
    slot->o[i] = allocator.Take("o", rows * problem.o_pitch, kFloat);
    slot->m[i] = allocator.Take("m", rows, kFloat);
    slot->l[i] = allocator.Take("l", rows, kFloat);
  }
  slot->l16 = allocator.Take("l16", rows * kTileKeys, kFloat);
  slot->c = allocator.Take("c", sub, kFloat);
  slot->lane_begin = allocator.Take("lane_begin", sub, sizeof(int32_t));
  slot->lane_end = allocator.Take("lane_end", sub, sizeof(int32_t));
  slot->live = allocator.Take("live", sub * kTilesPerBlock, sizeof(uint16_t));
  slot->keys = allocator.Take("keys", rows, sizeof(RowKeys));
  slot->visible = allocator.Take("visible", rows * kTilesPerBlock, sizeof(uint16_t));
  slot->packed_visible = allocator.Take("packed_visible", sub * kTilesPerBlock, sizeof(uint16_t));
  slot->bias = allocator.Take("bias", sub * kBlockKeys, kFloat);
  slot->slopes = allocator.Take("slopes", rows, kFloat);
  slot->row_offset = allocator.Take("row_offset", rows, sizeof(int64_t));
  slot->sub_offset = allocator.Take("sub_offset", sub, sizeof(int64_t));
  slot->key_offset = allocator.Take("key_offset", kBlockKeys, sizeof(int32_t));
  slot->sinks = allocator.Take("sinks", 2 * rows, kFloat);
  slot->zeros = allocator.Take("zeros", problem.o_pitch, kFloat);
  slot->out_rows = allocator.Take("out_rows", rows, kPointer);
  slot->lse_rows = allocator.Take("lse_rows", rows, kPointer);
  // Made of the caller's rows, or of tiles of 16-bit elements, or of keys.
  if (!problem.from_cache || problem.k_dtype != DType::kF32) {
    slot->k_tiles = allocator.Take("k_tiles", kBlockKeys * problem.qk_dim, kFloat);
  }
  if (!problem.from_cache || problem.v_dtype != DType::kF32 || problem.values_in_keys) {
    slot->v_tiles = allocator.Take("v_tiles", kBlockKeys * problem.o_pitch, kFloat);
  }
  slot->bytes = allocator.next();
  return !allocator.overflow();
}

// False when the sizes do not fit 64 bits.
bool LayOut(const Problem& problem, const WorkLimits& limits, const WorkCapacity& capacity, WorkspaceLayout* w,
            std::vector<WorkspacePart>* parts, std::vector<WorkspacePart>* slot_parts) {
  if (!LayOutSlot(problem, capacity.rows_per_block, &w->slot, slot_parts)) return false;
  w->num_slots = std::min<int64_t>(limits.num_workers, capacity.num_items);
  w->num_counters = capacity.num_counters;
  Allocator allocator(parts);
  allocator.Take("header", kRunHeaderBytes, 1);
  w->claims = allocator.Take("claims", w->num_slots, sizeof(int32_t));
  w->counters = allocator.Take("counters", w->num_counters, sizeof(int32_t));
  w->slots = allocator.Take("slots", w->num_slots, w->slot.bytes);
  w->states = allocator.Take("states", limits.state_bytes, 1);
  allocator.Take("alignment", kAlignment, 1);
  w->bytes = allocator.next();
  return !allocator.overflow();
}

}  // namespace

Status MakeWorkspaceLayout(const Problem& problem, const WorkLimits& limits, const WorkCapacity& capacity,
                           WorkspaceLayout* layout) noexcept {
  WorkspaceLayout w;
  if (!LayOut(problem, limits, capacity, &w, nullptr, nullptr)) {
    return MakeStatus(StatusCode::kResourceExhausted,
                      "a workspace for %d workers and %lld rows of %lld + %lld floats does not fit 64 bits",
                      limits.num_workers, static_cast<long long>(capacity.rows_per_block),
                      static_cast<long long>(problem.q_pitch), static_cast<long long>(problem.o_pitch));
  }
  *layout = w;
  return OkStatus();
}

void DescribeWorkspace(const Problem& problem, const WorkLimits& limits, const WorkCapacity& capacity,
                       std::vector<WorkspacePart>* parts, std::vector<WorkspacePart>* slot_parts) {
  WorkspaceLayout w;
  LayOut(problem, limits, capacity, &w, parts, slot_parts);
}

}  // namespace headlane::internal
