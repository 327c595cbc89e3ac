// What a plan says it sees and touches, against counting key by key; and its explanation.
#include "plan/summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/batch.h"

namespace headlane::internal {
namespace {

// Every (row, key) pair of a sequence, from what a row sees as execution gets it.
std::vector<bool> RowBits(const SequenceMask& mask, int64_t token) {
  std::vector<bool> bits(static_cast<size_t>(mask.kv_len));
  const RowKeys keys = VisibleKeys(mask, token);
  for (int64_t block = 0; block < mask.kv_len; block += kBlockKeys) {
    uint16_t tiles[kTilesPerBlock];
    IntervalBits(keys, block, tiles);
    if (mask.has_tree()) AndTreeBits(mask, token, block, tiles);
    for (int64_t i = 0; i < kBlockKeys && block + i < mask.kv_len; ++i) {
      bits[static_cast<size_t>(block + i)] = (tiles[i / 16] >> (i % 16) & 1) != 0;
    }
  }
  return bits;
}

Case SmallCase(Random& random) {
  Case c = RandomCase(random);
  for (size_t i = 0; i < c.sequences.size(); ++i) {
    SequenceSpec s = RandomSequence(random, static_cast<int64_t>(i), 90, &c);
    s.kv_len = random.Int(0, 2500);
    if (s.tree.bits != nullptr) s.kv_len = std::max(s.kv_len, s.q_len);
    c.sequences[i] = s;
  }
  return c;
}

TEST(Summary, CountsWhatIsSeenAndTouched) {
  Random random(11);
  int num_trees = 0, num_tiles = 0;
  for (int trial = 0; trial < 150; ++trial) {
    const Case c = SmallCase(random);
    SCOPED_TRACE(Describe(c));
    PlanOptions options;
    options.num_workers = c.num_workers;
    auto plan = PlanAttention(c.spec, c.sequences, options);
    ASSERT_TRUE(plan.ok()) << plan.status().c_str();
    const PlanSummary summary = plan->summary();
    const Work& work = plan->impl().work();

    double pairs = 0, tiles = 0, row_tiles = 0;
    for (size_t i = 0; i < c.sequences.size(); ++i) {
      const SequenceMask mask = ResolveMask(c.spec.mask, c.sequences[i]);
      num_trees += mask.has_tree() ? 1 : 0;
      std::vector<std::vector<bool>> visits;  // tiles of each row
      for (int64_t token = 0; token < mask.q_len; ++token) {
        const std::vector<bool> sees = RowBits(mask, token);
        pairs += static_cast<double>(std::count(sees.begin(), sees.end(), true) * c.spec.num_q_heads);
        visits.emplace_back(static_cast<size_t>(CeilDiv(mask.kv_len, kTileKeys)));
        for (size_t key = 0; key < sees.size(); ++key) {
          if (sees[key]) visits.back()[key / 16] = true;
        }
      }
      for (const RowBlock& block : work.blocks) {
        if (block.sequence != static_cast<int32_t>(i)) continue;
        const std::vector<bool> none(static_cast<size_t>(CeilDiv(mask.kv_len, kTileKeys)));
        std::vector<bool> of_block = none;
        const int64_t head_rows = block.num_rows / block.num_heads;
        for (int64_t row = 0; row < head_rows; row += block.sub_rows) {
          const int64_t num_rows = std::min<int64_t>(block.sub_rows, head_rows - row);
          std::vector<bool> of_sub = none;
          for (int64_t r = row; r < row + num_rows; ++r) {
            const std::vector<bool>& tiles_of_row =
                visits[static_cast<size_t>((block.row_begin + r) / c.problem.group)];
            for (size_t t = 0; t < none.size(); ++t) of_sub[t] = of_sub[t] || tiles_of_row[t];
          }
          for (size_t t = 0; t < none.size(); ++t) {
            row_tiles += of_sub[t] ? static_cast<double>(num_rows * block.num_heads) : 0;
            of_block[t] = of_block[t] || of_sub[t];
          }
        }
        tiles += static_cast<double>(std::count(of_block.begin(), of_block.end(), true) * block.num_heads);
      }
    }
    const double width = static_cast<double>(c.spec.qk_dim + c.spec.v_dim);
    EXPECT_EQ(summary.flops, 2 * pairs * width);
    EXPECT_EQ(summary.touched_flops, 2 * 16 * row_tiles * width);
    const int64_t stored = c.spec.qk_dim + (c.spec.values_in_keys ? 0 : c.spec.v_dim);
    EXPECT_EQ(summary.touched_kv_bytes, tiles * 16 * 4 * static_cast<double>(stored));
    EXPECT_GE(summary.touched_flops, summary.flops);

    int64_t decode_items = 0;
    for (const WorkItem& item : work.items) {
      decode_items += work.blocks[static_cast<size_t>(item.block)].num_rows <= 32 ? 1 : 0;
    }
    EXPECT_EQ(summary.num_decode_items, decode_items);
    EXPECT_EQ(summary.num_decode_items + summary.num_tile_items, summary.num_items);
    num_tiles += summary.num_tile_items > 0 ? 1 : 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(num_trees, 20);
  EXPECT_GT(num_tiles, 20);
}

TEST(Summary, BytesAreThoseOfTheStoredElements) {
  for (const DType k_dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool in_keys : {false, true}) {
      AttentionSpec spec = MakeSpec(8, 2, 72, 40);
      spec.values_in_keys = in_keys;
      KVCacheSpec cache_spec;
      cache_spec.num_kv_heads = 2;
      cache_spec.qk_dim = 72;
      cache_spec.v_dim = 40;
      cache_spec.k_dtype = k_dtype;
      cache_spec.v_dtype = DType::kF32;
      cache_spec.values_in_keys = in_keys;
      cache_spec.max_tokens = 256;
      auto cache = KVCache::Create(cache_spec);
      ASSERT_TRUE(cache.ok()) << cache.status().c_str();
      SequenceSpec s = Sequence(0, 1, 100);
      s.cache_id = cache->CreateSequence().value();
      ASSERT_TRUE(cache->Reserve(s.cache_id, 100).ok());
      auto plan = PlanAttention(spec, *cache, std::vector<SequenceSpec>{s});
      ASSERT_TRUE(plan.ok()) << plan.status().c_str();
      const double per_key = 72.0 * static_cast<double>(DTypeBytes(k_dtype)) + (in_keys ? 0 : 40 * 4);
      EXPECT_EQ(plan->summary().kv_bytes, 2 * 100 * per_key);
      // 7 tiles, whose values have 48 features.
      EXPECT_EQ(plan->summary().touched_kv_bytes, 2 * 112 * (per_key + (in_keys ? 0 : 8 * 4)));
      const SlotLayout& slot = plan->impl().layout().slot;
      EXPECT_EQ(slot.k_tiles > 0, k_dtype != DType::kF32);
      EXPECT_EQ(slot.v_tiles > 0, in_keys);
      const std::string text = plan->Explain().value();
      EXPECT_NE(text.find(std::string("keys in ") + DTypeName(k_dtype)), std::string::npos) << text;
      EXPECT_EQ(text.find("values are the first 40 features") != std::string::npos, in_keys) << text;
    }
  }
}

// --- Explain ---

void ExpectParts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in:\n" << text;
  }
}

TEST(Explain, NamesWhatWasChosenWhatWasNotAndWhy) {
  Mask mask;
  mask.window = 3000;
  mask.window_right = 7;
  mask.num_always_visible = 4;
  mask.chunk = 65536;
  AttentionSpec spec = MakeSpec(32, 8, 128, 96, mask);
  spec.softcap = 30;
  std::vector<SequenceSpec> sequences = {Sequence(0, 1, 8192), Sequence(1, 2, 100), Sequence(2, 512, 512),
                                         Sequence(3, 0, 40)};
  sequences[2].prefix_len = 10;
  sequences[1].q_pos = 50;
  PlanOptions options;
  options.num_workers = 3;
  auto plan = PlanAttention(spec, sequences, options);
  ASSERT_TRUE(plan.ok()) << plan.status().c_str();
  const PlanSummary summary = plan->summary();
  const std::string text = plan->Explain().value();
  const auto number = [](auto x) { return std::to_string(static_cast<int64_t>(x)); };
  ExpectParts(text, {"numerics version " + number(kNumericsVersion),
                     "32 query heads on 8 KV heads",
                     "128",
                     "96",
                     "softcap 30",
                     "causal",
                     "window of 3000",
                     "7 to the right",
                     "first 4 always visible",
                     "chunks of 65536",
                     "plain tensors",
                     "4 with 515 query tokens",
                     "1 without queries",
                     "1 with a prefix",
                     "1 with positions of their own",
                     std::string("decode+tile on ") + summary.target,
                     "sequences[0 .. 1]: 4 to 8 rows per KV head: decode",
                     "not tile",
                     "sequences[2]: 2048 rows per KV head: tile",
                     "not decode",
                     "sequences[3]: 0 rows",
                     "items: " + number(summary.num_items) + " (" + number(summary.num_decode_items) + " decode, " +
                         number(summary.num_tile_items) + " tile) for 3 workers",
                     number(summary.kv_bytes) + " bytes",
                     number(summary.touched_kv_bytes) + " bytes",
                     "FLOPs: " + number(summary.flops) + " useful, " + number(summary.touched_flops) + " done",
                     "arithmetic intensity",
                     "roofline: needs",
                     number(summary.workspace_bytes) + " bytes"});
  const RegisterBlock decode = plan->impl().kernels().register_block(8);
  const RegisterBlock tile = plan->impl().kernels().register_block(24);
  EXPECT_GE(tile.rows * tile.cols, 6);
  EXPECT_EQ(decode.lanes, tile.lanes);
  EXPECT_LE(decode.rows, 8);
  for (const RegisterBlock& block : {decode, tile}) {
    // Accumulators, the shorter side of the block, and one operand of the longer: by hand, not by the library's rule.
    EXPECT_EQ(block.used_registers, block.rows * block.cols + std::min(block.rows, block.cols) + 1);
    EXPECT_LE(block.used_registers, block.num_registers);
    const std::string target = summary.target;
    const bool has_32 = target.find("AVX3") == 0 || target.find("NEON") == 0 || target.find("SVE") == 0;
    EXPECT_EQ(block.num_registers, has_32 ? 32 : 16) << target;
  }
  ExpectParts(text,
              {"decode: up to 8 rows a call, register blocks of " + number(decode.rows) + " rows x " +
                   number(decode.cols) + " vectors of " + number(decode.lanes) +
                   " lanes: " + number(decode.used_registers) + " of " + number(decode.num_registers) + " registers",
               "tile: up to 24 rows a call, register blocks of " + number(tile.rows) + " rows x " + number(tile.cols) +
                   " vectors of " + number(tile.lanes) + " lanes: " + number(tile.used_registers) + " of " +
                   number(tile.num_registers) + " registers"});
  for (const char* slot : {"k_tiles", "v_tiles", "q ", "s ", "header", "states"}) ExpectParts(text, {slot});
}

// Few rows of quantised keys have blocks of their own, as many are widened: what is printed is what runs.
TEST(Explain, BlocksOfQuantisedKeys) {
  for (const DType dtype : {DType::kI8, DType::kF8E4M3, DType::kI4}) {
    for (const int64_t q_len : {1, 2, 3}) {  // 4, 8, 12 rows of a KV head
      KVCacheSpec cache_spec;
      cache_spec.num_kv_heads = 2;
      cache_spec.qk_dim = cache_spec.v_dim = 64;
      cache_spec.k_dtype = cache_spec.v_dtype = dtype;
      cache_spec.max_tokens = 256;
      auto cache = KVCache::Create(cache_spec);
      ASSERT_TRUE(cache.ok()) << cache.status().c_str();
      SequenceSpec s = Sequence(0, q_len, 100);
      s.cache_id = cache->CreateSequence().value();
      ASSERT_TRUE(cache->Reserve(s.cache_id, 100).ok());
      auto plan = PlanAttention(MakeSpec(8, 2, 64, 64), *cache, std::vector<SequenceSpec>{s});
      ASSERT_TRUE(plan.ok()) << plan.status().c_str();
      const KernelTable& kernels = plan->impl().kernels();
      const RegisterBlock own = kernels.kv[static_cast<int>(dtype)].register_block(4 * q_len);
      const RegisterBlock block = q_len < 3 ? own : kernels.register_block(4 * q_len);
      EXPECT_LE(own.rows, 4);
      EXPECT_LE(own.rows * own.cols, own.used_registers);
      EXPECT_LE(own.used_registers, own.num_registers);
      ExpectParts(plan->Explain().value(),
                  {"decode: up to " + std::to_string(4 * q_len) + " rows a call, register blocks of " +
                   std::to_string(block.rows) + " rows x " + std::to_string(block.cols) + " vectors"});
    }
  }
}

TEST(Explain, WorkspacePartsAddUp) {
  Random random(12);
  for (int trial = 0; trial < 50; ++trial) {
    const Case c = RandomCase(random);
    PlanOptions options;
    options.num_workers = c.num_workers;
    auto plan = PlanAttention(c.spec, c.sequences, options);
    ASSERT_TRUE(plan.ok());
    const PlanImpl& impl = plan->impl();
    std::vector<WorkspacePart> parts, slot_parts;
    DescribeWorkspace(impl.problem(), impl.limits(), impl.room(), &parts, &slot_parts);
    int64_t bytes = 0, slot_bytes = 0;
    for (const WorkspacePart& part : parts) bytes += part.bytes;
    for (const WorkspacePart& part : slot_parts) slot_bytes += part.bytes;
    EXPECT_EQ(bytes, impl.layout().bytes);
    EXPECT_EQ(slot_bytes, impl.layout().slot.bytes);
    EXPECT_TRUE(plan->Explain().ok());
  }
}

TEST(Explain, RooflineIsTheSlowerOfMemoryAndArithmetic) {
  AttentionSpec spec = MakeSpec(8, 8, 128, 128);
  PlanOptions options;
  options.num_workers = 1;
  auto decode = PlanAttention(spec, std::vector<SequenceSpec>{Sequence(0, 1, 4096)}, options);
  ASSERT_TRUE(decode.ok());
  // 33.6 MB at 10 GB/s.
  ExpectParts(decode->Explain({.gflop_per_s = 100, .gb_per_s = 10}).value(),
              {"bound by memory", "3355 us at best", "0.5 FLOPs per byte"});
  ExpectParts(decode->Explain({.gflop_per_s = 1, .gb_per_s = 10}).value(), {"bound by arithmetic"});
  auto prefill = PlanAttention(spec, std::vector<SequenceSpec>{Sequence(0, 1024, 1024)}, options);
  ASSERT_TRUE(prefill.ok());
  ExpectParts(prefill->Explain({.gflop_per_s = 100, .gb_per_s = 10}).value(), {"bound by arithmetic"});
  auto nothing = PlanAttention(spec, std::vector<SequenceSpec>(), options);
  ASSERT_TRUE(nothing.ok());
  ExpectParts(nothing->Explain().value(), {"kernels: none", "items: 0"});
}

TEST(Explain, SaysWhatIsCut) {
  AttentionSpec spec = MakeSpec(4, 1, 64, 64);
  PlanOptions options;
  options.num_workers = 4;
  auto plan = PlanAttention(spec, std::vector<SequenceSpec>{Sequence(0, 1, 65536)}, options);
  ASSERT_TRUE(plan.ok());
  EXPECT_GT(plan->summary().num_splits, 3);
  ExpectParts(plan->Explain().value(),
              {"1 are cut along the keys, into " + std::to_string(plan->summary().num_splits) + " items",
               "64 splits of 1024", "tiles: 4096 of 16 keys", "row blocks: 1 of 4 rows"});
}

}  // namespace
}  // namespace headlane::internal
