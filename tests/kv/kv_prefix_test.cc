// Prefixes found by token ids: shared instead of computed again, with the same bits, and never more than is equal.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "headlane/kv_cache.h"
#include "kv/attend.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"

namespace headlane::internal {
namespace {

KVCacheSpec Spec() {
  KVCacheSpec spec = SpecOf(DType::kF32, DType::kF32, 4, 16, 16, 64);
  spec.num_layers = 2;
  spec.num_kv_heads = 1;
  return spec;
}

std::vector<int32_t> Ids(const std::vector<int64_t>& names) { return {names.begin(), names.end()}; }

SequenceId WithTokens(KVCache& cache, const std::vector<int64_t>& names) {
  const SequenceId id = NewSequence(cache);
  EXPECT_TRUE(Succeeds(AppendTokens(cache, id, names)));
  EXPECT_TRUE(Succeeds(cache.SetTokens(id, Ids(names).data(), static_cast<int64_t>(names.size()))));
  return id;
}

// How much of a prompt is found, and that it is what was asked for.
int64_t Matched(KVCache& cache, const std::vector<int64_t>& prompt) {
  int64_t matched = -1;
  const Result<SequenceId> id = cache.ForkPrefix(Ids(prompt).data(), static_cast<int64_t>(prompt.size()), &matched);
  EXPECT_TRUE(Succeeds(id.status()));
  EXPECT_EQ(*cache.Length(*id), matched);
  EXPECT_TRUE(Attends(cache, *id, {prompt.begin(), prompt.begin() + matched}));
  EXPECT_TRUE(Succeeds(cache.DropSequence(*id)));
  return matched;
}

TEST(KVPrefix, FindsTheLongestRunOfFullPages) {
  KVCache cache = MakeCache(Spec());
  std::vector<int64_t> a = Names(0, 100);
  std::vector<int64_t> b = Names(0, 70);
  b[50] = 999;
  WithTokens(cache, b);
  WithTokens(cache, a);
  EXPECT_EQ(Matched(cache, Names(0, 200)), 96);
  std::vector<int64_t> prompt = b;
  EXPECT_EQ(Matched(cache, prompt), 64);
  prompt[63] = 7;
  EXPECT_EQ(Matched(cache, prompt), 48);
  prompt[0] = 7;
  EXPECT_EQ(Matched(cache, prompt), 0);
  EXPECT_EQ(Matched(cache, Names(1, 100)), 0);
  EXPECT_EQ(Matched(cache, {}), 0);
}

// F27: a prompt that is wholly there leaves one token to compute, which then has the bits of the cold run.
TEST(KVPrefix, LeavesOneTokenToCompute) {
  KVCache cache = MakeCache(Spec());
  const SequenceId cold = WithTokens(cache, Names(0, 64));
  EXPECT_EQ(Matched(cache, Names(0, 64)), 48);
  EXPECT_EQ(Matched(cache, Names(0, 65)), 64);
  EXPECT_EQ(Matched(cache, Names(0, 17)), 16);
  EXPECT_EQ(Matched(cache, Names(0, 16)), 0);
  EXPECT_EQ(Matched(cache, Names(0, 1)), 0);
  const std::vector<int32_t> ids = Ids(Names(0, 64));
  int64_t matched = 0;
  const int64_t used = cache.usage().used_pages;
  const SequenceId warm = *cache.ForkPrefix(ids.data(), 64, &matched);
  EXPECT_EQ(cache.usage().used_pages, used);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, warm, Names(matched, 64 - matched))));
  EXPECT_TRUE(Attends(cache, warm, Names(0, 64)));
  EXPECT_TRUE(Attends(cache, cold, Names(0, 64)));
}

TEST(KVPrefix, IdsGoAwayWithTheirTokens) {
  KVCache cache = MakeCache(Spec());
  const SequenceId id = WithTokens(cache, Names(0, 100));
  ASSERT_TRUE(Succeeds(cache.Truncate(id, 40)));
  EXPECT_EQ(Matched(cache, Names(0, 100)), 32);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(500, 60))));
  EXPECT_EQ(Matched(cache, Names(0, 100)), 32);
  std::vector<int64_t> now = Names(0, 40);
  for (const int64_t name : Names(500, 60)) now.push_back(name);
  EXPECT_EQ(Matched(cache, now), 32);
  ASSERT_TRUE(Succeeds(cache.SetTokens(id, Ids(Names(500, 60)).data(), 60, 40)));
  EXPECT_EQ(Matched(cache, now), 96);
  // A removal leaves what is before it.
  ASSERT_TRUE(Succeeds(cache.Remove(id, 20, 36, {})));
  now.erase(now.begin() + 20, now.begin() + 36);
  EXPECT_EQ(Matched(cache, now), 16);
  ASSERT_TRUE(Succeeds(cache.SetTokens(id, Ids(now).data(), 84)));
  EXPECT_EQ(Matched(cache, now), 80);
  ASSERT_TRUE(Succeeds(cache.DropSequence(id)));
  EXPECT_EQ(Matched(cache, now), 0);
}

// Forks know the ids of what they share, and copies of pages take theirs along.
TEST(KVPrefix, ForksShareIds) {
  KVCache cache = MakeCache(Spec());
  const SequenceId parent = WithTokens(cache, Names(0, 40));
  const SequenceId child = *cache.Fork(parent, 37);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, child, Names(700, 27))));
  ASSERT_TRUE(Succeeds(cache.SetTokens(child, Ids(Names(700, 27)).data(), 27, 37)));
  std::vector<int64_t> names = Names(0, 37);
  for (const int64_t name : Names(700, 27)) names.push_back(name);
  names.push_back(1);
  EXPECT_EQ(Matched(cache, names), 64);
  EXPECT_EQ(Matched(cache, Names(0, 60)), 32);
  ASSERT_TRUE(Succeeds(cache.DropSequence(parent)));
  EXPECT_EQ(Matched(cache, names), 64);
}

TEST(KVPrefix, RefusalsNameBothNumbersAndChangeNothing) {
  KVCache cache = MakeCache(Spec());
  const SequenceId id = WithTokens(cache, Names(0, 40));
  const std::string name = "sequence " + std::to_string(id.value);
  const std::vector<int32_t> ids = Ids(Names(0, 41));
  EXPECT_TRUE(Fails(cache.SetTokens(id, ids.data(), 41), StatusCode::kOutOfRange, {name, "41", "40"}));
  EXPECT_TRUE(Fails(cache.SetTokens(id, ids.data(), -1), StatusCode::kOutOfRange, {name, "-1"}));
  EXPECT_TRUE(Fails(cache.SetTokens(id, nullptr, 1), StatusCode::kInvalidArgument, {name, "null"}));
  std::vector<int32_t> others = ids;
  others[33] = -6;
  EXPECT_TRUE(
      Fails(cache.SetTokens(id, others.data(), 40), StatusCode::kInvalidArgument, {name, "token 33", "id 33", "-6"}));
  EXPECT_TRUE(Fails(cache.SetTokens(SequenceId{}, ids.data(), 1), StatusCode::kNotFound));
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(40, 40))));
  EXPECT_TRUE(Fails(cache.SetTokens(id, ids.data(), 10, 50), StatusCode::kFailedPrecondition, {name, "50", "40"}));
  EXPECT_EQ(Matched(cache, Names(0, 100)), 32);
  int64_t matched = 0;
  EXPECT_TRUE(Fails(cache.ForkPrefix(nullptr, 3, &matched).status(), StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(cache.ForkPrefix(ids.data(), -1, &matched).status(), StatusCode::kInvalidArgument, {"-1"}));
  EXPECT_TRUE(Fails(cache.ForkPrefix(ids.data(), 3, nullptr).status(), StatusCode::kInvalidArgument));
  for (int i = 0; i < 7; ++i) NewSequence(cache);
  EXPECT_TRUE(Fails(cache.ForkPrefix(ids.data(), 41, &matched).status(), StatusCode::kResourceExhausted, {"8"}));
  EXPECT_EQ(matched, 0);
}

TEST(KVPrefix, WindowsGiveOnlyWhatTheyKeep) {
  KVCacheSpec spec = Spec();
  spec.groups = {{.window = 20, .max_in_flight = 40}, {}};
  spec.group_of_layer = {0, 1};
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  const std::vector<int64_t> names = Names(0, 100);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, names)));
  ASSERT_TRUE(Succeeds(cache.SetTokens(id, Ids(names).data(), 100)));
  int64_t matched = 0;
  // 100 - 40 = 60 tokens can be gone back to: 96, 80 and 64 are.
  ASSERT_TRUE(Succeeds(cache.ForkPrefix(Ids(names).data(), 100, &matched).status()));
  EXPECT_EQ(matched, 96);
  ASSERT_TRUE(Succeeds(cache.ForkPrefix(Ids(names).data(), 65, &matched).status()));
  EXPECT_EQ(matched, 64);
  ASSERT_TRUE(Succeeds(cache.ForkPrefix(Ids(names).data(), 64, &matched).status()));
  EXPECT_EQ(matched, 0);
  spec.groups = {{.window = 20}};
  spec.group_of_layer = {};
  KVCache ring = MakeCache(spec);
  EXPECT_TRUE(Fails(ring.ForkPrefix(Ids(names).data(), 64, &matched).status(), StatusCode::kUnsupported));
  EXPECT_TRUE(Fails(ring.SetTokens(NewSequence(ring), Ids(names).data(), 0), StatusCode::kUnsupported));
}

}  // namespace
}  // namespace headlane::internal
