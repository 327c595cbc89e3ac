// The baseline: attention out of oneDNN's primitives, scores = q * K^T, softmax, out = weights * V, each over
// everything before the next begins, as programs do that have a GEMM library and no attention.
//
// It gets what helps it: the layout [heads, tokens, dim], queries scaled beforehand, the query heads of a group as rows
// of one multiplication, and primitives made once. Causality is a mask that the first multiplication adds, so all
// scores are computed. Queries, scores and outputs are f32; keys and values as they are stored.
#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/attention_runner.h"
#include "bench/memory_block.h"
#include "headlane/attention.h"

#if HEADLANE_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>

#include "bench/onednn_threads.h"
#endif

namespace headlane::bench {

#if HEADLANE_WITH_ONEDNN
namespace {

using dnnl::memory;

class OneDnnRunner final : public AttentionRunner {
 public:
  OneDnnRunner(const Source& source, std::shared_ptr<KeysValues> data)
      : source_(source), data_(std::move(data)), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  Status Fill() {
    const AttentionShape& shape = source_.shape();
    const ModelShape& model = shape.model;
    // A mask for all rows of a group at once where it is small; else one multiplication per query head of the group.
    const bool fold = shape.group() * shape.q_len * shape.kv_len * 4 <= kFoldedMaskBytes;
    num_calls_ = fold ? 1 : shape.group();
    rows_ = shape.group() / num_calls_ * shape.q_len;
    const int64_t num_rows = shape.num_sequences * model.num_q_heads * shape.q_len;
    if (!q_.Allocate(num_rows * model.qk_dim * 4) || !scores_.Allocate(num_rows * shape.kv_len * 4) ||
        !out_.Allocate(num_rows * model.v_dim * 4) || !mask_.Allocate(rows_ * shape.kv_len * 4)) {
      return MakeStatus(StatusCode::kResourceExhausted, "no memory for %lld bytes of scores",
                        static_cast<long long>(num_rows * shape.kv_len * 4));
    }
    // [sequences][q heads][q_len][qk_dim]
    const float scale = DefaultScale(model.qk_dim);
    float* q = q_.floats();
    for (int64_t s = 0; s < shape.num_sequences; ++s) {
      for (int64_t h = 0; h < model.num_q_heads; ++h) {
        for (int64_t i = 0; i < shape.q_len; ++i) {
          const float* row = source_.Query(s, i, h);
          q = std::transform(row, row + model.qk_dim, q, [&](float value) { return value * scale; });
        }
      }
    }
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t visible = shape.VisibleEnd(row % shape.q_len);
      float* mask = mask_.floats() + row * shape.kv_len;
      std::fill(mask, mask + visible, 0.0f);
      std::fill(mask + visible, mask + shape.kv_len, -std::numeric_limits<float>::infinity());
    }
    // What is touched first in the timed call would count as its time.
    std::fill_n(scores_.floats(), num_rows * shape.kv_len, 0.0f);
    std::fill_n(out_.floats(), num_rows * model.v_dim, 0.0f);
    try {
      MakePrimitives();
    } catch (const std::exception& error) {
      return MakeStatus(StatusCode::kUnsupported, "oneDNN: %s with %s keys and values", error.what(),
                        DTypeName(shape.dtype));
    }
    // Two orders of magnitude slower: nobody's choice, and minutes of time here.
    if (implementation_.find("ref") != std::string::npos) {
      return MakeStatus(StatusCode::kUnsupported,
                        "oneDNN has only its reference implementation of this with %s keys and values: %s",
                        DTypeName(shape.dtype), implementation_.c_str());
    }
    return OkStatus();
  }

  Status SetThreads(int threads) override { return SetOneDnnThreads(threads); }

  Status Run(int64_t copy) override {
    const ModelShape& model = source_.shape().model;
    const int64_t q_len = source_.shape().q_len;
    const int64_t kv_len = source_.shape().kv_len;
    try {
      memory k(k_desc_, engine_, data_->k(copy));
      memory v(v_desc_, engine_, data_->v(copy));
      memory mask(mask_desc_, engine_, mask_.floats());
      // Query head g of each group: so many rows into what the sequence and KV head have.
      for (int64_t g = 0; g < num_calls_; ++g) {
        memory q(q_desc_, engine_, q_.floats() + g * q_len * model.qk_dim);
        memory scores(part_desc_, engine_, scores_.floats() + g * q_len * kv_len);
        std::unordered_map<int, memory> args{{DNNL_ARG_SRC, q}, {DNNL_ARG_WEIGHTS, k}, {DNNL_ARG_DST, scores}};
        if (q_len > 1) args.emplace(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, mask);
        qk_.execute(stream_, args);
      }
      memory scores(scores_desc_, engine_, scores_.floats());
      softmax_.execute(stream_, {{DNNL_ARG_SRC, scores}, {DNNL_ARG_DST, scores}});
      memory out(out_desc_, engine_, out_.floats());
      pv_.execute(stream_, {{DNNL_ARG_SRC, scores}, {DNNL_ARG_WEIGHTS, v}, {DNNL_ARG_DST, out}});
      stream_.wait();
    } catch (const std::exception& error) {
      return MakeStatus(StatusCode::kInternal, "oneDNN: %s", error.what());
    }
    return OkStatus();
  }

  const float* Output(int64_t sequence, int64_t row, int64_t head) const override {
    const AttentionShape& shape = source_.shape();
    return out_.floats() + ((sequence * shape.model.num_q_heads + head) * shape.q_len + row) * shape.model.v_dim;
  }
  int64_t workspace_bytes() const override { return scores_.bytes() + mask_.bytes(); }
  std::string remark() const override { return implementation_; }
  double tolerance() const override { return 16; }  // another order of additions, and its own exp

 private:
  static constexpr int64_t kFoldedMaskBytes = int64_t{32} << 20;

  // Tensors are [sequences, KV heads, rows, ..]; a part has the rows of some query heads only, at the whole's strides.
  void MakePrimitives() {
    const AttentionShape& shape = source_.shape();
    const ModelShape& model = shape.model;
    const int64_t s = shape.num_sequences, h = model.num_kv_heads, n = shape.kv_len;
    const int64_t all_rows = shape.group() * shape.q_len;
    // What lies between one KV head and the next has no meaning with one head of one sequence; oneDNN takes such a
    // matrix for a dense one only if it looks dense.
    const auto desc = [&](int64_t rows, int64_t columns) {
      const int64_t head = (s * h == 1 ? rows : all_rows) * columns;
      return memory::desc({s, h, rows, columns}, memory::data_type::f32, memory::dims{h * head, head, columns, 1});
    };
    q_desc_ = desc(rows_, model.qk_dim);
    part_desc_ = desc(rows_, n);
    scores_desc_ = desc(all_rows, n);
    out_desc_ = desc(all_rows, model.v_dim);
    const auto type = shape.dtype == DType::kF32   ? memory::data_type::f32
                      : shape.dtype == DType::kF16 ? memory::data_type::f16
                                                   : memory::data_type::bf16;
    const int64_t v_stride = model.values_in_keys ? model.qk_dim : model.v_dim;
    k_desc_ = memory::desc({s, h, model.qk_dim, n}, type,
                           memory::dims{h * n * model.qk_dim, n * model.qk_dim, 1, model.qk_dim});
    v_desc_ = memory::desc({s, h, n, model.v_dim}, type, memory::dims{h * n * v_stride, n * v_stride, v_stride, 1});
    mask_desc_ = memory::desc({1, 1, rows_, n}, memory::data_type::f32, memory::format_tag::abcd);

    dnnl::primitive_attr attributes;
    if (shape.q_len > 1) {
      dnnl::post_ops mask;
      mask.append_binary(dnnl::algorithm::binary_add, mask_desc_);
      attributes.set_post_ops(mask);
    }
    const dnnl::matmul::primitive_desc qk(engine_, q_desc_, k_desc_, part_desc_, attributes);
    const dnnl::matmul::primitive_desc pv(engine_, scores_desc_, v_desc_, out_desc_);
    implementation_ = std::string(qk.impl_info_str()) + ", " + pv.impl_info_str();
    qk_ = dnnl::matmul(qk);
    pv_ = dnnl::matmul(pv);
    softmax_ = dnnl::softmax_forward(dnnl::softmax_forward::primitive_desc(engine_, dnnl::prop_kind::forward_inference,
                                                                           dnnl::algorithm::softmax_accurate,
                                                                           scores_desc_, scores_desc_, /*axis=*/3));
  }

  const Source& source_;
  std::shared_ptr<KeysValues> data_;
  MemoryBlock q_, scores_, out_, mask_;
  int64_t num_calls_ = 1;
  int64_t rows_ = 0;            // of one call
  std::string implementation_;  // of the two multiplications
  dnnl::engine engine_;
  dnnl::stream stream_;
  memory::desc q_desc_, part_desc_, scores_desc_, out_desc_, k_desc_, v_desc_, mask_desc_;
  dnnl::matmul qk_, pv_;
  dnnl::softmax_forward softmax_;
};

}  // namespace

RunnerResult MakeOneDnnRunner(const Source& source, std::shared_ptr<KeysValues> data) {
  HEADLANE_RETURN_IF_ERROR(RefuseModifiers(source.shape(), "oneDNN"));
  auto runner = std::make_unique<OneDnnRunner>(source, std::move(data));
  HEADLANE_RETURN_IF_ERROR(runner->Fill());
  return std::unique_ptr<AttentionRunner>(std::move(runner));
}

#else

RunnerResult MakeOneDnnRunner(const Source&, std::shared_ptr<KeysValues>) {
  return MakeStatus(StatusCode::kUnsupported, "this build has no oneDNN");
}

#endif

}  // namespace headlane::bench
