// Attention over one sequence of a cache, and over the same rows as plain tensors, which must have the same bits: what
// the tests of sharing, windows and drafts compare.
#ifndef HEADLANE_TESTS_KV_ATTEND_H_
#define HEADLANE_TESTS_KV_ATTEND_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "headlane/attention.h"
#include "headlane/executor.h"
#include "headlane/kv_cache.h"
#include "kv/kv_test_util.h"
#include "reference/quantize.h"

namespace headlane::internal {

// The numbers of a token, by its name: what f32, f16 and bf16 all hold exactly.
inline float TokenElement(int64_t name, int64_t layer, int64_t head, int64_t i, int64_t which) {
  uint64_t z = static_cast<uint64_t>(((name * 31 + layer) * 31 + head) * 1009 + i * 2 + which) * 0x9E3779B97F4A7C15u;
  z ^= z >> 29;
  z *= 0xBF58476D1CE4E5B9u;
  z ^= z >> 32;
  return static_cast<float>(static_cast<int64_t>(z % 255) - 127) / 32.0f;
}

// A head's key or value as the reference's codec makes it of a quantised type.
inline std::vector<float> CodedRow(DType dtype, const std::vector<float>& row) {
  const auto type = dtype == DType::kI8       ? reference::QuantizedType::kI8
                    : dtype == DType::kF8E4M3 ? reference::QuantizedType::kF8E4M3
                                              : reference::QuantizedType::kI4;
  return reference::Dequantize(type, reference::Quantize(type, row.data(), static_cast<int64_t>(row.size())));
}

// Appends one head's key (which 0) or value (1) of a token, as it is given to the cache or, `stored`, as attention sees
// it: through the reference's codec where the type has one. Rows that were coded are remembered.
inline void AppendTokenRow(std::vector<float>* rows, DType dtype, int64_t dim, int64_t name, int64_t layer,
                           int64_t head, int64_t which, bool stored) {
  const auto plain = [&](std::vector<float>* out) {
    for (int64_t i = 0; i < dim; ++i) out->push_back(TokenElement(name, layer, head, i, which));
  };
  if (!stored || !IsQuantized(dtype)) return plain(rows);
  static std::map<std::array<int64_t, 6>, std::vector<float>> known;
  if (known.size() > 100000) known.clear();
  std::vector<float>& coded = known[{static_cast<int64_t>(dtype), dim, name, layer, head, which}];
  if (coded.empty()) {
    std::vector<float> row;
    plain(&row);
    coded = CodedRow(dtype, row);
  }
  rows->insert(rows->end(), coded.begin(), coded.end());
}

// Keys and values of tokens, by their names, in one layer: [n][heads][dim].
struct TokenRows {
  TokenRows(const KVCacheSpec& spec, int64_t layer, const std::vector<int64_t>& names, bool stored = false)
      : spec(spec) {
    for (const int64_t name : names) {
      for (int64_t head = 0; head < spec.num_kv_heads; ++head) {
        AppendTokenRow(&k, spec.k_dtype, spec.qk_dim, name, layer, head, 0, stored);
        AppendTokenRow(&v, spec.v_dtype, spec.v_dim, name, layer, head, 1, stored);
      }
    }
    n = static_cast<int64_t>(names.size());
  }
  ConstTensorView k_view() const { return TokensHeadsDim(k.data(), n, spec.num_kv_heads, spec.qk_dim); }
  ConstTensorView v_view() const { return TokensHeadsDim(v.data(), n, spec.num_kv_heads, spec.v_dim); }

  const KVCacheSpec& spec;
  std::vector<float> k;
  std::vector<float> v;
  int64_t n;
};

// Appends tokens of these names in all layers.
inline Status AppendTokens(KVCache& cache, SequenceId id, const std::vector<int64_t>& names) {
  const Status reserved = cache.Reserve(id, static_cast<int64_t>(names.size()));
  if (!reserved.ok()) return reserved;
  for (int64_t layer = 0; layer < cache.spec().num_layers; ++layer) {
    const TokenRows rows(cache.spec(), layer, names);
    const Status written = cache.Write(id, layer, rows.k_view(), rows.v_view());
    if (!written.ok()) return written;
  }
  return cache.Commit(id, static_cast<int64_t>(names.size()));
}

inline std::vector<int64_t> Names(int64_t first, int64_t n) {
  std::vector<int64_t> names;
  for (int64_t i = 0; i < n; ++i) names.push_back(first + i);
  return names;
}

// The bits of the outputs of q_len rows behind kv_len keys, 2 query heads on each KV head.
struct Attended {
  Status status;
  std::vector<float> out;
};
inline AttentionSpec SpecFor(const KVCacheSpec& spec, const Mask& mask) {
  AttentionSpec attention;
  attention.num_q_heads = 2 * spec.num_kv_heads;
  attention.num_kv_heads = spec.num_kv_heads;
  attention.qk_dim = spec.qk_dim;
  attention.v_dim = spec.v_dim;
  attention.mask = mask;
  attention.values_in_keys = spec.values_in_keys;
  return attention;
}
inline Attended Run(const AttentionSpec& spec, SequenceSpec sequence, AttentionArgs args) {
  const int64_t q_len = sequence.q_len;
  std::vector<float> q;
  for (int64_t i = 0; i < q_len * spec.num_q_heads * spec.qk_dim; ++i) q.push_back(TokenElement(7, 0, 0, i, 0));
  Attended result;
  result.out.assign(static_cast<size_t>(q_len * spec.num_q_heads * spec.v_dim), -1.0f);
  args.q = TokensHeadsDim(std::as_const(q).data(), q_len, spec.num_q_heads, spec.qk_dim);
  args.out = TokensHeadsDim(result.out.data(), q_len, spec.num_q_heads, spec.v_dim);
  result.status = Attention(spec, std::span<const SequenceSpec>(&sequence, 1), args, SerialExecutor());
  return result;
}

inline Attended AttendCache(const KVCache& cache, SequenceId id, int64_t layer, int64_t q_len, int64_t kv_len,
                            const Mask& mask = {}, int64_t group = 0) {
  SequenceSpec sequence;
  sequence.q_len = q_len;
  sequence.kv_len = kv_len;
  sequence.cache_id = id;
  AttentionArgs args;
  args.cache = &cache;
  args.layer = layer;
  AttentionSpec spec = SpecFor(cache.spec(), mask);
  spec.cache_group = group;
  return Run(spec, sequence, args);
}

inline Attended AttendNames(const KVCacheSpec& spec, const std::vector<int64_t>& names, int64_t layer, int64_t q_len,
                            const Mask& mask = {}) {
  const TokenRows rows(spec, layer, names, true);
  SequenceSpec sequence;
  sequence.q_len = q_len;
  sequence.kv_len = rows.n;
  AttentionArgs args;
  args.k = rows.k_view();
  args.v = rows.v_view();
  return Run(SpecFor(spec, mask), sequence, args);
}

// Whether the cache's sequence holds exactly these tokens, for attention: one row and several, in every layer.
inline ::testing::AssertionResult Attends(const KVCache& cache, SequenceId id, const std::vector<int64_t>& names,
                                          const Mask& mask = {}) {
  const int64_t kv_len = static_cast<int64_t>(names.size());
  for (int64_t layer = 0; layer < cache.spec().num_layers; ++layer) {
    for (const int64_t q_len : {int64_t{1}, int64_t{37}}) {
      if (q_len > kv_len) continue;
      const Attended expected = AttendNames(cache.spec(), names, layer, q_len, mask);
      const Attended got = AttendCache(cache, id, layer, q_len, kv_len, mask);
      if (!expected.status.ok()) return Succeeds(expected.status);
      if (!got.status.ok()) return Succeeds(got.status);
      if (std::memcmp(expected.out.data(), got.out.data(), got.out.size() * sizeof(float)) != 0) {
        return ::testing::AssertionFailure()
               << q_len << " rows over " << kv_len << " keys in layer " << layer << " differ from plain tensors";
      }
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace headlane::internal

#endif  // HEADLANE_TESTS_KV_ATTEND_H_
