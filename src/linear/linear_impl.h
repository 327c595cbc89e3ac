// What a backend of the linear layers provides. Separate so that linear.cc, the public face, knows no backend's data.
#ifndef HEADLANE_SRC_LINEAR_LINEAR_IMPL_H_
#define HEADLANE_SRC_LINEAR_LINEAR_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>

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

  // As in Linear, arguments checked and rows > 0.
  virtual Status Run(const LinearOperands& operands, Executor& executor) const noexcept = 0;
  // 0: can't be cut into items.
  virtual int64_t NumItems(int64_t /*rows*/, int /*num_workers*/) const noexcept { return 0; }
  // Requires: 0 <= begin <= end <= NumItems, the default floating-point environment.
  virtual void RunItems(const LinearOperands& /*operands*/, int /*num_workers*/, int64_t /*begin*/,
                        int64_t /*end*/) const noexcept {}
  // Requires: the feature exists. False: the weights are not there any more.
  virtual bool ReadWeights(int64_t /*feature*/, float* /*out*/) const noexcept { return false; }
  virtual LinearPrecision precision() const noexcept { return LinearPrecision::kExact; }
  virtual int64_t num_weight_rows() const noexcept { return 0; }
  virtual std::span<const std::byte> packed() const noexcept { return {}; }
  // As in Linear, rows > 0.
  virtual int64_t ScratchBytes(int64_t /*rows*/) const noexcept { return 0; }
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
