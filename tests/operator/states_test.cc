// States (m, l, o): what a run hands out, and what MergeStates, MergeOutputs and FinishStates make of it. F21 and F23
// of the list of public faults, at the level of the API.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "operator/check.h"
#include "operator/runner.h"
#include "operator/tensors.h"
#include "operator/ways.h"
#include "support/guarded_buffer.h"

namespace headlane::testing {
namespace {

using reference::Causal;
using reference::State;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// States of [tokens][heads] in guarded memory; v_dim features with a gap between the rows.
class States {
 public:
  States(int64_t tokens, int64_t heads, int64_t v_dim, int64_t gap = 0)
      : tokens_(tokens),
        heads_(heads),
        v_dim_(v_dim),
        pitch_(v_dim + gap),
        m_(static_cast<size_t>(tokens * heads)),
        l_(static_cast<size_t>(tokens * heads)),
        o_(static_cast<size_t>(tokens * heads * pitch_)) {}
  States(const std::vector<State>& rows, int64_t heads, int64_t v_dim, int64_t gap = 0)
      : States(static_cast<int64_t>(rows.size()) / heads, heads, v_dim, gap) {
    for (size_t i = 0; i < rows.size(); ++i) Set(i, rows[i]);
  }

  void Set(size_t row, const State& state) {
    m_[row] = state.m;
    l_[row] = state.l;
    for (size_t d = 0; d < state.o.size(); ++d) o_[row * static_cast<size_t>(pitch_) + d] = state.o[d];
  }
  State Get(size_t row) const {
    const float* o = o_.data() + row * static_cast<size_t>(pitch_);
    return {m_[row], l_[row], std::vector<float>(o, o + v_dim_)};
  }
  StateView view() const {
    StateView view;
    view.m = {m_.data(), 0, heads_, 1};
    view.l = {l_.data(), 0, heads_, 1};
    view.o = {o_.data(), DType::kF32, 1, tokens_, heads_, v_dim_, 0, heads_ * pitch_, pitch_, 1};
    return view;
  }
  Output Finish() const {
    Output output{std::vector<float>(static_cast<size_t>(tokens_ * heads_ * v_dim_)),
                  std::vector<float>(static_cast<size_t>(tokens_ * heads_))};
    const Status status = FinishStates(view(), TokensHeadsDim(output.out.data(), tokens_, heads_, v_dim_),
                                       {output.lse.data(), 0, heads_, 1});
    EXPECT_TRUE(status.ok()) << status.c_str();
    return output;
  }
  // Bits between the rows that are not those they were filled with.
  int64_t CountTouchedGaps() const {
    int64_t touched = 0;
    for (int64_t row = 0; row + 1 < tokens_ * heads_; ++row) {
      for (int64_t d = v_dim_; d < pitch_; ++d)
        touched += std::bit_cast<uint32_t>(o_[static_cast<size_t>(row * pitch_ + d)]) != 0xFFFFFFFFu ? 1 : 0;
    }
    return touched;
  }

 private:
  int64_t tokens_, heads_, v_dim_, pitch_;
  GuardedFloats m_, l_, o_;
};

void ExpectMerged(const States& a, const States& b) {
  const Status status = MergeStates(a.view(), b.view());
  EXPECT_TRUE(status.ok()) << status.c_str();
}

bool SameState(const State& a, const State& b, NaNs nans = NaNs::kExact) {
  return SameBits(a.m, b.m, nans) && SameBits(a.l, b.l, nans) && SameBits(a.o, b.o, nans);
}

// Scores and values of one row of one feature.
State StateOf(const std::vector<float>& scores, const std::vector<float>& values) {
  Random random(1);
  Sequence s = RandomSequence(random, {1, 1, 1, 1}, {Causal::kNo, -1}, 1, static_cast<int64_t>(scores.size()));
  (*s.q)[0] = 1.0f;
  *s.k = scores;
  *s.v = values;
  s.problem.k = s.k->data();
  s.problem.v = s.v->data();
  s.problem.scale = 1.0f;
  std::vector<std::vector<State>> states;
  RunOptions options;
  options.states = &states;
  options.want_out = false;
  RunLibrary(s, options);
  return states[0][0];
}

State Merge(const State& a, const State& b) {
  const States into({a}, 1, static_cast<int64_t>(a.o.size()));
  const States from({b}, 1, static_cast<int64_t>(b.o.size()));
  ExpectMerged(into, from);
  EXPECT_TRUE(SameState(from.Get(0), b)) << "the second state was written";
  return into.Get(0);
}

TEST(States, F21EmptyOnes) {
  const State empty = StateOf({}, {});
  EXPECT_TRUE(SameState(empty, State{-kInf, 0.0f, {0.0f}}));
  EXPECT_TRUE(SameState(Merge(empty, empty), State{-kInf, 0.0f, {0.0f}}));
  // l = 0 is what makes a state empty, whatever else it holds.
  for (float payload : {kNaN, kInf, -kInf, 7.0f}) {
    const State odd{payload, 0.0f, {payload}};
    const State live{2.0f, 3.0f, {-0.0f}};
    EXPECT_TRUE(SameState(Merge(odd, live), live)) << payload;
    EXPECT_TRUE(SameState(Merge(live, odd), live)) << payload;
    EXPECT_TRUE(SameState(Merge(odd, odd), State{-kInf, 0.0f, {0.0f}})) << payload;
    const Output output = States({odd}, 1, 1).Finish();
    EXPECT_TRUE(SameBits(0.0f, output.out[0])) << payload;
    EXPECT_EQ(output.lse[0], -kInf);
  }
}

TEST(States, F21HalvesJoinToTheWhole) {
  const State low = StateOf({0.0f, 1.0f}, {0.0f, 1.0f});
  const State high = StateOf({2.0f, 3.0f}, {2.0f, 3.0f});
  const auto finish = [](const State& s) { return States({s}, 1, 1).Finish(); };
  EXPECT_NEAR(finish(low).lse[0], 1.313261688, 1e-6);
  EXPECT_NEAR(finish(high).lse[0], 3.313261688, 1e-6);
  for (const State& both : {Merge(low, high), Merge(high, low)}) {
    EXPECT_NEAR(finish(both).lse[0], 3.440189699, 1e-6);
    EXPECT_NEAR(finish(both).out[0], 2.492652735, 1e-6);
  }
  // The other order, and three parts in both groupings.
  const State third = StateOf({-1.0f, 5.0f}, {4.0f, -9.0f});
  const Output left = finish(Merge(Merge(low, high), third));
  const Output right = finish(Merge(low, Merge(high, third)));
  EXPECT_NEAR(left.out[0], right.out[0], 1e-5);
  EXPECT_NEAR(left.lse[0], right.lse[0], 1e-6);
}

TEST(States, NaNAndInfinityStayWhereTheyAre) {
  const State bad = StateOf({kNaN, 1.0f}, {1.0f, 1.0f});
  const State good = StateOf({0.5f}, {2.0f});
  for (const State& merged : {Merge(bad, good), Merge(good, bad)}) {
    const Output output = States({merged}, 1, 1).Finish();
    EXPECT_TRUE(SameBits(std::bit_cast<float>(0x7FC00000u), output.out[0]));
    EXPECT_TRUE(SameBits(std::bit_cast<float>(0x7FC00000u), output.lse[0]));
  }
  // Very different sizes: the smaller part vanishes without a trace.
  const State big = StateOf({3e38f}, {2.0f});
  const State small = StateOf({-3e38f}, {5.0f});
  EXPECT_EQ(States({Merge(big, small)}, 1, 1).Finish().out[0], 2.0f);
  EXPECT_EQ(States({Merge(small, big)}, 1, 1).Finish().out[0], 2.0f);
}

// Parts that end at multiples of 1024, folded in order, have the bits of the whole.
TEST(States, FoldedSplitsAreTheWholeToTheBit) {
  Random random(21);
  for (const auto& [heads, kv_len] : std::vector<std::pair<Heads, int64_t>>{
           {{4, 2, 16, 20}, 3000}, {{2, 1, 8, 1}, 1025}, {{3, 3, 8, 600}, 2500}, {{2, 2, 4, 512}, 2048}}) {
    const int64_t q_len = 5;
    Sequence s = RandomSequence(random, heads, {Causal::kNo, -1}, q_len, kv_len);
    for (float& x : *s.q) x *= 5.0f;
    const Output whole = RunLibrary(s);
    for (const RunOptions& way : AllWays()) {
      States joined(q_len, heads.num_q_heads, heads.v_dim, 3);
      for (int64_t begin = 0; begin < kv_len; begin += kNumericsSplitKeys) {
        Sequence part = s;
        part.problem.kv_len = std::min(kv_len - begin, kNumericsSplitKeys);
        part.problem.k += begin * heads.num_kv_heads * heads.qk_dim;
        part.problem.v += begin * heads.num_kv_heads * heads.v_dim;
        std::vector<std::vector<State>> states;
        RunOptions options = way;
        options.states = &states;
        RunLibrary(part, options);
        const States one(states[0], heads.num_q_heads, heads.v_dim, 3);
        if (begin == 0) {
          for (size_t row = 0; row < states[0].size(); ++row) joined.Set(row, states[0][row]);
          continue;
        }
        ExpectMerged(joined, one);
      }
      EXPECT_EQ(joined.CountTouchedGaps(), 0);
      const Output output = joined.Finish();
      EXPECT_TRUE(SameOutput(whole, output)) << Describe(s.problem) << ", " << Describe(way);
      EXPECT_TRUE(NearOracle(s.problem, output));
    }
  }
}

// A shared prefix and the rest, cut anywhere: within the bound. With the sink in one of the runs.
TEST(States, SharedPrefix) {
  Random random(22);
  const Heads heads{4, 2, 16, 20};
  for (int64_t cut : {0, 1, 100, 128, 700, 1299, 1300}) {
    for (bool has_sink : {false, true}) {
      Sequence whole = RandomSequence(random, heads, {}, 4, 1304);
      Sequence prefix = whole.Rows(0, 4, cut);
      prefix.problem.causal = Causal::kNo;
      Sequence rest = whole.Rows(0, 4, 1304 - cut);
      rest.problem.k += cut * 2 * 16;
      rest.problem.v += cut * 2 * 20;
      if (has_sink) {
        const auto sinks = std::make_shared<std::vector<float>>(std::vector<float>{1.0f, 5.0f, -3.0f, 8.0f});
        whole.SetSinks(sinks);
        prefix.SetSinks(sinks);
      }
      std::vector<std::vector<State>> of_prefix;
      std::vector<std::vector<State>> of_rest;
      RunOptions options;
      options.states = &of_prefix;
      const Output prefix_output = RunLibrary(prefix, options);
      options.states = &of_rest;
      const Output rest_output = RunLibrary(rest, options);
      const States joined(of_prefix[0], 4, 20);
      ExpectMerged(joined, States(of_rest[0], 4, 20));
      const Output output = joined.Finish();
      EXPECT_TRUE(NearOracle(whole.problem, output)) << cut << " " << has_sink;
      ExpectShiftedOracleDisagrees(whole.problem, output);

      // The same from (out, lse), for engines that kept only that.
      Output merged = prefix_output;
      Output other = rest_output;
      const Status status = MergeOutputs(TokensHeadsDim(merged.out.data(), 4, 4, 20), {merged.lse.data(), 0, 4, 1},
                                         TokensHeadsDim(const_cast<const float*>(other.out.data()), 4, 4, 20),
                                         {other.lse.data(), 0, 4, 1});
      ASSERT_TRUE(status.ok()) << status.c_str();
      for (size_t i = 0; i < merged.out.size(); ++i) EXPECT_NEAR(merged.out[i], output.out[i], 2e-6) << cut;
      for (size_t i = 0; i < merged.lse.size(); ++i) EXPECT_NEAR(merged.lse[i], output.lse[i], 2e-6) << cut;
    }
  }
}

TEST(States, MergedOutputsOfNothing) {
  // (0, -inf) + (0, -inf); (NaN, -inf) + (w, L), both ways.
  for (float payload : {0.0f, kNaN, kInf}) {
    std::vector<float> out_a = {payload};
    std::vector<float> lse_a = {-kInf};
    std::vector<float> out_b = {0.25f};
    std::vector<float> lse_b = {1.5f};
    const auto merge = [](std::vector<float>& oa, std::vector<float>& la, std::vector<float>& ob,
                          std::vector<float>& lb) {
      EXPECT_TRUE(MergeOutputs(TokensHeadsDim(oa.data(), 1, 1, 1), {la.data(), 0, 0, 0},
                               TokensHeadsDim(const_cast<const float*>(ob.data()), 1, 1, 1), {lb.data(), 0, 0, 0})
                      .ok());
    };
    std::vector<float> out = out_a;
    std::vector<float> lse = lse_a;
    merge(out, lse, out_b, lse_b);
    EXPECT_EQ(out[0], 0.25f);
    EXPECT_EQ(lse[0], 1.5f);
    merge(out, lse, out_a, lse_a);
    EXPECT_EQ(out[0], 0.25f);
    EXPECT_EQ(lse[0], 1.5f);
    out = out_a;
    lse = lse_a;
    merge(out, lse, out_a, lse_a);
    EXPECT_TRUE(SameBits(0.0f, out[0]));
    EXPECT_EQ(lse[0], -kInf);
  }
}

TEST(States, FinishRoundsAndGoesAnywhere) {
  Random random(23);
  const State state{0.5f, 3.0f, random.Floats(1030)};
  const States states({state, state}, 2, 1030);
  std::vector<float> expected(1030);
  float lse = 0.0f;
  CanonicalFinish(state, expected.data(), &lse);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    // Transposed, so that heads are neighbours.
    std::vector<uint32_t> memory(2 * 1030, 0xFFFFFFFFu);
    const TensorView out{memory.data(), dtype, 1, 1, 2, 1030, 0, 0, 1, 2};
    const Status status = FinishStates(states.view(), out, {});
    ASSERT_TRUE(status.ok()) << status.c_str();
    for (size_t d = 0; d < 1030; ++d) {
      const float want = reference::RoundTo(OutTypeOf(dtype), expected[d]);
      for (size_t head = 0; head < 2; ++head) {
        const size_t at = d * 2 + head;
        ASSERT_TRUE(SameBits(want, LoadElement(dtype, memory.data(), static_cast<int64_t>(at)))) << DTypeName(dtype);
      }
    }
  }
}

TEST(States, Refusals) {
  const States a({State{1.0f, 1.0f, {1.0f, 2.0f}}}, 1, 2);
  const States b({State{1.0f, 1.0f, {1.0f, 2.0f}}}, 1, 2);
  const auto expect = [&](const StateView& into, const StateView& from, StatusCode code, const char* word) {
    const Status status = MergeStates(into, from);
    EXPECT_EQ(StatusCodeName(status.code()), std::string(StatusCodeName(code))) << status.c_str();
    EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << status.c_str();
    EXPECT_TRUE(SameState(a.Get(0), State{1.0f, 1.0f, {1.0f, 2.0f}}));
  };
  StateView bad = b.view();
  bad.o.dim = 1;
  expect(a.view(), bad, StatusCode::kInvalidArgument, "dim");
  bad = b.view();
  bad.o.dtype = DType::kF16;
  expect(a.view(), bad, StatusCode::kUnsupported, "f16");
  bad = b.view();
  bad.m.data = nullptr;
  expect(a.view(), bad, StatusCode::kInvalidArgument, "b.m");
  bad = b.view();
  bad.o.num_tokens = 2;
  expect(a.view(), bad, StatusCode::kInvalidArgument, "num_tokens");
  bad = a.view();
  bad.o.data = nullptr;
  expect(bad, b.view(), StatusCode::kInvalidArgument, "a.o");
}

}  // namespace
}  // namespace headlane::testing
