#include "base/view_check.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/checked_math.h"

namespace headlane::internal {
namespace {

struct Axis {
  const char* name;
  int64_t extent;
  int64_t stride;
};
using Axes = std::array<Axis, 4>;

struct Step {
  const char* axis;
  int64_t size;
  int64_t extent;
};

template <typename View>
Axes AxesOf(const View& view) {
  return {Axis{"num_batch", view.num_batch, view.batch_stride}, Axis{"num_tokens", view.num_tokens, view.token_stride},
          Axis{"num_heads", view.num_heads, view.head_stride}, Axis{"dim", view.dim, view.dim_stride}};
}

// Whether every element's address can be formed without wrapping.
bool Addressable(const Axes& axes, int64_t element_bytes, const void* data) {
  int64_t lowest = 0;
  int64_t highest = 0;
  for (const Axis& axis : axes) {
    int64_t reach = 0;
    if (!CheckedMul(axis.extent - 1, axis.stride, &reach)) return false;
    if (!CheckedAdd(reach < 0 ? lowest : highest, reach, reach < 0 ? &lowest : &highest)) return false;
  }
  int64_t lowest_byte = 0;
  int64_t end_byte = 0;
  if (!CheckedMul(lowest, element_bytes, &lowest_byte) || !CheckedAdd(highest, 1, &highest) ||
      !CheckedMul(highest, element_bytes, &end_byte)) {
    return false;
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const uint64_t below = ~static_cast<uint64_t>(lowest_byte) + 1;  // -lowest_byte, INT64_MIN included
  return address >= below && static_cast<uint64_t>(end_byte) <= UINTPTR_MAX - address;
}

template <typename View>
Status CheckAddressing(const char* what, const View& view, bool* empty) {
  const int64_t element_bytes = DTypeBytes(view.dtype);
  if (IsQuantized(view.dtype)) {
    return MakeStatus(StatusCode::kUnsupported,
                      "%s: dtype is %s, which only a KV cache stores: must be f32, f16 or bf16", what,
                      DTypeName(view.dtype));
  }
  if (element_bytes == 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "%s: dtype %d is not one of the %d known", what,
                      static_cast<int>(view.dtype), kNumDTypes);
  }
  const Axes axes = AxesOf(view);
  *empty = false;
  for (const Axis& axis : axes) {
    if (axis.extent < 0) {
      return MakeStatus(StatusCode::kInvalidArgument, "%s: %s is %lld, below 0", what, axis.name,
                        static_cast<long long>(axis.extent));
    }
    *empty |= axis.extent == 0;
  }
  if (*empty) return OkStatus();
  if (view.data == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "%s: data is null for [%lld, %lld, %lld, %lld]", what,
                      static_cast<long long>(view.num_batch), static_cast<long long>(view.num_tokens),
                      static_cast<long long>(view.num_heads), static_cast<long long>(view.dim));
  }
  const uintptr_t misalignment = reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(element_bytes);
  if (misalignment != 0) {
    return MakeStatus(
        StatusCode::kInvalidArgument, "%s: data stands %lld bytes past a multiple of the %lld of an %s element", what,
        static_cast<long long>(misalignment), static_cast<long long>(element_bytes), DTypeName(view.dtype));
  }
  if (!Addressable(axes, element_bytes, view.data)) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "%s: strides [%lld, %lld, %lld, %lld] of [%lld, %lld, %lld, %lld] reach past the address space",
                      what, static_cast<long long>(view.batch_stride), static_cast<long long>(view.token_stride),
                      static_cast<long long>(view.head_stride), static_cast<long long>(view.dim_stride),
                      static_cast<long long>(view.num_batch), static_cast<long long>(view.num_tokens),
                      static_cast<long long>(view.num_heads), static_cast<long long>(view.dim));
  }
  return OkStatus();
}

}  // namespace

Status CheckView(const char* what, const ConstTensorView& view) noexcept {
  bool empty = false;
  return CheckAddressing(what, view, &empty);
}

Status CheckView(const char* what, const TensorView& view) noexcept {
  bool empty = false;
  HEADLANE_RETURN_IF_ERROR(CheckAddressing(what, view, &empty));
  if (empty) return OkStatus();
  // By size of the step, smallest first. An axis of extent 1 is never stepped along; its stride says nothing.
  std::array<Step, 4> steps;
  size_t num_steps = 0;
  for (const Axis& axis : AxesOf(view)) {
    if (axis.extent == 1) continue;
    // Addressable() has shown that size * (extent - 1) fits.
    const Step step{axis.name, axis.stride < 0 ? -axis.stride : axis.stride, axis.extent};
    size_t place = num_steps++;
    for (; place > 0 && steps[place - 1].size > step.size; --place) steps[place] = steps[place - 1];
    steps[place] = step;
  }
  int64_t reach = 0;  // from the first to the farthest element along the axes so far
  for (size_t i = 0; i < num_steps; ++i) {
    if (steps[i].size <= reach) {
      return MakeStatus(StatusCode::kInvalidArgument,
                        "%s: elements overlap: a step along %s is %lld elements, but the axes below reach %lld", what,
                        steps[i].axis, static_cast<long long>(steps[i].size), static_cast<long long>(reach));
    }
    reach += steps[i].size * (steps[i].extent - 1);
  }
  return OkStatus();
}

Status CheckView(const char* what, const BoolMaskView& view) noexcept {
  const bool bits = view.format == BoolMaskView::Format::kBits;
  if (!bits && view.format != BoolMaskView::Format::kBytes) {
    return MakeStatus(StatusCode::kInvalidArgument, "%s: format %d is not one of the 2 known", what,
                      static_cast<int>(view.format));
  }
  const Axes axes = {
      Axis{"num_batch", view.num_batch, view.batch_stride}, Axis{"num_tokens", view.num_tokens, view.token_stride},
      Axis{"num_heads", view.num_heads, view.head_stride},
      Axis{"num_columns", bits ? view.num_columns / 8 + (view.num_columns % 8 > 0) : view.num_columns, 1}};
  for (const Axis& axis : axes) {
    if (axis.extent < 0) {
      return MakeStatus(StatusCode::kInvalidArgument, "%s: %s is %lld, below 0", what, axis.name,
                        static_cast<long long>(axis.extent));
    }
    if (axis.extent == 0) return OkStatus();
  }
  if (!Addressable(axes, 1, view.data)) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "%s: strides %lld, %lld, %lld reach past the end of memory for [%lld, %lld, %lld, %lld]", what,
                      static_cast<long long>(view.batch_stride), static_cast<long long>(view.token_stride),
                      static_cast<long long>(view.head_stride), static_cast<long long>(view.num_batch),
                      static_cast<long long>(view.num_tokens), static_cast<long long>(view.num_heads),
                      static_cast<long long>(view.num_columns));
  }
  return OkStatus();
}

}  // namespace headlane::internal
