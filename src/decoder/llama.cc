#include "decoder/llama.h"

#include <algorithm>

namespace headlane::internal {
namespace {

// Keys and values of this step, layer by layer, and attention over them. What the cache holds after the committed
// length counts for nobody else until the pass commits it.
Status RunLayers(const LlamaModel& model, std::span<const SequenceSpec> sequences, int64_t n, KVCache& cache,
                 const AttentionPlan& plan, Workspace& workspace, LlamaScratch& s, Executor& executor, LapTimer& timer,
                 PhaseStats& stats) noexcept {
  const LlamaConfig& c = model.config;
  const RopeSpec rope = c.RopeOf();
  double rest = 0;  // what no sum takes: PhaseStats::rest() is the remainder

  // y [n][out] = x [n][in] * W^T + bias
  const auto linear = [&](const std::optional<Linear>& layer, const std::vector<float>& bias, const float* x,
                          float* y) noexcept -> Status {
    timer.Lap(rest);
    const int64_t out = layer->out_features();
    HEADLANE_RETURN_IF_ERROR(layer->Run(x, layer->in_features(), n, y, out, executor));
    if (!bias.empty()) AddRows(executor, bias.data(), 0, n, out, y);
    timer.Lap(stats.linear);
    return OkStatus();
  };
  static const std::vector<float> kNoBias;

  float* const x = s.x.data();
  float* const h = s.h.data();
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const LlamaLayer& layer = model.weights.layers[static_cast<size_t>(i)];

    // Attention: x += Wo * attention(rope(Wq * h), rope(Wk * h), Wv * h),  h = norm(x)
    NormRows(executor, x, layer.attention_norm.data(), c.norm_epsilon, n, c.width, h);  // [n][width]
    HEADLANE_RETURN_IF_ERROR(linear(layer.q, layer.q_bias, h, s.q.data()));             // [n][q heads][qk_dim]
    HEADLANE_RETURN_IF_ERROR(linear(layer.k, layer.k_bias, h, s.k.data()));             // [n][kv heads][qk_dim]
    HEADLANE_RETURN_IF_ERROR(linear(layer.v, layer.v_bias, h, s.v.data()));             // [n][kv heads][v_dim]
    if (rope.rotary_dim > 0) {
      HEADLANE_RETURN_IF_ERROR(
          RopeRows(executor, rope, s.cos.data(), s.sin.data(), n, c.num_q_heads, c.qk_dim, s.q.data()));
      HEADLANE_RETURN_IF_ERROR(
          RopeRows(executor, rope, s.cos.data(), s.sin.data(), n, c.num_kv_heads, c.qk_dim, s.k.data()));
    }
    if (s.observer) {
      const std::span<const int64_t> positions(s.positions.data(), static_cast<size_t>(n));
      const float scale = c.attention_scale.value_or(DefaultScale(c.qk_dim));
      s.observer({i, positions, scale, s.q.data(), s.k.data(), s.v.data()});
    }
    timer.Lap(rest);
    for (const SequenceSpec& sequence : sequences) {
      const float* k = s.k.data() + sequence.q_begin * c.k_width();
      const float* v = s.v.data() + sequence.q_begin * c.v_width();
      HEADLANE_RETURN_IF_ERROR(cache.Write(sequence.cache_id, i,
                                           TokensHeadsDim(k, sequence.q_len, c.num_kv_heads, c.qk_dim),
                                           TokensHeadsDim(v, sequence.q_len, c.num_kv_heads, c.v_dim)));
    }
    timer.Lap(stats.append);
    AttentionArgs args;
    args.q = TokensHeadsDim(static_cast<const float*>(s.q.data()), n, c.num_q_heads, c.qk_dim);
    args.cache = &cache;
    args.layer = i;
    args.out = TokensHeadsDim(s.attention.data(), n, c.num_q_heads, c.v_dim);  // [n][q heads][v_dim]
    HEADLANE_RETURN_IF_ERROR(RunAttention(plan, args, workspace, executor));
    timer.Lap(stats.attention);
    HEADLANE_RETURN_IF_ERROR(linear(layer.o, layer.o_bias, s.attention.data(), h));  // [n][width]
    AddRows(executor, h, c.width, n, c.width, x);

    // Feed forward: x += Wdown * (silu(Wgate * h) * (Wup * h)),  h = norm(x)
    NormRows(executor, x, layer.ff_norm.data(), c.norm_epsilon, n, c.width, h);  // [n][width]
    HEADLANE_RETURN_IF_ERROR(linear(layer.gate, kNoBias, h, s.gate.data()));     // [n][ff_width]
    HEADLANE_RETURN_IF_ERROR(linear(layer.up, kNoBias, h, s.up.data()));         // [n][ff_width]
    SiluMulRows(executor, s.gate.data(), s.up.data(), n, c.ff_width);
    HEADLANE_RETURN_IF_ERROR(linear(layer.down, kNoBias, s.gate.data(), h));  // [n][width]
    AddRows(executor, h, c.width, n, c.width, x);
  }
  stats.weight_bytes += static_cast<double>(model.weights.layer_bytes);
  return OkStatus();
}

}  // namespace

Result<LlamaScratch> LlamaScratch::Create(const LlamaConfig& c, int64_t max_tokens, int64_t max_sequences) {
  LlamaScratch s;
  s.max_tokens = max_tokens;
  HEADLANE_ASSIGN_OR_RETURN(s.x, FloatBuffer::Create("the residual stream", max_tokens, c.width));
  HEADLANE_ASSIGN_OR_RETURN(s.h, FloatBuffer::Create("normed activations", max_tokens, c.width));
  HEADLANE_ASSIGN_OR_RETURN(s.q, FloatBuffer::Create("queries", max_tokens, c.q_width()));
  HEADLANE_ASSIGN_OR_RETURN(s.k, FloatBuffer::Create("keys", max_tokens, c.k_width()));
  HEADLANE_ASSIGN_OR_RETURN(s.v, FloatBuffer::Create("values", max_tokens, c.v_width()));
  HEADLANE_ASSIGN_OR_RETURN(s.attention, FloatBuffer::Create("attention's output", max_tokens, c.attention_width()));
  HEADLANE_ASSIGN_OR_RETURN(s.gate, FloatBuffer::Create("gates", max_tokens, c.ff_width));
  HEADLANE_ASSIGN_OR_RETURN(s.up, FloatBuffer::Create("feed-forward activations", max_tokens, c.ff_width));
  HEADLANE_ASSIGN_OR_RETURN(s.cos, FloatBuffer::Create("cosines", max_tokens, c.rope.rotary_dim / 2));
  HEADLANE_ASSIGN_OR_RETURN(s.sin, FloatBuffer::Create("sines", max_tokens, c.rope.rotary_dim / 2));
  s.ids.resize(static_cast<size_t>(max_tokens));
  s.positions.resize(static_cast<size_t>(max_tokens));
  s.sequences.resize(static_cast<size_t>(max_sequences));
  return s;
}

int64_t LlamaScratch::bytes() const noexcept {
  int64_t sum = 0;
  for (const FloatBuffer* buffer : {&x, &h, &q, &k, &v, &attention, &gate, &up, &cos, &sin}) sum += buffer->bytes();
  return sum;
}

AttentionSpec LlamaAttentionSpec(const LlamaConfig& c) noexcept {
  AttentionSpec spec;
  spec.num_q_heads = c.num_q_heads;
  spec.num_kv_heads = c.num_kv_heads;
  spec.qk_dim = c.qk_dim;
  spec.v_dim = c.v_dim;
  spec.scale = c.attention_scale;
  spec.mask.causality = Causality::kBottomRight;
  return spec;
}

Status LlamaForward(const LlamaModel& model, std::span<const SequenceTokens> batch, KVCache& cache, AttentionPlan& plan,
                    Workspace& workspace, LlamaScratch& s, Executor& executor, PhaseStats& stats) noexcept {
  LapTimer timer;
  double rest = 0;
  if (batch.size() > s.sequences.size()) {
    return MakeStatus(StatusCode::kResourceExhausted, "a batch of %zu sequences; the session was made for %zu",
                      batch.size(), s.sequences.size());
  }
  int64_t num_tokens = 0;
  for (const SequenceTokens& tokens : batch) num_tokens += static_cast<int64_t>(tokens.ids.size());
  if (num_tokens > s.max_tokens) {
    return MakeStatus(StatusCode::kResourceExhausted, "a batch of %lld tokens; the session was made for %lld",
                      static_cast<long long>(num_tokens), static_cast<long long>(s.max_tokens));
  }

  // Token i of the batch stands at positions[i] of its sequence, which attention sees as kv_len - q_len + its row.
  const auto abandon = [&](size_t num_reserved) noexcept {
    for (size_t b = 0; b < num_reserved; ++b) (void)cache.Abandon(batch[b].sequence).ok();
  };
  int64_t token = 0;
  for (size_t b = 0; b < batch.size(); ++b) {
    const int64_t n = static_cast<int64_t>(batch[b].ids.size());
    const Result<int64_t> length = cache.Length(batch[b].sequence);
    const Status reserved = length.ok() ? cache.Reserve(batch[b].sequence, n) : length.status();
    if (!reserved.ok()) {
      abandon(b);
      return reserved;
    }
    SequenceSpec& spec = s.sequences[b];
    spec = SequenceSpec{};
    spec.q_begin = token;
    spec.q_len = n;
    spec.kv_len = *length + n;
    spec.cache_id = batch[b].sequence;
    for (int64_t i = 0; i < n; ++i, ++token) {
      s.ids[static_cast<size_t>(token)] = batch[b].ids[static_cast<size_t>(i)];
      s.positions[static_cast<size_t>(token)] = *length + i;
    }
  }

  const std::span<const SequenceSpec> sequences(s.sequences.data(), batch.size());
  const auto compute = [&]() noexcept -> Status {
    HEADLANE_RETURN_IF_ERROR(EmbeddingRows(executor, model.embedding, s.ids.data(), num_tokens, s.x.data()));
    if (model.config.rope.rotary_dim > 0) {
      HEADLANE_RETURN_IF_ERROR(
          RopeAngleRows(executor, model.config.RopeOf(), s.positions.data(), num_tokens, s.cos.data(), s.sin.data()));
    }
    timer.Lap(rest);
    HEADLANE_RETURN_IF_ERROR(plan.Update(cache, sequences));
    timer.Lap(stats.attention);
    return RunLayers(model, sequences, num_tokens, cache, plan, workspace, s, executor, timer, stats);
  };
  const Status status = compute();
  if (!status.ok()) {
    abandon(batch.size());
    return status;
  }
  stats.kv_bytes += plan.summary().kv_bytes * static_cast<double>(model.config.num_layers);
  // Cannot fail: exactly these tokens were reserved above.
  for (const SequenceTokens& tokens : batch) {
    HEADLANE_RETURN_IF_ERROR(cache.Commit(tokens.sequence, static_cast<int64_t>(tokens.ids.size())));
  }
  return OkStatus();
}

Status LlamaLogits(const LlamaModel& model, LlamaScratch& s, int64_t row, int64_t num_rows, float* logits,
                   Executor& executor, PhaseStats& stats) noexcept {
  const LlamaConfig& c = model.config;
  NormRows(executor, s.x.data() + row * c.width, model.weights.output_norm.data(), c.norm_epsilon, num_rows, c.width,
           s.h.data());
  LapTimer timer;
  HEADLANE_RETURN_IF_ERROR(model.weights.head->Run(s.h.data(), c.width, num_rows, logits, c.vocab_size, executor));
  timer.Lap(stats.linear);
  stats.weight_bytes += static_cast<double>(model.weights.head_bytes);
  return OkStatus();
}

}  // namespace headlane::internal
