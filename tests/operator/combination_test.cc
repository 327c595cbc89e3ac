// Everything at once: random calls that combine masks, modifiers, element types, head counts, widths, drafts and
// lengths, each compared with the oracle (right), with the scalar canonical program (the same bits), and with runs of
// its sequences alone and in other ways (the same bits again).
//
// HEADLANE_FUZZ_CALLS=n runs n calls instead of those that every test run has, HEADLANE_FUZZ_SEED=s starts at another
// seed. A failure names the seed of its call; HEADLANE_FUZZ_SEED=<it> HEADLANE_FUZZ_CALLS=1 repeats it.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "operator/check.h"
#include "operator/draw.h"
#include "operator/runner.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

// `first`: the test's own seed, and `rounds` its share, unless the environment says otherwise.
template <typename Body>
void ForDrawnCalls(uint64_t first, int64_t rounds, int64_t work, Body body) {
  first = static_cast<uint64_t>(FromEnvironment("HEADLANE_FUZZ_SEED", static_cast<int64_t>(first)));
  rounds = FromEnvironment("HEADLANE_FUZZ_CALLS", rounds);
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(rounds); ++seed) {
    Random random(seed);
    const Call call = DrawCall(random, work);
    std::string trace = "seed " + std::to_string(seed) + ", " + Describe(call.options);
    for (const Sequence& s : call.sequences) trace += "\n  " + Describe(s.problem);
    SCOPED_TRACE(trace);
    body(call, random);
    if (::testing::Test::HasFailure()) return;  // the first one is enough to work on
  }
}

// Canonical where the target promises it; else the plain serial run.
std::vector<Output> Expected(const Call& call) {
  if (!ActiveTarget().has_fma) return RunLibrary(call.sequences, call.options);
  std::vector<Output> expected;
  for (const Sequence& s : call.sequences) expected.push_back(reference::CanonicalAttention(s.problem));
  return expected;
}

void ExpectSame(const std::vector<Output>& expected, const std::vector<Output>& actual, const RunOptions& way) {
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(SameOutput(expected[i], actual[i])) << "sequence " << i << ": " << Describe(way);
}

TEST(Combination, RightAndCanonical) {
  Observed observed;
  ForDrawnCalls(10'000, 200, 700'000, [&](const Call& call, Random&) {
    const std::vector<Output> outputs = RunLibrary(call.sequences, call.options);
    ExpectSame(Expected(call), outputs, call.options);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(NearOracle(call.sequences[i].problem, outputs[i], &observed)) << "sequence " << i;
  });
  RecordProperty("observed_out", std::to_string(observed.out));
  RecordProperty("observed_lse", std::to_string(observed.lse));
}

TEST(Combination, AloneAndInEveryWay) {
  OpenMPExecutor two(2);
  ForDrawnCalls(20'000, 100, 500'000, [&](const Call& call, Random& random) {
    const std::vector<Output> expected = Expected(call);
    for (int round = 0; round < 3; ++round) {
      RunOptions way = AnotherWay(random, call);
      if (random.OneIn(2)) way.executor = &two;
      ExpectSame(expected, RunLibrary(call.sequences, way), way);
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      const RunOptions way = AnotherWay(random, call);
      ExpectSame({expected[i]}, RunLibrary(std::vector<Sequence>{call.sequences[i]}, way), way);
    }
  });
}

TEST(Combination, EveryTarget) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    ForDrawnCalls(30'000, 25, 400'000, [&](const Call& call, Random& random) {
      const RunOptions way = AnotherWay(random, call);
      const std::vector<Output> outputs = RunLibrary(call.sequences, way);
      ExpectSame(Expected(call), outputs, way);
      for (size_t i = 0; i < outputs.size(); ++i)
        EXPECT_TRUE(NearOracle(call.sequences[i].problem, outputs[i])) << "sequence " << i;
    });
  }
}

// The drawing itself, checked: calls of the first test in which each part of the contract is present and matters, so
// that a library without it would have failed there.
TEST(Combination, EveryPartIsDrawnAndMatters) {
  using reference::Problem;
  const std::vector<std::pair<const char*, void (*)(Problem&)>> parts = {
      {"causality", [](Problem& p) { p.causal = reference::Causal::kNo; }},
      {"top-left", [](Problem& p) { p.causal = reference::Causal::kBottomRight; }},
      {"window", [](Problem& p) { p.window = -1; }},
      {"window_right", [](Problem& p) { p.window_right = -1; }},
      {"num_always_visible", [](Problem& p) { p.num_always_visible = 0; }},
      {"chunk", [](Problem& p) { p.chunk = 0; }},
      {"prefix_len", [](Problem& p) { p.prefix_len = 0; }},
      {"q_pos", [](Problem& p) { p.q_pos.reset(); }},
      {"tree", [](Problem& p) { p.tree = nullptr; }},
      {"mask", [](Problem& p) { p.mask = nullptr; }},
      {"bias", [](Problem& p) { p.bias = nullptr; }},
      {"softcap", [](Problem& p) { p.softcap = 0.0f; }},
      {"alibi", [](Problem& p) { p.alibi_slopes = nullptr; }},
      {"sinks", [](Problem& p) { p.sinks = nullptr; }},
      {"scale", [](Problem& p) { p.scale *= 1.5f; }},
      {"out_type", [](Problem& p) { p.out_type = reference::OutType::kF32; }},
  };
  std::vector<int> noticed(parts.size(), 0);
  int in_keys = 0;
  int k_types = 0, v_types = 0;
  for (uint64_t seed = 10'000; seed < 10'100; ++seed) {
    Random random(seed);
    const Call call = DrawCall(random, 50'000);
    in_keys += call.sequences[0].values_in_keys ? 1 : 0;
    k_types |= 1 << static_cast<int>(call.options.k_dtype);
    v_types |= 1 << static_cast<int>(call.options.v_dtype);
    for (const Sequence& s : call.sequences) {
      const Output expected = reference::CanonicalAttention(s.problem);
      for (size_t i = 0; i < parts.size(); ++i) {
        Problem without = s.problem;
        parts[i].second(without);
        if (parts[i].first == std::string("top-left") && s.problem.causal != reference::Causal::kTopLeft) continue;
        if (without.scale == s.problem.scale && Describe(without) == Describe(s.problem)) continue;  // was not there
        if (!SameOutput(expected, reference::CanonicalAttention(without))) ++noticed[i];
      }
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) EXPECT_GE(noticed[i], 3) << parts[i].first;
  EXPECT_GE(in_keys, 3);
  EXPECT_EQ(k_types, (1 << kNumDTypes) - 1) << "not every element type of keys was drawn";
  EXPECT_EQ(v_types, (1 << kNumDTypes) - 1) << "not every element type of values was drawn";
}

// NaN, infinities and huge numbers anywhere: they reach the rows that see them, as the scalar program says, and no
// other.
TEST(Combination, NonFiniteInputs) {
  for (const TargetInfo& target : UsableFmaTargets()) {
    const ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    ForDrawnCalls(50'000, 40, 300'000, [&](const Call& call, Random& random) {
      for (const Sequence& s : call.sequences) {
        for (const auto& [data, dtype] :
             {std::pair(s.q.get(), call.options.q_dtype), std::pair(s.k.get(), call.options.k_dtype),
              std::pair(s.v.get(), call.options.v_dtype)}) {
          if (data->empty() || random.OneIn(3)) continue;
          const std::vector<float> odd = {
              std::numeric_limits<float>::quiet_NaN(),         std::numeric_limits<float>::infinity(),
              -std::numeric_limits<float>::infinity(),         dtype == DType::kF16 ? 65504.0f : 0x1.FEp127f,
              dtype == DType::kF16 ? -65504.0f : -0x1.FEp127f, dtype == DType::kF16 ? 0x1p-24f : 0x1p-133f};
          for (int64_t n = random.Int(1, 5); n > 0; --n)
            (*data)[static_cast<size_t>(random.Int(0, static_cast<int64_t>(data->size()) - 1))] = random.Pick(odd);
        }
        // What is quantised takes its row's neighbours along.
        RoundRows(*s.k, call.options.k_dtype, s.problem.qk_dim);
        if (!s.values_in_keys) RoundRows(*s.v, call.options.v_dtype, s.problem.v_dim);
        if (s.bias != nullptr && random.OneIn(3)) {
          (*s.bias)[static_cast<size_t>(random.Int(0, static_cast<int64_t>(s.bias->size()) - 1))] =
              random.Pick<float>({std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()});
        }
      }
      const std::vector<Output> expected = Expected(call);
      for (int round = 0; round < 2; ++round) {
        const RunOptions way = AnotherWay(random, call);
        ExpectSame(expected, RunLibrary(call.sequences, way), way);
      }
    });
  }
}

// (m, l, o) is what out and lse are made of, and costs them nothing.
TEST(Combination, States) {
  ForDrawnCalls(40'000, 60, 400'000, [&](const Call& call, Random& random) {
    std::vector<std::vector<reference::State>> states;
    RunOptions way = AnotherWay(random, call);
    const std::vector<Output> without = RunLibrary(call.sequences, way);
    way.states = &states;
    way.want_out = random.OneIn(2);
    const std::vector<Output> with = RunLibrary(call.sequences, way);
    for (size_t i = 0; i < call.sequences.size(); ++i) {
      const reference::Problem& p = call.sequences[i].problem;
      if (way.want_out) {
        EXPECT_TRUE(SameOutput(without[i], with[i])) << Describe(way);
      }
      const std::vector<reference::State> expected = CanonicalStates(p);
      ASSERT_EQ(states[i].size(), expected.size());
      for (size_t row = 0; row < expected.size(); ++row) {
        const reference::State& state = states[i][row];
        if (ActiveTarget().has_fma) {
          ASSERT_TRUE(SameBits(expected[row].m, state.m, NaNs::kEqual)) << expected[row].m << " " << state.m;
          ASSERT_TRUE(SameBits(expected[row].l, state.l, NaNs::kEqual)) << expected[row].l << " " << state.l;
          ASSERT_TRUE(SameBits(expected[row].o, state.o, NaNs::kEqual)) << "row " << row << ": " << Describe(way);
        }
        std::vector<float> out(static_cast<size_t>(p.v_dim));
        float lse = 0.0f;
        CanonicalFinish(state, out.data(), &lse);
        for (float& x : out) x = RoundTo(p.out_type, x);
        ASSERT_TRUE(SameBits(without[i].out.data() + row * out.size(), out.data(), out.size()));
        if (ActiveTarget().has_fma) {  // ln
          ASSERT_TRUE(SameBits(without[i].lse[row], lse));
        }
      }
    }
  });
}

}  // namespace
}  // namespace headlane::testing
