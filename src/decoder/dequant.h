// Tensor element types of GGUF files, and their exact expansion to f32.
//
// Separate from the reader because the linear layers repack straight from these blocks. Called by the model loader for
// norms, embeddings and weights.
//
// What a value is. Every scale and minimum is an f16, every code an integer of at most 8 bits, so each product below is
// exact in f32 (at most 24 significant bits) and each formula rounds at most once: fma(d, q, m) and d * q + m are the
// same number, and so is what any reader gets that multiplies in f32 in whatever order.
//
//   type  block  bytes  value of code q
//   F32       1      4  the number            F16, BF16  1  2  the number, widened (exact)
//   Q8_0     32     34  d * q                 q in -128..127
//   Q4_0     32     18  d * (q - 8)           q in 0..15
//   Q4_1     32     20  d * q + m             q in 0..15
//   Q5_0     32     22  d * (q - 16)          q in 0..31
//   Q5_1     32     24  d * q + m             q in 0..31
//   Q4_K    256    144  (d * s) * q - (dmin * t)    q in 0..15, s and t in 0..63, one pair for 32 values
//   Q5_K    256    176  the same              q in 0..31
//   Q6_K    256    210  (d * s) * (q - 32)    q in 0..63, s in -128..127, one for 16 values
//
// A scale that is infinite or NaN gives infinities and NaN, as IEEE arithmetic says; the sign and payload of such a NaN
// are those of the machine.
#ifndef HEADLANE_SRC_DECODER_DEQUANT_H_
#define HEADLANE_SRC_DECODER_DEQUANT_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "headlane/status.h"

namespace headlane {

// Numbers as in the file. Other numbers occur in files and are refused by name: see TensorTypeName.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

struct TensorTypeInfo {
  TensorType type;
  const char* name;
  int32_t block_len;    // values in a block; a row is a whole number of blocks
  int32_t block_bytes;  // bytes of a block in the file
};

// The supported types, in the order of their numbers.
std::span<const TensorTypeInfo> SupportedTensorTypes() noexcept;

// "F32, F16, Q4_0, ...": for messages.
const char* SupportedTensorTypeNames() noexcept;

// Null when the type is not supported.
const TensorTypeInfo* FindTensorType(TensorType type) noexcept;

// The usual name of any type number that occurs in files, supported or not ("Q2_K"), else "unknown".
const char* TensorTypeName(uint32_t number) noexcept;

// Bytes of a row of `row_len` values. Errors: kUnsupported (the type; lists the supported ones), kInvalidArgument
// (row_len negative or no multiple of the block).
Result<int64_t> TensorRowBytes(TensorType type, int64_t row_len) noexcept;

// Expands `row_len` values, which must fill `bytes` exactly; out is [row_len], no alignment needed on either side.
// Several rows that lie one behind the other may be given as one. Errors: as TensorRowBytes, and kInvalidArgument when
// `bytes` has another size. Allocation: none. Threads: any.
Status DequantizeRow(TensorType type, std::span<const uint8_t> bytes, int64_t row_len, float* out) noexcept;

}  // namespace headlane

#endif  // HEADLANE_SRC_DECODER_DEQUANT_H_
