// What the parts of headlane-generate share: its options, what comes out of one prompt, and the figures of a run.
#ifndef HEADLANE_TOOLS_GENERATE_H_
#define HEADLANE_TOOLS_GENERATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headlane/decoder.h"
#include "tools/common/cache_options.h"
#include "tools/common/model_options.h"

namespace headlane::tools {

struct GenerateOptions {
  ModelOptions model;
  CacheOptions cache;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::string prompts_file;
  bool chat = false, raw = false, literal = false;
  std::optional<std::string> system;
  int64_t max_tokens = 256;
  SamplingOptions sampling;
  std::string save_cache, load_cache;
  int threads = 0;
  int64_t chunk = SessionOptions().chunk;
  bool json = false;
};

// One prompt and what follows it.
struct Generation {
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> ids;
  std::string text;
  bool ended = false;
  Json first_logits, last_logits;
};

// Of a run: one session or one batch.
struct RunFigures {
  SessionOptions options;
  SessionMemory memory;
  int num_workers = 0;
  PhaseStats prompt_stats, step_stats;
  double load_seconds = 0;
  double first_token_seconds = 0;    // from the start of the prompt
  std::vector<double> step_seconds;  // sorted
  int64_t num_tokens = 0;            // of all sequences
  int64_t reused_tokens = 0;         // of prompts, that were not computed
};

Result<std::vector<int32_t>> EncodePrompt(const GenerateOptions& options, const Model& model, std::string_view text);
// For prompts of up to so many tokens; says so when it is more than the model was made for. Errors: as SetCacheOptions.
Result<SessionOptions> MakeSessionOptions(const GenerateOptions& options, const Model& model, int64_t prompt_tokens);

// The 8 best of a row of logits, ties by the lower id, and a hash of its bits.
Json LogitsJson(std::span<const float> logits);
Json GenerationJson(const Generation& generation);
// Null figures: nothing was loaded.
Json TimingsJson(const GenerateOptions& options, const Model& model, const RunFigures* figures);
// The table on standard error.
void PrintFigures(const Model& model, const RunFigures& figures);

// --prompts-file: all prompts as one batch.
Status GenerateBatch(const GenerateOptions& options, Model& model);

}  // namespace headlane::tools

#endif  // HEADLANE_TOOLS_GENERATE_H_
