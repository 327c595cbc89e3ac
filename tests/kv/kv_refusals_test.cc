// Every public operation of the cache, refused memory and refused pages: with the n-th allocation failing, and with one
// page fewer than it needs. A typed error each time, and nothing is different.
//
// One table of operations and two loops over it; a new operation is a new line. Its own program: it replaces the heap.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "headlane/executor.h"
#include "headlane/kv_cache.h"
#include "headlane/kv_file.h"
#include "headlane/kv_pages.h"
#include "kv/allocation_hooks.h"
#include "kv/attend.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"
#include "kv/save_util.h"

namespace headlane::internal {
namespace {

constexpr int64_t kPages = 24;

// A cache in the middle of its life, and what operations need, made beforehand: they are to be seen allocating alone.
//
// `windows`: of two layers, one of which keeps a window's tokens only. All sequences but the drafting one then are 64
// tokens longer, and have lost what is before `base` + 3 there, but for the first 2 tokens.
struct Scene {
  explicit Scene(DType dtype, bool windows = false)
      : spec(SpecIn(dtype, windows)),
        base(windows ? 64 : 0),
        cache(MakeCache(spec)),
        path(
            (std::filesystem::temp_directory_path() / ("headlane_kv_refusals_" + std::to_string(::getpid()))).string()),
        rows(spec, 0, Names(500, 40)),
        read(spec, 0, Names(0, 40)) {
    a = NewSequence(cache);
    ids.assign(static_cast<size_t>(base + 40), 7);
    EXPECT_TRUE(Succeeds(AppendTokens(cache, a, Names(0, base + 40))));  // pages 0, 1, and half of 2
    EXPECT_TRUE(Succeeds(cache.SetTokens(a, ids.data(), base + 40)));
    fork = *cache.Fork(a);
    drafting = NewSequence(cache);
    EXPECT_TRUE(Succeeds(AppendTokens(cache, drafting, Names(60, 20))));
    EXPECT_TRUE(Succeeds(cache.Reserve(drafting, 6)));
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
      const TokenRows draft(spec, layer, Names(80, 6));
      EXPECT_TRUE(Succeeds(cache.Write(drafting, layer, draft.k_view(), draft.v_view())));
    }
    sequences = {a, fork, drafting};
    saved.bytes = Saved(cache, {a, fork});
    EXPECT_TRUE(Succeeds(SaveSequences(cache, std::span(sequences).first(2), path.c_str())));
    written.bytes.reserve(1 << 20);
    paged.num_kv_heads = spec.num_kv_heads;
    paged.qk_dim = spec.qk_dim;
    paged.v_dim = spec.v_dim;
    paged.k_dtype = paged.v_dtype = dtype;
    paged.num_pages = 4;
    page_memory.resize(static_cast<size_t>(4 * TilePageLayout(paged)->page_bytes + 64));
    const size_t past = reinterpret_cast<uintptr_t>(page_memory.data()) % 64;
    paged.layers.resize(1);
    paged.layers[0].tiles = page_memory.data() + (64 - past) % 64;
  }
  ~Scene() { std::filesystem::remove(path); }

  static KVCacheSpec SpecIn(DType dtype, bool windows) {
    KVCacheSpec spec = SpecOf(dtype, dtype, 16, 16, 16, kPages);
    if (!windows) return spec;
    spec.num_layers = 2;
    spec.groups = {{}, {.window = 10, .num_always_visible = 2, .max_in_flight = 28}};
    spec.group_of_layer = {0, 1};
    return spec;
  }

  // All free pages but `left` are somebody's.
  void LeavePages(int64_t left) {
    const SequenceId filler = NewSequence(cache);
    const int64_t free = cache.usage().free_bytes / cache.usage().page_bytes;
    ASSERT_GE(free, left);
    ASSERT_TRUE(Succeeds(cache.Reserve(filler, (free - left) * 16)));
  }

  KVCacheSpec spec;
  int64_t base;
  KVCache cache;
  std::string path;
  TokenRows rows, read;
  SequenceId a, fork, drafting;
  std::vector<SequenceId> sequences;
  std::vector<int32_t> ids;
  KVPagesSpec paged;
  std::vector<std::byte> page_memory;
  MemoryStream saved, written;
};

// The first n of rows.
ConstTensorView First(ConstTensorView view, int64_t n) {
  view.num_tokens = n;
  return view;
}

// Append, of any number of layers.
Status AppendRows(Scene& scene) {
  if (scene.spec.num_layers == 1) return scene.cache.Append(scene.fork, scene.rows.k_view(), scene.rows.v_view());
  HEADLANE_RETURN_IF_ERROR(scene.cache.Reserve(scene.fork, 40));
  for (int64_t layer = 0; layer < scene.spec.num_layers; ++layer) {
    HEADLANE_RETURN_IF_ERROR(scene.cache.Write(scene.fork, layer, scene.rows.k_view(), scene.rows.v_view()));
  }
  return scene.cache.Commit(scene.fork, 40);
}

struct Operation {
  const char* name;
  int64_t pages;   // that it needs to be free
  bool allocates;  // by its card
  Status (*run)(Scene& scene);
};
const Operation kOperations[] = {
    {"Create", 0, true, [](Scene& s) { return KVCache::Create(s.spec).status(); }},
    {"RequiredBytes", 0, false, [](Scene& s) { return KVCache::RequiredBytes(s.spec).status(); }},
    {"FirstTouch", 0, false, [](Scene& s) { return s.cache.FirstTouch(SerialExecutor()); }},
    {"CreateSequence", 0, false, [](Scene& s) { return s.cache.CreateSequence().status(); }},
    {"Fork", 0, false, [](Scene& s) { return s.cache.Fork(s.a, s.base + 30).status(); }},
    {"Fork of a page with reserved tokens", 1, false, [](Scene& s) { return s.cache.Fork(s.drafting).status(); }},
    {"DropSequence", 0, false, [](Scene& s) { return s.cache.DropSequence(s.a); }},
    {"Length", 0, false, [](Scene& s) { return s.cache.Length(s.a).status(); }},
    {"SequenceUsage", 0, false, [](Scene& s) { return s.cache.SequenceUsage(s.a).status(); }},
    {"Reserve in pages of its own", 2, false, [](Scene& s) { return s.cache.Reserve(s.drafting, 12 + 32); }},
    {"Reserve behind a shared page", 3, false, [](Scene& s) { return s.cache.Reserve(s.a, 8 + 32); }},
    {"Write", 0, false,
     [](Scene& s) { return s.cache.Write(s.drafting, 0, First(s.rows.k_view(), 6), First(s.rows.v_view(), 6)); }},
    {"Commit", 0, false, [](Scene& s) { return s.cache.Commit(s.drafting, 3); }},
    {"CommitPath", 0, false,
     [](Scene& s) {
       const int64_t path[] = {1, 4};
       return s.cache.CommitPath(s.drafting, path, 2);
     }},
    {"Abandon", 0, false, [](Scene& s) { return s.cache.Abandon(s.drafting); }},
    {"Append behind a shared page", 3, false, [](Scene& s) { return AppendRows(s); }},
    {"Truncate", 0, false, [](Scene& s) { return s.cache.Truncate(s.a, s.base + 17); }},
    {"Remove from shared pages", 3, false, [](Scene& s) { return s.cache.Remove(s.a, s.base + 3, s.base + 5, {}); }},
    {"Remove with a rotation", 1, false,
     [](Scene& s) {
       RopeShift shifts[2];
       for (RopeShift& shift : shifts) shift.rope.rotary_dim = 8;
       return s.cache.Remove(s.fork, s.base + 20, s.base + 30,
                             std::span<const RopeShift>(shifts).first(s.base == 0 ? 1 : 2));
     }},
    {"SetTokens", 0, false, [](Scene& s) { return s.cache.SetTokens(s.drafting, s.ids.data(), 20); }},
    {"ForkPrefix", 0, false,
     [](Scene& s) {
       int64_t matched = 0;
       const Status status = s.cache.ForkPrefix(s.ids.data(), s.base + 40, &matched).status();
       EXPECT_TRUE(!status.ok() || matched == s.base + 32);
       return status;
     }},
    {"Read", 0, false,
     [](Scene& s) {
       return s.cache.Read(s.a, 0, s.base, TokensHeadsDim(s.read.k.data(), 40, 2, 16),
                           TokensHeadsDim(s.read.v.data(), 40, 2, 16));
     }},
    {"SaveSequences", 0, true, [](Scene& s) { return SaveSequences(s.cache, s.sequences, s.written.sink()); }},
    {"SaveSequences to a file", 0, true, [](Scene& s) { return SaveSequences(s.cache, s.sequences, s.path.c_str()); }},
    {"SavedBytes", 0, true, [](Scene& s) { return SavedBytes(s.cache, s.sequences).status(); }},
    {"AllSequences", 0, true, [](Scene& s) { return AllSequences(s.cache).status(); }},
    {"RestoreSequences", 3, true, [](Scene& s) { return RestoreSequences(s.cache, s.saved.source()).status(); }},
    {"RestoreSequences from a file", 3, true,
     [](Scene& s) { return RestoreSequences(s.cache, s.path.c_str()).status(); }},
    {"KVPages::Create", 0, true, [](Scene& s) { return KVPages::Create(s.paged).status(); }},
    {"TilePageLayout", 0, false, [](Scene& s) { return TilePageLayout(s.paged).status(); }},
};

// What can be seen of a cache but for its sequences' bytes.
::testing::AssertionResult Same(const Scene& scene, const CacheState& before) {
  if (!scene.cache.Length(scene.a).ok()) return ::testing::AssertionFailure() << "a is gone";
  const ::testing::AssertionResult reserved = Succeeds(scene.cache.impl().CheckReadable(scene.drafting, 26));
  return reserved ? Unchanged(scene.cache, before) : reserved;
}

void FailEachAllocation(DType dtype, bool windows) {
  for (const Operation& operation : kOperations) {
    SCOPED_TRACE(operation.name);
    int64_t num_allocations = 0;
    {
      Scene scene(dtype, windows);
      const int64_t before = NumAllocations();
      const Status status = operation.run(scene);
      num_allocations = NumAllocations() - before;
      ASSERT_TRUE(Succeeds(status));
      EXPECT_EQ(num_allocations > 0, operation.allocates) << num_allocations;
    }
    int64_t num_refused = 0;
    for (int64_t n = 1; n <= num_allocations; ++n) {
      Scene scene(dtype, windows);
      const CacheState before(scene.cache);
      FailAllocation(n);
      const Status status = operation.run(scene);
      FailAllocation(0);
      if (status.ok()) continue;  // the C library does without a buffer
      ++num_refused;
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
      EXPECT_TRUE(Same(scene, before)) << "allocation " << n;
      // Asked again, it has what it needs.
      scene.saved.at = 0;
      EXPECT_TRUE(Succeeds(operation.run(scene))) << "allocation " << n;
    }
    EXPECT_EQ(num_refused > 0, operation.allocates);
  }
}

TEST(KVRefusals, AnyAllocationThatFails) {
  if (!CanFailAllocations()) GTEST_SKIP() << "the sanitizer's heap can't be made to fail";
  FailEachAllocation(DType::kF32, false);
}

TEST(KVRefusals, AnyAllocationThatFailsOfAWindowOfQuantisedTokens) {
  if (!CanFailAllocations()) GTEST_SKIP() << "the sanitizer's heap can't be made to fail";
  {
    Scene scene(DType::kI8, true);
    const TensorView k = TokensHeadsDim(scene.read.k.data(), 1, 2, 16);
    const TensorView v = TokensHeadsDim(scene.read.v.data(), 1, 2, 16);
    EXPECT_TRUE(Fails(scene.cache.Read(scene.a, 1, scene.base + 2, k, v), StatusCode::kFailedPrecondition));
    EXPECT_TRUE(Succeeds(scene.cache.Read(scene.a, 1, scene.base + 3, k, v)));
  }
  for (const DType dtype : {DType::kI8, DType::kI4}) FailEachAllocation(dtype, true);
}

TEST(KVRefusals, OnePageShort) {
  for (const DType dtype : kEveryDType) {
    for (const Operation& operation : kOperations) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + operation.name);
      {
        Scene scene(dtype);
        scene.LeavePages(operation.pages);
        EXPECT_TRUE(Succeeds(operation.run(scene)));
      }
      if (operation.pages == 0) continue;
      Scene scene(dtype);
      scene.LeavePages(operation.pages - 1);
      const CacheState before(scene.cache);
      EXPECT_TRUE(Fails(operation.run(scene), StatusCode::kResourceExhausted,
                        {std::to_string(operation.pages), std::to_string(operation.pages - 1) + " are free"}));
      EXPECT_TRUE(Same(scene, before));
    }
  }
}

}  // namespace
}  // namespace headlane::internal
