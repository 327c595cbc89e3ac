// Random weights in every format, and what they are, from the definition of the formats alone: in double, where each
// formula is exact, and rounded once.
//
// Separate from the library's packing and kernels, with which it shares no code.
#ifndef HEADLANE_TESTS_LINEAR_STORED_WEIGHTS_H_
#define HEADLANE_TESTS_LINEAR_STORED_WEIGHTS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "headlane/linear.h"
#include "headlane/weight_format.h"
#include "support/random.h"

namespace headlane::testing {

inline constexpr WeightFormat kAllFormats[] = {WeightFormat::kF32,  WeightFormat::kF16,  WeightFormat::kBF16,
                                               WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1,
                                               WeightFormat::kQ5_0, WeightFormat::kQ5_1, WeightFormat::kQ4_K,
                                               WeightFormat::kQ5_K, WeightFormat::kQ6_K};

inline double HalfToDouble(uint16_t half) {
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

// One matrix [out][in] as it is stored.
struct StoredWeights {
  WeightFormat format;
  int64_t out_features, in_features, row_bytes;
  std::vector<uint8_t> bytes;

  LinearPart Part() const {
    LinearPart part;
    part.out_features = out_features;
    part.format = format;
    part.rows.data = bytes.data();
    part.rows.data_bytes = static_cast<int64_t>(bytes.size());
    return part;
  }
};

// Where the f16 numbers of a block are.
inline std::vector<int> ScalesOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ8_0:
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ5_0:
      return {0};
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return {0, 2};
    case WeightFormat::kQ6_K:
      return {208};
    default:
      return {};
  }
}

// Codes are any bits. Scales are finite, of both signs, now and then zero, denormal or as large as they can be.
inline StoredWeights RandomWeights(WeightFormat format, int64_t out_features, int64_t in_features, uint64_t seed) {
  Random random(seed);
  const WeightFormatInfo& info = *FindWeightFormat(format);
  StoredWeights w = {format, out_features, in_features, in_features / info.block_len * info.block_bytes, {}};
  w.bytes.resize(static_cast<size_t>(out_features * w.row_bytes));
  for (uint8_t& byte : w.bytes) byte = static_cast<uint8_t>(random.Next());
  const auto half = [&] {
    const uint16_t sign = random.OneIn(2) ? 0x8000 : 0;
    if (random.OneIn(40)) return static_cast<uint16_t>(sign | random.Int(0, 0x3FF));  // denormal or zero
    if (random.OneIn(40)) return static_cast<uint16_t>(sign | 0x7BFF);
    return static_cast<uint16_t>(sign | random.Int(0x1000, 0x3BFF));  // up to 1
  };
  const std::vector<int> scales = ScalesOf(format);
  const auto put = [&](size_t at, uint16_t bits) { std::memcpy(w.bytes.data() + at, &bits, 2); };
  if (format == WeightFormat::kF32) {
    for (size_t i = 0; i < w.bytes.size(); i += 4) {
      const float value = random.Float();
      std::memcpy(w.bytes.data() + i, &value, 4);
    }
  } else if (format == WeightFormat::kF16) {
    for (size_t i = 0; i < w.bytes.size(); i += 2) put(i, half());
  } else if (format == WeightFormat::kBF16) {
    for (size_t i = 0; i < w.bytes.size(); i += 2)
      put(i, static_cast<uint16_t>(random.OneIn(2) ? random.Int(0x3000, 0x3F80) : random.Int(0xB000, 0xBF80)));
  }
  for (size_t block = 0; !scales.empty() && block < w.bytes.size(); block += static_cast<size_t>(info.block_bytes)) {
    for (const int at : scales) put(block + static_cast<size_t>(at), half());
  }
  return w;
}

// 6-bit scale and minimum of group i of a Q4_K or Q5_K block, from its 12 bytes.
inline void ScaleAndMin(const uint8_t* p, int i, int* scale, int* min) {
  if (i < 4) {
    *scale = p[i] % 64;
    *min = p[i + 4] % 64;
  } else {
    *scale = p[i + 4] % 16 + p[i - 4] / 64 * 16;
    *min = p[i + 4] / 16 + p[i] / 64 * 16;
  }
}

// Weight k of a stored row.
inline float WeightOf(WeightFormat format, const uint8_t* row, int64_t k) {
  const WeightFormatInfo& info = *FindWeightFormat(format);
  const uint8_t* b = row + k / info.block_len * info.block_bytes;
  const int i = static_cast<int>(k % info.block_len);
  const auto half = [&](int at) {
    uint16_t bits;
    std::memcpy(&bits, b + at, 2);
    return HalfToDouble(bits);
  };
  const auto nibble = [&](int at) { return i < 16 ? b[at + i] % 16 : b[at + i - 16] / 16; };
  const auto bit32 = [&](int at) { return b[at + i / 8] >> (i % 8) & 1; };
  switch (format) {
    case WeightFormat::kF32: {
      float value;
      std::memcpy(&value, b, 4);
      return value;
    }
    case WeightFormat::kF16:
      return static_cast<float>(half(0));
    case WeightFormat::kBF16: {
      const uint32_t bits = static_cast<uint32_t>(b[0] << 16) | static_cast<uint32_t>(b[1]) << 24;
      float value;
      std::memcpy(&value, &bits, 4);
      return value;
    }
    case WeightFormat::kQ8_0:
      return static_cast<float>(half(0) * static_cast<int8_t>(b[2 + i]));
    case WeightFormat::kQ4_0:
      return static_cast<float>(half(0) * (nibble(2) - 8));
    case WeightFormat::kQ4_1:
      return static_cast<float>(half(0) * nibble(4) + half(2));
    case WeightFormat::kQ5_0:
      return static_cast<float>(half(0) * (nibble(6) + 16 * bit32(2) - 16));
    case WeightFormat::kQ5_1:
      return static_cast<float>(half(0) * (nibble(8) + 16 * bit32(4)) + half(2));
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K: {
      const bool five = format == WeightFormat::kQ5_K;
      const int group = i / 32;
      int scale, min;
      ScaleAndMin(b + 4, group, &scale, &min);
      const int byte = b[(five ? 48 : 16) + group / 2 * 32 + i % 32];
      int code = group % 2 == 0 ? byte % 16 : byte / 16;
      if (five) code += (b[16 + i % 32] >> group & 1) * 16;
      return static_cast<float>(half(0) * scale * code - half(2) * min);
    }
    case WeightFormat::kQ6_K: {
      const int part = i / 128, g = i % 128 / 32, at = i % 32;
      const int byte = b[part * 64 + g % 2 * 32 + at];
      const int code = (g < 2 ? byte % 16 : byte / 16) + (b[128 + part * 32 + at] >> (2 * g) & 3) * 16;
      return static_cast<float>(half(208) * static_cast<int8_t>(b[192 + i / 16]) * (code - 32));
    }
  }
  return NAN;
}

inline std::vector<float> Dequantised(const StoredWeights& w) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(w.out_features * w.in_features));
  for (int64_t row = 0; row < w.out_features; ++row) {
    for (int64_t k = 0; k < w.in_features; ++k) {
      values.push_back(WeightOf(w.format, w.bytes.data() + row * w.row_bytes, k));
    }
  }
  return values;
}

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_LINEAR_STORED_WEIGHTS_H_
