#include "decoder/llama_weights.h"

#include <algorithm>
#include <array>
#include <utility>

#include "decoder/packed_file.h"

namespace headlane::internal {
namespace {

// One layer to be made: where its rows come from, and where it goes.
struct Task {
  std::array<LinearPart, 3> parts;
  size_t num_parts = 0;
  int64_t in_features = 0;
  LinearOutput output = LinearOutput::kStore;
  std::optional<Linear>* to = nullptr;
  int64_t num_parameters = 0;

  LinearSpec Spec(const LoadOptions& options) const noexcept {
    return {options.linear, in_features, std::span<const LinearPart>(parts.data(), num_parts), output,
            options.precision};
  }
};

// All layers of a model, in the order in which a pass reads them.
class Loading {
 public:
  Loading(const LlamaTensors& tensors, const LoadOptions& options, LlamaWeights& weights)
      : tensors_(tensors), options_(options), weights_(weights) {
    // An embedding that is not the head stays in the file.
    total_ = tensors.num_parameters - (tensors.head ? tensors.embedding.size() : 0);
  }

  // Lists the layers, reads the vectors, and checks every layer.
  Status Prepare();
  Status Pack(Executor& executor);
  // Makes all layers over the file's bytes. Errors: none of the model, all of the file.
  Status Map(const ModelStamp& stamp, Executor& executor);
  // Counts bytes, and calls all parameters done: the vectors were never counted one by one.
  Status Finish();
  Status Write(const ModelStamp& stamp, Executor& executor) const;

 private:
  struct Source {
    const TensorRows* rows;
    const std::optional<TensorRows>* bias = nullptr;
  };

  Status Add(std::initializer_list<Source> sources, LinearOutput output, std::optional<Linear>& to);
  Status Progress(int64_t done);

  const LlamaTensors& tensors_;
  const LoadOptions& options_;
  LlamaWeights& weights_;
  std::vector<Task> tasks_;
  std::vector<std::vector<float>> biases_;  // until the layers have copied them
  std::vector<PackedEntry> entries_;        // kTile: of each task
  bool has_blocks_ = false;                 // a part is block-quantised
  int64_t done_ = 0;                        // parameters
  int64_t total_ = 0;
};

Status ReadVector(const TensorRows& rows, std::vector<float>& out) {
  out.resize(static_cast<size_t>(rows.row_len()));
  return rows.Read(0, out.data());
}

Status Loading::Add(std::initializer_list<Source> sources, LinearOutput output, std::optional<Linear>& to) {
  Task task;
  task.output = output;
  task.to = &to;
  for (const Source& source : sources) {
    LinearPart& part = task.parts[task.num_parts++];
    part = source.rows->AsLinearPart(options_.expand);
    if (source.bias != nullptr && *source.bias) {
      HEADLANE_RETURN_IF_ERROR(ReadVector(**source.bias, biases_.emplace_back()));
      part.bias = biases_.back().data();  // a vector that is moved keeps its floats where they are
    }
    const WeightFormatInfo* format = FindWeightFormat(part.format);
    has_blocks_ = has_blocks_ || (format != nullptr && format->block_len > 1);
    task.in_features = source.rows->row_len();
    task.num_parameters += source.rows->size();
  }
  if (options_.linear == LinearBackend::kTile) {
    const LinearSpec spec = task.Spec(options_);
    HEADLANE_ASSIGN_OR_RETURN(const int64_t bytes, Linear::PackedBytes(spec));
    entries_.push_back({Linear::PackedLayout(spec), bytes});
  }
  tasks_.push_back(task);
  return OkStatus();
}

Status Loading::Prepare() {
  weights_.layers.resize(tensors_.layers.size());
  for (size_t i = 0; i < tensors_.layers.size(); ++i) {
    const LlamaLayerTensors& from = tensors_.layers[i];
    LlamaLayer& to = weights_.layers[i];
    HEADLANE_RETURN_IF_ERROR(ReadVector(from.attention_norm, to.attention_norm));
    HEADLANE_RETURN_IF_ERROR(ReadVector(from.ff_norm, to.ff_norm));
    HEADLANE_RETURN_IF_ERROR(
        Add({{&from.q, &from.q_bias}, {&from.k, &from.k_bias}, {&from.v, &from.v_bias}}, LinearOutput::kStore, to.qkv));
    HEADLANE_RETURN_IF_ERROR(Add({{&from.o, &from.o_bias}}, LinearOutput::kAdd, to.o));
    HEADLANE_RETURN_IF_ERROR(Add({{&from.gate}, {&from.up}}, LinearOutput::kSwiGlu, to.gate_up));
    HEADLANE_RETURN_IF_ERROR(Add({{&from.down}}, LinearOutput::kAdd, to.down));
  }
  HEADLANE_RETURN_IF_ERROR(ReadVector(tensors_.output_norm, weights_.output_norm));
  HEADLANE_RETURN_IF_ERROR(
      Add({{tensors_.head ? &*tensors_.head : &tensors_.embedding}}, LinearOutput::kStore, weights_.head));
  if (options_.precision == LinearPrecision::kExact || has_blocks_) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported,
                    "precision '%s' is for block-quantised weights; those of this model are '%s'",
                    LinearPrecisionName(options_.precision), tensors_.weight_type.c_str());
}

Status Loading::Progress(int64_t done) {
  done_ += done;
  if (!options_.progress || options_.progress(done_, total_)) return OkStatus();
  return MakeStatus(StatusCode::kCancelled, "loading was stopped after %lld of %lld parameters",
                    static_cast<long long>(done_), static_cast<long long>(total_));
}

Status Loading::Finish() {
  for (const Task& task : tasks_) {
    const bool is_head = task.to == &weights_.head;
    (is_head ? weights_.head_bytes : weights_.layer_bytes) += static_cast<int64_t>((*task.to)->weight_bytes());
    (is_head ? weights_.head_parameters : weights_.layer_parameters) += task.num_parameters;
  }
  return Progress(total_ - done_);
}

Status Loading::Pack(Executor& executor) {
  for (const Task& task : tasks_) {
    auto linear = Linear::Create(task.Spec(options_), executor);
    if (!linear.ok()) return linear.status();
    task.to->emplace(std::move(linear).value());
    HEADLANE_RETURN_IF_ERROR(Progress(task.num_parameters));
  }
  return OkStatus();
}

Status Loading::Map(const ModelStamp& stamp, Executor& executor) {
  HEADLANE_ASSIGN_OR_RETURN(PackedFile file, PackedFile::Open(options_.packed_weights_path, stamp, entries_, executor));
  for (size_t i = 0; i < tasks_.size(); ++i) {
    auto linear = Linear::CreateFromPacked(tasks_[i].Spec(options_), file.entry(i));
    if (!linear.ok()) return linear.status();
    tasks_[i].to->emplace(std::move(linear).value());
  }
  weights_.packed = std::move(file).TakeFile();
  return OkStatus();
}

Status Loading::Write(const ModelStamp& stamp, Executor& executor) const {
  std::vector<std::span<const std::byte>> data;
  data.reserve(tasks_.size());
  for (const Task& task : tasks_) data.push_back((*task.to)->packed());
  return WritePackedFile(options_.packed_weights_path, stamp, entries_, data, executor);
}

}  // namespace

Result<std::unique_ptr<LlamaWeights>> LoadLlamaWeights(const LlamaTensors& tensors, const MappedFile* file,
                                                       const LoadOptions& options, Executor& executor) {
  const bool keep = !options.packed_weights_path.empty();
  if (keep && (file == nullptr || options.expand || options.linear != LinearBackend::kTile)) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "packed_weights_path is for weights of a file, as they are stored, in layers of our own");
  }
  if (options.precision != LinearPrecision::kExact &&
      (options.expand || options.linear != LinearBackend::kTile || options.numerics != Numerics::kReproducible)) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "precision '%s' is for weights as they are stored, in reproducible layers of our own",
                      LinearPrecisionName(options.precision));
  }
  auto weights = std::make_unique<LlamaWeights>();
  Loading loading(tensors, options, *weights);
  HEADLANE_RETURN_IF_ERROR(loading.Prepare());
  ModelStamp stamp;
  if (keep) {
    stamp = {static_cast<int64_t>(file->bytes().size()), file->modified_ns(), HashBytes(file->bytes(), executor)};
    weights->packed_weights.not_mapped = loading.Map(stamp, executor);
    weights->packed_weights.mapped = weights->packed_weights.not_mapped.ok();
  }
  if (!weights->packed_weights.mapped) {
    HEADLANE_RETURN_IF_ERROR(loading.Pack(executor));
  }
  HEADLANE_RETURN_IF_ERROR(loading.Finish());
  if (keep && !weights->packed_weights.mapped) {
    weights->packed_weights.not_written = loading.Write(stamp, executor);
    weights->packed_weights.written = weights->packed_weights.not_written.ok();
  }
  // The weights are in memory once: the file's pages come back if anybody looks at them.
  if (file != nullptr) file->Release();
  return weights;
}

}  // namespace headlane::internal
