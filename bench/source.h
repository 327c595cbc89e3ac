// The inputs of an attention case: queries, masks, and keys and values of any number of copies, without storing them.
//
// Every implementation fills its own storage from here, and the check looks up here what it should have computed with.
// Values come from a pool of random numbers, chunk by chunk from different places of it, so that hundreds of megabytes
// are made at the speed of copying and no two copies are alike. They are rounded to the element type that is stored, so
// that the reference has the same ones; those that a cache quantises are as they are before it does.
#ifndef HEADLANE_BENCH_SOURCE_H_
#define HEADLANE_BENCH_SOURCE_H_

#include <cstdint>
#include <vector>

#include "bench/roofline.h"

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
  // v_dim of one token and head.
  const float* Value(int64_t copy, int64_t sequence, int64_t token, int64_t kv_head) const;

  // One copy as a tensor of the stored element type: [num_sequences][kv_len][num_kv_heads][dim] dense, or
  // [num_sequences][num_kv_heads][kv_len][dim].
  enum class Layout { kTokensHeads, kHeadsTokens };
  void CopyKeys(int64_t copy, Layout layout, void* out) const;
  void CopyValues(int64_t copy, Layout layout, void* out) const;

  // What the modifiers ask for, empty otherwise. The same for all sequences.
  const std::vector<uint8_t>& mask() const { return mask_; }            // [q_len][kv_len] of 0 and 1
  const std::vector<uint8_t>& mask_bits() const { return mask_bits_; }  // [q_len][mask_row_bytes()]
  int64_t mask_row_bytes() const { return (shape_.kv_len + 7) / 8; }
  const std::vector<float>& bias() const { return bias_; }      // [q_len][kv_len]
  const std::vector<float>& slopes() const { return slopes_; }  // [num_q_heads]

 private:
  uint64_t Place(uint64_t salt, int64_t copy, int64_t sequence, int64_t token, int64_t dim) const;
  uint64_t KeyPlace(int64_t copy, int64_t sequence, int64_t token) const;
  uint64_t ValuePlace(int64_t copy, int64_t sequence, int64_t token) const;
  template <typename Element, typename GetPlace>
  void CopyRows(const std::vector<Element>& pool, int64_t dim, Layout layout, const GetPlace& place, void* out) const;
  void MakeModifiers();

  AttentionShape shape_;
  std::vector<float> pool_;
  std::vector<uint16_t> stored_pool_;  // the same in 16 bits, where keys and values are stored so
  std::vector<float> queries_;
  std::vector<uint8_t> mask_, mask_bits_;
  std::vector<float> bias_, slopes_;
};

// Random floats in [-1, 1), the same for the same seed on every machine.
std::vector<float> RandomFloats(int64_t n, uint64_t seed);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_SOURCE_H_
