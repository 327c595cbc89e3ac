// Linear layers: y = x * W^T.
#ifndef HEADLANE_LINEAR_H_
#define HEADLANE_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "headlane/executor.h"
#include "headlane/status.h"

namespace headlane {

enum class LinearBackend : int32_t {
  // Our own cache-blocked GEMM: each output is one chain of FMAs over in_features, the same bits for any rows and
  // threads.
  kTile = 0,
  // oneDNN's matmul: no promise of bits. Unsupported in a build without oneDNN.
  kOneDnn,
};

// "tile", "onednn".
const char* LinearBackendName(LinearBackend backend) noexcept;
// False for kOneDnn in a build without oneDNN.
bool HasLinearBackend(LinearBackend backend) noexcept;

// Hands out the rows of a weight matrix while a layer packs them: writes in_features floats of output feature `row` to
// `out`. May be called from several threads at once, each row once, in any order.
struct WeightRows {
  const void* context = nullptr;
  Status (*read)(const void* context, int64_t row, float* out) noexcept = nullptr;
};

namespace internal {
class LinearImpl;
}

class Linear {
 public:
  // Packs the weights. Requires: 0 < in_features, 0 < out_features. Errors: InvalidArgument, ResourceExhausted,
  // Unsupported (backend), and whatever `rows` returns. Threads: the executor's.
  static Result<Linear> Create(LinearBackend backend, int64_t out_features, int64_t in_features, const WeightRows& rows,
                               Executor& executor) noexcept;

  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;
  ~Linear();

  // Shapes: x [rows][in_features], y [rows][out_features], strides in elements; y must not overlap x.
  // Errors: InvalidArgument (null data, strides shorter than a row, negative rows), Internal (oneDNN failed),
  // Unsupported (oneDNN in a child after fork(), in a build without OpenMP). Allocation: none with kTile. Threads: the
  // executor's; the same layer may run at the same time on kTile.
  Status Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
             Executor& executor) const noexcept;

  int64_t in_features() const noexcept;
  int64_t out_features() const noexcept;
  LinearBackend backend() const noexcept;
  // Bytes of weights that one run reads from memory.
  size_t weight_bytes() const noexcept;
  // The implementation in a few words, for tables: "tile AVX2", "onednn brgemm:avx2", ...
  const char* implementation() const noexcept;

 private:
  explicit Linear(std::unique_ptr<internal::LinearImpl> impl) noexcept;
  std::unique_ptr<internal::LinearImpl> impl_;
};

}  // namespace headlane

#endif  // HEADLANE_LINEAR_H_
