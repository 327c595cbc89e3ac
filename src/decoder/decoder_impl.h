// What is behind headlane/decoder.h: shared by the files that implement it, and by nobody else.
#ifndef HEADLANE_SRC_DECODER_DECODER_IMPL_H_
#define HEADLANE_SRC_DECODER_DECODER_IMPL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decoder/chat.h"
#include "decoder/gguf.h"
#include "decoder/llama.h"
#include "decoder/llama_config.h"
#include "decoder/llama_weights.h"
#include "decoder/many_rows.h"
#include "decoder/model_weights.h"
#include "decoder/tokenizer.h"
#include "headlane/decoder.h"
#include "headlane/executor.h"

namespace headlane::internal {

class ModelImpl {
 public:
  ModelImpl(GgufFile file, std::vector<uint8_t> bytes, LlamaConfig config, LlamaTensors tensors, Tokenizer tokenizer)
      : bytes(std::move(bytes)),
        file(std::move(file)),
        config(std::move(config)),
        tensors(std::move(tensors)),
        tokenizer(std::move(tokenizer)) {}

  LlamaModel View() const noexcept {
    const bool in_head = !tensors.head && weights->head->backend() == LinearBackend::kTile;
    return {config, tensors.embedding, in_head, *weights, many_rows.get()};
  }

  std::vector<uint8_t> bytes;  // of a synthetic file, which `file` views; moving a vector keeps its address
  GgufFile file;
  LlamaConfig config;
  LlamaTensors tensors;
  Tokenizer tokenizer;
  std::optional<ChatFormat> chat;  // empty: chat_status says why
  Status chat_status;
  ModelInfo info;
  std::unique_ptr<LlamaWeights> weights;  // null before LoadWeights
  std::unique_ptr<ManyRows> many_rows;    // null before, and for Numerics::kReproducible
};

// Model::LoadWeights, with what chooses between backends. Requires: no weights. Throws std::bad_alloc.
Status LoadModelWeights(ModelImpl& model, const LoadOptions& options, const ChoiceMachine& machine);

// The executor that options ask for: the caller's own, else one of ours with that many threads.
class ChosenExecutor {
 public:
  ChosenExecutor(Executor* callers, int threads) : executor_(callers) {
    if (executor_ == nullptr && threads == 1) executor_ = &SerialExecutor();
    if (executor_ == nullptr) {
      own_ = std::make_unique<OpenMPExecutor>(threads);
      executor_ = own_.get();
    }
  }
  Executor& get() const noexcept { return *executor_; }

 private:
  std::unique_ptr<OpenMPExecutor> own_;
  Executor* executor_;
};

inline constexpr int kMaxThreads = 4096;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_DECODER_IMPL_H_
