// Attention as in the formula: one row after the other, all its scores, their softmax, the weighted sum. What a simple
// program does, and the scale for what blocking and vectors gain. One thread, as the compiler makes it.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "bench/attention_runner.h"
#include "headlane/attention.h"

namespace headlane::bench {
namespace {

class NaiveRunner final : public AttentionRunner {
 public:
  NaiveRunner(const Source& source, std::shared_ptr<KeysValues> data) : source_(source), data_(std::move(data)) {
    const AttentionShape& shape = source.shape();
    out_.resize(static_cast<size_t>(shape.num_sequences * shape.q_len * shape.model.num_q_heads * shape.model.v_dim));
    scores_.resize(static_cast<size_t>(shape.kv_len));
  }

  Status SetThreads(int threads) override {
    if (threads == 1) return OkStatus();
    return MakeStatus(StatusCode::kUnsupported, "the naive loops have one thread, not %d", threads);
  }

  Status Run(int64_t copy) override {
    const AttentionShape& shape = source_.shape();
    const ModelShape& model = shape.model;
    for (int64_t s = 0; s < shape.num_sequences; ++s) {
      for (int64_t h = 0; h < model.num_q_heads; ++h) {
        const int64_t first_row = (s * model.num_kv_heads + h / shape.group()) * shape.kv_len;
        const float* k = static_cast<const float*>(data_->k(copy)) + first_row * model.qk_dim;
        const float* v = static_cast<const float*>(data_->v(copy)) + first_row * model.v_dim;
        for (int64_t i = 0; i < shape.q_len; ++i) Row(source_.Query(s, i, h), k, v, shape.VisibleEnd(i), At(s, i, h));
      }
    }
    return OkStatus();
  }

  const float* Output(int64_t sequence, int64_t row, int64_t head) const override {
    return const_cast<NaiveRunner*>(this)->At(sequence, row, head);
  }
  int64_t workspace_bytes() const override { return static_cast<int64_t>(scores_.size()) * 4; }
  double tolerance() const override { return 16; }  // one long sum where the library has many short ones

 private:
  float* At(int64_t sequence, int64_t row, int64_t head) {
    const AttentionShape& shape = source_.shape();
    return out_.data() + ((sequence * shape.q_len + row) * shape.model.num_q_heads + head) * shape.model.v_dim;
  }

  // k: [num_keys][qk_dim], v: [num_keys][v_dim].
  void Row(const float* q, const float* k, const float* v, int64_t num_keys, float* out) {
    const ModelShape& model = source_.shape().model;
    const float scale = DefaultScale(model.qk_dim);
    float* scores = scores_.data();
    float max = -HUGE_VALF;
    for (int64_t j = 0; j < num_keys; ++j) {
      float score = 0;
      for (int64_t d = 0; d < model.qk_dim; ++d) score += q[d] * k[j * model.qk_dim + d];
      scores[j] = score * scale;
      max = std::max(max, scores[j]);
    }
    float sum = 0;
    for (int64_t j = 0; j < num_keys; ++j) sum += scores[j] = std::exp(scores[j] - max);
    std::fill_n(out, model.v_dim, 0.0f);
    for (int64_t j = 0; j < num_keys; ++j) {
      const float weight = scores[j] / sum;
      for (int64_t d = 0; d < model.v_dim; ++d) out[d] += weight * v[j * model.v_dim + d];
    }
  }

  const Source& source_;
  std::shared_ptr<KeysValues> data_;
  std::vector<float> out_;
  std::vector<float> scores_;
};

}  // namespace

RunnerResult MakeNaiveRunner(const Source& source, std::shared_ptr<KeysValues> data) {
  const AttentionShape& shape = source.shape();
  HEADLANE_RETURN_IF_ERROR(RefuseModifiers(shape, "the naive loops"));
  if (shape.dtype != DType::kF32 || shape.model.values_in_keys) {
    return MakeStatus(StatusCode::kUnsupported, "the naive loops have f32 keys and values of their own, not %s of %s",
                      DTypeName(shape.dtype), shape.model.name);
  }
  return std::unique_ptr<AttentionRunner>(std::make_unique<NaiveRunner>(source, std::move(data)));
}

}  // namespace headlane::bench
