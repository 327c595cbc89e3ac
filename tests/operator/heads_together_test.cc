// Few query rows of several KV heads that are read together from plain tensors: the canonical bits for any number of
// heads, rows and workers, whatever lies between the heads, and where the heads of a token see different keys.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "operator/check.h"
#include "operator/runner.h"
#include "plan/plan_impl.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

// The most KV heads that an item of these sequences has.
int32_t MostHeads(const Heads& heads, const std::vector<Sequence>& sequences, int workers) {
  AttentionSpec spec;
  spec.num_q_heads = heads.num_q_heads;
  spec.num_kv_heads = heads.num_kv_heads;
  spec.qk_dim = heads.qk_dim;
  spec.v_dim = heads.v_dim;
  std::vector<SequenceSpec> specs;
  for (const Sequence& s : sequences) {
    specs.emplace_back();
    specs.back().batch = static_cast<int64_t>(specs.size()) - 1;
    specs.back().q_len = s.problem.q_len;
    specs.back().kv_len = s.problem.kv_len;
  }
  const auto plan = PlanAttention(spec, specs, {.num_workers = workers});
  EXPECT_TRUE(plan.ok());
  int32_t most = 0;
  for (const internal::RowBlock& block : plan->impl().work().blocks) most = std::max(most, block.num_heads);
  return most;
}

// Heads next to each other and apart, one worker and many.
void ExpectCanonical(const std::vector<Sequence>& sequences, DType dtype = DType::kF32) {
  static OpenMPExecutor three(3);
  std::vector<Output> expected;
  for (const Sequence& s : sequences) expected.push_back(reference::CanonicalAttention(s.problem));
  for (const bool padded : {false, true}) {
    for (const int workers : {1, 2, 3, 16}) {
      RunOptions options;
      options.padded = padded;
      options.plan_workers = workers;
      options.executor = workers == 1 ? nullptr : &three;
      options.k_dtype = options.v_dtype = dtype;
      const std::vector<Output> outputs = RunLibrary(sequences, options);
      for (size_t i = 0; i < sequences.size(); ++i) {
        ASSERT_TRUE(SameOutput(expected[i], outputs[i])) << Describe(sequences[i].problem) << " " << Describe(options);
      }
    }
  }
}

void Round(Sequence& sequence, DType dtype) {
  RoundAll(*sequence.k, dtype);
  RoundAll(*sequence.v, dtype);
}

class HeadsTogetherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ActiveTarget().has_fma) GTEST_SKIP() << "canonical bits need FMA";
  }
  Random random_{71};
};

TEST_F(HeadsTogetherTest, AnyNumberOfHeadsAndRows) {
  int num_shared = 0;
  for (const int64_t kv_heads : {2, 3, 5, 8, 33}) {
    for (const int64_t group : {1, 3, 4}) {
      for (const int64_t q_len : {1, 2, 3}) {
        const Heads heads{kv_heads * group, kv_heads, random_.Pick<int64_t>({1, 16, 40, 64}),
                          random_.Pick<int64_t>({16, 48})};
        const DType dtype = random_.Pick<DType>({DType::kF32, DType::kF16, DType::kBF16});
        std::vector<Sequence> sequences = {
            RandomSequence(random_, heads, {}, q_len, kv_heads > 8 ? 70 : random_.Int(1030, 1300))};
        Round(sequences[0], dtype);
        num_shared += MostHeads(heads, sequences, 1) > 1 ? 1 : 0;
        ASSERT_NO_FATAL_FAILURE(ExpectCanonical(sequences, dtype));
      }
    }
  }
  EXPECT_GE(num_shared, 35);  // of 45: 3 rows of groups of 4 are too many
}

TEST_F(HeadsTogetherTest, BatchesOfMixedLengths) {
  const Heads heads{6, 3, 32, 32};
  std::vector<Sequence> sequences;
  for (const auto& [q_len, kv_len] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 2500}, {0, 40}, {1, 1}, {40, 40}, {4, 1100}, {1, 0}, {1, 129}, {2, 1024}, {5, 1023}}) {
    sequences.push_back(RandomSequence(random_, heads, {}, q_len, kv_len));
  }
  EXPECT_EQ(MostHeads(heads, sequences, 1), 3);
  ExpectCanonical(sequences);
}

TEST_F(HeadsTogetherTest, WindowsAndHiddenKeys) {
  const Heads heads{4, 4, 16, 16};
  for (const int64_t window : {1, 15, 100, 1024, 1100}) {
    Sight sight;
    sight.window = window;
    sight.num_always_visible = window == 100 ? 5 : 0;
    for (const int64_t q_len : {1, 4}) {
      ASSERT_NO_FATAL_FAILURE(ExpectCanonical({RandomSequence(random_, heads, sight, q_len, 2200)}));
    }
  }
}

// Masks of each head's own: the heads visit different tiles, some of them none in a block that others visit.
TEST_F(HeadsTogetherTest, EveryHeadSeesOtherKeys) {
  const int64_t kv_len = 1500, q_len = 2;
  const Heads heads{4, 4, 16, 16};
  for (int trial = 0; trial < 4; ++trial) {
    Sequence sequence = RandomSequence(random_, heads, {}, q_len, kv_len);
    auto mask = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(heads.num_q_heads * q_len * kv_len));
    for (int64_t head = 0; head < heads.num_q_heads; ++head) {
      for (int64_t row = 0; row < q_len; ++row) {
        for (int64_t begin = 0; begin < kv_len;) {
          const int64_t end = std::min(kv_len, begin + random_.Int(1, 200));
          const uint8_t visible = random_.OneIn(2) ? 1 : 0;
          for (; begin < end; ++begin) (*mask)[static_cast<size_t>((head * q_len + row) * kv_len + begin)] = visible;
        }
      }
    }
    sequence.SetMask(mask, q_len * kv_len, kv_len);
    ASSERT_NO_FATAL_FAILURE(ExpectCanonical({sequence}));
  }
}

// Behind a window's edge anything may stand, in any head.
TEST_F(HeadsTogetherTest, HiddenValuesThatAreNotFinite) {
  const Heads heads{3, 3, 16, 16};
  Sight sight;
  sight.window = 1030;
  Sequence sequence = RandomSequence(random_, heads, sight, 1, 2100);
  const size_t first_seen = 2100 - 1030;
  const size_t width = 3 * 16;
  for (size_t i = 0; i < first_seen * width; ++i) {
    (*sequence.v)[i] = (*sequence.k)[i] = std::numeric_limits<float>::quiet_NaN();
  }
  ExpectCanonical({sequence});
  // A visible one is seen by its own head only.
  (*sequence.v)[(first_seen + 3) * width + 16] = std::numeric_limits<float>::infinity();
  ExpectCanonical({sequence});
}

}  // namespace
}  // namespace headlane::testing
