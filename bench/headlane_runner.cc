// The library: attention from plain tensors and from its cache.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bench/attention_runner.h"
#include "headlane/attention.h"
#include "headlane/executor.h"

namespace headlane::bench {
namespace {

class HeadlaneRunner final : public AttentionRunner {
 public:
  HeadlaneRunner(const Source& source, std::shared_ptr<KeysValues> data) : source_(source), data_(std::move(data)) {
    const AttentionShape& shape = source.shape();
    const int64_t tokens = shape.num_sequences * shape.q_len;
    out_.resize(static_cast<size_t>(tokens * shape.model.num_q_heads * shape.model.v_dim));
    for (int64_t s = 0; s < shape.num_sequences; ++s) {
      sequences_.push_back(
          {.q_begin = s * shape.q_len, .q_len = shape.q_len, .kv_len = shape.kv_len, .kv_begin = s * shape.kv_len});
      if (from_cache()) sequences_.back().cache_id = data_->sequences()[static_cast<size_t>(s)];
    }
  }

  Status SetThreads(int threads) override {
    const ModelShape& model = source_.shape().model;
    const Modifiers& modifiers = source_.shape().modifiers;
    AttentionSpec spec;
    spec.num_q_heads = model.num_q_heads;
    spec.num_kv_heads = model.num_kv_heads;
    spec.qk_dim = model.qk_dim;
    spec.v_dim = model.v_dim;
    spec.values_in_keys = model.values_in_keys;
    spec.softcap = modifiers.softcap;
    if (modifiers.window >= 0) spec.mask.window = modifiers.window;
    PlanOptions options;
    options.num_workers = threads;
    Result<AttentionPlan> plan = from_cache() ? PlanAttention(spec, data_->cache(), sequences_, options)
                                              : PlanAttention(spec, sequences_, options);
    HEADLANE_RETURN_IF_ERROR(plan.status());
    HEADLANE_ASSIGN_OR_RETURN(Workspace workspace, Workspace::Create(*plan));
    plan_.emplace(std::move(*plan));
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
    if (from_cache()) {
      args.cache = &data_->cache();
      args.layer = copy;
    } else {
      args.k = Tensor(data_->k(copy), model.qk_dim);
      if (!model.values_in_keys) args.v = Tensor(data_->v(copy), model.v_dim);
    }
    SetModifiers(args);
    return RunAttention(*plan_, args, *workspace_, *executor_);
  }

  const float* Output(int64_t sequence, int64_t row, int64_t head) const override {
    const AttentionShape& shape = source_.shape();
    return out_.data() + ((sequence * shape.q_len + row) * shape.model.num_q_heads + head) * shape.model.v_dim;
  }

  int64_t workspace_bytes() const override { return plan_ ? static_cast<int64_t>(plan_->workspace_bytes()) : 0; }

 private:
  bool from_cache() const { return data_->storage() == Storage::kCache; }

  ConstTensorView Tensor(const void* data, int64_t dim) const {
    const AttentionShape& shape = source_.shape();
    ConstTensorView view = TokensHeadsDim(static_cast<const float*>(nullptr), shape.num_sequences * shape.kv_len,
                                          shape.model.num_kv_heads, dim);
    view.data = data;
    view.dtype = shape.dtype;
    return view;
  }

  // The tokens of all sequences follow one another, and each sequence's rows have the mask and bias of all others: with
  // one sequence only these are rows of a tensor, and only then they are asked for.
  void SetModifiers(AttentionArgs& args) const {
    const AttentionShape& shape = source_.shape();
    const Modifiers& modifiers = shape.modifiers;
    if (modifiers.mask != Modifiers::Mask::kNone) {
      const bool bits = modifiers.mask == Modifiers::Mask::kBits;
      args.mask.data = bits ? source_.mask_bits().data() : source_.mask().data();
      args.mask.format = bits ? BoolMaskView::Format::kBits : BoolMaskView::Format::kBytes;
      args.mask.num_tokens = shape.q_len;
      args.mask.num_heads = shape.model.num_q_heads;
      args.mask.num_columns = shape.kv_len;
      args.mask.token_stride = bits ? source_.mask_row_bytes() : shape.kv_len;
    }
    if (modifiers.bias) {
      args.bias = TokensHeadsDim(source_.bias().data(), shape.q_len, 1, shape.kv_len);
      args.bias.num_heads = shape.model.num_q_heads;
      args.bias.head_stride = 0;
    }
    if (modifiers.alibi) args.alibi_slopes = source_.slopes().data();
  }

  const Source& source_;
  std::shared_ptr<KeysValues> data_;
  std::vector<SequenceSpec> sequences_;
  std::vector<float> out_;
  std::optional<AttentionPlan> plan_;
  std::optional<Workspace> workspace_;
  std::optional<OpenMPExecutor> executor_;
};

}  // namespace

RunnerResult MakeHeadlaneRunner(const Source& source, std::shared_ptr<KeysValues> data) {
  const AttentionShape& shape = source.shape();
  const bool per_row = shape.modifiers.bias || shape.modifiers.mask != Modifiers::Mask::kNone;
  if (per_row && shape.num_sequences > 1) {
    return MakeStatus(StatusCode::kUnsupported, "masks and biases are timed with one sequence, not %lld",
                      static_cast<long long>(shape.num_sequences));
  }
  return std::unique_ptr<AttentionRunner>(std::make_unique<HeadlaneRunner>(source, std::move(data)));
}

}  // namespace headlane::bench
