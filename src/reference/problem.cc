#include "reference/problem.h"

namespace headlane::reference {

int64_t RowPosition(const Problem& p, int64_t row) {
  const int64_t first = p.causal == Causal::kTopLeft ? 0 : p.kv_len - p.q_len;
  return first + row + p.shift_rows;
}

bool Visible(const Problem& p, int64_t head, int64_t row, int64_t key) {
  const int64_t own = RowPosition(p, row);
  const int64_t position = key;
  const int64_t column = key;
  if (p.causal != Causal::kNo && position > own) return false;
  if (p.window == 0) return false;
  if (p.window > 0 && position <= own - p.window) return false;
  if (p.mask != nullptr && p.mask[head * p.mask_head_stride + row * p.mask_row_stride + column] == 0) return false;
  return true;
}

}  // namespace headlane::reference
