// Strided views of the tensors that callers hand in. A view owns nothing and may be copied freely.
#ifndef HEADLANE_VIEW_H_
#define HEADLANE_VIEW_H_

#include <cstdint>

#include "headlane/dtype.h"

namespace headlane {

// A tensor [batch, tokens, heads, dim] in memory that belongs to the caller. Element (b, t, h, d) stands at
//   data + b * batch_stride + t * token_stride + h * head_stride + d * dim_stride     (strides in elements)
// Strides may be in any order, negative or zero where reading; an output's elements must not overlap. `data` needs the
// alignment of its element type only. Extents are checked before anything is read, so that a wrong one is an error and
// not an over-read.
struct ConstTensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_batch = 1;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t dim = 0;
  int64_t batch_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t dim_stride = 1;
};

// The same, to be written. Serves wherever a tensor is only read, too.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_batch = 1;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t dim = 0;
  int64_t batch_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t dim_stride = 1;

  operator ConstTensorView() const {  // NOLINT(google-explicit-constructor)
    return {data, dtype, num_batch, num_tokens, num_heads, dim, batch_stride, token_stride, head_stride, dim_stride};
  }
};

// Dense [tokens, heads, dim] of f32, batch of 1: what linear layers produce, and a packed batch of sequences.
inline ConstTensorView TokensHeadsDim(const float* data, int64_t num_tokens, int64_t num_heads, int64_t dim) {
  return {data, DType::kF32, 1, num_tokens, num_heads, dim, num_tokens * num_heads * dim, num_heads * dim, dim, 1};
}
inline TensorView TokensHeadsDim(float* data, int64_t num_tokens, int64_t num_heads, int64_t dim) {
  return {data, DType::kF32, 1, num_tokens, num_heads, dim, num_tokens * num_heads * dim, num_heads * dim, dim, 1};
}

// Dense [batch, heads, tokens, dim] of f32: the layout of most frameworks.
inline ConstTensorView BatchHeadsTokensDim(const float* data, int64_t num_batch, int64_t num_heads, int64_t num_tokens,
                                           int64_t dim) {
  return {data, DType::kF32,      num_batch, num_tokens, num_heads, dim, num_heads * num_tokens * dim,
          dim,  num_tokens * dim, 1};
}
inline TensorView BatchHeadsTokensDim(float* data, int64_t num_batch, int64_t num_heads, int64_t num_tokens,
                                      int64_t dim) {
  return {data, DType::kF32,      num_batch, num_tokens, num_heads, dim, num_heads * num_tokens * dim,
          dim,  num_tokens * dim, 1};
}

// A boolean mask [batch, tokens, heads, columns]: which keys (columns) a query row sees. Broadcast by stride 0.
struct BoolMaskView {
  enum class Format : int32_t {
    kBytes = 0,  // one byte per column, not 0: visible; strides in bytes
    kBits,       // one bit per column, bit c % 8 of byte c / 8, 1: visible; strides in bytes
  };
  const void* data = nullptr;  // nullptr: no mask
  Format format = Format::kBytes;
  int64_t num_batch = 1;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t num_columns = 0;
  int64_t batch_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// Log-sum-exp, f32, one number per query row: element (b, t, h) at data + b * batch_stride + t * token_stride + h *
// head_stride. data == nullptr: not wanted.
struct LseView {
  float* data = nullptr;
  int64_t batch_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

}  // namespace headlane

#endif  // HEADLANE_VIEW_H_
