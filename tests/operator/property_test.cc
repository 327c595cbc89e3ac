// Same bits: random problems, each computed in every way that must not matter, each time compared with the scalar
// canonical program (and, on targets without FMA, with the target's own first answer).
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "operator/check.h"
#include "operator/runner.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

using reference::Causal;

Heads RandomHeads(Random& random) {
  Heads heads;
  heads.num_kv_heads = random.Int(1, 3);
  heads.num_q_heads = heads.num_kv_heads * random.Pick<int64_t>({1, 1, 2, 3, 4, 5, 7, 8, 16});
  heads.qk_dim = random.OneIn(2) ? random.Int(1, 40) : random.Pick<int64_t>({1, 7, 16, 64, 80});
  heads.v_dim = random.OneIn(3) ? heads.qk_dim : random.Int(1, 50);
  return heads;
}

Sight RandomSight(Random& random) {
  Sight sight;
  sight.causal = random.Pick<Causal>({Causal::kBottomRight, Causal::kBottomRight, Causal::kNo, Causal::kTopLeft});
  if (random.OneIn(3)) sight.window = random.Pick<int64_t>({0, 1, 2, 15, 16, 17, 100, 128, 1000, 100000});
  return sight;
}

int64_t RandomLength(Random& random) {
  switch (random.Int(0, 5)) {
    case 0:
      return random.Int(0, 3);
    case 1:
      return random.Int(4, 40);
    case 2:
      return random.Int(41, 300);
    case 3:  // around an edge
      return random.Pick<int64_t>({16, 64, 128, 256, 1024, 2048}) + random.Int(-1, 1);
    case 4:
      return random.Int(1025, 2600);
    default:
      return random.Int(100, 1100);
  }
}

// A batch of up to 7 sequences, few enough (row, key) pairs to be computed one operation at a time.
std::vector<Sequence> RandomBatch(Random& random) {
  const Heads heads = RandomHeads(random);
  const Sight sight = RandomSight(random);
  std::vector<Sequence> sequences;
  int64_t budget = 3'000'000 / (heads.num_q_heads * (heads.qk_dim + heads.v_dim + 20));
  const int64_t count = random.Int(1, 7);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t kv_len = RandomLength(random);
    int64_t q_len = random.Pick<int64_t>({0, 1, 1, 1, 2, random.Int(3, 40), kv_len, kv_len + 2});
    q_len = std::min(q_len, std::max<int64_t>(budget, 0) / std::max<int64_t>(kv_len, 1) + 1);
    budget -= q_len * kv_len;
    sequences.push_back(RandomSequence(random, heads, sight, q_len, kv_len));
    if (random.OneIn(4)) {
      for (float& x : *sequences.back().q) x *= 30.0f;
    }
  }
  // One scale for all.
  if (random.OneIn(3)) {
    const float scale = random.Float() * 2.0f;
    for (Sequence& s : sequences) s.problem.scale = scale;
  }
  return sequences;
}

void ExpectSame(const std::vector<Output>& expected, const std::vector<Output>& actual,
                const std::vector<Sequence>& sequences) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(SameOutput(expected[i], actual[i]))
        << "sequence " << i << " of " << expected.size() << ": " << Describe(sequences[i].problem);
  }
}

// The canonical answer; on targets without FMA the serial one, which is near the oracle.
std::vector<Output> Expected(const std::vector<Sequence>& sequences) {
  std::vector<Output> expected;
  if (!ActiveTarget().has_fma) return RunLibrary(sequences);
  for (const Sequence& s : sequences) expected.push_back(reference::CanonicalAttention(s.problem));
  return expected;
}

template <typename Body>
void ForRandomBatches(uint64_t first_seed, int64_t rounds, Body body) {
  for (int64_t round = 0; round < rounds; ++round) {
    Random random(first_seed + static_cast<uint64_t>(round));
    const std::vector<Sequence> sequences = RandomBatch(random);
    SCOPED_TRACE(::testing::Message() << "seed " << first_seed + static_cast<uint64_t>(round));
    body(sequences, Expected(sequences), random);
    if (::testing::Test::HasFailure()) return;  // the first one is enough to work on
  }
}

TEST(PropertyTest, EqualsTheCanonicalProgramOnEveryTarget) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    ForRandomBatches(1000, 60, [](const auto& sequences, const auto& expected, Random&) {
      ExpectSame(expected, RunLibrary(sequences), sequences);
    });
  }
}

TEST(PropertyTest, ThreadsAndPlannedWorkersDoNotMatter) {
  ForRandomBatches(2000, 40, [](const auto& sequences, const auto& expected, Random& random) {
    for (int threads : {1, 2, 3, 7}) {
      OpenMPExecutor executor(threads);
      RunOptions options;
      options.executor = &executor;
      options.plan_workers = random.Pick<int>({threads, 1, 2, 7, 16});
      options.cache = random.OneIn(2);
      SCOPED_TRACE(::testing::Message() << threads << " threads, planned for " << options.plan_workers);
      ExpectSame(expected, RunLibrary(sequences, options), sequences);
    }
  });
}

TEST(PropertyTest, AloneOrInABatchInAnyOrder) {
  ForRandomBatches(3000, 40, [](const auto& sequences, const auto& expected, Random& random) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "alone, planned for 3");
      RunOptions options;
      options.plan_workers = 3;
      ExpectSame({expected[i]}, RunLibrary(std::vector<Sequence>{sequences[i]}, options), {sequences[i]});
    }
    for (int round = 0; round < 3; ++round) {
      std::vector<size_t> order(sequences.size());
      std::iota(order.begin(), order.end(), size_t{0});
      random.Shuffle(order);
      std::vector<Sequence> shuffled;
      std::vector<Output> shuffled_expected;
      for (size_t i : order) {
        shuffled.push_back(sequences[i]);
        shuffled_expected.push_back(expected[i]);
      }
      RunOptions options;
      options.cache = random.OneIn(2);
      options.padded = random.OneIn(2);
      options.plan_workers = static_cast<int>(random.Int(1, 4));
      SCOPED_TRACE(::testing::Message() << "shuffled, cache " << options.cache << " padded " << options.padded);
      ExpectSame(shuffled_expected, RunLibrary(shuffled, options), shuffled);
    }
  });
}

TEST(PropertyTest, PlainTensorsOrCacheWithAnyPages) {
  ForRandomBatches(4000, 40, [](const auto& sequences, const auto& expected, Random& random) {
    for (int64_t page_tokens : {16, 48, 64, 256}) {
      RunOptions options;
      options.cache = true;
      options.page_tokens = page_tokens;
      options.seed = random.Next();
      options.plan_workers = static_cast<int>(random.Int(1, 3));
      SCOPED_TRACE(::testing::Message() << "pages of " << page_tokens);
      ExpectSame(expected, RunLibrary(sequences, options), sequences);
    }
    for (bool padded : {false, true}) {
      RunOptions options;
      options.padded = padded;
      SCOPED_TRACE(::testing::Message() << "plain, padded " << padded);
      ExpectSame(expected, RunLibrary(sequences, options), sequences);
    }
  });
}

TEST(PropertyTest, PlansThatWereMadeForSomethingElseAndUpdated) {
  ForRandomBatches(5000, 40, [](const auto& sequences, const auto& expected, Random& random) {
    for (bool cache : {false, true}) {
      OpenMPExecutor two(2);
      RunOptions options;
      options.update = true;
      options.cache = cache;
      options.executor = &two;
      options.plan_workers = static_cast<int>(random.Int(1, 8));
      ExpectSame(expected, RunLibrary(sequences, options), sequences);
    }
  });
}

// NaN and infinities anywhere: they reach the rows that see them, as the scalar program says, and no other.
TEST(PropertyTest, NonFiniteInputs) {
  for (const TargetInfo& target : UsableFmaTargets()) {
    const ScopedTarget scope(target.name);
    for (uint64_t seed = 6000; seed < 6040; ++seed) {
      Random random(seed);
      const std::vector<Sequence> sequences = RandomBatch(random);
      for (const Sequence& s : sequences) {
        for (std::vector<float>* data : {s.q.get(), s.k.get(), s.v.get()}) {
          if (data->empty() || random.OneIn(3)) continue;
          for (int64_t n = random.Int(1, 4); n > 0; --n) {
            (*data)[static_cast<size_t>(random.Int(0, static_cast<int64_t>(data->size()) - 1))] =
                random.Pick<float>({std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                    -std::numeric_limits<float>::infinity(), 3e38f, -3e38f});
          }
        }
      }
      SCOPED_TRACE(::testing::Message() << target.name << " seed " << seed);
      const std::vector<Output> expected = Expected(sequences);
      for (bool cache : {false, true}) {
        RunOptions options;
        options.cache = cache;
        options.plan_workers = static_cast<int>(random.Int(1, 4));
        ExpectSame(expected, RunLibrary(sequences, options), sequences);
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// A prompt in chunks: rows [begin, end) over the first `end` keys, as an engine would feed them.
void CheckChunks(const Heads& heads, const Sight& sight, int64_t length, const std::vector<int64_t>& chunks,
                 uint64_t seed) {
  Random random(seed);
  const Sequence prompt = RandomSequence(random, heads, sight, length, length);
  SCOPED_TRACE(Describe(prompt.problem));
  OpenMPExecutor two(2);
  RunOptions whole_options;
  whole_options.executor = &two;
  whole_options.plan_workers = 2;
  const Output whole = RunLibrary(prompt, whole_options);
  if (ActiveTarget().has_fma) {
    ASSERT_TRUE(IsCanonical(prompt.problem, whole));
  }
  const size_t out_row = static_cast<size_t>(heads.num_q_heads * heads.v_dim);
  const size_t lse_row = static_cast<size_t>(heads.num_q_heads);
  for (int64_t chunk : chunks) {
    for (bool cache : {false, true}) {
      // The cache holds more than the chunk sees: kv_len says how much counts.
      for (int64_t begin = 0; begin < length; begin += chunk) {
        const int64_t end = std::min(begin + chunk, length);
        if (chunk == 1 && begin > 70 && begin + 70 < length && begin % 37 != 0) continue;  // a sample of the middle
        RunOptions options;
        options.cache = cache;
        options.page_tokens = 64;
        if (cache && begin % 5 != 0) options.executor = &two;
        const Output part = RunLibrary(prompt.Rows(begin, end, end), options);
        const size_t n = static_cast<size_t>(end - begin);
        ASSERT_TRUE(SameBits(whole.out.data() + static_cast<size_t>(begin) * out_row, part.out.data(), n * out_row))
            << "chunk of " << chunk << " at " << begin << " cache " << cache;
        ASSERT_TRUE(SameBits(whole.lse.data() + static_cast<size_t>(begin) * lse_row, part.lse.data(), n * lse_row))
            << "chunk of " << chunk << " at " << begin << " cache " << cache;
      }
    }
  }
}

TEST(PropertyTest, ChunksOfAPromptDoNotMatter) {
  CheckChunks({4, 2, 24, 16}, {Causal::kBottomRight, -1}, 1100, {1, 7, 64, 300, 512}, 1);
  CheckChunks({2, 1, 8, 8}, {Causal::kBottomRight, 50}, 700, {1, 7, 64, 300}, 2);
  CheckChunks({3, 1, 16, 40}, {Causal::kBottomRight, -1}, 2100, {300, 1000}, 3);
  CheckChunks({7, 1, 5, 3}, {Causal::kBottomRight, -1}, 130, {1, 2, 3, 9, 32}, 4);
}

TEST(PropertyTest, DecodeOfTheLastTokenIsTheLastRowOfThePrompt) {
  Random random(6);
  for (int64_t length : {1, 2, 16, 17, 128, 129, 500, 1024, 1025, 1500}) {
    const Heads heads{8, 2, 32, 32};
    const Sequence prompt = RandomSequence(random, heads, {}, length, length);
    OpenMPExecutor two(2);
    RunOptions options;
    options.executor = &two;
    options.plan_workers = 2;
    const Output whole = RunLibrary(prompt, options);
    options.cache = true;
    const Output last = RunLibrary(prompt.Rows(length - 1, length, length), options);
    EXPECT_TRUE(SameBits(whole.out.data() + (length - 1) * 8 * 32, last.out.data(), 8 * 32)) << length;
    EXPECT_TRUE(SameBits(whole.lse.data() + (length - 1) * 8, last.lse.data(), 8)) << length;
  }
}

// An executor of the worst kind: it starts the workers in reverse, twice each, with the same number.
class OddExecutor final : public Executor {
 public:
  int num_workers() const noexcept override { return 5; }
  void Run(int num_workers, Task task, void* context) noexcept override {
    for (int i = num_workers; i > 0; --i) {
      task(context, 1000);
      task(context, -3);
    }
  }
};

TEST(PropertyTest, ExecutorsDoNotMatter) {
  ForRandomBatches(7000, 20, [](const auto& sequences, const auto& expected, Random&) {
    OddExecutor odd;
    CallbackExecutor backwards(nullptr, 4, [](void*, int num_workers, Executor::Task task, void* context) {
      for (int i = num_workers - 1; i >= 0; --i) task(context, i);
    });
    for (Executor* executor : {static_cast<Executor*>(&odd), static_cast<Executor*>(&backwards), &SerialExecutor()}) {
      for (int planned : {1, 5}) {
        RunOptions options;
        options.executor = executor;
        options.plan_workers = planned;
        ExpectSame(expected, RunLibrary(sequences, options), sequences);
      }
    }
  });
}

}  // namespace
}  // namespace headlane::testing
