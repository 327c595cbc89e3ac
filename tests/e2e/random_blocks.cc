#include "e2e/random_blocks.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "support/random.h"

namespace headlane::testing {
namespace {

// Where a block's numbers of 16 bits are, and how large a code times its scales becomes at most.
struct BlockForm {
  TensorType type;
  size_t bytes;
  int64_t length;
  int scale_at;         // -1: none
  int min_at;           // -1: none
  double largest_code;  // times the largest sub-scale
  double largest_min;
};
constexpr BlockForm kForms[] = {
    {TensorType::kQ8_0, 34, 32, 0, -1, 128, 0},         {TensorType::kQ4_0, 18, 32, 0, -1, 8, 0},
    {TensorType::kQ4_1, 20, 32, 0, 2, 15, 1},           {TensorType::kQ5_0, 22, 32, 0, -1, 16, 0},
    {TensorType::kQ5_1, 24, 32, 0, 2, 31, 1},           {TensorType::kQ4_K, 144, 256, 0, 2, 15.0 * 63, 63},
    {TensorType::kQ5_K, 176, 256, 0, 2, 31.0 * 63, 63}, {TensorType::kQ6_K, 210, 256, 208, -1, 16.0 * 64, 0},
};

// The f16 with the exponent of `size` and a random mantissa.
uint16_t RandomHalf(Random& random, double size) {
  const int exponent = static_cast<int>(std::floor(std::log2(size))) + 15;
  if (exponent < 0) return static_cast<uint16_t>(random.Int(1, 40));  // denormal
  return static_cast<uint16_t>((exponent << 10) | static_cast<int>(random.Int(0, 1023)));
}

void Put(uint8_t* to, uint16_t number) { std::memcpy(to, &number, sizeof(number)); }

std::vector<uint8_t> RandomBytes(TensorType type, int64_t size, double amplitude, Random& random) {
  std::vector<uint8_t> bytes;
  if (type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16) {
    const size_t width = type == TensorType::kF32 ? 4 : 2;
    bytes.resize(static_cast<size_t>(size) * width);
    for (int64_t i = 0; i < size; ++i) {
      uint8_t* const to = bytes.data() + static_cast<size_t>(i) * width;
      const uint16_t sign = static_cast<uint16_t>(random.Int(0, 1) << 15);
      const float value = random.Floats(1, static_cast<float>(amplitude))[0];
      if (type == TensorType::kF32) std::memcpy(to, &value, sizeof(value));
      if (type == TensorType::kF16) Put(to, static_cast<uint16_t>(sign | RandomHalf(random, std::fabs(value) + 1e-3)));
      if (type == TensorType::kBF16) std::memcpy(to, reinterpret_cast<const uint8_t*>(&value) + 2, 2);
    }
    return bytes;
  }
  for (const BlockForm& form : kForms) {
    if (form.type != type) continue;
    const int64_t num_blocks = size / form.length;
    bytes.resize(static_cast<size_t>(num_blocks) * form.bytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Int(0, 255));
    for (int64_t i = 0; i < num_blocks; ++i) {
      uint8_t* const block = bytes.data() + static_cast<size_t>(i) * form.bytes;
      const double range = form.min_at >= 0 ? 2 * amplitude : amplitude;
      Put(block + form.scale_at, RandomHalf(random, range / form.largest_code));
      if (form.min_at < 0) continue;
      // A minimum is added where it is the block's own, subtracted where it has a scale.
      const uint16_t sign = form.largest_min == 1 ? 0x8000 : 0;
      Put(block + form.min_at, static_cast<uint16_t>(sign | RandomHalf(random, amplitude / form.largest_min)));
    }
    return bytes;
  }
  throw std::runtime_error("no such type");
}

TinyModel StoredShape(uint64_t seed) {
  TinyModel tiny;
  tiny.width = 256;
  tiny.ff_width = 512;
  tiny.num_q_heads = 4;
  tiny.num_kv_heads = 2;
  tiny.qk_dim = 10;  // q has 40 features, and k 20
  tiny.v_dim = 64;   // 256 features go into attn_output
  tiny.rotary_dim = 10;
  tiny.biases = true;
  tiny.MakeWeights(seed);
  return tiny;
}

}  // namespace

void StoreAs(TensorType type, uint64_t seed, TinyModel::Tensor& tensor) {
  Random random(seed);
  const double amplitude = std::sqrt(3.0 / static_cast<double>(tensor.row_len));
  tensor.type = static_cast<uint32_t>(type);
  tensor.bytes = RandomBytes(type, tensor.rows * tensor.row_len, amplitude, random);
  if (!DequantizeRow(type, tensor.bytes, tensor.rows * tensor.row_len, tensor.values.data()).ok()) {
    throw std::runtime_error("the reader does not expand its own type");
  }
}

TinyModel StoredModel(TensorType type, uint64_t seed) {
  TinyModel tiny = StoredShape(seed);
  for (auto& [name, tensor] : tiny.tensors) {
    if (tensor.rows > 1) StoreAs(type, ++seed, tensor);
  }
  return tiny;
}

TinyModel MixedModel(uint64_t seed) {
  TinyModel tiny = StoredShape(seed);
  size_t next = 0;
  for (auto& [name, tensor] : tiny.tensors) {
    if (tensor.rows > 1) StoreAs(kStoredTypes[next++ % std::size(kStoredTypes)], ++seed, tensor);
  }
  return tiny;
}

}  // namespace headlane::testing
