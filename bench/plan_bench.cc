// What planning costs beside one layer's run of the plan: a new plan per step, or an update of the last one; and what
// asking a plan for its summary costs.
#include <optional>
#include <string>
#include <vector>

#include "bench/session.h"
#include "bench/source.h"
#include "bench/statistics.h"
#include "headlane/attention.h"
#include "headlane/executor.h"
#include "headlane/kv_cache.h"

namespace headlane::bench {
namespace {

constexpr int64_t kKeys = 4096;

// Decode of `batch` sequences out of a cache of one layer.
struct PlanInputs {
  AttentionSpec spec;
  PlanOptions options;
  std::optional<KVCache> cache;
  std::vector<SequenceSpec> sequences;
  std::optional<AttentionPlan> plan;
  double run_seconds = 0;  // of one layer
};

Result<std::unique_ptr<PlanInputs>> MakeInputs(const ModelShape& model, int64_t batch, int64_t kv_len, int threads) {
  auto inputs = std::make_unique<PlanInputs>();
  AttentionSpec& spec = inputs->spec;
  spec.num_q_heads = model.num_q_heads;
  spec.num_kv_heads = model.num_kv_heads;
  spec.qk_dim = model.qk_dim;
  spec.v_dim = model.v_dim;
  KVCacheSpec cache_spec;
  cache_spec.num_kv_heads = model.num_kv_heads;
  cache_spec.qk_dim = model.qk_dim;
  cache_spec.v_dim = model.v_dim;
  cache_spec.max_tokens = batch * (kv_len + 2 * cache_spec.page_tokens);
  cache_spec.max_sequences = batch;
  HEADLANE_ASSIGN_OR_RETURN(KVCache cache, KVCache::Create(cache_spec));
  const std::vector<float> k = RandomFloats((kv_len + 1) * model.num_kv_heads * model.qk_dim, 10);
  const std::vector<float> v = RandomFloats((kv_len + 1) * model.num_kv_heads * model.v_dim, 11);
  for (int64_t s = 0; s < batch; ++s) {
    HEADLANE_ASSIGN_OR_RETURN(const SequenceId id, cache.CreateSequence());
    HEADLANE_RETURN_IF_ERROR(cache.Append(id, TokensHeadsDim(k.data(), kv_len + 1, model.num_kv_heads, model.qk_dim),
                                          TokensHeadsDim(v.data(), kv_len + 1, model.num_kv_heads, model.v_dim)));
    inputs->sequences.push_back({.q_begin = s, .q_len = 1, .kv_len = kv_len, .cache_id = id});
  }
  inputs->cache.emplace(std::move(cache));
  inputs->options.num_workers = threads;
  inputs->options.max_kv_len = kv_len + 1;
  HEADLANE_ASSIGN_OR_RETURN(AttentionPlan plan,
                            PlanAttention(spec, *inputs->cache, inputs->sequences, inputs->options));
  inputs->plan.emplace(std::move(plan));

  // One layer's run, several times.
  const std::vector<float> q = RandomFloats(batch * model.num_q_heads * model.qk_dim, 9);
  std::vector<float> out(static_cast<size_t>(batch * model.num_q_heads * model.v_dim));
  AttentionArgs args;
  args.q = TokensHeadsDim(q.data(), batch, model.num_q_heads, model.qk_dim);
  args.out = TokensHeadsDim(out.data(), batch, model.num_q_heads, model.v_dim);
  args.cache = &*inputs->cache;
  HEADLANE_ASSIGN_OR_RETURN(Workspace workspace, Workspace::Create(*inputs->plan));
  OpenMPExecutor executor(threads);
  std::vector<double> seconds;
  constexpr int kRuns = 7;
  for (int i = 0; i < kRuns; ++i) {
    const Stopwatch watch;
    HEADLANE_RETURN_IF_ERROR(RunAttention(*inputs->plan, args, workspace, executor));
    seconds.push_back(watch.Seconds());
  }
  inputs->run_seconds = Median(seconds);
  return inputs;
}

}  // namespace

void RegisterPlan(Session& session) {
  const ModelShape& model = *FindModelShape("llama-3-8b");
  const int threads = session.options().threads.front();
  for (const int64_t batch : {1, 8}) {
    const auto add = [&](const char* what, Status (*step)(PlanInputs&, int64_t kv_len)) {
      const std::string name =
          std::string("plan/") + model.name + "/" + std::to_string(kKeys) + "/b" + std::to_string(batch);
      const std::string threads_part = "/threads:" + std::to_string(threads);
      Case entry;
      entry.variant = what;
      entry.name = name + "/" + what + threads_part;
      entry.task = entry.series = name + threads_part;
      entry.length = kKeys;
      entry.threads = 1;  // planning itself has one
      session.Register(entry, /*quick=*/true, /*once=*/false,
                       [&session, &model, batch, threads, name, step](benchmark::State& state, const Case& registered) {
                         auto inputs = session.GetInputs<PlanInputs>(
                             name, [&] { return MakeInputs(model, batch, kKeys, threads); });
                         if (!inputs.ok()) {
                           state.SkipWithError(inputs.status().c_str());
                           return;
                         }
                         // Lengths alternate, so that there is something to update.
                         int64_t kv_len = kKeys;
                         const double seconds = session.Time(state, registered, [&] {
                           kv_len = kv_len == kKeys ? kKeys + 1 : kKeys;
                           return step(**inputs, kv_len);
                         });
                         if (seconds > 0) state.counters[kPercentOfRun] = 100 * seconds / (*inputs)->run_seconds;
                       });
    };
    add("create", [](PlanInputs& inputs, int64_t kv_len) {
      for (SequenceSpec& sequence : inputs.sequences) sequence.kv_len = kv_len;
      return PlanAttention(inputs.spec, *inputs.cache, inputs.sequences, inputs.options).status();
    });
    add("update", [](PlanInputs& inputs, int64_t kv_len) {
      for (SequenceSpec& sequence : inputs.sequences) sequence.kv_len = kv_len;
      return inputs.plan->Update(*inputs.cache, inputs.sequences);
    });
    add("summary", [](PlanInputs& inputs, int64_t) {
      return inputs.plan->summary().num_items > 0 ? OkStatus() : MakeStatus(StatusCode::kInternal, "an empty plan");
    });
  }
}

}  // namespace headlane::bench
