#include "operator/sequence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "reference/canonical.h"

namespace headlane::testing {
namespace {

using reference::Problem;

Sequence Allocate(const Heads& heads, const Sight& sight, int64_t q_len, int64_t kv_len) {
  Sequence s;
  s.q = std::make_shared<std::vector<float>>(static_cast<size_t>(q_len * heads.num_q_heads * heads.qk_dim));
  s.k = std::make_shared<std::vector<float>>(static_cast<size_t>(kv_len * heads.num_kv_heads * heads.qk_dim));
  s.v = std::make_shared<std::vector<float>>(static_cast<size_t>(kv_len * heads.num_kv_heads * heads.v_dim));
  Problem& p = s.problem;
  p.num_q_heads = heads.num_q_heads;
  p.num_kv_heads = heads.num_kv_heads;
  p.qk_dim = heads.qk_dim;
  p.v_dim = heads.v_dim;
  p.q_len = q_len;
  p.kv_len = kv_len;
  p.q = s.q->data();
  p.k = s.k->data();
  p.v = s.v->data();
  // The contract's default, not the library's idea of it.
  p.scale = heads.qk_dim > 0 ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(heads.qk_dim))) : 1.0f;
  p.causal = sight.causal;
  p.window = sight.window;
  p.window_right = sight.window_right;
  p.num_always_visible = sight.num_always_visible;
  p.chunk = sight.chunk;
  p.softcap = sight.softcap;
  return s;
}

}  // namespace

Sequence Sequence::Rows(int64_t begin, int64_t end, int64_t kv_len) const {
  Sequence rows = *this;
  rows.problem.q = problem.q + begin * problem.num_q_heads * problem.qk_dim;
  rows.problem.q_len = end - begin;
  rows.problem.kv_len = kv_len;
  if (problem.q_pos.has_value()) rows.problem.q_pos = *problem.q_pos + begin;
  if (problem.bias != nullptr) rows.problem.bias += begin * problem.bias_row_stride;
  if (problem.mask != nullptr) rows.problem.mask += begin * problem.mask_row_stride;
  return rows;
}

void Sequence::SetBias(std::shared_ptr<std::vector<float>> data, int64_t head_stride, int64_t row_stride) {
  bias = std::move(data);
  if (bias->empty()) bias->resize(1);  // of no keys; still a bias, and not null
  problem.bias = bias->data();
  problem.bias_head_stride = head_stride;
  problem.bias_row_stride = row_stride;
}

void Sequence::SetMask(std::shared_ptr<std::vector<uint8_t>> data, int64_t head_stride, int64_t row_stride) {
  mask = std::move(data);
  if (mask->empty()) mask->resize(1);
  problem.mask = mask->data();
  problem.mask_head_stride = head_stride;
  problem.mask_row_stride = row_stride;
}

void Sequence::SetSlopes(std::shared_ptr<std::vector<float>> data) {
  slopes = std::move(data);
  problem.alibi_slopes = slopes->data();
}

void Sequence::SetSinks(std::shared_ptr<std::vector<float>> data) {
  sinks = std::move(data);
  problem.sinks = sinks->data();
}

void Sequence::SetTree(std::vector<uint8_t> data) {
  tree = std::make_shared<std::vector<uint8_t>>(std::move(data));
  if (tree->empty()) tree->resize(1);
  problem.tree = tree->data();
}

Sequence RandomSequence(Random& random, const Heads& heads, const Sight& sight, int64_t q_len, int64_t kv_len) {
  Sequence s = Allocate(heads, sight, q_len, kv_len);
  random.Fill(s.q->data(), s.q->size());
  random.Fill(s.k->data(), s.k->size());
  random.Fill(s.v->data(), s.v->size());
  return s;
}

Sequence PositionSequence(const Sight& sight, int64_t q_len, int64_t kv_len, const Heads& heads) {
  Sequence s = Allocate(heads, sight, q_len, kv_len);
  Random random(99);
  random.Fill(s.k->data(), s.k->size());  // times q = 0
  const int64_t row = heads.num_kv_heads * heads.v_dim;
  for (size_t i = 0; i < s.v->size(); ++i) (*s.v)[i] = static_cast<float>(static_cast<int64_t>(i) / row);
  return s;
}

Sequence WithValuesInKeys(const Sequence& sequence) {
  Sequence s = sequence;
  s.values_in_keys = true;
  s.v = s.k;
  s.problem.v = s.problem.k;
  s.problem.v_token_stride = s.problem.num_kv_heads * s.problem.qk_dim;
  s.problem.v_head_stride = s.problem.qk_dim;
  return s;
}

Sequence WithSeparateValues(const Sequence& sequence) {
  Sequence s = sequence;
  const Problem& p = sequence.problem;
  s.values_in_keys = false;
  s.v = std::make_shared<std::vector<float>>();
  for (int64_t key = 0; key < p.kv_len; ++key) {
    for (int64_t g = 0; g < p.num_kv_heads; ++g) {
      const float* row = ValueRow(p, g * (p.num_q_heads / p.num_kv_heads), key);
      s.v->insert(s.v->end(), row, row + p.v_dim);
    }
  }
  s.problem.v = s.v->data();
  s.problem.v_token_stride = s.problem.v_head_stride = 0;
  return s;
}

reference::OutType OutTypeOf(DType dtype) {
  return dtype == DType::kF16    ? reference::OutType::kF16
         : dtype == DType::kBF16 ? reference::OutType::kBF16
                                 : reference::OutType::kF32;
}

void RoundAll(std::vector<float>& data, DType dtype) {
  for (float& x : data) x = reference::RoundTo(OutTypeOf(dtype), x);
}

reference::QuantizedType QuantizedTypeOf(DType dtype) {
  return dtype == DType::kI8       ? reference::QuantizedType::kI8
         : dtype == DType::kF8E4M3 ? reference::QuantizedType::kF8E4M3
                                   : reference::QuantizedType::kI4;
}

void RoundRows(std::vector<float>& rows, DType dtype, int64_t dim) {
  if (!IsQuantized(dtype)) return RoundAll(rows, dtype);
  const reference::QuantizedType type = QuantizedTypeOf(dtype);
  for (size_t i = 0; dim > 0 && i < rows.size(); i += static_cast<size_t>(dim)) {
    const std::vector<float> row = Dequantize(type, reference::Quantize(type, &rows[i], dim));
    std::copy(row.begin(), row.end(), rows.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::vector<uint8_t> RandomTree(Random& random, int64_t num_drafted) {
  std::vector<uint8_t> tree(static_cast<size_t>(num_drafted * num_drafted), 0);
  for (int64_t i = 0; i < num_drafted; ++i) {
    uint8_t* row = tree.data() + i * num_drafted;
    // -1: follows the kept tokens. Recent tokens are likelier parents, so that there are long branches.
    const int64_t parent = random.Int(std::max<int64_t>(-1, i - 3), i - 1);
    if (parent >= 0) std::copy_n(tree.data() + parent * num_drafted, num_drafted, row);
    row[i] = 1;
  }
  return tree;
}

std::string Describe(const Problem& p) {
  static constexpr const char* kCausal[] = {"full", "bottom-right", "top-left"};
  static constexpr const char* kOut[] = {"f32", "f16", "bf16"};
  std::string text = "heads " + std::to_string(p.num_q_heads) + "/" + std::to_string(p.num_kv_heads) + " dims " +
                     std::to_string(p.qk_dim) + "/" + std::to_string(p.v_dim) + " q_len " + std::to_string(p.q_len) +
                     " kv_len " + std::to_string(p.kv_len) + " " + kCausal[static_cast<int>(p.causal)] + " window " +
                     std::to_string(p.window);
  const auto add = [&](bool is_set, const char* name, int64_t value) {
    if (is_set) text += std::string(" ") + name + " " + std::to_string(value);
  };
  add(p.window_right >= 0, "right", p.window_right);
  add(p.num_always_visible > 0, "always", p.num_always_visible);
  add(p.chunk > 0, "chunk", p.chunk);
  add(p.prefix_len > 0, "prefix", p.prefix_len);
  if (p.q_pos.has_value()) text += " q_pos " + std::to_string(*p.q_pos);
  if (p.softcap > 0.0f) text += " softcap " + std::to_string(p.softcap);
  if (p.bias != nullptr) text += " bias";
  if (p.mask != nullptr) text += " mask";
  if (p.tree != nullptr) text += " tree";
  if (p.alibi_slopes != nullptr) text += " alibi";
  if (p.sinks != nullptr) text += " sinks";
  if (p.v_token_stride != 0) text += " values in keys";
  if (p.out_type != reference::OutType::kF32) text += std::string(" out ") + kOut[static_cast<int>(p.out_type)];
  return text;
}

}  // namespace headlane::testing
