// The pool: the caller's memory, byte limits, first touch, and layer groups' shares of it.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "headlane/executor.h"
#include "headlane/kv_cache.h"
#include "kv/attend.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"

namespace headlane::internal {
namespace {

KVCacheSpec Spec() {
  KVCacheSpec spec = SpecOf(DType::kF32, DType::kF32, 16, 16, 16, 4);
  spec.num_layers = 3;
  spec.max_sequences = 4;
  return spec;
}
constexpr int64_t kPageBytes = 3 * 2 * 2 * 16 * 16 * 4;

struct Aligned {
  explicit Aligned(int64_t bytes) : data(std::aligned_alloc(4096, static_cast<size_t>(RoundUp(bytes, 4096)))) {
    std::memset(data, 0xFF, static_cast<size_t>(RoundUp(bytes, 4096)));
  }
  ~Aligned() { std::free(data); }
  std::byte* bytes() const { return static_cast<std::byte*>(data); }
  void* data;
};

// What stands in the caller's memory, before and behind the pool too, and that results are those of a pool of its own.
TEST(KVPool, LivesInTheCallersMemoryAndNowhereElse) {
  KVCacheSpec spec = Spec();
  const int64_t needed = *KVCache::RequiredBytes(spec);
  EXPECT_EQ(needed, 4 * kPageBytes);
  Aligned memory(needed + 8192);
  spec.memory = memory.bytes() + 64;
  spec.memory_bytes = needed;
  {
    KVCache cache = MakeCache(spec);
    EXPECT_EQ(cache.usage().limit_bytes, needed);
    const SequenceId id = NewSequence(cache);
    ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, 64))));
    EXPECT_TRUE(Attends(cache, id, Names(0, 64)));
    const std::byte* const tile = cache.impl().KTile(2, 3, 1, 0);
    EXPECT_GE(tile, memory.bytes() + 64);
    EXPECT_LT(tile, memory.bytes() + 64 + needed);
    EXPECT_TRUE(Fails(cache.Reserve(id, 1), StatusCode::kResourceExhausted));
  }
  for (int64_t i = 0; i < 64; ++i) ASSERT_EQ(memory.bytes()[i], std::byte{0xFF});
  for (int64_t i = needed + 64; i < needed + 8192; ++i) ASSERT_EQ(memory.bytes()[i], std::byte{0xFF});
}

TEST(KVPool, RefusesMemoryThatIsTooSmallOrNotAligned) {
  KVCacheSpec spec = Spec();
  const int64_t needed = *KVCache::RequiredBytes(spec);
  Aligned memory(needed + 64);
  spec.memory = memory.data;
  spec.memory_bytes = needed - 1;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument,
                    {"memory_bytes", std::to_string(needed - 1), std::to_string(needed)}));
  spec.memory_bytes = -1;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument, {"memory_bytes", "-1"}));
  spec.memory = memory.bytes() + 16;
  spec.memory_bytes = needed;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument, {"memory", "16", "64"}));
}

TEST(KVPool, ByteLimitGivesTheWholePagesThatFit) {
  for (const int64_t extra : {int64_t{0}, int64_t{1}, kPageBytes - 1}) {
    KVCacheSpec spec = Spec();
    spec.max_tokens = 0;
    spec.max_bytes = 3 * kPageBytes + extra;
    KVCache cache = MakeCache(spec);
    EXPECT_EQ(cache.usage().total_pages, 3);
    EXPECT_EQ(cache.usage().limit_bytes, 3 * kPageBytes);
    EXPECT_LE(cache.usage().limit_bytes, spec.max_bytes);
  }
  KVCacheSpec spec = Spec();
  spec.max_bytes = 2 * kPageBytes;  // less than max_tokens would have
  EXPECT_EQ(MakeCache(spec).usage().total_pages, 2);
  spec.max_bytes = 9 * kPageBytes;  // more
  EXPECT_EQ(MakeCache(spec).usage().total_pages, 4);
  spec.max_bytes = kPageBytes - 1;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument,
                    {"max_bytes", std::to_string(kPageBytes - 1)}));
  spec.max_tokens = 0;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument,
                    {"max_bytes", std::to_string(kPageBytes - 1), std::to_string(kPageBytes)}));
  spec.max_bytes = -5;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument));
  // The memory's size is a limit as well.
  Aligned memory(5 * kPageBytes);
  spec.max_bytes = 0;
  spec.memory = memory.data;
  spec.memory_bytes = 5 * kPageBytes + 17;
  EXPECT_EQ(MakeCache(spec).usage().total_pages, 5);
  spec.memory_bytes = 0;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument, {"memory_bytes", "0"}));
}

TEST(KVPool, GroupsShareAByteLimit) {
  KVCacheSpec spec = Spec();
  spec.groups = {{}, {.window = 8}};
  spec.group_of_layer = {0, 1, 0};
  spec.max_tokens = 0;
  spec.max_bytes = 5 * kPageBytes + 100;  // a page of each group together is kPageBytes
  KVCache cache = MakeCache(spec);
  EXPECT_EQ(cache.usage().total_pages, 10);
  EXPECT_EQ(cache.usage().limit_bytes, 5 * kPageBytes);
  spec.groups[1].max_tokens = 32;  // 2 pages of one layer
  EXPECT_EQ(*KVCache::RequiredBytes(spec), 2 * kPageBytes / 3 + 6 * (2 * kPageBytes / 3));
  spec.groups[0].max_tokens = 16;
  EXPECT_EQ(*KVCache::RequiredBytes(spec), 4 * kPageBytes / 3);
  spec.max_bytes = kPageBytes;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument,
                    {"max_bytes", std::to_string(kPageBytes), std::to_string(4 * kPageBytes / 3)}));
}

TEST(KVPool, RefusesGroupsThatMakeNoSense) {
  const auto refused = [](const KVCacheSpec& spec, const std::vector<std::string>& words) {
    EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument, words));
  };
  KVCacheSpec spec = Spec();
  spec.groups.resize(9);
  refused(spec, {"groups", "9"});
  spec.groups = {{}, {}};
  refused(spec, {"group 1", "no layer"});
  spec.group_of_layer = {0, 1};
  refused(spec, {"group_of_layer", "2", "3"});
  spec.group_of_layer = {0, 1, 2};
  refused(spec, {"group_of_layer[2]", "2"});
  spec.group_of_layer = {0, -1, 1};
  refused(spec, {"group_of_layer[1]", "-1"});
  spec.group_of_layer = {0, 1, 1};
  EXPECT_TRUE(Succeeds(KVCache::Create(spec).status()));
  spec.groups[1].window = 0;
  refused(spec, {"groups[1].window", "0"});
  spec.groups[1].window = -2;
  refused(spec, {"groups[1].window", "-2"});
  spec.groups[1] = {.window = 4, .num_always_visible = -1};
  refused(spec, {"groups[1].num_always_visible", "-1"});
  spec.groups[1] = {.window = 4, .max_in_flight = -1};
  refused(spec, {"groups[1].max_in_flight", "-1"});
  spec.groups[1] = {.max_tokens = -1};
  refused(spec, {"groups[1].max_tokens", "-1"});
  spec.groups[1] = {};
  spec.max_positions = -1;
  refused(spec, {"max_positions", "-1"});
}

TEST(KVPool, FirstTouchKeepsWhatIsThere) {
  KVCacheSpec spec = Spec();
  spec.max_tokens = 16 * 400;
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, 50))));
  OpenMPExecutor workers(3);
  EXPECT_TRUE(Succeeds(cache.FirstTouch(workers)));
  EXPECT_TRUE(Succeeds(cache.FirstTouch(SerialExecutor())));
  EXPECT_TRUE(Attends(cache, id, Names(0, 50)));
}

}  // namespace
}  // namespace headlane::internal
