// The reference against numbers that were worked out by hand or elsewhere, and its two programs against each other,
// modifiers included that the library does not offer yet: what the operator will be compared with must itself be right.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/canonical.h"
#include "reference/error_bound.h"
#include "reference/oracle.h"
#include "support/bits.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

using reference::CanonicalAttention;
using reference::CanonicalResult;
using reference::Causal;
using reference::DeriveErrorBound;
using reference::ErrorBound;
using reference::Oracle;
using reference::OracleResult;
using reference::OutType;
using reference::Problem;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// q = 0 (or as given), one feature, v[j] = j.
struct Small {
  Small(int64_t q_len, int64_t kv_len)
      : q(static_cast<size_t>(q_len)), k(static_cast<size_t>(kv_len)), v(static_cast<size_t>(kv_len)) {
    for (size_t j = 0; j < v.size(); ++j) v[j] = static_cast<float>(j);
    problem.q_len = q_len;
    problem.kv_len = kv_len;
    problem.q = q.data();
    problem.k = k.data();
    problem.v = v.data();
  }
  std::vector<float> q, k, v;
  Problem problem;
};

// Both programs, which must agree within the bound.
OracleResult Both(const Problem& problem) {
  const OracleResult oracle = Oracle(problem);
  const CanonicalResult canonical = CanonicalAttention(problem);
  const ErrorBound bound = DeriveErrorBound(problem, oracle);
  EXPECT_TRUE(Within(oracle.out.data(), canonical.out.data(), bound.out.data(), bound.out.size()));
  EXPECT_TRUE(Within(oracle.lse.data(), canonical.lse.data(), bound.lse.data(), bound.lse.size()));
  return oracle;
}

TEST(Reference, WeightsSumToOneAndAreThoseOfTheTextbook) {
  // Q = [[1, 1], [0, 2]], K = I, V = 10 I, scale 1 / sqrt 2.
  const std::vector<float> q = {1, 1, 0, 2}, k = {1, 0, 0, 1}, v = {10, 0, 0, 10};
  Problem p;
  p.qk_dim = p.v_dim = 2;
  p.q_len = p.kv_len = 2;
  p.q = q.data();
  p.k = k.data();
  p.v = v.data();
  p.scale = 0x1.6a09e6p-1f;
  p.causal = Causal::kNo;
  const OracleResult r = Both(p);
  EXPECT_NEAR(r.out[0], 5.0, 1e-6);
  EXPECT_NEAR(r.out[2], 1.956, 5e-4);
  EXPECT_NEAR(r.out[3], 8.044, 5e-4);
  for (int row = 0; row < 2; ++row) EXPECT_NEAR(r.weights[row * 2] + r.weights[row * 2 + 1], 1.0, 1e-15);
}

TEST(Reference, CausalAndWindowMeans) {
  Small s(2, 5);
  EXPECT_EQ(Both(s.problem).out, (std::vector<double>{1.5, 2.0}));
  s.problem.causal = Causal::kTopLeft;
  EXPECT_EQ(Both(s.problem).out, (std::vector<double>{0.0, 0.5}));
  s.problem.causal = Causal::kNo;
  EXPECT_EQ(Both(s.problem).out, (std::vector<double>{2.0, 2.0}));
  s.problem.causal = Causal::kBottomRight;
  s.problem.window = 2;
  EXPECT_EQ(Both(s.problem).out, (std::vector<double>{2.5, 3.5}));
  s.problem.shift_rows = 1;
  EXPECT_EQ(Both(s.problem).out, (std::vector<double>{3.5, 4.0}));
}

TEST(Reference, HiddenKeysAreDroppedBeforeTheSoftcap) {
  Small s(1, 2);
  s.v = {1.0f, 1000.0f};
  const uint8_t mask[] = {1, 0};
  s.problem.mask = mask;
  s.problem.softcap = 1.0f;
  EXPECT_EQ(Both(s.problem).out[0], 1.0);
  // The same as -inf in a bias, and as NaN that nobody may read.
  const float bias[] = {0.0f, -kInf};
  s.problem.mask = nullptr;
  s.problem.bias = bias;
  EXPECT_EQ(Both(s.problem).out[0], 1.0);
  s.problem.bias = nullptr;
  s.problem.mask = mask;
  s.k[1] = s.v[1] = kNaN;
  EXPECT_EQ(Both(s.problem).out[0], 1.0);
}

TEST(Reference, SoftcapComesBeforeTheBias) {
  Small s(1, 2);
  s.q = {1.0f};
  s.k = {3.0f, -2.0f};
  s.problem.causal = Causal::kNo;
  s.problem.softcap = 2.0f;
  const float bias[] = {0.5f, 1.5f};
  s.problem.bias = bias;
  const double s0 = 2.0 * std::tanh(1.5) + 0.5;
  const double s1 = 2.0 * std::tanh(-1.0) + 1.5;
  EXPECT_NEAR(Both(s.problem).lse[0], std::log(std::exp(s0) + std::exp(s1)), 1e-12);
}

TEST(Reference, Alibi) {
  Small s(1, 4);
  const float slope = 0.5f;
  s.problem.alibi_slopes = &slope;
  const OracleResult decode = Both(s.problem);
  EXPECT_NEAR(decode.out[0], 2.084576488, 1e-9);
  EXPECT_NEAR(decode.lse[0], 0.787338672, 1e-9);
  Small whole(4, 4);
  whole.problem.alibi_slopes = &slope;
  EXPECT_EQ(Both(whole.problem).lse[3], decode.lse[0]);
}

TEST(Reference, SinkTakesWeightAndGivesNothing) {
  Small s(1, 3);
  const float sink = 0.0f;
  s.problem.sinks = &sink;
  const OracleResult r = Both(s.problem);
  EXPECT_NEAR(r.out[0], 3.0 / 4.0, 1e-15);
  EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-15);
  EXPECT_NEAR(r.weights[0], 0.25, 1e-15);
  // Nothing visible: the sink alone.
  const float other = 2.5f;
  s.problem.sinks = &other;
  s.problem.window = 0;
  const CanonicalResult c = CanonicalAttention(s.problem);
  EXPECT_EQ(c.out[0], 0.0f);
  EXPECT_EQ(c.lse[0], 2.5f);
  EXPECT_EQ(Both(s.problem).lse[0], 2.5);
}

TEST(Reference, NothingVisible) {
  Small s(3, 2);
  const CanonicalResult c = CanonicalAttention(s.problem);
  EXPECT_TRUE(SameBits(0.0f, c.out[0]));
  EXPECT_EQ(c.lse[0], -kInf);
  EXPECT_EQ(Both(s.problem).lse[0], -static_cast<double>(kInf));
  Small empty(2, 0);
  EXPECT_EQ(CanonicalAttention(empty.problem).lse, (std::vector<float>{-kInf, -kInf}));
}

TEST(Reference, NonFiniteScoresMakeTheRowNaNAndOnlyThatRow) {
  for (float bad : {kNaN, kInf}) {
    Small s(3, 3);
    s.q = {1.0f, 1.0f, 1.0f};
    s.k[2] = bad;
    const CanonicalResult c = CanonicalAttention(s.problem);
    EXPECT_EQ(c.out[0], 0.0f);
    EXPECT_EQ(c.out[1], 0.5f);
    EXPECT_TRUE(SameBits(std::bit_cast<float>(0x7FC00000u), c.out[2]));
    EXPECT_TRUE(SameBits(std::bit_cast<float>(0x7FC00000u), c.lse[2]));
    const OracleResult r = Oracle(s.problem);
    EXPECT_EQ(r.out[1], 0.5);
    EXPECT_TRUE(std::isnan(r.out[2]) && std::isnan(r.lse[2]));
  }
}

// Folding a later state into an earlier one: empty ones, and the example of two halves.
TEST(Reference, FoldOfStates) {
  using reference::State;
  const State empty{-kInf, 0.0f, {kNaN}};
  const State one{2.0f, 3.0f, {6.0f}};
  State a = empty;
  reference::CanonicalFold(a, empty);
  EXPECT_EQ(a.l, 0.0f);
  reference::CanonicalFold(a, one);
  EXPECT_EQ(a.o[0], 6.0f);
  reference::CanonicalFold(a, empty);
  EXPECT_EQ(a.o[0], 6.0f);
  float out = 0.0f;
  float lse = 0.0f;
  reference::CanonicalFinish(a, &out, &lse);
  EXPECT_EQ(out, 2.0f);
  reference::CanonicalFinish(empty, &out, &lse);
  EXPECT_TRUE(SameBits(0.0f, out));
  EXPECT_EQ(lse, -kInf);

  // Scores 0, 1 and 2, 3; values 0 ... 3.
  const float e1 = std::exp(-1.0f);
  State low{1.0f, 1.0f + e1, {1.0f}};
  const State high{3.0f, 1.0f + e1, {3.0f + 2.0f * e1}};
  reference::CanonicalFold(low, high);
  reference::CanonicalFinish(low, &out, &lse);
  EXPECT_NEAR(out, 2.492652735, 1e-6);
  EXPECT_NEAR(lse, 3.440189699, 1e-6);
}

// Everything at once, at random: the two programs share nothing but Visible().
TEST(Reference, ProgramsAgreeWithinTheBoundOnRandomProblems) {
  double largest = 0.0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    Problem p;
    p.num_kv_heads = random.Int(1, 2);
    p.num_q_heads = p.num_kv_heads * random.Int(1, 3);
    p.qk_dim = random.Int(1, 20);
    p.v_dim = random.Int(1, 10);
    p.q_len = random.Int(1, 6);
    p.kv_len = random.Pick<int64_t>({random.Int(0, 40), random.Int(100, 300), random.Int(1000, 2200)});
    const auto floats = [&](int64_t n, float size) { return random.Floats(static_cast<size_t>(n), size); };
    const std::vector<float> q = floats(p.q_len * p.num_q_heads * p.qk_dim, random.OneIn(3) ? 20.0f : 1.0f);
    const std::vector<float> k = floats(p.kv_len * p.num_kv_heads * p.qk_dim, 1.0f);
    const std::vector<float> v = floats(p.kv_len * p.num_kv_heads * p.v_dim, 1.0f);
    std::vector<float> bias = floats(p.num_q_heads * p.q_len * p.kv_len, 3.0f);
    const std::vector<float> slopes = floats(p.num_q_heads, 0.1f);
    const std::vector<float> sinks = floats(p.num_q_heads, 4.0f);
    std::vector<uint8_t> mask(static_cast<size_t>(p.q_len * p.kv_len));
    for (uint8_t& visible : mask) visible = random.OneIn(4) ? 0 : 1;
    std::vector<uint8_t> tree(static_cast<size_t>(p.q_len * p.q_len));
    for (uint8_t& visible : tree) visible = random.OneIn(2) ? 0 : 1;
    for (float& b : bias) b = random.OneIn(10) ? -kInf : b;
    p.q = q.data();
    p.k = k.data();
    p.v = v.data();
    p.scale = 0.3f;
    p.causal = random.Pick<Causal>({Causal::kNo, Causal::kBottomRight, Causal::kTopLeft});
    p.window = random.OneIn(3) ? random.Int(0, 200) : -1;
    if (random.OneIn(4)) p.window_right = random.Int(0, 100);
    if (random.OneIn(4)) p.num_always_visible = random.Int(0, 50);
    if (random.OneIn(4)) p.chunk = random.Int(1, 300);
    if (random.OneIn(4)) p.prefix_len = random.Int(0, 100);
    if (random.OneIn(4)) p.q_pos = random.Int(-3, p.kv_len + 3);
    if (random.OneIn(4) && p.kv_len >= p.q_len) p.tree = tree.data();
    p.out_type = random.Pick<OutType>({OutType::kF32, OutType::kF32, OutType::kF16, OutType::kBF16});
    if (random.OneIn(2)) p.softcap = 5.0f;
    if (random.OneIn(2)) {
      p.bias = bias.data();
      p.bias_head_stride = p.q_len * p.kv_len;
      p.bias_row_stride = p.kv_len;
    }
    if (random.OneIn(2)) p.alibi_slopes = slopes.data();
    if (random.OneIn(2)) p.sinks = sinks.data();
    if (random.OneIn(2)) {
      p.mask = mask.data();
      p.mask_row_stride = p.kv_len;
    }
    SCOPED_TRACE(seed);
    const OracleResult oracle = Both(p);
    const CanonicalResult canonical = CanonicalAttention(p);
    const ErrorBound bound = DeriveErrorBound(p, oracle);
    for (size_t i = 0; i < bound.out.size(); ++i) {
      if (bound.out[i] > 0.0 && p.out_type == OutType::kF32)
        largest = std::max(largest, std::fabs(oracle.out[i] - static_cast<double>(canonical.out[i])) / bound.out[i]);
    }
    // Weights and sink share 1, and out is their sum.
    for (int64_t row = 0; row < p.q_len * p.num_q_heads; ++row) {
      double sum = 0.0;
      for (int64_t j = 0; j < p.kv_len; ++j) sum += oracle.weights[row * p.kv_len + j];
      const double lse = oracle.lse[row];
      if (lse == -static_cast<double>(kInf)) {
        EXPECT_EQ(sum, 0.0);
        continue;
      }
      const double sink = p.sinks != nullptr ? std::exp(static_cast<double>(p.sinks[row % p.num_q_heads]) - lse) : 0.0;
      EXPECT_NEAR(sum + sink, 1.0, 1e-12);
    }
  }
  // A bound that is far from anything that happens would hide defects.
  EXPECT_GT(largest, 0.02);
}

}  // namespace
}  // namespace headlane::testing
