// y = x W^T through oneDNN's matmul on f32 weights, in the layout that oneDNN itself chooses.
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
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/checked_math.h"
#include "exec/parallel_for.h"
#include "linear/first_error.h"
#include "oneapi/dnnl/dnnl.hpp"

#if HEADLANE_WITH_OPENMP
#include <omp.h>
#endif

namespace headlane::internal {
namespace {

using dnnl::memory;

constexpr auto kF32 = memory::data_type::f32;

// The process that loaded the library. Its children run on one thread, as those of OpenMPExecutor do.
const pid_t g_process = getpid();

// The number of rows at which the layout of the weights is chosen: a prompt's.
constexpr int64_t kTypicalRows = 64;
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

bool IsReference(const dnnl::matmul::primitive_desc& desc) { return std::strncmp(desc.impl_info_str(), "ref", 3) == 0; }

// Dense or strided rows; rows may be DNNL_RUNTIME_DIM_VAL.
memory::desc Rows(int64_t rows, int64_t features, int64_t stride) {
  return {{rows, features}, kF32, memory::dims{stride, 1}};
}

class OneDnnLinear final : public LinearImpl {
 public:
  OneDnnLinear(int64_t out_features, int64_t in_features) noexcept
      : LinearImpl(LinearBackend::kOneDnn, out_features, in_features) {}

  Status Pack(const WeightRows& rows, Executor& executor) noexcept;
  Status Run(const LinearOperands& operands, Executor& executor) const noexcept override;

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
    return {engine_, Rows(rows, in_features(), x_stride), weights, Rows(rows, out_features(), y_stride)};
  }
  Status ReadAllWeights(const WeightRows& rows, Executor& executor, AlignedBuffer* dense) const noexcept;
  Status ChooseLayout(AlignedBuffer dense);
  Status FindPrimitive(int64_t rows, int64_t x_stride, int64_t y_stride, dnnl::matmul* matmul) const;

  dnnl::engine engine_;
  AlignedBuffer buffer_;
  memory weights_;  // over buffer_
  size_t weight_bytes_ = 0;
  char implementation_[64] = "";

  // Runs of one layer take turns: the stream and the primitives' scratch memory are the layer's.
  mutable std::mutex mutex_;
  mutable dnnl::stream stream_;
  mutable std::vector<Primitive> primitives_;  // most recently used last
};

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

// Leaves the weights in the layout that oneDNN prefers, if its implementation for that is a fast one; else as they are.
Status OneDnnLinear::ChooseLayout(AlignedBuffer dense) {
  engine_ = dnnl::engine(dnnl::engine::kind::cpu, 0);
  stream_ = dnnl::stream(engine_);
  primitives_.reserve(kMaxPrimitives);
  const int64_t k = in_features(), n = out_features();
  const memory::desc plain({k, n}, kF32, memory::dims{1, k});
  const memory::desc any({k, n}, kF32, memory::format_tag::any);
  dnnl::matmul::primitive_desc desc = Describe(kTypicalRows, k, n, any);
  if (IsReference(desc)) desc = Describe(kTypicalRows, k, n, plain);
  if (IsReference(desc)) {
    return MakeStatus(StatusCode::kUnsupported,
                      "linear: for weights of [%lld, %lld] oneDNN has nothing faster than '%s'",
                      static_cast<long long>(n), static_cast<long long>(k), desc.impl_info_str());
  }
  std::snprintf(implementation_, sizeof(implementation_), "onednn %s", desc.impl_info_str());
  const memory::desc layout = desc.weights_desc();
  weight_bytes_ = layout.get_size();
  if (layout == plain) {
    buffer_ = std::move(dense);
    weights_ = memory(layout, engine_, buffer_.data());
    return OkStatus();
  }
  HEADLANE_ASSIGN_OR_RETURN(buffer_,
                            AlignedBuffer::Create(static_cast<int64_t>(weight_bytes_), "weights of a linear layer"));
  weights_ = memory(layout, engine_, buffer_.data());
  memory source(plain, engine_, dense.data());
  dnnl::reorder(source, weights_).execute(stream_, source, weights_);
  stream_.wait();
  return OkStatus();
}

Status OneDnnLinear::Pack(const WeightRows& rows, Executor& executor) noexcept {
  AlignedBuffer dense;
  HEADLANE_RETURN_IF_ERROR(ReadAllWeights(rows, executor, &dense));
  return GuardedWithThreads(executor, [&] { return ChooseLayout(std::move(dense)); });
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
  const memory::desc layout = weights_.get_desc();
  dnnl::matmul::primitive_desc desc;
  int64_t primitive_rows = DNNL_RUNTIME_DIM_VAL;
  if (rows > 1) {
    try {
      desc = Describe(DNNL_RUNTIME_DIM_VAL, x_stride, y_stride, layout);
    } catch (const dnnl::error&) {
      desc = {};  // not every implementation can do without the number of rows
    }
  }
  if (!desc || IsReference(desc)) {
    primitive_rows = rows;
    desc = Describe(rows, x_stride, y_stride, layout);
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
  const int64_t x_stride = operands.x_stride, rows = operands.rows, y_stride = operands.y_stride;
  return GuardedWithThreads(executor, [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    dnnl::matmul matmul;
    HEADLANE_RETURN_IF_ERROR(FindPrimitive(rows, x_stride, y_stride, &matmul));
    const memory source(Rows(rows, in_features(), x_stride), engine_, const_cast<float*>(operands.x));
    const memory destination(Rows(rows, out_features(), y_stride), engine_, operands.y);
    matmul.execute(stream_, {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, destination}});
    stream_.wait();
    return OkStatus();
  });
}

}  // namespace

Status CreateOneDnnLinear(int64_t out_features, int64_t in_features, const WeightRows& rows, Executor& executor,
                          std::unique_ptr<LinearImpl>* impl) noexcept {
  std::unique_ptr<OneDnnLinear> layer(new (std::nothrow) OneDnnLinear(out_features, in_features));
  if (layer == nullptr) return MakeStatus(StatusCode::kResourceExhausted, "linear: no memory for a layer");
  HEADLANE_RETURN_IF_ERROR(layer->Pack(rows, executor));
  *impl = std::move(layer);
  return OkStatus();
}

}  // namespace headlane::internal
