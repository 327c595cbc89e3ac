// Every kind of mask on its own, with means of visible positions worked out by hand (q = 0, v[j] = j), in every way of
// running, and against an oracle that is off by one in any parameter, which must then disagree. Then what each kind
// hides is filled with NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
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

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Right, and the same in every way; and off by one is noticed in at least `ways` ways.
void ExpectRight(const Sequence& sequence, int64_t ways) {
  SCOPED_TRACE(Describe(sequence.problem));
  const Output output = RunLibrary(sequence);
  ASSERT_TRUE(NearOracle(sequence.problem, output));
  if (ActiveTarget().has_fma) {
    ASSERT_TRUE(IsCanonical(sequence.problem, output));
  }
  for (const RunOptions& way : AllWays()) ASSERT_TRUE(SameOutput(output, RunLibrary(sequence, way))) << Describe(way);
  EXPECT_GE(ExpectShiftedOracleDisagrees(sequence.problem, output), ways);
}

const Heads kHeads{2, 1, 5, 17};

void ExpectMeans(const Sequence& sequence, const std::vector<float>& means) {
  SCOPED_TRACE(Describe(sequence.problem));
  for (const RunOptions& way : AllWays()) {
    const Output output = RunLibrary(sequence, way);
    EXPECT_EQ(output.out, means) << Describe(way);
    EXPECT_TRUE(NearOracle(sequence.problem, output)) << Describe(way);
    ExpectShiftedOracleDisagrees(sequence.problem, output);
  }
}

Sight Seen(Causal causal, int64_t window, int64_t right = -1, int64_t always = 0, int64_t chunk = 0) {
  Sight sight;
  sight.causal = causal;
  sight.window = window;
  sight.window_right = right;
  sight.num_always_visible = always;
  sight.chunk = chunk;
  return sight;
}

// Keys and values that no row sees hold something else: nothing changes.
void ExpectUnseenDoNotMatter(const Sequence& sequence) {
  const reference::Problem& p = sequence.problem;
  std::vector<int64_t> unseen;
  for (int64_t key = 0; key < p.kv_len; ++key) {
    bool seen = false;
    for (int64_t row = 0; row < p.q_len && !seen; ++row) {
      for (int64_t head = 0; head < p.num_q_heads && !seen; ++head) seen = Visible(p, head, row, key);
    }
    if (!seen) unseen.push_back(key);
  }
  ASSERT_FALSE(unseen.empty()) << Describe(p);
  const auto filled = [&](float x) {
    Sequence copy = sequence;
    copy.k = std::make_shared<std::vector<float>>(*sequence.k);
    copy.v = std::make_shared<std::vector<float>>(*sequence.v);
    for (int64_t key : unseen) {
      std::fill_n(copy.k->begin() + key * p.num_kv_heads * p.qk_dim, p.num_kv_heads * p.qk_dim, x);
      std::fill_n(copy.v->begin() + key * p.num_kv_heads * p.v_dim, p.num_kv_heads * p.v_dim, x);
    }
    copy.problem.k = copy.k->data();
    copy.problem.v = copy.v->data();
    return copy;
  };
  const Output zeros = RunLibrary(filled(0.0f));
  for (const RunOptions& way : AllWays()) {
    for (float x : {kNaN, kInf, -kInf, 3e38f})
      EXPECT_TRUE(SameOutput(zeros, RunLibrary(filled(x), way))) << Describe(p) << " " << x << " " << Describe(way);
  }
}

TEST(MaskKinds, RightWindow) {
  ExpectMeans(PositionSequence(Seen(Causal::kNo, -1, 1), 4, 4), {0.5f, 1.0f, 1.5f, 1.5f});
  ExpectMeans(PositionSequence(Seen(Causal::kNo, 2, 1), 5, 5), {0.5f, 1.0f, 2.0f, 3.0f, 3.5f});
  ExpectMeans(PositionSequence(Seen(Causal::kNo, -1, 0), 3, 3), {0.0f, 0.5f, 1.0f});
  ExpectMeans(PositionSequence(Seen(Causal::kBottomRight, -1, 2), 3, 3), {0.0f, 0.5f, 1.0f});
  Random random(1);
  for (int64_t right : {0, 1, 15, 16, 17, 127, 128, 129, 1000}) {
    for (int64_t window : {-1, 1, 40}) {
      Sequence s = RandomSequence(random, kHeads, Seen(Causal::kNo, window, right), 19, 400);
      s.problem.q_pos = 200;
      ExpectRight(s, right == 1000 ? (window < 0 ? 0 : 3) : 3);
    }
  }
  ExpectUnseenDoNotMatter(RandomSequence(random, {4, 2, 12, 20}, Seen(Causal::kNo, 5, 3), 1, 200));
  Sequence early = RandomSequence(random, {4, 2, 12, 20}, Seen(Causal::kNo, 5, 3), 20, 1200);
  early.problem.q_pos = 500;
  ExpectUnseenDoNotMatter(early);
}

TEST(MaskKinds, AlwaysVisible) {
  ExpectMeans(PositionSequence(Seen(Causal::kBottomRight, 2, -1, 2), 6, 6), {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 2.5f});
  ExpectMeans(PositionSequence(Seen(Causal::kBottomRight, 1, -1, 1), 1, 2001), {1000.0f});
  Random random(2);
  for (int64_t always : {1, 16, 17, 130, 1100}) {
    for (int64_t window : {1, 16, 100, 1000}) {
      for (int64_t q_len : {1, 19}) {
        const Sequence s = RandomSequence(random, kHeads, Seen(Causal::kBottomRight, window, -1, always), q_len, 1300);
        ExpectRight(s, window + always < 1300 ? 3 : 0);
      }
    }
  }
  ExpectUnseenDoNotMatter(RandomSequence(random, {4, 2, 12, 20}, Seen(Causal::kBottomRight, 30, -1, 5), 20, 300));
  ExpectUnseenDoNotMatter(RandomSequence(random, {4, 2, 12, 20}, Seen(Causal::kBottomRight, 30, -1, 5), 3, 2300));
}

TEST(MaskKinds, Chunks) {
  ExpectMeans(PositionSequence(Seen(Causal::kBottomRight, -1, -1, 0, 3), 7, 7),
              {0.0f, 0.5f, 1.0f, 3.0f, 3.5f, 4.0f, 6.0f});
  ExpectMeans(PositionSequence(Seen(Causal::kNo, -1, -1, 0, 3), 5, 5), {1.0f, 1.0f, 1.0f, 3.5f, 3.5f});
  Random random(3);
  for (int64_t chunk : {1, 2, 15, 16, 17, 128, 1000}) {
    for (const Sight& sight : {Seen(Causal::kBottomRight, -1, -1, 0, chunk),
                               Seen(Causal::kBottomRight, 20, -1, 3, chunk), Seen(Causal::kNo, -1, -1, 0, chunk)}) {
      ExpectRight(RandomSequence(random, kHeads, sight, 29, 1130), 2);
      ExpectRight(RandomSequence(random, kHeads, sight, 1, 1130), 1);
    }
  }
  ExpectUnseenDoNotMatter(RandomSequence(random, {4, 2, 12, 20}, Seen(Causal::kBottomRight, -1, -1, 0, 70), 20, 300));
  ExpectUnseenDoNotMatter(RandomSequence(random, {4, 2, 12, 20}, Seen(Causal::kNo, -1, -1, 3, 70), 1, 2300));
}

TEST(MaskKinds, Prefixes) {
  Sequence small = PositionSequence({}, 5, 5);
  small.problem.prefix_len = 3;
  ExpectMeans(small, {1.0f, 1.0f, 1.0f, 1.5f, 2.0f});
  Random random(4);
  for (int64_t prefix : {1, 15, 16, 17, 128, 200, 1030}) {
    for (const Sight& sight :
         {Seen(Causal::kBottomRight, -1), Seen(Causal::kTopLeft, -1), Seen(Causal::kBottomRight, 9),
          Seen(Causal::kBottomRight, -1, 40), Seen(Causal::kBottomRight, -1, -1, 0, 30)}) {
      const int64_t length = prefix + 50;
      Sequence s = RandomSequence(random, kHeads, sight, std::min<int64_t>(length, 70), length);
      s.problem.prefix_len = prefix;
      ExpectRight(s, 1);
    }
  }
}

TEST(MaskKinds, PositionOfTheFirstRow) {
  Sequence small = PositionSequence({}, 2, 5);
  small.problem.q_pos = 1;
  ExpectMeans(small, {0.5f, 1.0f});
  small.problem.q_pos = -1;
  EXPECT_EQ(RunLibrary(small).lse, (std::vector<float>{-kInf, 0.0f}));
  Random random(5);
  for (int64_t q_pos : {-3, 0, 1, 16, 127, 1023, 1024, 1199, 1200, 5000}) {
    for (const Sight& sight : {Seen(Causal::kBottomRight, -1), Seen(Causal::kTopLeft, 30), Seen(Causal::kNo, 30, 20),
                               Seen(Causal::kBottomRight, -1, -1, 2, 64)}) {
      Sequence s = RandomSequence(random, kHeads, sight, 20, 1200);
      s.problem.q_pos = q_pos;
      s.SetSlopes(std::make_shared<std::vector<float>>(std::vector<float>{0.5f, -0.01f}));
      ExpectRight(s, q_pos < 1200 ? 2 : 0);
    }
  }
}

// One row sees every second key, another none, a third all: by bytes and by bits, for each way of broadcasting.
TEST(MaskKinds, BooleanMasks) {
  Random random(6);
  for (const auto& [q_len, kv_len] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 7}, {3, 17}, {21, 150}, {4, 1100}}) {
    for (bool by_head : {false, true}) {
      for (bool by_row : {false, true}) {
        for (const Sight& sight : {Seen(Causal::kNo, -1), Seen(Causal::kBottomRight, 60)}) {
          Sequence s = RandomSequence(random, {4, 2, 12, 20}, sight, q_len, kv_len);
          const int64_t rows = by_row ? q_len : 1;
          std::vector<uint8_t> mask(static_cast<size_t>(rows * kv_len * (by_head ? 4 : 1)));
          for (uint8_t& visible : mask) visible = random.OneIn(2) ? 1 : 0;
          if (by_row && q_len >= 3) {
            std::fill_n(mask.begin(), kv_len, uint8_t{0});
            std::fill_n(mask.begin() + kv_len, kv_len, uint8_t{1});
          }
          s.SetMask(std::make_shared<std::vector<uint8_t>>(mask), by_head ? rows * kv_len : 0, by_row ? kv_len : 0);
          SCOPED_TRACE(Describe(s.problem));
          const Output first = RunLibrary(s);
          ASSERT_TRUE(NearOracle(s.problem, first));
          if (ActiveTarget().has_fma) {
            ASSERT_TRUE(IsCanonical(s.problem, first));
          }
          if (kv_len > 100) {
            ASSERT_GE(ExpectShiftedOracleDisagrees(s.problem, first), 1);
          }
          for (RunOptions way : AllWays()) {
            for (auto format : {BoolMaskView::Format::kBytes, BoolMaskView::Format::kBits}) {
              way.mask_format = format;
              ASSERT_TRUE(SameOutput(first, RunLibrary(s, way))) << Describe(way);
            }
          }
        }
      }
    }
  }
  Sequence holes = RandomSequence(random, {4, 2, 12, 20}, Seen(Causal::kNo, -1), 20, 1300);
  auto mask = std::make_shared<std::vector<uint8_t>>(1300, uint8_t{1});
  for (int64_t key = 0; key < 1300; ++key)
    (*mask)[static_cast<size_t>(key)] = key % 3 == 0 || (key > 200 && key < 700) ? 0 : 1;
  holes.SetMask(mask, 0, 0);
  ExpectUnseenDoNotMatter(holes);
}

TEST(MaskKinds, Trees) {
  // Two kept tokens, a root, its two children, and a child of the second.
  Sequence small = PositionSequence({}, 4, 6);
  small.SetTree({1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1});
  ExpectMeans(small, {1.0f, 1.5f, 1.75f, 2.4f});
  small.problem.window = 2;  // positions: 2, 3, 3, 4
  ExpectMeans(small, {1.5f, 2.5f, 3.0f, 4.5f});

  Random random(7);
  for (int64_t drafted : {1, 2, 7, 16, 17, 33, 64, 65, 130}) {
    for (int64_t kept : {0, 10, 120, 1020}) {
      if (drafted > 60 && kept > 10) continue;
      for (const Sight& sight :
           {Seen(Causal::kBottomRight, -1), Seen(Causal::kNo, 9, -1, 2), Seen(Causal::kBottomRight, -1, -1, 0, 5)}) {
        Sequence s = RandomSequence(random, kHeads, sight, drafted, kept + drafted);
        s.SetTree(RandomTree(random, drafted));
        if (random.OneIn(2)) s.SetSlopes(std::make_shared<std::vector<float>>(std::vector<float>{0.5f, -0.25f}));
        ExpectRight(s, drafted > 2 ? 1 : 0);
      }
    }
  }
  // Bits that are no tree: nobody sees itself, or anything.
  Sequence odd = RandomSequence(random, {4, 2, 12, 20}, {}, 5, 30);
  odd.SetTree(std::vector<uint8_t>(25, 0));
  ExpectRight(odd, 0);
  odd.SetTree({0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0});
  ExpectRight(odd, 0);
}

// A draft without branches has the bits of the same tokens without a tree.
TEST(MaskKinds, AChainIsNoTree) {
  Random random(8);
  for (int64_t drafted : {1, 3, 20}) {
    for (int64_t kept : {0, 5, 1015}) {
      Sequence s =
          RandomSequence(random, {4, 2, 12, 20}, Seen(Causal::kBottomRight, 50, -1, 4), drafted, kept + drafted);
      s.SetSlopes(std::make_shared<std::vector<float>>(std::vector<float>{0.5f, -0.25f, 0.01f, 0.3f}));
      const Output causal = RunLibrary(s);
      std::vector<uint8_t> chain(static_cast<size_t>(drafted * drafted));
      for (int64_t i = 0; i < drafted; ++i) std::fill_n(chain.begin() + i * drafted, i + 1, uint8_t{1});
      s.SetTree(chain);
      for (const RunOptions& way : AllWays()) EXPECT_TRUE(SameOutput(causal, RunLibrary(s, way))) << Describe(way);
    }
  }
}

// Several masks in one call, each sequence with its own.
TEST(MaskKinds, DraftsPrefixesAndPlainSequencesInOneCall) {
  Random random(9);
  const Heads heads{4, 2, 12, 20};
  std::vector<Sequence> sequences;
  for (int i = 0; i < 6; ++i)
    sequences.push_back(RandomSequence(random, heads, Seen(Causal::kBottomRight, 300), 9, 40 + 50 * i));
  sequences[0].SetTree(RandomTree(random, 9));
  sequences[1].problem.prefix_len = 87;
  sequences[3].problem.q_pos = 2;
  sequences[4].SetTree(RandomTree(random, 9));
  for (RunOptions way : AllWays()) {
    for (bool padded : {false, true}) {
      way.padded = padded;
      const std::vector<Output> outputs = RunLibrary(sequences, way);
      for (size_t i = 0; i < outputs.size(); ++i) {
        EXPECT_TRUE(NearOracle(sequences[i].problem, outputs[i])) << i;
        EXPECT_TRUE(SameOutput(RunLibrary(sequences[i]), outputs[i])) << i;
      }
    }
  }
}

}  // namespace
}  // namespace headlane::testing
