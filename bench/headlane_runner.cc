// The library: attention from plain tensors and from its cache.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bench/attention_runner.h"
#include "headlane/attention.h"
#include "headlane/executor.h"
#include "headlane/kv_cache.h"

namespace headlane::bench {
namespace {

class HeadlaneRunner : public AttentionRunner {
 public:
  explicit HeadlaneRunner(const Source& source) : source_(source) {
    const AttentionShape& shape = source.shape();
    const int64_t tokens = shape.num_sequences * shape.q_len;
    out_.resize(static_cast<size_t>(tokens * shape.model.num_q_heads * shape.model.v_dim));
    for (int64_t s = 0; s < shape.num_sequences; ++s) {
      sequences_.push_back(
          {.q_begin = s * shape.q_len, .q_len = shape.q_len, .kv_len = shape.kv_len, .kv_begin = s * shape.kv_len});
    }
  }

  Status SetThreads(int threads) override {
    const ModelShape& model = source_.shape().model;
    AttentionSpec spec;
    spec.num_q_heads = model.num_q_heads;
    spec.num_kv_heads = model.num_kv_heads;
    spec.qk_dim = model.qk_dim;
    spec.v_dim = model.v_dim;
    PlanOptions options;
    options.num_workers = threads;
    HEADLANE_ASSIGN_OR_RETURN(AttentionPlan plan, Plan(spec, options));
    HEADLANE_ASSIGN_OR_RETURN(Workspace workspace, Workspace::Create(plan));
    plan_.emplace(std::move(plan));
    workspace_.emplace(std::move(workspace));
    executor_.emplace(threads);
    return OkStatus();
  }

  Status Run(int64_t copy) override {
    const AttentionShape& shape = source_.shape();
    const ModelShape& model = shape.model;
    const int64_t tokens = shape.num_sequences * shape.q_len;
    AttentionArgs args;
    args.q = TokensHeadsDim(source_.queries().data(), tokens, model.num_q_heads, model.qk_dim);
    args.out = TokensHeadsDim(out_.data(), tokens, model.num_q_heads, model.v_dim);
    SetKeysAndValues(copy, args);
    return RunAttention(*plan_, args, *workspace_, *executor_);
  }

  const float* Output(int64_t sequence, int64_t row, int64_t head) const override {
    const AttentionShape& shape = source_.shape();
    return out_.data() + ((sequence * shape.q_len + row) * shape.model.num_q_heads + head) * shape.model.v_dim;
  }

  int64_t workspace_bytes() const override { return plan_ ? static_cast<int64_t>(plan_->workspace_bytes()) : 0; }

 protected:
  virtual Result<AttentionPlan> Plan(const AttentionSpec& spec, const PlanOptions& options) = 0;
  virtual void SetKeysAndValues(int64_t copy, AttentionArgs& args) = 0;

  const Source& source_;
  std::vector<SequenceSpec> sequences_;

 private:
  std::vector<float> out_;
  std::optional<AttentionPlan> plan_;
  std::optional<Workspace> workspace_;
  std::optional<OpenMPExecutor> executor_;
};

class PlainRunner final : public HeadlaneRunner {
 public:
  using HeadlaneRunner::HeadlaneRunner;

  Status Fill(int64_t num_copies) { return data_.Fill(source_, num_copies, Source::Layout::kTokensHeads); }

 protected:
  Result<AttentionPlan> Plan(const AttentionSpec& spec, const PlanOptions& options) override {
    return PlanAttention(spec, sequences_, options);
  }
  void SetKeysAndValues(int64_t copy, AttentionArgs& args) override {
    const AttentionShape& shape = source_.shape();
    const int64_t tokens = shape.num_sequences * shape.kv_len;
    args.k = TokensHeadsDim(data_.k(copy), tokens, shape.model.num_kv_heads, shape.model.qk_dim);
    args.v = TokensHeadsDim(data_.v(copy), tokens, shape.model.num_kv_heads, shape.model.v_dim);
  }

 private:
  DenseKeysValues data_;
};

class CacheRunner final : public HeadlaneRunner {
 public:
  using HeadlaneRunner::HeadlaneRunner;

  Status Fill(int64_t num_copies) {
    const AttentionShape& shape = source_.shape();
    const ModelShape& model = shape.model;
    KVCacheSpec spec;
    spec.num_layers = num_copies;
    spec.num_kv_heads = model.num_kv_heads;
    spec.qk_dim = model.qk_dim;
    spec.v_dim = model.v_dim;
    spec.max_sequences = shape.num_sequences;
    const int64_t pages = (shape.kv_len + spec.page_tokens - 1) / spec.page_tokens;
    spec.max_tokens = shape.num_sequences * pages * spec.page_tokens;
    HEADLANE_ASSIGN_OR_RETURN(KVCache cache, KVCache::Create(spec));
    for (int64_t s = 0; s < shape.num_sequences; ++s) {
      HEADLANE_ASSIGN_OR_RETURN(const SequenceId id, cache.CreateSequence());
      sequences_[static_cast<size_t>(s)].cache_id = id;
      HEADLANE_RETURN_IF_ERROR(cache.Reserve(id, shape.kv_len));
      for (int64_t begin = 0; begin < shape.kv_len; begin += Source::kChunkTokens) {
        const int64_t n = std::min(Source::kChunkTokens, shape.kv_len - begin);
        for (int64_t copy = 0; copy < num_copies; ++copy) {
          HEADLANE_RETURN_IF_ERROR(
              cache.Write(id, copy, TokensHeadsDim(source_.Key(copy, s, begin), n, model.num_kv_heads, model.qk_dim),
                          TokensHeadsDim(source_.Value(copy, s, begin), n, model.num_kv_heads, model.v_dim), begin));
        }
      }
      HEADLANE_RETURN_IF_ERROR(cache.Commit(id, shape.kv_len));
    }
    cache_.emplace(std::move(cache));
    return OkStatus();
  }

 protected:
  Result<AttentionPlan> Plan(const AttentionSpec& spec, const PlanOptions& options) override {
    return PlanAttention(spec, *cache_, sequences_, options);
  }
  void SetKeysAndValues(int64_t copy, AttentionArgs& args) override {
    args.cache = &*cache_;
    args.layer = copy;
  }

 private:
  std::optional<KVCache> cache_;
};

template <typename Runner>
RunnerResult Make(const Source& source, int64_t num_copies) {
  auto runner = std::make_unique<Runner>(source);
  HEADLANE_RETURN_IF_ERROR(runner->Fill(num_copies));
  return std::unique_ptr<AttentionRunner>(std::move(runner));
}

}  // namespace

RunnerResult MakePlainRunner(const Source& source, int64_t num_copies) { return Make<PlainRunner>(source, num_copies); }
RunnerResult MakeCacheRunner(const Source& source, int64_t num_copies) { return Make<CacheRunner>(source, num_copies); }

}  // namespace headlane::bench
