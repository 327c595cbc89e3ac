#include "decoder/llama.h"

#include <algorithm>

namespace headlane::internal {
namespace {

int64_t QkvWidth(const LlamaConfig& c) noexcept { return c.q_width() + c.k_width() + c.v_width(); }

// x [n][width] = the embeddings of ids [n]: of a tied head, out of its weights, so that they are in memory once.
Status EmbeddingRows(Executor& executor, const LlamaModel& model, const int32_t* ids, int64_t n, float* x) noexcept {
  FirstError error;
  const int64_t width = model.config.width;
  ParallelRows(executor, n, [&, ids, x](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      error.Set(model.embedding_in_head ? model.weights.head->ReadWeights(ids[i], x + i * width)
                                        : model.embedding.Read(ids[i], x + i * width));
    }
  });
  return error.status();
}

// Calls the observer with the rows of q, k and v as three dense tensors.
Status ShowRows(const LlamaConfig& c, int64_t layer, int64_t n, const LlamaScratch& s) noexcept {
  if (s.observed.bytes() < s.qkv.bytes()) {
    return MakeStatus(StatusCode::kResourceExhausted, "no memory for what the observer is shown");
  }
  const float* from = s.qkv.data();
  float* const q = s.observed.data();
  float* const k = q + n * c.q_width();
  float* const v = k + n * c.k_width();
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(from, c.q_width(), q + i * c.q_width());
    from += c.q_width();
    std::copy_n(from, c.k_width(), k + i * c.k_width());
    from += c.k_width();
    std::copy_n(from, c.v_width(), v + i * c.v_width());
    from += c.v_width();
  }
  const std::span<const int64_t> positions(s.positions.data(), static_cast<size_t>(n));
  s.observer({layer, positions, c.attention_scale.value_or(DefaultScale(c.qk_dim)), q, k, v});
  return OkStatus();
}

// Rotation and append are one loop, so that a layer's keys go to the cache while they are warm. A piece is what goes to
// one tile of the cache: tiles may be written at the same time.
constexpr int64_t kPieceTokens = kNumericsLanes;

int64_t NumPieces(const SequenceSpec& sequence) noexcept {
  if (sequence.q_len == 0) return 0;
  const int64_t begin = sequence.kv_len - sequence.q_len;
  return (sequence.kv_len - 1) / kPieceTokens - begin / kPieceTokens + 1;
}

// function(sequence, first token in the batch, tokens) -> Status for the pieces of all sequences, on all workers.
template <typename Function>
Status ForEachPiece(std::span<const SequenceSpec> sequences, const LlamaScratch& s, Executor& executor,
                    const Function& function) noexcept {
  FirstError error;
  const auto first = s.first_piece.begin(), last = first + static_cast<ptrdiff_t>(sequences.size());
  ParallelRows(executor, *last, [&](int64_t begin, int64_t end) noexcept {
    for (int64_t piece = begin; piece < end; ++piece) {
      const auto after = std::upper_bound(first, last, piece);
      const SequenceSpec& sequence = sequences[static_cast<size_t>(after - first) - 1];
      const int64_t old_len = sequence.kv_len - sequence.q_len;
      const int64_t tile = old_len / kPieceTokens + piece - *(after - 1);
      const int64_t from = std::max(tile * kPieceTokens, old_len);
      const int64_t to = std::min((tile + 1) * kPieceTokens, sequence.kv_len);
      error.Set(function(sequence, sequence.q_begin + from - old_len, to - from));
    }
  });
  return error.status();
}

// What a pass of up to so many rows needs at most.
int64_t LinearScratchBytes(const LlamaModel& model, int64_t max_tokens) noexcept {
  int64_t bytes = 0;
  for (int64_t i = 0; i < model.config.num_layers; ++i) {
    for (const LayerKind kind : kLayerKinds) {
      bytes = std::max(bytes, LayerOf(model.weights.layers[static_cast<size_t>(i)], kind).ScratchBytes(max_tokens));
      const Linear* const copy = model.many_rows == nullptr ? nullptr : model.many_rows->Find(i, kind, max_tokens);
      if (copy != nullptr) bytes = std::max(bytes, copy->ScratchBytes(max_tokens));
    }
  }
  return bytes;
}

// Keys and values of this step, layer by layer, and attention over them. What the cache holds after the committed
// length counts for nobody else until the pass commits it.
Status RunLayers(const LlamaModel& model, std::span<const SequenceSpec> sequences, int64_t n, KVCache& cache,
                 const AttentionPlan& plan, Workspace& workspace, LlamaScratch& s, Executor& executor, LapTimer& timer,
                 PhaseStats& stats) noexcept {
  const LlamaConfig& c = model.config;
  const RopeSpec rope = c.RopeOf();
  double rest = 0;  // what no sum takes: PhaseStats::rest() is the remainder

  // Heads of qkv's rows, from a feature on.
  const int64_t qkv_width = QkvWidth(c);
  const auto heads = [&](int64_t begin, int64_t first_token, int64_t tokens, int64_t num_heads, int64_t dim) {
    TensorView view = TokensHeadsDim(s.qkv.data() + first_token * qkv_width + begin, tokens, num_heads, dim);
    view.token_stride = qkv_width;
    view.batch_stride = tokens * qkv_width;
    return view;
  };
  const std::span<std::byte> scratch(reinterpret_cast<std::byte*>(s.linear.data()),
                                     static_cast<size_t>(s.linear.bytes()));
  const auto linear = [&](int64_t i, LayerKind kind, const float* in, FloatBuffer& out,
                          int64_t stride) noexcept -> Status {
    const Linear* layer = model.many_rows == nullptr ? nullptr : model.many_rows->Find(i, kind, n);
    if (layer == nullptr) layer = &LayerOf(model.weights.layers[static_cast<size_t>(i)], kind);
    timer.Lap(rest);
    HEADLANE_RETURN_IF_ERROR(layer->Run({in, layer->in_features(), n, out.data(), stride, scratch}, executor));
    timer.Lap(stats.linear);
    stats.weight_bytes += static_cast<double>(layer->weight_bytes());
    return OkStatus();
  };

  float* const x = s.x.data();
  float* const h = s.h.data();
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const LlamaLayer& layer = model.weights.layers[static_cast<size_t>(i)];

    // Attention: x += Wo * attention(rope(Wq * h), rope(Wk * h), Wv * h),  h = norm(x)
    NormRows(executor, x, layer.attention_norm.data(), c.norm_epsilon, n, c.width, h);  // [n][width]
    HEADLANE_RETURN_IF_ERROR(linear(i, LayerKind::kQkv, h, s.qkv, qkv_width));          // [n][q | k | v]
    HEADLANE_RETURN_IF_ERROR(ForEachPiece(
        sequences, s, executor, [&](const SequenceSpec& sequence, int64_t begin, int64_t count) noexcept -> Status {
          if (rope.rotary_dim > 0) {
            // Keys stand behind the queries, as more heads of the same width.
            HEADLANE_RETURN_IF_ERROR(ApplyRope(rope, s.cos.data() + begin * rope.rotary_dim / 2,
                                               s.sin.data() + begin * rope.rotary_dim / 2,
                                               heads(0, begin, count, c.num_q_heads + c.num_kv_heads, c.qk_dim)));
          }
          return cache.Write(sequence.cache_id, i, heads(c.q_width(), begin, count, c.num_kv_heads, c.qk_dim),
                             heads(c.q_width() + c.k_width(), begin, count, c.num_kv_heads, c.v_dim),
                             begin - sequence.q_begin);
        }));
    timer.Lap(stats.append);
    if (s.observer) HEADLANE_RETURN_IF_ERROR(ShowRows(c, i, n, s));
    timer.Lap(rest);
    AttentionArgs args;
    args.q = heads(0, 0, n, c.num_q_heads, c.qk_dim);
    args.cache = &cache;
    args.layer = i;
    args.out = TokensHeadsDim(s.attention.data(), n, c.num_q_heads, c.v_dim);  // [n][q heads][v_dim]
    HEADLANE_RETURN_IF_ERROR(RunAttention(plan, args, workspace, executor));
    timer.Lap(stats.attention);
    HEADLANE_RETURN_IF_ERROR(linear(i, LayerKind::kO, s.attention.data(), s.x, c.width));  // x += [n][width]

    // Feed forward: x += Wdown * (silu(Wgate * h) * (Wup * h)),  h = norm(x)
    NormRows(executor, x, layer.ff_norm.data(), c.norm_epsilon, n, c.width, h);        // [n][width]
    HEADLANE_RETURN_IF_ERROR(linear(i, LayerKind::kGateUp, h, s.ff, c.ff_width));      // [n][ff_width]
    HEADLANE_RETURN_IF_ERROR(linear(i, LayerKind::kDown, s.ff.data(), s.x, c.width));  // x += [n][width]
  }
  stats.linear_flops += 2.0 * static_cast<double>(n) * static_cast<double>(model.weights.layer_parameters);
  return OkStatus();
}

}  // namespace

Result<LlamaScratch> LlamaScratch::Create(const LlamaModel& model, int64_t max_tokens, int64_t max_sequences) {
  const LlamaConfig& c = model.config;
  LlamaScratch s;
  s.max_tokens = max_tokens;
  HEADLANE_ASSIGN_OR_RETURN(s.x, FloatBuffer::Create("the residual stream", max_tokens, c.width));
  HEADLANE_ASSIGN_OR_RETURN(s.h, FloatBuffer::Create("normed activations", max_tokens, c.width));
  HEADLANE_ASSIGN_OR_RETURN(s.qkv, FloatBuffer::Create("queries, keys and values", max_tokens, QkvWidth(c)));
  HEADLANE_ASSIGN_OR_RETURN(s.attention, FloatBuffer::Create("attention's output", max_tokens, c.attention_width()));
  HEADLANE_ASSIGN_OR_RETURN(s.ff, FloatBuffer::Create("feed-forward activations", max_tokens, c.ff_width));
  HEADLANE_ASSIGN_OR_RETURN(s.linear,
                            FloatBuffer::Create("sums of linear layers", LinearScratchBytes(model, max_tokens) / 4, 1));
  HEADLANE_ASSIGN_OR_RETURN(s.cos, FloatBuffer::Create("cosines", max_tokens, c.rope.rotary_dim / 2));
  HEADLANE_ASSIGN_OR_RETURN(s.sin, FloatBuffer::Create("sines", max_tokens, c.rope.rotary_dim / 2));
  s.ids.resize(static_cast<size_t>(max_tokens));
  s.positions.resize(static_cast<size_t>(max_tokens));
  s.sequences.resize(static_cast<size_t>(max_sequences));
  s.first_piece.resize(static_cast<size_t>(max_sequences) + 1);
  return s;
}

int64_t LlamaScratch::bytes() const noexcept {
  int64_t sum = 0;
  for (const FloatBuffer* buffer : {&x, &h, &qkv, &attention, &ff, &linear, &cos, &sin, &observed})
    sum += buffer->bytes();
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
  s.first_piece[0] = 0;
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
    s.first_piece[b + 1] = s.first_piece[b] + NumPieces(spec);
    for (int64_t i = 0; i < n; ++i, ++token) {
      s.ids[static_cast<size_t>(token)] = batch[b].ids[static_cast<size_t>(i)];
      s.positions[static_cast<size_t>(token)] = *length + i;
    }
  }

  const std::span<const SequenceSpec> sequences(s.sequences.data(), batch.size());
  const auto compute = [&]() noexcept -> Status {
    HEADLANE_RETURN_IF_ERROR(EmbeddingRows(executor, model, s.ids.data(), num_tokens, s.x.data()));
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
  const PlanSummary summary = plan.summary();
  stats.kv_bytes += summary.kv_bytes * static_cast<double>(model.config.num_layers);
  stats.attention_flops += summary.flops * static_cast<double>(model.config.num_layers);
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
  stats.linear_flops += 2.0 * static_cast<double>(num_rows) * static_cast<double>(model.weights.head_parameters);
  return OkStatus();
}

}  // namespace headlane::internal
