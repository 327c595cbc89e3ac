// One sequence's attention as the reference describes it: dense arrays and a visibility rule, in the words of the
// contract.
//
// Deliberately not the library's AttentionSpec, SequenceSpec and Mask: the reference decides for every single (row,
// key) pair by asking Visible(), so that a mistake in the library's lowering of masks to intervals has nothing here to
// agree with. Used by the double-precision oracle, by the scalar canonical program and by the tests that compare the
// library with both.
//
// Three names for a key: its order (index in the sequence; what tiles, blocks and splits count), its position
// (causality, window, ALiBi) and its column (in a mask or bias). Here all three are the same number; they are kept
// apart in the code.
#ifndef HEADLANE_SRC_REFERENCE_PROBLEM_H_
#define HEADLANE_SRC_REFERENCE_PROBLEM_H_

#include <cstdint>

namespace headlane::reference {

enum class Causal {
  kNo,           // every key
  kBottomRight,  // the last row stands at the last key
  kTopLeft,      // the first row stands at the first key
};

struct Problem {
  int64_t num_q_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t qk_dim = 1;
  int64_t v_dim = 1;
  int64_t q_len = 0;
  int64_t kv_len = 0;

  const float* q = nullptr;  // [q_len][num_q_heads][qk_dim]
  const float* k = nullptr;  // [kv_len][num_kv_heads][qk_dim]
  const float* v = nullptr;  // [kv_len][num_kv_heads][v_dim]

  // Scores.
  float scale = 1.0f;
  float softcap = 0.0f;         // 0: none
  const float* bias = nullptr;  // optional: element (head, row, column) at bias[head * bias_head_stride + row *
                                // bias_row_stride + column]
  int64_t bias_head_stride = 0;
  int64_t bias_row_stride = 0;
  const float* alibi_slopes = nullptr;  // optional [num_q_heads]
  const float* sinks = nullptr;         // optional [num_q_heads]: a logit that takes weight and gives nothing

  // Visibility: all conditions must hold.
  Causal causal = Causal::kBottomRight;
  int64_t window = -1;            // no key at or before position - window; 0 hides every key; negative: no limit
  const uint8_t* mask = nullptr;  // optional, as bias: 0 hides
  int64_t mask_head_stride = 0;
  int64_t mask_row_stride = 0;

  // Tests only: pretends that every row stood so many positions later. A comparison that still succeeds then proves
  // nothing.
  int64_t shift_rows = 0;
};

inline int64_t KvHead(const Problem& p, int64_t head) { return head / (p.num_q_heads / p.num_kv_heads); }

// Absolute position of a query row. Negative when bottom-right rows outnumber the keys.
int64_t RowPosition(const Problem& p, int64_t row);

// Whether query `row` of `head` sees the key.
bool Visible(const Problem& p, int64_t head, int64_t row, int64_t key);

}  // namespace headlane::reference

#endif  // HEADLANE_SRC_REFERENCE_PROBLEM_H_
