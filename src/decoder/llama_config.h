// Shape and numbers of a llama-architecture model, read from a file's metadata and checked.
//
// Separate from the weights so that a file can be looked at, refused, and its text tokenised without loading them.
// Called by Model::Open and by the synthetic models.
#ifndef HEADLANE_SRC_DECODER_LLAMA_CONFIG_H_
#define HEADLANE_SRC_DECODER_LLAMA_CONFIG_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "decoder/gguf.h"
#include "headlane/ops.h"
#include "headlane/status.h"

namespace headlane::internal {

// Far above any model of this architecture; a file beyond them is damaged.
inline constexpr uint32_t kMaxLayers = 512;
inline constexpr uint32_t kMaxWidth = 1u << 20;
inline constexpr uint32_t kMaxHeads = 1u << 14;
inline constexpr uint32_t kMaxHeadDim = 1u << 14;
inline constexpr int64_t kMaxVocabularySize = 1 << 20;

struct LlamaConfig {
  int64_t num_layers = 0;
  int64_t width = 0;
  int64_t ff_width = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t qk_dim = 0;
  int64_t v_dim = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  float norm_epsilon = 0;
  std::optional<float> attention_scale;  // of the scores; the operator's default when empty
  RopeSpec rope;                         // without frequency_divisors: those are `rope_divisors`
  std::vector<float> rope_divisors;      // [rope.rotary_dim / 2], or empty

  int64_t q_width() const noexcept { return num_q_heads * qk_dim; }
  int64_t k_width() const noexcept { return num_kv_heads * qk_dim; }
  int64_t v_width() const noexcept { return num_kv_heads * v_dim; }
  int64_t attention_width() const noexcept { return num_q_heads * v_dim; }
  // With frequency_divisors filled in; valid as long as this object stays where it is.
  RopeSpec RopeOf() const noexcept;
};

// Errors: kUnsupported (architecture, RoPE scaling, mixture of experts: names what was found and what is supported),
// kNotFound (a key or tensor), kDataLoss (numbers that contradict each other; names both).
Result<LlamaConfig> ReadLlamaConfig(const GgufFile& file);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_LLAMA_CONFIG_H_
