// The packed layers of a llama-architecture model, as the forward pass uses them, and loading them.
//
// Separate from the tensors they are made of: those are a file's, and nothing of the file is needed after loading but
// the rows of an embedding that is not the head, too. Called by Model.
#ifndef HEADLANE_SRC_DECODER_LLAMA_WEIGHTS_H_
#define HEADLANE_SRC_DECODER_LLAMA_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "decoder/mapped_file.h"
#include "decoder/model_weights.h"
#include "headlane/decoder.h"
#include "headlane/linear.h"
#include "headlane/status.h"

namespace headlane::internal {

struct LlamaLayer {
  std::vector<float> attention_norm, ff_norm;  // [width]
  // Never empty after loading. Biases are in the layers.
  std::optional<Linear> qkv;      // [q_width + k_width + v_width][width]
  std::optional<Linear> o;        // [width][attention_width], added to the residual stream
  std::optional<Linear> gate_up;  // [2 * ff_width][width], one output: silu(gate) * up
  std::optional<Linear> down;     // [width][ff_width], added to the residual stream
};

struct LlamaWeights {
  MappedFile packed;  // what the layers view, if they were made by an earlier start; so it goes last
  std::vector<LlamaLayer> layers;
  std::vector<float> output_norm;  // [width]
  std::optional<Linear> head;      // [vocab_size][width], never empty after loading
  int64_t layer_bytes = 0;         // Linear::weight_bytes of all layers together
  int64_t head_bytes = 0;
  int64_t layer_parameters = 0;  // of the layers' matrices
  int64_t head_parameters = 0;
  PackedWeights packed_weights;  // what became of options.packed_weights_path
};

// Everything is checked before anything large is allocated. `file`: the model's own, null when there is none; its pages
// are given back to the system at the end. Errors: those of Linear, InvalidArgument (options that exclude each other),
// ResourceExhausted, Cancelled. What is wrong with the packed file is none: see LlamaWeights::packed_weights.
Result<std::unique_ptr<LlamaWeights>> LoadLlamaWeights(const LlamaTensors& tensors, const MappedFile* file,
                                                       const LoadOptions& options, Executor& executor);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_LLAMA_WEIGHTS_H_
