// The cache's quantised types through the operator: attention over codes is, bit for bit, attention over the rows that
// the cache reads back, and those are what the scalar codecs say; whatever the appends, the pages and the kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headlane/kv_cache.h"
#include "operator/check.h"
#include "operator/runner.h"
#include "operator/sequence.h"
#include "operator/ways.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
const std::vector<DType> kQuantized = {DType::kI8, DType::kF8E4M3, DType::kI4};
const std::vector<DType> kAll = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kI4};

struct Filled {
  std::unique_ptr<KVCache> cache;
  SequenceId id;
};

void ExpectOk(const Status& status) { ASSERT_TRUE(status.ok()) << status.c_str(); }

// One sequence with the rows of `s`, written in appends of the lengths given, the last one again and again.
Filled Fill(const Sequence& s, DType k_dtype, DType v_dtype, int64_t page_tokens, const std::vector<int64_t>& appends) {
  const reference::Problem& p = s.problem;
  KVCacheSpec spec;
  spec.num_kv_heads = p.num_kv_heads;
  spec.qk_dim = p.qk_dim;
  spec.v_dim = p.v_dim;
  spec.k_dtype = k_dtype;
  spec.v_dtype = v_dtype;
  spec.values_in_keys = s.values_in_keys;
  spec.page_tokens = page_tokens;
  spec.max_tokens = std::max<int64_t>(p.kv_len, 1);
  Result<KVCache> created = KVCache::Create(spec);
  EXPECT_TRUE(created.ok()) << created.status().c_str();
  Filled filled{std::make_unique<KVCache>(std::move(created).value()), {}};
  filled.id = filled.cache->CreateSequence().value();
  size_t next = 0;
  for (int64_t at = 0; at < p.kv_len;) {
    const int64_t n = std::min(appends[std::min(next++, appends.size() - 1)], p.kv_len - at);
    ExpectOk(filled.cache->Append(
        filled.id, TokensHeadsDim(p.k + at * p.num_kv_heads * p.qk_dim, n, p.num_kv_heads, p.qk_dim),
        s.values_in_keys ? ConstTensorView{}
                         : TokensHeadsDim(p.v + at * p.num_kv_heads * p.v_dim, n, p.num_kv_heads, p.v_dim)));
    at += n;
  }
  return filled;
}

// The same queries over what the cache reads back.
Sequence ReadBack(const Sequence& s, const Filled& filled) {
  Sequence read = s;
  const reference::Problem& p = s.problem;
  read.k = std::make_shared<std::vector<float>>(s.k->size());
  const TensorView k = TokensHeadsDim(read.k->data(), p.kv_len, p.num_kv_heads, p.qk_dim);
  if (s.values_in_keys) {
    ExpectOk(filled.cache->Read(filled.id, 0, 0, k, TensorView{}));
    read.v = read.k;
  } else {
    read.v = std::make_shared<std::vector<float>>(s.v->size());
    ExpectOk(filled.cache->Read(filled.id, 0, 0, k, TokensHeadsDim(read.v->data(), p.kv_len, p.num_kv_heads, p.v_dim)));
  }
  read.problem.k = read.k->data();
  read.problem.v = read.v->data();
  return read;
}

Output RunOn(const Filled& filled, const Sequence& s, int workers = 1) {
  const reference::Problem& p = s.problem;
  SequenceSpec spec;
  spec.q_len = p.q_len;
  spec.kv_len = p.kv_len;
  spec.cache_id = filled.id;
  const size_t rows = static_cast<size_t>(p.q_len * p.num_q_heads);
  Output output{std::vector<float>(rows * static_cast<size_t>(p.v_dim)), std::vector<float>(rows)};
  AttentionArgs args;
  args.q = TokensHeadsDim(p.q, p.q_len, p.num_q_heads, p.qk_dim);
  args.out = TokensHeadsDim(output.out.data(), p.q_len, p.num_q_heads, p.v_dim);
  args.lse = {output.lse.data(), 0, p.num_q_heads, 1};
  args.cache = filled.cache.get();
  AttentionSpec attention = SpecOf(p);
  attention.values_in_keys = s.values_in_keys;
  PlanOptions options;
  options.num_workers = workers;
  const auto plan = PlanAttention(attention, *filled.cache, std::vector<SequenceSpec>{spec}, options);
  EXPECT_TRUE(plan.ok()) << plan.status().c_str();
  Result<Workspace> workspace = Workspace::Create(*plan);
  EXPECT_TRUE(workspace.ok());
  ExpectOk(RunAttention(*plan, args, *workspace, SerialExecutor()));
  return output;
}

// What both promises come to for one set of rows and two types.
void CheckSame(const Sequence& s, DType k_dtype, DType v_dtype, int64_t page_tokens,
               const std::vector<int64_t>& appends) {
  SCOPED_TRACE(Describe(s.problem) + " k " + DTypeName(k_dtype) + " v " + DTypeName(v_dtype) + " pages of " +
               std::to_string(page_tokens));
  const Filled filled = Fill(s, k_dtype, v_dtype, page_tokens, appends);
  const Sequence read = ReadBack(s, filled);
  std::vector<float> k = *s.k, v = *s.v;
  RoundRows(k, k_dtype, s.problem.qk_dim);
  ASSERT_TRUE(SameBits(k, *read.k)) << "keys read back";
  if (!s.values_in_keys) {
    RoundRows(v, v_dtype, s.problem.v_dim);
    ASSERT_TRUE(SameBits(v, *read.v)) << "values read back";
  }
  const Output output = RunOn(filled, s);
  RunOptions f32;
  f32.cache = true;
  f32.page_tokens = page_tokens == 16 ? 32 : 16;
  ASSERT_TRUE(SameOutput(RunLibrary(read, f32), output));
  if (ActiveTarget().has_fma && s.problem.kv_len * s.problem.q_len < 3000) {
    ASSERT_TRUE(IsCanonical(read.problem, output));
  }
}

TEST(Quantized, AttentionIsThatOfTheRowsReadBack) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    Random random(1);
    for (DType k_dtype : kAll) {
      for (DType v_dtype : kAll) {
        if (!IsQuantized(k_dtype) && !IsQuantized(v_dtype)) continue;
        for (int64_t q_len : {1, 2, 3, 7, 40}) {
          const Heads heads = random.Pick<Heads>({{4, 2, 64, 64}, {3, 3, 40, 24}, {8, 1, 33, 80}, {6, 2, 128, 96}});
          Sight sight;
          if (random.OneIn(3)) sight.window = random.Int(1, 200);
          const int64_t kv_len = q_len + random.Pick<int64_t>({0, 5, 100, 300, 1100});
          const Sequence s = RandomSequence(random, heads, sight, q_len, kv_len);
          CheckSame(s, k_dtype, v_dtype, 16 * random.Int(1, 16), {random.Int(1, 50), 1, 1, random.Int(1, 500)});
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Quantized, EveryNumberOfRows) {
  Random random(2);
  for (DType dtype : kQuantized) {
    for (int64_t rows = 1; rows <= 40; ++rows) {
      const int64_t group = rows % 4 == 0 ? 4 : 1;
      CheckSame(RandomSequence(random, {2 * group, 2, 48, 64}, {}, rows / group, rows / group + 150), dtype, dtype, 64,
                {1000});
      if (HasFailure()) return;
    }
  }
}

TEST(Quantized, F43HeadSizes) {
  Random random(43);
  for (DType dtype : kQuantized) {
    for (int64_t qk_dim : {1, 3, 46, 80, 100, 112, 128, 192, 256, 257, 576}) {
      for (int64_t v_dim : {128, 512, 1, 80}) {
        for (int64_t kv_len : {1, 33}) {
          for (int64_t q_len : {1, 30}) {
            CheckSame(RandomSequence(random, {4, 2, qk_dim, v_dim}, {}, q_len, kv_len), dtype, dtype, 16, {5, 100});
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Quantized, ValuesInKeys) {
  Random random(4);
  for (DType dtype : kQuantized) {
    for (const Heads& heads : {Heads{16, 1, 576, 512}, Heads{4, 2, 40, 40}, Heads{6, 2, 33, 20}}) {
      for (int64_t q_len : {1, 5}) {
        CheckSame(WithValuesInKeys(RandomSequence(random, heads, {}, q_len, 70)), dtype, DType::kF32, 32, {3, 1, 100});
      }
    }
  }
}

// A row of zeros, constant rows, huge and tiny ones (F41): no NaN anywhere, zeros are exactly zeros.
TEST(Quantized, F41ZeroConstantHugeAndTinyRows) {
  Random random(41);
  for (DType dtype : kQuantized) {
    for (float size : {0.0f, 1.0f, 1e-6f, 6e4f * 127, 1e38f, 1e-38f, 1e-44f}) {
      Sequence s = RandomSequence(random, {2, 1, 40, 48}, {}, 1, 3);
      std::fill(s.k->begin(), s.k->begin() + 40, 0.0f);  // a key of zeros
      for (size_t i = 0; i < 3 * 48; ++i) (*s.v)[i] = i < 48 ? 0.0f : size * (i < 96 ? 1.0f : (*s.v)[i]);
      for (size_t i = 3; i < 3 * 48; i += 48) (*s.v)[i] = 0.0f;  // a feature that is 0 in every value
      CheckSame(s, dtype, dtype, 16, {1});
      const Output output = RunOn(Fill(s, dtype, dtype, 16, {3}), s);
      for (float x : output.out) EXPECT_TRUE(std::isfinite(x)) << DTypeName(dtype) << " " << size;
      EXPECT_EQ(output.out[3], 0.0f);
      EXPECT_EQ(output.out[48 + 3], 0.0f);
      s.k->assign(s.k->size(), size);  // scores that pass f32 are the caller's, not the codec's
      if (size < 1e30f) CheckSame(s, dtype, dtype, 16, {2, 1});
    }
  }
}

// A value that is not finite makes its own row not a number where it is visible, and changes nothing where it is not.
TEST(Quantized, NonFiniteRows) {
  Random random(5);
  for (DType dtype : kQuantized) {
    for (float special : {kNaN, kInf, -kInf}) {
      for (bool in_k : {false, true}) {
        for (int64_t q_len : {1, 12}) {
          Sequence s = RandomSequence(random, {2, 1, 40, 40}, {}, q_len, 90);
          const Sequence clean = s;
          std::vector<float> data = in_k ? *s.k : *s.v;
          data[static_cast<size_t>(85 * 40 + 7)] = special;  // rows of query 85 - (90 - q_len) and later see it
          auto& rows = in_k ? s.k : s.v;
          rows = std::make_shared<std::vector<float>>(data);
          s.problem.k = s.k->data();
          s.problem.v = s.v->data();
          CheckSame(s, dtype, dtype, 32, {70, 3});
          const Output expected = RunOn(Fill(clean, dtype, dtype, 32, {90}), clean);
          const Output output = RunOn(Fill(s, dtype, dtype, 32, {90}), s);
          for (int64_t row = 0; row < q_len; ++row) {
            const bool sees = row + 90 - q_len >= 85;
            for (size_t i = 0; i < 2 * 40; ++i) {
              const size_t at = static_cast<size_t>(row) * 80 + i;
              if (!sees) {
                ASSERT_TRUE(SameBits(expected.out[at], output.out[at])) << row;
              } else if (in_k || i % 40 == 7) {
                ASSERT_TRUE(std::isnan(output.out[at])) << row;
              }
            }
          }
        }
      }
    }
  }
}

// One key, K = 4 codes of 0.5, V = 3 codes of 2 (F45), decoded and prefilled; then the batch grows, and old tokens keep
// their scales.
TEST(Quantized, F45ScalesOfTheirOwn) {
  for (DType dtype : kQuantized) {
    for (int64_t q_len : {1, 9}) {
      Sequence s =
          RandomSequence(*std::make_unique<Random>(45), {1, 1, 2, 2}, {.causal = reference::Causal::kNo}, q_len, 1);
      // The other number fixes the scale: the largest code times 0.5 and times 2.
      const float largest = dtype == DType::kI8 ? 127.0f : dtype == DType::kI4 ? -8.0f : 448.0f;
      *s.k = {2.0f, largest * 0.5f};
      *s.v = {6.0f, largest * 2.0f};
      const Filled filled = Fill(s, dtype, dtype, 16, {1});
      const Sequence read = ReadBack(s, filled);
      EXPECT_EQ((*read.k)[0], 2.0f);
      const Output output = RunOn(filled, s);
      for (int64_t row = 0; row < q_len; ++row) EXPECT_EQ(output.out[static_cast<size_t>(2 * row)], 6.0f);
    }
    Random random(46);
    Sequence four = RandomSequence(random, {1, 1, 16, 16}, {}, 1, 4);
    for (size_t i = 0; i < 64; ++i) (*four.v)[i] *= static_cast<float>(i / 16 + 1);
    Sequence one = four;
    one.problem.kv_len = 1;
    one.k = std::make_shared<std::vector<float>>(four.k->begin(), four.k->begin() + 16);
    one.v = std::make_shared<std::vector<float>>(four.v->begin(), four.v->begin() + 16);
    one.problem.k = one.k->data();
    one.problem.v = one.v->data();
    const Sequence before = ReadBack(one, Fill(one, dtype, dtype, 16, {1}));
    const Sequence after = ReadBack(four, Fill(four, dtype, dtype, 16, {1}));
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(SameBits((*before.k)[i], (*after.k)[i]));
      EXPECT_TRUE(SameBits((*before.v)[i], (*after.v)[i]));
    }
  }
}

// Rows that were read back are stored as they were: the numbers of a quantised type are its own.
TEST(Quantized, StoringWhatWasReadChangesNothing) {
  Random random(7);
  for (DType dtype : kQuantized) {
    const Sequence s = RandomSequence(random, {2, 2, 70, 33}, {}, 1, 50);
    const Sequence once = ReadBack(s, Fill(s, dtype, dtype, 16, {50}));
    const Sequence twice = ReadBack(once, Fill(once, dtype, dtype, 48, {7, 1}));
    EXPECT_TRUE(SameBits(*once.k, *twice.k));
    EXPECT_TRUE(SameBits(*once.v, *twice.v));
  }
}

TEST(Quantized, TensorsOfTheseTypesAreRefused) {
  std::vector<float> memory(64);
  for (DType dtype : kQuantized) {
    TensorView good = TokensHeadsDim(memory.data(), 1, 1, 8), bad = good;
    bad.dtype = dtype;
    AttentionSpec spec;
    spec.num_q_heads = spec.num_kv_heads = 1;
    spec.qk_dim = spec.v_dim = 8;
    SequenceSpec sequence;
    sequence.q_len = sequence.kv_len = 1;
    for (int which = 0; which < 4; ++which) {
      std::vector<float> out(8);
      AttentionArgs args;
      args.q = which == 0 ? bad : good;
      args.k = which == 1 ? bad : good;
      args.v = which == 2 ? bad : good;
      args.out = which == 3 ? bad : TokensHeadsDim(out.data(), 1, 1, 8);
      const Status status = Attention(spec, std::vector<SequenceSpec>{sequence}, args, SerialExecutor());
      EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.c_str();
      EXPECT_NE(std::string(status.c_str()).find(DTypeName(dtype)), std::string::npos) << status.c_str();
    }
    Result<KVCache> cache = KVCache::Create(
        {.num_kv_heads = 1, .qk_dim = 8, .v_dim = 8, .k_dtype = dtype, .v_dtype = dtype, .max_tokens = 16});
    ASSERT_TRUE(cache.ok());
    EXPECT_EQ(cache->Append(cache->CreateSequence().value(), bad, good).code(), StatusCode::kUnsupported);
  }
}

}  // namespace
}  // namespace headlane::testing
