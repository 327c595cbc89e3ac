// Nothing is allocated between plan and result: Reserve, Write, Commit, Update and RunAttention, on any thread. The
// allocator of the whole process is replaced by one that counts; it counts from the moment a test says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <vector>

#include "headlane/attention.h"
#include "operator/check.h"
#include "operator/runner.h"

namespace {
std::atomic<bool> g_counting{false};
std::atomic<int64_t> g_count{0};

void Count() {
  if (g_counting.load(std::memory_order_relaxed)) g_count.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

#if defined(__GLIBC__)
// glibc's own functions under their second names.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t n) {
  Count();
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  Count();
  return __libc_calloc(n, size);
}
void* realloc(void* p, size_t n) {
  Count();
  return __libc_realloc(p, n);
}
void* memalign(size_t alignment, size_t n) {
  Count();
  return __libc_memalign(alignment, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  Count();
  return __libc_memalign(alignment, n);
}
int posix_memalign(void** p, size_t alignment, size_t n) {
  Count();
  *p = __libc_memalign(alignment, n);
  return *p == nullptr ? ENOMEM : 0;
}
void free(void* p) {
  Count();
  __libc_free(p);
}
}
#else
// Elsewhere operator new, which is what C++ code uses.
void* operator new(size_t n) {
  Count();
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  Count();
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  Count();
  std::free(p);
}
#endif

namespace headlane::testing {
namespace {

// Counts within its scope.
class Counting {
 public:
  Counting() {
    g_count = 0;
    g_counting = true;
  }
  ~Counting() { g_counting = false; }
  int64_t Stop() {
    g_counting = false;
    return g_count;
  }
};

TEST(Allocation, TheCounterCounts) {
  Counting counting;
  int* volatile p = new int(3);
  delete p;
  EXPECT_GE(counting.Stop(), 2);
}

TEST(Allocation, NoneFromReserveToResult) {
  constexpr int64_t kSteps = 40;
  constexpr int64_t kStart = 1010;  // the steps cross an edge of a tile, block, split and page
  const Heads heads{8, 2, 32, 32};
  Random random(1);
  const Sequence a = RandomSequence(random, heads, {}, kStart + kSteps, kStart + kSteps);
  const Sequence b = RandomSequence(random, heads, {}, 200 + kSteps, 200 + kSteps);
  Result<KVCache> made = KVCache::Create(
      {.num_layers = 1, .num_kv_heads = 2, .qk_dim = 32, .v_dim = 32, .page_tokens = 64, .max_tokens = 2048});
  ASSERT_TRUE(made.ok());
  KVCache& cache = *made;
  std::vector<SequenceSpec> specs(2);
  const auto rows = [](const Sequence& s, bool keys, int64_t begin, int64_t n) {
    return TokensHeadsDim((keys ? s.problem.k : s.problem.v) + begin * 2 * 32, n, 2, 32);
  };
  specs[0].cache_id = cache.CreateSequence().value();
  specs[1].cache_id = cache.CreateSequence().value();
  ASSERT_TRUE(cache.Append(specs[0].cache_id, rows(a, true, 0, kStart), rows(a, false, 0, kStart)).ok());
  ASSERT_TRUE(cache.Append(specs[1].cache_id, rows(b, true, 0, 200), rows(b, false, 0, 200)).ok());

  PlanOptions options;
  options.num_workers = 2;
  options.max_sequences = 2;
  options.max_q_tokens = 2;
  options.max_kv_len = kStart + kSteps;
  Result<AttentionPlan> plan = PlanAttention(SpecOf(a.problem), cache, specs, options);
  ASSERT_TRUE(plan.ok()) << plan.status().c_str();
  Result<Workspace> workspace = Workspace::Create(*plan);
  ASSERT_TRUE(workspace.ok());
  const size_t planned_bytes = plan->workspace_bytes();

  std::vector<float> q(2 * 8 * 32);
  std::vector<float> out(2 * 8 * 32);
  std::vector<float> lse(2 * 8);
  std::vector<std::vector<float>> outs(kSteps, std::vector<float>(2 * 8 * 32));
  AttentionArgs args;
  args.q = TokensHeadsDim(static_cast<const float*>(q.data()), 2, 8, 32);
  args.out = TokensHeadsDim(out.data(), 2, 8, 32);
  args.lse = {lse.data(), 16, 8, 1};
  args.cache = &cache;
  OpenMPExecutor executor(2);
  for (int i = 0; i < 2; ++i) executor.Run(2, [](void*, int) noexcept {}, nullptr);  // the runtime starts its threads

  Status status;
  Counting counting;
  for (int64_t step = 0; step < kSteps && status.ok(); ++step) {
    const Sequence* sequences[] = {&a, &b};
    for (int i = 0; i < 2 && status.ok(); ++i) {
      const int64_t at = (i == 0 ? kStart : 200) + step;
      const SequenceId id = specs[static_cast<size_t>(i)].cache_id;
      std::copy_n(sequences[i]->problem.q + at * 8 * 32, 8 * 32, q.data() + i * 8 * 32);
      status = cache.Reserve(id, 1);
      if (status.ok()) status = cache.Write(id, 0, rows(*sequences[i], true, at, 1), rows(*sequences[i], false, at, 1));
      if (status.ok()) status = cache.Commit(id, 1);
      specs[static_cast<size_t>(i)].q_begin = i;
      specs[static_cast<size_t>(i)].q_len = 1;
      specs[static_cast<size_t>(i)].kv_len = at + 1;
    }
    if (status.ok()) status = plan->Update(cache, specs);
    if (status.ok()) status = RunAttention(*plan, args, *workspace, executor);
    std::copy(out.begin(), out.end(), outs[static_cast<size_t>(step)].begin());
  }
  const int64_t count = counting.Stop();
  ASSERT_TRUE(status.ok()) << status.c_str();
  EXPECT_EQ(count, 0) << "calls of the allocator";
  EXPECT_EQ(plan->workspace_bytes(), planned_bytes);

  // And it computed something: the rows of the whole sequences.
  const Output whole_a = RunLibrary(a);
  const Output whole_b = RunLibrary(b);
  for (int64_t step = 0; step < kSteps; ++step) {
    const float* got = outs[static_cast<size_t>(step)].data();
    ASSERT_TRUE(SameBits(whole_a.out.data() + (kStart + step) * 8 * 32, got, 8 * 32)) << "a, step " << step;
    ASSERT_TRUE(SameBits(whole_b.out.data() + (200 + step) * 8 * 32, got + 8 * 32, 8 * 32)) << "b, step " << step;
  }
}

TEST(Allocation, NoneWithPlainTensorsNorInFailingCalls) {
  Random random(2);
  const Sequence s = RandomSequence(random, {4, 2, 16, 16}, {}, 40, 3000);
  std::vector<SequenceSpec> specs(1);
  specs[0].q_len = 40;
  specs[0].kv_len = 3000;
  PlanOptions options;
  options.num_workers = 3;
  Result<AttentionPlan> plan = PlanAttention(SpecOf(s.problem), specs, options);
  ASSERT_TRUE(plan.ok());
  Result<Workspace> workspace = Workspace::Create(*plan);
  ASSERT_TRUE(workspace.ok());
  std::vector<float> out(40 * 4 * 16);
  AttentionArgs args;
  args.q = TokensHeadsDim(s.problem.q, 40, 4, 16);
  args.k = TokensHeadsDim(s.problem.k, 3000, 2, 16);
  args.v = TokensHeadsDim(s.problem.v, 3000, 2, 16);
  args.out = TokensHeadsDim(out.data(), 40, 4, 16);
  OpenMPExecutor executor(2);
  for (int i = 0; i < 2; ++i) executor.Run(2, [](void*, int) noexcept {}, nullptr);

  Counting counting;
  const Status ok = RunAttention(*plan, args, *workspace, executor);
  specs[0].q_len = 20;
  const Status updated = plan->Update(specs);
  const Status smaller = RunAttention(*plan, args, *workspace, executor);
  specs[0].kv_len = 1 << 30;
  const Status too_large = plan->Update(specs);
  args.v.dim = 3;
  const Status bad = RunAttention(*plan, args, *workspace, executor);
  const int64_t count = counting.Stop();
  EXPECT_TRUE(ok.ok() && updated.ok() && smaller.ok());
  EXPECT_EQ(too_large.code(), StatusCode::kResourceExhausted) << too_large.c_str();
  EXPECT_EQ(bad.code(), StatusCode::kInvalidArgument) << bad.c_str();
  EXPECT_EQ(count, 0) << "calls of the allocator";
}

// A draft with everything on top: two trees whose bits change from step to step.
TEST(Allocation, NoneWithModifiersStatesAndMerges) {
  Random random(3);
  Sight sight;
  sight.window = 900;
  sight.num_always_visible = 4;
  sight.softcap = 20.0f;
  Sequence s = RandomSequence(random, {4, 2, 16, 16}, sight, 6, 1500);
  const std::vector<float> bias = random.Floats(4 * 1500);
  const std::vector<uint8_t> mask(1500, 1);
  const std::vector<float> per_head = random.Floats(4);
  const uint64_t trees[2][6] = {{1, 3, 5, 9, 17, 49}, {1, 3, 7, 15, 31, 63}};
  AttentionSpec spec = SpecOf(s.problem);
  std::vector<SequenceSpec> specs(1);
  specs[0].q_len = 6;
  specs[0].kv_len = 1500;
  specs[0].tree = {trees[0], 1};
  PlanOptions options;
  options.num_workers = 3;
  Result<AttentionPlan> plan = PlanAttention(spec, specs, options);
  ASSERT_TRUE(plan.ok()) << plan.status().c_str();
  Result<Workspace> workspace = Workspace::Create(*plan);
  ASSERT_TRUE(workspace.ok());
  std::vector<float> out(6 * 4 * 16), o(6 * 4 * 16), m(24), l(24);
  AttentionArgs args;
  args.q = TokensHeadsDim(s.problem.q, 6, 4, 16);
  args.k = TokensHeadsDim(s.problem.k, 1500, 2, 16);
  args.v = TokensHeadsDim(s.problem.v, 1500, 2, 16);
  args.out = TokensHeadsDim(out.data(), 6, 4, 16);
  args.bias = {bias.data(), DType::kF32, 1, 6, 4, 1500, 0, 0, 1500, 1};
  args.mask = {mask.data(), BoolMaskView::Format::kBytes, 1, 6, 4, 1500, 0, 0, 0};
  args.alibi_slopes = args.sinks = per_head.data();
  args.state = {{m.data(), 24, 4, 1}, {l.data(), 24, 4, 1}, TokensHeadsDim(o.data(), 6, 4, 16)};
  OpenMPExecutor executor(2);
  for (int i = 0; i < 2; ++i) executor.Run(2, [](void*, int) noexcept {}, nullptr);

  Counting counting;
  const Status first = RunAttention(*plan, args, *workspace, executor);
  specs[0].tree.bits = trees[1];
  const Status updated = plan->Update(specs);
  const Status second = RunAttention(*plan, args, *workspace, executor);
  const Status merged = MergeStates(args.state, args.state);
  const Status finished = FinishStates(args.state, args.out, {});
  const int64_t count = counting.Stop();
  EXPECT_TRUE(first.ok()) << first.c_str();
  EXPECT_TRUE(updated.ok()) << updated.c_str();
  EXPECT_TRUE(second.ok()) << second.c_str();
  EXPECT_TRUE(merged.ok()) << merged.c_str();
  EXPECT_TRUE(finished.ok()) << finished.c_str();
  EXPECT_EQ(count, 0) << "calls of the allocator";
}

}  // namespace
}  // namespace headlane::testing
