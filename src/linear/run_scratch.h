// Memory that a run of a layer writes besides y: the caller's, or, where it gave none, allocated for the run.
//
// Separate because oneDNN's layers nest: SwiGLU's sums stand in front of what the product below needs.
#ifndef HEADLANE_SRC_LINEAR_RUN_SCRATCH_H_
#define HEADLANE_SRC_LINEAR_RUN_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned_buffer.h"
#include "base/checked_math.h"
#include "headlane/status.h"

namespace headlane::internal {

inline int64_t SaturatingSum(int64_t a, int64_t b) noexcept {
  int64_t sum = 0;
  return CheckedAdd(a, b, &sum) ? sum : INT64_MAX;
}

// Bytes of rows * row_len elements up to the next multiple of 64, so that another array may follow; INT64_MAX if they
// are no size.
inline int64_t ScratchArrayBytes(int64_t rows, int64_t row_len, int64_t element_bytes) noexcept {
  int64_t bytes = 0;
  if (!CheckedProduct({rows, row_len, element_bytes}, &bytes) || !CheckedAdd(bytes, 63, &bytes)) return INT64_MAX;
  return bytes / 64 * 64;
}

class RunScratch {
 public:
  // Requires: `given` is empty or has `bytes`.
  Status Take(std::span<std::byte> given, int64_t bytes) noexcept {
    bytes_ = given;
    if (bytes == 0 || !given.empty()) return OkStatus();
    if (bytes == INT64_MAX) {
      return MakeStatus(StatusCode::kResourceExhausted, "linear: what so many rows need exceeds memory");
    }
    HEADLANE_ASSIGN_OR_RETURN(own_, AlignedBuffer::Create(bytes, "the sums of a linear layer"));
    bytes_ = {own_.data(), static_cast<size_t>(bytes)};
    return OkStatus();
  }
  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  AlignedBuffer own_;
  std::span<std::byte> bytes_;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_RUN_SCRATCH_H_
