#include "bench/source.h"

#include <algorithm>
#include <cmath>

#include "base/float16.h"

namespace headlane::bench {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

constexpr int64_t kPoolFloats = int64_t{1} << 22;
constexpr uint64_t kKeySalt = 1, kValueSalt = 2;
// Keys and unscaled queries are uniform in [-1, 1): a product has the variance 1/9, and a score 1/9 times the square of
// this after scaling by 1 / sqrt(dim).
constexpr float kQuerySize = 6.0f;

}  // namespace

std::vector<float> RandomFloats(int64_t n, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(n));
  uint64_t state = Mix(seed + 0x9E3779B97F4A7C15u);
  for (float& value : values) {
    state += 0x9E3779B97F4A7C15u;
    value = static_cast<float>(static_cast<int64_t>(Mix(state) >> 40) - (int64_t{1} << 23)) * 0x1p-23f;
  }
  return values;
}

Source::Source(const AttentionShape& shape) : shape_(shape) {
  const ModelShape& model = shape.model;
  const int64_t chunk_floats = kChunkTokens * model.num_kv_heads * std::max(model.qk_dim, model.v_dim);
  pool_ = RandomFloats(std::max(kPoolFloats, 2 * chunk_floats), 1);
  // Of quantised types a number is known with its whole row only: the pool keeps what is to be quantised.
  if (shape.dtype == DType::kF16 || shape.dtype == DType::kBF16) {
    const bool half = shape.dtype == DType::kF16;
    stored_pool_.resize(pool_.size());
    for (size_t i = 0; i < pool_.size(); ++i) {
      stored_pool_[i] = half ? internal::F32ToF16(pool_[i]) : internal::F32ToBF16(pool_[i]);
      pool_[i] = half ? internal::F16ToF32(stored_pool_[i]) : internal::BF16ToF32(stored_pool_[i]);
    }
  }
  queries_ = RandomFloats(shape.num_sequences * shape.q_len * model.num_q_heads * model.qk_dim, 2);
  for (float& value : queries_) value *= kQuerySize;
  MakeModifiers();
}

void Source::MakeModifiers() {
  const Modifiers& modifiers = shape_.modifiers;
  const int64_t elements = shape_.q_len * shape_.kv_len;
  if (modifiers.mask != Modifiers::Mask::kNone) {
    mask_.resize(static_cast<size_t>(elements));
    mask_bits_.resize(static_cast<size_t>(shape_.q_len * mask_row_bytes()));
    for (int64_t row = 0; row < shape_.q_len; ++row) {
      for (int64_t key = 0; key < shape_.kv_len; ++key) {
        const int64_t at = row * shape_.kv_len + key;
        const bool visible = key == shape_.VisibleEnd(row) - 1 || Mix(static_cast<uint64_t>(at)) % 4 != 0;
        if (!visible) continue;
        mask_[static_cast<size_t>(at)] = 1;
        mask_bits_[static_cast<size_t>(row * mask_row_bytes() + key / 8)] |= static_cast<uint8_t>(1 << key % 8);
      }
    }
  }
  if (modifiers.bias) bias_ = RandomFloats(elements, 12);
  for (int64_t h = 0; modifiers.alibi && h < shape_.model.num_q_heads; ++h) {
    slopes_.push_back(static_cast<float>(
        std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(shape_.model.num_q_heads))));
  }
}

const float* Source::Query(int64_t sequence, int64_t row, int64_t head) const {
  const ModelShape& model = shape_.model;
  return queries_.data() + ((sequence * shape_.q_len + row) * model.num_q_heads + head) * model.qk_dim;
}

uint64_t Source::Place(uint64_t salt, int64_t copy, int64_t sequence, int64_t token, int64_t dim) const {
  const int64_t token_floats = shape_.model.num_kv_heads * dim;
  const int64_t num_chunks = shape_.kv_len / kChunkTokens + 1;
  const int64_t chunk = (copy * shape_.num_sequences + sequence) * num_chunks + token / kChunkTokens;
  const uint64_t places = pool_.size() - static_cast<uint64_t>(kChunkTokens * token_floats) + 1;
  const uint64_t place = Mix(static_cast<uint64_t>(chunk) * 4 + salt) % places;
  return place + static_cast<uint64_t>((token % kChunkTokens) * token_floats);
}

uint64_t Source::KeyPlace(int64_t copy, int64_t sequence, int64_t token) const {
  return Place(kKeySalt, copy, sequence, token, shape_.model.qk_dim);
}

uint64_t Source::ValuePlace(int64_t copy, int64_t sequence, int64_t token) const {
  return Place(kValueSalt, copy, sequence, token, shape_.model.v_dim);
}

const float* Source::Key(int64_t copy, int64_t sequence, int64_t token) const {
  return pool_.data() + KeyPlace(copy, sequence, token);
}

const float* Source::Value(int64_t copy, int64_t sequence, int64_t token, int64_t kv_head) const {
  const ModelShape& model = shape_.model;
  if (model.values_in_keys) return Key(copy, sequence, token) + kv_head * model.qk_dim;
  return pool_.data() + ValuePlace(copy, sequence, token) + static_cast<uint64_t>(kv_head * model.v_dim);
}

template <typename Element, typename GetPlace>
void Source::CopyRows(const std::vector<Element>& pool, int64_t dim, Layout layout, const GetPlace& place,
                      void* out) const {
  const int64_t heads = shape_.model.num_kv_heads;
  const int64_t tokens = shape_.kv_len;
  Element* elements = static_cast<Element*>(out);
  for (int64_t s = 0; s < shape_.num_sequences; ++s) {
    for (int64_t t = 0; t < tokens; ++t) {
      const Element* in = pool.data() + place(s, t);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = layout == Layout::kTokensHeads ? (s * tokens + t) * heads + h : (s * heads + h) * tokens + t;
        std::copy_n(in + h * dim, dim, elements + at * dim);
      }
    }
  }
}

void Source::CopyKeys(int64_t copy, Layout layout, void* out) const {
  const auto place = [&](int64_t s, int64_t t) { return KeyPlace(copy, s, t); };
  if (stored_pool_.empty()) return CopyRows(pool_, shape_.model.qk_dim, layout, place, out);
  CopyRows(stored_pool_, shape_.model.qk_dim, layout, place, out);
}

void Source::CopyValues(int64_t copy, Layout layout, void* out) const {
  const auto place = [&](int64_t s, int64_t t) { return ValuePlace(copy, s, t); };
  if (stored_pool_.empty()) return CopyRows(pool_, shape_.model.v_dim, layout, place, out);
  CopyRows(stored_pool_, shape_.model.v_dim, layout, place, out);
}

}  // namespace headlane::bench
