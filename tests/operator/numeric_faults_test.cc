// Faults that other attention operators shipped, as tests: values, heads, splits, shapes and strides. See
// mask_faults_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "operator/check.h"
#include "operator/runner.h"
#include "support/guarded_buffer.h"

namespace headlane::testing {
namespace {

using reference::Causal;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// One query q = 1 of one feature and scale 1: the scores are the keys.
Sequence ScoresSequence(const std::vector<float>& scores, const std::vector<float>& values) {
  Random random(1);
  Sequence s = RandomSequence(random, {1, 1, 1, 1}, {Causal::kNo, -1}, 1, static_cast<int64_t>(scores.size()));
  (*s.q)[0] = 1.0f;
  *s.k = scores;
  *s.v = values;
  s.problem.k = s.k->data();
  s.problem.v = s.v->data();
  s.problem.scale = 1.0f;
  return s;
}

Output RunEveryWay(const Sequence& sequence) {
  static OpenMPExecutor two(2);
  const Output output = RunLibrary(sequence);
  RunOptions other;
  other.executor = &two;
  other.plan_workers = 8;
  EXPECT_TRUE(SameOutput(output, RunLibrary(sequence, other)));
  if (sequence.problem.qk_dim > 0 && sequence.problem.v_dim > 0) {  // a cache of nothing is refused
    other.cache = true;
    EXPECT_TRUE(SameOutput(output, RunLibrary(sequence, other)));
    other.executor = nullptr;
    EXPECT_TRUE(SameOutput(output, RunLibrary(sequence, other)));
  }
  if (ActiveTarget().has_fma) {
    EXPECT_TRUE(IsCanonical(sequence.problem, output));
  }
  return output;
}

TEST(NumericFaults, F13VeryNegativeRowsAreNotZero) {
  Output output = RunEveryWay(ScoresSequence({-60000.0f, -60001.0f}, {1.0f, 3.0f}));
  EXPECT_NEAR(output.out[0], 1.537882843, 1e-6);
  EXPECT_NEAR(output.lse[0], -59999.6867383, 4e-3);
  output = RunEveryWay(ScoresSequence({-1e30f, -1e30f}, {1.0f, 4.0f}));
  EXPECT_EQ(output.out[0], 2.5f);
  EXPECT_EQ(output.lse[0], -1e30f);
  output = RunEveryWay(ScoresSequence({1e30f, 0.0f}, {7.0f, 3.0f}));
  EXPECT_EQ(output.out[0], 7.0f);
  output = RunEveryWay(ScoresSequence({-3e38f, 3e38f, -3e38f}, {7.0f, 3.0f, 9.0f}));
  EXPECT_EQ(output.out[0], 3.0f);
}

// The contract's C7, and a computed -inf.
TEST(NumericFaults, NonFiniteScores) {
  for (float bad : {kNaN, kInf}) {
    for (size_t length : {size_t{1}, size_t{2}, size_t{20}, size_t{200}, size_t{1100}}) {
      for (size_t where : {size_t{0}, length / 2, length - 1}) {
        std::vector<float> scores(length, 0.5f);
        scores[where] = bad;
        const Output output = RunEveryWay(ScoresSequence(scores, std::vector<float>(length, 1.0f)));
        EXPECT_TRUE(SameBits(std::bit_cast<float>(0x7FC00000u), output.out[0]))
            << bad << " at " << where << " of " << length;
        EXPECT_TRUE(SameBits(std::bit_cast<float>(0x7FC00000u), output.lse[0]));
      }
    }
  }
  // -inf is as good as hidden, even with a NaN value behind it.
  Output output = RunEveryWay(ScoresSequence({-kInf, 2.0f, -kInf}, {kNaN, 5.0f, kInf}));
  EXPECT_EQ(output.out[0], 5.0f);
  EXPECT_EQ(output.lse[0], 2.0f);
  output = RunEveryWay(ScoresSequence({-kInf, -kInf}, {kNaN, 1.0f}));
  EXPECT_TRUE(SameBits(0.0f, output.out[0]));
  EXPECT_EQ(output.lse[0], -kInf);
}

TEST(NumericFaults, ValuesOfAllKinds) {
  // A visible infinite value is infinite or NaN in its own feature, and nowhere else.
  Random random(8);
  Sequence s = RandomSequence(random, {2, 1, 4, 18}, {Causal::kNo, -1}, 3, 40);
  (*s.v)[5 * 18 + 3] = kInf;
  (*s.v)[9 * 18 + 17] = kNaN;
  const Output output = RunEveryWay(s);
  for (size_t i = 0; i < output.out.size(); ++i)
    EXPECT_EQ(std::isfinite(output.out[i]), i % 18 != 3 && i % 18 != 17) << i;
  // -0 is never stored; large values may sum up, subnormal ones must not vanish.
  EXPECT_TRUE(SameBits(0.0f, RunEveryWay(ScoresSequence({0.0f, 0.0f}, {-0.0f, -0.0f})).out[0]));
  EXPECT_TRUE(SameBits(0.0f, RunEveryWay(ScoresSequence({2.0f, 0.0f}, {0.0f, -1e-45f})).out[0]));  // the sum is -0
  EXPECT_EQ(RunEveryWay(ScoresSequence({1.0f}, {3e38f})).out[0], 3e38f);
  EXPECT_EQ(RunEveryWay(ScoresSequence({1.0f, 1.0f}, {1e-40f, 1e-40f})).out[0], 1e-40f);
}

TEST(NumericFaults, F19GroupedHeads) {
  const auto values_of_heads = [](int64_t q_heads, int64_t kv_heads, int64_t kv_len) {
    Sequence s = PositionSequence({Causal::kNo, -1}, 1, kv_len, {q_heads, kv_heads, 1, 1});
    for (size_t i = 0; i < s.v->size(); ++i) (*s.v)[i] = static_cast<float>(static_cast<int64_t>(i) % kv_heads);
    return RunEveryWay(s).out;
  };
  EXPECT_EQ(values_of_heads(4, 2, 1), (std::vector<float>{0.0f, 0.0f, 1.0f, 1.0f}));
  std::vector<float> expected;
  for (int head = 0; head < 28; ++head) expected.push_back(static_cast<float>(head / 7));
  EXPECT_EQ(values_of_heads(28, 4, 1), expected);
  EXPECT_EQ(values_of_heads(28, 4, 40), expected);

  AttentionSpec spec;
  spec.num_q_heads = 9;
  spec.num_kv_heads = 7;
  spec.qk_dim = spec.v_dim = 4;
  const Status status = PlanAttention(spec, std::vector<SequenceSpec>{}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("num_q_heads"), std::string_view::npos) << status.c_str();
  EXPECT_NE(status.message().find('9'), std::string_view::npos) << status.c_str();
  EXPECT_NE(status.message().find('7'), std::string_view::npos) << status.c_str();
}

TEST(NumericFaults, F21LseIsNatural) {
  const auto lse = [](const std::vector<float>& scores) {
    return RunEveryWay(ScoresSequence(scores, std::vector<float>(scores.size(), 1.0f))).lse[0];
  };
  EXPECT_NEAR(lse({0.0f, 1.0f}), 1.313261688, 1e-6);
  EXPECT_NEAR(lse({2.0f, 3.0f}), 3.313261688, 1e-6);
  EXPECT_NEAR(lse({0.0f, 1.0f, 2.0f, 3.0f}), 3.440189699, 1e-6);
  EXPECT_NEAR(RunEveryWay(ScoresSequence({0.0f, 1.0f, 2.0f, 3.0f}, {0.0f, 1.0f, 2.0f, 3.0f})).out[0], 2.492652735,
              1e-6);
  EXPECT_NEAR(lse(std::vector<float>(4096, 0.0f)), std::log(4096.0), 1e-6);
}

// More workers than there are keys, tiles, blocks or splits; the runner's workspaces are full of NaN.
TEST(NumericFaults, F23SplitsWithoutKeys) {
  for (const auto& [kv_len, window] : std::vector<std::pair<int64_t, int64_t>>{
           {1, -1}, {17, -1}, {64, 3}, {0, -1}, {1025, -1}, {5000, 3}, {5000, 1500}, {8193, -1}}) {
    const Sequence s = PositionSequence({Causal::kBottomRight, window}, 1, kv_len, {2, 1, 1, 1});
    SCOPED_TRACE(Describe(s.problem));
    const Output one = RunLibrary(s);
    EXPECT_TRUE(NearOracle(s.problem, one));
    // Without FMA the bound is wider than what one of 5000 positions makes.
    if (ActiveTarget().has_fma) ExpectShiftedOracleDisagrees(s.problem, one);
    if (kv_len == 0) {
      EXPECT_EQ(one.out, (std::vector<float>{0.0f, 0.0f}));
      EXPECT_EQ(one.lse, (std::vector<float>{-kInf, -kInf}));
    }
    for (int workers : {2, 4, 8, 16, 64}) {
      OpenMPExecutor executor(workers > 8 ? 3 : workers);
      RunOptions options;
      options.executor = &executor;
      options.plan_workers = workers;
      for (bool cache : {false, true}) {
        options.cache = cache;
        EXPECT_TRUE(SameOutput(one, RunLibrary(s, options))) << workers << " workers, cache " << cache;
      }
    }
  }
}

TEST(NumericFaults, F17AndF25MixedAndEmptySequences) {
  Random random(17);
  using Lengths = std::vector<std::pair<int64_t, int64_t>>;  // q_len, kv_len
  for (const Lengths& lengths : {Lengths{{1, 5}, {3, 3}, {2, 6}}, Lengths{{0, 0}, {1, 3}, {0, 0}, {1, 5}},
                                 Lengths{{0, 0}, {0, 0}, {0, 0}, {1, 1}}, Lengths{{1, 4}, {0, 0}}, Lengths{{2, 0}},
                                 Lengths{{0, 0}, {0, 0}}, Lengths{{0, 7}, {2, 0}, {1, 9}}}) {
    std::vector<Sequence> sequences;
    std::vector<Output> alone;
    for (const auto& [q_len, kv_len] : lengths) {
      sequences.push_back(RandomSequence(random, {9, 3, 64, 64}, {}, q_len, kv_len));
      alone.push_back(RunLibrary(sequences.back()));
      EXPECT_TRUE(NearOracle(sequences.back().problem, alone.back()));
    }
    std::vector<size_t> order(sequences.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    do {
      std::vector<Sequence> permuted;
      for (size_t i : order) permuted.push_back(sequences[i]);
      for (bool cache : {false, true}) {
        for (bool padded : {false, true}) {
          RunOptions options;
          options.cache = cache;
          options.padded = padded;
          options.plan_workers = 3;
          const std::vector<Output> outputs = RunLibrary(permuted, options);
          for (size_t i = 0; i < order.size(); ++i)
            EXPECT_TRUE(SameOutput(alone[order[i]], outputs[i])) << "cache " << cache << " padded " << padded;
        }
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

// The list of sequences itself ends at a guard page.
TEST(NumericFaults, F25NothingBehindTheLastSequenceIsRead) {
  for (size_t n = 0; n <= 5; ++n) {
    const GuardedArray<SequenceSpec> specs(n);
    for (size_t i = 0; i < n; ++i) {
      specs[i] = SequenceSpec{};
      specs[i].q_begin = static_cast<int64_t>(i);
      specs[i].q_len = i % 2 == 0 ? 0 : 1;
      specs[i].kv_len = specs[i].q_len * 3;
      specs[i].kv_begin = static_cast<int64_t>(i) * 3;
    }
    const std::vector<float> data(256, 0.25f);
    std::vector<float> out(64, 7.0f);
    AttentionSpec spec;
    spec.num_q_heads = spec.num_kv_heads = 2;
    spec.qk_dim = spec.v_dim = 4;
    AttentionArgs args;
    args.q = TokensHeadsDim(data.data(), 5, 2, 4);
    args.k = TokensHeadsDim(data.data(), 15, 2, 4);
    args.v = args.k;
    args.out = TokensHeadsDim(out.data(), 5, 2, 4);
    const Status status = Attention(spec, {specs.data(), n}, args, SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.c_str();
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(out[i * 8], i < n && i % 2 == 1 ? 0.25f : 7.0f);
  }
}

TEST(NumericFaults, F27ZeroInEveryDimension) {
  const auto run = [](const Heads& heads, int64_t q_len, int64_t kv_len) {
    Random random(27);
    const Sequence s = RandomSequence(random, heads, {}, q_len, kv_len);
    SCOPED_TRACE(Describe(s.problem));
    const Output output = RunEveryWay(s);
    EXPECT_TRUE(NearOracle(s.problem, output));
    return output;
  };
  run({2, 2, 4, 4}, 0, 5);
  run({2, 2, 4, 4}, 0, 0);
  EXPECT_EQ(run({2, 2, 4, 4}, 1, 0).lse[0], -kInf);
  EXPECT_EQ(run({7, 7, 7, 0}, 9, 9).out.size(), 0u);   // no features: lse all the same
  EXPECT_EQ(run({2, 1, 0, 3}, 4, 4).out.size(), 24u);  // no score features: the mean
  run({2, 1, 0, 0}, 4, 4);
  run({7, 7, 7, 7}, 0, 7);

  // No heads at all, and no sequences at all.
  AttentionSpec spec;
  spec.qk_dim = spec.v_dim = 4;
  EXPECT_TRUE(Attention(spec, std::vector<SequenceSpec>{}, {}, SerialExecutor()).ok());
  SequenceSpec sequence;
  sequence.q_len = sequence.kv_len = 3;
  const float none = 0.0f;
  float out = 1.0f;
  AttentionArgs args;
  args.q = TokensHeadsDim(&none, 3, 0, 4);
  args.k = args.v = args.q;
  args.out = TokensHeadsDim(&out, 3, 0, 4);
  const Status no_heads = Attention(spec, std::vector<SequenceSpec>{sequence}, args, SerialExecutor());
  EXPECT_TRUE(no_heads.ok()) << no_heads.c_str();
  spec.num_q_heads = spec.num_kv_heads = 2;
  EXPECT_TRUE(Attention(spec, std::vector<SequenceSpec>{}, {}, SerialExecutor()).ok());
  EXPECT_EQ(out, 1.0f);
}

// Copies of dense data in other memory layouts. Element (t, h, d) stands at data + offset(t, h, d).
struct Strides {
  int64_t token, head, dim;
};

TEST(NumericFaults, F29AnyStridesAndAlignment) {
  Random random(29);
  for (const auto& [qk_dim, v_dim] : std::vector<std::pair<int64_t, int64_t>>{{8, 8}, {46, 46}, {17, 33}, {64, 16}}) {
    const int64_t tokens = 21;
    const Heads heads{4, 2, qk_dim, v_dim};
    const Sequence dense = RandomSequence(random, heads, {}, tokens, tokens);
    const Output expected = RunLibrary(dense);
    for (int layout = 0; layout < 6; ++layout) {
      SCOPED_TRACE(::testing::Message() << "dims " << qk_dim << "/" << v_dim << " layout " << layout);
      // Memory that ends with the last element, or begins one float late.
      const auto strides_of = [&](int64_t num_heads, int64_t dim) -> Strides {
        switch (layout) {
          case 0:  // [token][head][dim]
            return {num_heads * dim, dim, 1};
          case 1:  // [head][token][dim]
            return {dim, tokens * dim, 1};
          case 2:  // transposed: innermost stride = tokens
            return {1, dim * tokens, tokens};
          case 3:  // rows with a gap
            return {num_heads * (dim + 3) + 1, dim + 3, 1};
          case 4:  // every third element
            return {num_heads * dim * 3, dim * 3, 3};
          default:  // tokens backwards
            return {-num_heads * dim, dim, 1};
        }
      };
      struct Placed {
        GuardedFloats memory;
        TensorView view;
      };
      const auto place = [&](const float* rows, int64_t num_heads, int64_t dim) {
        const Strides s = strides_of(num_heads, dim);
        const int64_t span = (tokens - 1) * std::abs(s.token) + (num_heads - 1) * s.head + (dim - 1) * s.dim + 1;
        const int64_t late = layout == 3 ? 1 : 0;
        GuardedFloats memory(static_cast<size_t>(span + late));
        float* base = memory.data() + late + (s.token < 0 ? -s.token * (tokens - 1) : 0);
        for (int64_t t = 0; rows != nullptr && t < tokens; ++t) {
          for (int64_t h = 0; h < num_heads; ++h) {
            for (int64_t d = 0; d < dim; ++d)
              base[t * s.token + h * s.head + d * s.dim] = rows[(t * num_heads + h) * dim + d];
          }
        }
        TensorView view{base, DType::kF32, 1, tokens, num_heads, dim, 0, s.token, s.head, s.dim};
        return Placed{std::move(memory), view};
      };
      const auto constant = [](const TensorView& v) {
        return ConstTensorView{v.data, v.dtype,        v.num_batch,    v.num_tokens,  v.num_heads,
                               v.dim,  v.batch_stride, v.token_stride, v.head_stride, v.dim_stride};
      };
      const Placed q = place(dense.problem.q, 4, qk_dim);
      const Placed k = place(dense.problem.k, 2, qk_dim);
      const Placed v = place(dense.problem.v, 2, v_dim);
      const Placed out = place(nullptr, 4, v_dim);
      const Placed lse = place(nullptr, 4, 1);
      SequenceSpec spec;
      spec.q_len = spec.kv_len = tokens;
      AttentionArgs args;
      args.q = constant(q.view);
      args.k = constant(k.view);
      args.v = constant(v.view);
      args.out = out.view;
      args.lse = {static_cast<float*>(lse.view.data), 0, lse.view.token_stride, lse.view.head_stride};
      const Status status = Attention(SpecOf(dense.problem), std::vector<SequenceSpec>{spec}, args, SerialExecutor());
      ASSERT_TRUE(status.ok()) << status.c_str();
      int64_t written = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < 4; ++h) {
          for (int64_t d = 0; d < v_dim; ++d, ++written) {
            const float x = static_cast<float*>(
                out.view.data)[t * out.view.token_stride + h * out.view.head_stride + d * out.view.dim_stride];
            ASSERT_TRUE(SameBits(expected.out[static_cast<size_t>((t * 4 + h) * v_dim + d)], x))
                << t << " " << h << " " << d;
          }
        }
      }
      int64_t touched = 0;
      for (size_t i = 0; i < out.memory.size(); ++i) touched += std::isnan(out.memory[i]) ? 0 : 1;
      EXPECT_EQ(touched, written) << "something between the elements was written";
    }
  }
}

// An output whose rows are the same memory must be refused, not raced on.
TEST(NumericFaults, F29OverlappingOutputIsRefused) {
  const std::vector<float> data(64, 1.0f);
  std::vector<float> out(64, 7.0f);
  SequenceSpec sequence;
  sequence.q_len = sequence.kv_len = 2;
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 2;
  spec.qk_dim = spec.v_dim = 4;
  AttentionArgs args;
  args.q = args.k = args.v = TokensHeadsDim(data.data(), 2, 2, 4);
  args.out = TokensHeadsDim(out.data(), 2, 2, 4);
  args.out.head_stride = 0;
  const Status status = Attention(spec, std::vector<SequenceSpec>{sequence}, args, SerialExecutor());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.c_str();
  for (float x : out) EXPECT_EQ(x, 7.0f);
}

TEST(NumericFaults, F43HeadSizes) {
  Random random(43);
  for (int64_t qk_dim : {1, 3, 46, 80, 100, 112, 128, 192, 256, 257, 576}) {
    for (int64_t v_dim : {1, 128, 512}) {
      for (int64_t kv_len : {1, 33}) {
        for (int64_t q_len : {1, 30}) {
          const Sequence s = RandomSequence(random, {4, 2, qk_dim, v_dim}, {}, q_len, kv_len);
          ASSERT_TRUE(NearOracle(s.problem, RunEveryWay(s))) << Describe(s.problem);
        }
      }
    }
  }
}

TEST(NumericFaults, F51SoftmaxAtTheEndOfExp) {
  for (float low : {-87.3f, -87.33654f, -87.4f, -88.0f, -103.2f, -104.0f, -1e4f, -3e38f}) {
    const Sequence s = ScoresSequence({0.0f, low}, {1.0f, 1e30f});
    const Output output = RunEveryWay(s);
    const double weight = std::exp(static_cast<double>(low));
    EXPECT_NEAR(output.out[0], (1.0 + 1e30 * (weight >= 0x1p-126 ? weight : 0.0)) / (1.0 + weight), 1e-3) << low;
    EXPECT_EQ(output.lse[0], 0.0f);
  }
  // 4095 keys whose weights are around the smallest normal number, beside one of weight 1.
  std::vector<float> scores;
  for (int i = 0; i < 4095; ++i) scores.push_back(-95.0f + 5.0f * static_cast<float>(i) / 4095.0f);
  scores.push_back(0.0f);
  std::vector<float> values(4096, 3.0f);
  values.back() = 2.0f;
  const Output output = RunEveryWay(ScoresSequence(scores, values));
  EXPECT_EQ(output.out[0], 2.0f);
  EXPECT_EQ(output.lse[0], 0.0f);
  // All -inf but one, and a row of equal scores of any size.
  EXPECT_EQ(RunEveryWay(ScoresSequence(std::vector<float>(100, -3e38f), std::vector<float>(100, 5.0f))).out[0], 5.0f);
}

}  // namespace
}  // namespace headlane::testing
