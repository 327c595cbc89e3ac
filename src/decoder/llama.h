// The forward pass of a llama-architecture model: token ids of any number of sequences through all layers.
//
// Separate from the session, which owns the memory and decides what to feed, so that the pass can be read in one
// sitting. It works on a list of (sequence, ids), so that one pass serves a prompt's chunk, a single step, and a batch
// of both. Called by session_core.cc.
#ifndef HEADLANE_SRC_DECODER_LLAMA_H_
#define HEADLANE_SRC_DECODER_LLAMA_H_

#include <cstdint>
#include <span>
#include <vector>

#include "decoder/layers.h"
#include "decoder/llama_config.h"
#include "decoder/llama_weights.h"
#include "decoder/many_rows.h"
#include "decoder/model_weights.h"
#include "headlane/attention.h"
#include "headlane/decoder.h"
#include "headlane/kv_cache.h"
#include "headlane/status.h"

namespace headlane::internal {

// A loaded model; views.
struct LlamaModel {
  const LlamaConfig& config;
  const TensorRows& embedding;
  bool embedding_in_head;  // the head's weights are the embedding, and can be read
  const LlamaWeights& weights;
  const ManyRows* many_rows;  // null: tiles for all
};

// The next tokens of one sequence.
struct SequenceTokens {
  SequenceId sequence;
  std::span<const int32_t> ids;  // each in [0, vocab_size)
};

// Everything a pass writes besides the cache, for up to max_tokens tokens together.
struct LlamaScratch {
  static Result<LlamaScratch> Create(const LlamaModel& model, int64_t max_tokens, int64_t max_sequences);
  int64_t bytes() const noexcept;

  int64_t max_tokens = 0;
  FloatBuffer x;                   // [tokens][width] residual stream; after a pass: what comes out of the last layer
  FloatBuffer h;                   // [tokens][width] normed input, or output, of a half-layer
  FloatBuffer qkv;                 // [tokens][q_width + k_width + v_width]
  FloatBuffer attention;           // [tokens][num_q_heads][v_dim]
  FloatBuffer ff;                  // [tokens][ff_width]
  FloatBuffer linear;              // what layers that are not our tiles write besides
  FloatBuffer cos, sin;            // [tokens][rotary_dim / 2]
  std::vector<int32_t> ids;        // [max_tokens]
  std::vector<int64_t> positions;  // [max_tokens]
  std::vector<SequenceSpec> sequences;  // [max_sequences]
  std::vector<int64_t> first_piece;     // [max_sequences + 1] of each sequence: what is rotated and appended together
  LayerObserver observer;               // empty: nobody looks
  FloatBuffer observed;                 // as many floats as qkv: the three one behind the other, when somebody does
};

// The spec of the model's attention layers.
AttentionSpec LlamaAttentionSpec(const LlamaConfig& config) noexcept;

// Appends the tokens of `batch` to their sequences; scratch.x then has their rows, one sequence after the other.
// `stats` gets times and bytes (not tokens, calls and total). All or nothing: on an error no sequence has changed.
// Requires: at most max_tokens tokens, max_sequences sequences, no sequence twice, `plan` made over `cache` for that
// many. Errors: those of the cache and of attention. Allocation: none.
Status LlamaForward(const LlamaModel& model, std::span<const SequenceTokens> batch, KVCache& cache, AttentionPlan& plan,
                    Workspace& workspace, LlamaScratch& scratch, Executor& executor, PhaseStats& stats) noexcept;

// logits [num_rows][vocab_size] of rows [row, row + num_rows) of scratch.x; overwrites as many rows of scratch.h.
// Allocation: none.
Status LlamaLogits(const LlamaModel& model, LlamaScratch& scratch, int64_t row, int64_t num_rows, float* logits,
                   Executor& executor, PhaseStats& stats) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_LLAMA_H_
