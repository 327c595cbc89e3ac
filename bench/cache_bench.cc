// The cache beside attention: what a decode step and a chunk of a prompt append, over all layers of a model, and what
// forking a long sequence takes.
#include <optional>
#include <string>
#include <string_view>

#include "bench/session.h"
#include "bench/source.h"
#include "headlane/kv_cache.h"

namespace headlane::bench {
namespace {

struct CacheModel {
  const char* name;
  int64_t num_layers;
};
constexpr CacheModel kModels[] = {{"llama-3-8b", 32}, {"smollm2-135m", 30}};

struct CacheInputs {
  std::optional<KVCache> cache;
  SequenceId sequence;
  std::vector<float> k, v;
};

// About 256 MB: appending then always meets memory that is in no cache.
constexpr double kCacheBytes = 256.0 * (1 << 20);

Result<std::unique_ptr<CacheInputs>> MakeInputs(const ModelShape& model, int64_t num_layers, int64_t num_tokens) {
  auto inputs = std::make_unique<CacheInputs>();
  KVCacheSpec spec;
  spec.num_layers = num_layers;
  spec.num_kv_heads = model.num_kv_heads;
  spec.qk_dim = model.qk_dim;
  spec.v_dim = model.v_dim;
  spec.max_tokens = static_cast<int64_t>(kCacheBytes / KvBytes({model, 1, 1, num_layers}));
  spec.max_sequences = 1;
  HEADLANE_ASSIGN_OR_RETURN(KVCache cache, KVCache::Create(spec));
  HEADLANE_ASSIGN_OR_RETURN(inputs->sequence, cache.CreateSequence());
  inputs->cache.emplace(std::move(cache));
  inputs->k = RandomFloats(num_tokens * model.num_kv_heads * model.qk_dim, 5);
  inputs->v = RandomFloats(num_tokens * model.num_kv_heads * model.v_dim, 6);
  return inputs;
}

Status Append(CacheInputs& inputs, const ModelShape& model, int64_t num_tokens) {
  KVCache& cache = *inputs.cache;
  const ConstTensorView k = TokensHeadsDim(inputs.k.data(), num_tokens, model.num_kv_heads, model.qk_dim);
  const ConstTensorView v = TokensHeadsDim(inputs.v.data(), num_tokens, model.num_kv_heads, model.v_dim);
  HEADLANE_ASSIGN_OR_RETURN(const int64_t length, cache.Length(inputs.sequence));
  if (length + num_tokens > cache.spec().max_tokens) HEADLANE_RETURN_IF_ERROR(cache.Truncate(inputs.sequence, 0));
  HEADLANE_RETURN_IF_ERROR(cache.Reserve(inputs.sequence, num_tokens));
  for (int64_t layer = 0; layer < cache.spec().num_layers; ++layer) {
    HEADLANE_RETURN_IF_ERROR(cache.Write(inputs.sequence, layer, k, v));
  }
  return cache.Commit(inputs.sequence, num_tokens);
}

// What was written reads back exactly; afterwards the pages of the whole cache have been touched.
Status Check(CacheInputs& inputs, const ModelShape& model, int64_t num_tokens) {
  KVCache& cache = *inputs.cache;
  HEADLANE_RETURN_IF_ERROR(Append(inputs, model, num_tokens));
  std::vector<float> k(inputs.k.size()), v(inputs.v.size());
  const int64_t last = cache.spec().num_layers - 1;
  HEADLANE_ASSIGN_OR_RETURN(const int64_t length, cache.Length(inputs.sequence));
  HEADLANE_RETURN_IF_ERROR(cache.Read(inputs.sequence, last, length - num_tokens,
                                      TokensHeadsDim(k.data(), num_tokens, model.num_kv_heads, model.qk_dim),
                                      TokensHeadsDim(v.data(), num_tokens, model.num_kv_heads, model.v_dim)));
  if (k != inputs.k || v != inputs.v) return MakeStatus(StatusCode::kInternal, "wrong keys or values were read back");
  for (int64_t tokens = 0; tokens < cache.spec().max_tokens; tokens += num_tokens) {
    HEADLANE_RETURN_IF_ERROR(Append(inputs, model, num_tokens));
  }
  return OkStatus();
}

void RunCase(Session& session, benchmark::State& state, const Case& entry, const ModelShape& model, int64_t num_layers,
             int64_t num_tokens) {
  auto inputs = session.GetInputs<CacheInputs>(entry.name, [&]() -> Result<std::unique_ptr<CacheInputs>> {
    HEADLANE_ASSIGN_OR_RETURN(std::unique_ptr<CacheInputs> made, MakeInputs(model, num_layers, num_tokens));
    HEADLANE_RETURN_IF_ERROR(Check(*made, model, num_tokens));
    return made;
  });
  if (!inputs.ok()) {
    Session::Fail(state, inputs.status());
    return;
  }
  const double seconds = session.Time(state, entry, [&] { return Append(**inputs, model, num_tokens); });
  // Written, not read: no limit to compare with is measured.
  if (seconds > 0) state.counters[kGbytes] = KvBytes({model, num_layers, 1, num_tokens}) / seconds / 1e9;
}

// One sequence of 65536 tokens, and room for the fork: page ids are copied, tokens are not.
struct ForkInputs {
  std::optional<KVCache> cache;
  SequenceId sequence;
};
constexpr int64_t kForkTokens = 65536;

Result<std::unique_ptr<ForkInputs>> MakeForkInputs() {
  auto inputs = std::make_unique<ForkInputs>();
  KVCacheSpec spec;
  spec.num_kv_heads = 1;
  spec.qk_dim = spec.v_dim = 16;  // forking touches no token
  spec.max_tokens = kForkTokens;
  spec.max_sequences = 2;
  HEADLANE_ASSIGN_OR_RETURN(KVCache cache, KVCache::Create(spec));
  HEADLANE_ASSIGN_OR_RETURN(inputs->sequence, cache.CreateSequence());
  const std::vector<float> rows = RandomFloats(kForkTokens * spec.qk_dim, 7);
  const ConstTensorView view = TokensHeadsDim(rows.data(), kForkTokens, spec.num_kv_heads, spec.qk_dim);
  HEADLANE_RETURN_IF_ERROR(cache.Append(inputs->sequence, view, view));
  inputs->cache.emplace(std::move(cache));
  return inputs;
}

Status ForkAndDrop(ForkInputs& inputs) {
  HEADLANE_ASSIGN_OR_RETURN(const SequenceId fork, inputs.cache->Fork(inputs.sequence));
  return inputs.cache->DropSequence(fork);
}

void RunFork(Session& session, benchmark::State& state, const Case& entry) {
  auto inputs = session.GetInputs<ForkInputs>(entry.name, [] { return MakeForkInputs(); });
  if (!inputs.ok()) {
    Session::Fail(state, inputs.status());
    return;
  }
  session.Time(state, entry, [&] { return ForkAndDrop(**inputs); });
}

void RegisterFork(Session& session) {
  Case entry;
  entry.name = "fork/65536/threads:1";
  entry.task = entry.series = entry.name;
  entry.variant = "cache";
  entry.length = kForkTokens;
  entry.requirement = Requirement::kFork;
  session.Register(
      entry, {.quick = true, .targets = true},
      [&session](benchmark::State& state, const Case& registered) { RunFork(session, state, registered); });
}

}  // namespace

void RegisterCache(Session& session) {
  RegisterFork(session);
  for (const CacheModel& cache_model : kModels) {
    const ModelShape& model = *FindModelShape(cache_model.name);
    for (const int64_t num_tokens : {1, 16, 512}) {
      Case entry;
      entry.name = std::string("append/") + model.name + "/tokens:" + std::to_string(num_tokens) + "/threads:1";
      entry.task = entry.series = entry.name;
      entry.variant = "cache";
      entry.length = num_tokens;
      const bool step = num_tokens == 1;
      if (step) {
        entry.reference = std::string("decode/") + model.name +
                          "/4096/b1/cache/threads:" + std::to_string(session.options().threads.front());
        entry.reference_times = static_cast<double>(cache_model.num_layers);
        if (std::string_view(model.name) == "llama-3-8b") entry.requirement = Requirement::kAppend;
      }
      session.Register(entry, {.quick = step, .targets = step},
                       [&session, &model, num_tokens, num_layers = cache_model.num_layers](benchmark::State& state,
                                                                                           const Case& registered) {
                         RunCase(session, state, registered, model, num_layers, num_tokens);
                       });
    }
  }
}

}  // namespace headlane::bench
