// LinearPrecision::kInt8 as linear.h defines it, as a scalar program on stored weights: the bits that a layer must
// have, and how far from the exact layer they may be.
//
// Separate from the library's kernels, with which it shares no code.
#ifndef HEADLANE_TESTS_LINEAR_INT8_DEFINITION_H_
#define HEADLANE_TESTS_LINEAR_INT8_DEFINITION_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "linear/stored_weights.h"

namespace headlane::testing {

inline constexpr WeightFormat kBlockFormats[] = {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1,
                                                 WeightFormat::kQ5_0, WeightFormat::kQ5_1, WeightFormat::kQ4_K,
                                                 WeightFormat::kQ5_K, WeightFormat::kQ6_K};

// 32 activations.
struct QuantizedBlock {
  float scale = 0.0f;
  int codes[32] = {};
};

inline QuantizedBlock QuantizedOf(const float* x) {
  QuantizedBlock block;
  float largest = 0.0f;
  for (int i = 0; i < 32; ++i) {
    if (!std::isfinite(x[i])) {
      block.scale = NAN;
      return block;
    }
    largest = std::fmax(largest, std::fabs(x[i]));
  }
  if (largest < 0x1p-100f) return block;
  block.scale = largest / 127.0f;
  const float inverse = 127.0f / largest;
  for (int i = 0; i < 32; ++i) {
    const float product = x[i] * inverse;
    block.codes[i] = static_cast<int>(std::nearbyint(product));
  }
  return block;
}

// What the weights of a format's group are made of. Found from the weights themselves: scale and minimum by the file,
// the code by what the weight is.
struct WeightGroup {
  float scale = 0.0f, min = 0.0f;
  int length = 32, middle = 0;
  bool has_min = false;
};

// Of the group that weight k of a stored row is in.
inline WeightGroup GroupOf(WeightFormat format, const uint8_t* row, int64_t k) {
  const WeightFormatInfo& info = *FindWeightFormat(format);
  const uint8_t* b = row + k / info.block_len * info.block_bytes;
  const int i = static_cast<int>(k % info.block_len);
  const auto half = [&](int at) {
    uint16_t bits;
    std::memcpy(&bits, b + at, 2);
    return HalfToDouble(bits);
  };
  WeightGroup group;
  switch (format) {
    case WeightFormat::kQ8_0:
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ5_0:
      group.scale = static_cast<float>(half(0));
      group.middle = format == WeightFormat::kQ8_0 ? 0 : format == WeightFormat::kQ4_0 ? 8 : 16;
      break;
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
      group.scale = static_cast<float>(half(0));
      group.min = static_cast<float>(half(2));
      group.middle = format == WeightFormat::kQ4_1 ? 8 : 16;
      group.has_min = true;
      break;
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K: {
      int scale, min;
      ScaleAndMin(b + 4, i / 32, &scale, &min);
      group.scale = static_cast<float>(half(0) * scale);
      group.min = static_cast<float>(-(half(2) * min));
      group.middle = format == WeightFormat::kQ4_K ? 8 : 16;
      group.has_min = true;
      break;
    }
    case WeightFormat::kQ6_K:
      group.scale = static_cast<float>(half(208) * static_cast<int8_t>(b[192 + i / 16]));
      group.length = 16;
      group.middle = 32;
      break;
    default:
      break;
  }
  return group;
}

// Code of weight k, offset included.
inline int CodeOf(WeightFormat format, const uint8_t* row, int64_t k) {
  const WeightFormatInfo& info = *FindWeightFormat(format);
  // The weight of a copy of the block whose scales are 1 and whose minima are 0 is its code, less the offset.
  std::vector<uint8_t> block(row + k / info.block_len * info.block_bytes,
                             row + (k / info.block_len + 1) * info.block_bytes);
  constexpr uint8_t kOne[2] = {0x00, 0x3C}, kZero[2] = {0, 0};
  const std::vector<int> halves = ScalesOf(format);
  std::memcpy(block.data() + halves[0], kOne, 2);
  if (halves.size() > 1) std::memcpy(block.data() + halves[1], kZero, 2);
  if (format == WeightFormat::kQ6_K) std::memset(block.data() + 192, 1, 16);
  if (format == WeightFormat::kQ4_K || format == WeightFormat::kQ5_K) {
    // Fields of the first four groups and the second four: scales 1, minima 0.
    std::memset(block.data() + 4, 1, 4);
    std::memset(block.data() + 8, 0, 4);
    std::memset(block.data() + 12, 1, 4);
  }
  const int offset = format == WeightFormat::kQ4_0   ? 8
                     : format == WeightFormat::kQ5_0 ? 16
                     : format == WeightFormat::kQ6_K ? 32
                                                     : 0;
  return static_cast<int>(WeightOf(format, block.data(), k % info.block_len)) + offset;
}

// One matrix, taken apart once.
class Int8Weights {
 public:
  explicit Int8Weights(const StoredWeights& w) : out_(w.out_features), in_(w.in_features) {
    for (int64_t feature = 0; feature < out_; ++feature) {
      const uint8_t* row = w.bytes.data() + feature * w.row_bytes;
      for (int64_t k = 0; k < in_; ++k) {
        if (k % 16 == 0) groups_.push_back(GroupOf(w.format, row, k));
        codes_.push_back(CodeOf(w.format, row, k) - groups_.back().middle);
      }
    }
  }

  // x [in]; y [out]: the bits of the definition.
  std::vector<float> Times(const float* x) const {
    std::vector<QuantizedBlock> blocks;
    for (int64_t k = 0; k < in_; k += 32) blocks.push_back(QuantizedOf(x + k));
    std::vector<float> y(static_cast<size_t>(out_));
    for (int64_t feature = 0; feature < out_; ++feature) {
      float sum = 0.0f;
      for (int64_t k = 0; k < in_;) {
        const WeightGroup& group = groups_[static_cast<size_t>((feature * in_ + k) / 16)];
        const QuantizedBlock& block = blocks[static_cast<size_t>(k / 32)];
        int products = 0, codes = 0;
        for (int i = 0; i < group.length; ++i, ++k) {
          products += block.codes[k % 32] * codes_[static_cast<size_t>(feature * in_ + k)];
          codes += block.codes[k % 32];
        }
        const float scale = group.scale * block.scale;
        sum = std::fma(static_cast<float>(products), scale, sum);
        if (!group.has_min) continue;
        const float min = std::fma(static_cast<float>(group.middle), group.scale, group.min);
        const float codes_sum = block.scale * static_cast<float>(codes);
        sum = std::fma(min, codes_sum, sum);
      }
      y[static_cast<size_t>(feature)] = sum;
    }
    return y;
  }

 private:
  int64_t out_, in_;
  std::vector<WeightGroup> groups_;  // of each 16 weights
  std::vector<int> codes_;           // about their middle
};

// Half a step of the activations for each weight.
inline double Int8Error(const float* x, const float* weights, int64_t in_features) {
  double error = 0.0;
  for (int64_t k = 0; k < in_features; k += 32) {
    const double half_step = QuantizedOf(x + k).scale / 2.0;
    for (int64_t i = k; i < k + 32; ++i) {
      error += std::fabs(weights[i]) * (half_step * (1 + 0x1p-14) + std::fabs(x[i]) * 0x1p-20);
    }
  }
  return error;
}

// Activations with what quantising has to take care of: blocks of zeros, of tiny values, of one large one, of ties.
inline std::vector<float> ActivationsWithEdges(int64_t rows, int64_t in_features, uint64_t seed) {
  Random random(seed);
  std::vector<float> x = random.Floats(static_cast<size_t>(rows * in_features));
  for (size_t block = 0; block + 32 <= x.size(); block += 32) {
    switch (random.Int(0, 11)) {
      case 0:
        for (size_t i = 0; i < 32; ++i) x[block + i] = i % 2 == 0 ? 0.0f : -0.0f;
        break;
      case 1:
        for (size_t i = 0; i < 32; ++i) x[block + i] *= 0x1p-98f;
        break;
      case 2:
        for (size_t i = 0; i < 32; ++i) x[block + i] *= 0x1p-130f;
        break;
      case 3:
        x[block + 7] = -3.0e30f;
        break;
      case 4:  // multiples of half a step
        for (size_t i = 0; i < 32; ++i) x[block + i] = static_cast<float>(random.Int(-254, 254)) * 0.5f;
        x[block + 3] = 127.0f;
        break;
      case 5:  // every code of the largest size
        for (size_t i = 0; i < 32; ++i) x[block + i] = random.OneIn(2) ? 1.5f : -1.5f;
        break;
      case 6:
        for (size_t i = 0; i < 32; ++i) x[block + i] = 0.75f;
        break;
      default:
        break;
    }
  }
  return x;
}

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_LINEAR_INT8_DEFINITION_H_
