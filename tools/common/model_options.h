// Which model, on how many threads, with which linear layers: the options that several programs share, and loading by
// them.
#ifndef HEADLANE_TOOLS_COMMON_MODEL_OPTIONS_H_
#define HEADLANE_TOOLS_COMMON_MODEL_OPTIONS_H_

#include <string>

#include "headlane/decoder.h"
#include "headlane/status.h"
#include "tools/common/arguments.h"
#include "tools/common/json.h"

namespace headlane::tools {

struct ModelOptions {
  std::string model;
  std::string synthetic;
  std::string linear = "tile";
  std::string numerics = "reproducible";
  std::string precision = "exact";
  std::string packed;  // "": none
};

inline constexpr int kMaxThreads = 1024;

// --model, --synthetic (one of them is required), --linear, --numerics, --precision, --packed-cache.
void AddModelOptions(Arguments& arguments, ModelOptions& options);

// The model without its weights. Errors: Model::Open's, Unsupported (the linear backend is not in this build).
Result<Model> OpenModel(const ModelOptions& options);

// Its weights, with progress, and what --numerics fastest chose, on standard error. Errors: Model::LoadWeights's,
// ResourceExhausted (the machine has not enough memory left: found before it is used up).
Status LoadModel(const ModelOptions& options, int threads, Model& model);

// What a model is: for --json.
Json ModelJson(const Model& model);

}  // namespace headlane::tools

#endif  // HEADLANE_TOOLS_COMMON_MODEL_OPTIONS_H_
