// A tensor of heads in one of the three element types, with gaps between its elements, for tests of operators in place.
#ifndef HEADLANE_TESTS_OPS_TYPED_HEADS_H_
#define HEADLANE_TESTS_OPS_TYPED_HEADS_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/float16.h"
#include "headlane/view.h"
#include "support/guarded_buffer.h"

namespace headlane {

inline constexpr DType kAllTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// x after a trip through `type`: what a tensor of that type holds when x is stored.
inline float Through(DType type, float x) {
  if (type == DType::kF16) return internal::F16ToF32(internal::F32ToF16(x));
  if (type == DType::kBF16) return internal::BF16ToF32(internal::F32ToBF16(x));
  return x;
}

struct HeadsShape {
  int64_t batch = 1;
  int64_t tokens = 1;
  int64_t heads = 1;
  int64_t dim = 1;
  int64_t size() const { return batch * tokens * heads * dim; }
};

// Where features, heads, tokens and batch stand, from the innermost on; everything `gap` elements apart from the next.
enum class HeadsOrder { kTokensHeadsDim, kHeadsTokensDim, kDimOutermost };

class TypedHeads {
 public:
  TypedHeads(DType type, const HeadsShape& shape, HeadsOrder order, int64_t gap)
      : buffer_(static_cast<size_t>(((shape.size() - 1) * gap + 1) * DTypeBytes(type))) {
    const int64_t b = shape.tokens * shape.heads * shape.dim * gap;
    view_ = {buffer_.data(), type, shape.batch, shape.tokens, shape.heads, shape.dim, b, 0, 0, gap};
    switch (order) {
      case HeadsOrder::kTokensHeadsDim:
        view_.head_stride = shape.dim * gap;
        view_.token_stride = shape.heads * view_.head_stride;
        break;
      case HeadsOrder::kHeadsTokensDim:
        view_.token_stride = shape.dim * gap;
        view_.head_stride = shape.tokens * view_.token_stride;
        break;
      case HeadsOrder::kDimOutermost:
        view_.head_stride = gap;
        view_.token_stride = shape.heads * gap;
        view_.batch_stride = shape.tokens * view_.token_stride;
        view_.dim_stride = shape.batch * view_.batch_stride;
        break;
    }
    std::memset(buffer_.data(), kGapByte, buffer_.bytes());
  }

  const TensorView& view() const { return view_; }

  // Element i of [batch][tokens][heads][dim].
  void Set(int64_t i, float x) {
    unsigned char* at = buffer_.data() + OffsetOf(i) * DTypeBytes(view_.dtype);
    const uint16_t half = view_.dtype == DType::kF16 ? internal::F32ToF16(x) : internal::F32ToBF16(x);
    std::memcpy(at, view_.dtype == DType::kF32 ? static_cast<const void*>(&x) : &half,
                static_cast<size_t>(DTypeBytes(view_.dtype)));
  }
  float Get(int64_t i) const {
    const unsigned char* at = buffer_.data() + OffsetOf(i) * DTypeBytes(view_.dtype);
    float x = 0.0f;
    uint16_t half = 0;
    std::memcpy(view_.dtype == DType::kF32 ? static_cast<void*>(&x) : &half, at,
                static_cast<size_t>(DTypeBytes(view_.dtype)));
    if (view_.dtype == DType::kF16) return internal::F16ToF32(half);
    if (view_.dtype == DType::kBF16) return internal::BF16ToF32(half);
    return x;
  }
  // Whether every byte that belongs to no element is as it was at the beginning.
  bool GapsAreUntouched() const {
    const int64_t bytes = DTypeBytes(view_.dtype);
    std::vector<bool> used(buffer_.bytes());
    for (int64_t i = 0; i < view_.num_batch * view_.num_tokens * view_.num_heads * view_.dim; ++i) {
      for (int64_t j = 0; j < bytes; ++j) used[static_cast<size_t>(OffsetOf(i) * bytes + j)] = true;
    }
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i] && buffer_.data()[i] != kGapByte) return false;
    }
    return true;
  }

 private:
  static constexpr unsigned char kGapByte = 0xA5;

  int64_t OffsetOf(int64_t i) const {
    const int64_t d = i % view_.dim, h = i / view_.dim % view_.num_heads;
    const int64_t row = i / (view_.dim * view_.num_heads);
    return row / view_.num_tokens * view_.batch_stride + row % view_.num_tokens * view_.token_stride +
           h * view_.head_stride + d * view_.dim_stride;
  }

  testing::GuardedBuffer buffer_;
  TensorView view_;
};

}  // namespace headlane

#endif  // HEADLANE_TESTS_OPS_TYPED_HEADS_H_
