// What the forward pass is made of besides linear layers and attention: aligned buffers and the row-wise operators of
// ops.h, spread over an executor's workers.
//
// Separate so that the forward pass reads as the model's formula. The operators compute each row for itself, so how
// rows are dealt out changes no bit. Called by llama.cc, packed_file.cc and session_core.cc.
#ifndef HEADLANE_SRC_DECODER_LAYERS_H_
#define HEADLANE_SRC_DECODER_LAYERS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "headlane/executor.h"
#include "headlane/ops.h"
#include "headlane/status.h"

namespace headlane::internal {

// Floats on a cache line's boundary, uninitialised. Every buffer of the decoder is made before the first token.
class FloatBuffer {
 public:
  FloatBuffer() noexcept = default;
  // Errors: kResourceExhausted (also when rows * row_len is no size).
  static Result<FloatBuffer> Create(const char* what, int64_t rows, int64_t row_len) noexcept;

  float* data() const noexcept { return data_.get(); }
  int64_t bytes() const noexcept { return bytes_; }

 private:
  struct Free {
    void operator()(float* data) const noexcept { ::operator delete(data, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> data_;
  int64_t bytes_ = 0;
};

// Calls function(begin, end) for pieces of [0, rows) until all are done: on the calling thread for a single row, where
// starting a region costs more than the row. `function` must not throw.
template <typename Function>
void ParallelRows(Executor& executor, int64_t rows, const Function& function) noexcept {
  const int num_workers = executor.num_workers();
  if (rows <= 0) return;
  if (rows == 1 || num_workers <= 1) {
    function(int64_t{0}, rows);
    return;
  }
  struct Context {
    std::atomic<int64_t> next;
    int64_t rows;
    int64_t piece;
    const Function* function;
  } context{{0}, rows, std::max<int64_t>(1, rows / (4 * int64_t{num_workers})), &function};
  executor.Run(
      num_workers,
      [](void* opaque, int) noexcept {
        Context& c = *static_cast<Context*>(opaque);
        for (;;) {
          const int64_t begin = c.next.fetch_add(c.piece, std::memory_order_relaxed);
          if (begin >= c.rows) return;
          (*c.function)(begin, std::min(c.rows, begin + c.piece));
        }
      },
      &context);
}

// The first error of several workers: they run on pieces of the same checked arguments, so any one tells the story.
class FirstError {
 public:
  void Set(const Status& status) noexcept {
    if (status.ok() || taken_.exchange(true)) return;
    status_ = status;
  }
  // After the region has ended.
  const Status& status() const noexcept { return status_; }

 private:
  std::atomic<bool> taken_{false};
  Status status_;
};

// y = rms_norm(x) * weight   x, y [rows][n] dense
void NormRows(Executor& executor, const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
              float* y) noexcept;

// cos, sin [rows][rotary_dim / 2] of positions [rows]
Status RopeAngleRows(Executor& executor, const RopeSpec& spec, const int64_t* positions, int64_t rows, float* cos,
                     float* sin) noexcept;

// Time since construction or the last Lap, added to one of several sums.
class LapTimer {
 public:
  LapTimer() noexcept : last_(std::chrono::steady_clock::now()) {}
  void Lap(double& seconds) noexcept {
    const auto now = std::chrono::steady_clock::now();
    seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_LAYERS_H_
