#include "reference/oracle.h"

#include <cmath>
#include <cstddef>
#include <limits>

namespace headlane::reference {

double OracleScore(const Problem& p, int64_t head, int64_t row, int64_t key) {
  if (!Visible(p, head, row, key)) return -std::numeric_limits<double>::infinity();
  const float* q = QueryRow(p, head, row);
  const float* k = KeyRow(p, head, key);
  double s = 0.0;
  for (int64_t d = 0; d < p.qk_dim; ++d) s += static_cast<double>(q[d]) * static_cast<double>(k[d]);
  s *= p.scale;
  if (p.softcap > 0.0f) s = p.softcap * std::tanh(s / p.softcap);
  s += Bias(p, head, row, key);
  if (p.alibi_slopes != nullptr)
    s += static_cast<double>(p.alibi_slopes[head]) * static_cast<double>(KeyPosition(p, key) - RowPosition(p, row));
  return s;
}

OracleResult Oracle(const Problem& p) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  OracleResult result;
  result.out.assign(static_cast<size_t>(p.q_len * p.num_q_heads * p.v_dim), 0.0);
  result.lse.assign(static_cast<size_t>(p.q_len * p.num_q_heads), -kInf);
  result.weights.assign(static_cast<size_t>(p.q_len * p.num_q_heads * p.kv_len), 0.0);

  for (int64_t row = 0; row < p.q_len; ++row) {
    for (int64_t head = 0; head < p.num_q_heads; ++head) {
      const int64_t index = row * p.num_q_heads + head;
      double* out = result.out.data() + index * p.v_dim;
      double* weights = result.weights.data() + index * p.kv_len;

      double m = p.sinks != nullptr ? p.sinks[head] : -kInf;
      bool is_nan = false;
      for (int64_t j = 0; j < p.kv_len; ++j) {
        const double s = OracleScore(p, head, row, j);
        weights[j] = s;  // the scores, for the moment
        if (std::isnan(s) || s == kInf) is_nan = true;
        if (s > m) m = s;
      }
      if (is_nan) {
        for (int64_t d = 0; d < p.v_dim; ++d) out[d] = kNaN;
        for (int64_t j = 0; j < p.kv_len; ++j) weights[j] = kNaN;
        result.lse[index] = kNaN;
        continue;
      }
      if (m == -kInf) {
        for (int64_t j = 0; j < p.kv_len; ++j) weights[j] = 0.0;
        continue;
      }

      double l = p.sinks != nullptr ? std::exp(p.sinks[head] - m) : 0.0;
      for (int64_t j = 0; j < p.kv_len; ++j) {
        if (weights[j] != -kInf) l += std::exp(weights[j] - m);
      }
      for (int64_t j = 0; j < p.kv_len; ++j) {
        if (weights[j] == -kInf) {
          weights[j] = 0.0;
          continue;
        }
        weights[j] = std::exp(weights[j] - m) / l;
        const float* v = ValueRow(p, head, j);
        for (int64_t d = 0; d < p.v_dim; ++d) out[d] += weights[j] * static_cast<double>(v[d]);
      }
      result.lse[index] = m + std::log(l);
    }
  }
  return result;
}

}  // namespace headlane::reference
