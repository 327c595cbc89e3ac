// Faults that other attention operators shipped, as tests: what a row sees. The numbers F1, F3, ... are those of the
// project's list of public faults; each test states the smallest input that shows the fault and the right result.
//
// Most use the trick q = 0, v[j] = j: the output is the exact mean of the visible key positions, and lse is ln of their
// number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "operator/check.h"
#include "operator/runner.h"
#include "operator/ways.h"
#include "reference/canonical_math.h"

namespace headlane::testing {
namespace {

using reference::Causal;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The means that rows must give, whatever way they are computed.
void ExpectMeans(const Sight& sight, int64_t q_len, int64_t kv_len, const std::vector<float>& means) {
  const Sequence sequence = PositionSequence(sight, q_len, kv_len);
  SCOPED_TRACE(Describe(sequence.problem));
  for (const RunOptions& way : AllWays()) {
    const Output output = RunLibrary(sequence, way);
    EXPECT_EQ(output.out, means) << "cache " << way.cache << " planned for " << way.plan_workers;
    EXPECT_TRUE(NearOracle(sequence.problem, output));
    ExpectShiftedOracleDisagrees(sequence.problem, output);
  }
}

// A wholly hidden run of keys in front, of every length up to a split: the first tile, block and split leave an empty
// state behind.
TEST(MaskFaults, F1HiddenKeysBeforeTheFirstVisibleOne) {
  for (int64_t hidden = 1; hidden <= 1024; ++hidden) {
    const Sequence sequence = PositionSequence({Causal::kBottomRight, 1}, 1, hidden + 1);
    const Output output = RunLibrary(sequence);
    ASSERT_EQ(output.out[0], static_cast<float>(hidden));
    ASSERT_TRUE(SameBits(0.0f, output.lse[0])) << output.lse[0];
  }
  ExpectMeans({Causal::kBottomRight, 10}, 1, 600, {594.5f});
  ExpectMeans({Causal::kBottomRight, 10}, 1, 3000, {2994.5f});
}

TEST(MaskFaults, F3RowsWithoutAnyKey) {
  Random random(3);
  // Six rows over four keys, bottom-right: the first two see nothing.
  const Sequence sequence = RandomSequence(random, {2, 2, 8, 8}, {}, 6, 4);
  const Output alone = RunLibrary(sequence);
  for (int64_t i = 0; i < 2 * 2 * 8; ++i) EXPECT_TRUE(SameBits(0.0f, alone.out[static_cast<size_t>(i)]));
  for (int64_t i = 0; i < 2 * 2; ++i) EXPECT_TRUE(SameBits(-kInf, alone.lse[static_cast<size_t>(i)]));
  EXPECT_TRUE(NearOracle(sequence.problem, alone));
  ExpectShiftedOracleDisagrees(sequence.problem, alone);
  for (RunOptions way : AllWays()) {
    for (bool padded : {false, true}) {
      way.padded = padded;
      const std::vector<Output> twice = RunLibrary(std::vector<Sequence>{sequence, sequence}, way);
      EXPECT_TRUE(SameOutput(alone, twice[0]));
      EXPECT_TRUE(SameOutput(alone, twice[1]));
    }
  }
  // A window of 0 hides everything.
  const Sequence blind = RandomSequence(random, {3, 1, 8, 8}, {Causal::kNo, 0}, 5, 40);
  for (const RunOptions& way : AllWays()) {
    const Output output = RunLibrary(blind, way);
    for (float x : output.out) EXPECT_TRUE(SameBits(0.0f, x));
    for (float x : output.lse) EXPECT_TRUE(SameBits(-kInf, x));
  }
}

TEST(MaskFaults, F5CausalAlignment) {
  ExpectMeans({Causal::kBottomRight, -1}, 1, 8, {3.5f});
  ExpectMeans({Causal::kBottomRight, -1}, 2, 5, {1.5f, 2.0f});
  ExpectMeans({Causal::kBottomRight, -1}, 5, 2, {0.0f, 0.0f, 0.0f, 0.0f, 0.5f});
  ExpectMeans({Causal::kBottomRight, -1}, 4, 4, {0.0f, 0.5f, 1.0f, 1.5f});
  ExpectMeans({Causal::kTopLeft, -1}, 1, 8, {0.0f});
  ExpectMeans({Causal::kTopLeft, -1}, 2, 5, {0.0f, 0.5f});
  ExpectMeans({Causal::kTopLeft, -1}, 5, 2, {0.0f, 0.5f, 0.5f, 0.5f, 0.5f});
  ExpectMeans({Causal::kTopLeft, -1}, 4, 4, {0.0f, 0.5f, 1.0f, 1.5f});
  // The row without a key and the row that sees key 0 alone both give 0; lse tells them apart.
  const Output output = RunLibrary(PositionSequence({Causal::kBottomRight, -1}, 5, 2));
  EXPECT_EQ(output.lse, (std::vector<float>{-kInf, -kInf, -kInf, 0.0f, reference::CanonicalLn(2.0f)}));
}

TEST(MaskFaults, F7WindowCountsTheRowsOwnKey) {
  ExpectMeans({Causal::kBottomRight, 3}, 6, 6, {0.0f, 0.5f, 1.0f, 2.0f, 3.0f, 4.0f});
  ExpectMeans({Causal::kBottomRight, 3}, 1, 6, {4.0f});
  ExpectMeans({Causal::kBottomRight, 1}, 6, 6, {0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f});
  ExpectMeans({Causal::kBottomRight, 1}, 1, 6, {5.0f});
  ExpectMeans({Causal::kBottomRight, 100}, 3, 6, {1.5f, 2.0f, 2.5f});
  // Without causality the window limits the left side only.
  ExpectMeans({Causal::kNo, 2}, 3, 3, {1.0f, 1.0f, 1.5f});
}

TEST(MaskFaults, F7WindowsInPromptAndDecodeAgreeAtEveryEdge) {
  for (int64_t window : {1, 2, 15, 16, 17, 127, 128, 129, 1000}) {
    for (int64_t length : {1, 16, 17, 129, 1030}) {
      const Sequence prompt = PositionSequence({Causal::kBottomRight, window}, length, length);
      const Output whole = RunLibrary(prompt);
      for (int64_t row = 0; row < length; ++row) {
        const int64_t first = std::max<int64_t>(0, row - window + 1);
        ASSERT_EQ(whole.out[static_cast<size_t>(row)], static_cast<float>(0.5 * static_cast<double>(first + row)))
            << window << " " << row;
      }
      const Output last = RunLibrary(prompt.Rows(length - 1, length, length), AllWays()[1]);
      EXPECT_EQ(last.out[0], whole.out.back()) << "window " << window << " length " << length;
    }
  }
}

// The same problem with something else in keys and values that nobody sees.
Sequence WithHidden(const Sequence& original, int64_t begin, int64_t end, float k, float v) {
  Sequence changed = original;
  const reference::Problem& p = original.problem;
  changed.k = std::make_shared<std::vector<float>>(*original.k);
  changed.v = std::make_shared<std::vector<float>>(*original.v);
  std::fill(changed.k->begin() + begin * p.num_kv_heads * p.qk_dim,
            changed.k->begin() + end * p.num_kv_heads * p.qk_dim, k);
  std::fill(changed.v->begin() + begin * p.num_kv_heads * p.v_dim, changed.v->begin() + end * p.num_kv_heads * p.v_dim,
            v);
  changed.problem.k = changed.k->data();
  changed.problem.v = changed.v->data();
  return changed;
}

void ExpectHiddenDoNotMatter(const Sequence& sequence, int64_t begin, int64_t end) {
  for (const RunOptions& way : AllWays()) {
    const Output zeros = RunLibrary(WithHidden(sequence, begin, end, 0.0f, 0.0f), way);
    for (const auto& [k, v] : std::vector<std::pair<float, float>>{
             {kNaN, kNaN}, {kInf, kInf}, {-kInf, 1.0f}, {1.0f, kNaN}, {3e38f, -kInf}}) {
      const Output other = RunLibrary(WithHidden(sequence, begin, end, k, v), way);
      EXPECT_TRUE(SameOutput(zeros, other)) << Describe(sequence.problem) << ", keys " << begin << " to " << end
                                            << " hold " << k << " " << v << ", cache " << way.cache;
    }
  }
}

TEST(MaskFaults, F11HiddenKeysAndValuesAreNeverTouched) {
  Random random(11);
  for (int64_t q_len : {1, 3, 40}) {
    // Left of the window: in the same tile, in whole tiles, blocks and splits.
    for (const auto& [kv_len, window] :
         std::vector<std::pair<int64_t, int64_t>>{{13, 5}, {40, 3}, {300, 20}, {1100, 30}, {2200, 100}}) {
      const Sequence s = RandomSequence(random, {4, 2, 8, 20}, {Causal::kBottomRight, window}, q_len, kv_len);
      const int64_t first_seen = std::max<int64_t>(0, kv_len - q_len - window + 1);
      if (first_seen > 0) ExpectHiddenDoNotMatter(s, 0, first_seen);
    }
    // Right of the last row: top-left rows see the first q_len keys only.
    for (int64_t kv_len : {41, 60, 200, 1100}) {
      const Sequence s = RandomSequence(random, {2, 1, 8, 20}, {Causal::kTopLeft, -1}, q_len, kv_len);
      ExpectHiddenDoNotMatter(s, q_len, kv_len);
    }
  }
}

// A key that some rows see and others don't: only those that see it may notice.
TEST(MaskFaults, F11PoisonReachesOnlyTheRowsThatSeeIt) {
  Random random(12);
  for (int64_t length : {20, 50, 200}) {
    for (int64_t poisoned : {int64_t{0}, int64_t{7}, length / 2, length - 1}) {
      for (int64_t window : {-1, 9}) {
        const Sequence clean = RandomSequence(random, {2, 1, 8, 20}, {Causal::kBottomRight, window}, length, length);
        for (const auto& [k, v] : std::vector<std::pair<float, float>>{{kNaN, 0.5f}, {0.5f, kNaN}, {0.5f, kInf}}) {
          const Sequence dirty = WithHidden(clean, poisoned, poisoned + 1, k, v);
          for (const RunOptions& way : AllWays()) {
            const Output expected = RunLibrary(clean, way);
            const Output actual = RunLibrary(dirty, way);
            for (int64_t row = 0; row < length; ++row) {
              const bool sees = reference::Visible(clean.problem, 0, row, poisoned);
              for (int64_t i = row * 2 * 20; i < (row + 1) * 2 * 20; ++i) {
                const float x = actual.out[static_cast<size_t>(i)];
                if (sees) {
                  ASSERT_FALSE(std::isfinite(x)) << "row " << row << " poisoned " << poisoned;
                } else {
                  ASSERT_TRUE(SameBits(expected.out[static_cast<size_t>(i)], x))
                      << "row " << row << " poisoned " << poisoned;
                }
              }
            }
            if (ActiveTarget().has_fma) {
              ASSERT_TRUE(IsCanonical(dirty.problem, actual));
            }
          }
        }
      }
    }
  }
}

// The unused tail of the last page, and what lies behind kv_len inside a tile. The runner's caches were full of NaN
// before.
TEST(MaskFaults, F11SlotsBehindTheLength) {
  Random random(13);
  RunOptions cached;
  cached.cache = true;
  cached.page_tokens = 128;
  std::vector<Sequence> sequences;
  for (int64_t length : {32, 64, 96, 48, 1, 3, 13})
    sequences.push_back(RandomSequence(random, {2, 1, 8, 20}, {}, 1, length));
  const std::vector<Output> outputs = RunLibrary(sequences, cached);
  for (size_t i = 0; i < sequences.size(); ++i) EXPECT_TRUE(NearOracle(sequences[i].problem, outputs[i]));

  // Committed tokens behind kv_len hold NaN.
  const Sequence written = WithHidden(RandomSequence(random, {2, 1, 8, 20}, {}, 1, 40), 13, 40, kNaN, kNaN);
  Result<KVCache> cache = KVCache::Create(
      {.num_layers = 1, .num_kv_heads = 1, .qk_dim = 8, .v_dim = 20, .page_tokens = 16, .max_tokens = 48});
  ASSERT_TRUE(cache.ok());
  SequenceSpec spec;
  spec.q_len = 1;
  spec.kv_len = 13;
  spec.cache_id = cache->CreateSequence().value();
  ASSERT_TRUE(cache
                  ->Append(spec.cache_id, TokensHeadsDim(written.k->data(), 40, 1, 8),
                           TokensHeadsDim(written.v->data(), 40, 1, 20))
                  .ok());
  Output output{std::vector<float>(40), std::vector<float>(2)};
  AttentionArgs args;
  args.q = TokensHeadsDim(written.problem.q, 1, 2, 8);
  args.out = TokensHeadsDim(output.out.data(), 1, 2, 20);
  args.lse = {output.lse.data(), 2, 2, 1};
  args.cache = &*cache;
  ASSERT_TRUE(Attention(SpecOf(written.problem), std::vector<SequenceSpec>{spec}, args, SerialExecutor()).ok());
  EXPECT_TRUE(SameOutput(RunLibrary(written.Rows(0, 1, 13)), output));
  EXPECT_TRUE(NearOracle(written.Rows(0, 1, 13).problem, output));
}

TEST(MaskFaults, F15ChunksBehindACache) {
  ExpectMeans({}, 3, 516, {256.5f, 257.0f, 257.5f});
  ExpectMeans({}, 2, 130, {64.0f, 64.5f});
  ExpectMeans({}, 4, 1026, {511.0f, 511.5f, 512.0f, 512.5f});
  ExpectMeans({}, 3, 2049, {1023.0f, 1023.5f, 1024.0f});
}

}  // namespace
}  // namespace headlane::testing
