// The operands of one call in guarded memory: where sequences lie, tensors of any element type in two layouts, biases
// and masks with as much broadcasting as the problems allow. For runner.cc.
#ifndef HEADLANE_TESTS_OPERATOR_TENSORS_H_
#define HEADLANE_TESTS_OPERATOR_TENSORS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "headlane/attention.h"
#include "operator/sequence.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace headlane::testing {

// Where the sequences lie in tensors of [batch, tokens].
struct Placement {
  std::vector<SequenceSpec> specs;
  int64_t num_batch = 1;
  int64_t q_tokens = 0;
  int64_t kv_tokens = 0;
};

// padded: one batch entry per sequence; else one entry with small gaps between them.
Placement Place(const std::vector<Sequence>& sequences, bool padded, Random& random);

// Storing and reading element `index` of an array of `dtype`. Storing a number that the type does not have is a defect
// of the test and fails it.
void StoreElement(DType dtype, void* data, int64_t index, float value);
float LoadElement(DType dtype, const void* data, int64_t index);

// A tensor, dense in one of the two layouts: [tokens, heads, dim] or [batch, heads, tokens, dim]. Full of 0xFF.
class Tensor {
 public:
  Tensor(const Placement& place, bool padded, int64_t num_tokens, int64_t num_heads, int64_t dim,
         DType dtype = DType::kF32);

  const TensorView& view() const { return view_; }
  LseView lse_view() const;
  // Copies rows [tokens][heads][dim] in or out.
  void Put(const float* rows, int64_t batch, int64_t begin, int64_t num_tokens) const;
  void Get(float* rows, int64_t batch, int64_t begin, int64_t num_tokens) const;
  // How many elements are still 0xFF in every byte.
  int64_t CountUntouched() const;
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  GuardedBuffer memory_;
  TensorView view_;
};

// The biases of all sequences as one tensor [batch, tokens, heads, columns]. A dimension along which all problems agree
// (stride 0, or the same data for all sequences) has one element and stride 0. Columns behind a sequence's last key and
// rows of no sequence are NaN.
class BiasTensor {
 public:
  BiasTensor(const std::vector<Sequence>& sequences, const Placement& place, bool padded, DType dtype, Random& random);
  const ConstTensorView& view() const { return view_; }

 private:
  std::optional<GuardedBuffer> memory_;
  ConstTensorView view_;
};

// The masks likewise; columns and rows of no use hold random bits.
class MaskTensor {
 public:
  MaskTensor(const std::vector<Sequence>& sequences, const Placement& place, bool padded, BoolMaskView::Format format,
             Random& random);
  const BoolMaskView& view() const { return view_; }

 private:
  std::optional<GuardedBuffer> memory_;
  BoolMaskView view_;
};

// The tree of one sequence as bits. Those behind the last drafted token are set: they mean nothing.
class TreeBits {
 public:
  TreeBits(const Sequence& sequence, Random& random);
  TreeMask view() const { return {words_.data(), row_words_}; }

 private:
  int64_t row_words_;
  GuardedArray<uint64_t> words_;
};

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_TENSORS_H_
