// The edge matrix: every shape and mask whose size lies at an edge of a tile, block, split or page, right within the
// derived bound and canonical to the bit, from plain tensors and from the cache.
#include <gtest/gtest.h>

#include <vector>

#include "operator/check.h"
#include "operator/runner.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

using reference::Causal;

// The largest |error| / bound that this program shows, rounded up; the same on every machine, as the bits are. The
// bound adds up worst cases: see error_bound.h.
constexpr double kPinnedOut = 0.08;
constexpr double kPinnedLse = 0.20;

class Accuracy : public ::testing::Test {
 protected:
  void Check(const Heads& heads, const Sight& sight, int64_t q_len, int64_t kv_len, bool check_shift = false) {
    Random random(static_cast<uint64_t>(q_len * 100003 + kv_len * 17 + heads.qk_dim));
    const Sequence sequence = RandomSequence(random, heads, sight, q_len, kv_len);
    SCOPED_TRACE(Describe(sequence.problem) + " on " + ActiveTarget().name);
    const Output plain = RunLibrary(sequence);
    ASSERT_TRUE(NearOracle(sequence.problem, plain, &observed_));
    if (ActiveTarget().has_fma) {
      ASSERT_TRUE(IsCanonical(sequence.problem, plain));
    }
    RunOptions cached;
    cached.cache = true;
    cached.page_tokens = 16 * random.Int(1, 16);
    ASSERT_TRUE(SameOutput(plain, RunLibrary(sequence, cached))) << "cache, pages of " << cached.page_tokens;
    if (check_shift) ExpectShiftedOracleDisagrees(sequence.problem, plain);
  }

  void TearDown() override {
    RecordProperty("observed_out", std::to_string(observed_.out));
    RecordProperty("observed_lse", std::to_string(observed_.lse));
    if (!ActiveTarget().has_fma) return;
    EXPECT_LE(observed_.out, kPinnedOut);
    EXPECT_LE(observed_.lse, kPinnedLse);
  }

  Observed observed_;
};

const std::vector<Sight> kSights = {
    {Causal::kNo, -1},         {Causal::kBottomRight, -1},  {Causal::kTopLeft, -1},       {Causal::kBottomRight, 1},
    {Causal::kBottomRight, 3}, {Causal::kBottomRight, 128}, {Causal::kBottomRight, 5000}, {Causal::kNo, 5},
    {Causal::kTopLeft, 20},    {Causal::kBottomRight, 0},
};

TEST_F(Accuracy, KeyLengthsAroundTilesAndBlocks) {
  for (const Sight& sight : kSights) {
    for (int64_t kv_len : {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 143, 144, 145, 255, 256, 257}) {
      for (int64_t q_len : {int64_t{1}, int64_t{2}, int64_t{19}, kv_len, kv_len + 3})
        Check({2, 1, 7, 5}, sight, q_len, kv_len, q_len < 20);
    }
  }
}

TEST_F(Accuracy, KeyLengthsAroundSplits) {
  for (const Sight& sight : kSights) {
    for (int64_t kv_len : {1022, 1023, 1024, 1025, 1039, 1040, 1041, 1151, 1152, 1153, 2047, 2048, 2049, 3073}) {
      for (int64_t q_len : {1, 5, 40}) Check({3, 1, 5, 9}, sight, q_len, kv_len);
    }
  }
}

TEST_F(Accuracy, ManyRows) {
  Check({2, 2, 16, 16}, {Causal::kBottomRight, -1}, 300, 300);
  Check({2, 1, 16, 16}, {Causal::kNo, -1}, 200, 1100);
  Check({4, 1, 8, 8}, {Causal::kBottomRight, 100}, 1100, 1100);
  Check({1, 1, 8, 8}, {Causal::kTopLeft, -1}, 700, 90);
  Check({2, 1, 8, 8}, {Causal::kBottomRight, -1}, 500, 90);
}

TEST_F(Accuracy, GroupSizes) {
  for (int64_t kv_heads : {1, 2}) {
    for (int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
      for (int64_t q_len : {1, 2, 3, 13, 50}) {
        for (const Sight& sight : {Sight{Causal::kBottomRight, -1}, Sight{Causal::kBottomRight, 40}}) {
          Check({group * kv_heads, kv_heads, 12, 20}, sight, q_len, 141);
        }
      }
    }
  }
}

TEST_F(Accuracy, Widths) {
  for (int64_t dim : {1, 2, 3, 7, 15, 16, 17, 46, 64, 80, 96, 100, 112, 128, 160, 192, 256, 257}) {
    for (int64_t q_len : {1, 4, 33}) {
      Check({2, 1, dim, dim}, {Causal::kBottomRight, -1}, q_len, 150);
      Check({3, 3, dim, 40}, {Causal::kBottomRight, -1}, q_len, 33);
      Check({3, 1, 24, dim}, {Causal::kNo, -1}, q_len, 33);
    }
  }
  for (int64_t q_len : {1, 9, 70}) Check({8, 1, 576, 512}, {Causal::kBottomRight, -1}, q_len, 300);
}

TEST_F(Accuracy, SequencesOfManyLengthsInOneCall) {
  Random random(5);
  for (const Sight& sight : kSights) {
    for (bool padded : {false, true}) {
      std::vector<Sequence> sequences;
      for (const auto& [q_len, kv_len] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 5}, {0, 0}, {3, 3}, {0, 40}, {2, 600}, {40, 40}, {7, 0}, {1, 1300}, {30, 20}, {129, 129}, {1, 1}}) {
        sequences.push_back(RandomSequence(random, {6, 2, 20, 12}, sight, q_len, kv_len));
      }
      RunOptions options;
      options.padded = padded;
      const std::vector<Output> outputs = RunLibrary(sequences, options);
      for (size_t i = 0; i < sequences.size(); ++i) {
        SCOPED_TRACE(Describe(sequences[i].problem));
        EXPECT_TRUE(NearOracle(sequences[i].problem, outputs[i], &observed_));
        if (ActiveTarget().has_fma) {
          EXPECT_TRUE(IsCanonical(sequences[i].problem, outputs[i]));
        }
      }
      options.want_lse = false;
      const std::vector<Output> without = RunLibrary(sequences, options);
      for (size_t i = 0; i < sequences.size(); ++i)
        EXPECT_TRUE(SameBits(outputs[i].out, without[i].out)) << "without lse";
    }
  }
}

// Scores far apart: weights that underflow, maxima that jump, and rows of one key only.
TEST_F(Accuracy, LargeScores) {
  for (float size : {10.0f, 100.0f, 1000.0f}) {
    for (int64_t kv_len : {40, 300, 2100}) {
      Random random(static_cast<uint64_t>(kv_len));
      Sequence sequence = RandomSequence(random, {2, 1, 8, 8}, {Causal::kBottomRight, -1}, 20, kv_len);
      for (float& x : *sequence.q) x *= size;
      SCOPED_TRACE(Describe(sequence.problem));
      const Output output = RunLibrary(sequence);
      EXPECT_TRUE(NearOracle(sequence.problem, output, &observed_)) << "size " << size;
      if (ActiveTarget().has_fma) {
        EXPECT_TRUE(IsCanonical(sequence.problem, output)) << "size " << size;
      }
    }
  }
}

// The other targets: the whole matrix would take too long, its corners do not.
TEST_F(Accuracy, EveryTarget) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (const Sight& sight : kSights) {
      for (int64_t kv_len : {1, 17, 130, 1025}) {
        for (int64_t q_len : {1, 3, 21}) Check({4, 2, 33, 17}, sight, q_len, kv_len);
      }
    }
    for (int64_t dim : {1, 64, 128, 257}) Check({6, 2, dim, dim}, {Causal::kBottomRight, -1}, 14, 140);
  }
}

}  // namespace
}  // namespace headlane::testing
