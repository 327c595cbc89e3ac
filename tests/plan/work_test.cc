// The work of a batch: every row meets every split once, pieces are even, and nothing outgrows what was reserved.
#include "plan/work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "mask/interval.h"
#include "plan/validate.h"
#include "support/random.h"

namespace headlane::internal {
namespace {

using ::headlane::testing::Random;

struct Case {
  Problem problem;
  std::vector<SequenceSpec> sequences;
  int num_workers = 1;

  int64_t QueryTokens() const {
    int64_t sum = 0;
    for (const SequenceSpec& s : sequences) sum += s.q_len;
    return sum;
  }
  int64_t MaxKvLen() const {
    int64_t most = 0;
    for (const SequenceSpec& s : sequences) most = std::max(most, s.kv_len);
    return most;
  }
};

Problem MakeProblem(int64_t num_q_heads, int64_t num_kv_heads, int64_t qk_dim, int64_t v_dim, Mask mask = {},
                    bool from_cache = true) {
  AttentionSpec spec;
  spec.num_q_heads = num_q_heads;
  spec.num_kv_heads = num_kv_heads;
  spec.qk_dim = qk_dim;
  spec.v_dim = v_dim;
  spec.mask = mask;
  Problem problem;
  EXPECT_TRUE(ResolveProblem(spec, from_cache, &problem).ok());
  return problem;
}

struct Built {
  WorkLimits limits;
  WorkCapacity capacity;
  Work work;
};

Built Build(const Case& c) {
  Built built;
  const int64_t num_sequences = static_cast<int64_t>(c.sequences.size());
  built.limits = MakeWorkLimits(c.problem, c.num_workers, num_sequences, c.QueryTokens(), c.MaxKvLen());
  built.capacity = MakeWorkCapacity(c.problem, built.limits, num_sequences, c.QueryTokens());
  BuildWork(c.problem, c.sequences, built.limits, &built.work);
  return built;
}

std::string Describe(const Case& c) {
  std::string text = "heads " + std::to_string(c.problem.num_q_heads) + "/" + std::to_string(c.problem.num_kv_heads) +
                     " dims " + std::to_string(c.problem.qk_dim) + "/" + std::to_string(c.problem.v_dim) +
                     " causality " + std::to_string(static_cast<int>(c.problem.mask.causality)) + " window " +
                     std::to_string(c.problem.mask.window) + " workers " + std::to_string(c.num_workers) + " (q, kv)";
  for (const SequenceSpec& s : c.sequences)
    text += " (" + std::to_string(s.q_len) + ", " + std::to_string(s.kv_len) + ")";
  return text;
}

Case RandomCase(Random& random) {
  Case c;
  const int64_t kv_heads = random.Int(1, 4);
  const int64_t group = random.Pick(std::vector<int64_t>{1, 2, 3, 4, 5, 7, 8, 16, 71});
  Mask mask;
  mask.causality = static_cast<Causality>(random.Int(0, 2));
  if (random.OneIn(2))
    mask.window = random.Pick(std::vector<int64_t>{0, 1, 5, 128, 1000, 1024, 3000, int64_t{1} << 62});
  const std::vector<int64_t> dims = {0, 1, 64, 128, 257, 576};
  c.problem = MakeProblem(kv_heads * group, kv_heads, random.Pick(dims), random.Pick(dims), mask, random.OneIn(2));
  c.num_workers = static_cast<int>(random.Pick(std::vector<int64_t>{1, 2, 3, 8, 16, 64, 128}));
  const int64_t num_sequences = random.Int(0, 6);
  for (int64_t i = 0; i < num_sequences; ++i) {
    SequenceSpec s;
    s.batch = i;
    s.q_len = random.OneIn(3) ? random.Int(0, 600) : random.Int(0, 3);
    s.kv_len = random.Pick(std::vector<int64_t>{0, 1, 15, 17, 127, 129, 1023, 1024, 1025, 2048, 5000, 20000, 65536});
    c.sequences.push_back(s);
  }
  return c;
}

TEST(Work, EveryRowMeetsEverySplitOfItsBlockOnce) {
  Random random(1);
  int num_cut = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const Case c = RandomCase(random);
    SCOPED_TRACE(Describe(c));
    const Built built = Build(c);
    const Work& work = built.work;

    // Blocks are a partition of the rows, and see what their rows see.
    std::map<std::pair<int32_t, int32_t>, std::vector<const RowBlock*>> blocks_of;
    for (const RowBlock& block : work.blocks) blocks_of[{block.sequence, block.kv_head}].push_back(&block);
    for (size_t i = 0; i < c.sequences.size(); ++i) {
      const SequenceSpec& s = c.sequences[i];
      for (int64_t head = 0; head < c.problem.num_kv_heads; ++head) {
        int64_t next_row = 0;
        for (const RowBlock* block : blocks_of[{static_cast<int32_t>(i), static_cast<int32_t>(head)}]) {
          ASSERT_EQ(block->row_begin, next_row);
          ASSERT_GT(block->num_rows, 0);
          ASSERT_LE(block->num_rows, built.capacity.rows_per_block);
          ASSERT_GT(block->sub_rows, 0);
          next_row += block->num_rows;
          KeyInterval seen;
          for (int64_t row = block->row_begin; row < next_row; ++row) {
            const KeyInterval keys = VisibleInterval(c.problem.mask, s.q_len, s.kv_len, row / c.problem.group);
            if (keys.empty()) continue;
            seen = seen.empty() ? keys : KeyInterval{std::min(seen.begin, keys.begin), std::max(seen.end, keys.end)};
          }
          ASSERT_EQ(block->keys, seen);
          if (seen.empty()) {
            ASSERT_EQ(block->num_splits, 0);
          } else {
            ASSERT_EQ(block->first_split, seen.begin / kSplitKeys);
            ASSERT_EQ(block->first_split + block->num_splits, (seen.end - 1) / kSplitKeys + 1);
          }
        }
        ASSERT_EQ(next_row, s.q_len * c.problem.group);
      }
    }

    // Items are a partition of the splits of each block, none of them empty unless the block sees nothing.
    std::vector<std::vector<const WorkItem*>> items_of(work.blocks.size());
    for (const WorkItem& item : work.items) items_of[static_cast<size_t>(item.block)].push_back(&item);
    for (size_t b = 0; b < work.blocks.size(); ++b) {
      const RowBlock& block = work.blocks[b];
      std::vector<const WorkItem*>& items = items_of[b];
      std::sort(items.begin(), items.end(), [](auto* x, auto* y) { return x->split_begin < y->split_begin; });
      int32_t next_split = block.first_split;
      for (const WorkItem* item : items) {
        ASSERT_EQ(item->split_begin, next_split);
        if (block.num_splits > 0) {
          ASSERT_GT(item->split_end, item->split_begin);
        }
        next_split = item->split_end;
      }
      ASSERT_EQ(next_split, block.first_split + block.num_splits);
      ASSERT_GE(items.size(), 1u);
      ASSERT_EQ(items.size() > 1, block.cut());
      if (block.cut()) {
        ++num_cut;
        ASSERT_EQ(items[0]->split_end - items[0]->split_begin, block.first_item_splits);
        ASSERT_EQ(work.counters[static_cast<size_t>(block.counter)], static_cast<int32_t>(items.size()));
      }
    }
  }
  EXPECT_GT(num_cut, 1000);
}

TEST(Work, StatesOfCutBlocksAreApartAndInside) {
  Random random(2);
  for (int trial = 0; trial < 1000; ++trial) {
    const Case c = RandomCase(random);
    SCOPED_TRACE(Describe(c));
    const Built built = Build(c);
    std::vector<std::pair<int64_t, int64_t>> ranges;
    std::vector<bool> counter_used(built.work.counters.size(), false);
    for (const RowBlock& block : built.work.blocks) {
      if (!block.cut()) continue;
      ASSERT_FALSE(counter_used[static_cast<size_t>(block.counter)]);
      counter_used[static_cast<size_t>(block.counter)] = true;
      const int64_t bytes = MakeStateLayout(block.num_rows, c.problem.o_pitch).bytes;
      ASSERT_EQ(bytes % 64, 0);
      std::vector<bool> state_used(static_cast<size_t>(block.NumStates()), false);
      for (int64_t split = block.first_split; split < block.first_split + block.num_splits; ++split) {
        const int64_t index = block.StateIndex(split);
        ASSERT_GE(index, 0);
        ASSERT_LT(index, block.NumStates());
        const bool of_first_item = split < block.first_split + block.first_item_splits;
        ASSERT_EQ(index == 0, of_first_item);
        ASSERT_TRUE(of_first_item || !state_used[static_cast<size_t>(index)]);
        state_used[static_cast<size_t>(index)] = true;
      }
      ranges.emplace_back(block.state_offset, block.state_offset + block.NumStates() * bytes);
    }
    std::sort(ranges.begin(), ranges.end());
    int64_t end = 0;
    for (const auto& range : ranges) {
      ASSERT_GE(range.first, end);
      end = range.second;
    }
    ASSERT_LE(end, built.limits.state_bytes);
  }
}

// Batches within a plan's capacities, other than the one it was made for, stay within what was reserved for it.
TEST(Work, NeverOutgrowsTheCapacity) {
  Random random(3);
  for (int trial = 0; trial < 1000; ++trial) {
    const Case first = RandomCase(random);
    const int64_t max_sequences = random.Int(0, 8);
    const int64_t max_q_tokens = random.Pick(std::vector<int64_t>{0, 1, 8, 100, 3000});
    const int64_t max_kv_len = random.Pick(std::vector<int64_t>{0, 1, 1024, 1025, 30000});
    const WorkLimits limits = MakeWorkLimits(first.problem, first.num_workers, max_sequences, max_q_tokens, max_kv_len);
    const WorkCapacity capacity = MakeWorkCapacity(first.problem, limits, max_sequences, max_q_tokens);
    Work work;
    for (int step = 0; step < 10; ++step) {
      Case c = first;
      c.sequences.clear();
      int64_t tokens_left = max_q_tokens;
      const int64_t num_sequences = random.Int(0, max_sequences);
      for (int64_t i = 0; i < num_sequences; ++i) {
        SequenceSpec s;
        s.batch = i;
        s.q_len = random.OneIn(2) ? random.Int(0, tokens_left) : std::min<int64_t>(tokens_left, 1);
        s.kv_len = random.OneIn(2) ? max_kv_len : random.Int(0, max_kv_len);
        tokens_left -= s.q_len;
        c.sequences.push_back(s);
      }
      SCOPED_TRACE(Describe(c));
      BuildWork(c.problem, c.sequences, limits, &work);
      ASSERT_LE(static_cast<int64_t>(work.blocks.size()), capacity.num_blocks);
      ASSERT_LE(static_cast<int64_t>(work.items.size()), capacity.num_items);
      ASSERT_LE(static_cast<int64_t>(work.counters.size()), capacity.num_counters);
      for (const RowBlock& block : work.blocks) ASSERT_LE(block.num_rows, capacity.rows_per_block);
    }
  }
}

// When the workers of a run take items in the plan's order and each costs what the plan says: total / (workers * time
// of the last one).
double Efficiency(const Work& work, int num_workers) {
  std::priority_queue<double, std::vector<double>, std::greater<>> workers;
  for (int i = 0; i < num_workers; ++i) workers.push(0.0);
  double total = 0, last = 0;
  for (const WorkItem& item : work.items) {
    const double end = workers.top() + item.cost;
    workers.pop();
    workers.push(end);
    last = std::max(last, end);
    total += item.cost;
  }
  return last == 0 ? 1 : total / (last * num_workers);
}

TEST(Work, LongestItemsComeFirst) {
  Random random(4);
  for (int trial = 0; trial < 300; ++trial) {
    const Case c = RandomCase(random);
    const Work work = Build(c).work;
    for (size_t i = 1; i < work.items.size(); ++i) ASSERT_GE(work.items[i - 1].cost, work.items[i].cost) << Describe(c);
  }
}

// No piece that could be made smaller is more than its share of what a worker does: what bounds the wait for the last
// worker.
TEST(Work, NoItemIsLargerThanItsShareUnlessItCannotBeCut) {
  Random random(5);
  for (int trial = 0; trial < 1000; ++trial) {
    Case c = RandomCase(random);
    if (c.num_workers == 1) c.num_workers = 2;
    SCOPED_TRACE(Describe(c));
    const Work work = Build(c).work;
    double total = 0;
    for (const WorkItem& item : work.items) total += item.cost;
    for (const WorkItem& item : work.items) {
      const RowBlock& block = work.blocks[static_cast<size_t>(item.block)];
      // Cutting off less than a fifth of the keys is not worth it.
      const int64_t num_keys = Intersect(block.keys, item.split_begin * kSplitKeys, item.split_end * kSplitKeys).size();
      const bool smallest = block.num_rows <= 96 && num_keys < kSplitKeys * 5 / 4;
      const bool small_anyway = item.cost < 30000;
      // Costs are estimated before they are known, and pieces are whole splits.
      if (!smallest && !small_anyway) {
        ASSERT_LE(item.cost, 2 * total / c.num_workers)
            << "splits " << item.split_begin << ".." << item.split_end << " rows " << block.num_rows;
      }
    }
  }
}

struct Shape {
  const char* name;
  int64_t num_q_heads, num_kv_heads, dim;
  std::vector<SequenceSpec> sequences;
  std::vector<std::pair<int, double>> wanted;  // workers, efficiency at least
};

SequenceSpec Sequence(int64_t batch, int64_t q_len, int64_t kv_len) {
  SequenceSpec s;
  s.batch = batch;
  s.q_len = q_len;
  s.kv_len = kv_len;
  return s;
}

std::vector<SequenceSpec> Ragged(int64_t n, int64_t longest) {
  Random random(6);
  std::vector<SequenceSpec> sequences;
  for (int64_t i = 0; i < n; ++i) sequences.push_back(Sequence(i, 1, random.Int(1, longest)));
  return sequences;
}

TEST(Work, KeepsWorkersBusy) {
  const std::vector<Shape> shapes = {
      {"decode 32/8, 4096 keys",
       32,
       8,
       128,
       {Sequence(0, 1, 4096)},
       {{2, 0.99}, {3, 0.95}, {4, 0.99}, {8, 0.99}, {16, 0.99}, {32, 0.99}}},
      {"decode, one KV head, 65536 keys",
       1,
       1,
       128,
       {Sequence(0, 1, 65536)},
       {{2, 0.99}, {3, 0.94}, {8, 0.99}, {16, 0.99}, {64, 0.99}}},
      {"decode MQA 71/1, 16384 keys", 71, 1, 64, {Sequence(0, 1, 16384)}, {{2, 0.9}, {4, 0.9}, {8, 0.9}, {16, 0.8}}},
      {"decode 9/3, 512 keys", 9, 3, 64, {Sequence(0, 1, 512)}, {{2, 0.7}, {3, 0.99}}},
      {"decode, batch of 256 ragged", 32, 8, 128, Ragged(256, 8192), {{2, 0.99}, {16, 0.99}, {64, 0.98}, {128, 0.95}}},
      {"decode, one long among 255 short",
       8,
       8,
       128,
       [] {
         std::vector<SequenceSpec> s = Ragged(256, 64);
         s[100].kv_len = 131072;
         return s;
       }(),
       {{2, 0.98}, {16, 0.97}, {64, 0.9}}},
      {"prefill 2048, 32/8",
       32,
       8,
       128,
       {Sequence(0, 2048, 2048)},
       {{2, 0.98}, {8, 0.98}, {32, 0.95}, {64, 0.93}, {128, 0.9}}},
      {"prefill 2048, one head", 1, 1, 128, {Sequence(0, 2048, 2048)}, {{2, 0.95}, {8, 0.9}}},
      {"prefill 128, 9/3", 9, 3, 64, {Sequence(0, 128, 128)}, {{2, 0.93}, {4, 0.9}}},
      {"chunk of 512 on 65536 keys, 8/1", 8, 1, 128, {Sequence(0, 512, 65536)}, {{2, 0.95}, {16, 0.9}}},
      {"speculative 8 rows on 32768 keys, 8/2", 8, 2, 128, {Sequence(0, 8, 32768)}, {{2, 0.98}, {8, 0.95}, {32, 0.9}}},
  };
  for (const Shape& shape : shapes) {
    for (const auto& [workers, wanted] : shape.wanted) {
      Case c;
      c.problem = MakeProblem(shape.num_q_heads, shape.num_kv_heads, shape.dim, shape.dim);
      c.sequences = shape.sequences;
      c.num_workers = workers;
      const Work work = Build(c).work;
      EXPECT_GE(Efficiency(work, workers), wanted)
          << shape.name << " for " << workers << " workers: " << work.items.size() << " items of " << work.blocks.size()
          << " blocks";
    }
  }
}

// Few rows take one pass over the keys, and one worker gets no more pieces than there are row blocks.
TEST(Work, DoesNotCutWithoutNeed) {
  Case c;
  c.problem = MakeProblem(32, 8, 128, 128);
  c.sequences = {Sequence(0, 8, 65536)};
  c.num_workers = 1;
  const Work alone = Build(c).work;
  EXPECT_EQ(alone.items.size(), 8u);
  EXPECT_EQ(alone.blocks.size(), 8u);
  EXPECT_TRUE(alone.counters.empty());
  c.num_workers = 2;
  EXPECT_EQ(Build(c).work.blocks.size(), 8u);
  c.sequences.clear();
  for (int64_t i = 0; i < 64; ++i) c.sequences.push_back(Sequence(i, 1, 4096));
  EXPECT_EQ(Build(c).work.items.size(), 512u);
}

// A window's keys alone are touched, wherever they lie.
TEST(Work, AWindowCostsWhatItsKeysCost) {
  Case c;
  c.problem = MakeProblem(32, 8, 128, 128, Mask{Causality::kBottomRight, 1024});
  c.sequences = {Sequence(0, 1, 65536)};
  c.num_workers = 2;
  const Work far = Build(c).work;
  for (const RowBlock& block : far.blocks) {
    EXPECT_EQ(block.keys, (KeyInterval{65536 - 1024, 65536}));
    EXPECT_EQ(block.num_splits, 1);
  }
  c.sequences = {Sequence(0, 1, 65000)};
  for (const RowBlock& block : Build(c).work.blocks) EXPECT_EQ(block.num_splits, 2);
}

}  // namespace
}  // namespace headlane::internal
