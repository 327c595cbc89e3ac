#include "decoder/layers.h"

namespace headlane::internal {

Result<FloatBuffer> FloatBuffer::Create(const char* what, int64_t rows, int64_t row_len) noexcept {
  int64_t size = 0;
  int64_t bytes = 0;
  const bool overflow = rows < 0 || row_len < 0 || __builtin_mul_overflow(rows, row_len, &size) ||
                        __builtin_mul_overflow(size, static_cast<int64_t>(sizeof(float)), &bytes);
  FloatBuffer buffer;
  if (!overflow) {
    buffer.data_.reset(static_cast<float*>(
        ::operator new(static_cast<size_t>(std::max<int64_t>(bytes, 64)), std::align_val_t{64}, std::nothrow)));
  }
  if (!buffer.data_) {
    return MakeStatus(StatusCode::kResourceExhausted, "no memory for %s: %lld rows of %lld floats", what,
                      static_cast<long long>(rows), static_cast<long long>(row_len));
  }
  buffer.bytes_ = bytes;
  return buffer;
}

void NormRows(Executor& executor, const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
              float* y) noexcept {
  ParallelRows(executor, rows, [=](int64_t begin, int64_t end) {
    RmsNorm(x + begin * n, n, weight, epsilon, end - begin, n, y + begin * n, n);
  });
}

Status RopeAngleRows(Executor& executor, const RopeSpec& spec, const int64_t* positions, int64_t rows, float* cos,
                     float* sin) noexcept {
  FirstError error;
  const int64_t pairs = spec.rotary_dim / 2;
  ParallelRows(executor, rows, [&, positions, cos, sin](int64_t begin, int64_t end) {
    error.Set(RopeAngles(spec, positions + begin, end - begin, cos + begin * pairs, sin + begin * pairs));
  });
  return error.status();
}

}  // namespace headlane::internal
