// Tensors of a llama-architecture model: which there are, and where their rows come from.
//
// Separate from the layers that are made of them (llama_weights.h), so that a file can be looked at without loading it.
// Called by Model, llama_weights.cc and model_identity.cc.
#ifndef HEADLANE_SRC_DECODER_MODEL_WEIGHTS_H_
#define HEADLANE_SRC_DECODER_MODEL_WEIGHTS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decoder/gguf.h"
#include "decoder/llama_config.h"
#include "headlane/linear.h"
#include "headlane/status.h"

namespace headlane::internal {

// Rows of one tensor [num_rows][row_len] as f32: expanded from the file each time, or pseudo-random. Views the file.
class TensorRows {
 public:
  TensorRows() noexcept = default;
  explicit TensorRows(const GgufTensor& tensor) noexcept;
  // Value (row, i) = offset + amplitude * u, u in [-1, 1) from a hash of (seed, row, i).
  TensorRows(uint64_t seed, int64_t num_rows, int64_t row_len, float offset, float amplitude) noexcept;

  int64_t num_rows() const noexcept { return num_rows_; }
  int64_t row_len() const noexcept { return row_len_; }
  int64_t size() const noexcept { return num_rows_ * row_len_; }
  int64_t file_row_bytes() const noexcept;  // 0 when pseudo-random

  // Writes row_len floats. Requires: 0 <= row < num_rows. Allocation: none. Threads: any.
  Status Read(int64_t row, float* out) const noexcept;
  // For Linear::Create, as they are stored; with `expand`, or pseudo-random, as f32. Valid as long as this object stays
  // where it is.
  LinearPart AsLinearPart(bool expand) const noexcept;

 private:
  std::span<const uint8_t> data_;  // empty when pseudo-random
  TensorType type_ = TensorType::kF32;
  int64_t num_rows_ = 0;
  int64_t row_len_ = 0;
  uint64_t seed_ = 0;
  float offset_ = 0;
  float amplitude_ = 0;
};

// Shapes [out_features][in_features]; vectors have one row.
struct LlamaLayerTensors {
  TensorRows attention_norm;  // [width]
  TensorRows q;               // [q_width][width]
  TensorRows k;               // [k_width][width]
  TensorRows v;               // [v_width][width]
  TensorRows o;               // [width][attention_width]
  TensorRows ff_norm;         // [width]
  TensorRows gate;            // [ff_width][width]
  TensorRows up;              // [ff_width][width]
  TensorRows down;            // [width][ff_width]
  std::optional<TensorRows> q_bias, k_bias, v_bias, o_bias;
};

struct LlamaTensors {
  TensorRows embedding;  // [vocab_size][width]
  std::vector<LlamaLayerTensors> layers;
  TensorRows output_norm;          // [width]
  std::optional<TensorRows> head;  // [vocab_size][width]; empty: the embedding is the head
  std::string weight_type;         // that most weights have: "Q4_1"
  int64_t num_parameters = 0;      // as stored: a tied head counts once
};

// Finds every tensor and checks its shape; nothing is read from them. Errors: kNotFound, kDataLoss (shape: names both;
// more tensor bytes than the file has), kUnsupported (a tensor that is no part of this architecture: it would be
// ignored silently).
Result<LlamaTensors> FindLlamaTensors(const GgufFile& file, const LlamaConfig& config);

// The same shapes, pseudo-random, scaled so that activations neither vanish nor explode.
LlamaTensors MakeSyntheticTensors(const LlamaConfig& config, bool tied_head, uint64_t seed);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_MODEL_WEIGHTS_H_
