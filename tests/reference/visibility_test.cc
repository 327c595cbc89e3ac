// What the reference lets a row see, against sets written down by hand, and the rest of what a problem may say beside
// numbers: positions of drafted tokens, values inside of keys, rounded outputs, states.
//
// Means of visible positions (q = 0, v[j] = j) make each set one number; where two sets have the same mean, lse = ln of
// their size tells them apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "reference/canonical.h"
#include "reference/error_bound.h"
#include "reference/oracle.h"
#include "support/bits.h"

namespace headlane::testing {
namespace {

using reference::CanonicalAttention;
using reference::Causal;
using reference::KeyPosition;
using reference::OutType;
using reference::Problem;
using reference::RoundTo;
using reference::RowPosition;
using reference::State;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Rows as strings of '1' (visible) and '.'.
std::vector<std::string> Rows(const Problem& p) {
  std::vector<std::string> rows;
  for (int64_t row = 0; row < p.q_len; ++row) {
    rows.emplace_back();
    for (int64_t key = 0; key < p.kv_len; ++key) rows.back() += Visible(p, 0, row, key) ? '1' : '.';
  }
  return rows;
}

using Picture = std::vector<std::string>;

Problem Sized(int64_t q_len, int64_t kv_len, Causal causal = Causal::kBottomRight) {
  Problem p;
  p.q_len = q_len;
  p.kv_len = kv_len;
  p.causal = causal;
  return p;
}

// q = 0, v[j] = j.
struct Positions {
  explicit Positions(const Problem& shape)
      : q(static_cast<size_t>(shape.q_len)), k(static_cast<size_t>(shape.kv_len)), v(k.size()), problem(shape) {
    for (size_t j = 0; j < v.size(); ++j) v[j] = static_cast<float>(j);
    problem.q = q.data();
    problem.k = k.data();
    problem.v = v.data();
  }
  // Both programs must give these, the canonical one to the bit: its sums are whole numbers.
  void ExpectMeans(const std::vector<double>& means) const {
    const reference::OracleResult oracle = Oracle(problem);
    const reference::CanonicalResult canonical = CanonicalAttention(problem);
    ASSERT_EQ(oracle.out.size(), means.size());
    for (size_t row = 0; row < means.size(); ++row) EXPECT_NEAR(oracle.out[row], means[row], 1e-14);
    EXPECT_EQ(canonical.out, std::vector<float>(means.begin(), means.end()));
    for (size_t row = 0; row < q.size(); ++row) {
      const std::string picture = Rows(problem)[row];
      const auto count = static_cast<double>(std::count(picture.begin(), picture.end(), '1'));
      EXPECT_NEAR(oracle.lse[row], std::log(count), 1e-15);
    }
  }
  std::vector<float> q, k, v;
  Problem problem;
};

TEST(Visibility, RightWindow) {
  Problem p = Sized(4, 4, Causal::kNo);
  p.window_right = 1;
  EXPECT_EQ(Rows(p), (Picture{"11..", "111.", "1111", "1111"}));
  Positions(p).ExpectMeans({0.5, 1.0, 1.5, 1.5});
  p.window = 1;
  EXPECT_EQ(Rows(p), (Picture{"11..", ".11.", "..11", "...1"}));
  p.window_right = 0;
  EXPECT_EQ(Rows(p), (Picture{"1...", ".1..", "..1.", "...1"}));
  p.window = -1;
  EXPECT_EQ(Rows(p), Rows(Sized(4, 4)));  // the same as causality
  p.causal = Causal::kBottomRight;
  p.window_right = 2;
  EXPECT_EQ(Rows(p), Rows(Sized(4, 4)));  // which it does not loosen
}

TEST(Visibility, FirstPositionsBehindTheWindow) {
  Problem p = Sized(6, 6);
  p.window = 2;
  p.num_always_visible = 2;
  EXPECT_EQ(Rows(p), (Picture{"1.....", "11....", "111...", "1111..", "11.11.", "11..11"}));
  Positions(p).ExpectMeans({0.0, 0.5, 1.0, 1.5, 2.0, 2.5});
  p.q_pos = -2;  // causality holds for them all the same
  EXPECT_EQ(Rows(p), (Picture{"......", "......", "1.....", "11....", "111...", "1111.."}));
  p.q_pos.reset();
  p.window = 0;
  EXPECT_EQ(Rows(p), Picture(6, "......"));
  p.window = 2;
  p.causal = Causal::kNo;
  p.window_right = 0;
  EXPECT_EQ(Rows(p)[0], "1.....");  // the right side is not what they are exempt from
}

TEST(Visibility, Chunks) {
  Problem p = Sized(7, 7);
  p.chunk = 3;
  EXPECT_EQ(Rows(p), (Picture{"1......", "11.....", "111....", "...1...", "...11..", "...111.", "......1"}));
  Positions(p).ExpectMeans({0.0, 0.5, 1.0, 3.0, 3.5, 4.0, 6.0});
  p.causal = Causal::kNo;
  EXPECT_EQ(Rows(p), (Picture{"111....", "111....", "111....", "...111.", "...111.", "...111.", "......1"}));
  p.num_always_visible = 1;
  EXPECT_EQ(Rows(p)[4], "1..111.");
  // Rows before the first key: chunk -1 is not chunk 0.
  p.num_always_visible = 0;
  p.q_pos = -2;
  EXPECT_EQ(Rows(p), (Picture{".......", ".......", "111....", "111....", "111....", "...111.", "...111."}));
  // Rows behind the last key.
  p.q_pos = 6;
  EXPECT_EQ(Rows(p), (Picture{"......1", "......1", "......1", ".......", ".......", ".......", "......."}));
}

TEST(Visibility, Prefix) {
  Problem p = Sized(5, 5);
  p.prefix_len = 3;
  EXPECT_EQ(Rows(p), (Picture{"111..", "111..", "111..", "1111.", "11111"}));
  Positions(p).ExpectMeans({1.0, 1.0, 1.0, 1.5, 2.0});
  p.window = 2;  // windows and chunks still apply
  EXPECT_EQ(Rows(p), (Picture{"111..", "111..", ".11..", "..11.", "...11"}));
  p.window_right = 1;
  EXPECT_EQ(Rows(p)[0], "11...");
  p.window = p.window_right = -1;
  p.chunk = 2;
  EXPECT_EQ(Rows(p), (Picture{"11...", "11...", "..1..", "..11.", "....1"}));
  p.chunk = 0;
  p.prefix_len = 100;
  EXPECT_EQ(Rows(p), Rows(Sized(5, 5, Causal::kNo)));
}

TEST(Visibility, PositionOfTheFirstRow) {
  Problem p = Sized(2, 5);
  EXPECT_EQ(RowPosition(p, 0), 3);
  p.q_pos = 1;
  EXPECT_EQ(Rows(p), (Picture{"11...", "111.."}));
  Positions(p).ExpectMeans({0.5, 1.0});
  p.causal = Causal::kTopLeft;
  EXPECT_EQ(Rows(p), (Picture{"11...", "111.."}));
  p.causal = Causal::kNo;
  p.window = 1;
  EXPECT_EQ(Rows(p), (Picture{".1111", "..111"}));
  p.q_pos.reset();
  EXPECT_EQ(Rows(p), (Picture{"...11", "....1"}));
  // ALiBi counts from there.
  Positions s(Sized(1, 4));
  const float slope = 0.5f;
  s.problem.alibi_slopes = &slope;
  const double at_end = Oracle(s.problem).lse[0];
  s.problem.q_pos = 5;
  EXPECT_NEAR(Oracle(s.problem).lse[0], at_end - 2 * 0.5, 1e-12);
}

TEST(Visibility, MasksByHeadRowAndColumn) {
  Problem p = Sized(2, 3, Causal::kNo);
  p.num_q_heads = 2;
  const std::vector<uint8_t> mask = {1, 0, 1, 0, 1, 1, 0, 0, 0, 1, 1, 0};
  p.mask = mask.data();
  p.mask_head_stride = 6;
  p.mask_row_stride = 3;
  EXPECT_EQ(Rows(p), (Picture{"1.1", ".11"}));
  EXPECT_FALSE(Visible(p, 1, 0, 0));
  EXPECT_TRUE(Visible(p, 1, 1, 1));
  p.mask_row_stride = 0;
  EXPECT_EQ(Rows(p), (Picture{"1.1", "1.1"}));
  p.mask_row_stride = 3;
  p.shift_columns = 1;
  EXPECT_EQ(Rows(p), (Picture{".11", "11."}));
  p.shift_columns = 0;
  p.causal = Causal::kTopLeft;
  EXPECT_EQ(Rows(p), (Picture{"1..", ".1."}));
}

// Two kept tokens, then a root with two children, one of which has a child: 0 - 1, 0 - 2 - 3.
const std::vector<uint8_t> kTree = {1, 0, 0, 0,  //
                                    1, 1, 0, 0,  //
                                    1, 0, 1, 0,  //
                                    1, 0, 1, 1};

TEST(Visibility, Trees) {
  Problem p = Sized(4, 6);
  p.tree = kTree.data();
  EXPECT_EQ(Rows(p), (Picture{"111...", "1111..", "111.1.", "111.11"}));
  Positions(p).ExpectMeans({1.0, 1.5, 7.0 / 4.0, 12.0 / 5.0});
  // Siblings share a position, which is not their order.
  for (int64_t row = 0; row < 4; ++row) EXPECT_EQ(RowPosition(p, row), KeyPosition(p, 2 + row));
  EXPECT_EQ(RowPosition(p, 0), 2);
  EXPECT_EQ(RowPosition(p, 1), 3);
  EXPECT_EQ(RowPosition(p, 2), 3);
  EXPECT_EQ(RowPosition(p, 3), 4);
  EXPECT_EQ(KeyPosition(p, 1), 1);
  // Windows and chunks go by position: the last row stands at 4 and sees 3 and 4, orders 4 and 5.
  p.window = 2;
  EXPECT_EQ(Rows(p), (Picture{".11...", "..11..", "..1.1.", "....11"}));
  p.num_always_visible = 1;
  EXPECT_EQ(Rows(p)[3], "1...11");
  p.num_always_visible = 0;
  p.window = -1;
  p.chunk = 3;
  EXPECT_EQ(Rows(p), (Picture{"111...", "...1..", "....1.", "....11"}));
  p.chunk = 0;
  // The bits take causality's place, whatever it says, and are not loosened by a prefix.
  p.causal = Causal::kNo;
  p.prefix_len = 6;
  EXPECT_EQ(Rows(p), (Picture{"111...", "1111..", "111.1.", "111.11"}));
  p.shift_columns = 1;
  EXPECT_NE(Rows(p)[1], "1111..");
  // A token that does not see itself stands where it would otherwise.
  const std::vector<uint8_t> blind = {0, 1, 1, 0};
  p = Sized(2, 3);
  p.tree = blind.data();
  EXPECT_EQ(Rows(p), (Picture{"1.1", "11."}));
  EXPECT_EQ(RowPosition(p, 0), 2);
}

TEST(Visibility, AlibiInATreeGoesByPosition) {
  Positions s(Sized(4, 6));
  const float slope = 0.5f;
  s.problem.tree = kTree.data();
  s.problem.alibi_slopes = &slope;
  const auto log_sum = [](const std::vector<double>& distances) {
    double sum = 0.0;
    for (double d : distances) sum += std::exp(-0.5 * d);
    return std::log(sum);
  };
  const reference::OracleResult oracle = Oracle(s.problem);
  const reference::CanonicalResult canonical = CanonicalAttention(s.problem);
  for (const auto& [row, distances] : std::vector<std::pair<size_t, std::vector<double>>>{
           {0, {2, 1, 0}}, {1, {3, 2, 1, 0}}, {2, {3, 2, 1, 0}}, {3, {4, 3, 2, 1, 0}}}) {
    EXPECT_NEAR(oracle.lse[row], log_sum(distances), 1e-12);
    EXPECT_NEAR(canonical.lse[row], log_sum(distances), 1e-6);
  }
}

// A chain is causality, and has its bits.
TEST(Visibility, AChainIsNoTree) {
  Positions s(Sized(3, 9));
  s.q = {1.0f, -0.5f, 0.25f};
  for (size_t j = 0; j < s.k.size(); ++j) s.k[j] = static_cast<float>(j) * 0.3f - 1.0f;
  const float slope = -0.25f;
  s.problem.alibi_slopes = &slope;
  s.problem.window = 4;
  const reference::CanonicalResult causal = CanonicalAttention(s.problem);
  const std::vector<uint8_t> chain = {1, 0, 0, 1, 1, 0, 1, 1, 1};
  s.problem.tree = chain.data();
  const reference::CanonicalResult tree = CanonicalAttention(s.problem);
  EXPECT_TRUE(SameBits(causal.out, tree.out));
  EXPECT_TRUE(SameBits(causal.lse, tree.lse));
}

TEST(ReferenceProblem, ValuesInsideOfKeys) {
  // Two heads; keys of 3 features, the first 2 of which are the values.
  const std::vector<float> q(6, 0.0f);
  const std::vector<float> k = {1, 2, 90, 3, 4, 90, 5, 6, 90, 7, 8, 90};
  Problem p = Sized(1, 2);
  p.num_q_heads = p.num_kv_heads = 2;
  p.qk_dim = 3;
  p.v_dim = 2;
  p.q = q.data();
  p.k = p.v = k.data();
  p.v_token_stride = 6;
  p.v_head_stride = 3;
  const std::vector<double> means = {3.0, 4.0, 5.0, 6.0};
  EXPECT_EQ(Oracle(p).out, means);
  EXPECT_EQ(CanonicalAttention(p).out, std::vector<float>(means.begin(), means.end()));
}

TEST(ReferenceProblem, RoundedOutputs) {
  // f16: 10 bits behind the leading one, from 2^-14 on; below, multiples of 2^-24.
  EXPECT_EQ(RoundTo(OutType::kF16, 1.0f + 0x1p-11f), 1.0f);            // a tie, to even
  EXPECT_EQ(RoundTo(OutType::kF16, 1.0f + 0x3p-11f), 1.0f + 0x1p-9f);  // a tie, to even
  EXPECT_EQ(RoundTo(OutType::kF16, 1.0f + 0x1.8p-11f), 1.0f + 0x1p-10f);
  EXPECT_EQ(RoundTo(OutType::kF16, 65519.0f), 65504.0f);
  EXPECT_EQ(RoundTo(OutType::kF16, -65520.0f), -kInf);
  EXPECT_EQ(RoundTo(OutType::kF16, 3e38f), kInf);
  EXPECT_EQ(RoundTo(OutType::kF16, 0x1.8p-24f), 0x1p-23f);  // a tie, to even
  EXPECT_TRUE(SameBits(RoundTo(OutType::kF16, -0x1p-25f), -0.0f));
  EXPECT_EQ(RoundTo(OutType::kF16, 0x1.000002p-25f), 0x1p-24f);
  EXPECT_EQ(RoundTo(OutType::kF16, 0x1.FFFp-15f), 0x1p-14f);  // up into the normal numbers
  // bf16: the upper half of an f32.
  EXPECT_EQ(RoundTo(OutType::kBF16, 1.0f + 0x1p-8f), 1.0f);
  EXPECT_EQ(RoundTo(OutType::kBF16, 1.0f + 0x3p-8f), 1.0f + 0x1p-6f);
  EXPECT_EQ(RoundTo(OutType::kBF16, 0x1.FEFFFEp127f), 0x1.FEp127f);
  EXPECT_EQ(RoundTo(OutType::kBF16, 0x1.FFp127f), kInf);
  EXPECT_EQ(RoundTo(OutType::kBF16, 0x1p-149f), 0.0f);
  EXPECT_EQ(RoundTo(OutType::kBF16, 0x1.8p-133f), 0x1p-132f);
  for (OutType type : {OutType::kF16, OutType::kBF16}) {
    EXPECT_TRUE(SameBits(RoundTo(type, -kNaN), std::bit_cast<float>(0x7FC00000u)));
    EXPECT_TRUE(SameBits(RoundTo(type, kInf), kInf));
    EXPECT_TRUE(SameBits(RoundTo(type, 0.0f), 0.0f));
    // The bound grows by half a step, and needs it: the mean of 0 and 1 + 2^-7 + 2^-12 is no number of either type.
    Positions s(Sized(1, 2));
    s.v = {0.0f, 1.0f + 0x1p-7f + 0x1p-12f};
    s.problem.out_type = type;
    const reference::OracleResult oracle = Oracle(s.problem);
    const reference::CanonicalResult canonical = CanonicalAttention(s.problem);
    const reference::ErrorBound bound = DeriveErrorBound(s.problem, oracle);
    EXPECT_TRUE(Within(oracle.out.data(), canonical.out.data(), bound.out.data(), 1));
    EXPECT_NE(static_cast<double>(canonical.out[0]), oracle.out[0]);
    s.problem.out_type = OutType::kF32;
    const reference::ErrorBound narrow = DeriveErrorBound(s.problem, oracle);
    EXPECT_FALSE(Within(oracle.out.data(), canonical.out.data(), narrow.out.data(), 1));
    EXPECT_TRUE(SameBits(canonical.out[0], RoundTo(type, CanonicalAttention(s.problem).out[0])));
  }
}

TEST(ReferenceProblem, StatesAreWhatIsDivided) {
  Positions s(Sized(1, 4));
  s.q = {1.0f};
  s.k = {0.0f, 1.0f, 2.0f, 3.0f};
  const float sink = 3.0f;
  State state = CanonicalStates(s.problem)[0];
  const double e = std::exp(-1.0);
  EXPECT_EQ(state.m, 3.0f);
  EXPECT_NEAR(state.l, 1 + e + e * e + e * e * e, 1e-6);
  EXPECT_NEAR(state.o[0], 3 + 2 * e + e * e, 1e-6);
  s.problem.sinks = &sink;
  const State with_sink = CanonicalStates(s.problem)[0];
  EXPECT_EQ(with_sink.m, 3.0f);
  EXPECT_EQ(with_sink.l, state.l + 1.0f);
  EXPECT_EQ(with_sink.o[0], state.o[0]);
  // Nothing visible: m = -inf, l = 0, o = 0; the sink alone: m = sink, l = 1.
  s.problem.window = 0;
  EXPECT_EQ(CanonicalStates(s.problem)[0].m, 3.0f);
  EXPECT_EQ(CanonicalStates(s.problem)[0].l, 1.0f);
  s.problem.sinks = nullptr;
  state = CanonicalStates(s.problem)[0];
  EXPECT_EQ(state.m, -kInf);
  EXPECT_TRUE(SameBits(0.0f, state.l));
  EXPECT_TRUE(SameBits(0.0f, state.o[0]));
}

}  // namespace
}  // namespace headlane::testing
