#include "decoder/layers.h"

namespace headlane::internal {
namespace {

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

}  // namespace

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

void SiluMulRows(Executor& executor, float* gate, const float* up, int64_t rows, int64_t n) noexcept {
  ParallelRows(executor, rows, [=](int64_t begin, int64_t end) {
    SiluMul(gate + begin * n, n, up + begin * n, n, end - begin, n, gate + begin * n, n);
  });
}

void AddRows(Executor& executor, const float* x, int64_t x_stride, int64_t rows, int64_t n, float* y) noexcept {
  ParallelRows(executor, rows, [=](int64_t begin, int64_t end) {
    AddTo(x + begin * x_stride, x_stride, end - begin, n, y + begin * n, n);
  });
}

Status RopeRows(Executor& executor, const RopeSpec& spec, const float* cos, const float* sin, int64_t rows,
                int64_t num_heads, int64_t dim, float* x) noexcept {
  FirstError error;
  const int64_t pairs = spec.rotary_dim / 2;
  ParallelRows(executor, rows, [&, cos, sin, x](int64_t begin, int64_t end) {
    error.Set(ApplyRope(spec, cos + begin * pairs, sin + begin * pairs,
                        TokensHeadsDim(x + begin * num_heads * dim, end - begin, num_heads, dim)));
  });
  return error.status();
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

Status EmbeddingRows(Executor& executor, const TensorRows& embedding, const int32_t* ids, int64_t rows,
                     float* x) noexcept {
  FirstError error;
  const int64_t n = embedding.row_len();
  ParallelRows(executor, rows, [&, ids, x](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) error.Set(embedding.Read(ids[i], x + i * n));
  });
  return error.status();
}

}  // namespace headlane::internal
