// Where things stand in a workspace.
//
//   header    progress of the run
//   claims    [num_slots] which slots are taken
//   counters  [num_counters] items that a cut row block still waits for
//   slots     [num_slots] what one worker needs for one item at a time
//   states    of cut row blocks
// All offsets are multiples of 64 and fixed for the life of a plan.
//
// Separate from the plan so that sizes are decided in one place, and execution only adds offsets.
#ifndef HEADLANE_SRC_PLAN_WORKSPACE_LAYOUT_H_
#define HEADLANE_SRC_PLAN_WORKSPACE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "headlane/status.h"
#include "plan/problem.h"
#include "plan/work.h"

namespace headlane::internal {

// Byte offsets in a slot. `rows` is the most that a row block has, `sub` the most that a kernel call works on.
struct SlotLayout {
  int64_t q = 0;               // [rows][q_pitch] float: queries times the scale
  int64_t s = 0;               // [sub][kBlockKeys] float: scores, then weights
  int64_t o[2] = {0, 0};       // [rows][o_pitch] float: accumulators of two states
  int64_t m[2] = {0, 0};       // [rows] float
  int64_t l[2] = {0, 0};       // [rows] float
  int64_t l16 = 0;             // [rows][16] float
  int64_t c = 0;               // [sub] float
  int64_t lane_begin = 0;      // [sub] int32: visible lanes of the present block
  int64_t lane_end = 0;        // [sub] int32
  int64_t live = 0;            // [sub][kTilesPerBlock] uint16
  int64_t keys = 0;            // [rows] RowKeys: what each row sees
  int64_t visible = 0;         // [rows][kTilesPerBlock] uint16: what each row sees of the present block
  int64_t packed_visible = 0;  // [sub][kTilesPerBlock] uint16: of the tiles that are visited
  int64_t bias = 0;            // [sub][kBlockKeys] float
  int64_t slopes = 0;          // [rows] float: ALiBi's, of the row's head
  int64_t row_offset = 0;      // [rows] int64: 0 minus the row's position
  int64_t sub_offset = 0;      // [sub] int64: the block's position minus the row's
  int64_t key_offset = 0;      // [kBlockKeys] int32: positions of the block's keys from its own on
  int64_t sinks = 0;           // [2][rows] float: m and l of the sinks' states
  int64_t zeros = 0;           // [o_pitch] float: their o
  int64_t out_rows = 0;        // [rows] void*
  int64_t lse_rows = 0;        // [rows] float*
  int64_t k_tiles = 0;         // plain tensors, keys in 16 bits: [kTilesPerBlock] K tiles of f32
  int64_t v_tiles = 0;         // the same for values, and values in keys: [kTilesPerBlock] V tiles of f32
  int64_t bytes = 0;
};

inline constexpr int64_t kRunHeaderBytes = 256;

struct WorkspaceLayout {
  SlotLayout slot;
  int64_t num_slots = 0;
  int64_t num_counters = 0;
  int64_t claims = 0;
  int64_t counters = 0;
  int64_t slots = 0;
  int64_t states = 0;
  int64_t bytes = 0;  // with slack, so that the caller's memory need not be aligned
};

// Errors: ResourceExhausted when the sizes do not fit 64 bits.
Status MakeWorkspaceLayout(const Problem& problem, const WorkLimits& limits, const WorkCapacity& capacity,
                           WorkspaceLayout* layout) noexcept;

// A part of a workspace or slot, in the order of their addresses, for people to read.
struct WorkspacePart {
  const char* name;
  int64_t bytes;
};

// The same layout as a list; parts of no bytes are left out. Allocates.
void DescribeWorkspace(const Problem& problem, const WorkLimits& limits, const WorkCapacity& capacity,
                       std::vector<WorkspacePart>* parts, std::vector<WorkspacePart>* slot_parts);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_PLAN_WORKSPACE_LAYOUT_H_
