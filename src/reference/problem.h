// One sequence's attention as the reference describes it: dense arrays and a visibility rule, in the words of the
// contract.
//
// Deliberately not the library's AttentionSpec, SequenceSpec and Mask: the reference decides for every single (row,
// key) pair by asking Visible(), so that a mistake in the library's lowering of masks to intervals has nothing here to
// agree with. Used by the double-precision oracle, by the scalar canonical program and by the tests that compare the
// library with both.
//
// Three names for a key: its order (index in the sequence; what arrays, tiles, blocks and splits count), its position
// (causality, windows, chunks, prefix, ALiBi) and its column (in a mask or bias). A key is given by its order
// everywhere; KeyPosition() and KeyColumn() say the other two.
#ifndef HEADLANE_SRC_REFERENCE_PROBLEM_H_
#define HEADLANE_SRC_REFERENCE_PROBLEM_H_

#include <cstdint>
#include <optional>

namespace headlane::reference {

enum class Causal {
  kNo,           // every key
  kBottomRight,  // the last row stands at the last key
  kTopLeft,      // the first row stands at the first key
};

// What an output element is rounded to, after everything else.
enum class OutType { kF32, kF16, kBF16 };

struct Problem {
  int64_t num_q_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t qk_dim = 1;
  int64_t v_dim = 1;
  int64_t q_len = 0;
  int64_t kv_len = 0;

  const float* q = nullptr;    // [q_len][num_q_heads][qk_dim]
  const float* k = nullptr;    // [kv_len][num_kv_heads][qk_dim]
  const float* v = nullptr;    // [kv_len][num_kv_heads][v_dim], unless the strides say otherwise
  int64_t v_token_stride = 0;  // 0: dense. Values that are the first columns of the keys: k and k's strides.
  int64_t v_head_stride = 0;
  OutType out_type = OutType::kF32;
  // k and v are rows that a cache has stored rotated, as CanonicalHadamard rotates them: queries are turned likewise,
  // and what is summed of the values is turned back.
  bool rotate = false;

  // Scores.
  float scale = 1.0f;
  float softcap = 0.0f;         // 0: none
  const float* bias = nullptr;  // optional: element (head, row, column) at bias[head * bias_head_stride + row *
                                // bias_row_stride + column]
  int64_t bias_head_stride = 0;
  int64_t bias_row_stride = 0;
  const float* alibi_slopes = nullptr;  // optional [num_q_heads]
  const float* sinks = nullptr;         // optional [num_q_heads]: a logit that takes weight and gives nothing

  // Visibility: all conditions must hold. A bias of -inf hides, too: whatever the key holds, NaN included.
  Causal causal = Causal::kBottomRight;
  std::optional<int64_t> q_pos;    // position of row 0; else what `causal` says
  int64_t window = -1;             // left: no key at or before own - window; 0 hides every key; negative: no limit
  int64_t window_right = -1;       // no key behind own + window_right; negative: no limit
  int64_t num_always_visible = 0;  // positions below it are exempt from the left window and from chunks
  int64_t chunk = 0;               // only keys of the row's own chunk of so many positions; 0: none
  int64_t prefix_len = 0;          // positions below it are exempt from causality
  const uint8_t* mask = nullptr;   // optional, as bias: 0 hides
  int64_t mask_head_stride = 0;
  int64_t mask_row_stride = 0;
  // A draft: optional [q_len][q_len]. The last q_len keys are drafted tokens, row i is the query of the i-th of them,
  // and sees the j-th if element (i, j) is not 0; this stands in for causality among drafted tokens.
  const uint8_t* tree = nullptr;

  // Tests only: pretends that every row stood so many positions later, or that masks, biases and trees began so many
  // columns later (cyclic). A comparison that still succeeds then proves nothing.
  int64_t shift_rows = 0;
  int64_t shift_columns = 0;
};

inline int64_t KvHead(const Problem& p, int64_t head) { return head / (p.num_q_heads / p.num_kv_heads); }

// Rows of one (row, head) and of one (key, head): [qk_dim], [qk_dim], [v_dim].
const float* QueryRow(const Problem& p, int64_t head, int64_t row);
const float* KeyRow(const Problem& p, int64_t head, int64_t key);
const float* ValueRow(const Problem& p, int64_t head, int64_t key);
// Elements from one key's value to the next key's.
int64_t ValueStride(const Problem& p);

// Absolute position of a query row. Negative when bottom-right rows outnumber the keys. A drafted token stands behind
// the kept keys and the other drafted tokens that it sees: siblings share a position.
int64_t RowPosition(const Problem& p, int64_t row);

// Absolute position of a key: its order, or that of its own row when it is drafted.
int64_t KeyPosition(const Problem& p, int64_t key);

// Its column in masks and biases.
int64_t KeyColumn(const Problem& p, int64_t key);

// What the additive bias adds to a score; 0 without one.
float Bias(const Problem& p, int64_t head, int64_t row, int64_t key);

// Whether query `row` of `head` sees the key.
bool Visible(const Problem& p, int64_t head, int64_t row, int64_t key);

}  // namespace headlane::reference

#endif  // HEADLANE_SRC_REFERENCE_PROBLEM_H_
