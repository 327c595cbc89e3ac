// The second baseline: the whole of attention given to oneDNN's Graph API as one pattern, matmul, scale, mask, softmax,
// matmul, which it may compile into one partition and compute in cache-sized pieces.
//
// It gets what helps it: the layout [heads, tokens, dim], and the query heads of a group as rows of their KV head.
// Where the mask would be large that way, groups are a dimension of their own, and keys and values are broadcast over
// it. All tensors are of the stored element type, scores f32, as the pattern asks.
#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "bench/attention_runner.h"
#include "bench/memory_block.h"
#include "headlane/attention.h"

#if HEADLANE_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#if defined(ONEDNN_BUILD_GRAPH)
#define HEADLANE_HAVE_ONEDNN_GRAPH 1
#include <oneapi/dnnl/dnnl_graph.hpp>

#include "bench/onednn_threads.h"
#endif
#endif

namespace headlane::bench {

#if defined(HEADLANE_HAVE_ONEDNN_GRAPH)
namespace {

using dnnl::graph::logical_tensor;
using Dims = logical_tensor::dims;
using Type = logical_tensor::data_type;

class OneDnnGraphRunner final : public AttentionRunner {
 public:
  OneDnnGraphRunner(const Source& source, std::shared_ptr<KeysValues> data)
      : source_(source), data_(std::move(data)), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  Status Fill() {
    const AttentionShape& shape = source_.shape();
    const ModelShape& model = shape.model;
    folded_ = shape.group() * shape.q_len * shape.kv_len * 4 <= kFoldedMaskBytes;
    mask_rows_ = folded_ ? shape.group() * shape.q_len : shape.q_len;
    const int64_t num_rows = shape.num_sequences * model.num_q_heads * shape.q_len;
    const int64_t element_bytes = DTypeBytes(shape.dtype);
    if (!q_.Allocate(num_rows * model.qk_dim * element_bytes) ||
        !out_.Allocate(num_rows * model.v_dim * element_bytes) ||
        !mask_.Allocate(has_mask() ? mask_rows_ * shape.kv_len * 4 : 0)) {
      return MakeStatus(StatusCode::kResourceExhausted, "no memory for %lld query rows",
                        static_cast<long long>(num_rows));
    }
    std::memset(out_.bytes_at(0), 0, static_cast<size_t>(out_.bytes()));
    // [sequences][q heads][q_len][qk_dim]
    int64_t at = 0;
    for (int64_t s = 0; s < shape.num_sequences; ++s) {
      for (int64_t h = 0; h < model.num_q_heads; ++h) {
        for (int64_t i = 0; i < shape.q_len; ++i) {
          const float* row = source_.Query(s, i, h);
          for (int64_t d = 0; d < model.qk_dim; ++d) Store(row[d], q_, at++);
        }
      }
    }
    for (int64_t row = 0; has_mask() && row < mask_rows_; ++row) {
      const int64_t visible = shape.VisibleEnd(row % shape.q_len);
      float* mask = mask_.floats() + row * shape.kv_len;
      std::fill(mask, mask + visible, 0.0f);
      std::fill(mask + visible, mask + shape.kv_len, -std::numeric_limits<float>::infinity());
    }
    try {
      return Compile();
    } catch (const std::exception& error) {
      return MakeStatus(StatusCode::kUnsupported, "oneDNN Graph: %s with %s keys and values", error.what(),
                        DTypeName(shape.dtype));
    }
  }

  Status SetThreads(int threads) override { return SetOneDnnThreads(threads); }

  Status Run(int64_t copy) override {
    try {
      compiled_.execute(stream_, inputs_[static_cast<size_t>(copy)], outputs_);
      stream_.wait();
    } catch (const std::exception& error) {
      return MakeStatus(StatusCode::kInternal, "oneDNN Graph: %s", error.what());
    }
    return OkStatus();
  }

  const float* Output(int64_t sequence, int64_t row, int64_t head) const override {
    const AttentionShape& shape = source_.shape();
    const int64_t v_dim = shape.model.v_dim;
    const int64_t at = ((sequence * shape.model.num_q_heads + head) * shape.q_len + row) * v_dim;
    if (shape.dtype == DType::kF32) return out_.floats() + at;
    row_.resize(static_cast<size_t>(v_dim));
    const uint16_t* stored = reinterpret_cast<const uint16_t*>(out_.floats()) + at;
    std::transform(stored, stored + v_dim, row_.begin(),
                   shape.dtype == DType::kF16 ? internal::F16ToF32 : internal::BF16ToF32);
    return row_.data();
  }
  int64_t workspace_bytes() const override { return mask_.bytes(); }
  std::string remark() const override { return "one partition"; }
  double tolerance() const override { return 16; }  // another order of additions, and its own exp
  // Queries, weights and outputs of 16 bits: a few roundings of numbers up to 1, and of scores up to about 10.
  double absolute_tolerance() const override {
    const DType dtype = source_.shape().dtype;
    return dtype == DType::kF32 ? 0 : dtype == DType::kF16 ? 0.01 : 0.05;
  }

 private:
  static constexpr int64_t kFoldedMaskBytes = int64_t{32} << 20;

  bool has_mask() const { return source_.shape().q_len > 1; }

  void Store(float value, MemoryBlock& block, int64_t at) const {
    const DType dtype = source_.shape().dtype;
    if (dtype == DType::kF32) {
      block.floats()[at] = value;
      return;
    }
    const uint16_t stored = dtype == DType::kF16 ? internal::F32ToF16(value) : internal::F32ToBF16(value);
    std::memcpy(block.bytes_at(at * 2), &stored, 2);
  }

  // [sequences, KV heads, rows, columns], or with the groups' heads between them.
  Dims Shape(int64_t heads_of_group, int64_t rows, int64_t columns) const {
    const AttentionShape& shape = source_.shape();
    Dims dims{shape.num_sequences, shape.model.num_kv_heads};
    if (!folded_) dims.push_back(heads_of_group);
    dims.insert(dims.end(), {rows, columns});
    return dims;
  }
  Dims Ones() const { return Dims(folded_ ? 4 : 5, 1); }

  Status Compile() {
    using dnnl::graph::op;
    const AttentionShape& shape = source_.shape();
    const ModelShape& model = shape.model;
    const Type type = shape.dtype == DType::kF32 ? Type::f32 : shape.dtype == DType::kF16 ? Type::f16 : Type::bf16;
    const int64_t group = shape.group(), n = shape.kv_len;
    const auto dense = logical_tensor::layout_type::strided;
    size_t id = 0;
    const auto tensor = [&](Type element, const Dims& dims) { return logical_tensor(id++, element, dims, dense); };
    const logical_tensor q = tensor(type, Shape(group, mask_rows_, model.qk_dim));
    const logical_tensor k = tensor(type, Shape(1, n, model.qk_dim));
    // With latent attention, columns of the keys.
    const int64_t v_stride = model.values_in_keys ? model.qk_dim : model.v_dim;
    Dims v_strides{model.num_kv_heads * n * v_stride, n * v_stride};
    if (!folded_) v_strides.push_back(n * v_stride);
    v_strides.insert(v_strides.end(), {v_stride, 1});
    const logical_tensor v(id++, type, Shape(1, n, model.v_dim), v_strides);
    Dims mask_dims = Ones();
    mask_dims[mask_dims.size() - 2] = mask_rows_;
    mask_dims.back() = n;
    const logical_tensor scale = tensor(Type::f32, Ones());
    const logical_tensor mask = tensor(Type::f32, mask_dims);
    const Dims score_dims = Shape(group, mask_rows_, n);
    const logical_tensor products = tensor(Type::f32, score_dims);
    const logical_tensor scaled = tensor(Type::f32, score_dims);
    const logical_tensor masked = tensor(Type::f32, score_dims);
    const logical_tensor weights = tensor(type, score_dims);
    const logical_tensor out = tensor(type, Shape(group, mask_rows_, model.v_dim));

    dnnl::graph::graph graph(dnnl::engine::kind::cpu);
    const auto add = [&](op::kind kind, const std::vector<logical_tensor>& from, const logical_tensor& to) {
      return op(id++, kind, from, {to}, "attention");
    };
    op scores = add(op::kind::MatMul, {q, k}, products);
    scores.set_attr<bool>(op::attr::transpose_b, true);
    graph.add_op(scores);
    graph.add_op(add(op::kind::Multiply, {products, scale}, scaled));
    if (has_mask()) graph.add_op(add(op::kind::Add, {scaled, mask}, masked));
    op softmax = add(op::kind::SoftMax, {has_mask() ? masked : scaled}, weights);
    softmax.set_attr<int64_t>(op::attr::axis, -1);
    graph.add_op(softmax);
    graph.add_op(add(op::kind::MatMul, {weights, v}, out));
    graph.finalize();

    const std::vector<dnnl::graph::partition> partitions = graph.get_partitions();
    if (partitions.size() != 1 || !partitions.front().is_supported()) {
      return MakeStatus(StatusCode::kUnsupported,
                        "oneDNN Graph makes %zu partitions of it with %s, not one that it supports", partitions.size(),
                        DTypeName(shape.dtype));
    }
    const dnnl::graph::partition& partition = partitions.front();
    const std::map<size_t, logical_tensor> known{
        {q.get_id(), q}, {k.get_id(), k}, {v.get_id(), v}, {scale.get_id(), scale}, {mask.get_id(), mask}};
    std::vector<logical_tensor> inputs;
    for (const logical_tensor& port : partition.get_input_ports()) inputs.push_back(known.at(port.get_id()));
    compiled_ = partition.compile(inputs, {out}, engine_);

    scale_ = DefaultScale(model.qk_dim);
    for (int64_t copy = 0; copy < data_->num_copies(); ++copy) {
      const std::map<size_t, void*> memory{{q.get_id(), q_.bytes_at(0)},
                                           {k.get_id(), data_->k(copy)},
                                           {v.get_id(), data_->v(copy)},
                                           {scale.get_id(), &scale_},
                                           {mask.get_id(), mask_.bytes_at(0)}};
      std::vector<dnnl::graph::tensor> tensors;
      for (const logical_tensor& input : inputs) tensors.emplace_back(input, engine_, memory.at(input.get_id()));
      inputs_.push_back(std::move(tensors));
    }
    outputs_.emplace_back(out, engine_, out_.bytes_at(0));
    return OkStatus();
  }

  const Source& source_;
  std::shared_ptr<KeysValues> data_;
  MemoryBlock q_, out_, mask_;
  bool folded_ = true;
  int64_t mask_rows_ = 0;
  float scale_ = 1;
  mutable std::vector<float> row_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::graph::compiled_partition compiled_;
  std::vector<std::vector<dnnl::graph::tensor>> inputs_;  // of each copy
  std::vector<dnnl::graph::tensor> outputs_;
};

}  // namespace

RunnerResult MakeOneDnnGraphRunner(const Source& source, std::shared_ptr<KeysValues> data) {
  HEADLANE_RETURN_IF_ERROR(RefuseModifiers(source.shape(), "oneDNN Graph"));
  const ModelShape& model = source.shape().model;
  if (model.v_dim > model.qk_dim) {  // seen in 3.7.2: features of the output behind qk_dim are 0
    return MakeStatus(StatusCode::kUnsupported, "oneDNN Graph is wrong where v_dim %lld is more than qk_dim %lld",
                      static_cast<long long>(model.v_dim), static_cast<long long>(model.qk_dim));
  }
  auto runner = std::make_unique<OneDnnGraphRunner>(source, std::move(data));
  HEADLANE_RETURN_IF_ERROR(runner->Fill());
  return std::unique_ptr<AttentionRunner>(std::move(runner));
}

#else

RunnerResult MakeOneDnnGraphRunner(const Source&, std::shared_ptr<KeysValues>) {
  return MakeStatus(StatusCode::kUnsupported, "this build has no oneDNN, or one without its Graph API");
}

#endif

}  // namespace headlane::bench
