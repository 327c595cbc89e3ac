#include "decoder/many_rows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "decoder/layers.h"

namespace headlane::internal {
namespace {

constexpr const char* kKindNames[kNumLayerKinds] = {"qkv", "o", "gate_up", "down"};

constexpr LinearBackend kOthers[] = {LinearBackend::kOneDnn, LinearBackend::kOneDnnBf16};
// From many to few: the first is where a backend has to win.
constexpr int64_t kRowCounts[] = {kMeasuredRows, 128, kFewestManyRows};

// Of each shape and number of rows. Runs take turns, so that what else the machine does hits all alike.
constexpr int kMaxRounds = 7;
constexpr int kMinRounds = 3;
constexpr double kRoundsSeconds = 0.03;   // enough rounds, if there were kMinRounds
constexpr double kLongestSeconds = 0.25;  // enough, if there was one

// What a layer is made of. Biases are read anew: the tiles have taken them in.
struct LayerSource {
  std::array<LinearPart, 3> parts;
  size_t num_parts = 0;
  std::array<std::vector<float>, 3> biases;
  int64_t in_features = 0;
  LinearOutput output = LinearOutput::kStore;

  Status Add(const TensorRows& rows, const std::optional<TensorRows>& bias, bool expand) {
    LinearPart& part = parts[num_parts];
    part = rows.AsLinearPart(expand);
    in_features = rows.row_len();
    if (bias) {
      std::vector<float>& values = biases[num_parts];
      values.resize(static_cast<size_t>(bias->row_len()));
      HEADLANE_RETURN_IF_ERROR(bias->Read(0, values.data()));
      part.bias = values.data();
    }
    ++num_parts;
    return OkStatus();
  }
  LinearSpec Spec(LinearBackend backend) const noexcept {
    return {backend, in_features, std::span<const LinearPart>(parts.data(), num_parts), output};
  }
};

Status FillSource(const LlamaLayerTensors& from, LayerKind kind, bool expand, LayerSource& to) {
  switch (kind) {
    case LayerKind::kQkv:
      HEADLANE_RETURN_IF_ERROR(to.Add(from.q, from.q_bias, expand));
      HEADLANE_RETURN_IF_ERROR(to.Add(from.k, from.k_bias, expand));
      return to.Add(from.v, from.v_bias, expand);
    case LayerKind::kO:
      to.output = LinearOutput::kAdd;
      return to.Add(from.o, from.o_bias, expand);
    case LayerKind::kGateUp:
      to.output = LinearOutput::kSwiGlu;
      HEADLANE_RETURN_IF_ERROR(to.Add(from.gate, std::nullopt, expand));
      return to.Add(from.up, std::nullopt, expand);
    case LayerKind::kDown:
      to.output = LinearOutput::kAdd;
      return to.Add(from.down, std::nullopt, expand);
  }
  return OkStatus();
}

Status MeasureRuns(std::span<const Linear* const> layers, int64_t rows, Executor& executor, std::span<double> seconds) {
  const int64_t in = layers[0]->in_features(), out = layers[0]->out_features();
  int64_t scratch_bytes = 0;
  for (const Linear* layer : layers) scratch_bytes = std::max(scratch_bytes, layer->ScratchBytes(rows));
  HEADLANE_ASSIGN_OR_RETURN(const FloatBuffer x, FloatBuffer::Create("inputs to measure with", rows, in));
  HEADLANE_ASSIGN_OR_RETURN(const FloatBuffer y, FloatBuffer::Create("outputs to measure with", rows, out));
  HEADLANE_ASSIGN_OR_RETURN(const FloatBuffer scratch,
                            FloatBuffer::Create("sums to measure with", 1, (scratch_bytes + 3) / 4));
  const TensorRows values(1, rows, in, 0.0f, 1.0f);
  for (int64_t row = 0; row < rows; ++row) HEADLANE_RETURN_IF_ERROR(values.Read(row, x.data() + row * in));
  std::fill_n(y.data(), rows * out, 0.0f);
  const auto run = [&](const Linear& layer, int64_t num_rows) {
    return layer.Run({x.data(),
                      in,
                      num_rows,
                      y.data(),
                      out,
                      {reinterpret_cast<std::byte*>(scratch.data()), static_cast<size_t>(scratch.bytes())}},
                     executor);
  };

  // Awake threads, code that is there, and memory that was touched.
  for (const Linear* layer : layers) HEADLANE_RETURN_IF_ERROR(run(*layer, std::min(rows, kFewestManyRows)));
  std::fill(seconds.begin(), seconds.end(), std::numeric_limits<double>::infinity());
  double spent = 0;
  for (int round = 0; round < kMaxRounds; ++round) {
    if (round >= kMinRounds && spent > kRoundsSeconds) break;
    if (round >= 1 && spent > kLongestSeconds) break;
    for (size_t i = 0; i < layers.size(); ++i) {
      LapTimer timer;
      double lap = 0;
      HEADLANE_RETURN_IF_ERROR(run(*layers[i], rows));
      timer.Lap(lap);
      seconds[i] = std::min(seconds[i], lap);
      spent += lap;
    }
  }
  return OkStatus();
}

// Chooses for one shape of layer, and makes copies.
class Choosing {
 public:
  Choosing(const LlamaTensors& tensors, const LlamaWeights& weights, const LoadOptions& options,
           const ChoiceMachine& machine, Executor& executor)
      : tensors_(tensors), weights_(weights), options_(options), machine_(machine), executor_(executor) {}

  Status Run(ManyRows& to);

 private:
  // What was found out about a shape, and the copy that was measured, until its layer takes it.
  struct Shape {
    LayerKind kind;
    int64_t in_features, out_features;
    size_t tile_bytes;  // tells formats apart
    size_t first_layer;
    LayerChoice choice;
    std::optional<Linear> measured;
  };

  const Linear& Tiles(size_t layer, LayerKind kind) const { return LayerOf(weights_.layers[layer], kind); }
  Result<Linear> Make(size_t layer, LayerKind kind, LinearBackend backend);
  Result<Shape*> FindShape(size_t layer, LayerKind kind);
  Status Measure(Shape& shape);
  bool AreCopiesWorthwhile() const;
  Status Copy(size_t layer, LayerKind kind, Shape& shape, ManyRows& to);
  Status Progress() const;

  const LlamaTensors& tensors_;
  const LlamaWeights& weights_;
  const LoadOptions& options_;
  const ChoiceMachine& machine_;
  Executor& executor_;
  std::vector<std::unique_ptr<Shape>> shapes_;
};

Result<Linear> Choosing::Make(size_t layer, LayerKind kind, LinearBackend backend) {
  LayerSource source;
  HEADLANE_RETURN_IF_ERROR(FillSource(tensors_.layers[layer], kind, options_.expand, source));
  return machine_.make(source.Spec(backend), Tiles(layer, kind), executor_);
}

Status Choosing::Progress() const {
  const int64_t total = tensors_.num_parameters - (tensors_.head ? tensors_.embedding.size() : 0);
  if (!options_.progress || options_.progress(total, total)) return OkStatus();
  return MakeStatus(StatusCode::kCancelled, "loading was stopped while layers were chosen");
}

Status Choosing::Measure(Shape& shape) {
  const Linear& tiles = Tiles(shape.first_layer, shape.kind);
  LayerChoice& choice = shape.choice;
  choice.rows = kMeasuredRows;
  choice.candidates.push_back({LinearBackend::kTile, tiles.implementation(), OkStatus(), 0});
  std::vector<Linear> others;
  std::vector<LinearBackend> backends;  // of these
  for (const LinearBackend backend : kOthers) {
    Result<Linear> other = Make(shape.first_layer, shape.kind, backend);
    if (!other.ok()) {
      choice.candidates.push_back({backend, "", other.status(), 0});
      continue;
    }
    choice.candidates.push_back({backend, other->implementation(), OkStatus(), 0});
    others.push_back(std::move(other).value());
    backends.push_back(backend);
  }
  if (others.empty()) return OkStatus();

  std::vector<const Linear*> layers = {&tiles};
  for (const Linear& other : others) layers.push_back(&other);
  std::vector<double> seconds(layers.size());
  HEADLANE_RETURN_IF_ERROR(machine_.measure(layers, kRowCounts[0], executor_, seconds));
  size_t next = 0;
  for (LayerChoice::Candidate& candidate : choice.candidates) {
    if (candidate.status.ok()) candidate.seconds = seconds[next++];
  }
  const size_t best = static_cast<size_t>(std::min_element(seconds.begin() + 1, seconds.end()) - seconds.begin());
  if (!(seconds[best] < kWorthwhile * seconds[0])) return OkStatus();
  choice.many_rows = backends[best - 1];
  for (const int64_t rows : kRowCounts) {
    if (rows < kRowCounts[0]) {
      const Linear* const two[] = {&tiles, layers[best]};
      HEADLANE_RETURN_IF_ERROR(machine_.measure(two, rows, executor_, std::span(seconds).first(2)));
      if (!(seconds[1] < kWorthwhile * seconds[0])) break;
    }
    choice.from_rows = rows;
  }
  shape.measured = std::move(others[best - 1]);
  return OkStatus();
}

Result<Choosing::Shape*> Choosing::FindShape(size_t layer, LayerKind kind) {
  const Linear& tiles = Tiles(layer, kind);
  for (const std::unique_ptr<Shape>& shape : shapes_) {
    if (shape->kind == kind && shape->in_features == tiles.in_features() &&
        shape->out_features == tiles.out_features() && shape->tile_bytes == tiles.weight_bytes()) {
      return shape.get();
    }
  }
  auto shape = std::make_unique<Shape>();
  shape->kind = kind;
  shape->in_features = tiles.in_features();
  shape->out_features = tiles.out_features();
  shape->tile_bytes = tiles.weight_bytes();
  shape->first_layer = layer;
  shape->choice.layer = kKindNames[static_cast<int>(kind)];
  shape->choice.in_features = tiles.in_features();
  shape->choice.out_features = tiles.out_features();
  HEADLANE_RETURN_IF_ERROR(Measure(*shape));
  shapes_.push_back(std::move(shape));
  return shapes_.back().get();
}

// One shape's copies may be faster and still not be worth it: copies that save little of a whole pass cost memory, and
// a pass that runs any of them isn't one parallel region any more.
bool Choosing::AreCopiesWorthwhile() const {
  double tiles = 0, faster = 0;
  for (const std::unique_ptr<Shape>& shape : shapes_) {
    const LayerChoice& choice = shape->choice;
    for (const LayerChoice::Candidate& candidate : choice.candidates) {
      const double seconds = static_cast<double>(choice.num_layers) * candidate.seconds;
      if (candidate.backend == LinearBackend::kTile) tiles += seconds;
      if (candidate.backend == choice.many_rows) faster += seconds;
    }
  }
  return faster < kWorthwhile * tiles;
}

Status Choosing::Copy(size_t layer, LayerKind kind, Shape& shape, ManyRows& to) {
  ManyRows::Copy& copy = to.layers[layer][static_cast<size_t>(kind)];
  LayerChoice& choice = shape.choice;
  if (shape.measured) {
    copy.layer = std::move(shape.measured);
    shape.measured.reset();
  } else {
    Result<Linear> made = Make(layer, kind, choice.many_rows);
    if (!made.ok()) return made.status();
    copy.layer.emplace(std::move(made).value());
  }
  copy.from_rows = choice.from_rows;
  const int64_t bytes = static_cast<int64_t>(copy.layer->weight_bytes());
  choice.bytes += bytes;
  to.bytes += bytes;
  to.fewest_rows = std::min(to.fewest_rows, copy.from_rows);
  return OkStatus();
}

Status Choosing::Run(ManyRows& to) {
  const size_t num_layers = weights_.layers.size();
  to.layers.resize(num_layers);
  std::vector<std::array<Shape*, kNumLayerKinds>> shapes(num_layers);
  for (size_t layer = 0; layer < num_layers; ++layer) {
    for (const LayerKind kind : kLayerKinds) {
      HEADLANE_ASSIGN_OR_RETURN(Shape* const shape, FindShape(layer, kind));
      shapes[layer][static_cast<size_t>(kind)] = shape;
      ++shape->choice.num_layers;
    }
  }
  if (!AreCopiesWorthwhile()) {
    for (const std::unique_ptr<Shape>& shape : shapes_) {
      shape->choice.many_rows = LinearBackend::kTile;
      shape->choice.from_rows = 0;
    }
  }
  for (size_t layer = 0; layer < num_layers; ++layer) {
    for (const LayerKind kind : kLayerKinds) {
      Shape& shape = *shapes[layer][static_cast<size_t>(kind)];
      if (shape.choice.many_rows != LinearBackend::kTile) HEADLANE_RETURN_IF_ERROR(Copy(layer, kind, shape, to));
    }
    HEADLANE_RETURN_IF_ERROR(Progress());
  }
  for (const std::unique_ptr<Shape>& shape : shapes_) to.choices.push_back(std::move(shape->choice));
  return OkStatus();
}

}  // namespace

const Linear& LayerOf(const LlamaLayer& layer, LayerKind kind) noexcept {
  const std::optional<Linear>* const all[kNumLayerKinds] = {&layer.qkv, &layer.o, &layer.gate_up, &layer.down};
  return **all[static_cast<int>(kind)];
}

ChoiceMachine ThisMachine() { return {&Linear::CreateFromTiles, &MeasureRuns}; }

Result<std::unique_ptr<ManyRows>> ChooseManyRows(const LlamaTensors& tensors, const LlamaWeights& weights,
                                                 const LoadOptions& options, const ChoiceMachine& machine,
                                                 Executor& executor) {
  auto many_rows = std::make_unique<ManyRows>();
  Choosing choosing(tensors, weights, options, machine, executor);
  HEADLANE_RETURN_IF_ERROR(choosing.Run(*many_rows));
  return many_rows;
}

}  // namespace headlane::internal
