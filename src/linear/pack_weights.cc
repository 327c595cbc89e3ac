#include "linear/pack_weights.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/blocking.h"
#include "base/float16.h"
#include "base/weight_tile.h"

namespace headlane::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "blocks are read as they lie in files");

uint32_t LoadU32(const uint8_t* p) {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bits;
}

void Store16(uint8_t* p, const uint8_t* from) { std::memcpy(p, from, 2); }

// Codes of one stored block in the order of the inputs, without change. The second half of a byte's nibbles belongs to
// inputs 16 (in K-blocks 32) further on.

template <WeightFormat kFormat>
void ReadCodes(const uint8_t* block, uint8_t* codes);

void ReadNibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = bytes[i] & 15;
    codes[i + 16] = bytes[i] >> 4;
  }
}

void AddFifthBits(uint32_t fifth, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (fifth >> i & 1) << 4);
}

void ReadNibblesK(const uint8_t* bytes, uint8_t* codes) {
  for (int pair = 0; pair < 4; ++pair, bytes += 32, codes += 64) {
    for (int i = 0; i < 32; ++i) {
      codes[i] = bytes[i] & 15;
      codes[i + 32] = bytes[i] >> 4;
    }
  }
}

template <>
void ReadCodes<WeightFormat::kQ8_0>(const uint8_t* block, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = block[2 + i];
}
template <>
void ReadCodes<WeightFormat::kQ4_0>(const uint8_t* block, uint8_t* codes) {
  ReadNibbles(block + 2, codes);
}
template <>
void ReadCodes<WeightFormat::kQ4_1>(const uint8_t* block, uint8_t* codes) {
  ReadNibbles(block + 4, codes);
}
template <>
void ReadCodes<WeightFormat::kQ5_0>(const uint8_t* block, uint8_t* codes) {
  ReadNibbles(block + 6, codes);
  AddFifthBits(LoadU32(block + 2), codes);
}
template <>
void ReadCodes<WeightFormat::kQ5_1>(const uint8_t* block, uint8_t* codes) {
  ReadNibbles(block + 8, codes);
  AddFifthBits(LoadU32(block + 4), codes);
}
template <>
void ReadCodes<WeightFormat::kQ4_K>(const uint8_t* block, uint8_t* codes) {
  ReadNibblesK(block + 16, codes);
}
template <>
void ReadCodes<WeightFormat::kQ5_K>(const uint8_t* block, uint8_t* codes) {
  ReadNibblesK(block + 48, codes);
  for (int group = 0; group < 8; ++group) {
    for (int i = 0; i < 32; ++i) {
      uint8_t& code = codes[group * 32 + i];
      code = static_cast<uint8_t>(code | (block[16 + i] >> group & 1) << 4);
    }
  }
}
template <>
void ReadCodes<WeightFormat::kQ6_K>(const uint8_t* block, uint8_t* codes) {
  for (int group = 0; group < 8; ++group) {
    const int half = group / 4, g = group % 4;
    const uint8_t* nibbles = block + half * 64 + g % 2 * 32;
    const uint8_t* upper = block + 128 + half * 32;
    for (int i = 0; i < 32; ++i) {
      codes[group * 32 + i] = static_cast<uint8_t>((nibbles[i] >> (g / 2 * 4) & 15) | (upper[i] >> (2 * g) & 3) << 4);
    }
  }
}

// Puts one number of 32 bits of each feature at its place.
void StoreWord(uint32_t word, int lane, uint8_t* words) { std::memcpy(words + lane * 4, &word, sizeof(word)); }

// The 16 fields of 6 bits: scale and minimum of 8 groups, in the file's 12 bytes. There the first four pairs lie in the
// lower 6 bits of bytes 0..3 and 4..7; of the others the lower nibbles are in bytes 8..11, their upper two bits on top
// of bytes 0..7.
void PackFields(const uint8_t* packed, int lane, uint8_t* words) {
  uint32_t field[16];
  for (int i = 0; i < 8; ++i) {
    if (i < 4) {
      field[2 * i] = packed[i] & 63u;
      field[2 * i + 1] = packed[i + 4] & 63u;
    } else {
      field[2 * i] = (packed[i + 4] & 15u) | (packed[i - 4] >> 6u) << 4;
      field[2 * i + 1] = (packed[i + 4] >> 4u) | (packed[i] >> 6u) << 4;
    }
  }
  for (uint32_t w = 0; w < 3; ++w) {
    uint32_t word = (field[15] >> (2 * w) & 3u) << 30;
    for (uint32_t place = 0; place < 5; ++place) word |= field[place * 3 + w] << (6 * place);
    StoreWord(word, lane, words + w * 64);
  }
}

// What a block has besides codes.
template <WeightFormat kFormat>
void PackScales(const uint8_t* stored, int lane, uint8_t* block) {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  if constexpr (kFormat == WeightFormat::kQ6_K) {
    for (int group = 0; group < 16; ++group) block[kInfo.scales_at + group * 16 + lane] = stored[192 + group];
    Store16(block + kInfo.d_at + lane * 2, stored + 208);
  } else {
    Store16(block + kInfo.d_at + lane * 2, stored);
    if constexpr (kInfo.has_min) Store16(block + kInfo.min_at + lane * 2, stored + 2);
    if constexpr (kInfo.num_groups > 1) PackFields(stored + 4, lane, block + kInfo.scales_at);
  }
}

template <WeightFormat kFormat>
void PackCodes(const uint8_t* codes, int lane, uint8_t* block) {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  constexpr int kWords = kInfo.words(), kPlaces = kInfo.places(), kBits = kInfo.bits;
  for (int group = 0; group < kInfo.num_groups; ++group, codes += kInfo.group) {
    uint32_t words[kWords] = {};
    for (int k = 0; k < kPlaces * kWords; ++k) {
      // Q8_0 has no offset in files.
      const uint32_t code = kBits == 8 ? codes[k] ^ 128u : codes[k];
      words[k % kWords] |= code << kInfo.first_bit(k / kWords);
    }
    if constexpr (kBits == 5) {
      const uint32_t a = codes[30], b = codes[31];
      words[0] |= (a & 3) << 30;
      words[1] |= (a >> 2 & 3) << 30;
      words[3] |= (b & 3) << 30;
      words[4] |= (b >> 2 & 3) << 30;
      words[2] |= (a >> 4) << 30 | (b >> 4) << 31;
    } else if constexpr (kBits == 6) {
      for (int w = 0; w < kWords; ++w) words[w] |= (codes[15] >> (2 * w) & 3u) << 30;
    }
    for (int w = 0; w < kWords; ++w) {
      StoreWord(words[w], lane, block + kInfo.codes_at + group * kInfo.group_bytes() + w * 64);
    }
  }
}

// For integer dot products: a byte for each of four inputs of a feature.
template <WeightFormat kFormat>
void PackQuads(const uint8_t* codes, int lane, uint8_t* block) {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  constexpr int kHalf = kInfo.group / 8, kUpperBits = kInfo.bits - 4;  // quads
  for (int group = 0; group < kInfo.num_groups; ++group, codes += kInfo.group) {
    uint8_t* const words = block + kInfo.codes_at + group * kInfo.group_bytes() + lane * 4;
    for (int k = 0; k < kInfo.group; ++k) {
      const int quad = k / 4, byte = k % 4;
      if constexpr (kInfo.bits == 8) {
        words[quad * 64 + byte] = codes[k];
        continue;
      }
      // Every byte is written first by the quad whose code comes lowest in it.
      const bool is_lower = quad < kHalf;
      uint8_t& lower = words[(is_lower ? quad : quad - kHalf) * 64 + byte];
      const int code = codes[k] & 15;
      lower = static_cast<uint8_t>(is_lower ? code : lower | code << 4);
      if constexpr (kUpperBits > 0 && kUpperBits < 4) {
        uint8_t& upper = words[kHalf * 64 + byte];
        upper = static_cast<uint8_t>((quad == 0 ? 0 : upper) | (codes[k] >> 4) << (quad * kUpperBits));
      }
    }
  }
}

// The inverse, of one group.
template <WeightFormat kFormat>
void UnpackQuads(const uint8_t* words, uint8_t* codes) {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  constexpr int kHalf = kInfo.group / 8, kUpperBits = kInfo.bits - 4;  // quads
  for (int k = 0; k < kInfo.group; ++k) {
    const int quad = k / 4, byte = k % 4;
    if constexpr (kInfo.bits == 8) {
      codes[k] = words[quad * 64 + byte];
    } else {
      int code = quad < kHalf ? words[quad * 64 + byte] & 15 : words[(quad - kHalf) * 64 + byte] >> 4;
      if constexpr (kUpperBits > 0) {
        const int upper = words[kHalf * 64 + byte] >> (quad * kUpperBits);
        code |= (upper & ((1 << kUpperBits) - 1)) << 4;
      }
      codes[k] = static_cast<uint8_t>(code);
    }
  }
}

float ReadHalf(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof(half));
  return F16ToF32(half);
}

// A field of 6 bits of PackFields.
int ReadField(const uint8_t* words, int lane, int field) {
  uint32_t word[3];
  for (int w = 0; w < 3; ++w) word[w] = LoadU32(words + w * 64 + lane * 4);
  if (field < 15) return static_cast<int>(word[field % 3] >> (field / 3 * 6) & 63);
  return static_cast<int>(word[0] >> 30 | word[1] >> 30 << 2 | word[2] >> 30 << 4);
}

template <WeightFormat kFormat>
void ReadWeightsOf(const uint8_t* block, int lane, int64_t in_features, float* out) {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  uint8_t codes[kInfo.group] = {};
  for (int64_t k = 0; k < in_features; k += kInfo.block_len(), block += kInfo.block_bytes) {
    const float d = ReadHalf(block + kInfo.d_at + lane * 2);
    for (int group = 0; group < kInfo.num_groups; ++group, out += kInfo.group) {
      UnpackQuads<kFormat>(block + kInfo.codes_at + group * kInfo.group_bytes() + lane * 4, codes);
      float scale = d, min = 0.0f;
      if constexpr (kFormat == WeightFormat::kQ6_K) {
        scale = d * static_cast<float>(static_cast<int8_t>(block[kInfo.scales_at + group * kTileKeys + lane]));
      } else if constexpr (kInfo.has_min) {
        min = ReadHalf(block + kInfo.min_at + lane * 2);
        if constexpr (kInfo.num_groups > 1) {
          const uint8_t* const fields = block + kInfo.scales_at;
          scale = d * static_cast<float>(ReadField(fields, lane, 2 * group));
          min = -(min * static_cast<float>(ReadField(fields, lane, 2 * group + 1)));
        }
      }
      for (int k_in = 0; k_in < kInfo.group; ++k_in) {
        const int code = kInfo.bits == 8 ? static_cast<int8_t>(codes[k_in]) : codes[k_in] - kInfo.offset;
        // The product is exact, so that the sum rounds once.
        out[k_in] = static_cast<float>(code) * scale;
        if constexpr (kInfo.has_min) out[k_in] += min;
      }
    }
  }
}

template <WeightFormat kFormat>
void PackBlocks(bool int8, const uint8_t* const* rows, int64_t num_rows, int64_t in_features, uint8_t* tile) {
  constexpr WeightTileInfo kInfo = WeightTileOf(kFormat);
  const int64_t block_bytes = kInfo.block_bytes / kTileKeys;  // as stored: a tile has 16 of them
  const int64_t num_blocks = in_features / kInfo.block_len();
  // Codes and scales of 0 where no feature is.
  if (num_rows < kTileKeys) std::memset(tile, 0, static_cast<size_t>(WeightTileBytes(kFormat, in_features)));
  uint8_t codes[256];
  for (int64_t i = 0; i < num_blocks; ++i, tile += kInfo.block_bytes) {
    for (int lane = 0; lane < num_rows; ++lane) {
      const uint8_t* const stored = rows[lane] + i * block_bytes;
      ReadCodes<kFormat>(stored, codes);
      if (int8) {
        PackQuads<kFormat>(codes, lane, tile);
      } else {
        PackCodes<kFormat>(codes, lane, tile);
      }
      PackScales<kFormat>(stored, lane, tile);
    }
  }
}

// Numbers of kBytes bytes, kPairs of them side by side.
template <int64_t kBytes, int64_t kPairs>
void PackNumbers(const uint8_t* const* rows, int64_t num_rows, int64_t in_features, uint8_t* tile, int64_t tile_bytes) {
  if (num_rows < kTileKeys || in_features % kPairs != 0) std::memset(tile, 0, static_cast<size_t>(tile_bytes));
  // Of as many inputs at a time as lie in a cache line of a row.
  constexpr int64_t kInputs = 16;
  for (int64_t begin = 0; begin < in_features; begin += kInputs) {
    const int64_t end = std::min(in_features, begin + kInputs);
    for (int64_t lane = 0; lane < num_rows; ++lane) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t at = (k / kPairs * kTileKeys + lane) * kPairs + k % kPairs;
        std::memcpy(tile + at * kBytes, rows[lane] + k * kBytes, kBytes);
      }
    }
  }
}

}  // namespace

void PackWeightTile(WeightFormat format, bool int8, const uint8_t* const* rows, int64_t num_rows, int64_t in_features,
                    uint8_t* tile) noexcept {
  const int64_t tile_bytes = WeightTileBytes(format, in_features);
  switch (format) {
    case WeightFormat::kF32:
      return PackNumbers<4, 1>(rows, num_rows, in_features, tile, tile_bytes);
    case WeightFormat::kF16:
      return PackNumbers<2, 1>(rows, num_rows, in_features, tile, tile_bytes);
    case WeightFormat::kBF16:
      return PackNumbers<2, 2>(rows, num_rows, in_features, tile, tile_bytes);
    case WeightFormat::kQ8_0:
      return PackBlocks<WeightFormat::kQ8_0>(int8, rows, num_rows, in_features, tile);
    case WeightFormat::kQ4_0:
      return PackBlocks<WeightFormat::kQ4_0>(int8, rows, num_rows, in_features, tile);
    case WeightFormat::kQ4_1:
      return PackBlocks<WeightFormat::kQ4_1>(int8, rows, num_rows, in_features, tile);
    case WeightFormat::kQ5_0:
      return PackBlocks<WeightFormat::kQ5_0>(int8, rows, num_rows, in_features, tile);
    case WeightFormat::kQ5_1:
      return PackBlocks<WeightFormat::kQ5_1>(int8, rows, num_rows, in_features, tile);
    case WeightFormat::kQ4_K:
      return PackBlocks<WeightFormat::kQ4_K>(int8, rows, num_rows, in_features, tile);
    case WeightFormat::kQ5_K:
      return PackBlocks<WeightFormat::kQ5_K>(int8, rows, num_rows, in_features, tile);
    case WeightFormat::kQ6_K:
      return PackBlocks<WeightFormat::kQ6_K>(int8, rows, num_rows, in_features, tile);
  }
}

void ReadInt8Weights(WeightFormat format, const uint8_t* tile, int64_t lane, int64_t in_features, float* out) noexcept {
  const int i = static_cast<int>(lane);
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return;
    case WeightFormat::kQ8_0:
      return ReadWeightsOf<WeightFormat::kQ8_0>(tile, i, in_features, out);
    case WeightFormat::kQ4_0:
      return ReadWeightsOf<WeightFormat::kQ4_0>(tile, i, in_features, out);
    case WeightFormat::kQ4_1:
      return ReadWeightsOf<WeightFormat::kQ4_1>(tile, i, in_features, out);
    case WeightFormat::kQ5_0:
      return ReadWeightsOf<WeightFormat::kQ5_0>(tile, i, in_features, out);
    case WeightFormat::kQ5_1:
      return ReadWeightsOf<WeightFormat::kQ5_1>(tile, i, in_features, out);
    case WeightFormat::kQ4_K:
      return ReadWeightsOf<WeightFormat::kQ4_K>(tile, i, in_features, out);
    case WeightFormat::kQ5_K:
      return ReadWeightsOf<WeightFormat::kQ5_K>(tile, i, in_features, out);
    case WeightFormat::kQ6_K:
      return ReadWeightsOf<WeightFormat::kQ6_K>(tile, i, in_features, out);
  }
}

}  // namespace headlane::internal
