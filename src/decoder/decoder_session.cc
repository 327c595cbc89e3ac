// Session of headlane/decoder.h: the memory of one running sequence, and what is fed to the forward pass.
#include <algorithm>
#include <optional>
#include <utility>

#include "decoder/alloc_guard.h"
#include "decoder/decoder_impl.h"
#include "decoder/layers.h"
#include "decoder/llama.h"
#include "headlane/attention.h"
#include "headlane/decoder.h"
#include "headlane/kv_cache.h"
#include "headlane/ops.h"

namespace headlane {
namespace internal {

// Rows of logits that Score has at a time: enough for the head to be a matrix product, few enough for a large
// vocabulary.
constexpr int64_t kLogitRows = 16;

class SessionImpl {
 public:
  SessionImpl(const ModelImpl& model, const SessionOptions& options)
      : model_(model), options_(options), executor_(options.executor, options.threads) {}

  Status Init();

  Status Prefill(std::span<const int32_t> ids, const ProgressCallback& progress) noexcept;
  Status Step(int32_t id) noexcept;
  Status Score(std::span<const int32_t> ids, std::span<double> losses, const ProgressCallback& progress) noexcept;
  Status FillRandom(int64_t length, uint64_t seed) noexcept;
  Status Truncate(int64_t length) noexcept;

  std::span<const float> logits() const noexcept {
    if (logits_row_ < 0) return {};
    return {logits_.data() + logits_row_ * model_.config.vocab_size, static_cast<size_t>(model_.config.vocab_size)};
  }
  int64_t length() const noexcept { return length_; }
  const SessionOptions& options() const noexcept { return options_; }
  int num_workers() const noexcept { return executor_.get().num_workers(); }
  SessionMemory memory() const noexcept;

  PhaseStats prompt_stats;
  PhaseStats step_stats;

 private:
  Status CheckIds(std::span<const int32_t> ids) const noexcept;
  Status CheckRoom(int64_t num_tokens) const noexcept;
  // Appends at most a chunk of checked ids; scratch_->x then holds their rows.
  Status Forward(std::span<const int32_t> ids, PhaseStats& stats) noexcept;
  Status LogitsOfRow(int64_t row, PhaseStats& stats) noexcept;
  Status ScoreChunk(std::span<const int32_t> ids, std::span<const int32_t> targets, double* losses) noexcept;
  // Runs `append`, and takes back what it has appended when it fails.
  template <typename Append>
  Status AllOrNothing(const Append& append) noexcept;

  const ModelImpl& model_;
  SessionOptions options_;
  ChosenExecutor executor_;
  std::optional<KVCache> cache_;
  SequenceId sequence_;
  std::optional<AttentionPlan> plan_;
  std::optional<Workspace> workspace_;
  std::optional<LlamaScratch> scratch_;
  FloatBuffer logits_;       // [kLogitRows][vocab_size]
  int64_t logits_row_ = -1;  // the row that logits() shows; -1: none
  int64_t length_ = 0;
};

Status SessionImpl::Init() {
  const LlamaConfig& c = model_.config;
  KVCacheSpec cache;
  cache.num_layers = c.num_layers;
  cache.num_kv_heads = c.num_kv_heads;
  cache.qk_dim = c.qk_dim;
  cache.v_dim = c.v_dim;
  cache.page_tokens = options_.page_tokens;
  cache.max_tokens = options_.max_context;
  cache.max_sequences = 1;
  HEADLANE_ASSIGN_OR_RETURN(cache_, KVCache::Create(cache));
  HEADLANE_ASSIGN_OR_RETURN(sequence_, cache_->CreateSequence());

  options_.chunk = std::min(options_.chunk, options_.max_context);
  SequenceSpec nothing_yet;
  nothing_yet.cache_id = sequence_;
  PlanOptions plan;
  plan.num_workers = num_workers();
  plan.max_sequences = 1;
  plan.max_q_tokens = options_.chunk;
  plan.max_kv_len = options_.max_context;
  HEADLANE_ASSIGN_OR_RETURN(
      plan_, PlanAttention(LlamaAttentionSpec(c), *cache_, std::span<const SequenceSpec>(&nothing_yet, 1), plan));
  HEADLANE_ASSIGN_OR_RETURN(workspace_, Workspace::Create(*plan_));
  HEADLANE_ASSIGN_OR_RETURN(scratch_, LlamaScratch::Create(c, options_.chunk, 1));
  HEADLANE_ASSIGN_OR_RETURN(logits_, FloatBuffer::Create("logits", kLogitRows, c.vocab_size));
  return OkStatus();
}

SessionMemory SessionImpl::memory() const noexcept {
  const KVCacheUsage usage = cache_->usage();
  SessionMemory memory;
  memory.cache_bytes = usage.limit_bytes;
  memory.cache_used_bytes = usage.used_bytes;
  memory.kv_bytes_per_token = usage.bytes_per_token;
  memory.scratch_bytes = scratch_->bytes() + logits_.bytes() + static_cast<int64_t>(workspace_->bytes());
  return memory;
}

Status SessionImpl::CheckIds(std::span<const int32_t> ids) const noexcept {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= model_.config.vocab_size) {
      return MakeStatus(StatusCode::kOutOfRange, "token %zu has the id %d; the vocabulary has %lld", i, ids[i],
                        static_cast<long long>(model_.config.vocab_size));
    }
  }
  return OkStatus();
}

Status SessionImpl::CheckRoom(int64_t num_tokens) const noexcept {
  if (num_tokens <= options_.max_context - length_) return OkStatus();
  return MakeStatus(StatusCode::kResourceExhausted, "%lld tokens and %lld more do not fit into a context of %lld",
                    static_cast<long long>(length_), static_cast<long long>(num_tokens),
                    static_cast<long long>(options_.max_context));
}

Status SessionImpl::Forward(std::span<const int32_t> ids, PhaseStats& stats) noexcept {
  const SequenceTokens tokens{sequence_, ids};
  HEADLANE_RETURN_IF_ERROR(LlamaForward(model_.View(), std::span<const SequenceTokens>(&tokens, 1), *cache_, *plan_,
                                        *workspace_, *scratch_, executor_.get(), stats));
  length_ += static_cast<int64_t>(ids.size());
  stats.tokens += static_cast<int64_t>(ids.size());
  return OkStatus();
}

Status SessionImpl::LogitsOfRow(int64_t row, PhaseStats& stats) noexcept {
  logits_row_ = -1;
  HEADLANE_RETURN_IF_ERROR(LlamaLogits(model_.View(), *scratch_, row, 1, logits_.data(), executor_.get(), stats));
  logits_row_ = 0;
  return OkStatus();
}

template <typename Append>
Status SessionImpl::AllOrNothing(const Append& append) noexcept {
  const int64_t before = length_;
  const Status status = append();
  if (!status.ok() && length_ != before) {
    HEADLANE_RETURN_IF_ERROR(cache_->Truncate(sequence_, before));
    length_ = before;
  }
  return status;
}

Status SessionImpl::Prefill(std::span<const int32_t> ids, const ProgressCallback& progress) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckIds(ids));
  const int64_t n = static_cast<int64_t>(ids.size());
  HEADLANE_RETURN_IF_ERROR(CheckRoom(n));
  if (n == 0) return OkStatus();
  LapTimer timer;
  const Status status = AllOrNothing([&]() noexcept -> Status {
    int64_t chunk = 0;
    for (int64_t begin = 0; begin < n; begin += chunk) {
      chunk = std::min(options_.chunk, n - begin);
      HEADLANE_RETURN_IF_ERROR(
          Forward(ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(chunk)), prompt_stats));
      if (progress && !progress(begin + chunk, n)) {
        return MakeStatus(StatusCode::kCancelled, "stopped after %lld of %lld tokens",
                          static_cast<long long>(begin + chunk), static_cast<long long>(n));
      }
    }
    return LogitsOfRow(chunk - 1, prompt_stats);
  });
  timer.Lap(prompt_stats.total);
  prompt_stats.calls += 1;
  return status;
}

Status SessionImpl::Step(int32_t id) noexcept {
  const std::span<const int32_t> ids(&id, 1);
  HEADLANE_RETURN_IF_ERROR(CheckIds(ids));
  HEADLANE_RETURN_IF_ERROR(CheckRoom(1));
  LapTimer timer;
  const Status status = AllOrNothing([&]() noexcept -> Status {
    HEADLANE_RETURN_IF_ERROR(Forward(ids, step_stats));
    return LogitsOfRow(0, step_stats);
  });
  timer.Lap(step_stats.total);
  step_stats.calls += 1;
  return status;
}

// losses[i] = ln sum exp(logits of row i) - logit of targets[i]; targets is shorter by one when nothing follows the
// last row.
Status SessionImpl::ScoreChunk(std::span<const int32_t> ids, std::span<const int32_t> targets,
                               double* losses) noexcept {
  const int64_t vocab_size = model_.config.vocab_size;
  const int64_t n = static_cast<int64_t>(ids.size());
  const int64_t num_targets = static_cast<int64_t>(targets.size());
  HEADLANE_RETURN_IF_ERROR(Forward(ids, prompt_stats));
  for (int64_t row = 0; row < n; row += kLogitRows) {
    const int64_t num_rows = std::min(kLogitRows, n - row);
    HEADLANE_RETURN_IF_ERROR(
        LlamaLogits(model_.View(), *scratch_, row, num_rows, logits_.data(), executor_.get(), prompt_stats));
    ParallelRows(executor_.get(), std::min(num_rows, num_targets - row), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float* logits = logits_.data() + i * vocab_size;
        losses[row + i] = static_cast<double>(LogSumExp(logits, vocab_size)) -
                          static_cast<double>(logits[targets[static_cast<size_t>(row + i)]]);
      }
    });
    logits_row_ = num_rows - 1;
  }
  return OkStatus();
}

Status SessionImpl::Score(std::span<const int32_t> ids, std::span<double> losses,
                          const ProgressCallback& progress) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckIds(ids));
  const size_t n = ids.size();
  if (losses.size() != (n == 0 ? 0 : n - 1)) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "losses has %zu places for %zu tokens; it needs one less than tokens", losses.size(), n);
  }
  HEADLANE_RETURN_IF_ERROR(CheckRoom(static_cast<int64_t>(n)));
  if (n == 0) return OkStatus();
  LapTimer timer;
  logits_row_ = -1;
  const Status status = AllOrNothing([&]() noexcept -> Status {
    size_t chunk = 0;
    for (size_t begin = 0; begin < n; begin += chunk) {
      chunk = std::min(static_cast<size_t>(options_.chunk), n - begin);
      const std::span<const int32_t> targets = ids.subspan(begin + 1, std::min(chunk, n - begin - 1));
      HEADLANE_RETURN_IF_ERROR(ScoreChunk(ids.subspan(begin, chunk), targets, losses.data() + begin));
      if (progress && !progress(static_cast<int64_t>(begin + chunk), static_cast<int64_t>(n))) {
        return MakeStatus(StatusCode::kCancelled, "stopped after %zu of %zu tokens", begin + chunk, n);
      }
    }
    return OkStatus();
  });
  if (!status.ok()) logits_row_ = -1;
  timer.Lap(prompt_stats.total);
  prompt_stats.calls += 1;
  return status;
}

Status SessionImpl::FillRandom(int64_t length, uint64_t seed) noexcept {
  const LlamaConfig& c = model_.config;
  if (length < length_) {
    return MakeStatus(StatusCode::kOutOfRange, "can't fill up to %lld tokens: there are %lld already",
                      static_cast<long long>(length), static_cast<long long>(length_));
  }
  HEADLANE_RETURN_IF_ERROR(CheckRoom(length - length_));
  // The same keys and values in every layer: what they are costs the same time to read.
  const TensorRows keys(seed, length, c.k_width(), 0.0f, 1.0f);
  const TensorRows values(~seed, length, c.v_width(), 0.0f, 1.0f);
  const Status status = AllOrNothing([&]() noexcept -> Status {
    while (length_ < length) {
      const int64_t n = std::min(options_.chunk, length - length_);
      for (int64_t i = 0; i < n; ++i) {
        HEADLANE_RETURN_IF_ERROR(keys.Read(length_ + i, scratch_->k.data() + i * c.k_width()));
        HEADLANE_RETURN_IF_ERROR(values.Read(length_ + i, scratch_->v.data() + i * c.v_width()));
      }
      HEADLANE_RETURN_IF_ERROR(cache_->Reserve(sequence_, n));
      const auto k = TokensHeadsDim(static_cast<const float*>(scratch_->k.data()), n, c.num_kv_heads, c.qk_dim);
      const auto v = TokensHeadsDim(static_cast<const float*>(scratch_->v.data()), n, c.num_kv_heads, c.v_dim);
      for (int64_t layer = 0; layer < c.num_layers; ++layer) {
        HEADLANE_RETURN_IF_ERROR(cache_->Write(sequence_, layer, k, v));
      }
      HEADLANE_RETURN_IF_ERROR(cache_->Commit(sequence_, n));
      length_ += n;
      logits_row_ = -1;
    }
    return OkStatus();
  });
  return status;
}

Status SessionImpl::Truncate(int64_t length) noexcept {
  if (length == length_) return OkStatus();
  HEADLANE_RETURN_IF_ERROR(cache_->Truncate(sequence_, length));
  length_ = length;
  logits_row_ = -1;
  return OkStatus();
}

}  // namespace internal

namespace {

Status CheckOptions(const SessionOptions& options) {
  // The largest position that RoPE's angles are exact for.
  constexpr int64_t kMaxContext = int64_t{1} << 24;
  if (options.max_context < 1 || options.max_context > kMaxContext) {
    return MakeStatus(StatusCode::kInvalidArgument, "max_context is %lld; it must be 1 .. %lld",
                      static_cast<long long>(options.max_context), static_cast<long long>(kMaxContext));
  }
  if (options.chunk < 1) {
    return MakeStatus(StatusCode::kInvalidArgument, "chunk is %lld; it must be at least 1",
                      static_cast<long long>(options.chunk));
  }
  if (options.threads < 0 || options.threads > internal::kMaxThreads) {
    return MakeStatus(StatusCode::kInvalidArgument, "threads is %d; it must be 0 .. %d", options.threads,
                      internal::kMaxThreads);
  }
  return OkStatus();
}

}  // namespace

Session::Session(std::unique_ptr<internal::SessionImpl> impl) noexcept : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Session::Create(const Model& model, const SessionOptions& options) noexcept {
  if (!model.weights_loaded()) {
    return MakeStatus(StatusCode::kFailedPrecondition, "a session needs the model's weights: call LoadWeights first");
  }
  HEADLANE_RETURN_IF_ERROR(CheckOptions(options));
  return decoder_internal::GuardAllocation("making a session", [&]() -> Result<Session> {
    auto impl = std::make_unique<internal::SessionImpl>(model.impl(), options);
    HEADLANE_RETURN_IF_ERROR(impl->Init());
    return Session(std::move(impl));
  });
}

Status Session::Prefill(std::span<const int32_t> ids, const ProgressCallback& progress) noexcept {
  return impl_->Prefill(ids, progress);
}

Result<std::span<const float>> Session::Step(int32_t id) noexcept {
  HEADLANE_RETURN_IF_ERROR(impl_->Step(id));
  return impl_->logits();
}

Status Session::Score(std::span<const int32_t> ids, std::span<double> losses,
                      const ProgressCallback& progress) noexcept {
  return impl_->Score(ids, losses, progress);
}

std::span<const float> Session::logits() const noexcept { return impl_->logits(); }
int64_t Session::length() const noexcept { return impl_->length(); }
Status Session::Truncate(int64_t length) noexcept { return impl_->Truncate(length); }
Status Session::FillRandom(int64_t length, uint64_t seed) noexcept { return impl_->FillRandom(length, seed); }
const SessionOptions& Session::options() const noexcept { return impl_->options(); }
int Session::num_workers() const noexcept { return impl_->num_workers(); }
SessionMemory Session::memory() const noexcept { return impl_->memory(); }
const PhaseStats& Session::prompt_stats() const noexcept { return impl_->prompt_stats; }
const PhaseStats& Session::step_stats() const noexcept { return impl_->step_stats; }

void Session::ResetStats() noexcept {
  impl_->prompt_stats = PhaseStats();
  impl_->step_stats = PhaseStats();
}

}  // namespace headlane
