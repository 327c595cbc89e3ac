// What a plan accepts, what it says of itself, and how it moves from step to step.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headlane/attention.h"
#include "plan/plan_impl.h"

namespace headlane {
namespace {

constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();

constexpr int64_t kMaxPos = int64_t{1} << 40;
constexpr uint64_t kBits[5] = {1, 3, 5, 9, 17};

AttentionSpec GoodSpec() {
  AttentionSpec spec;
  spec.num_q_heads = 8;
  spec.num_kv_heads = 2;
  spec.qk_dim = 64;
  spec.v_dim = 48;
  return spec;
}

std::vector<SequenceSpec> GoodSequences() {
  std::vector<SequenceSpec> sequences(3);
  sequences[0].q_len = 1;
  sequences[0].kv_len = 100;
  sequences[1].q_begin = 1;
  sequences[1].q_len = 5;
  sequences[1].kv_len = 2000;
  sequences[1].kv_begin = 100;
  sequences[2].q_begin = 6;
  sequences[2].q_len = 2;
  return sequences;
}

void ExpectError(const Status& status, StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status.c_str();
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string_view::npos) << "'" << part << "' is not in: " << status.c_str();
  }
}

TEST(PlanAttention, NamesTheFieldAndBothNumbers) {
  struct Case {
    std::function<void(AttentionSpec*, std::vector<SequenceSpec>*, PlanOptions*)> spoil;
    std::vector<std::string> parts;
  };
  using S = AttentionSpec*;
  using Q = std::vector<SequenceSpec>*;
  using O = PlanOptions*;
  const std::vector<Case> cases = {
      {[](S s, Q, O) { s->num_q_heads = 9, s->num_kv_heads = 7; }, {"num_q_heads is 9", "num_kv_heads", "7"}},
      {[](S s, Q, O) { s->num_kv_heads = 0; }, {"num_q_heads is 8", "num_kv_heads", "0"}},
      {[](S s, Q, O) { s->num_q_heads = -8; }, {"num_q_heads is -8", "0"}},
      {[](S s, Q, O) { s->num_kv_heads = -2; }, {"num_kv_heads is -2", "0"}},
      {[](S s, Q, O) { s->num_q_heads = kMax64; }, {"num_q_heads", "9223372036854775807", "1048576"}},
      {[](S s, Q, O) { s->qk_dim = -1; }, {"qk_dim is -1", "0"}},
      {[](S s, Q, O) { s->qk_dim = int64_t{1} << 40; }, {"qk_dim is 1099511627776", "1048576"}},
      {[](S s, Q, O) { s->v_dim = -3; }, {"v_dim is -3", "0"}},
      {[](S s, Q, O) { s->scale = std::numeric_limits<float>::infinity(); }, {"scale is inf"}},
      {[](S s, Q, O) { s->scale = std::nanf(""); }, {"scale is"}},
      {[](S s, Q, O) { s->mask.window = -2; }, {"window is -2", "-1"}},
      {[](S s, Q, O) { s->mask.causality = static_cast<Causality>(7); }, {"causality is 7", "3"}},
      {[](S s, Q, O) { s->mask.window_right = -3; }, {"window_right is -3", "-1"}},
      {[](S s, Q, O) { s->mask.num_always_visible = -1; }, {"num_always_visible is -1", "0"}},
      {[](S s, Q, O) { s->mask.chunk = -8; }, {"chunk is -8", "0"}},
      {[](S s, Q, O) { s->softcap = -0.5f; }, {"softcap is -0.5", "0"}},
      {[](S s, Q, O) { s->softcap = std::nanf(""); }, {"softcap is", "finite"}},
      {[](S s, Q, O) { s->softcap = std::numeric_limits<float>::infinity(); }, {"softcap is inf"}},
      {[](S s, Q, O) { s->values_in_keys = true, s->v_dim = 65; }, {"v_dim is 65", "values_in_keys", "64"}},
      {[](S s, Q, O) { s->numerics = static_cast<Numerics>(2); }, {"numerics is 2", "2 known"}},
      {[](S, Q q, O) { (*q)[1].q_len = -1; }, {"sequences[1].q_len is -1", "0"}},
      {[](S, Q q, O) { (*q)[2].kv_len = -5; }, {"sequences[2].kv_len is -5", "0"}},
      {[](S, Q q, O) { (*q)[0].q_begin = -1; }, {"sequences[0].q_begin is -1", "0"}},
      {[](S, Q q, O) { (*q)[1].batch = -4; }, {"sequences[1].batch is -4", "0"}},
      {[](S, Q q, O) { (*q)[1].kv_begin = -9; }, {"sequences[1].kv_begin is -9", "0"}},
      {[](S, Q q, O) { (*q)[1].kv_len = kMax64; }, {"sequences[1].kv_len", "9223372036854775807", "1099511627776"}},
      {[](S, Q q, O) { (*q)[1].q_len = kMax64; }, {"sequences[1].q_len", "9223372036854775807", "1073741824"}},
      {[](S, Q q, O) { (*q)[1].q_len = 2147483647; }, {"sequences[1].q_len", "2147483647", "1073741824"}},
      {[](S, Q q, O) { (*q)[1].q_len = 1 << 29; }, {"sequences[0 .. 1]", "536870913", "8 heads", "1073741824"}},
      {[](S, Q q, O) { (*q)[1].q_begin = kMax64; }, {"sequences[1].q_begin", "9223372036854775807"}},
      {[](S, Q q, O) { (*q)[1].kv_begin = kMax64; }, {"sequences[1].kv_begin", "9223372036854775807"}},
      {[](S, Q q, O) { (*q)[2].q_begin = 5; }, {"sequences[1]", "sequences[2]", "[1, 6)", "[5, 7)"}},
      {[](S, Q q, O) { (*q)[2].q_begin = 0, (*q)[2].q_len = 1; }, {"sequences[0]", "sequences[2]", "[0, 1)", "[0, 1)"}},
      {[](S, Q q, O) { (*q)[1].q_pos = kMaxPos + 1; }, {"sequences[1].q_pos is 1099511627777", "1099511627776"}},
      {[](S, Q q, O) { (*q)[1].q_pos = -kMaxPos - 1; }, {"sequences[1].q_pos is -1099511627777", "1099511627776"}},
      {[](S, Q q, O) { (*q)[1].q_pos = -kMax64 - 1; }, {"sequences[1].q_pos is -9223372036854775808"}},
      {[](S, Q q, O) { (*q)[1].prefix_len = -1; }, {"sequences[1].prefix_len is -1", "0"}},
      {[](S, Q q, O) { (*q)[1].prefix_len = kMax64; }, {"sequences[1].prefix_len", "1099511627776"}},
      {[](S, Q q, O) { (*q)[1].tree = {kBits, 0}; }, {"sequences[1].tree.row_words is 0", "at least 1", "q_len 5"}},
      {[](S, Q q, O) { (*q)[1].tree = {kBits, -1}; }, {"sequences[1].tree.row_words is -1", "1"}},
      {[](S, Q q, O) { (*q)[1].tree = {kBits, kMax64}; }, {"sequences[1].tree.row_words", "1073741824"}},
      {[](S, Q q, O) { (*q)[1].tree = {kBits, 1}, (*q)[1].q_pos = 3; }, {"sequences[1].q_pos is 3", "tree"}},
      {[](S, Q q, O) { (*q)[1].tree = {kBits, 1}, (*q)[1].kv_len = 4; }, {"sequences[1].q_len is 5", "kv_len is 4"}},
      {[](S, Q, O o) { o->num_workers = -1; }, {"num_workers is -1", "0"}},
      {[](S, Q, O o) { o->max_sequences = -1; }, {"max_sequences is -1", "0"}},
      {[](S, Q, O o) { o->max_q_tokens = -7; }, {"max_q_tokens is -7", "0"}},
      {[](S, Q, O o) { o->max_kv_len = kMax64; }, {"max_kv_len", "9223372036854775807", "1099511627776"}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    AttentionSpec spec = GoodSpec();
    std::vector<SequenceSpec> sequences = GoodSequences();
    PlanOptions options;
    options.num_workers = 2;
    cases[i].spoil(&spec, &sequences, &options);
    auto plan = PlanAttention(spec, sequences, options);
    ASSERT_FALSE(plan.ok());
    ExpectError(plan.status(), StatusCode::kInvalidArgument, cases[i].parts);
  }
  EXPECT_TRUE(PlanAttention(GoodSpec(), GoodSequences()).ok());
}

TEST(PlanAttention, TakesEveryMask) {
  AttentionSpec spec = GoodSpec();
  spec.mask = {Causality::kFull, kMax64, kMax64, kMax64, kMax64};
  spec.softcap = 50;
  spec.numerics = Numerics::kFastest;
  std::vector<SequenceSpec> sequences = GoodSequences();
  sequences[0].q_pos = -kMaxPos;
  sequences[1].tree = {kBits, 1};
  sequences[2].q_pos = kMaxPos;
  sequences[2].prefix_len = kMaxPos;  // of which nothing is there yet
  const auto plan = PlanAttention(spec, sequences);
  ASSERT_TRUE(plan.ok()) << plan.status().c_str();
  EXPECT_GT(plan->summary().flops, 0);
  spec = GoodSpec();
  spec.values_in_keys = true;
  EXPECT_TRUE(PlanAttention(spec, sequences).ok());
}

TEST(PlanAttention, SequencesMayComeInAnyOrder) {
  std::vector<SequenceSpec> sequences = GoodSequences();
  std::swap(sequences[0], sequences[2]);
  EXPECT_TRUE(PlanAttention(GoodSpec(), sequences).ok());
  // The same tokens of another batch entry, and no tokens at all, are nobody's.
  sequences[0].batch = 1;
  sequences[0].q_begin = 0;
  SequenceSpec empty;
  empty.q_begin = 3;
  sequences.push_back(empty);
  EXPECT_TRUE(PlanAttention(GoodSpec(), sequences).ok());
  sequences.push_back(sequences[0]);
  EXPECT_FALSE(PlanAttention(GoodSpec(), sequences).ok());
}

TEST(PlanAttention, EmptyProblemsAreLegal) {
  for (const int zero : {0, 1, 2, 3, 4, 5}) {
    AttentionSpec spec = GoodSpec();
    std::vector<SequenceSpec> sequences = GoodSequences();
    if (zero == 0) sequences.clear();
    if (zero == 1) spec.num_q_heads = spec.num_kv_heads = 0;
    if (zero == 2) spec.num_q_heads = 0;
    if (zero == 3) spec.qk_dim = 0;
    if (zero == 4) spec.v_dim = 0;
    for (SequenceSpec& s : sequences) {
      if (zero == 5) s.q_len = 0;
    }
    for (const int workers : {1, 2, 64}) {
      PlanOptions options;
      options.num_workers = workers;
      auto plan = PlanAttention(spec, sequences, options);
      ASSERT_TRUE(plan.ok()) << zero << ": " << plan.status().c_str();
      const bool has_rows = zero == 3 || zero == 4;
      EXPECT_EQ(plan->summary().num_items > 0, has_rows) << zero;
      EXPECT_EQ(std::string(plan->summary().kernel) == "none", !has_rows) << zero;
      EXPECT_TRUE(Workspace::Create(*plan).ok()) << zero;
    }
  }
}

TEST(PlanAttention, SummaryCounts) {
  AttentionSpec spec = GoodSpec();
  std::vector<SequenceSpec> sequences(1);
  sequences[0].q_len = 1;
  sequences[0].kv_len = 4096;
  PlanOptions options;
  options.num_workers = 1;
  const auto summarize = [&] { return PlanAttention(spec, sequences, options).value().summary(); };
  PlanSummary summary = summarize();
  EXPECT_STREQ(summary.kernel, "decode");
  EXPECT_STRNE(summary.target, "");
  EXPECT_EQ(summary.num_items, 1);  // of both KV heads
  EXPECT_EQ(summary.num_splits, 0);
  EXPECT_EQ(summary.num_rows, 8);
  EXPECT_EQ(summary.flops, 2.0 * 8 * 4096 * (64 + 48));
  EXPECT_EQ(summary.kv_bytes, 4.0 * 2 * 4096 * (64 + 48));
  EXPECT_EQ(summary.workspace_bytes, PlanAttention(spec, sequences, options).value().workspace_bytes());

  // Causal: n (n + 1) / 2 pairs; a window hides the rest.
  sequences[0].q_len = 4096;
  summary = summarize();
  EXPECT_STREQ(summary.kernel, "tile");
  EXPECT_EQ(summary.flops, 2.0 * 8 * (4096.0 * 4097 / 2) * (64 + 48));
  EXPECT_EQ(summary.kv_bytes, 4.0 * 2 * 4096 * (64 + 48));
  spec.mask.window = 100;
  sequences[0].q_len = 11;
  summary = summarize();
  EXPECT_EQ(summary.flops, 2.0 * 8 * 11 * 100 * (64 + 48));
  EXPECT_EQ(summary.kv_bytes, 4.0 * 2 * 110 * (64 + 48));

  // Both kernels, and pieces that are merged.
  spec = GoodSpec();
  SequenceSpec decode;
  decode.batch = 1;
  decode.q_len = 1;
  decode.kv_len = 65536;
  sequences[0].q_len = 300;
  sequences.push_back(decode);
  options.num_workers = 2;
  summary = summarize();
  EXPECT_STREQ(summary.kernel, "decode+tile");
  EXPECT_GT(summary.num_splits, 1);
  EXPECT_LE(summary.num_splits, summary.num_items);
}

TEST(PlanAttention, WorkspaceGrowsWithTokensAndNotWithTheirSquare) {
  AttentionSpec spec = GoodSpec();
  PlanOptions options;
  options.num_workers = 4;
  size_t previous = 0;
  for (const int64_t n : {int64_t{1024}, int64_t{16384}, int64_t{262144}, int64_t{1} << 26}) {
    std::vector<SequenceSpec> sequences(1);
    sequences[0].q_len = 1;
    sequences[0].kv_len = n;
    auto plan = PlanAttention(spec, sequences, options);
    ASSERT_TRUE(plan.ok());
    EXPECT_GE(plan->workspace_bytes(), previous);
    previous = plan->workspace_bytes();
    // Scratch of the workers, and states: a small part of the keys and values themselves.
    EXPECT_LT(static_cast<double>(previous), 8.0e6 + plan->summary().kv_bytes / 200) << n;
  }
}

TEST(Update, MovesWithinTheCapacityAndRefusesBeyond) {
  AttentionSpec spec = GoodSpec();
  std::vector<SequenceSpec> sequences = GoodSequences();
  PlanOptions options;
  options.num_workers = 3;
  options.max_sequences = 4;
  options.max_q_tokens = 20;
  options.max_kv_len = 5000;
  auto plan = PlanAttention(spec, sequences, options);
  ASSERT_TRUE(plan.ok());
  const size_t bytes = plan->workspace_bytes();
  const double flops = plan->summary().flops;

  std::vector<SequenceSpec> next = sequences;
  next[1].kv_len = 5001;
  ExpectError(plan->Update(next), StatusCode::kResourceExhausted, {"kv_len", "5001", "5000"});
  next = sequences;
  next[2].q_len = 15;
  ExpectError(plan->Update(next), StatusCode::kResourceExhausted, {"query tokens", "21", "20"});
  next = sequences;
  next.resize(5);
  ExpectError(plan->Update(next), StatusCode::kResourceExhausted, {"sequences", "5", "4"});
  next = sequences;
  next[1].kv_len = -1;
  ExpectError(plan->Update(next), StatusCode::kInvalidArgument, {"sequences[1].kv_len", "-1"});
  EXPECT_EQ(plan->summary().flops, flops) << "a refused update changes nothing";
  EXPECT_EQ(plan->impl().sequences().size(), 3u);

  next = sequences;
  next[1].kv_len = 5000;
  next[2].q_len = 14;
  ASSERT_TRUE(plan->Update(next).ok());
  EXPECT_GT(plan->summary().flops, flops);
  EXPECT_EQ(plan->workspace_bytes(), bytes);
  ASSERT_TRUE(plan->Update(std::span<const SequenceSpec>()).ok());
  EXPECT_EQ(plan->summary().num_items, 0);
  ASSERT_TRUE(plan->Update(sequences).ok());
  EXPECT_EQ(plan->summary().flops, flops);
}

TEST(Plan, OfACacheChecksSequencesAndPages) {
  AttentionSpec spec = GoodSpec();
  KVCacheSpec cache_spec;
  cache_spec.num_kv_heads = 2;
  cache_spec.qk_dim = 64;
  cache_spec.v_dim = 48;
  cache_spec.page_tokens = 16;
  cache_spec.max_tokens = 256;
  auto cache = KVCache::Create(cache_spec);
  ASSERT_TRUE(cache.ok()) << cache.status().c_str();
  const SequenceId a = cache->CreateSequence().value();
  const SequenceId b = cache->CreateSequence().value();
  ASSERT_TRUE(cache->Reserve(a, 40).ok());
  ASSERT_TRUE(cache->Reserve(b, 100).ok());

  std::vector<SequenceSpec> sequences(2);
  sequences[0] = {.q_begin = 0, .q_len = 1, .kv_len = 40, .cache_id = a};
  sequences[1] = {.q_begin = 1, .q_len = 3, .kv_len = 100, .cache_id = b};
  auto plan = PlanAttention(spec, *cache, sequences);
  ASSERT_TRUE(plan.ok()) << plan.status().c_str();
  // All pages of both, and none twice.
  std::vector<bool> seen(16, false);
  const int64_t num_pages[] = {3, 7};
  for (int64_t s = 0; s < 2; ++s) {
    for (int64_t i = 0; i < num_pages[s]; ++i) {
      const int32_t page = plan->impl().PagesOf(s)[i];
      ASSERT_GE(page, 0);
      ASSERT_LT(page, 16);
      EXPECT_FALSE(seen[static_cast<size_t>(page)]);
      seen[static_cast<size_t>(page)] = true;
    }
  }

  std::vector<SequenceSpec> bad = sequences;
  bad[1].kv_len = 101;
  EXPECT_EQ(PlanAttention(spec, *cache, bad).status().code(), StatusCode::kOutOfRange);
  ExpectError(plan->Update(*cache, bad), StatusCode::kOutOfRange, {"sequences[1]", "101", "100"});
  bad = sequences;
  bad[0].cache_id = SequenceId{12345};
  ExpectError(plan->Update(*cache, bad), StatusCode::kNotFound, {"sequences[0]", "12345"});
  ExpectError(plan->Update(sequences), StatusCode::kInvalidArgument, {"cache", "plain"});
  ASSERT_TRUE(plan->Update(*cache, sequences).ok());

  AttentionSpec other = spec;
  other.v_dim = 64;
  ExpectError(PlanAttention(other, *cache, sequences).status(), StatusCode::kInvalidArgument, {"v_dim", "64", "48"});
  other = spec;
  other.num_q_heads = 12, other.num_kv_heads = 4;
  ExpectError(PlanAttention(other, *cache, sequences).status(), StatusCode::kInvalidArgument,
              {"num_kv_heads", "4", "2"});
  other = spec;
  other.values_in_keys = true;
  ExpectError(PlanAttention(other, *cache, sequences).status(), StatusCode::kInvalidArgument,
              {"values_in_keys is 1", "cache's values_in_keys is 0"});
  cache_spec.k_dtype = DType::kF16;
  cache_spec.v_dtype = DType::kBF16;
  auto halves = KVCache::Create(cache_spec);
  ASSERT_TRUE(halves.ok()) << halves.status().c_str();
  EXPECT_TRUE(PlanAttention(spec, *halves, {}).ok());
  ExpectError(plan->Update(*halves, {}), StatusCode::kInvalidArgument, {"f32", "f16", "bf16"});
  cache_spec.k_dtype = cache_spec.v_dtype = DType::kF32;
  cache_spec.page_tokens = 32;
  auto pages_of_32 = KVCache::Create(cache_spec);
  ASSERT_TRUE(pages_of_32.ok());
  ExpectError(plan->Update(*pages_of_32, {}), StatusCode::kInvalidArgument, {"16", "32"});

  // A larger cache of the same kind: as far as the page numbers have room.
  cache_spec.page_tokens = 16;
  cache_spec.max_tokens = 4096;
  auto larger = KVCache::Create(cache_spec);
  ASSERT_TRUE(larger.ok());
  PlanOptions options;
  options.max_kv_len = 4096;
  auto roomy = PlanAttention(spec, *cache, sequences, options);
  ASSERT_TRUE(roomy.ok());
  sequences[0].cache_id = larger->CreateSequence().value();
  sequences[1].cache_id = larger->CreateSequence().value();
  ASSERT_TRUE(larger->Reserve(sequences[0].cache_id, 2000).ok());
  ASSERT_TRUE(larger->Reserve(sequences[1].cache_id, 2000).ok());
  EXPECT_TRUE(roomy->Update(*larger, sequences).ok());
  sequences[0].kv_len = 2000;
  ExpectError(roomy->Update(*larger, sequences), StatusCode::kResourceExhausted, {"pages", "132", "32"});
}

TEST(DefaultScale, IsTheRoundedInverseRoot) {
  EXPECT_EQ(DefaultScale(64), 0.125f);
  EXPECT_EQ(DefaultScale(1), 1.0f);
  EXPECT_EQ(DefaultScale(128), 0x1.6a09e6p-4f);
  EXPECT_EQ(DefaultScale(0), 1.0f);
  EXPECT_EQ(DefaultScale(-5), 1.0f);
}

}  // namespace
}  // namespace headlane
