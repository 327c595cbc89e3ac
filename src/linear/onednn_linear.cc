// y = x W^T through oneDNN's matmul on f32 or bf16 weights, in the layout that oneDNN itself chooses.
//
// The only file of the library that includes oneDNN. Its C++ interface throws: every call is made inside of Guarded().
//
// Threads: oneDNN opens OpenMP regions of its own, as large as the calling thread's setting says. Here each call is an
// undeferred OpenMP task, which has a copy of that setting: it is set to the executor's number of workers there, and
// the caller's stays what it was. Workers of other executors can't be lent to oneDNN; it takes as many OpenMP threads.
// In a child after fork(), where libgomp can hang, it is one thread. A build without OpenMP has no way to tell oneDNN:
// it then takes what OMP_NUM_THREADS says, and a child is refused.
#include "linear/onednn_linear.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/checked_math.h"
#include "exec/parallel_for.h"
#include "kernels/kernel_api.h"
#include "linear/first_error.h"
#include "linear/run_scratch.h"
#include "oneapi/dnnl/dnnl.hpp"

#if HEADLANE_WITH_OPENMP
#include <omp.h>
#endif

namespace headlane::internal {
namespace {

using dnnl::memory;

constexpr auto kF32 = memory::data_type::f32;
constexpr auto kBF16 = memory::data_type::bf16;

// The process that loaded the library. Its children run on one thread, as those of OpenMPExecutor do.
const pid_t g_process = getpid();

// The number of rows at which the layout of the weights is chosen: a prompt's.
constexpr int64_t kTypicalRows = 512;
// Calls with other strides or, where oneDNN needs them, other numbers of rows than these use the least recent one's
// place.
constexpr size_t kMaxPrimitives = 32;

// body() returns a Status and may throw what oneDNN and the standard library throw.
template <typename Body>
Status Guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return MakeStatus(StatusCode::kResourceExhausted, "linear: no memory for what oneDNN needs");
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) {
      return MakeStatus(StatusCode::kUnsupported, "linear: oneDNN has no such product on this processor");
    }
    const StatusCode code = error.status == dnnl_out_of_memory ? StatusCode::kResourceExhausted : StatusCode::kInternal;
    return MakeStatus(code, "linear: oneDNN failed with status %d: %s", static_cast<int>(error.status), error.what());
  } catch (...) {
    return MakeStatus(StatusCode::kInternal, "linear: oneDNN failed");
  }
}

// The same, with OpenMP regions as large as the executor, or of one thread in a child after fork().
template <typename Body>
Status GuardedWithThreads(const Executor& executor, const Body& body) noexcept {
  const bool is_forked = getpid() != g_process;
  Status status;
#if HEADLANE_WITH_OPENMP
  const int num_threads = is_forked ? 1 : std::max(executor.num_workers(), 1);
#pragma omp task if (0) default(shared)
  {
    omp_set_num_threads(num_threads);
    status = Guarded(body);
  }
#else
  (void)executor;
  if (is_forked) {
    return MakeStatus(StatusCode::kUnsupported, "linear: oneDNN's threads can't be used in a child after fork()");
  }
  status = Guarded(body);
#endif
  return status;
}

bool IsReference(const dnnl::matmul::primitive_desc& desc) { return !IsFastImplementation(desc.impl_info_str()); }

// Dense or strided rows; rows may be DNNL_RUNTIME_DIM_VAL.
memory::desc Rows(int64_t rows, int64_t features, int64_t stride, memory::data_type type = kF32) {
  return {{rows, features}, type, memory::dims{stride, 1}};
}

class OneDnnLinear final : public LinearImpl {
 public:
  OneDnnLinear(const LinearSpec& spec, int64_t out_features) noexcept
      : LinearImpl(spec.backend, out_features, spec.in_features),
        kernels_(ActiveKernels()),
        type_(spec.backend == LinearBackend::kOneDnnBf16 ? kBF16 : kF32),
        adds_(spec.output == LinearOutput::kAdd) {}

  Status CopyBiases(const LinearSpec& spec) noexcept;
  Status Pack(const WeightRows& rows, Executor& executor) noexcept;
  Status Run(const LinearOperands& operands, Executor& executor) const noexcept override;

  int64_t ScratchBytes(int64_t rows) const noexcept override {
    return type_ == kF32 ? 0 : ScratchArrayBytes(rows, in_features(), int64_t{sizeof(uint16_t)});
  }
  size_t weight_bytes() const noexcept override { return weight_bytes_; }
  const char* implementation() const noexcept override { return implementation_; }

 private:
  struct Primitive {
    int64_t rows;  // DNNL_RUNTIME_DIM_VAL: any number
    int64_t x_stride;
    int64_t y_stride;
    dnnl::matmul matmul;
  };

  dnnl::matmul::primitive_desc Describe(int64_t rows, int64_t x_stride, int64_t y_stride,
                                        const memory::desc& weights) const {
    const memory::desc x = Rows(rows, in_features(), x_stride, type_), y = Rows(rows, out_features(), y_stride);
    if (bias_.bytes() == 0) return {engine_, x, weights, y, *attributes_};
    return {engine_, x, weights, BiasDesc(), y, *attributes_};
  }
  memory::desc BiasDesc() const { return {{1, out_features()}, kF32, memory::dims{out_features(), 1}}; }
  Status ReadAllWeights(const WeightRows& rows, Executor& executor, AlignedBuffer* dense) const noexcept;
  Status ChooseLayout();
  Status StoreWeights(AlignedBuffer dense);
  Status FindPrimitive(int64_t rows, int64_t x_stride, int64_t y_stride, dnnl::matmul* matmul) const;

  const KernelTable& kernels_;
  memory::data_type type_;  // of weights and inputs
  bool adds_;
  dnnl::engine engine_;
  std::optional<dnnl::primitive_attr> attributes_;  // empty until it may throw
  AlignedBuffer bias_;                              // of all parts, 0 where there is none
  std::optional<memory::desc> layout_;
  AlignedBuffer buffer_;
  memory weights_;  // over buffer_
  size_t weight_bytes_ = 0;
  char implementation_[64] = "";

  // Runs of one layer take turns: the stream and the primitives' scratch memory are the layer's.
  mutable std::mutex mutex_;
  mutable dnnl::stream stream_;
  mutable std::vector<Primitive> primitives_;  // most recently used last
};

Status OneDnnLinear::CopyBiases(const LinearSpec& spec) noexcept {
  bool has_bias = false;
  for (const LinearPart& part : spec.parts) has_bias = has_bias || part.bias != nullptr;
  if (!has_bias) return OkStatus();
  HEADLANE_ASSIGN_OR_RETURN(bias_,
                            AlignedBuffer::Create(out_features() * int64_t{sizeof(float)}, "biases of a linear layer"));
  float* bias = bias_.as<float>();
  for (const LinearPart& part : spec.parts) {
    if (part.bias != nullptr) std::copy_n(part.bias, part.out_features, bias);
    bias += part.out_features;
  }
  return OkStatus();
}

Status OneDnnLinear::ReadAllWeights(const WeightRows& rows, Executor& executor, AlignedBuffer* dense) const noexcept {
  int64_t bytes = 0;
  if (!CheckedProduct({out_features(), in_features(), int64_t{sizeof(float)}}, &bytes)) {
    return MakeStatus(StatusCode::kResourceExhausted, "linear: weights of [%lld, %lld] exceed memory",
                      static_cast<long long>(out_features()), static_cast<long long>(in_features()));
  }
  HEADLANE_ASSIGN_OR_RETURN(*dense, AlignedBuffer::Create(bytes, "weights of a linear layer"));
  FirstError error;
  ParallelFor(executor, out_features(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end && error.ShouldTry(row); ++row) {
      const Status status = rows.read(rows.context, row, dense->as<float>() + row * in_features());
      if (!status.ok()) error.Report(row, status);
    }
  });
  return error.status();
}

// The one that oneDNN prefers, if its implementation for that is a fast one; else rows one behind the other.
Status OneDnnLinear::ChooseLayout() {
  engine_ = dnnl::engine(dnnl::engine::kind::cpu, 0);
  stream_ = dnnl::stream(engine_);
  primitives_.reserve(kMaxPrimitives);
  attributes_.emplace();
  if (adds_) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes_->set_post_ops(sum);
  }
  const int64_t k = in_features(), n = out_features();
  const memory::desc any({k, n}, type_, memory::format_tag::any);
  dnnl::matmul::primitive_desc desc = Describe(kTypicalRows, k, n, any);
  if (IsReference(desc)) desc = Describe(kTypicalRows, k, n, memory::desc({k, n}, type_, memory::dims{1, k}));
  if (IsReference(desc)) {
    return MakeStatus(StatusCode::kUnsupported,
                      "linear: for weights of [%lld, %lld] oneDNN has nothing faster than '%s'",
                      static_cast<long long>(n), static_cast<long long>(k), desc.impl_info_str());
  }
  if (type_ == kBF16 && !IsFastBf16(static_cast<uint32_t>(dnnl::get_effective_cpu_isa()), desc.impl_info_str())) {
    return MakeStatus(StatusCode::kUnsupported,
                      "linear: this processor has no instructions for bf16 that oneDNN's '%s' could use",
                      desc.impl_info_str());
  }
  std::snprintf(implementation_, sizeof(implementation_), "onednn %s", desc.impl_info_str());
  layout_ = desc.weights_desc();
  weight_bytes_ = layout_->get_size();
  return OkStatus();
}

Status OneDnnLinear::StoreWeights(AlignedBuffer dense) {
  const memory::desc plain({in_features(), out_features()}, kF32, memory::dims{1, in_features()});
  if (*layout_ == plain) {
    buffer_ = std::move(dense);
    weights_ = memory(*layout_, engine_, buffer_.data());
    return OkStatus();
  }
  HEADLANE_ASSIGN_OR_RETURN(buffer_,
                            AlignedBuffer::Create(static_cast<int64_t>(weight_bytes_), "weights of a linear layer"));
  weights_ = memory(*layout_, engine_, buffer_.data());
  memory source(plain, engine_, dense.data());
  dnnl::reorder(source, weights_).execute(stream_, source, weights_);
  stream_.wait();
  return OkStatus();
}

Status OneDnnLinear::Pack(const WeightRows& rows, Executor& executor) noexcept {
  HEADLANE_RETURN_IF_ERROR(GuardedWithThreads(executor, [&] { return ChooseLayout(); }));
  AlignedBuffer dense;
  HEADLANE_RETURN_IF_ERROR(ReadAllWeights(rows, executor, &dense));
  return GuardedWithThreads(executor, [&] { return StoreWeights(std::move(dense)); });
}

// One row has a primitive of its own; all other numbers of rows share one, if oneDNN is fast without knowing the
// number.
Status OneDnnLinear::FindPrimitive(int64_t rows, int64_t x_stride, int64_t y_stride, dnnl::matmul* matmul) const {
  for (size_t i = primitives_.size(); i-- > 0;) {
    const Primitive& p = primitives_[i];
    if (p.x_stride != x_stride || p.y_stride != y_stride) continue;
    if (p.rows != rows && (p.rows != DNNL_RUNTIME_DIM_VAL || rows == 1)) continue;
    std::rotate(primitives_.begin() + static_cast<ptrdiff_t>(i), primitives_.begin() + static_cast<ptrdiff_t>(i) + 1,
                primitives_.end());
    *matmul = primitives_.back().matmul;
    return OkStatus();
  }
  dnnl::matmul::primitive_desc desc;
  int64_t primitive_rows = DNNL_RUNTIME_DIM_VAL;
  if (rows > 1) {
    try {
      desc = Describe(DNNL_RUNTIME_DIM_VAL, x_stride, y_stride, *layout_);
    } catch (const dnnl::error&) {
      desc = {};  // not every implementation can do without the number of rows
    }
  }
  if (!desc || IsReference(desc)) {
    primitive_rows = rows;
    desc = Describe(rows, x_stride, y_stride, *layout_);
  }
  if (IsReference(desc)) {
    return MakeStatus(StatusCode::kInternal, "linear: for %lld rows oneDNN has nothing faster than '%s'",
                      static_cast<long long>(rows), desc.impl_info_str());
  }
  if (primitives_.size() == kMaxPrimitives) primitives_.erase(primitives_.begin());
  primitives_.push_back({primitive_rows, x_stride, y_stride, dnnl::matmul(desc)});
  *matmul = primitives_.back().matmul;
  return OkStatus();
}

Status OneDnnLinear::Run(const LinearOperands& operands, Executor& executor) const noexcept {
  const int64_t rows = operands.rows, y_stride = operands.y_stride;
  int64_t x_stride = operands.x_stride;
  void* x = const_cast<float*>(operands.x);
  RunScratch scratch;
  if (type_ == kBF16) {
    HEADLANE_RETURN_IF_ERROR(scratch.Take(operands.scratch, ScratchBytes(rows)));
    uint16_t* const rounded = reinterpret_cast<uint16_t*>(scratch.bytes().data());
    ParallelFor(executor, rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        kernels_.elementwise.store(operands.x + row * operands.x_stride, in_features(), DType::kBF16, 1,
                                   rounded + row * in_features());
      }
    });
    x_stride = in_features();
    x = rounded;
  }
  return GuardedWithThreads(executor, [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    dnnl::matmul matmul;
    HEADLANE_RETURN_IF_ERROR(FindPrimitive(rows, x_stride, y_stride, &matmul));
    const memory source(Rows(rows, in_features(), x_stride, type_), engine_, x);
    const memory destination(Rows(rows, out_features(), y_stride), engine_, operands.y);
    std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, destination}};
    if (bias_.bytes() > 0) {
      arguments.emplace(DNNL_ARG_BIAS, memory(BiasDesc(), engine_, const_cast<std::byte*>(bias_.data())));
    }
    matmul.execute(stream_, arguments);
    stream_.wait();
    return OkStatus();
  });
}

}  // namespace

bool IsFastImplementation(const char* implementation) noexcept { return std::strncmp(implementation, "ref", 3) != 0; }

bool IsFastBf16(uint32_t cpu_isa, const char* implementation) noexcept {
  constexpr uint32_t kNeeded = dnnl_cpu_isa_avx512_core_bf16;
  return (cpu_isa & kNeeded) == kNeeded && IsFastImplementation(implementation);
}

Status CreateOneDnnLinear(const LinearSpec& spec, const WeightLayout& layout, const WeightRows& rows,
                          Executor& executor, std::unique_ptr<LinearImpl>* impl) noexcept {
  std::unique_ptr<OneDnnLinear> layer(new (std::nothrow) OneDnnLinear(spec, layout.weight_rows));
  if (layer == nullptr) return MakeStatus(StatusCode::kResourceExhausted, "linear: no memory for a layer");
  HEADLANE_RETURN_IF_ERROR(layer->CopyBiases(spec));
  HEADLANE_RETURN_IF_ERROR(layer->Pack(rows, executor));
  *impl = std::move(layer);
  return OkStatus();
}

}  // namespace headlane::internal
