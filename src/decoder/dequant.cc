#include "decoder/dequant.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>

namespace headlane {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF blocks are read as they lie in the file");

uint16_t LoadU16(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bits;
}

uint32_t LoadU32(const uint8_t* p) {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bits;
}

// Exact, by integers: hardware conversions differ on denormals when the caller has set flush-to-zero.
float LoadF16(const uint8_t* p) {
  const uint32_t half = LoadU16(p);
  const uint32_t sign = (half & 0x8000u) << 16;
  uint32_t exponent = half >> 10 & 31;
  uint32_t mantissa = half & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    const int shift = std::countl_zero(mantissa) - 21;  // brings the leading one to bit 10
    mantissa = mantissa << shift & 0x3FF;
    exponent = static_cast<uint32_t>(1 - shift);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Each codec expands one block. `block` is unaligned.

struct F32 {
  static constexpr TensorTypeInfo kInfo = {TensorType::kF32, "F32", 1, 4};
  static void Expand(const uint8_t* block, float* out) { std::memcpy(out, block, 4); }
};

struct F16 {
  static constexpr TensorTypeInfo kInfo = {TensorType::kF16, "F16", 1, 2};
  static void Expand(const uint8_t* block, float* out) { *out = LoadF16(block); }
};

struct BF16 {
  static constexpr TensorTypeInfo kInfo = {TensorType::kBF16, "BF16", 1, 2};
  static void Expand(const uint8_t* block, float* out) {
    *out = std::bit_cast<float>(static_cast<uint32_t>(LoadU16(block)) << 16);
  }
};

// d, codes[32]
struct Q8_0 {
  static constexpr TensorTypeInfo kInfo = {TensorType::kQ8_0, "Q8_0", 32, 34};
  static void Expand(const uint8_t* block, float* out) {
    const float d = LoadF16(block);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
  }
};

// d, nibbles[16]: the low ones are values 0..15, the high ones 16..31. The same for the next three.
struct Q4_0 {
  static constexpr TensorTypeInfo kInfo = {TensorType::kQ4_0, "Q4_0", 32, 18};
  static void Expand(const uint8_t* block, float* out) {
    const float d = LoadF16(block);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
      out[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
    }
  }
};

// d, m, nibbles[16]
struct Q4_1 {
  static constexpr TensorTypeInfo kInfo = {TensorType::kQ4_1, "Q4_1", 32, 20};
  static void Expand(const uint8_t* block, float* out) {
    const float d = LoadF16(block), m = LoadF16(block + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(block[4 + i] & 15) + m;
      out[i + 16] = d * static_cast<float>(block[4 + i] >> 4) + m;
    }
  }
};

// d, fifth bits (bit i is value i's), nibbles[16]
struct Q5_0 {
  static constexpr TensorTypeInfo kInfo = {TensorType::kQ5_0, "Q5_0", 32, 22};
  static void Expand(const uint8_t* block, float* out) {
    const float d = LoadF16(block);
    const uint32_t fifth = LoadU32(block + 2);
    for (int i = 0; i < 16; ++i) {
      const int low = (block[6 + i] & 15) | static_cast<int>(fifth >> i & 1) << 4;
      const int high = (block[6 + i] >> 4) | static_cast<int>(fifth >> (i + 16) & 1) << 4;
      out[i] = d * static_cast<float>(low - 16);
      out[i + 16] = d * static_cast<float>(high - 16);
    }
  }
};

// d, m, fifth bits, nibbles[16]
struct Q5_1 {
  static constexpr TensorTypeInfo kInfo = {TensorType::kQ5_1, "Q5_1", 32, 24};
  static void Expand(const uint8_t* block, float* out) {
    const float d = LoadF16(block), m = LoadF16(block + 2);
    const uint32_t fifth = LoadU32(block + 4);
    for (int i = 0; i < 16; ++i) {
      const int low = (block[8 + i] & 15) | static_cast<int>(fifth >> i & 1) << 4;
      const int high = (block[8 + i] >> 4) | static_cast<int>(fifth >> (i + 16) & 1) << 4;
      out[i] = d * static_cast<float>(low) + m;
      out[i + 16] = d * static_cast<float>(high) + m;
    }
  }
};

// The 8 pairs of 6-bit scale and minimum in 12 bytes, of group `i`: the first four pairs lie in the lower 6 bits of
// bytes 0..3 and 4..7; of the other four the lower nibbles are in bytes 8..11, their upper two bits on top of bytes
// 0..7.
struct ScaleAndMin {
  float scale, min;
};
ScaleAndMin UnpackScale(const uint8_t* packed, int i) {
  int scale, min;
  if (i < 4) {
    scale = packed[i] & 63;
    min = packed[i + 4] & 63;
  } else {
    scale = (packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4;
    min = (packed[i + 4] >> 4) | (packed[i] >> 6) << 4;
  }
  return {static_cast<float>(scale), static_cast<float>(min)};
}

// d, dmin, scales[12], nibbles[128]: 32 bytes hold a group of 32 in their low and the next group in their high nibbles.
struct Q4_K {
  static constexpr TensorTypeInfo kInfo = {TensorType::kQ4_K, "Q4_K", 256, 144};
  static void Expand(const uint8_t* block, float* out) {
    const float d = LoadF16(block), dmin = LoadF16(block + 2);
    for (int group = 0; group < 8; ++group) {
      const ScaleAndMin packed = UnpackScale(block + 4, group);
      const float scale = d * packed.scale, min = dmin * packed.min;
      const uint8_t* nibbles = block + 16 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) out[group * 32 + i] = scale * static_cast<float>(nibbles[i] >> shift & 15) - min;
    }
  }
};

// d, dmin, scales[12], fifth[32] (bit g of byte i is value i of group g), nibbles[128] as in Q4_K
struct Q5_K {
  static constexpr TensorTypeInfo kInfo = {TensorType::kQ5_K, "Q5_K", 256, 176};
  static void Expand(const uint8_t* block, float* out) {
    const float d = LoadF16(block), dmin = LoadF16(block + 2);
    for (int group = 0; group < 8; ++group) {
      const ScaleAndMin packed = UnpackScale(block + 4, group);
      const float scale = d * packed.scale, min = dmin * packed.min;
      const uint8_t* fifth = block + 16;
      const uint8_t* nibbles = block + 48 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        const int code = (nibbles[i] >> shift & 15) | (fifth[i] >> group & 1) << 4;
        out[group * 32 + i] = scale * static_cast<float>(code) - min;
      }
    }
  }
};

// nibbles[128], upper[64], scales[16], d. Each half of 128 values is 4 groups of 32: groups 0 and 1 in the low nibbles
// of 64 bytes, 2 and 3 in the high ones; the upper two bits of group g are bits 2g and 2g + 1 of 32 bytes.
struct Q6_K {
  static constexpr TensorTypeInfo kInfo = {TensorType::kQ6_K, "Q6_K", 256, 210};
  static void Expand(const uint8_t* block, float* out) {
    const float d = LoadF16(block + 208);
    for (int group = 0; group < 8; ++group) {
      const int half = group / 4, g = group % 4;
      const uint8_t* nibbles = block + half * 64 + g % 2 * 32;
      const uint8_t* upper = block + 128 + half * 32;
      const uint8_t* scales = block + 192 + group * 2;
      for (int i = 0; i < 32; ++i) {
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
        const int code = (nibbles[i] >> (g / 2 * 4) & 15) | (upper[i] >> (2 * g) & 3) << 4;
        out[group * 32 + i] = scale * static_cast<float>(code - 32);
      }
    }
  }
};

template <typename Codec>
void ExpandBlocks(const uint8_t* blocks, int64_t num_blocks, float* out) {
  for (int64_t i = 0; i < num_blocks; ++i) {
    Codec::Expand(blocks + i * Codec::kInfo.block_bytes, out + i * Codec::kInfo.block_len);
  }
}

using ExpandFunction = void (*)(const uint8_t* blocks, int64_t num_blocks, float* out);

// The one list of codecs, in the order of the types' numbers.
template <typename... Codecs>
struct CodecList {
  static constexpr TensorTypeInfo kInfos[] = {Codecs::kInfo...};
  static constexpr ExpandFunction kExpand[] = {ExpandBlocks<Codecs>...};
};
using Codecs = CodecList<F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16>;

Status UnsupportedType(TensorType type) {
  const uint32_t number = static_cast<uint32_t>(type);
  return MakeStatus(StatusCode::kUnsupported, "tensor type %u (%s) is not supported; supported are %s", number,
                    TensorTypeName(number), SupportedTensorTypeNames());
}

}  // namespace

std::span<const TensorTypeInfo> SupportedTensorTypes() noexcept { return Codecs::kInfos; }

const char* SupportedTensorTypeNames() noexcept {
  return "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16";
}

const TensorTypeInfo* FindTensorType(TensorType type) noexcept {
  for (const TensorTypeInfo& info : Codecs::kInfos) {
    if (info.type == type) return &info;
  }
  return nullptr;
}

const char* TensorTypeName(uint32_t number) noexcept {
  static constexpr const char* kNames[] = {
      "F32",      "F16",      "Q4_0",    "Q4_1",  "Q4_2",       "Q4_3",       "Q5_0",       "Q5_1",
      "Q8_0",     "Q8_1",     "Q2_K",    "Q3_K",  "Q4_K",       "Q5_K",       "Q6_K",       "Q8_K",
      "IQ2_XXS",  "IQ2_XS",   "IQ3_XXS", "IQ1_S", "IQ4_NL",     "IQ3_S",      "IQ2_S",      "IQ4_XS",
      "I8",       "I16",      "I32",     "I64",   "F64",        "IQ1_M",      "BF16",       "Q4_0_4_4",
      "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4"};
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

Result<int64_t> TensorRowBytes(TensorType type, int64_t row_len) noexcept {
  const TensorTypeInfo* info = FindTensorType(type);
  if (info == nullptr) return UnsupportedType(type);
  if (row_len < 0 || row_len % info->block_len != 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "a row of %lld values is no whole number of %s blocks of %d",
                      static_cast<long long>(row_len), info->name, info->block_len);
  }
  int64_t bytes;
  if (__builtin_mul_overflow(row_len / info->block_len, int64_t{info->block_bytes}, &bytes)) {
    return MakeStatus(StatusCode::kInvalidArgument, "a row of %lld %s values has more bytes than 64 bits count",
                      static_cast<long long>(row_len), info->name);
  }
  return bytes;
}

Status DequantizeRow(TensorType type, std::span<const uint8_t> bytes, int64_t row_len, float* out) noexcept {
  const Result<int64_t> row_bytes = TensorRowBytes(type, row_len);
  if (!row_bytes.ok()) return row_bytes.status();
  const TensorTypeInfo* info = FindTensorType(type);
  if (bytes.size() != static_cast<uint64_t>(*row_bytes)) {
    return MakeStatus(StatusCode::kInvalidArgument, "%lld %s values take %lld bytes, but %llu were given",
                      static_cast<long long>(row_len), info->name, static_cast<long long>(*row_bytes),
                      static_cast<unsigned long long>(bytes.size()));
  }
  const int64_t num_blocks = row_len / info->block_len;
  Codecs::kExpand[info - Codecs::kInfos](bytes.data(), num_blocks, out);
  return OkStatus();
}

}  // namespace headlane
