#include "reference/problem.h"

#include <limits>

namespace headlane::reference {
namespace {

// Order of the first drafted key; kv_len when nothing is drafted.
int64_t FirstDrafted(const Problem& p) { return p.tree != nullptr ? p.kv_len - p.q_len : p.kv_len; }

bool SeesDrafted(const Problem& p, int64_t row, int64_t drafted) {
  return p.tree[row * p.q_len + (drafted + p.shift_columns) % p.q_len] != 0;
}

// Position of the i-th drafted token, without any shift.
int64_t DraftedPosition(const Problem& p, int64_t i) {
  int64_t others = 0;
  for (int64_t j = 0; j < p.q_len; ++j) {
    if (j != i && p.tree[i * p.q_len + j] != 0) ++others;
  }
  return FirstDrafted(p) + others;
}

int64_t FloorDivide(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace

const float* QueryRow(const Problem& p, int64_t head, int64_t row) {
  return p.q + (row * p.num_q_heads + head) * p.qk_dim;
}

const float* KeyRow(const Problem& p, int64_t head, int64_t key) {
  return p.k + (key * p.num_kv_heads + KvHead(p, head)) * p.qk_dim;
}

int64_t ValueStride(const Problem& p) { return p.v_token_stride != 0 ? p.v_token_stride : p.num_kv_heads * p.v_dim; }

const float* ValueRow(const Problem& p, int64_t head, int64_t key) {
  const int64_t head_stride = p.v_head_stride != 0 ? p.v_head_stride : p.v_dim;
  return p.v + key * ValueStride(p) + KvHead(p, head) * head_stride;
}

int64_t RowPosition(const Problem& p, int64_t row) {
  if (p.tree != nullptr) return DraftedPosition(p, row) + p.shift_rows;
  const int64_t first = p.q_pos.has_value() ? *p.q_pos : p.causal == Causal::kTopLeft ? 0 : p.kv_len - p.q_len;
  return first + row + p.shift_rows;
}

int64_t KeyPosition(const Problem& p, int64_t key) {
  return key < FirstDrafted(p) ? key : DraftedPosition(p, key - FirstDrafted(p));
}

int64_t KeyColumn(const Problem& p, int64_t key) { return (key + p.shift_columns) % p.kv_len; }

float Bias(const Problem& p, int64_t head, int64_t row, int64_t key) {
  if (p.bias == nullptr) return 0.0f;
  return p.bias[head * p.bias_head_stride + row * p.bias_row_stride + KeyColumn(p, key)];
}

bool Visible(const Problem& p, int64_t head, int64_t row, int64_t key) {
  const int64_t own = RowPosition(p, row);
  const int64_t position = KeyPosition(p, key);

  if (key >= FirstDrafted(p)) {
    if (!SeesDrafted(p, row, key - FirstDrafted(p))) return false;
  } else if (p.causal != Causal::kNo && position > own && position >= p.prefix_len) {
    return false;
  }

  if (p.window == 0) return false;
  const bool is_exempt = position < p.num_always_visible;
  if (p.window > 0 && position <= own - p.window && !is_exempt) return false;
  if (p.window_right >= 0 && position > own + p.window_right) return false;
  if (p.chunk > 0 && FloorDivide(position, p.chunk) != FloorDivide(own, p.chunk) && !is_exempt) return false;

  if (p.mask != nullptr && p.mask[head * p.mask_head_stride + row * p.mask_row_stride + KeyColumn(p, key)] == 0)
    return false;
  return Bias(p, head, row, key) != -std::numeric_limits<float>::infinity();
}

}  // namespace headlane::reference
