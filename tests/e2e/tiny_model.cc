#include "e2e/tiny_model.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "decoder/tiny_vocab.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

constexpr int64_t kTinyVocabulary = 260;  // TinyBpe without merges

// y[o] = sum_i w[o][i] * x[i] (+ bias[o])
Rows Multiply(const Rows& x, const TinyModel::Tensor& w, const TinyModel::Tensor* bias = nullptr) {
  Rows y(x.size(), Row(static_cast<size_t>(w.rows)));
  for (size_t t = 0; t < x.size(); ++t) {
    for (int64_t o = 0; o < w.rows; ++o) {
      double sum = bias != nullptr ? static_cast<double>(bias->values[static_cast<size_t>(o)]) : 0.0;
      for (int64_t i = 0; i < w.row_len; ++i) {
        sum += static_cast<double>(w.values[static_cast<size_t>(o * w.row_len + i)]) * x[t][static_cast<size_t>(i)];
      }
      y[t][static_cast<size_t>(o)] = sum;
    }
  }
  return y;
}

Rows Norm(const Rows& x, const TinyModel::Tensor& w, double epsilon) {
  Rows y = x;
  for (Row& row : y) {
    double squares = 0;
    for (const double value : row) squares += value * value;
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(row.size()) + epsilon);
    for (size_t i = 0; i < row.size(); ++i) row[i] *= scale * static_cast<double>(w.values[i]);
  }
  return y;
}

void Add(Rows& x, const Rows& y) {
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
  }
}

}  // namespace

void TinyModel::MakeWeights(uint64_t seed) {
  Random random(seed);
  vocab_size = kTinyVocabulary;
  const auto add = [&](const std::string& name, int64_t rows, int64_t row_len, float size, float offset = 0) {
    Tensor tensor{rows, row_len, random.Floats(static_cast<size_t>(rows * row_len), size), 0, {}};
    for (float& value : tensor.values) value += offset;
    tensors[name] = std::move(tensor);
  };
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t row_len) {
    add(name, rows, row_len, std::sqrt(3.0f / static_cast<float>(row_len)));
  };
  const auto norm = [&](const std::string& name) { add(name, 1, width, 0.5f, 1.0f); };
  tensors.clear();
  add("token_embd.weight", vocab_size, width, 1.0f);
  norm("output_norm.weight");
  if (!tied_head) matrix("output.weight", vocab_size, width);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const std::string p = "blk." + std::to_string(layer) + ".";
    norm(p + "attn_norm.weight");
    matrix(p + "attn_q.weight", num_q_heads * qk_dim, width);
    matrix(p + "attn_k.weight", num_kv_heads * qk_dim, width);
    matrix(p + "attn_v.weight", num_kv_heads * v_dim, width);
    matrix(p + "attn_output.weight", width, num_q_heads * v_dim);
    norm(p + "ffn_norm.weight");
    matrix(p + "ffn_gate.weight", ff_width, width);
    matrix(p + "ffn_up.weight", ff_width, width);
    matrix(p + "ffn_down.weight", width, ff_width);
    if (biases) {
      add(p + "attn_q.bias", 1, num_q_heads * qk_dim, 1.0f);
      add(p + "attn_k.bias", 1, num_kv_heads * qk_dim, 1.0f);
      add(p + "attn_v.bias", 1, num_kv_heads * v_dim, 1.0f);
      add(p + "attn_output.bias", 1, width, 1.0f);
    }
  }
}

GgufWriter TinyModel::Writer() const {
  GgufWriter writer;
  const auto u32 = [](int64_t value) { return static_cast<uint32_t>(value); };
  writer.Add("general.architecture", "llama")
      .Add("general.name", "tiny")
      .Add("llama.block_count", u32(num_layers))
      .Add("llama.embedding_length", u32(width))
      .Add("llama.feed_forward_length", u32(ff_width))
      .Add("llama.attention.head_count", u32(num_q_heads))
      .Add("llama.attention.head_count_kv", u32(num_kv_heads))
      .Add("llama.attention.layer_norm_rms_epsilon", epsilon)
      .Add("llama.context_length", context_length)
      .Add("llama.rope.freq_base", static_cast<float>(rope_base))
      .Add("llama.rope.dimension_count", u32(rotary_dim));
  if (qk_dim * num_q_heads != width) writer.Add("llama.attention.key_length", u32(qk_dim));
  if (v_dim != qk_dim) writer.Add("llama.attention.value_length", u32(v_dim));
  if (rope_linear_factor != 0 && former_scale_key) {
    writer.Add("llama.rope.scale_linear", static_cast<float>(rope_linear_factor));
  } else if (rope_linear_factor != 0) {
    writer.Add("llama.rope.scaling.type", "linear")
        .Add("llama.rope.scaling.factor", static_cast<float>(rope_linear_factor));
  }
  if (rope_yarn_factor != 0) {
    writer.Add("llama.rope.scaling.type", "yarn")
        .Add("llama.rope.scaling.factor", static_cast<float>(rope_yarn_factor))
        .Add("llama.rope.scaling.original_context_length", uint32_t{32});
  }
  if (rope_attention_factor != 1) {
    writer.Add("llama.rope.scaling.attn_factor", static_cast<float>(rope_attention_factor));
  }
  if (attention_scale != 0) writer.Add("llama.attention.scale", static_cast<float>(attention_scale));
  TinyBpe().AddTo(&writer);
  for (const auto& [name, tensor] : tensors) {
    std::vector<uint64_t> dims = {static_cast<uint64_t>(tensor.row_len)};
    if (tensor.rows > 1) dims.push_back(static_cast<uint64_t>(tensor.rows));
    if (tensor.bytes.empty()) {
      writer.AddTensorF32(name, dims, tensor.values);
    } else {
      writer.AddTensor(name, tensor.type, dims, tensor.bytes);
    }
  }
  if (!rope_divisors.empty()) writer.AddTensorF32("rope_freqs.weight", {rope_divisors.size()}, rope_divisors);
  return writer;
}

std::vector<std::vector<double>> TinyModel::Logits(const std::vector<int32_t>& ids) const {
  const Tensor& embedding = tensors.at("token_embd.weight");
  Rows x;
  for (const int32_t id : ids) {
    const auto begin = embedding.values.begin() + id * width;
    x.emplace_back(begin, begin + width);
  }
  const auto rotate = [&](Rows& rows, int64_t heads) {
    for (size_t t = 0; t < rows.size(); ++t) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t pair = 0; pair < rotary_dim / 2; ++pair) {
          double angle = static_cast<double>(t) *
                         std::pow(rope_base, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
          if (rope_linear_factor != 0) angle /= rope_linear_factor;
          double turn = rope_attention_factor;
          if (rope_yarn_factor != 0) {
            // Pairs up to index low turn 32 times within 32 positions, from high on less than once.
            const auto index = [&](double turns) {
              return static_cast<double>(rotary_dim) * std::log(32.0 / (turns * 2.0 * std::acos(-1.0))) /
                     (2.0 * std::log(rope_base));
            };
            const double low = std::max(std::floor(index(32.0)), 0.0), high = std::ceil(index(1.0));
            const double kept = 1.0 - std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
            angle *= kept + (1.0 - kept) / rope_yarn_factor;
            turn *= 1.0 + 0.1 * std::log(rope_yarn_factor);
          }
          if (!rope_divisors.empty()) angle /= static_cast<double>(rope_divisors[static_cast<size_t>(pair)]);
          double* p = rows[t].data() + head * qk_dim + 2 * pair;
          const double even = p[0];
          p[0] = turn * (even * std::cos(angle) - p[1] * std::sin(angle));
          p[1] = turn * (even * std::sin(angle) + p[1] * std::cos(angle));
        }
      }
    }
  };
  const double scale = attention_scale != 0 ? static_cast<double>(static_cast<float>(attention_scale))
                                            : 1.0 / std::sqrt(static_cast<double>(qk_dim));
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const std::string p = "blk." + std::to_string(layer) + ".";
    const auto bias = [&](const std::string& name) { return biases ? &tensors.at(p + name) : nullptr; };
    const Rows h = Norm(x, tensors.at(p + "attn_norm.weight"), static_cast<double>(epsilon));
    Rows q = Multiply(h, tensors.at(p + "attn_q.weight"), bias("attn_q.bias"));
    Rows k = Multiply(h, tensors.at(p + "attn_k.weight"), bias("attn_k.bias"));
    const Rows v = Multiply(h, tensors.at(p + "attn_v.weight"), bias("attn_v.bias"));
    rotate(q, num_q_heads);
    rotate(k, num_kv_heads);
    Rows attended(ids.size(), Row(static_cast<size_t>(num_q_heads * v_dim)));
    for (size_t t = 0; t < ids.size(); ++t) {
      for (int64_t head = 0; head < num_q_heads; ++head) {
        const int64_t group = head / (num_q_heads / num_kv_heads);
        Row weights(t + 1);
        double sum = 0;
        for (size_t key = 0; key <= t; ++key) {
          const bool is_new = window == 0 || static_cast<int64_t>(t - key) < window;
          if (!is_new && static_cast<int64_t>(key) >= num_sinks) continue;  // its weight stays 0
          double score = 0;
          for (int64_t d = 0; d < qk_dim; ++d)
            score += q[t][static_cast<size_t>(head * qk_dim + d)] * k[key][static_cast<size_t>(group * qk_dim + d)];
          weights[key] = std::exp(scale * score);  // small models have small scores: no maximum needed
          sum += weights[key];
        }
        for (int64_t d = 0; d < v_dim; ++d) {
          double& out = attended[t][static_cast<size_t>(head * v_dim + d)];
          for (size_t key = 0; key <= t; ++key)
            out += weights[key] / sum * v[key][static_cast<size_t>(group * v_dim + d)];
        }
      }
    }
    Add(x, Multiply(attended, tensors.at(p + "attn_output.weight"), bias("attn_output.bias")));
    const Rows f = Norm(x, tensors.at(p + "ffn_norm.weight"), static_cast<double>(epsilon));
    Rows gate = Multiply(f, tensors.at(p + "ffn_gate.weight"));
    const Rows up = Multiply(f, tensors.at(p + "ffn_up.weight"));
    for (size_t t = 0; t < gate.size(); ++t) {
      for (size_t i = 0; i < gate[t].size(); ++i) gate[t][i] = gate[t][i] / (1 + std::exp(-gate[t][i])) * up[t][i];
    }
    Add(x, Multiply(gate, tensors.at(p + "ffn_down.weight")));
  }
  x = Norm(x, tensors.at("output_norm.weight"), static_cast<double>(epsilon));
  return Multiply(x, tied_head ? embedding : tensors.at("output.weight"));
}

TemporaryFile::TemporaryFile(const std::vector<uint8_t>& bytes, const std::string& suffix) {
  const char* folder = std::getenv("TMPDIR");
  path_ = std::string(folder != nullptr ? folder : "/tmp") + "/headlane_test_XXXXXX" + suffix;
  const int descriptor = mkstemps(path_.data(), static_cast<int>(suffix.size()));
  if (descriptor < 0) throw std::runtime_error("mkstemps failed: " + path_);
  std::FILE* file = fdopen(descriptor, "wb");
  const bool whole = bytes.empty() || std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (std::fclose(file) != 0 || !whole) throw std::runtime_error("could not write " + path_);
}

TemporaryFile::~TemporaryFile() { unlink(path_.c_str()); }

}  // namespace headlane::testing
