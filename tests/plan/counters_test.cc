// What a plan says of a run, against counters taken in the run: items by kernel, bytes and FLOPs.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "plan/batch.h"

namespace headlane::internal {
namespace {

// A batch with its tensors, packed one sequence behind the other.
struct Batch {
  Case c;
  int64_t q_tokens = 0, kv_tokens = 0;
  std::vector<float> q, k, v, out;
  std::optional<KVCache> cache;

  AttentionArgs Args() {
    const AttentionSpec& spec = c.spec;
    AttentionArgs args;
    args.q = TokensHeadsDim(q.data(), q_tokens, spec.num_q_heads, spec.qk_dim);
    args.out = TokensHeadsDim(out.data(), q_tokens, spec.num_q_heads, spec.v_dim);
    if (cache) {
      args.cache = &*cache;
    } else {
      args.k = TokensHeadsDim(k.data(), kv_tokens, spec.num_kv_heads, spec.qk_dim);
      args.v = TokensHeadsDim(v.data(), kv_tokens, spec.num_kv_heads, spec.v_dim);
    }
    return args;
  }
};

// Keys and values of all sequences into a cache of any element types.
void FillCache(Random& random, Batch* batch) {
  Case& c = batch->c;
  KVCacheSpec spec;
  spec.num_kv_heads = c.spec.num_kv_heads;
  spec.qk_dim = c.spec.qk_dim;
  spec.v_dim = c.spec.v_dim;
  spec.values_in_keys = c.spec.values_in_keys;
  const std::vector<DType> dtypes = {DType::kF32, DType::kF16, DType::kBF16};
  spec.k_dtype = random.Pick(dtypes);
  spec.v_dtype = random.Pick(dtypes);
  spec.page_tokens = 16 * random.Int(1, 4);
  spec.max_tokens = 16;
  for (const SequenceSpec& s : c.sequences) spec.max_tokens += s.kv_len + spec.page_tokens;
  auto cache = KVCache::Create(spec);
  ASSERT_TRUE(cache.ok()) << cache.status().c_str();
  batch->cache.emplace(std::move(*cache));
  for (SequenceSpec& s : c.sequences) {
    s.cache_id = batch->cache->CreateSequence().value();
    if (s.kv_len == 0) continue;
    const float* const k = batch->k.data() + s.kv_begin * spec.num_kv_heads * spec.qk_dim;
    const float* const v = batch->v.data() + s.kv_begin * spec.num_kv_heads * spec.v_dim;
    const Status status = batch->cache->Append(s.cache_id, TokensHeadsDim(k, s.kv_len, spec.num_kv_heads, spec.qk_dim),
                                               TokensHeadsDim(v, s.kv_len, spec.num_kv_heads, spec.v_dim));
    ASSERT_TRUE(status.ok()) << status.c_str();
  }
}

void MakeBatch(Random& random, Batch* batch) {
  Case& c = batch->c;
  c = RandomCase(random);
  const std::vector<int64_t> dims = {0, 1, 16, 16, 17, 24, 40};
  c.spec.qk_dim = random.Pick(dims);
  c.spec.v_dim = random.Pick(dims);
  c.spec.values_in_keys = c.spec.v_dim <= c.spec.qk_dim && random.OneIn(3);
  for (SequenceSpec& s : c.sequences) {
    s = RandomSequence(random, 0, random.OneIn(3) ? 120 : 8, &c);
    if (s.tree.bits == nullptr) s.kv_len = random.Int(0, 2600);
    s.kv_len = std::min<int64_t>(s.kv_len, 2600);
    s.q_begin = batch->q_tokens;
    s.kv_begin = batch->kv_tokens;
    batch->q_tokens += s.q_len;
    batch->kv_tokens += s.kv_len;
  }
  const auto floats = [&](int64_t tokens, int64_t heads, int64_t dim) {
    return random.Floats(static_cast<size_t>(tokens * heads * dim + 1));
  };
  batch->q = floats(batch->q_tokens, c.spec.num_q_heads, c.spec.qk_dim);
  batch->k = floats(batch->kv_tokens, c.spec.num_kv_heads, c.spec.qk_dim);
  batch->v = floats(batch->kv_tokens, c.spec.num_kv_heads, c.spec.v_dim);
  batch->out.resize(static_cast<size_t>(batch->q_tokens * c.spec.num_q_heads * c.spec.v_dim + 1));
}

TEST(Plan, SaysWhatARunDoes) {
  Random random(31);
  int num_cut = 0, num_trees = 0;
  for (int trial = 0; trial < 200; ++trial) {
    Batch batch;
    MakeBatch(random, &batch);
    // Caches have at least one feature.
    const bool from_cache = random.OneIn(2) && batch.c.spec.qk_dim > 0 && batch.c.spec.v_dim > 0;
    if (from_cache) {
      ASSERT_NO_FATAL_FAILURE(FillCache(random, &batch));
    }
    SCOPED_TRACE(Describe(batch.c) + (from_cache ? " cache" : " plain"));
    const Case& c = batch.c;
    PlanOptions options;
    options.num_workers = c.num_workers;
    auto plan = from_cache ? PlanAttention(c.spec, *batch.cache, c.sequences, options)
                           : PlanAttention(c.spec, c.sequences, options);
    ASSERT_TRUE(plan.ok()) << plan.status().c_str();
    auto workspace = Workspace::Create(*plan);
    ASSERT_TRUE(workspace.ok());
    RunCounters counters;
    AttentionArgs args = batch.Args();
    args.counters = &counters;
    const Status status = RunAttention(*plan, args, *workspace, SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.c_str();

    const PlanSummary summary = plan->summary();
    EXPECT_EQ(counters.decode_items, summary.num_decode_items);
    EXPECT_EQ(counters.tile_items, summary.num_tile_items);
    EXPECT_EQ(static_cast<double>(counters.kv_bytes), summary.touched_kv_bytes);
    EXPECT_EQ(static_cast<double>(counters.flops), summary.touched_flops);
    const std::string kernel = counters.decode_items == 0 ? (counters.tile_items == 0 ? "none" : "tile")
                                                          : (counters.tile_items == 0 ? "decode" : "decode+tile");
    EXPECT_EQ(summary.kernel, kernel);
    num_cut += summary.num_splits > 0 ? 1 : 0;
    for (const SequenceSpec& s : c.sequences) num_trees += s.tree.bits != nullptr && s.q_len > 0 ? 1 : 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(num_cut, 10);
  EXPECT_GT(num_trees, 20);
}

}  // namespace
}  // namespace headlane::internal
