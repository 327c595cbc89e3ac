// The memory of a session, and what goes through the layers in it: cache, plan, scratch and logits for any number of
// sequences of one model.
//
// Separate from Session and BatchSession, which know their sequences and decide what is fed when, so that a single
// conversation and a batch are the same pass over the same memory. Called by decoder_session.cc, batch_session.cc and
// session_file.cc.
#ifndef HEADLANE_SRC_DECODER_SESSION_CORE_H_
#define HEADLANE_SRC_DECODER_SESSION_CORE_H_

#include <cstdint>
#include <optional>
#include <span>

#include "decoder/decoder_impl.h"
#include "decoder/layers.h"
#include "decoder/llama.h"
#include "decoder/team.h"
#include "headlane/attention.h"
#include "headlane/decoder.h"
#include "headlane/kv_cache.h"

namespace headlane::internal {

// Errors: InvalidArgument (names the option). Those that the cache has, too, are checked by it.
Status CheckSessionOptions(const SessionOptions& options) noexcept;

class SessionCore {
 public:
  // Requires: CheckSessionOptions is ok.
  SessionCore(const ModelImpl& model, const SessionOptions& options)
      : model_(model), options_(options), executor_(options.executor, options.threads) {}

  // Allocates everything: a cache of `cache_tokens` tokens (0: num_sequences times the context) and `logit_rows` rows
  // of logits. Throws std::bad_alloc.
  Status Init(int64_t num_sequences, int64_t cache_tokens, int64_t logit_rows);

  Status CheckIds(std::span<const int32_t> ids) const noexcept;
  // Whether a sequence of `length` tokens can take some more.
  Status CheckRoom(int64_t length, int64_t num_tokens) const noexcept;
  // Appends checked ids, together at most max_q_tokens(); rows stand one after the other for Logits.
  Status Forward(std::span<const SequenceTokens> batch, PhaseStats& stats) noexcept;
  // Of rows [row, row + num_rows) of the last pass, into logits [num_rows][vocab_size].
  Status Logits(int64_t row, int64_t num_rows, float* logits, PhaseStats& stats) noexcept;
  // Pseudo-random keys and values for n tokens behind the sequence's end. Requires: n <= chunk.
  Status AppendRandom(SequenceId sequence, int64_t n, uint64_t seed) noexcept;
  void Observe(LayerObserver observer) noexcept;
  // Runs function() -> Status, and all that it calls of this object in one parallel region, on any one of its threads.
  // Must not throw. `rows`: the most tokens of a pass in it. Forward and Logits do so by themselves, one by one.
  template <typename Function>
  Status InOneRegion(int64_t rows, const Function& function) noexcept {
    // An observer is called on the session's thread; and a backend with threads of its own has none within a region.
    if (team_ != nullptr || rows > team_rows_ || scratch_->observer) return function();
    Status status;
    Team::Lead(executor_.get(), [&](Team& team) noexcept {
      team_ = &team;
      status = function();
      team_ = nullptr;
    });
    return status;
  }

  const ModelImpl& model() const noexcept { return model_; }
  const LlamaConfig& config() const noexcept { return model_.config; }
  const SessionOptions& options() const noexcept { return options_; }
  Executor& executor() const noexcept { return team_ != nullptr ? *team_ : executor_.get(); }
  int num_workers() const noexcept { return executor_.get().num_workers(); }
  KVCache& cache() noexcept { return *cache_; }
  const KVCache& cache() const noexcept { return *cache_; }
  float* logits() const noexcept { return logits_.data(); }
  int64_t max_q_tokens() const noexcept { return scratch_->max_tokens; }
  // kept_tokens is left to those who know the sequences.
  SessionMemory memory() const noexcept;
  // How many tokens of a sequence of `length` the cache keeps.
  int64_t KeptTokens(int64_t length) const noexcept;

 private:
  KVCacheSpec CacheSpec(int64_t num_sequences, int64_t cache_tokens) const;

  const ModelImpl& model_;
  SessionOptions options_;
  ChosenExecutor executor_;
  int64_t team_rows_ = -1;  // passes of more run on a backend with threads of its own
  Team* team_ = nullptr;    // within InOneRegion
  std::optional<KVCache> cache_;
  std::optional<AttentionPlan> plan_;
  std::optional<Workspace> workspace_;
  std::optional<LlamaScratch> scratch_;
  FloatBuffer logits_;  // [logit_rows][vocab_size]
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_SESSION_CORE_H_
