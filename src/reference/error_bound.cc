#include "reference/error_bound.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/canonical_math.h"

namespace headlane::reference {
namespace {

constexpr double kU = 0x1p-24;
constexpr double kSafety = 1.01;
// The blocking of the canonical order; see canonical.h.
constexpr int64_t kSplit = 1024;
constexpr int64_t kBlock = 128;
constexpr int64_t kLanes = 16;

// Absolute error of one score, divided by u.
double ScoreError(const Problem& p, int64_t head, int64_t row, int64_t key, double s) {
  const float* q = QueryRow(p, head, row);
  const float* k = KeyRow(p, head, key);
  double magnitude = 0.0;
  for (int64_t d = 0; d < p.qk_dim; ++d) magnitude += std::fabs(static_cast<double>(q[d]) * static_cast<double>(k[d]));
  magnitude *= std::fabs(p.scale);
  double error = static_cast<double>(p.qk_dim + 1) * magnitude;
  if (p.softcap > 0.0f) {
    error += (2.0 + 2.0 * internal::kTanhMaxUlp) * std::min<double>(magnitude, p.softcap);
    error = std::min(error, 2.0 * p.softcap / kU);  // no two capped scores are farther apart
  }
  if (p.alibi_slopes != nullptr) {
    const double alibi =
        static_cast<double>(p.alibi_slopes[head]) * static_cast<double>(KeyPosition(p, key) - RowPosition(p, row));
    error += std::fabs(s);
    s -= alibi;
  }
  if (p.bias != nullptr) error += std::fabs(s);
  return error;
}

// Of rounding numbers up to `size` to the output's type.
double RoundingError(OutType type, double size) {
  if (type == OutType::kF16) return std::max(size * 0x1p-11, 0x1p-25);
  if (type == OutType::kBF16) return std::max(size * 0x1p-8, 0x1p-134);
  return 0.0;
}

}  // namespace

ErrorBound DeriveErrorBound(const Problem& p, const OracleResult& result) {
  ErrorBound bound;
  bound.out.assign(result.out.size(), 0.0);
  bound.lse.assign(result.lse.size(), 0.0);

  const double keys = static_cast<double>(p.kv_len);
  const double in_split = static_cast<double>(std::min(p.kv_len, kSplit));
  const double splits = std::ceil(keys / kSplit) + (p.sinks != nullptr ? 1.0 : 0.0);
  const double blocks = std::ceil(in_split / kBlock);
  const double o_steps = in_split + splits;
  const double l_steps = std::ceil(in_split / kLanes) + 4.0 + splits;
  const double exp_steps = (2.0 * internal::kExpMaxUlp + 1.0) * (1.0 + blocks + splits);

  std::vector<double> weighted(static_cast<size_t>(p.v_dim));
  std::vector<double> scores(static_cast<size_t>(p.kv_len));
  for (int64_t row = 0; row < p.q_len; ++row) {
    for (int64_t head = 0; head < p.num_q_heads; ++head) {
      const int64_t index = row * p.num_q_heads + head;
      const double lse = result.lse[index];
      if (!std::isfinite(lse)) continue;  // nothing visible: exactly 0; NaN: must be NaN
      double m = p.sinks != nullptr ? p.sinks[head] : -std::numeric_limits<double>::infinity();
      for (int64_t j = 0; j < p.kv_len; ++j) {
        scores[j] = OracleScore(p, head, row, j);
        m = std::max(m, scores[j]);
      }

      double weight_error = p.sinks != nullptr && std::isfinite(p.sinks[head])
                                ? std::exp(p.sinks[head] - lse) * (std::fabs(p.sinks[head] - m) + exp_steps)
                                : 0.0;
      double max_v = 0.0;
      std::fill(weighted.begin(), weighted.end(), 0.0);
      for (int64_t j = 0; j < p.kv_len; ++j) {
        const double s = scores[j];
        if (s == -std::numeric_limits<double>::infinity()) continue;
        const double weight = result.weights[index * p.kv_len + j];
        const double error = ScoreError(p, head, row, j, s) + std::fabs(s - m) + exp_steps;
        weight_error += weight * error;
        const float* v = ValueRow(p, head, j);
        for (int64_t d = 0; d < p.v_dim; ++d) {
          const double size = std::fabs(static_cast<double>(v[d]));
          weighted[d] += weight * size * (error + o_steps);
          max_v = std::max(max_v, size);
        }
      }
      for (int64_t d = 0; d < p.v_dim; ++d) {
        const double out = std::fabs(result.out[index * p.v_dim + d]);
        const double error =
            kSafety * kU * (weighted[d] + out * (weight_error + l_steps + 1.0)) + keys * 0x1p-126 * (max_v + 1.0);
        bound.out[index * p.v_dim + d] = error + RoundingError(p.out_type, out + error);
      }
      bound.lse[index] =
          kSafety * kU * (weight_error + l_steps + 2.0 * internal::kLnMaxUlp * std::fabs(lse - m) + std::fabs(lse)) +
          keys * 0x1p-126;
    }
  }
  return bound;
}

}  // namespace headlane::reference
