// How far attention over a cache's rounded keys and values is from attention over the exact ones: on random data, and
// on what a model's layers give for a text.
//
// Separate from headlane-perplexity, which prints the tables.
#ifndef HEADLANE_TOOLS_ATTENTION_ERROR_H_
#define HEADLANE_TOOLS_ATTENTION_ERROR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "headlane/decoder.h"
#include "headlane/status.h"
#include "tools/common/cache_options.h"

namespace headlane::tools {

// Differences of outputs, causal, from those over an f32 cache.
struct AttentionError {
  double square_sum = 0;            // of differences
  double reference_square_sum = 0;  // of outputs
  double largest = 0;               // difference
  double worst_rms = 0;             // of the layer where it is largest
  int64_t num_outputs = 0;

  // Root of the mean square of all differences, as a share of that of the outputs.
  double rms() const;
  // Largest difference, as a share of it.
  double max() const;
};

// One per element of `types`, over all layers of a text.
Result<std::vector<AttentionError>> ModelAttentionErrors(const Model& model, std::span<const int32_t> ids,
                                                         std::span<const CacheTypes> types, int threads,
                                                         const ProgressCallback& progress);

// The same for one layer of normally distributed queries, keys and values in the model's shape.
Result<std::vector<AttentionError>> RandomAttentionErrors(const Model& model, int64_t num_tokens, uint64_t seed,
                                                          std::span<const CacheTypes> types, int threads);

}  // namespace headlane::tools

#endif  // HEADLANE_TOOLS_ATTENTION_ERROR_H_
