// Keys and values that are stored rotated: what is stored is the rotated row in every type, attention over it is the
// canonical program's to the bit from a cache and from pages of every kind, with every modifier, and what rotation is
// for: int4 loses less where a few features are much larger than the others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "headlane/ops.h"
#include "headlane/target.h"
#include "operator/runner.h"
#include "operator/sequence.h"
#include "operator/tensors.h"
#include "reference/canonical.h"
#include "reference/canonical_ops.h"
#include "reference/oracle.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

// The same sequence with keys and values as a rotating cache of these types has them.
Sequence AsStored(const Sequence& raw, DType k_dtype, DType v_dtype) {
  Sequence stored = raw;
  const auto rotate = [](std::vector<float>& rows, int64_t dim, DType dtype) {
    for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(dim)) reference::CanonicalHadamard(&rows[i], dim);
    RoundRows(rows, dtype, dim);
  };
  stored.k = std::make_shared<std::vector<float>>(*raw.k);
  rotate(*stored.k, raw.problem.qk_dim, k_dtype);
  stored.problem.k = stored.k->data();
  if (raw.values_in_keys) {
    stored.v = stored.k;
  } else {
    stored.v = std::make_shared<std::vector<float>>(*raw.v);
    rotate(*stored.v, raw.problem.v_dim, v_dtype);
  }
  stored.problem.v = stored.v->data();
  stored.problem.rotate = true;
  return stored;
}

struct Store {
  bool cache;
  Pages pages;
  int64_t page_tokens;
};
constexpr Store kStores[] = {
    {true, Pages::kNo, 64}, {false, Pages::kTiles, 32}, {false, Pages::kTokenRows, 16}, {false, Pages::kHeadRows, 7}};

RunOptions OptionsOf(const Store& store, DType k, DType v) {
  RunOptions options;
  options.cache = store.cache;
  options.pages = store.pages;
  options.page_tokens = store.page_tokens;
  options.k_dtype = k;
  options.v_dtype = v;
  options.rotate = true;
  return options;
}

TEST(Rotated, HasTheBitsOfTheCanonicalProgram) {
  if (!ActiveTarget().has_fma) GTEST_SKIP() << "canonical bits need FMA";
  Random random(1);
  constexpr std::pair<DType, DType> kTypes[] = {{DType::kF32, DType::kF32},   {DType::kF16, DType::kBF16},
                                                {DType::kBF16, DType::kF16},  {DType::kI8, DType::kI8},
                                                {DType::kF8E4M3, DType::kI4}, {DType::kI4, DType::kI4}};
  constexpr std::pair<int64_t, int64_t> kDims[] = {{64, 64}, {1, 1}, {80, 96}, {7, 33}, {128, 100}};
  for (const auto& [k, v] : kTypes) {
    for (const auto& [qk_dim, v_dim] : kDims) {
      const Heads heads{.num_q_heads = 6, .num_kv_heads = 2, .qk_dim = qk_dim, .v_dim = v_dim};
      Sight sight;
      if (random.OneIn(2)) sight.window = 50;
      if (random.OneIn(2)) sight.softcap = 2.0f;
      std::vector<Sequence> raw, stored;
      for (const auto& [q_len, kv_len] :
           {std::pair<int64_t, int64_t>{1, 140}, {9, 40}, {3, 1}, {2, 0}, {1, 1030}, {40, 70}}) {
        raw.push_back(RandomSequence(random, heads, sight, q_len, kv_len));
      }
      if (random.OneIn(2)) {
        const auto sinks = std::make_shared<std::vector<float>>(random.Floats(6, 2.0f));
        for (Sequence& s : raw) s.SetSinks(sinks);
      }
      for (const Sequence& s : raw) stored.push_back(AsStored(s, k, v));
      for (const Store& store : kStores) {
        if ((IsQuantized(k) || IsQuantized(v)) && !store.cache && store.pages != Pages::kTiles) continue;
        const RunOptions options = OptionsOf(store, k, v);
        const std::vector<Output> got = RunLibrary(raw, options);
        for (size_t i = 0; i < raw.size(); ++i) {
          EXPECT_TRUE(SameOutput(reference::CanonicalAttention(stored[i].problem), got[i]))
              << Describe(options) << ": " << Describe(raw[i].problem);
        }
      }
    }
  }
}

TEST(Rotated, ValuesInKeysAreTheirOwnBlocks) {
  if (!ActiveTarget().has_fma) GTEST_SKIP() << "canonical bits need FMA";
  Random random(2);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kI8}) {
    // 48 = 32 + 16: the first 32 features are turned for themselves.
    const Heads heads{.num_q_heads = 4, .num_kv_heads = 1, .qk_dim = 48, .v_dim = 32};
    const Sequence raw = WithValuesInKeys(RandomSequence(random, heads, {}, 5, 90));
    const Sequence stored = AsStored(raw, type, type);
    for (const Store& store : kStores) {
      if (IsQuantized(type) && !store.cache && store.pages != Pages::kTiles) continue;
      EXPECT_TRUE(
          SameOutput(reference::CanonicalAttention(stored.problem), RunLibrary(raw, OptionsOf(store, type, type))))
          << DTypeName(type);
    }
  }
}

TEST(Rotated, StatesAreTurnedBack) {
  if (!ActiveTarget().has_fma) GTEST_SKIP() << "canonical bits need FMA";
  Random random(3);
  const Heads heads{.num_q_heads = 2, .num_kv_heads = 1, .qk_dim = 24, .v_dim = 40};
  const Sequence raw = RandomSequence(random, heads, {}, 3, 1500);
  const Sequence stored = AsStored(raw, DType::kF32, DType::kF32);
  std::vector<std::vector<reference::State>> states;
  RunOptions options = OptionsOf(kStores[0], DType::kF32, DType::kF32);
  options.plan_workers = 4;
  options.states = &states;
  RunLibrary(raw, options);
  const std::vector<reference::State> expected = reference::CanonicalStates(stored.problem);
  ASSERT_EQ(states.size(), 1u);
  ASSERT_EQ(states[0].size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(states[0][i].m, expected[i].m);
    EXPECT_EQ(states[0][i].l, expected[i].l);
    EXPECT_EQ(states[0][i].o, expected[i].o);
  }
}

// In f32 it is the same attention: within rounding of the one that is not rotated.
TEST(Rotated, IsAttentionOverTheSameRows) {
  Random random(4);
  const Heads heads{.num_q_heads = 4, .num_kv_heads = 2, .qk_dim = 72, .v_dim = 56};
  const Sequence raw = RandomSequence(random, heads, {}, 4, 300);
  const reference::OracleResult exact = reference::Oracle(raw.problem);
  const reference::OracleResult turned = reference::Oracle(AsStored(raw, DType::kF32, DType::kF32).problem);
  const Output got = RunLibrary(raw, OptionsOf(kStores[0], DType::kF32, DType::kF32));
  for (size_t i = 0; i < exact.out.size(); ++i) {
    EXPECT_NEAR(exact.out[i], turned.out[i], 2e-6);
    EXPECT_NEAR(exact.out[i], static_cast<double>(got.out[i]), 4e-6);
  }
}

// What a hidden key holds stays hidden, also where its rotation spreads it; a visible NaN makes its row NaN.
TEST(Rotated, NonFiniteRowsStayWhereTheyAre) {
  Random random(5);
  const Heads heads{.num_q_heads = 2, .num_kv_heads = 1, .qk_dim = 32, .v_dim = 32};
  for (const DType type : {DType::kF32, DType::kF16, DType::kI4}) {
    for (const Store& store : kStores) {
      if (IsQuantized(type) && !store.cache && store.pages != Pages::kTiles) continue;
      Sight sight;
      sight.window = 20;
      const Sequence clean = RandomSequence(random, heads, sight, 1, 100);
      Sequence dirty = clean;
      dirty.k = std::make_shared<std::vector<float>>(*clean.k);
      dirty.v = std::make_shared<std::vector<float>>(*clean.v);
      dirty.problem.k = dirty.k->data();
      dirty.problem.v = dirty.v->data();
      // Key 79 is the last that the row at 99 does not see; its tile holds keys that it does.
      (*dirty.k)[79 * 32 + 3] = NAN;
      (*dirty.v)[79 * 32 + 5] = INFINITY;
      const RunOptions options = OptionsOf(store, type, type);
      const Output expected = RunLibrary(clean, options);
      EXPECT_FALSE(std::isnan(expected.out[0]));
      EXPECT_TRUE(SameOutput(expected, RunLibrary(dirty, options))) << Describe(options);
      (*dirty.v)[80 * 32 + 5] = NAN;
      for (const float x : RunLibrary(dirty, options).out) EXPECT_TRUE(std::isnan(x)) << Describe(options);
    }
  }
}

// Root of the mean squared error of attention over int4, relative to the outputs' own size.
double RelativeError(const Sequence& sequence, bool rotate) {
  RunOptions options = OptionsOf(kStores[0], DType::kI4, DType::kI4);
  options.rotate = rotate;
  const Output got = RunLibrary(sequence, options);
  const reference::OracleResult exact = reference::Oracle(sequence.problem);
  double error = 0, size = 0;
  for (size_t i = 0; i < exact.out.size(); ++i) {
    const double d = static_cast<double>(got.out[i]) - exact.out[i];
    error += d * d;
    size += exact.out[i] * exact.out[i];
  }
  return std::sqrt(error / size);
}

// Keys of real models have a few features that are many times as large as the others, the same ones in every token.
TEST(Rotated, Int4LosesLessWhereFeaturesStickOut) {
  Random random(6);
  const Heads heads{.num_q_heads = 4, .num_kv_heads = 2, .qk_dim = 128, .v_dim = 128};
  for (int round = 0; round < 3; ++round) {
    const Sequence even = RandomSequence(random, heads, {}, 8, 500);
    Sequence odd = even;
    odd.k = std::make_shared<std::vector<float>>(*even.k);
    odd.v = std::make_shared<std::vector<float>>(*even.v);
    odd.problem.k = odd.k->data();
    odd.problem.v = odd.v->data();
    for (size_t row = 0; row < odd.k->size() / 128; ++row) {
      for (const size_t feature : {5, 37, 70, 111}) {  // one in every group of int4
        (*odd.k)[row * 128 + feature] *= 16.0f;
        (*odd.v)[row * 128 + feature] *= 16.0f;
      }
    }
    const double plain = RelativeError(odd, false), turned = RelativeError(odd, true);
    EXPECT_LT(turned, 0.6 * plain) << plain;
    // Where nothing sticks out there is little to lose or to gain.
    EXPECT_LT(RelativeError(even, true), 1.5 * RelativeError(even, false));
    RecordProperty("plain_" + std::to_string(round), std::to_string(plain));
    RecordProperty("rotated_" + std::to_string(round), std::to_string(turned));
  }
}

}  // namespace
}  // namespace headlane::testing
