// The inputs of an attention case: queries, and keys and values of any number of copies, without storing them.
//
// Every implementation fills its own storage from here, and the check looks up here what it should have computed with.
// Values come from a pool of random numbers, chunk by chunk from different places of it, so that hundreds of megabytes
// are made at the speed of copying and no two copies are alike.
#ifndef HEADLANE_BENCH_SOURCE_H_
#define HEADLANE_BENCH_SOURCE_H_

#include <cstdint>
#include <vector>

#include "bench/memory_block.h"
#include "bench/roofline.h"
#include "headlane/status.h"

namespace headlane::bench {

class Source {
 public:
  // Tokens that lie next to each other in the pool: begin any copying at a multiple.
  static constexpr int64_t kChunkTokens = 64;

  explicit Source(const AttentionShape& shape);

  const AttentionShape& shape() const { return shape_; }
  // [num_sequences][q_len][num_q_heads][qk_dim]. The scores' standard deviation is about 2.
  const std::vector<float>& queries() const { return queries_; }
  const float* Query(int64_t sequence, int64_t row, int64_t head) const;
  // [num_kv_heads][qk_dim] of one token, followed by the next tokens of the chunk.
  const float* Key(int64_t copy, int64_t sequence, int64_t token) const;
  // [num_kv_heads][v_dim], likewise.
  const float* Value(int64_t copy, int64_t sequence, int64_t token) const;

  // One copy as a tensor: [num_sequences][kv_len][num_kv_heads][dim] dense, or
  // [num_sequences][num_kv_heads][kv_len][dim].
  enum class Layout { kTokensHeads, kHeadsTokens };
  void CopyKeys(int64_t copy, Layout layout, float* out) const;
  void CopyValues(int64_t copy, Layout layout, float* out) const;

 private:
  const float* Row(uint64_t salt, int64_t copy, int64_t sequence, int64_t token, int64_t dim) const;
  template <typename GetRow>
  void CopyRows(int64_t dim, Layout layout, const GetRow& row, float* out) const;

  AttentionShape shape_;
  std::vector<float> pool_;
  std::vector<float> queries_;
};

// Copies of keys and values as plain tensors.
class DenseKeysValues {
 public:
  // Errors: ResourceExhausted.
  Status Fill(const Source& source, int64_t num_copies, Source::Layout layout);
  float* k(int64_t copy) { return k_.floats() + copy * k_floats_; }
  float* v(int64_t copy) { return v_.floats() + copy * v_floats_; }

 private:
  MemoryBlock k_, v_;
  int64_t k_floats_ = 0;  // of one copy
  int64_t v_floats_ = 0;
};

// Random floats in [-1, 1), the same for the same seed on every machine.
std::vector<float> RandomFloats(int64_t n, uint64_t seed);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_SOURCE_H_
