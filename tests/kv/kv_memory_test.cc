// What the cache asks of the system: everything at creation, nothing afterwards, nothing touched before it is written,
// and a typed error without leftovers whichever request is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include "headlane/attention.h"
#include "headlane/executor.h"
#include "headlane/kv_cache.h"
#include "headlane/kv_pages.h"
#include "kv/allocation_hooks.h"
#include "kv/kv_test_util.h"

namespace headlane::internal {
namespace {

KVCacheSpec Spec() { return SpecOf(DType::kF32, DType::kF32, 64, 48, 32, 48); }

TEST(KVMemory, HooksSeeTheHeap) {
  const int64_t before = NumAllocations();
  auto* volatile p = new std::vector<int>(100);
  delete p;
  EXPECT_GE(NumAllocations() - before, 2);
}

TEST(KVMemory, NothingIsAllocatedAfterCreate) {
  const KVCacheSpec spec = Spec();
  KVCache cache = MakeCache(spec);
  std::vector<float> k_data(static_cast<size_t>(300 * spec.num_kv_heads * spec.qk_dim), 1.0f);
  std::vector<float> v_data(static_cast<size_t>(300 * spec.num_kv_heads * spec.v_dim), 1.0f);
  const auto k = [&](int64_t n) {
    return TokensHeadsDim(std::as_const(k_data).data(), n, spec.num_kv_heads, spec.qk_dim);
  };
  const auto v = [&](int64_t n) {
    return TokensHeadsDim(std::as_const(v_data).data(), n, spec.num_kv_heads, spec.v_dim);
  };
  const std::vector<int32_t> tokens(400, 5);
  RopeShift shift;
  shift.rope.rotary_dim = 16;
  const int64_t before = NumAllocations();
  bool good = true;
  bool refused = true;
  for (int round = 0; round < 3; ++round) {
    SequenceId ids[8];
    for (SequenceId& id : ids) id = *cache.CreateSequence();
    refused &= !cache.CreateSequence().ok();
    for (const SequenceId id : ids) {
      good &= cache.Append(id, k(100), v(100)).ok();
      good &= cache.Reserve(id, 20).ok() && cache.Write(id, 0, k(20), v(20)).ok();
      refused &=
          !cache.Reserve(id, 100000).ok() && !cache.Write(id, 0, k(20), v(20), 1).ok() && !cache.Commit(id, 21).ok();
      good &= cache.Commit(id, 7).ok() && cache.Abandon(id).ok() && cache.Truncate(id, 50).ok();
      good &= cache
                  .Read(id, 0, 10, TokensHeadsDim(k_data.data(), 40, spec.num_kv_heads, spec.qk_dim),
                        TokensHeadsDim(v_data.data(), 40, spec.num_kv_heads, spec.v_dim))
                  .ok();
      good &= cache.usage().used_pages > 0 && *cache.Length(id) == 50;
    }
    good &= cache.Append(ids[0], k(300), v(300)).ok();
    good &= cache.DropSequence(ids[7]).ok();
    good &= cache.SetTokens(ids[0], tokens.data(), 350).ok();
    int64_t matched = 0;
    const Result<SequenceId> found = cache.ForkPrefix(tokens.data(), 340, &matched);
    good &= found.ok() && matched == 320;
    refused &= !cache.Fork(ids[0]).ok();
    ids[7] = *found;
    good &= cache.Append(ids[7], k(5), v(5)).ok() && cache.SequenceUsage(ids[7])->shared_pages == 10;
    good &= cache.Reserve(ids[7], 10).ok() && cache.Write(ids[7], 0, k(10), v(10)).ok();
    const int64_t path[] = {0, 3, 9};
    good &= cache.CommitPath(ids[7], path, 3).ok();
    good &= cache.Remove(ids[7], 3, 7, std::span<const RopeShift>(&shift, 1)).ok();
    good &= cache.FirstTouch(SerialExecutor()).ok();
    for (const SequenceId id : ids) good &= cache.DropSequence(id).ok();
    refused &= !cache.DropSequence(ids[0]).ok();
  }
  EXPECT_EQ(NumAllocations() - before, 0);
  EXPECT_TRUE(good);
  EXPECT_TRUE(refused);
}

TEST(KVMemory, EveryRefusedAllocationIsATypedErrorAndLeavesNothingBehind) {
  if (!CanFailAllocations()) GTEST_SKIP() << "the sanitizer's heap can't be made to fail";
  int64_t failures = 0;
  for (int64_t n = 1;; ++n) {
    const int64_t live = NumLiveAllocations();
    FailAllocation(n);
    bool created;
    StatusCode code;
    {
      const Result<KVCache> cache = KVCache::Create(Spec());
      FailAllocation(0);
      created = cache.ok();
      code = cache.status().code();
    }
    EXPECT_EQ(NumLiveAllocations(), live) << "allocation " << n;
    if (created) break;
    EXPECT_EQ(code, StatusCode::kResourceExhausted) << "allocation " << n;
    ++failures;
    ASSERT_LT(n, 100);
  }
  EXPECT_GE(failures, 5);
}

// Writing, reading, moving a plan on and running it, over pages of every kind, with keys changed on their way.
TEST(KVMemory, PagesAllocateNothingAfterCreate) {
  for (const KVPageKind kind : {KVPageKind::kTiles, KVPageKind::kRows}) {
    KVPagesSpec spec;
    spec.kind = kind;
    spec.num_kv_heads = 2;
    spec.qk_dim = 64;
    spec.v_dim = 48;
    spec.page_tokens = 16;
    spec.num_pages = 40;
    spec.rotate = true;
    spec.layers.resize(1);
    const KVPageLayout layout = kind == KVPageKind::kTiles ? *TilePageLayout(spec) : KVPageLayout{};
    std::vector<float> k_rows(size_t{40} * 16 * 2 * 64), v_rows(size_t{40} * 16 * 2 * 48);
    std::vector<std::byte> tiles(static_cast<size_t>(40 * layout.page_bytes + 64));
    spec.layers[0].tiles = tiles.data() + (64 - reinterpret_cast<uintptr_t>(tiles.data()) % 64) % 64;
    spec.layers[0].k = {k_rows.data(), DType::kF32, 40, 16, 2, 64, int64_t{16} * 128, 128, 64, 1};
    spec.layers[0].v = {v_rows.data(), DType::kF32, 40, 16, 2, 48, int64_t{16} * 96, 96, 48, 1};
    Result<KVPages> created = KVPages::Create(spec);
    ASSERT_TRUE(Succeeds(created.status()));
    KVPages& pages = *created;

    constexpr int64_t kMost = 500;
    std::vector<float> k(size_t{kMost} * 2 * 64, 1.0f), v(size_t{kMost} * 2 * 48, 1.0f);
    std::vector<float> q(size_t{4} * 64, 1.0f), out(size_t{4} * 48);
    std::vector<int64_t> slots(kMost), positions(kMost);
    std::vector<int32_t> ids(40);
    for (int32_t i = 0; i < 40; ++i) ids[static_cast<size_t>(i)] = (i * 7) % 40;
    KeyTransform transform;
    transform.norm = true;
    transform.rope.rope.rotary_dim = 32;
    transform.positions = positions.data();
    AttentionSpec attention;
    attention.num_q_heads = 4;
    attention.num_kv_heads = 2;
    attention.qk_dim = 64;
    attention.v_dim = 48;
    SequenceSpec sequence;
    sequence.q_len = 1;
    PlanOptions options;
    options.num_workers = 2;
    options.max_kv_len = kMost;
    Result<AttentionPlan> plan = PlanAttention(attention, pages, std::span(&sequence, 1), options);
    ASSERT_TRUE(Succeeds(plan.status()));
    Result<Workspace> workspace = Workspace::Create(*plan);
    ASSERT_TRUE(Succeeds(workspace.status()));
    AttentionArgs args;
    args.q = TokensHeadsDim(std::as_const(q).data(), 1, 4, 64);
    args.out = TokensHeadsDim(out.data(), 1, 4, 48);
    args.pages = &pages;
    Executor& serial = SerialExecutor();

    const int64_t before = NumAllocations();
    bool good = true;
    bool refused = true;
    for (int64_t length = 0; length < kMost;) {
      const int64_t n = length == 0 ? 300 : 1 + length % 60;
      if (length + n > kMost) break;
      for (int64_t i = 0; i < n; ++i) {
        positions[static_cast<size_t>(i)] = length + i;
        slots[static_cast<size_t>(i)] = ids[static_cast<size_t>((length + i) / 16)] * 16 + (length + i) % 16;
      }
      const ConstTensorView k_view = TokensHeadsDim(std::as_const(k).data(), n, 2, 64);
      const ConstTensorView v_view = TokensHeadsDim(std::as_const(v).data(), n, 2, 48);
      good &= pages.Write(0, k_view, v_view, {slots.data(), static_cast<size_t>(n)}, transform).ok();
      length += n;
      sequence.kv_len = length;
      sequence.page_ids = ids;
      good &= plan->Update(pages, std::span(&sequence, 1)).ok();
      good &= RunAttention(*plan, args, *workspace, serial).ok() && out[0] == out[0];
      sequence.page_ids = std::span(ids).first(2);
      refused &= !plan->Update(pages, std::span(&sequence, 1)).ok();
      slots[0] = 640;
      refused &= !pages.Write(0, k_view, v_view, {slots.data(), static_cast<size_t>(n)}, transform).ok();
      good &=
          pages.Read(ids, 0, length - n, TokensHeadsDim(k.data(), n, 2, 64), TokensHeadsDim(v.data(), n, 2, 48)).ok();
    }
    const int64_t after = NumAllocations();
    EXPECT_TRUE(good);
    EXPECT_TRUE(refused);
    EXPECT_EQ(after, before);
  }
}

#if defined(__linux__)
int64_t ResidentBytes() {
  long long size = 0, resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%lld %lld", &size, &resident) != 2) ADD_FAILURE() << "no /proc/self/statm";
  if (file != nullptr) std::fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

// The worker that writes a page first decides on which memory it lies, so creation must not.
TEST(KVMemory, CreationTouchesNoPageOfThePool) {
  KVCacheSpec spec = Spec();
  spec.num_layers = 32;
  spec.qk_dim = spec.v_dim = 128;
  spec.max_tokens = 16384;
  spec.max_sequences = 64;
  const int64_t before = ResidentBytes();
  KVCache cache = MakeCache(spec);
  const int64_t pool = cache.usage().limit_bytes;
  ASSERT_GE(pool, int64_t{1} << 30);
  EXPECT_LT(ResidentBytes() - before, int64_t{8} << 20);
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 16384)));
  EXPECT_LT(ResidentBytes() - before, int64_t{8} << 20);
}
#endif

}  // namespace
}  // namespace headlane::internal
