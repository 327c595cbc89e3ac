// Attention in double precision, straight from its definition: two passes per row, no tiles, no online softmax.
//
// This says what is right; canonical.h says which bits are. For tests and benchmarks; slow, and written to be read.
#ifndef HEADLANE_SRC_REFERENCE_ORACLE_H_
#define HEADLANE_SRC_REFERENCE_ORACLE_H_

#include <vector>

#include "reference/problem.h"

namespace headlane::reference {

struct OracleResult {
  std::vector<double> out;  // [q_len][num_q_heads][v_dim]
  std::vector<double> lse;  // [q_len][num_q_heads]
  std::vector<double>
      weights;  // [q_len][num_q_heads][kv_len]: 0 for hidden keys; they sum to 1, less what a sink takes
};

// For each query row at position a, with h its head and g = h / (num_q_heads / num_kv_heads):
//   s[j] = scale * dot(q, k[j]); s[j] = cap * tanh(s[j] / cap); s[j] += bias[column of j]; s[j] += slope[h] * (position
//   of j - a)
// over the visible keys only, those with s[j] = -inf excepted:
//   m = max(s[j], sink), l = sum exp(s[j] - m) + exp(sink - m)
//   weights[j] = exp(s[j] - m) / l, out = sum weights[j] * v[j], lse = m + ln l
// No key: out = 0, lse = -inf; with a sink: out = 0, lse = sink. A NaN or +inf among the scores: the row is NaN.
// Hidden keys are not read.
OracleResult Oracle(const Problem& problem);

// s[j] as above; -inf for a hidden key. Shared with the error bound.
double OracleScore(const Problem& problem, int64_t head, int64_t row, int64_t key);

}  // namespace headlane::reference

#endif  // HEADLANE_SRC_REFERENCE_ORACLE_H_
