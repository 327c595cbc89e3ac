#include "tools/attention_error.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <random>

#include "headlane/attention.h"
#include "headlane/executor.h"
#include "headlane/kv_cache.h"
#include "headlane/view.h"

namespace headlane::tools {
namespace {

// One layer's tensors.
struct Layer {
  int64_t num_tokens = 0;
  float scale = 0;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
};

// Output [num_tokens][num_q_heads][v_dim] of causal attention over a cache of these types.
Result<std::vector<float>> Attend(const ModelInfo& info, const Layer& layer, CacheTypes types, Executor& executor) {
  KVCacheSpec cache_spec;
  cache_spec.num_kv_heads = info.num_kv_heads;
  cache_spec.qk_dim = info.qk_dim;
  cache_spec.v_dim = info.v_dim;
  cache_spec.k_dtype = types.k;
  cache_spec.v_dtype = types.v;
  cache_spec.rotate = types.rotate;
  cache_spec.max_tokens = layer.num_tokens;
  HEADLANE_ASSIGN_OR_RETURN(KVCache cache, KVCache::Create(cache_spec));
  HEADLANE_ASSIGN_OR_RETURN(const SequenceId id, cache.CreateSequence());
  HEADLANE_RETURN_IF_ERROR(cache.Append(id, TokensHeadsDim(layer.k, layer.num_tokens, info.num_kv_heads, info.qk_dim),
                                        TokensHeadsDim(layer.v, layer.num_tokens, info.num_kv_heads, info.v_dim)));
  AttentionSpec spec;
  spec.num_q_heads = info.num_q_heads;
  spec.num_kv_heads = info.num_kv_heads;
  spec.qk_dim = info.qk_dim;
  spec.v_dim = info.v_dim;
  spec.scale = layer.scale;
  SequenceSpec sequence;
  sequence.q_len = sequence.kv_len = layer.num_tokens;
  sequence.cache_id = id;
  HEADLANE_ASSIGN_OR_RETURN(const AttentionPlan plan, PlanAttention(spec, cache, {&sequence, 1}));
  HEADLANE_ASSIGN_OR_RETURN(Workspace workspace, Workspace::Create(plan));
  std::vector<float> out(static_cast<size_t>(layer.num_tokens * info.num_q_heads * info.v_dim));
  AttentionArgs args;
  args.q = TokensHeadsDim(layer.q, layer.num_tokens, info.num_q_heads, info.qk_dim);
  args.cache = &cache;
  args.out = TokensHeadsDim(out.data(), layer.num_tokens, info.num_q_heads, info.v_dim);
  HEADLANE_RETURN_IF_ERROR(RunAttention(plan, args, workspace, executor));
  return out;
}

Status AddLayer(const ModelInfo& info, const Layer& layer, std::span<const CacheTypes> types, Executor& executor,
                std::vector<AttentionError>& errors) {
  HEADLANE_ASSIGN_OR_RETURN(const std::vector<float> exact, Attend(info, layer, CacheTypes(), executor));
  double reference = 0;
  for (const float x : exact) reference += static_cast<double>(x) * static_cast<double>(x);
  for (size_t i = 0; i < types.size(); ++i) {
    HEADLANE_ASSIGN_OR_RETURN(const std::vector<float> rounded, Attend(info, layer, types[i], executor));
    AttentionError& error = errors[i];
    double sum = 0;
    for (size_t j = 0; j < exact.size(); ++j) {
      const double difference = static_cast<double>(rounded[j]) - static_cast<double>(exact[j]);
      sum += difference * difference;
      error.largest = std::max(error.largest, std::fabs(difference));
    }
    error.square_sum += sum;
    error.reference_square_sum += reference;
    error.worst_rms = std::max(error.worst_rms, reference > 0 ? std::sqrt(sum / reference) : 0);
    error.num_outputs += static_cast<int64_t>(exact.size());
  }
  return OkStatus();
}

}  // namespace

double AttentionError::rms() const {
  return reference_square_sum > 0 ? std::sqrt(square_sum / reference_square_sum) : 0;
}

double AttentionError::max() const {
  return num_outputs > 0 && reference_square_sum > 0
             ? largest / std::sqrt(reference_square_sum / static_cast<double>(num_outputs))
             : 0;
}

Result<std::vector<AttentionError>> ModelAttentionErrors(const Model& model, std::span<const int32_t> ids,
                                                         std::span<const CacheTypes> types, int threads,
                                                         const ProgressCallback& progress) {
  SessionOptions options;
  options.max_context = static_cast<int64_t>(ids.size());
  options.chunk = options.max_context;  // each layer has all rows at once
  options.threads = threads;
  HEADLANE_ASSIGN_OR_RETURN(Session session, Session::Create(model, options));
  OpenMPExecutor executor(threads);
  std::vector<AttentionError> errors(types.size());
  Status status;
  session.Observe([&](const LayerRows& rows) {
    if (!status.ok()) return;
    const Layer layer = {static_cast<int64_t>(rows.positions.size()), rows.scale, rows.q, rows.k, rows.v};
    try {
      status = AddLayer(model.info(), layer, types, executor, errors);
    } catch (const std::bad_alloc&) {  // must not leave an observer
      status = MakeStatus(StatusCode::kResourceExhausted, "out of memory while comparing attention");
    }
    if (status.ok() && progress) progress(rows.layer + 1, model.info().num_layers);
  });
  HEADLANE_RETURN_IF_ERROR(session.Prefill(ids));
  if (!status.ok()) return status;
  return errors;
}

Result<std::vector<AttentionError>> RandomAttentionErrors(const Model& model, int64_t num_tokens, uint64_t seed,
                                                          std::span<const CacheTypes> types, int threads) {
  const ModelInfo& info = model.info();
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t heads, int64_t dim) {
    std::vector<float> values(static_cast<size_t>(num_tokens * heads * dim));
    for (float& value : values) value = normal(generator);
    return values;
  };
  const std::vector<float> q = draw(info.num_q_heads, info.qk_dim);
  const std::vector<float> k = draw(info.num_kv_heads, info.qk_dim);
  const std::vector<float> v = draw(info.num_kv_heads, info.v_dim);
  std::vector<AttentionError> errors(types.size());
  OpenMPExecutor executor(threads);
  const Layer layer = {num_tokens, DefaultScale(info.qk_dim), q.data(), k.data(), v.data()};
  HEADLANE_RETURN_IF_ERROR(AddLayer(info, layer, types, executor, errors));
  return errors;
}

}  // namespace headlane::tools
