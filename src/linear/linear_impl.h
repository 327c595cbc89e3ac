// What a backend of the linear layers provides. Separate so that linear.cc, the public face, knows no backend's data.
#ifndef HEADLANE_SRC_LINEAR_LINEAR_IMPL_H_
#define HEADLANE_SRC_LINEAR_LINEAR_IMPL_H_

#include <cstddef>
#include <cstdint>

#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/status.h"

namespace headlane::internal {

class LinearImpl {
 public:
  LinearImpl(LinearBackend backend, int64_t out_features, int64_t in_features) noexcept
      : backend_(backend), out_features_(out_features), in_features_(in_features) {}
  LinearImpl(const LinearImpl&) = delete;
  LinearImpl& operator=(const LinearImpl&) = delete;
  virtual ~LinearImpl() = default;

  // As Linear::Run, arguments checked and rows > 0.
  virtual Status Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
                     Executor& executor) const noexcept = 0;
  virtual size_t weight_bytes() const noexcept = 0;
  virtual const char* implementation() const noexcept = 0;

  LinearBackend backend() const noexcept { return backend_; }
  int64_t out_features() const noexcept { return out_features_; }
  int64_t in_features() const noexcept { return in_features_; }

 private:
  LinearBackend backend_;
  int64_t out_features_;
  int64_t in_features_;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_LINEAR_IMPL_H_
