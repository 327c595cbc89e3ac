#include "reference/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace headlane::reference {
namespace {

// The normalised Walsh-Hadamard transform by its definition, in blocks of the largest power of two that is left.
void Rotate(std::vector<double>& x) {
  const std::vector<double> from = x;
  for (size_t begin = 0; begin < x.size();) {
    const size_t n = std::bit_floor(x.size() - begin);
    for (size_t i = 0; i < n; ++i) {
      double sum = 0.0;
      for (size_t j = 0; j < n; ++j) sum += std::popcount(i & j) % 2 == 0 ? from[begin + j] : -from[begin + j];
      x[begin + i] = sum / std::sqrt(static_cast<double>(n));
    }
    begin += n;
  }
}

}  // namespace

double OracleScore(const Problem& p, int64_t head, int64_t row, int64_t key) {
  if (!Visible(p, head, row, key)) return -std::numeric_limits<double>::infinity();
  const float* const q_row = QueryRow(p, head, row);
  std::vector<double> q(q_row, q_row + p.qk_dim);
  if (p.rotate) Rotate(q);
  const float* k = KeyRow(p, head, key);
  double s = 0.0;
  for (int64_t d = 0; d < p.qk_dim; ++d) s += q[static_cast<size_t>(d)] * static_cast<double>(k[d]);
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
      if (p.rotate) {
        std::vector<double> turned(out, out + p.v_dim);
        Rotate(turned);
        std::copy(turned.begin(), turned.end(), out);
      }
      result.lse[index] = m + std::log(l);
    }
  }
  return result;
}

}  // namespace headlane::reference
