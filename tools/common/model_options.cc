#include "tools/common/model_options.h"

#include <cstdint>
#include <cstdio>
#include <fstream>

#include "tools/common/layer_report.h"
#include "tools/common/report.h"
#include "tools/common/tool.h"

namespace headlane::tools {
namespace {

LinearBackend BackendByName(const std::string& name) {
  return name == LinearBackendName(LinearBackend::kOneDnn) ? LinearBackend::kOneDnn : LinearBackend::kTile;
}

// Bytes that this process can still take without being killed for it; -1 where the system does not say.
int64_t AvailableMemory() {
  int64_t available = -1;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) {
      available = kib * 1024;
      break;
    }
    meminfo.ignore(256, '\n');
  }
  // A container's limit (cgroup v2; "max" leaves the number unread).
  int64_t limit = 0;
  int64_t current = 0;
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  std::ifstream current_file("/sys/fs/cgroup/memory.current");
  if (limit_file >> limit && current_file >> current) {
    const int64_t left = limit > current ? limit - current : 0;
    if (available < 0 || left < available) available = left;
  }
  return available;
}

}  // namespace

void AddModelOptions(Arguments& arguments, ModelOptions& options) {
  std::string shapes;
  for (const char* name : SyntheticShapeNames()) shapes += (shapes.empty() ? "" : ", ") + std::string(name);
  arguments.OneOf("Model",
                  {{"-m,--model", options.model, "GGUF file of a llama-architecture model"},
                   {"--synthetic", options.synthetic,
                    "No file: pseudo-random weights in the shape of a known model, optionally with another number of "
                    "layers behind a colon (llama-3-8b:4). Shapes: " +
                        shapes}});
  arguments.Choice(
      "--linear", options.linear, {"tile", "onednn"},
      "Linear layers: tile (our own: the same bits for any threads and chunks) or onednn (oneDNN's: for comparison)");
  arguments.Choice(
      "--numerics", options.numerics, {"reproducible", "fastest"},
      "reproducible: our own linear layers, the same bits for any threads and chunks; fastest: for prompts oneDNN's in "
      "their place, in f32 or bf16, where loading measures that they are faster");
  arguments.Choice("--precision", options.precision, {"exact", "int8"},
                   "exact: block-quantised weights as the file has them, times f32; int8: times activations rounded to "
                   "8 bits, which "
                   "is faster and less accurate, and has the same bits for any threads and chunks, too");
  arguments.Text("--packed-cache", options.packed,
                 "File that keeps the weights as they are packed in memory, for a start without packing; made where it "
                 "is missing or of another model file");
}

namespace {

// Weights of a file stay as they are stored; others are made, or expanded, as f32.
int64_t NeededMemory(const ModelOptions& options, const ModelInfo& info) {
  const bool stored = options.synthetic.empty() && BackendByName(options.linear) == LinearBackend::kTile;
  return stored ? info.file_bytes + info.file_bytes / 8 : info.num_parameters * static_cast<int64_t>(sizeof(float));
}

}  // namespace

Result<Model> OpenModel(const ModelOptions& options) {
  const LinearBackend backend = BackendByName(options.linear);
  if (!HasLinearBackend(backend)) {
    return MakeStatus(StatusCode::kUnsupported, "--linear %s: this build is without oneDNN", options.linear.c_str());
  }
  return options.synthetic.empty() ? Model::Open(options.model) : Model::Synthetic(options.synthetic);
}

Status LoadModel(const ModelOptions& options, int threads, Model& model) {
  const int64_t needed = NeededMemory(options, model.info());
  const int64_t available = AvailableMemory();
  if (available >= 0 && needed > available) {
    return MakeStatus(
        StatusCode::kResourceExhausted, "%lld parameters take %.1f GB, and the machine has %.1f GB left%s",
        static_cast<long long>(model.info().num_parameters), static_cast<double>(needed) * 1e-9,
        static_cast<double>(available) * 1e-9, options.synthetic.empty() ? "" : " (fewer layers: NAME:LAYERS)");
  }
  ProgressLine progress("loading weights", "parameters");
  LoadOptions load;
  load.linear = BackendByName(options.linear);
  load.threads = threads;
  load.numerics = options.numerics == "fastest" ? Numerics::kFastest : Numerics::kReproducible;
  load.precision = options.precision == "int8" ? LinearPrecision::kInt8 : LinearPrecision::kExact;
  load.progress = progress.Callback();
  load.packed_weights_path = options.packed;
  HEADLANE_RETURN_IF_ERROR(model.LoadWeights(load));
  const PackedWeights packed = model.packed_weights();
  if (!options.packed.empty() && !packed.mapped) {
    std::fprintf(
        stderr, "%s: %s; weights were packed%s%s\n", options.packed.c_str(), packed.not_mapped.c_str(),
        packed.written ? " and written there" : ", not written: ", packed.written ? "" : packed.not_written.c_str());
  }
  const auto choices = LayerChoiceRows(model);
  if (!choices.empty()) {
    progress.Done();
    PrintTable(stderr, choices, true);
    for (const std::string& note : LayerChoiceNotes(model)) std::fprintf(stderr, "%s\n", note.c_str());
    std::fprintf(stderr, "\n");
  }
  return OkStatus();
}

Json ModelJson(const Model& model) {
  const ModelInfo& info = model.info();
  return {{"name", info.name},
          {"architecture", info.architecture},
          {"weight_type", info.weight_type},
          {"parameters", info.num_parameters},
          {"file_bytes", info.file_bytes},
          {"weight_bytes", model.weight_bytes()},
          {"weight_copy_bytes", model.weight_copy_bytes()},
          {"layer_choices", LayerChoicesJson(model)},
          {"layers", info.num_layers},
          {"width", info.width},
          {"ff_width", info.ff_width},
          {"q_heads", info.num_q_heads},
          {"kv_heads", info.num_kv_heads},
          {"qk_dim", info.qk_dim},
          {"v_dim", info.v_dim},
          {"vocab_size", info.vocab_size},
          {"context_length", info.context_length}};
}

}  // namespace headlane::tools
