// Model of headlane/decoder.h: puts file, configuration, tensors, tokenizer and weights together.
#include <span>
#include <string>
#include <utility>

#include "decoder/alloc_guard.h"
#include "decoder/decoder_impl.h"
#include "decoder/synthetic.h"
#include "headlane/decoder.h"

namespace headlane {
namespace {

using decoder_internal::GuardAllocation;
using internal::ModelImpl;

void FillInfo(ModelImpl& model, std::string name, int64_t file_bytes) {
  const internal::LlamaConfig& c = model.config;
  ModelInfo& info = model.info;
  info.name = std::move(name);
  info.architecture = "llama";
  info.weight_type = model.tensors.weight_type;
  info.num_layers = c.num_layers;
  info.width = c.width;
  info.ff_width = c.ff_width;
  info.num_q_heads = c.num_q_heads;
  info.num_kv_heads = c.num_kv_heads;
  info.qk_dim = c.qk_dim;
  info.v_dim = c.v_dim;
  info.vocab_size = c.vocab_size;
  info.context_length = c.context_length;
  info.num_parameters = model.tensors.num_parameters;
  info.file_bytes = file_bytes;
  info.tied_head = !model.tensors.head;
}

// A model without a chat format is still good for raw prompts: the reason is kept for those who ask for chat.
void FindChatFormat(ModelImpl& model) {
  Result<ChatFormat> chat = ChatFormat::Create(model.file, model.tokenizer);
  if (chat.ok()) {
    model.chat.emplace(std::move(chat).value());
  } else {
    model.chat_status = chat.status();
  }
}

Result<std::unique_ptr<ModelImpl>> OpenFile(const std::string& path) {
  HEADLANE_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  HEADLANE_ASSIGN_OR_RETURN(internal::LlamaConfig config, internal::ReadLlamaConfig(file));
  HEADLANE_ASSIGN_OR_RETURN(internal::LlamaTensors tensors, internal::FindLlamaTensors(file, config));
  HEADLANE_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Create(file));
  if (tokenizer.vocab_size() != config.vocab_size) {
    return MakeStatus(StatusCode::kDataLoss, "the vocabulary has %d tokens, but token_embd.weight has %lld rows",
                      tokenizer.vocab_size(), static_cast<long long>(config.vocab_size));
  }
  const size_t slash = path.find_last_of('/');
  const std::string file_name = slash == std::string::npos ? path : path.substr(slash + 1);
  HEADLANE_ASSIGN_OR_RETURN(const std::string_view name, file.GetStringOr("general.name", file_name));
  std::string owned_name(name);
  const int64_t file_bytes = static_cast<int64_t>(file.bytes().size());
  auto model = std::make_unique<ModelImpl>(std::move(file), std::vector<uint8_t>(), std::move(config),
                                           std::move(tensors), std::move(tokenizer));
  FindChatFormat(*model);
  FillInfo(*model, std::move(owned_name), file_bytes);
  return model;
}

Result<std::unique_ptr<ModelImpl>> MakeSynthetic(std::string_view text, uint64_t seed) {
  HEADLANE_ASSIGN_OR_RETURN(internal::SyntheticShape shape, internal::FindSyntheticShape(text));
  std::vector<uint8_t> bytes = internal::MakeSyntheticVocabularyFile(shape.config.vocab_size);
  HEADLANE_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Parse(bytes));
  HEADLANE_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Create(file));
  internal::LlamaTensors tensors = internal::MakeSyntheticTensors(shape.config, shape.tied_head, seed);
  auto model = std::make_unique<ModelImpl>(std::move(file), std::move(bytes), std::move(shape.config),
                                           std::move(tensors), std::move(tokenizer));
  FindChatFormat(*model);
  FillInfo(*model, "synthetic " + shape.name, 0);
  return model;
}

}  // namespace

Status internal::LoadModelWeights(ModelImpl& model, const LoadOptions& options, const ChoiceMachine& machine) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return MakeStatus(StatusCode::kInvalidArgument, "threads is %d; it must be 0 .. %d", options.threads, kMaxThreads);
  }
  const bool is_fastest = options.numerics == Numerics::kFastest;
  if (!is_fastest && options.numerics != Numerics::kReproducible) {
    return MakeStatus(StatusCode::kInvalidArgument, "numerics is %d, outside of the 2 known",
                      static_cast<int>(options.numerics));
  }
  if (is_fastest && options.linear != LinearBackend::kTile) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "Numerics::kFastest chooses the backend of linear layers; it does not go with linear '%s'",
                      LinearBackendName(options.linear));
  }
  const ChosenExecutor executor(options.executor, options.threads);
  HEADLANE_ASSIGN_OR_RETURN(std::unique_ptr<LlamaWeights> weights,
                            LoadLlamaWeights(model.tensors, model.file.mapped_file(), options, executor.get()));
  if (is_fastest) {
    HEADLANE_ASSIGN_OR_RETURN(model.many_rows,
                              ChooseManyRows(model.tensors, *weights, options, machine, executor.get()));
  }
  model.weights = std::move(weights);
  return OkStatus();
}

Model::Model(std::unique_ptr<internal::ModelImpl> impl) noexcept : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

std::span<const char* const> SyntheticShapeNames() noexcept { return internal::SyntheticNames(); }

Result<Model> Model::Open(const std::string& path) noexcept {
  return GuardAllocation("opening a model file", [&]() -> Result<Model> {
    HEADLANE_ASSIGN_OR_RETURN(std::unique_ptr<ModelImpl> impl, OpenFile(path));
    return Model(std::move(impl));
  });
}

Result<Model> Model::Synthetic(std::string_view shape, uint64_t seed) noexcept {
  return GuardAllocation("making a synthetic model", [&]() -> Result<Model> {
    HEADLANE_ASSIGN_OR_RETURN(std::unique_ptr<ModelImpl> impl, MakeSynthetic(shape, seed));
    return Model(std::move(impl));
  });
}

Status Model::LoadWeights(const LoadOptions& options) noexcept {
  if (impl_->weights) return MakeStatus(StatusCode::kFailedPrecondition, "the model's weights are loaded already");
  return GuardAllocation("loading weights",
                         [&] { return internal::LoadModelWeights(*impl_, options, internal::ThisMachine()); });
}

bool Model::weights_loaded() const noexcept { return impl_->weights != nullptr; }
const ModelInfo& Model::info() const noexcept { return impl_->info; }

int64_t Model::weight_bytes() const noexcept {
  if (!impl_->weights) return 0;
  return impl_->weights->layer_bytes + impl_->weights->head_bytes + weight_copy_bytes();
}

int64_t Model::weight_copy_bytes() const noexcept { return impl_->many_rows ? impl_->many_rows->bytes : 0; }

std::span<const LayerChoice> Model::layer_choices() const noexcept {
  if (!impl_->many_rows) return {};
  return impl_->many_rows->choices;
}

const char* Model::linear_implementation() const noexcept {
  return impl_->weights ? impl_->weights->head->implementation() : "";
}

PackedWeights Model::packed_weights() const noexcept {
  return impl_->weights ? impl_->weights->packed_weights : PackedWeights();
}

Result<std::vector<int32_t>> Model::Encode(std::string_view text, PromptMode mode,
                                           const std::string_view* system) const noexcept {
  return GuardAllocation("encoding a text", [&]() -> Result<std::vector<int32_t>> {
    if (mode == PromptMode::kChat) {
      if (!impl_->chat) return impl_->chat_status;
      return impl_->chat->EncodePrompt(impl_->tokenizer, text, system);
    }
    if (system != nullptr) {
      return MakeStatus(StatusCode::kInvalidArgument, "a system message needs the chat format");
    }
    EncodeOptions options;
    options.parse_special = mode == PromptMode::kRaw;
    return impl_->tokenizer.Encode(text, options);
  });
}

Result<std::string> Model::Decode(std::span<const int32_t> ids) const noexcept {
  return GuardAllocation("decoding ids", [&] { return impl_->tokenizer.Decode(ids); });
}

bool Model::IsStop(int32_t id) const noexcept { return impl_->tokenizer.IsStop(id); }

}  // namespace headlane
