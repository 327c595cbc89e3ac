#include "decoder/session_core.h"

#include <algorithm>
#include <utility>

namespace headlane::internal {
namespace {

// The largest position that RoPE's angles are exact for.
constexpr int64_t kMaxContext = int64_t{1} << 24;

// Tokens of a pool that always has pages for one sequence with a window: what is kept behind the first tokens, and a
// chunk that is reserved in front of it, wherever in a page they begin.
int64_t RingTokens(const SessionOptions& options, const KVLayerGroup& group) noexcept {
  const int64_t page = options.page_tokens;
  const int64_t kept = group.window + group.max_in_flight - 1 + options.chunk;
  const int64_t pages = (group.num_always_visible + page - 1) / page + (kept + page - 2) / page + 1;
  const int64_t all = (options.max_context + page - 1) / page;
  return std::min(pages, all) * page;
}

}  // namespace

Status CheckSessionOptions(const SessionOptions& options) noexcept {
  const struct {
    const char* name;
    int64_t value, min, max;
  } numbers[] = {
      {"max_context", options.max_context, 1, kMaxContext}, {"chunk", options.chunk, 1, INT64_MAX},
      {"page_tokens", options.page_tokens, 16, 256},        {"window", options.window, 0, INT64_MAX},
      {"num_sinks", options.num_sinks, 0, INT64_MAX},       {"rollback", options.rollback, 0, INT64_MAX},
      {"threads", options.threads, 0, kMaxThreads},
  };
  for (const auto& number : numbers) {
    if (number.value >= number.min && number.value <= number.max) continue;
    if (number.max == INT64_MAX) {
      return MakeStatus(StatusCode::kInvalidArgument, "%s is %lld; it must be at least %lld", number.name,
                        static_cast<long long>(number.value), static_cast<long long>(number.min));
    }
    return MakeStatus(StatusCode::kInvalidArgument, "%s is %lld; it must be %lld .. %lld", number.name,
                      static_cast<long long>(number.value), static_cast<long long>(number.min),
                      static_cast<long long>(number.max));
  }
  if (options.num_sinks > 0 && options.window == 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "num_sinks is %lld, but there is no window that would hide them",
                      static_cast<long long>(options.num_sinks));
  }
  return OkStatus();
}

KVCacheSpec SessionCore::CacheSpec(int64_t num_sequences, int64_t cache_tokens) const {
  const LlamaConfig& c = model_.config;
  KVCacheSpec spec;
  spec.num_layers = c.num_layers;
  spec.num_kv_heads = c.num_kv_heads;
  spec.qk_dim = c.qk_dim;
  spec.v_dim = c.v_dim;
  spec.k_dtype = options_.k_dtype;
  spec.v_dtype = options_.v_dtype;
  spec.rotate = options_.rotates();
  spec.page_tokens = options_.page_tokens;
  spec.max_sequences = num_sequences;
  spec.max_positions = options_.max_context;
  const int64_t page = options_.page_tokens;
  int64_t sequence_tokens = (options_.max_context + page - 1) / page * page;
  if (options_.window > 0) {
    KVLayerGroup group;
    group.window = options_.window;
    group.num_always_visible = options_.num_sinks;
    group.max_in_flight = options_.rollback;
    sequence_tokens = RingTokens(options_, group);
    spec.groups.push_back(group);
  }
  // Far below 2^63: both factors are checked.
  spec.max_tokens = sequence_tokens * num_sequences;
  if (cache_tokens > 0) spec.max_tokens = std::min(spec.max_tokens, (cache_tokens + page - 1) / page * page);
  return spec;
}

Status SessionCore::Init(int64_t num_sequences, int64_t cache_tokens, int64_t logit_rows) {
  const LlamaConfig& c = model_.config;
  // Nothing that reaches beyond the context means anything, and sums of these can't overflow then.
  for (int64_t* const tokens : {&options_.chunk, &options_.window, &options_.num_sinks, &options_.rollback}) {
    *tokens = std::min(*tokens, options_.max_context);
  }
  if (options_.rollback == 0) options_.rollback = options_.chunk;
  if (model_.weights->head->backend() == LinearBackend::kTile) {
    team_rows_ = model_.many_rows == nullptr ? INT64_MAX : model_.many_rows->fewest_rows - 1;
  }
  HEADLANE_ASSIGN_OR_RETURN(cache_, KVCache::Create(CacheSpec(num_sequences, cache_tokens)));

  // Planned over a sequence that lives only for that.
  HEADLANE_ASSIGN_OR_RETURN(const SequenceId sequence, cache_->CreateSequence());
  SequenceSpec nothing_yet;
  nothing_yet.cache_id = sequence;
  PlanOptions plan;
  plan.num_workers = num_workers();
  plan.max_sequences = num_sequences;
  plan.max_q_tokens = std::max(options_.chunk, num_sequences);
  plan.max_kv_len = options_.max_context;
  AttentionSpec spec = LlamaAttentionSpec(c);
  if (options_.window > 0) {
    spec.mask.window = options_.window;
    spec.mask.num_always_visible = options_.num_sinks;
  }
  HEADLANE_ASSIGN_OR_RETURN(plan_, PlanAttention(spec, *cache_, std::span<const SequenceSpec>(&nothing_yet, 1), plan));
  HEADLANE_ASSIGN_OR_RETURN(workspace_, Workspace::Create(*plan_));
  HEADLANE_ASSIGN_OR_RETURN(scratch_, LlamaScratch::Create(model_.View(), plan.max_q_tokens, num_sequences));
  HEADLANE_ASSIGN_OR_RETURN(logits_, FloatBuffer::Create("logits", logit_rows, c.vocab_size));
  return cache_->DropSequence(sequence);
}

Status SessionCore::CheckIds(std::span<const int32_t> ids) const noexcept {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= model_.config.vocab_size) {
      return MakeStatus(StatusCode::kOutOfRange, "token %zu has the id %d; the vocabulary has %lld", i, ids[i],
                        static_cast<long long>(model_.config.vocab_size));
    }
  }
  return OkStatus();
}

Status SessionCore::CheckRoom(int64_t length, int64_t num_tokens) const noexcept {
  if (num_tokens <= options_.max_context - length) return OkStatus();
  return MakeStatus(StatusCode::kResourceExhausted, "%lld tokens and %lld more do not fit into a context of %lld",
                    static_cast<long long>(length), static_cast<long long>(num_tokens),
                    static_cast<long long>(options_.max_context));
}

Status SessionCore::Forward(std::span<const SequenceTokens> batch, PhaseStats& stats) noexcept {
  int64_t num_tokens = 0;
  for (const SequenceTokens& tokens : batch) num_tokens += static_cast<int64_t>(tokens.ids.size());
  HEADLANE_RETURN_IF_ERROR(InOneRegion(num_tokens, [&]() noexcept {
    return LlamaForward(model_.View(), batch, *cache_, *plan_, *workspace_, *scratch_, executor(), stats);
  }));
  stats.tokens += num_tokens;
  return OkStatus();
}

Status SessionCore::Logits(int64_t row, int64_t num_rows, float* logits, PhaseStats& stats) noexcept {
  // The head is not copied: tiles, for any number of rows.
  return InOneRegion(
      1, [&]() noexcept { return LlamaLogits(model_.View(), *scratch_, row, num_rows, logits, executor(), stats); });
}

Status SessionCore::AppendRandom(SequenceId sequence, int64_t n, uint64_t seed) noexcept {
  const LlamaConfig& c = model_.config;
  HEADLANE_ASSIGN_OR_RETURN(const int64_t length, cache_->Length(sequence));
  // The same keys and values in every layer: what they are costs the same time to read.
  const TensorRows keys(seed, length + n, c.k_width(), 0.0f, 1.0f);
  const TensorRows values(~seed, length + n, c.v_width(), 0.0f, 1.0f);
  // In the place of a pass's queries, keys and values.
  float* const k_rows = scratch_->qkv.data();
  float* const v_rows = k_rows + n * c.k_width();
  for (int64_t i = 0; i < n; ++i) {
    HEADLANE_RETURN_IF_ERROR(keys.Read(length + i, k_rows + i * c.k_width()));
    HEADLANE_RETURN_IF_ERROR(values.Read(length + i, v_rows + i * c.v_width()));
  }
  HEADLANE_RETURN_IF_ERROR(cache_->Reserve(sequence, n));
  const auto k = TokensHeadsDim(static_cast<const float*>(k_rows), n, c.num_kv_heads, c.qk_dim);
  const auto v = TokensHeadsDim(static_cast<const float*>(v_rows), n, c.num_kv_heads, c.v_dim);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    HEADLANE_RETURN_IF_ERROR(cache_->Write(sequence, layer, k, v));
  }
  return cache_->Commit(sequence, n);
}

void SessionCore::Observe(LayerObserver observer) noexcept {
  // Without memory for it, the next pass says so.
  if (observer && scratch_->observed.bytes() == 0) {
    Result<FloatBuffer> buffer =
        FloatBuffer::Create("the observer", 1, scratch_->qkv.bytes() / static_cast<int64_t>(sizeof(float)));
    if (buffer.ok()) scratch_->observed = std::move(buffer).value();
  }
  scratch_->observer = std::move(observer);
}

int64_t SessionCore::KeptTokens(int64_t length) const noexcept {
  if (options_.window == 0) return length;
  const int64_t newest = options_.window + options_.rollback - 1;
  const int64_t begin = std::max<int64_t>(0, length - newest);  // of those that the window and rolling back need
  return length - std::max<int64_t>(0, begin - options_.num_sinks);
}

SessionMemory SessionCore::memory() const noexcept {
  const KVCacheUsage usage = cache_->usage();
  SessionMemory memory;
  memory.cache_bytes = usage.limit_bytes;
  memory.cache_used_bytes = usage.used_bytes;
  memory.kv_bytes_per_token = usage.bytes_per_token;
  memory.page_bytes = usage.page_bytes;
  memory.scratch_bytes = scratch_->bytes() + logits_.bytes() + static_cast<int64_t>(workspace_->bytes());
  return memory;
}

}  // namespace headlane::internal
