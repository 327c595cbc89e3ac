#include "operator/tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "base/float16.h"
#include "support/bits.h"

namespace headlane::testing {
namespace {

using reference::Problem;

// Which dimensions of a bias or mask have one element for all.
struct Broadcast {
  bool batch = false;
  bool tokens = false;
  bool heads = false;
};

// What biases and masks have in common.
struct Columns {
  const void* data;
  int64_t head_stride;
  int64_t row_stride;
};

template <typename ColumnsOf>
Broadcast BroadcastOf(const std::vector<Sequence>& sequences, bool padded, ColumnsOf columns_of) {
  Broadcast broadcast{true, true, true};
  const Columns first = columns_of(sequences[0].problem);
  bool same_data = true;
  for (const Sequence& s : sequences) {
    const Columns c = columns_of(s.problem);
    broadcast.heads = broadcast.heads && c.head_stride == 0;
    broadcast.tokens = broadcast.tokens && c.row_stride == 0;
    same_data = same_data && c.data == first.data && c.row_stride == first.row_stride;
  }
  broadcast.batch = same_data;
  if (!padded) broadcast.tokens = broadcast.tokens && same_data;
  return broadcast;
}

// The shape that is stored, and the strides of the view over it, in units of one row's columns.
struct Shape {
  int64_t batch, tokens, heads;
  int64_t batch_stride, token_stride, head_stride;
  int64_t rows() const { return batch * tokens * heads; }
};

Shape ShapeOf(const Broadcast& broadcast, const Placement& place, int64_t num_heads) {
  Shape shape{};
  shape.batch = broadcast.batch ? 1 : place.num_batch;
  shape.tokens = broadcast.tokens ? 1 : place.q_tokens;
  shape.heads = broadcast.heads ? 1 : num_heads;
  shape.head_stride = broadcast.heads ? 0 : 1;
  shape.token_stride = broadcast.tokens ? 0 : shape.heads;
  shape.batch_stride = broadcast.batch ? 0 : shape.heads * shape.tokens;
  return shape;
}

// Calls put(stored row, sequence, head, row) for everything that is stored.
template <typename Put>
void ForStoredRows(const std::vector<Sequence>& sequences, const Placement& place, const Broadcast& broadcast,
                   const Shape& shape, Put put) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceSpec& spec = place.specs[i];
    const int64_t rows = broadcast.tokens ? std::min<int64_t>(1, spec.q_len) : spec.q_len;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        const int64_t stored = spec.batch * shape.batch_stride + (spec.q_begin + row) * shape.token_stride + head;
        put(stored, sequences[i].problem, head, row);
      }
    }
  }
}

int64_t NumColumns(const std::vector<Sequence>& sequences, Random& random) {
  int64_t columns = 0;
  for (const Sequence& s : sequences) columns = std::max(columns, s.problem.kv_len);
  return columns + random.Int(0, 2);
}

Columns BiasColumns(const Problem& p) { return {p.bias, p.bias_head_stride, p.bias_row_stride}; }
Columns MaskColumns(const Problem& p) { return {p.mask, p.mask_head_stride, p.mask_row_stride}; }

}  // namespace

Placement Place(const std::vector<Sequence>& sequences, bool padded, Random& random) {
  Placement place;
  for (const Sequence& s : sequences) {
    SequenceSpec spec;
    spec.q_len = s.problem.q_len;
    spec.kv_len = s.problem.kv_len;
    spec.q_pos = s.problem.q_pos;
    spec.prefix_len = s.problem.prefix_len;
    if (padded) {
      spec.batch = static_cast<int64_t>(place.specs.size());
      place.q_tokens = std::max(place.q_tokens, spec.q_len);
      place.kv_tokens = std::max(place.kv_tokens, spec.kv_len);
    } else {
      spec.q_begin = place.q_tokens + random.Int(0, 1);
      spec.kv_begin = place.kv_tokens + random.Int(0, 2);
      place.q_tokens = spec.q_begin + spec.q_len;
      place.kv_tokens = spec.kv_begin + spec.kv_len;
    }
    place.specs.push_back(spec);
  }
  if (padded) place.num_batch = static_cast<int64_t>(sequences.size());
  return place;
}

void StoreElement(DType dtype, void* data, int64_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[index] = value;
    return;
  }
  static_cast<uint16_t*>(data)[index] = dtype == DType::kF16 ? internal::F32ToF16(value) : internal::F32ToBF16(value);
  if (!SameBits(value, LoadElement(dtype, data, index), NaNs::kEqual)) {
    ADD_FAILURE() << value << " is no " << DTypeName(dtype) << ": the test forgot to round";
  }
}

float LoadElement(DType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DType::kF16:
      return internal::F16ToF32(static_cast<const uint16_t*>(data)[index]);
    case DType::kBF16:
      return internal::BF16ToF32(static_cast<const uint16_t*>(data)[index]);
    default:
      break;
  }
  return static_cast<const float*>(data)[index];
}

Tensor::Tensor(const Placement& place, bool padded, int64_t num_tokens, int64_t num_heads, int64_t dim, DType dtype)
    : size_(place.num_batch * num_tokens * num_heads * dim), memory_(static_cast<size_t>(size_ * DTypeBytes(dtype))) {
  float* data = reinterpret_cast<float*>(memory_.data());
  view_ = padded ? BatchHeadsTokensDim(data, place.num_batch, num_heads, num_tokens, dim)
                 : TokensHeadsDim(data, num_tokens, num_heads, dim);
  view_.dtype = dtype;
}

LseView Tensor::lse_view() const {
  return {static_cast<float*>(view_.data), view_.batch_stride, view_.token_stride, view_.head_stride};
}

void Tensor::Put(const float* rows, int64_t batch, int64_t begin, int64_t num_tokens) const {
  for (int64_t t = begin; t < begin + num_tokens; ++t) {
    for (int64_t h = 0; h < view_.num_heads; ++h, rows += view_.dim) {
      const int64_t at = batch * view_.batch_stride + t * view_.token_stride + h * view_.head_stride;
      if (view_.dtype == DType::kF32) {  // most of all tests' time goes by here
        std::copy_n(rows, view_.dim, static_cast<float*>(view_.data) + at);
        continue;
      }
      for (int64_t d = 0; d < view_.dim; ++d) StoreElement(view_.dtype, view_.data, at + d, rows[d]);
    }
  }
}

void Tensor::Get(float* rows, int64_t batch, int64_t begin, int64_t num_tokens) const {
  for (int64_t t = begin; t < begin + num_tokens; ++t) {
    for (int64_t h = 0; h < view_.num_heads; ++h, rows += view_.dim) {
      const int64_t at = batch * view_.batch_stride + t * view_.token_stride + h * view_.head_stride;
      for (int64_t d = 0; d < view_.dim; ++d) rows[d] = LoadElement(view_.dtype, view_.data, at + d);
    }
  }
}

int64_t Tensor::CountUntouched() const {
  const size_t bytes = static_cast<size_t>(DTypeBytes(view_.dtype));
  int64_t count = 0;
  for (size_t i = 0; i < static_cast<size_t>(size_); ++i) {
    const unsigned char* element = memory_.data() + i * bytes;
    if (std::all_of(element, element + bytes, [](unsigned char b) { return b == 0xFF; })) ++count;
  }
  return count;
}

BiasTensor::BiasTensor(const std::vector<Sequence>& sequences, const Placement& place, bool padded, DType dtype,
                       Random& random) {
  const int64_t num_heads = sequences[0].problem.num_q_heads;
  const int64_t columns = NumColumns(sequences, random);
  const Broadcast broadcast = BroadcastOf(sequences, padded, BiasColumns);
  const Shape shape = ShapeOf(broadcast, place, num_heads);
  memory_.emplace(static_cast<size_t>(shape.rows() * columns * DTypeBytes(dtype)));
  ForStoredRows(sequences, place, broadcast, shape, [&](int64_t stored, const Problem& p, int64_t head, int64_t row) {
    const float* bias = p.bias + head * p.bias_head_stride + row * p.bias_row_stride;
    for (int64_t c = 0; c < p.kv_len; ++c) StoreElement(dtype, memory_->data(), stored * columns + c, bias[c]);
  });
  view_ = {memory_->data(),
           dtype,
           place.num_batch,
           place.q_tokens,
           num_heads,
           columns,
           shape.batch_stride * columns,
           shape.token_stride * columns,
           shape.head_stride * columns,
           1};
}

MaskTensor::MaskTensor(const std::vector<Sequence>& sequences, const Placement& place, bool padded,
                       BoolMaskView::Format format, Random& random) {
  const int64_t num_heads = sequences[0].problem.num_q_heads;
  const int64_t columns = NumColumns(sequences, random);
  const Broadcast broadcast = BroadcastOf(sequences, padded, MaskColumns);
  const Shape shape = ShapeOf(broadcast, place, num_heads);
  const bool is_bits = format == BoolMaskView::Format::kBits;
  const int64_t row_bytes = is_bits ? (columns + 7) / 8 : columns;
  memory_.emplace(static_cast<size_t>(shape.rows() * row_bytes));
  for (size_t i = 0; i < memory_->bytes(); ++i) memory_->data()[i] = static_cast<unsigned char>(random.Next() >> 56);
  ForStoredRows(sequences, place, broadcast, shape, [&](int64_t stored, const Problem& p, int64_t head, int64_t row) {
    const uint8_t* mask = p.mask + head * p.mask_head_stride + row * p.mask_row_stride;
    unsigned char* bytes = memory_->data() + stored * row_bytes;
    for (int64_t c = 0; c < p.kv_len; ++c) {
      if (is_bits) {
        const auto bit = static_cast<unsigned char>(1u << (c % 8));
        bytes[c / 8] = static_cast<unsigned char>(mask[c] != 0 ? bytes[c / 8] | bit : bytes[c / 8] & ~bit);
      } else {
        bytes[c] = static_cast<unsigned char>(mask[c] != 0 ? random.Int(1, 255) : 0);
      }
    }
  });
  view_ = {memory_->data(),
           format,
           place.num_batch,
           place.q_tokens,
           num_heads,
           columns,
           shape.batch_stride * row_bytes,
           shape.token_stride * row_bytes,
           shape.head_stride * row_bytes};
}

TreeBits::TreeBits(const Sequence& sequence, Random& random)
    : row_words_((sequence.problem.q_len + 63) / 64 + random.Int(0, 1)),
      words_(static_cast<size_t>(sequence.problem.q_len * row_words_)) {
  const Problem& p = sequence.problem;
  for (int64_t i = 0; i < p.q_len; ++i) {
    for (int64_t j = 0; j < p.q_len; ++j) {
      uint64_t& word = words_[static_cast<size_t>(i * row_words_ + j / 64)];
      if (p.tree[i * p.q_len + j] == 0) word &= ~(uint64_t{1} << (j % 64));
    }
  }
}

}  // namespace headlane::testing
