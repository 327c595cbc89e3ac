// The default backend of the linear layers: our own cache-blocked GEMM over weights in tiles of 16 output features.
#ifndef HEADLANE_SRC_LINEAR_TILE_LINEAR_H_
#define HEADLANE_SRC_LINEAR_TILE_LINEAR_H_

#include <cstdint>
#include <memory>

#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/status.h"
#include "linear/linear_impl.h"

namespace headlane::internal {

// Arguments as Linear::Create, checked. Errors: ResourceExhausted, and what rows.read returns.
Status CreateTileLinear(int64_t out_features, int64_t in_features, const WeightRows& rows, Executor& executor,
                        std::unique_ptr<LinearImpl>* impl) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_TILE_LINEAR_H_
