// Attention as a double loop over keys, in double precision, written from the sentences of headlane/attention.h and
// nothing else; and problems to compare it with. Enough to see that execution is right: accuracy and the canonical bits
// are the operator tests' business.
#ifndef HEADLANE_TESTS_EXEC_NAIVE_ATTENTION_H_
#define HEADLANE_TESTS_EXEC_NAIVE_ATTENTION_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "headlane/attention.h"
#include "support/random.h"

namespace headlane::testing {

// A batch with its tensors, dense and packed: [tokens, heads, dim].
struct TestBatch {
  AttentionSpec spec;
  std::vector<SequenceSpec> sequences;
  int64_t q_tokens = 0;
  int64_t kv_tokens = 0;
  std::vector<float> q, k, v;

  AttentionArgs PlainArgs(float* out, float* lse) const {
    AttentionArgs args;
    args.q = TokensHeadsDim(q.data(), q_tokens, spec.num_q_heads, spec.qk_dim);
    args.k = TokensHeadsDim(k.data(), kv_tokens, spec.num_kv_heads, spec.qk_dim);
    args.v = TokensHeadsDim(v.data(), kv_tokens, spec.num_kv_heads, spec.v_dim);
    SetOut(out, lse, &args);
    return args;
  }
  void SetOut(float* out, float* lse, AttentionArgs* args) const {
    args->out = TokensHeadsDim(out, q_tokens, spec.num_q_heads, spec.v_dim);
    args->lse.data = lse;
    args->lse.token_stride = spec.num_q_heads;
    args->lse.head_stride = 1;
  }
  size_t OutSize() const { return static_cast<size_t>(q_tokens * spec.num_q_heads * spec.v_dim); }
  size_t LseSize() const { return static_cast<size_t>(q_tokens * spec.num_q_heads); }

  std::string Describe() const {
    std::string text = "heads " + std::to_string(spec.num_q_heads) + "/" + std::to_string(spec.num_kv_heads) +
                       " dims " + std::to_string(spec.qk_dim) + "/" + std::to_string(spec.v_dim) + " causality " +
                       std::to_string(static_cast<int>(spec.mask.causality)) + " window " +
                       std::to_string(spec.mask.window) + " (q, kv)";
    for (const SequenceSpec& s : sequences)
      text += " (" + std::to_string(s.q_len) + ", " + std::to_string(s.kv_len) + ")";
    return text;
  }
};

// Sequences of the given (q_len, kv_len), one behind the other.
inline TestBatch MakeBatch(const AttentionSpec& spec, const std::vector<std::pair<int64_t, int64_t>>& lengths,
                           uint64_t seed) {
  Random random(seed);
  TestBatch batch;
  batch.spec = spec;
  for (const auto& [q_len, kv_len] : lengths) {
    SequenceSpec s;
    s.q_begin = batch.q_tokens;
    s.q_len = q_len;
    s.kv_len = kv_len;
    s.kv_begin = batch.kv_tokens;
    batch.sequences.push_back(s);
    batch.q_tokens += q_len;
    batch.kv_tokens += kv_len;
  }
  batch.q = random.Floats(static_cast<size_t>(batch.q_tokens * spec.num_q_heads * spec.qk_dim), 2.0f);
  batch.k = random.Floats(static_cast<size_t>(batch.kv_tokens * spec.num_kv_heads * spec.qk_dim), 2.0f);
  batch.v = random.Floats(static_cast<size_t>(batch.kv_tokens * spec.num_kv_heads * spec.v_dim), 1.0f);
  return batch;
}

inline bool NaiveVisible(const Mask& mask, int64_t q_len, int64_t kv_len, int64_t row, int64_t p) {
  const int64_t a = mask.causality == Causality::kTopLeft ? row : kv_len - q_len + row;
  if (mask.causality != Causality::kFull && p > a) return false;
  if (mask.window == 0) return false;
  return mask.window < 0 || p > a - mask.window;
}

// out [q_tokens, num_q_heads, v_dim], lse [q_tokens, num_q_heads].
inline void NaiveAttention(const TestBatch& batch, std::vector<double>* out, std::vector<double>* lse) {
  const AttentionSpec& spec = batch.spec;
  out->assign(batch.OutSize(), std::nan(""));
  lse->assign(batch.LseSize(), std::nan(""));
  const double scale = spec.scale ? *spec.scale : DefaultScale(spec.qk_dim);
  for (const SequenceSpec& s : batch.sequences) {
    for (int64_t i = 0; i < s.q_len; ++i) {
      for (int64_t h = 0; h < spec.num_q_heads; ++h) {
        const int64_t g = h / (spec.num_q_heads / spec.num_kv_heads);
        const size_t row = static_cast<size_t>((s.q_begin + i) * spec.num_q_heads + h);
        const float* const q = batch.q.data() + row * static_cast<size_t>(spec.qk_dim);
        std::vector<double> scores;
        std::vector<int64_t> keys;
        double m = -std::numeric_limits<double>::infinity();
        for (int64_t p = 0; p < s.kv_len; ++p) {
          if (!NaiveVisible(spec.mask, s.q_len, s.kv_len, i, p)) continue;
          const float* const k = batch.k.data() + ((s.kv_begin + p) * spec.num_kv_heads + g) * spec.qk_dim;
          double dot = 0;
          for (int64_t d = 0; d < spec.qk_dim; ++d) dot += static_cast<double>(q[d]) * static_cast<double>(k[d]);
          scores.push_back(dot * scale);
          keys.push_back(p);
          m = std::max(m, dot * scale);
        }
        double l = 0;
        std::vector<double> o(static_cast<size_t>(spec.v_dim), 0.0);
        for (size_t j = 0; j < keys.size(); ++j) {
          const double w = std::exp(scores[j] - m);
          l += w;
          const float* const v = batch.v.data() + ((s.kv_begin + keys[j]) * spec.num_kv_heads + g) * spec.v_dim;
          for (size_t d = 0; d < o.size(); ++d) o[d] += w * static_cast<double>(v[d]);
        }
        for (size_t d = 0; d < o.size(); ++d) (*out)[row * o.size() + d] = keys.empty() ? 0.0 : o[d] / l;
        (*lse)[row] = keys.empty() ? -std::numeric_limits<double>::infinity() : m + std::log(l);
      }
    }
  }
}

// Outputs filled with a NaN of their own, so that what is not written shows.
struct Outputs {
  explicit Outputs(const TestBatch& batch)
      : out(batch.OutSize() + kPadding, Unwritten()), lse(batch.LseSize() + kPadding, Unwritten()) {}

  static float Unwritten() {
    const uint32_t bits = 0x7FDEAD00u;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  static bool IsUnwritten(float value) {
    const float unwritten = Unwritten();
    return std::memcmp(&value, &unwritten, sizeof(value)) == 0;
  }
  bool SameBits(const Outputs& other) const {
    return out.size() == other.out.size() && lse.size() == other.lse.size() &&
           std::memcmp(out.data(), other.out.data(), out.size() * sizeof(float)) == 0 &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
  }
  bool AllUnwritten() const {
    for (const float x : out) {
      if (!IsUnwritten(x)) return false;
    }
    for (const float x : lse) {
      if (!IsUnwritten(x)) return false;
    }
    return true;
  }

  // Behind the last element: a store past the end shows too.
  static constexpr size_t kPadding = 64;
  std::vector<float> out, lse;
};

// Values are at most 1 in size and scores a few tens: 1e-4 is far above what f32 rounding gives and far below any
// mistake.
inline void ExpectNear(const TestBatch& batch, const Outputs& actual) {
  std::vector<double> out, lse;
  NaiveAttention(batch, &out, &lse);
  int64_t num_wrong = 0;
  for (size_t i = 0; i < out.size(); ++i) num_wrong += !(std::abs(out[i] - static_cast<double>(actual.out[i])) <= 1e-4);
  EXPECT_EQ(num_wrong, 0) << "of " << out.size() << " outputs; " << batch.Describe();
  num_wrong = 0;
  for (size_t i = 0; i < lse.size(); ++i) {
    const double got = static_cast<double>(actual.lse[i]);
    num_wrong += std::isinf(lse[i]) ? !(got == lse[i]) : !(std::abs(lse[i] - got) <= 1e-4);
  }
  EXPECT_EQ(num_wrong, 0) << "of " << lse.size() << " lse; " << batch.Describe();
  for (size_t i = out.size(); i < actual.out.size(); ++i) EXPECT_TRUE(Outputs::IsUnwritten(actual.out[i]));
  for (size_t i = lse.size(); i < actual.lse.size(); ++i) EXPECT_TRUE(Outputs::IsUnwritten(actual.lse[i]));
}

// A cache that holds the batch's keys and values, and the batch's sequences with their ids in it.
struct CachedBatch {
  CachedBatch(const TestBatch& batch, int64_t page_tokens, int64_t num_layers = 1) : sequences(batch.sequences) {
    const AttentionSpec& spec = batch.spec;
    KVCacheSpec cache_spec;
    cache_spec.num_layers = num_layers;
    cache_spec.num_kv_heads = spec.num_kv_heads;
    cache_spec.qk_dim = spec.qk_dim;
    cache_spec.v_dim = spec.v_dim;
    cache_spec.page_tokens = page_tokens;
    cache_spec.max_sequences = static_cast<int64_t>(sequences.size()) + 1;
    for (const SequenceSpec& s : sequences) cache_spec.max_tokens += s.kv_len + page_tokens;
    cache_spec.max_tokens += page_tokens;
    Result<KVCache> created = KVCache::Create(cache_spec);
    EXPECT_TRUE(created.ok()) << created.status().c_str();
    cache = std::make_unique<KVCache>(std::move(created).value());
    for (SequenceSpec& s : sequences) {
      s.cache_id = cache->CreateSequence().value();
      EXPECT_TRUE(cache->Reserve(s.cache_id, s.kv_len).ok());
      const float* const k = batch.k.data() + s.kv_begin * spec.num_kv_heads * spec.qk_dim;
      const float* const v = batch.v.data() + s.kv_begin * spec.num_kv_heads * spec.v_dim;
      for (int64_t layer = 0; layer < num_layers; ++layer) {
        const Status status =
            cache->Write(s.cache_id, layer, TokensHeadsDim(k, s.kv_len, spec.num_kv_heads, spec.qk_dim),
                         TokensHeadsDim(v, s.kv_len, spec.num_kv_heads, spec.v_dim));
        EXPECT_TRUE(status.ok()) << status.c_str();
      }
      EXPECT_TRUE(cache->Commit(s.cache_id, s.kv_len).ok());
    }
  }

  AttentionArgs Args(const TestBatch& batch, float* out, float* lse, int64_t layer = 0) const {
    AttentionArgs args;
    args.q = TokensHeadsDim(batch.q.data(), batch.q_tokens, batch.spec.num_q_heads, batch.spec.qk_dim);
    args.cache = cache.get();
    args.layer = layer;
    batch.SetOut(out, lse, &args);
    return args;
  }

  std::vector<SequenceSpec> sequences;
  std::unique_ptr<KVCache> cache;
};

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_EXEC_NAIVE_ATTENTION_H_
