#include "bench/source.h"

#include <algorithm>

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
  queries_ = RandomFloats(shape.num_sequences * shape.q_len * model.num_q_heads * model.qk_dim, 2);
  for (float& value : queries_) value *= kQuerySize;
}

const float* Source::Query(int64_t sequence, int64_t row, int64_t head) const {
  const ModelShape& model = shape_.model;
  return queries_.data() + ((sequence * shape_.q_len + row) * model.num_q_heads + head) * model.qk_dim;
}

const float* Source::Row(uint64_t salt, int64_t copy, int64_t sequence, int64_t token, int64_t dim) const {
  const int64_t token_floats = shape_.model.num_kv_heads * dim;
  const int64_t num_chunks = shape_.kv_len / kChunkTokens + 1;
  const int64_t chunk = (copy * shape_.num_sequences + sequence) * num_chunks + token / kChunkTokens;
  const uint64_t places = pool_.size() - static_cast<uint64_t>(kChunkTokens * token_floats) + 1;
  const uint64_t place = Mix(static_cast<uint64_t>(chunk) * 4 + salt) % places;
  return pool_.data() + place + (token % kChunkTokens) * token_floats;
}

const float* Source::Key(int64_t copy, int64_t sequence, int64_t token) const {
  return Row(kKeySalt, copy, sequence, token, shape_.model.qk_dim);
}

const float* Source::Value(int64_t copy, int64_t sequence, int64_t token) const {
  return Row(kValueSalt, copy, sequence, token, shape_.model.v_dim);
}

template <typename GetRow>
void Source::CopyRows(int64_t dim, Layout layout, const GetRow& row, float* out) const {
  const int64_t heads = shape_.model.num_kv_heads;
  const int64_t tokens = shape_.kv_len;
  for (int64_t s = 0; s < shape_.num_sequences; ++s) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float* in = row(s, t);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = layout == Layout::kTokensHeads ? (s * tokens + t) * heads + h : (s * heads + h) * tokens + t;
        std::copy_n(in + h * dim, dim, out + at * dim);
      }
    }
  }
}

void Source::CopyKeys(int64_t copy, Layout layout, float* out) const {
  CopyRows(shape_.model.qk_dim, layout, [&](int64_t s, int64_t t) { return Key(copy, s, t); }, out);
}

void Source::CopyValues(int64_t copy, Layout layout, float* out) const {
  CopyRows(shape_.model.v_dim, layout, [&](int64_t s, int64_t t) { return Value(copy, s, t); }, out);
}

Status DenseKeysValues::Fill(const Source& source, int64_t num_copies, Source::Layout layout) {
  const AttentionShape& shape = source.shape();
  const int64_t token_heads = shape.num_sequences * shape.kv_len * shape.model.num_kv_heads;
  k_floats_ = token_heads * shape.model.qk_dim;
  v_floats_ = token_heads * shape.model.v_dim;
  if (!k_.Allocate(num_copies * k_floats_ * 4) || !v_.Allocate(num_copies * v_floats_ * 4)) {
    return MakeStatus(StatusCode::kResourceExhausted, "no memory for %lld copies of %lld bytes of keys and values",
                      static_cast<long long>(num_copies), static_cast<long long>((k_floats_ + v_floats_) * 4));
  }
  for (int64_t copy = 0; copy < num_copies; ++copy) {
    source.CopyKeys(copy, layout, k(copy));
    source.CopyValues(copy, layout, v(copy));
  }
  return OkStatus();
}

}  // namespace headlane::bench
