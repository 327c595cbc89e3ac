// States out of a run, and joining them: identity, zeros, the bits of a whole run where they are promised, and pairs of
// out and lse.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "exec/naive_attention.h"
#include "headlane/attention.h"

namespace headlane {
namespace {

using testing::MakeBatch;
using testing::Outputs;
using testing::TestBatch;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kHeads = 4;

// Rows [tokens, kHeads], o as wide as v_dim.
struct States {
  States(int64_t num_tokens, int64_t width)
      : tokens(num_tokens),
        dim(width),
        m(static_cast<size_t>(tokens * kHeads), kNaN),
        l(m),
        o(static_cast<size_t>(tokens * kHeads * dim), kNaN) {}
  StateView view() {
    return {{m.data(), 0, kHeads, 1}, {l.data(), 0, kHeads, 1}, TokensHeadsDim(o.data(), tokens, kHeads, dim)};
  }
  bool SameBits(const States& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(m, other.m) && same(l, other.l) && same(o, other.o);
  }
  int64_t tokens, dim;
  std::vector<float> m, l, o;
};

// Full attention of 3 rows over `kv_len` keys.
TestBatch Batch(int64_t kv_len, int64_t v_dim) {
  AttentionSpec spec;
  spec.num_q_heads = kHeads;
  spec.num_kv_heads = 2;
  spec.qk_dim = 20;
  spec.v_dim = v_dim;
  spec.mask.causality = Causality::kFull;
  return MakeBatch(spec, {{3, kv_len}}, 11);
}

// The part [begin, end) of the batch's keys.
States Attend(const TestBatch& batch, int64_t begin, int64_t end, Outputs* outputs, const float* sinks = nullptr) {
  States states(batch.q_tokens, batch.spec.v_dim);
  std::vector<SequenceSpec> sequences = batch.sequences;
  sequences[0].kv_begin = begin;
  sequences[0].kv_len = end - begin;
  AttentionArgs args = outputs != nullptr ? batch.PlainArgs(outputs->out.data(), outputs->lse.data())
                                          : batch.PlainArgs(nullptr, nullptr);
  if (outputs == nullptr) args.out = TensorView();
  args.state = states.view();
  args.sinks = sinks;
  const Status status = Attention(batch.spec, sequences, args, SerialExecutor());
  EXPECT_TRUE(status.ok()) << status.c_str();
  return states;
}

TEST(States, FinishedTheyAreTheOutputs) {
  const std::vector<float> sinks = {0.5f, -kInfinity, 3.0f, -1.0f};
  for (const int64_t v_dim : {1, 12, 600}) {
    for (const int64_t kv_len : {0, 1, 130, 2500}) {
      for (const float* sink : {static_cast<const float*>(nullptr), sinks.data()}) {
        const TestBatch batch = Batch(kv_len, v_dim);
        Outputs whole(batch), finished(batch);
        States states = Attend(batch, 0, kv_len, &whole, sink);
        const AttentionArgs args = batch.PlainArgs(finished.out.data(), finished.lse.data());
        ASSERT_TRUE(FinishStates(states.view(), args.out, args.lse).ok());
        EXPECT_TRUE(whole.SameBits(finished)) << v_dim << " " << kv_len;
      }
    }
  }
}

TEST(States, SplitsJoinedInOrderAreTheWholeRunToTheBit) {
  const TestBatch batch = Batch(3 * kNumericsSplitKeys + 77, 12);
  Outputs whole(batch), joined(batch);
  const int64_t kv_len = batch.sequences[0].kv_len;
  const States expected = Attend(batch, 0, kv_len, &whole);
  States state = Attend(batch, 0, kNumericsSplitKeys, nullptr);
  for (int64_t begin = kNumericsSplitKeys; begin < kv_len; begin += kNumericsSplitKeys) {
    States next = Attend(batch, begin, std::min(begin + kNumericsSplitKeys, kv_len), nullptr);
    ASSERT_TRUE(MergeStates(state.view(), next.view()).ok());
  }
  EXPECT_TRUE(state.SameBits(expected));
  const AttentionArgs args = batch.PlainArgs(joined.out.data(), joined.lse.data());
  ASSERT_TRUE(FinishStates(state.view(), args.out, args.lse).ok());
  EXPECT_TRUE(whole.SameBits(joined));
}

TEST(States, AnyCutAgreesWithinRoundingAndInEitherOrder) {
  const TestBatch batch = Batch(700, 12);
  for (const int64_t cut : {0, 1, 16, 333, 699, 700}) {
    for (const bool swap : {false, true}) {
      States a = Attend(batch, swap ? cut : 0, swap ? 700 : cut, nullptr);
      States b = Attend(batch, swap ? 0 : cut, swap ? cut : 700, nullptr);
      ASSERT_TRUE(MergeStates(a.view(), b.view()).ok());
      Outputs outputs(batch);
      const AttentionArgs args = batch.PlainArgs(outputs.out.data(), outputs.lse.data());
      ASSERT_TRUE(FinishStates(a.view(), args.out, args.lse).ok());
      testing::ExpectNear(batch, outputs);
    }
  }
}

// An empty state is the identity, whatever its m and o hold.
TEST(States, EmptyIsTheIdentity) {
  const TestBatch batch = Batch(50, 12);
  const States full = Attend(batch, 0, 50, nullptr);
  States empty(batch.q_tokens, 12);  // all NaN
  std::fill(empty.l.begin(), empty.l.end(), 0.0f);
  States left = full;
  ASSERT_TRUE(MergeStates(left.view(), empty.view()).ok());
  EXPECT_TRUE(left.SameBits(full));
  States right = empty;
  States copy = full;
  ASSERT_TRUE(MergeStates(right.view(), copy.view()).ok());
  EXPECT_TRUE(right.SameBits(full));
  States both = empty;
  ASSERT_TRUE(MergeStates(both.view(), empty.view()).ok());
  for (const float m : both.m) EXPECT_EQ(m, -kInfinity);
  for (const float l : both.l) EXPECT_EQ(l, 0.0f);
  for (const float o : both.o) EXPECT_EQ(o, 0.0f);
}

// Two halves with natural-log sums that do not agree by accident in another base.
TEST(States, PairsOfOutAndLse) {
  const std::vector<std::vector<float>> scores = {{0, 1}, {2, 3}};
  std::vector<float> out(2), lse(2);
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = spec.qk_dim = spec.v_dim = 1;
  spec.scale = 1.0f;
  spec.mask.causality = Causality::kFull;
  const float q = 1.0f;
  const std::vector<float> v = {0, 1, 2, 3};
  for (int half = 0; half < 2; ++half) {
    SequenceSpec sequence;
    sequence.q_len = 1;
    sequence.kv_len = 2;
    AttentionArgs args;
    args.q = TokensHeadsDim(&q, 1, 1, 1);
    args.k = TokensHeadsDim(scores[static_cast<size_t>(half)].data(), 2, 1, 1);
    args.v = TokensHeadsDim(v.data() + 2 * half, 2, 1, 1);
    args.out = TokensHeadsDim(&out[static_cast<size_t>(half)], 1, 1, 1);
    args.lse.data = &lse[static_cast<size_t>(half)];
    ASSERT_TRUE(Attention(spec, {&sequence, 1}, args, SerialExecutor()).ok());
  }
  EXPECT_NEAR(lse[0], 1.313261688, 1e-6);
  EXPECT_NEAR(lse[1], 3.313261688, 1e-6);
  LseView lse_a, lse_b;
  lse_a.data = &lse[0];
  lse_b.data = &lse[1];
  ASSERT_TRUE(MergeOutputs(TokensHeadsDim(&out[0], 1, 1, 1), lse_a, TokensHeadsDim(&out[1], 1, 1, 1), lse_b).ok());
  EXPECT_NEAR(lse[0], 3.440189699, 1e-6);
  EXPECT_NEAR(out[0], 2.492652735, 1e-6);
  // Nothing and something; nothing and nothing.
  const float kept_out = out[0], kept_lse = lse[0];
  float none_out = kNaN, none_lse = -kInfinity;
  LseView none;
  none.data = &none_lse;
  ASSERT_TRUE(MergeOutputs(TokensHeadsDim(&out[0], 1, 1, 1), lse_a, TokensHeadsDim(&none_out, 1, 1, 1), none).ok());
  EXPECT_EQ(out[0], kept_out);
  EXPECT_EQ(lse[0], kept_lse);
  ASSERT_TRUE(MergeOutputs(TokensHeadsDim(&none_out, 1, 1, 1), none, TokensHeadsDim(&out[0], 1, 1, 1), lse_a).ok());
  EXPECT_EQ(none_out, kept_out);
  EXPECT_EQ(none_lse, kept_lse);
  float a_out = kNaN, a_lse = -kInfinity, b_out = 7, b_lse = -kInfinity;
  LseView a, b;
  a.data = &a_lse;
  b.data = &b_lse;
  ASSERT_TRUE(MergeOutputs(TokensHeadsDim(&a_out, 1, 1, 1), a, TokensHeadsDim(&b_out, 1, 1, 1), b).ok());
  EXPECT_EQ(a_out, 0.0f);
  EXPECT_EQ(a_lse, -kInfinity);
}

TEST(States, Refusals) {
  States a(3, 12), b(3, 12), narrow(3, 11), fewer(2, 12);
  EXPECT_EQ(MergeStates(a.view(), narrow.view()).code(), StatusCode::kInvalidArgument);
  const Status status = MergeStates(a.view(), fewer.view());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("num_tokens is 3, but b.o.num_tokens is 2"), std::string_view::npos)
      << status.c_str();
  StateView half = b.view();
  half.o.dtype = DType::kBF16;
  EXPECT_EQ(MergeStates(a.view(), half).code(), StatusCode::kUnsupported);
  half = b.view();
  half.l.data = nullptr;
  EXPECT_EQ(MergeStates(half, a.view()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FinishStates(a.view(), TensorView(), LseView()).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headlane
