// What a tile of weights looks like in memory: 16 output features side by side, in as many bytes as the rows that it is
// made of.
//
// Separate from packing (scalar code) and from the kernels, which must agree on it. The layout is the same on every
// machine and is stored in files: a change of anything here is a new kWeightTileVersion.
//
// F32 [in][16], F16 [in][16], BF16 [ceil(in / 2)][16][2 inputs].
//
// Codes lie in words of 32 bits, one word per feature: [words][16 features]. A *group* is the inputs that fill whole
// words and share a scale: 32 (16 for Q6_K), which take `words` words of each feature. A word has `places` = 32 / b
// codes: input k of the group is at place k / words of word k % words. So one load, one AND with a mask, and one
// conversion to float give a vector of codes, times a power of two for where the place begins, which the scale makes up
// for exactly.
//   4, 8 bits  Place p is in byte p % 4 of the word, bits [p / 4 * b, p / 4 * b + b): what is loaded from so many bytes
//              behind the word has the code at its bottom, and masks and scales change once in a group. What is read
//              behind the last word of a block belongs to the block.
//   5, 6 bits  Place p is bits [p * b, p * b + b). What is left at the top of the words, 2 bits of each, holds the last
//              inputs of the group:
//     5 bits: input 30 = top(word 0) | top(word 1) << 2 | (bit 30 of word 2) << 4, input 31 likewise of words 3, 4 and
//             bit 31 of word 2
//     6 bits: input 15 = top(word 0) | top(word 1) << 2 | top(word 2) << 4
// Codes are numbers without sign, as in the file, offset included; those of Q8_0, which has none there, plus 128.
//
// Blocks of a tile, one behind the other (in bytes; d, m: f16 of 16 features):
//   Q8_0, Q4_0, Q5_0  codes, d                       Q4_1, Q5_1  codes, d, m
//   Q4_K, Q5_K        codes of 8 groups, d, dmin, fields [3][16] words. Field f of 6 bits is at place f / 3 of word
//                     f % 3 and field 15 on top, as above: the scale of group g is field 2g, its minimum 2g + 1
//   Q6_K              codes of 16 groups, scales [16 groups][16] int8, d
//
// With LinearPrecision::kInt8 only the codes of a group are laid out in another way, in the same place and as many
// bytes: as integer dot products read them, four inputs of a feature in a word of 32 bits. A quad is inputs 4i .. 4i +
// 3 of a group, byte j of a word belongs to input 4i + j, and a word of each of the 16 features follows the other:
//   8 bits   [quads] words: the codes
//   others   [quads / 2] words: the lower four bits of quad i, and above them those of quad i + quads / 2; then one
//            word: what quad i has above, in bits [i * n, i * n + n) of each byte, n = 1 of 5-bit and 2 of 6-bit codes
// Codes are stored as in the file, offset included; those of Q8_0 without one.
#ifndef HEADLANE_SRC_BASE_WEIGHT_TILE_H_
#define HEADLANE_SRC_BASE_WEIGHT_TILE_H_

#include <cstdint>

#include "base/blocking.h"
#include "headlane/weight_format.h"

namespace headlane::internal {

inline constexpr int32_t kWeightTileVersion = 3;

// Where things stand in a block of a tile, in bytes.
struct WeightTileInfo {
  int32_t bits;        // of a code
  int32_t offset;      // a code is a number plus this
  bool has_min;        // a weight is scale * code + min
  int32_t group;       // inputs
  int32_t num_groups;  // in a block
  int32_t codes_at;
  int32_t d_at;
  int32_t min_at;     // m or dmin
  int32_t scales_at;  // of groups, where a block has several
  int32_t block_bytes;

  constexpr int32_t words() const { return group * bits / 32; }
  constexpr int32_t places() const { return 32 / bits; }
  // Codes fill bytes.
  constexpr bool is_full() const { return 8 % bits == 0; }
  // Of a code in its word.
  constexpr int32_t first_bit(int32_t place) const {
    return is_full() ? place % 4 * 8 + place / 4 * bits : place * bits;
  }
  constexpr int32_t group_bytes() const { return words() * 64; }
  constexpr int32_t block_len() const { return group * num_groups; }
};

constexpr WeightTileInfo WeightTileOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ8_0:
      return {8, 128, false, 32, 1, 0, 512, 0, 0, 544};
    case WeightFormat::kQ4_0:
      return {4, 8, false, 32, 1, 0, 256, 0, 0, 288};
    case WeightFormat::kQ4_1:
      return {4, 0, true, 32, 1, 0, 256, 288, 0, 320};
    case WeightFormat::kQ5_0:
      return {5, 16, false, 32, 1, 0, 320, 0, 0, 352};
    case WeightFormat::kQ5_1:
      return {5, 0, true, 32, 1, 0, 320, 352, 0, 384};
    case WeightFormat::kQ4_K:
      return {4, 0, true, 32, 8, 0, 2048, 2080, 2112, 2304};
    case WeightFormat::kQ5_K:
      return {5, 0, true, 32, 8, 0, 2560, 2592, 2624, 2816};
    case WeightFormat::kQ6_K:
      return {6, 32, false, 16, 16, 0, 3328, 0, 3072, 3360};
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      break;
  }
  return {32, 0, false, 1, 1, 0, 0, 0, 0, 0};  // numbers, which have no blocks
}

// Tiles begin at multiples of this.
inline constexpr int64_t kWeightTileAlignment = 64;

// Bytes from one tile to the next. Requires: in_features is a whole number of blocks, and no overflow.
constexpr int64_t WeightTileBytes(WeightFormat format, int64_t in_features) {
  int64_t bytes = 0;
  switch (format) {
    case WeightFormat::kF32:
      return in_features * kTileKeys * 4;
    case WeightFormat::kF16:
      bytes = in_features * kTileKeys * 2;
      break;
    case WeightFormat::kBF16:
      bytes = RoundUp(in_features, 2) * kTileKeys * 2;
      break;
    default: {
      const WeightTileInfo info = WeightTileOf(format);
      bytes = in_features / info.block_len() * info.block_bytes;
      break;
    }
  }
  return RoundUp(bytes, kWeightTileAlignment);
}

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_WEIGHT_TILE_H_
