// Numerics::kFastest: copies of layers in oneDNN's layout, for passes of many rows, where measuring says that they are
// faster than our tiles.
//
// Separate from the weights themselves (llama_weights.h), which are all there is for kReproducible and which few rows
// use in any case. Called by Model; llama.cc asks for the layer to run.
#ifndef HEADLANE_SRC_DECODER_MANY_ROWS_H_
#define HEADLANE_SRC_DECODER_MANY_ROWS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "decoder/llama_weights.h"
#include "decoder/model_weights.h"
#include "headlane/decoder.h"
#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/status.h"

namespace headlane::internal {

// The head is none of them: it is given one row of a prompt.
enum class LayerKind : int { kQkv = 0, kO, kGateUp, kDown };
inline constexpr int kNumLayerKinds = 4;
inline constexpr LayerKind kLayerKinds[kNumLayerKinds] = {LayerKind::kQkv, LayerKind::kO, LayerKind::kGateUp,
                                                          LayerKind::kDown};

const Linear& LayerOf(const LlamaLayer& layer, LayerKind kind) noexcept;

// Fewer rows are never given to oneDNN: memory bounds them, and tiles are a fraction of the bytes.
inline constexpr int64_t kFewestManyRows = 32;
// As many as a prompt's chunk has by default.
inline constexpr int64_t kMeasuredRows = 512;
// A copy has to take so much of the tiles' time, and so must all layers of a pass together, to be worth its memory.
inline constexpr double kWorthwhile = 0.97;

struct ManyRows {
  struct Copy {
    std::optional<Linear> layer;  // empty: tiles are faster
    int64_t from_rows = 0;
  };
  std::vector<std::array<Copy, kNumLayerKinds>> layers;
  std::vector<LayerChoice> choices;
  int64_t bytes = 0;
  int64_t fewest_rows = INT64_MAX;  // of a pass that runs any copy

  // The copy, or null where `rows` rows are for the tiles.
  const Linear* Find(int64_t layer, LayerKind kind, int64_t rows) const noexcept {
    const Copy& copy = layers[static_cast<size_t>(layer)][static_cast<size_t>(kind)];
    return copy.layer && rows >= copy.from_rows ? &*copy.layer : nullptr;
  }
};

// What the choice asks of the machine. Tests give answers of their own.
struct ChoiceMachine {
  // A layer of spec.backend with the weights of `tiles`.
  std::function<Result<Linear>(const LinearSpec& spec, const Linear& tiles, Executor& executor)> make;
  // Seconds that a run of so many rows takes each of `layers`, which have the same shapes.
  std::function<Status(std::span<const Linear* const> layers, int64_t rows, Executor& executor,
                       std::span<double> seconds)>
      measure;
};

// Linear::CreateFromTiles, and the least of several runs that take turns.
ChoiceMachine ThisMachine();

// Measures each shape of layer once and copies those that win, if that makes a pass faster. Tiles stay. `progress` is
// called as loading's last call was. Errors: ResourceExhausted, Cancelled, Internal (oneDNN failed). That a backend
// can't be had is none: the choice says so.
Result<std::unique_ptr<ManyRows>> ChooseManyRows(const LlamaTensors& tensors, const LlamaWeights& weights,
                                                 const LoadOptions& options, const ChoiceMachine& machine,
                                                 Executor& executor);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_MANY_ROWS_H_
