// How the weights of a linear layer are stored: plain numbers, or blocks of codes with scales as GGUF files have them.
//
// What a weight is. Scales and minima are f16, codes integers of at most 8 bits, so that each product below is exact in
// f32 and each formula rounds once at most. A layer computes with exactly these numbers.
//
//   format  block  bytes  weight of code q
//   F32         1      4  the number            F16, BF16  1  2  the number, widened (exact)
//   Q8_0       32     34  d * q                 q in -128..127
//   Q4_0       32     18  d * (q - 8)           q in 0..15
//   Q4_1       32     20  d * q + m             q in 0..15
//   Q5_0       32     22  d * (q - 16)          q in 0..31
//   Q5_1       32     24  d * q + m             q in 0..31
//   Q4_K      256    144  (d * s) * q - (dmin * t)    q in 0..15, s and t in 0..63, one pair for 32 weights
//   Q5_K      256    176  the same              q in 0..31
//   Q6_K      256    210  (d * s) * (q - 32)    q in 0..63, s in -128..127, one for 16 weights
#ifndef HEADLANE_WEIGHT_FORMAT_H_
#define HEADLANE_WEIGHT_FORMAT_H_

#include <cstdint>

#include "headlane/status.h"

namespace headlane {

enum class WeightFormat : int32_t {
  kF32 = 0,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

inline constexpr int kNumWeightFormats = 11;

struct WeightFormatInfo {
  WeightFormat format;
  const char* name;     // "Q4_1"
  int32_t block_len;    // weights in a block; a row is a whole number of blocks
  int32_t block_bytes;  // stored bytes of a block
};

// Null when `format` is none of the above.
const WeightFormatInfo* FindWeightFormat(WeightFormat format) noexcept;

// "F32", ...; "?" for none of the above.
const char* WeightFormatName(WeightFormat format) noexcept;

// "F32, F16, ...": for messages.
const char* WeightFormatNames() noexcept;

// Bytes of a stored row. Errors: Unsupported (the format), InvalidArgument (in_features negative, no multiple of the
// block, or too many).
Result<int64_t> StoredRowBytes(WeightFormat format, int64_t in_features) noexcept;

}  // namespace headlane

#endif  // HEADLANE_WEIGHT_FORMAT_H_
