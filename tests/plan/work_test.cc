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

#include "mask/visibility.h"
#include "plan/batch.h"

namespace headlane::internal {
namespace {

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

// What a row sees, key by key, as execution gets it.
class RowSight {
 public:
  RowSight(const SequenceMask& mask, int64_t token) : mask_(mask), token_(token), keys_(VisibleKeys(mask, token)) {}

  bool SeesSomethingOf(int64_t begin, int64_t end) const {
    if (!mask_.has_tree()) {
      return !Intersect(keys_.first, begin, end).empty() || !Intersect(keys_.rest, begin, end).empty();
    }
    for (int64_t block = begin / kBlockKeys * kBlockKeys; block < std::min(end, mask_.kv_len); block += kBlockKeys) {
      uint16_t bits[kTilesPerBlock];
      IntervalBits(keys_, block, bits);
      AndTreeBits(mask_, token_, block, bits);
      for (const uint16_t tile : bits) {
        if (tile != 0) return true;
      }
    }
    return false;
  }

 private:
  const SequenceMask& mask_;
  int64_t token_;
  RowKeys keys_;
};

TEST(Work, EveryRowMeetsEverySplitOfItsBlockOnce) {
  Random random(1);
  int num_cut = 0, num_gaps = 0, num_shared = 0;
  for (int trial = 0; trial < 1200; ++trial) {
    const Case c = RandomCase(random);
    SCOPED_TRACE(Describe(c));
    const Built built = Build(c);
    const Work& work = built.work;

    // Blocks are a partition of the rows, and see what their rows see.
    std::map<std::pair<int32_t, int32_t>, std::vector<const RowBlock*>> blocks_of;
    for (const RowBlock& block : work.blocks) {
      for (int32_t i = 0; i < block.num_heads; ++i) {
        blocks_of[{block.sequence, block.kv_head + i}].push_back(&block);
      }
      num_shared += block.num_heads > 1 ? 1 : 0;
    }
    for (size_t i = 0; i < c.sequences.size(); ++i) {
      const SequenceSpec& s = c.sequences[i];
      for (int64_t head = 0; head < c.problem.num_kv_heads; ++head) {
        int64_t next_row = 0;
        for (const RowBlock* block : blocks_of[{static_cast<int32_t>(i), static_cast<int32_t>(head)}]) {
          ASSERT_EQ(block->row_begin, next_row);
          ASSERT_GT(block->num_rows, 0);
          ASSERT_LE(block->num_rows, built.capacity.rows_per_block);
          ASSERT_GT(block->sub_rows, 0);
          ASSERT_EQ(block->num_rows % block->num_heads, 0);
          next_row += block->num_rows / block->num_heads;
          ASSERT_EQ(block->decode(), block->num_rows <= kDecodeRows);
          // Heads share a block only with all of their rows, few ones, and in plain tensors.
          if (block->num_heads > 1) {
            ASSERT_TRUE(c.problem.SharesHeads());
            ASSERT_LE(next_row, kInPlaceRows);
            ASSERT_EQ(next_row, s.q_len * c.problem.group);
          }
          // The numbered splits are all that some row sees something of, in ascending order, and no others. (Drafted
          // keys between those that rows see may be visited in vain.)
          const SequenceMask mask = ResolveMask(c.problem.mask, s);
          std::vector<int64_t> visited;
          for (int64_t n = 0; n < block->num_splits; ++n) visited.push_back(block->SplitAt(n));
          ASSERT_TRUE(std::is_sorted(visited.begin(), visited.end()));
          std::vector<bool> seen(static_cast<size_t>(CeilDiv(s.kv_len, kSplitKeys)));
          const int64_t first_token = block->row_begin / c.problem.group, last_token = (next_row - 1) / c.problem.group;
          for (int64_t token = first_token; token <= last_token; ++token) {
            const RowSight sight(mask, token);
            for (size_t split = 0; split < seen.size(); ++split) {
              const int64_t begin = static_cast<int64_t>(split) * kSplitKeys;
              seen[split] = seen[split] || sight.SeesSomethingOf(begin, begin + kSplitKeys);
            }
          }
          size_t next_visited = 0;
          for (size_t split = 0; split < seen.size(); ++split) {
            const bool is_visited =
                next_visited < visited.size() && visited[next_visited] == static_cast<int64_t>(split);
            next_visited += is_visited ? 1 : 0;
            const bool drafted = mask.has_tree() && static_cast<int64_t>(split + 1) * kSplitKeys > s.kv_len - s.q_len;
            ASSERT_TRUE(is_visited == seen[split] || (is_visited && drafted)) << "split " << split;
          }
          ASSERT_EQ(next_visited, visited.size());
          num_gaps += block->gap_splits > 0 ? 1 : 0;
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
      int32_t next_split = 0;
      for (const WorkItem* item : items) {
        ASSERT_EQ(item->split_begin, next_split);
        if (block.num_splits > 0) {
          ASSERT_GT(item->split_end, item->split_begin);
        }
        next_split = item->split_end;
      }
      ASSERT_EQ(next_split, block.num_splits);
      ASSERT_GE(items.size(), 1u);
      ASSERT_EQ(items.size() > 1, block.cut());
      if (block.cut()) {
        ++num_cut;
        ASSERT_EQ(items[0]->split_end - items[0]->split_begin, block.first_item_splits);
        ASSERT_EQ(work.counters[static_cast<size_t>(block.counter)], static_cast<int32_t>(items.size()));
      }
    }
  }
  EXPECT_GT(num_cut, 500);
  EXPECT_GT(num_gaps, 50);
  EXPECT_GT(num_shared, 50);
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
      for (int64_t split = 0; split < block.num_splits; ++split) {
        const int64_t index = block.StateIndex(split);
        ASSERT_GE(index, 0);
        ASSERT_LT(index, block.NumStates());
        const bool of_first_item = split < block.first_item_splits;
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
        SequenceSpec s = RandomSequence(random, i, tokens_left, &c);
        if (random.OneIn(2)) s.q_len = random.Int(0, tokens_left);
        if (random.OneIn(2)) s.kv_len = max_kv_len;
        s.kv_len = std::min(s.kv_len, max_kv_len);
        s.tree = {};
        if (s.q_len <= max_kv_len && random.OneIn(4)) GiveTree(random, &s, &c.trees);
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
  int num_uneven = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    Case c = RandomCase(random);
    if (c.num_workers == 1) c.num_workers = 2;
    SCOPED_TRACE(Describe(c));
    const Work work = Build(c).work;
    double total = 0;
    for (const WorkItem& item : work.items) total += item.cost;
    double largest = 0;  // of the items that could be smaller, in shares
    for (const WorkItem& item : work.items) {
      const RowBlock& block = work.blocks[static_cast<size_t>(item.block)];
      // Cutting off less than a fifth of the keys is not worth it.
      int64_t num_keys = 0;
      if (item.split_begin < item.split_end) {
        const int64_t begin = block.SplitAt(item.split_begin) * kSplitKeys;
        const int64_t end = (block.SplitAt(item.split_end - 1) + 1) * kSplitKeys;
        num_keys = Intersect(block.keys.first, begin, end).size() + Intersect(block.keys.rest, begin, end).size();
      }
      const bool smallest = block.num_rows <= 144 && block.num_heads == 1 && num_keys < kSplitKeys * 5 / 4;
      const bool small_anyway = item.cost < 30000;
      if (!smallest && !small_anyway) largest = std::max(largest, item.cost / (total / c.num_workers));
    }
    // Costs are estimated before they are known, and pieces are whole splits: twice a share is common, more is rare (1
    // in 1000 of these batches, most of them far smaller than their number of workers is worth).
    ASSERT_LE(largest, 6);
    num_uneven += largest > 2;
  }
  EXPECT_LE(num_uneven, 8);
}

struct Shape {
  const char* name;
  int64_t num_q_heads, num_kv_heads, dim;
  std::vector<SequenceSpec> sequences;
  std::vector<std::pair<int, double>> wanted;  // workers, efficiency at least
};

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
      c.problem = MakeProblem(MakeSpec(shape.num_q_heads, shape.num_kv_heads, shape.dim, shape.dim));
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
  c.problem = MakeProblem(MakeSpec(32, 8, 128, 128));
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

// Plain tensors: the heads of a token are neighbours in memory and are read together, as many as leave enough items.
TEST(Work, HeadsShareABlockWhereRowsAreFew) {
  struct Wanted {
    int64_t num_q_heads, num_kv_heads, q_len, kv_len;
    int workers;
    std::vector<int32_t> heads;  // of the blocks
  };
  const std::vector<Wanted> cases = {
      {32, 32, 1, 4096, 2, {32}},
      {32, 8, 1, 4096, 2, {8}},
      {9, 3, 1, 4096, 2, {3}},
      {9, 3, 2, 4096, 2, {3}},
      {32, 8, 2, 4096, 2, {4, 4}},                    // 32 rows are no more
      {40, 40, 1, 4096, 1, {20, 20}},                 // nearly equal ones
      {32, 8, 1, 4096, 8, {4, 4}},                    // one item for each worker rather than half of them busy
      {32, 8, 1, 512, 2, {4, 4}},                     // one split: heads are all there is to share out
      {32, 8, 1, 512, 8, {1, 1, 1, 1, 1, 1, 1, 1}},   // likewise
      {5, 5, 1, 2048, 2, {5}},                        // any number
      {8, 1, 1, 4096, 2, {1}},                        // nothing to share
      {32, 8, 4, 4096, 1, {1, 1, 1, 1, 1, 1, 1, 1}},  // 16 rows: packed once per head
      {64, 4, 1, 4096, 1, {1, 1, 1, 1}},              // likewise
  };
  for (const Wanted& wanted : cases) {
    Case c;
    c.problem = MakeProblem(MakeSpec(wanted.num_q_heads, wanted.num_kv_heads, 128, 128), false);
    c.sequences = {Sequence(0, wanted.q_len, wanted.kv_len)};
    c.num_workers = wanted.workers;
    std::vector<int32_t> heads;
    const Work work = Build(c).work;
    for (const RowBlock& block : work.blocks) heads.push_back(block.num_heads);
    EXPECT_EQ(heads, wanted.heads) << Describe(c);
  }
  // Caches keep each head's tiles apart, values that are no whole stripes and those in keys are packed.
  AttentionSpec latent = MakeSpec(4, 4, 64, 64);
  latent.values_in_keys = true;
  for (const Problem& problem : {MakeProblem(MakeSpec(4, 4, 64, 64), true), MakeProblem(MakeSpec(4, 4, 64, 40), false),
                                 MakeProblem(latent, false)}) {
    Case c;
    c.problem = problem;
    c.sequences = {Sequence(0, 1, 4096)};
    const Work work = Build(c).work;
    EXPECT_EQ(work.blocks.size(), 4u);
    for (const RowBlock& block : work.blocks) EXPECT_EQ(block.num_heads, 1);
  }
}

TEST(Work, SharedHeadsKeepWorkersBusy) {
  for (const int64_t kv_heads : {2, 3, 5, 8, 32}) {
    for (const int64_t kv_len : {100, 1000, 1024, 1025, 4096, 5000, 16384, 100000}) {
      for (const int workers : {1, 2, 3, 4, 8}) {
        Case c;
        c.problem = MakeProblem(MakeSpec(kv_heads * 2, kv_heads, 128, 128), false);
        c.sequences = {Sequence(0, 1, kv_len)};
        c.num_workers = workers;
        const Work shared = Build(c).work;
        // What is lost against one head per item is less than what the memory gives for it.
        c.problem.num_kv_heads = 1;
        c.problem.num_q_heads = 2;
        for (int64_t i = 1; i < kv_heads; ++i) c.sequences.push_back(Sequence(i, 1, kv_len));
        const Work apart = Build(c).work;
        EXPECT_GE(Efficiency(shared, workers), 0.48 * Efficiency(apart, workers) - 0.01) << Describe(c);
      }
    }
  }
}

double TotalCost(const Work& work) {
  double total = 0;
  for (const WorkItem& item : work.items) total += item.cost;
  return total;
}

Work WorkOf(const Mask& mask, const SequenceSpec& sequence, int num_workers = 2) {
  Case c;
  c.problem = MakeProblem(MakeSpec(32, 8, 128, 128, mask));
  c.sequences = {sequence};
  c.num_workers = num_workers;
  return Build(c).work;
}

// A window's keys alone are visited and cost something, wherever they lie.
TEST(Work, AWindowCostsWhatItsKeysCost) {
  const Mask windowed{.window = 1024};
  const Work near = WorkOf({}, Sequence(0, 1, 1024));
  const Work far = WorkOf(windowed, Sequence(0, 1, 65536));
  for (const RowBlock& block : far.blocks) {
    EXPECT_EQ(block.keys, (RowKeys{{}, {65536 - 1024, 65536}}));
    EXPECT_EQ(block.num_splits, 1);
  }
  EXPECT_EQ(TotalCost(far), TotalCost(near));
  const Work unaligned = WorkOf(windowed, Sequence(0, 1, 65000));
  for (const RowBlock& block : unaligned.blocks) EXPECT_EQ(block.num_splits, 2);
  EXPECT_LT(TotalCost(unaligned), 1.03 * TotalCost(near));
  EXPECT_EQ(unaligned.items.size(), near.items.size());

  // With the first four keys, one more split and one more tile.
  const Work sinks = WorkOf({.window = 1024, .num_always_visible = 4}, Sequence(0, 1, 65536));
  for (const RowBlock& block : sinks.blocks) {
    EXPECT_EQ(block.keys, (RowKeys{{0, 4}, {65536 - 1024, 65536}}));
    ASSERT_EQ(block.num_splits, 2);
    EXPECT_EQ(block.SplitAt(0), 0);
    EXPECT_EQ(block.SplitAt(1), 63);
  }
  EXPECT_LT(TotalCost(sinks), 1.03 * TotalCost(near));
  // Prefill behind a window: every row block has its own part.
  const Work prefill = WorkOf(windowed, Sequence(0, 4096, 65536), 1);
  const Work whole = WorkOf(windowed, Sequence(0, 4096, 4096), 1);
  EXPECT_LT(TotalCost(prefill), 1.2 * TotalCost(whole));
}

TEST(Work, AChunkCostsWhatItsKeysCost) {
  const Mask chunked{.chunk = 8192};
  EXPECT_EQ(TotalCost(WorkOf(chunked, Sequence(0, 1, 65536 + 1024))), TotalCost(WorkOf({}, Sequence(0, 1, 1024))));
  const double one = TotalCost(WorkOf(chunked, Sequence(0, 8192, 8192), 1));
  const double four = TotalCost(WorkOf(chunked, Sequence(0, 4 * 8192, 4 * 8192), 1));
  EXPECT_NEAR(four, 4 * one, 0.02 * four);
}

// The heads of a token share one latent, which is read, and its values transposed, once for all of them.
TEST(Work, HeadsOfALatentStayTogether) {
  AttentionSpec spec = MakeSpec(128, 1, 576, 512);
  spec.values_in_keys = true;
  for (const bool from_cache : {false, true}) {
    Case c;
    c.problem = MakeProblem(spec, from_cache);
    for (const int workers : {1, 2, 16}) {
      for (const int64_t kv_len : {500, 4096, 65536}) {
        c.num_workers = workers;
        c.sequences = {Sequence(0, 1, kv_len)};
        const Work work = Build(c).work;
        const int64_t num_splits = CeilDiv(kv_len, kSplitKeys);
        if (num_splits >= workers) {
          ASSERT_EQ(work.blocks.size(), 1u) << Describe(c);
          EXPECT_EQ(work.blocks[0].num_rows, 128);
        }
        // Otherwise workers share the heads, too, without more passes over the keys than it takes.
        EXPECT_LE(static_cast<int64_t>(work.blocks.size()), CeilDiv(2 * workers, num_splits)) << Describe(c);
        EXPECT_GE(Efficiency(work, workers), workers <= num_splits ? 0.9 : 0.35) << Describe(c);
      }
    }
  }
}

TEST(NumTiles, CountsASharedTileOnce) {
  EXPECT_EQ(NumTiles({}), 0);
  EXPECT_EQ(NumTiles({{}, {3, 4}}), 1);
  EXPECT_EQ(NumTiles({{}, {15, 17}}), 2);
  EXPECT_EQ(NumTiles({{0, 4}, {}}), 1);
  EXPECT_EQ(NumTiles({{0, 4}, {6, 16}}), 1);
  EXPECT_EQ(NumTiles({{0, 4}, {6, 17}}), 2);
  EXPECT_EQ(NumTiles({{0, 16}, {17, 18}}), 2);
  EXPECT_EQ(NumTiles({{0, 40}, {41, 100}}), 7);
}

}  // namespace
}  // namespace headlane::internal
