// CheckOutputs: a benchmark of wrong results is worth nothing.
#include <cmath>
#include <set>
#include <vector>

#include "bench/attention_runner.h"
#include "headlane/attention.h"
#include "reference/error_bound.h"
#include "reference/oracle.h"
#include "reference/quantize.h"

namespace headlane::bench {
namespace {

// Indices in [0, n) out of `wanted`, each once.
std::set<int64_t> Clip(std::initializer_list<int64_t> wanted, int64_t n) {
  std::set<int64_t> indices;
  for (const int64_t i : wanted) {
    if (i >= 0 && i < n) indices.insert(i);
  }
  return indices;
}

// Appends a row as the cache holds it.
void AppendStored(DType dtype, const float* row, int64_t dim, std::vector<float>& out) {
  if (!IsQuantized(dtype)) {
    out.insert(out.end(), row, row + dim);
    return;
  }
  const auto type = dtype == DType::kI8       ? reference::QuantizedType::kI8
                    : dtype == DType::kF8E4M3 ? reference::QuantizedType::kF8E4M3
                                              : reference::QuantizedType::kI4;
  const std::vector<float> stored = reference::Dequantize(type, reference::Quantize(type, row, dim));
  out.insert(out.end(), stored.begin(), stored.end());
}

// One row of one head, with its keys and values gathered into dense arrays, is a problem that the oracle solves
// quickly.
Status CheckRow(const Source& source, const AttentionRunner& runner, int64_t copy, int64_t sequence, int64_t row,
                int64_t head) {
  const AttentionShape& shape = source.shape();
  const ModelShape& model = shape.model;
  // Positions count from the first key that the row sees; only differences between positions matter.
  const int64_t first = shape.FirstVisible(row);
  const int64_t num_keys = shape.VisibleEnd(row) - first;
  const int64_t kv_head = head / shape.group();
  std::vector<float> k, v;
  for (int64_t t = first; t < first + num_keys; ++t) {
    AppendStored(shape.dtype, source.Key(copy, sequence, t) + kv_head * model.qk_dim, model.qk_dim, k);
    AppendStored(shape.dtype, source.Value(copy, sequence, t, kv_head), model.v_dim, v);
  }
  reference::Problem problem;
  problem.qk_dim = model.qk_dim;
  problem.v_dim = model.v_dim;
  problem.q_len = 1;
  problem.kv_len = num_keys;
  problem.q = source.Query(sequence, row, head);
  problem.k = k.data();
  problem.v = v.data();
  problem.scale = DefaultScale(model.qk_dim);
  problem.softcap = shape.modifiers.softcap;
  const int64_t row_start = row * shape.kv_len + first;
  if (!source.mask().empty()) problem.mask = source.mask().data() + row_start;
  if (!source.bias().empty()) problem.bias = source.bias().data() + row_start;
  if (!source.slopes().empty()) problem.alibi_slopes = source.slopes().data() + head;
  const reference::OracleResult expected = reference::Oracle(problem);
  const reference::ErrorBound bound = reference::DeriveErrorBound(problem, expected);

  const float* got = runner.Output(sequence, row, head);
  for (int64_t j = 0; j < model.v_dim; ++j) {
    const size_t at = static_cast<size_t>(j);
    const double error = std::abs(got[j] - expected.out[at]);
    if (error <= bound.out[at] * runner.tolerance() + runner.absolute_tolerance()) continue;  // not so for a NaN
    return MakeStatus(
        StatusCode::kInternal,
        "wrong output in sequence %lld row %lld head %lld feature %lld of copy %lld: %.9g instead of %.9g",
        static_cast<long long>(sequence), static_cast<long long>(row), static_cast<long long>(head),
        static_cast<long long>(j), static_cast<long long>(copy), static_cast<double>(got[j]), expected.out[at]);
  }
  return OkStatus();
}

}  // namespace

Status RefuseModifiers(const AttentionShape& shape, const char* who) {
  const Modifiers& modifiers = shape.modifiers;
  if (modifiers.softcap <= 0 && !modifiers.alibi && !modifiers.bias && modifiers.mask == Modifiers::Mask::kNone &&
      modifiers.window < 0) {
    return OkStatus();
  }
  return MakeStatus(StatusCode::kUnsupported, "%s is set up for causal attention without modifiers only", who);
}

Status CheckOutputs(const Source& source, const AttentionRunner& runner, int64_t copy) {
  const AttentionShape& shape = source.shape();
  const int64_t rows = shape.q_len;
  const int64_t heads = shape.model.num_q_heads;
  for (const int64_t sequence : Clip({0, shape.num_sequences - 1}, shape.num_sequences)) {
    for (const int64_t row : Clip({0, 1, 15, 16, 127, 128, 1023, 1024, rows / 2, rows - 1}, rows)) {
      for (const int64_t head : Clip({0, heads - 1}, heads)) {
        HEADLANE_RETURN_IF_ERROR(CheckRow(source, runner, copy, sequence, row, head));
      }
    }
  }
  return OkStatus();
}

}  // namespace headlane::bench
