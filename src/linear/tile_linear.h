// The default backend of the linear layers: our own kernels over weights in tiles of 16 output features.
#ifndef HEADLANE_SRC_LINEAR_TILE_LINEAR_H_
#define HEADLANE_SRC_LINEAR_TILE_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/status.h"
#include "linear/linear_impl.h"
#include "linear/weight_layout.h"

namespace headlane::internal {

// `spec` is checked. Errors: ResourceExhausted, and what a part's rows.read returns.
Status CreateTileLinear(const LinearSpec& spec, const WeightLayout& layout, Executor& executor,
                        std::unique_ptr<LinearImpl>* impl) noexcept;

// Over bytes that are there, of the layout's size and alignment. Errors: ResourceExhausted.
Status CreatePackedTileLinear(const LinearSpec& spec, const WeightLayout& layout, std::span<const std::byte> packed,
                              std::unique_ptr<LinearImpl>* impl) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_TILE_LINEAR_H_
