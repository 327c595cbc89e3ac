#include "decoder/model_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace headlane::internal {
namespace {

// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection that mixes well enough for weights nobody reads.
uint64_t Mix(uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Finds tensors by name, keeps which ones were asked for, and counts what types they have.
class Finder {
 public:
  explicit Finder(const GgufFile& file) : file_(file) {}

  Result<TensorRows> Matrix(std::string_view name, int64_t out_features, int64_t in_features) {
    return Find(name, {in_features, out_features});
  }
  Result<TensorRows> Vector(std::string_view name, int64_t n) { return Find(name, {n}); }
  Status OptionalVector(std::string_view name, int64_t n, std::optional<TensorRows>& out) {
    if (file_.FindTensor(name) == nullptr) return OkStatus();
    HEADLANE_ASSIGN_OR_RETURN(out, Vector(name, n));
    return OkStatus();
  }

  void MarkUsed(std::string_view name) {
    if (const GgufTensor* tensor = file_.FindTensor(name)) Count(*tensor);
  }

  // After everything was asked for.
  Status Finish(LlamaTensors& tensors) {
    std::sort(used_.begin(), used_.end());
    for (const GgufTensor& tensor : file_.tensors()) {
      if (std::binary_search(used_.begin(), used_.end(), tensor.name)) continue;
      return MakeStatus(StatusCode::kUnsupported,
                        "tensor '%.*s' is no part of the architecture llama as supported here",
                        static_cast<int>(std::min<size_t>(tensor.name.size(), 96)), tensor.name.data());
    }
    // Each parameter is stored once, or a small file could claim many times its size in weights.
    if (num_bytes_ > static_cast<int64_t>(file_.bytes().size())) {
      return MakeStatus(StatusCode::kDataLoss, "tensors overlap: they have %lld bytes, and the file %lld",
                        static_cast<long long>(num_bytes_), static_cast<long long>(file_.bytes().size()));
    }
    const auto most = std::max_element(by_type_.begin(), by_type_.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != by_type_.end()) tensors.weight_type = TensorTypeName(static_cast<uint32_t>(most->first));
    tensors.num_parameters = num_parameters_;
    return OkStatus();
  }

 private:
  Result<TensorRows> Find(std::string_view name, std::initializer_list<int64_t> dims) {
    HEADLANE_ASSIGN_OR_RETURN(const GgufTensor tensor, file_.GetTensor(name, dims));
    Count(tensor);
    return TensorRows(tensor);
  }

  void Count(const GgufTensor& tensor) {
    const int64_t size = tensor.row_len() * tensor.num_rows();
    used_.push_back(tensor.name);
    num_parameters_ += size;
    num_bytes_ += static_cast<int64_t>(tensor.data.size());
    for (auto& [type, total] : by_type_) {
      if (type == tensor.type) {
        total += size;
        return;
      }
    }
    by_type_.emplace_back(tensor.type, size);
  }

  const GgufFile& file_;
  std::vector<std::string_view> used_;
  std::vector<std::pair<TensorType, int64_t>> by_type_;
  int64_t num_parameters_ = 0;
  int64_t num_bytes_ = 0;
};

class LayerName {
 public:
  LayerName(int64_t layer, const char* part) {
    length_ = std::snprintf(text_, sizeof(text_), "blk.%lld.%s", static_cast<long long>(layer), part);
  }
  operator std::string_view() const { return {text_, static_cast<size_t>(length_)}; }  // NOLINT: a name is a text

 private:
  char text_[64];
  int length_;
};

// A file's reader lets no other types through than these.
WeightFormat FormatOf(TensorType type) noexcept {
  switch (type) {
    case TensorType::kF32:
      return WeightFormat::kF32;
    case TensorType::kF16:
      return WeightFormat::kF16;
    case TensorType::kBF16:
      return WeightFormat::kBF16;
    case TensorType::kQ4_0:
      return WeightFormat::kQ4_0;
    case TensorType::kQ4_1:
      return WeightFormat::kQ4_1;
    case TensorType::kQ5_0:
      return WeightFormat::kQ5_0;
    case TensorType::kQ5_1:
      return WeightFormat::kQ5_1;
    case TensorType::kQ8_0:
      return WeightFormat::kQ8_0;
    case TensorType::kQ4_K:
      return WeightFormat::kQ4_K;
    case TensorType::kQ5_K:
      return WeightFormat::kQ5_K;
    case TensorType::kQ6_K:
      return WeightFormat::kQ6_K;
  }
  return static_cast<WeightFormat>(-1);  // refused by Linear
}

}  // namespace

TensorRows::TensorRows(const GgufTensor& tensor) noexcept
    : data_(tensor.data), type_(tensor.type), num_rows_(tensor.num_rows()), row_len_(tensor.row_len()) {}

TensorRows::TensorRows(uint64_t seed, int64_t num_rows, int64_t row_len, float offset, float amplitude) noexcept
    : num_rows_(num_rows), row_len_(row_len), seed_(seed), offset_(offset), amplitude_(amplitude) {}

int64_t TensorRows::file_row_bytes() const noexcept {
  return num_rows_ > 0 ? static_cast<int64_t>(data_.size()) / num_rows_ : 0;
}

Status TensorRows::Read(int64_t row, float* out) const noexcept {
  if (!data_.empty()) {
    const int64_t bytes = file_row_bytes();
    return DequantizeRow(type_, data_.subspan(static_cast<size_t>(row * bytes), static_cast<size_t>(bytes)), row_len_,
                         out);
  }
  // Two values from each hash. Multiples of 2^-31 in [-1, 1): the conversions are plain IEEE and the same everywhere.
  const uint64_t row_seed = Mix(seed_ ^ Mix(static_cast<uint64_t>(row)));
  for (int64_t i = 0; i < row_len_; i += 2) {
    const uint64_t bits = Mix(row_seed + static_cast<uint64_t>(i));
    const auto value = [&](uint64_t half) {
      return offset_ + amplitude_ * (static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(half))) * 0x1p-31f);
    };
    out[i] = value(bits);
    if (i + 1 < row_len_) out[i + 1] = value(bits >> 32);
  }
  return OkStatus();
}

LinearPart TensorRows::AsLinearPart(bool expand) const noexcept {
  LinearPart part;
  part.out_features = num_rows_;
  if (!data_.empty() && !expand) {
    part.format = FormatOf(type_);
    part.rows.data = data_.data();
    part.rows.data_bytes = static_cast<int64_t>(data_.size());
    return part;
  }
  part.rows.context = this;
  part.rows.read = [](const void* context, int64_t row, void* out) noexcept {
    return static_cast<const TensorRows*>(context)->Read(row, static_cast<float*>(out));
  };
  return part;
}

Result<LlamaTensors> FindLlamaTensors(const GgufFile& file, const LlamaConfig& c) {
  Finder find(file);
  LlamaTensors tensors;
  HEADLANE_ASSIGN_OR_RETURN(tensors.embedding, find.Matrix("token_embd.weight", c.vocab_size, c.width));
  HEADLANE_ASSIGN_OR_RETURN(tensors.output_norm, find.Vector("output_norm.weight", c.width));
  if (file.FindTensor("output.weight") != nullptr) {
    HEADLANE_ASSIGN_OR_RETURN(tensors.head, find.Matrix("output.weight", c.vocab_size, c.width));
  }
  tensors.layers.resize(static_cast<size_t>(c.num_layers));
  for (int64_t i = 0; i < c.num_layers; ++i) {
    LlamaLayerTensors& layer = tensors.layers[static_cast<size_t>(i)];
    const auto name = [i](const char* part) { return LayerName(i, part); };
    HEADLANE_ASSIGN_OR_RETURN(layer.attention_norm, find.Vector(name("attn_norm.weight"), c.width));
    HEADLANE_ASSIGN_OR_RETURN(layer.q, find.Matrix(name("attn_q.weight"), c.q_width(), c.width));
    HEADLANE_ASSIGN_OR_RETURN(layer.k, find.Matrix(name("attn_k.weight"), c.k_width(), c.width));
    HEADLANE_ASSIGN_OR_RETURN(layer.v, find.Matrix(name("attn_v.weight"), c.v_width(), c.width));
    HEADLANE_ASSIGN_OR_RETURN(layer.o, find.Matrix(name("attn_output.weight"), c.width, c.attention_width()));
    HEADLANE_ASSIGN_OR_RETURN(layer.ff_norm, find.Vector(name("ffn_norm.weight"), c.width));
    HEADLANE_ASSIGN_OR_RETURN(layer.gate, find.Matrix(name("ffn_gate.weight"), c.ff_width, c.width));
    HEADLANE_ASSIGN_OR_RETURN(layer.up, find.Matrix(name("ffn_up.weight"), c.ff_width, c.width));
    HEADLANE_ASSIGN_OR_RETURN(layer.down, find.Matrix(name("ffn_down.weight"), c.width, c.ff_width));
    HEADLANE_RETURN_IF_ERROR(find.OptionalVector(name("attn_q.bias"), c.q_width(), layer.q_bias));
    HEADLANE_RETURN_IF_ERROR(find.OptionalVector(name("attn_k.bias"), c.k_width(), layer.k_bias));
    HEADLANE_RETURN_IF_ERROR(find.OptionalVector(name("attn_v.bias"), c.v_width(), layer.v_bias));
    HEADLANE_RETURN_IF_ERROR(find.OptionalVector(name("attn_output.bias"), c.width, layer.o_bias));
  }
  find.MarkUsed("rope_freqs.weight");  // ReadLlamaConfig has read it
  HEADLANE_RETURN_IF_ERROR(find.Finish(tensors));
  return tensors;
}

LlamaTensors MakeSyntheticTensors(const LlamaConfig& c, bool tied_head, uint64_t seed) {
  LlamaTensors tensors;
  uint64_t next_seed = Mix(seed);
  const auto random = [&](int64_t rows, int64_t row_len, float offset, float amplitude) {
    tensors.num_parameters += rows * row_len;
    next_seed = Mix(next_seed);
    return TensorRows(next_seed, rows, row_len, offset, amplitude);
  };
  const auto norm = [&] { return random(1, c.width, 1.0f, 0.1f); };
  // A uniform u of amplitude a has variance a^2 / 3, so that with a^2 = 3 / in_features an output varies as much as an
  // input does.
  const auto matrix = [&](int64_t out_features, int64_t in_features, float gain = 1.0f) {
    return random(out_features, in_features, 0.0f, gain * std::sqrt(3.0f / static_cast<float>(in_features)));
  };
  // Small beside what the layers add: otherwise a tied head would only ever repeat its input.
  tensors.embedding = random(c.vocab_size, c.width, 0.0f, 0.1f);
  const float residual_gain = 1.0f / std::sqrt(2.0f * static_cast<float>(c.num_layers));
  tensors.layers.resize(static_cast<size_t>(c.num_layers));
  for (LlamaLayerTensors& layer : tensors.layers) {
    layer.attention_norm = norm();
    layer.q = matrix(c.q_width(), c.width);
    layer.k = matrix(c.k_width(), c.width);
    layer.v = matrix(c.v_width(), c.width);
    layer.o = matrix(c.width, c.attention_width(), residual_gain);
    layer.ff_norm = norm();
    layer.gate = matrix(c.ff_width, c.width);
    layer.up = matrix(c.ff_width, c.width);
    layer.down = matrix(c.width, c.ff_width, residual_gain);
  }
  tensors.output_norm = norm();
  if (!tied_head) tensors.head = matrix(c.vocab_size, c.width);
  tensors.weight_type = "synthetic";
  return tensors;
}

}  // namespace headlane::internal
