// Faults that other attention operators shipped, as tests: additive biases, boolean masks, softcap, ALiBi and sinks.
// See mask_faults_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "operator/check.h"
#include "operator/runner.h"
#include "operator/ways.h"

namespace headlane::testing {
namespace {

using reference::Causal;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Sight Full() {
  Sight sight;
  sight.causal = Causal::kNo;
  return sight;
}

std::shared_ptr<std::vector<float>> Shared(std::vector<float> data) {
  return std::make_shared<std::vector<float>>(std::move(data));
}

// The same in every way and canonical; the first result.
Output RunEveryWay(const Sequence& sequence) {
  const Output output = RunLibrary(sequence);
  for (RunOptions way : AllWays()) {
    for (auto format : {BoolMaskView::Format::kBytes, BoolMaskView::Format::kBits}) {
      way.mask_format = format;
      EXPECT_TRUE(SameOutput(output, RunLibrary(sequence, way))) << Describe(sequence.problem) << ", " << Describe(way);
      if (sequence.mask == nullptr) break;
    }
  }
  if (ActiveTarget().has_fma) {
    EXPECT_TRUE(IsCanonical(sequence.problem, output)) << Describe(sequence.problem);
  }
  EXPECT_TRUE(NearOracle(sequence.problem, output)) << Describe(sequence.problem);
  return output;
}

// visible: one flag per key of the one row. As -inf in a bias, and as a boolean mask.
void ExpectMeanOfVisible(const std::vector<uint8_t>& visible, float mean, float lse) {
  const int64_t kv_len = static_cast<int64_t>(visible.size());
  Sequence by_bias = PositionSequence(Full(), 1, kv_len);
  std::vector<float> bias;
  for (uint8_t v : visible) bias.push_back(v != 0 ? 0.0f : -kInf);
  by_bias.SetBias(Shared(bias), 0, 0);
  Sequence by_mask = PositionSequence(Full(), 1, kv_len);
  by_mask.SetMask(std::make_shared<std::vector<uint8_t>>(visible), 0, 0);
  const Output output = RunLibrary(by_bias);
  ASSERT_EQ(output.out[0], mean) << kv_len;
  ASSERT_NEAR(output.lse[0], lse, 1e-6) << kv_len;
  RunOptions bits;
  bits.mask_format = BoolMaskView::Format::kBits;
  ASSERT_TRUE(SameOutput(output, RunLibrary(by_mask))) << kv_len;
  ASSERT_TRUE(SameOutput(output, RunLibrary(by_mask, bits))) << kv_len;
}

TEST(ModifierFaults, F1BandOfMinusInfinity) {
  for (int64_t hidden = 1; hidden <= 1024; ++hidden) {
    std::vector<uint8_t> visible(static_cast<size_t>(hidden) + 1, 0);
    visible.back() = 1;
    ExpectMeanOfVisible(visible, static_cast<float>(hidden), 0.0f);
  }
  std::vector<uint8_t> last_ten(600, 0);
  std::fill(last_ten.end() - 10, last_ten.end(), uint8_t{1});
  ExpectMeanOfVisible(last_ten, 594.5f, std::log(10.0f));
  std::vector<uint8_t> middle(700, 0);
  std::fill(middle.begin() + 515, middle.begin() + 576, uint8_t{1});
  ExpectMeanOfVisible(middle, 545.0f, std::log(61.0f));
  // All but the last of three splits, and all but the first.
  std::vector<uint8_t> ends(3000, 0);
  ends.front() = 1;
  ExpectMeanOfVisible(ends, 0.0f, 0.0f);
  std::swap(ends.front(), ends.back());
  ExpectMeanOfVisible(ends, 2999.0f, 0.0f);

  // Width 2, ones everywhere.
  Sequence wide = PositionSequence(Full(), 1, 600, {1, 1, 2, 2});
  for (auto* data : {wide.q.get(), wide.k.get(), wide.v.get()}) std::fill(data->begin(), data->end(), 1.0f);
  std::vector<float> bias(600, -kInf);
  std::fill(bias.end() - 10, bias.end(), 0.0f);
  wide.SetBias(Shared(bias), 0, 0);
  EXPECT_EQ(RunEveryWay(wide).out, (std::vector<float>{1.0f, 1.0f}));
}

TEST(ModifierFaults, F3RowWithoutKeysByMaskAndByBias) {
  Random random(3);
  Sequence plain = RandomSequence(random, {2, 2, 8, 8}, Full(), 6, 10);
  plain.problem.scale = 0.125f;
  // Rows 0 to 4 see a triangle, row 5 nothing; and then all of head 1 nothing.
  for (bool hide_head : {false, true}) {
    const auto mask = std::make_shared<std::vector<uint8_t>>(2 * 6 * 10);
    const auto bias = Shared(std::vector<float>(2 * 6 * 10));
    for (int64_t i = 0; i < 2 * 6 * 10; ++i) {
      const int64_t head = i / 60;
      const int64_t row = i / 10 % 6;
      const bool visible = row < 5 && i % 10 <= row && !(hide_head && head == 1);
      (*mask)[static_cast<size_t>(i)] = visible ? 1 : 0;
      (*bias)[static_cast<size_t>(i)] = visible ? 0.0f : -kInf;
    }
    Sequence by_mask = plain;
    by_mask.SetMask(mask, 60, 10);
    Sequence by_bias = plain;
    by_bias.SetBias(bias, 60, 10);
    const Output output = RunEveryWay(by_mask);
    EXPECT_TRUE(SameOutput(output, RunEveryWay(by_bias)));
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t row = 0; row < 6; ++row) {
        const size_t index = static_cast<size_t>(row * 2 + head);
        const bool is_empty = row == 5 || (hide_head && head == 1);
        EXPECT_EQ(output.lse[index] == -kInf, is_empty);
        for (size_t d = index * 8; d < index * 8 + 8; ++d) {
          if (is_empty) {
            EXPECT_TRUE(SameBits(0.0f, output.out[d]));
          } else {
            EXPECT_NE(output.out[d], 0.0f);
          }
        }
      }
    }
    EXPECT_GE(ExpectShiftedOracleDisagrees(by_mask.problem, output), 1);
    for (const Sequence& s : {by_mask, by_bias}) {
      for (RunOptions way : AllWays()) {
        for (bool padded : {false, true}) {
          way.padded = padded;
          const std::vector<Output> twice = RunLibrary(std::vector<Sequence>{s, s}, way);
          EXPECT_TRUE(SameOutput(output, twice[0])) << Describe(way);
          EXPECT_TRUE(SameOutput(output, twice[1])) << Describe(way);
        }
      }
    }
  }
}

TEST(ModifierFaults, F9HiddenKeysLeakNothingThroughTheSoftcap) {
  Sequence s = PositionSequence(Full(), 1, 2);
  *s.v = {1.0f, 1000.0f};
  s.problem.softcap = 1.0f;
  Sequence by_mask = s;
  by_mask.SetMask(std::make_shared<std::vector<uint8_t>>(std::vector<uint8_t>{1, 0}), 0, 0);
  EXPECT_EQ(RunEveryWay(by_mask).out[0], 1.0f);
  Sequence by_bias = s;
  by_bias.SetBias(Shared({0.0f, -kInf}), 0, 0);
  EXPECT_EQ(RunEveryWay(by_bias).out[0], 1.0f);
  Sequence by_window = s;
  by_window.problem.window = 1;
  EXPECT_EQ(RunEveryWay(by_window).out[0], 1000.0f);
  Sequence by_tree = s;
  by_tree.SetTree({0});
  EXPECT_EQ(RunEveryWay(by_tree).out[0], 1.0f);
}

TEST(ModifierFaults, F9SoftcapComesBeforeTheBias) {
  Sequence s = PositionSequence(Full(), 1, 2);
  *s.q = {1.0f};
  *s.k = {3.0f, -2.0f};
  s.problem.softcap = 2.0f;
  s.SetBias(Shared({0.5f, 1.5f}), 0, 0);
  const Output output = RunEveryWay(s);
  const double s0 = 2.0 * std::tanh(1.5) + 0.5;
  const double s1 = 2.0 * std::tanh(-1.0) + 1.5;
  EXPECT_NEAR(output.lse[0], std::log(std::exp(s0) + std::exp(s1)), 1e-6);
  EXPECT_GT(std::fabs(std::log(std::exp(2 * std::tanh(1.75)) + std::exp(2 * std::tanh(-0.25))) - output.lse[0]), 0.1);
  // A cap bounds scores of any size, and keeps NaN a NaN.
  for (float size : {3e38f, -3e38f, kInf, -kInf}) {
    Sequence big = PositionSequence(Full(), 1, 2);
    *big.q = {1.0f};
    *big.k = {size, 0.0f};
    big.problem.softcap = 2.0f;
    const double capped = std::copysign(2.0, size);
    EXPECT_NEAR(RunEveryWay(big).lse[0], std::log(std::exp(capped) + 1.0), 1e-6) << size;
  }
  Sequence bad = PositionSequence(Full(), 1, 2);
  *bad.k = {kNaN, 0.0f};
  bad.problem.softcap = 2.0f;
  EXPECT_TRUE(std::isnan(RunEveryWay(bad).out[0]));
}

// What a bias or mask hides is not read for its value: whatever K and V hold there, and whatever a bias holds where a
// mask hides.
TEST(ModifierFaults, F11HiddenByBiasOrMask) {
  Random random(11);
  for (const auto& [q_len, kv_len] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 13}, {3, 40}, {20, 300}, {1, 1100}, {5, 2100}}) {
    Sequence clean = RandomSequence(random, {4, 2, 8, 20}, Full(), q_len, kv_len);
    const auto mask = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(kv_len));
    for (uint8_t& v : *mask) v = random.OneIn(2) ? 1 : 0;
    for (int64_t key = 32; key < std::min<int64_t>(kv_len, 280); ++key) (*mask)[static_cast<size_t>(key)] = 0;
    for (int kind = 0; kind < 4; ++kind) {
      for (float poison : {kNaN, kInf, -kInf}) {
        const auto with = [&](float x) {
          Sequence s = clean;
          s.k = Shared(*clean.k);
          s.v = Shared(*clean.v);
          s.problem.k = s.k->data();
          s.problem.v = s.v->data();
          std::vector<float> bias(mask->size());
          for (int64_t key = 0; key < kv_len; ++key) {
            if ((*mask)[static_cast<size_t>(key)] != 0) continue;
            if (kind < 3) {
              std::fill_n(s.k->begin() + key * 16, 16, x);
              std::fill_n(s.v->begin() + key * 40, 40, x);
            }
            bias[static_cast<size_t>(key)] = kind == 0 ? -kInf : kind == 3 ? x : 0.0f;
          }
          if (kind > 0) s.SetMask(mask, 0, 0);
          if (kind == 0 || kind == 3) s.SetBias(Shared(bias), 0, 0);
          if (kind == 2) s.problem.softcap = 3.0f;
          return s;
        };
        SCOPED_TRACE(::testing::Message() << "kind " << kind << " poison " << poison);
        EXPECT_TRUE(SameOutput(RunLibrary(with(0.0f)), RunEveryWay(with(poison))));
      }
    }
  }
}

TEST(ModifierFaults, F31Alibi) {
  const auto slope = Shared({0.5f});
  Sequence decode = PositionSequence({}, 1, 4);
  decode.SetSlopes(slope);
  const Output output = RunEveryWay(decode);
  EXPECT_NEAR(output.out[0], 2.084576488, 1e-6);
  EXPECT_NEAR(output.lse[0], 0.787338672, 1e-6);
  EXPECT_GE(ExpectShiftedOracleDisagrees(decode.problem, output), 1);
  Sequence whole = PositionSequence({}, 4, 4);
  whole.SetSlopes(slope);
  const Output all = RunEveryWay(whole);
  EXPECT_TRUE(SameBits(all.out[3], output.out[0]));
  EXPECT_TRUE(SameBits(all.lse[3], output.lse[0]));

  // With a window of 2, and with a bias: keys 2 and 3 weigh e^-0.5 and 1, times e^b.
  decode.problem.window = 2;
  const double e = std::exp(-0.5);
  EXPECT_NEAR(RunEveryWay(decode).out[0], (2 * e + 3) / (e + 1), 1e-6);
  decode.SetBias(Shared({9.0f, 9.0f, 1.0f, 0.25f}), 0, 0);
  const double w2 = std::exp(1.0 - 0.5);
  const double w3 = std::exp(0.25);
  const Output both = RunEveryWay(decode);
  EXPECT_NEAR(both.out[0], (2 * w2 + 3 * w3) / (w2 + w3), 1e-6);
  EXPECT_NEAR(both.lse[0], std::log(w2 + w3), 1e-6);
}

// A slope per query head, negative and zero ones too, far from the first key, in prompt and decode.
TEST(ModifierFaults, F31AlibiOfEveryHead) {
  Random random(31);
  const auto slopes = Shared({0.25f, -0.125f, 0.0f, 1e-4f, 0.5f, 2.0f});
  for (int64_t length : {1, 17, 130, 1030}) {
    Sequence prompt = RandomSequence(random, {6, 2, 8, 8}, {}, std::min<int64_t>(length, 40), length);
    prompt.SetSlopes(slopes);
    const Output whole = RunEveryWay(prompt);
    const int64_t last = prompt.problem.q_len - 1;
    const Output one = RunLibrary(prompt.Rows(last, last + 1, length), AllWays()[1]);
    EXPECT_TRUE(SameBits(whole.out.data() + last * 48, one.out.data(), 48));
    EXPECT_TRUE(SameBits(whole.lse.data() + last * 6, one.lse.data(), 6));
  }
}

TEST(ModifierFaults, Sinks) {
  // Three keys of score 0 and a sink of 0: a quarter each. C8: not scaled, not capped, once, however keys are split.
  Sequence s = PositionSequence(Full(), 1, 3);
  s.SetSinks(Shared({0.0f}));
  EXPECT_EQ(RunEveryWay(s).out[0], 0.75f);
  s.problem.scale = 7.0f;
  s.problem.softcap = 0.5f;
  s.SetSinks(Shared({2.0f}));
  const Output output = RunEveryWay(s);
  EXPECT_NEAR(output.out[0], 3.0 / (3.0 + std::exp(2.0)), 1e-6);
  EXPECT_NEAR(output.lse[0], std::log(3.0 + std::exp(2.0)), 1e-6);
  for (int64_t kv_len : {1, 128, 1024, 1025, 4000}) {
    Sequence many = PositionSequence({}, 1, kv_len, {4, 2, 1, 1});
    many.SetSinks(Shared({0.0f, 3.0f, -200.0f, 90.0f}));
    const Output result = RunEveryWay(many);
    EXPECT_NEAR(result.lse[0], std::log(static_cast<double>(kv_len) + 1.0), 2e-6);
    EXPECT_NEAR(result.lse[3], 90.0, 1e-5);
  }
  // Nothing visible: the sink alone.
  Sequence blind = PositionSequence(Full(), 2, 5, {2, 1, 1, 1});
  blind.problem.window = 0;
  blind.SetSinks(Shared({2.5f, -1.0f}));
  EXPECT_EQ(RunEveryWay(blind).out, (std::vector<float>(4, 0.0f)));
  EXPECT_EQ(RunEveryWay(blind).lse, (std::vector<float>{2.5f, -1.0f, 2.5f, -1.0f}));
  Sequence none = PositionSequence(Full(), 1, 0);
  none.SetSinks(Shared({2.5f}));
  EXPECT_EQ(RunEveryWay(none).lse[0], 2.5f);
  // A sink of -inf takes nothing.
  Random random(8);
  Sequence without = RandomSequence(random, {2, 1, 8, 8}, {}, 3, 50);
  const Output expected = RunLibrary(without);
  without.SetSinks(Shared({-kInf, -kInf}));
  EXPECT_TRUE(SameOutput(expected, RunEveryWay(without)));
}

// One element for everything, by stride 0 in every dimension, columns included.
TEST(ModifierFaults, ConstantBiasByStridesOfZero) {
  Random random(9);
  const Sequence s = RandomSequence(random, {4, 2, 8, 8}, {}, 5, 40);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    uint32_t one = 0;
    std::memcpy(&one,
                dtype == DType::kF32   ? "\x00\x00\x80\x3F"
                : dtype == DType::kF16 ? "\x00\x3C"
                                       : "\x80\x3F",
                dtype == DType::kF32 ? 4 : 2);
    AttentionArgs args;
    args.q = TokensHeadsDim(s.q->data(), 5, 4, 8);
    args.k = TokensHeadsDim(s.k->data(), 40, 2, 8);
    args.v = TokensHeadsDim(s.v->data(), 40, 2, 8);
    Output output{std::vector<float>(5 * 4 * 8), std::vector<float>(5 * 4)};
    args.out = TokensHeadsDim(output.out.data(), 5, 4, 8);
    args.lse = {output.lse.data(), 0, 4, 1};
    args.bias = {&one, dtype, 1, 5, 4, 40, 0, 0, 0, 0};
    SequenceSpec spec;
    spec.q_len = 5;
    spec.kv_len = 40;
    const Status status = Attention(SpecOf(s.problem), std::vector<SequenceSpec>{spec}, args, SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.c_str();
    Sequence expected = s;
    expected.SetBias(Shared(std::vector<float>(40, 1.0f)), 0, 0);
    EXPECT_TRUE(SameOutput(RunLibrary(expected), output)) << DTypeName(dtype);
  }
}

}  // namespace
}  // namespace headlane::testing
