// Layer groups with windows: the bits of a cache that keeps everything, the pages that are given back, and what is
// refused because of it.
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

KVCacheSpec Spec(int64_t page_tokens, int64_t window, int64_t sinks, int64_t in_flight, DType dtype = DType::kF32) {
  KVCacheSpec spec = SpecOf(dtype, dtype, 10, 16, page_tokens, 2048 / page_tokens);
  spec.num_layers = 3;
  spec.num_kv_heads = 1;
  spec.groups = {{}, {.window = window, .num_always_visible = sinks, .max_in_flight = in_flight}};
  spec.group_of_layer = {1, 0, 1};
  return spec;
}
Mask MaskOf(const KVLayerGroup& group) {
  Mask mask;
  mask.window = group.window;
  mask.num_always_visible = group.num_always_visible;
  return mask;
}

// q_len rows at the end of the sequence, in every layer, against plain tensors that hold all tokens.
::testing::AssertionResult AttendsGroups(const KVCache& cache, SequenceId id, const std::vector<int64_t>& names,
                                         int64_t q_len) {
  const KVCacheSpec& spec = cache.spec();
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const int32_t group = spec.group_of_layer[static_cast<size_t>(layer)];
    const Mask mask = MaskOf(spec.groups[static_cast<size_t>(group)]);
    const Attended expected = AttendNames(spec, names, layer, q_len, mask);
    const Attended got = AttendCache(cache, id, layer, q_len, static_cast<int64_t>(names.size()), mask, group);
    if (!got.status.ok()) return Succeeds(got.status);
    if (std::memcmp(expected.out.data(), got.out.data(), got.out.size() * sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << q_len << " rows over " << names.size() << " keys in layer " << layer;
    }
  }
  return ::testing::AssertionSuccess();
}

// Appends n tokens, attending to them before they are committed, as a model does.
::testing::AssertionResult AppendAndAttend(KVCache& cache, SequenceId id, std::vector<int64_t>* names, int64_t n) {
  const int64_t begin = static_cast<int64_t>(names->size());
  const std::vector<int64_t> added = Names(begin + 7, n);
  const Status reserved = cache.Reserve(id, n);
  if (!reserved.ok()) return Succeeds(reserved);
  for (int64_t layer = 0; layer < cache.spec().num_layers; ++layer) {
    const TokenRows rows(cache.spec(), layer, added);
    const Status written = cache.Write(id, layer, rows.k_view(), rows.v_view());
    if (!written.ok()) return Succeeds(written);
  }
  names->insert(names->end(), added.begin(), added.end());
  const ::testing::AssertionResult attended = AttendsGroups(cache, id, *names, n);
  if (!attended) return attended;
  return Succeeds(cache.Commit(id, n));
}

TEST(KVRing, HasTheBitsOfACacheThatKeepsEverything) {
  int which = 0;
  for (const int64_t page_tokens : {16, 48, 128}) {
    for (const int64_t window : {1, 5, 16, 100, 300}) {
      for (const int64_t sinks : {0, 1, 4, 17, 40}) {
        const DType dtype = kEveryDType[which++ % kNumDTypes];
        SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + std::to_string(page_tokens) + " " + std::to_string(window) +
                     " " + std::to_string(sinks));
        const int64_t in_flight = 3;
        KVCache cache = MakeCache(Spec(page_tokens, window, sinks, in_flight, dtype));
        cache.impl().PoisonUnusedForTesting();
        const SequenceId id = NewSequence(cache);
        std::vector<int64_t> names;
        for (const int64_t n : {6, 1, 1, 33, 100, 1, 1, 17, 1, 250, 1, 1, 1, 64, 1, 1}) {
          ASSERT_TRUE(AppendAndAttend(cache, id, &names, n));
          cache.impl().PoisonUnusedForTesting();
          // Committed rows, as far back as was promised.
          const int64_t length = static_cast<int64_t>(names.size());
          ASSERT_TRUE(AttendsGroups(cache, id, names, std::min(length, in_flight)));
          // No page too many: every page but those of always-visible tokens holds one that is kept.
          int64_t kept_pages = 0;
          const int64_t first_kept = length - in_flight - window + 1;
          for (int64_t p = 0; p * page_tokens < length; ++p) {
            kept_pages += p * page_tokens < sinks || (p + 1) * page_tokens > first_kept ? 1 : 0;
          }
          const int64_t all_pages = CeilDiv(length, page_tokens);
          ASSERT_EQ(cache.SequenceUsage(id)->pages, all_pages + kept_pages);
          ASSERT_EQ(cache.usage().used_pages, all_pages + kept_pages);
          ASSERT_EQ(cache.usage().used_bytes + cache.usage().free_bytes, cache.usage().limit_bytes);
        }
        ASSERT_TRUE(Succeeds(cache.DropSequence(id)));
        EXPECT_EQ(cache.usage().used_pages, 0);
      }
    }
  }
}

// F33: window 8, the value of a key its position, q = 0: the mean of what is seen.
TEST(KVRing, SlidesExactlyWhenTheWindowIsFull) {
  for (const std::vector<int64_t>& chunks :
       {std::vector<int64_t>{6, 1, 1, 1, 1, 1, 1}, {11, 1}, {6, 5, 1}, {12}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    KVCacheSpec spec;
    spec.num_kv_heads = 1;
    spec.qk_dim = 1;
    spec.v_dim = 1;
    spec.page_tokens = 16;
    spec.max_tokens = 64;
    spec.groups = {{.window = 8}};
    KVCache cache = MakeCache(spec);
    cache.impl().PoisonUnusedForTesting();
    const SequenceId id = NewSequence(cache);
    Mask mask;
    mask.window = 8;
    int64_t length = 0;
    for (const int64_t n : chunks) {
      std::vector<float> k(static_cast<size_t>(n), 1.0f);
      std::vector<float> v;
      for (int64_t i = 0; i < n; ++i) v.push_back(static_cast<float>(length + i));
      std::vector<float> q(static_cast<size_t>(n), 0.0f);
      std::vector<float> out(static_cast<size_t>(n), -1.0f);
      ASSERT_TRUE(Succeeds(cache.Reserve(id, n)));
      ASSERT_TRUE(Succeeds(cache.Write(id, 0, TokensHeadsDim(std::as_const(k).data(), n, 1, 1),
                                       TokensHeadsDim(std::as_const(v).data(), n, 1, 1))));
      AttentionSpec attention;
      attention.num_q_heads = attention.num_kv_heads = attention.qk_dim = attention.v_dim = 1;
      attention.mask = mask;
      SequenceSpec sequence;
      sequence.q_len = n;
      sequence.kv_len = length + n;
      sequence.cache_id = id;
      AttentionArgs args;
      args.q = TokensHeadsDim(std::as_const(q).data(), n, 1, 1);
      args.out = TokensHeadsDim(out.data(), n, 1, 1);
      args.cache = &cache;
      ASSERT_TRUE(Succeeds(Attention(attention, std::span<const SequenceSpec>(&sequence, 1), args, SerialExecutor())));
      for (int64_t i = 0; i < n; ++i) {
        const int64_t a = length + i;
        EXPECT_EQ(out[static_cast<size_t>(i)], static_cast<float>(std::max<int64_t>(a - 7, 0) + a) / 2) << a;
      }
      ASSERT_TRUE(Succeeds(cache.Commit(id, n)));
      length += n;
    }
  }
}

// F35: sequences interleaved in one pool.
TEST(KVRing, SequencesDoNotCountEachOthersTokens) {
  KVCache cache = MakeCache(Spec(16, 3, 0, 1));
  const SequenceId a = NewSequence(cache);
  const SequenceId b = NewSequence(cache);
  std::vector<int64_t> names_a, names_b;
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(AppendAndAttend(cache, a, &names_a, 1));
    ASSERT_TRUE(AppendAndAttend(cache, b, &names_b, 2));
  }
  EXPECT_TRUE(AttendsGroups(cache, a, names_a, 1));
  EXPECT_TRUE(AttendsGroups(cache, b, names_b, 1));
}

// The same at every type.
class KVRingOf : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(EveryDType, KVRingOf, ::testing::ValuesIn(kEveryDType),
                         [](const auto& info) { return DTypeName(info.param); });

TEST_P(KVRingOf, RollsBackExactlyAndNoFurther) {
  const int64_t in_flight = 10;
  KVCacheSpec spec = Spec(16, 20, 2, in_flight, GetParam());
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  std::vector<int64_t> names;
  ASSERT_TRUE(AppendAndAttend(cache, id, &names, 200));
  const int64_t used = cache.usage().used_pages;
  EXPECT_TRUE(Fails(cache.Truncate(id, 189), StatusCode::kFailedPrecondition,
                    {"sequence " + std::to_string(id.value), "189", "190", "window 20"}));
  EXPECT_TRUE(Fails(cache.Fork(id, 189).status(), StatusCode::kFailedPrecondition, {"189", "190"}));
  EXPECT_EQ(*cache.Length(id), 200);
  EXPECT_EQ(cache.usage().used_pages, used);
  EXPECT_TRUE(AttendsGroups(cache, id, names, 1));
  const SequenceId fork = *cache.Fork(id, 190);
  ASSERT_TRUE(Succeeds(cache.Truncate(id, 190)));
  names.resize(190);
  std::vector<int64_t> fork_names = names;
  cache.impl().PoisonUnusedForTesting();
  ASSERT_TRUE(AppendAndAttend(cache, id, &names, 1));
  EXPECT_TRUE(Fails(cache.Truncate(id, 189), StatusCode::kFailedPrecondition, {"189", "190"}));
  ASSERT_TRUE(AppendAndAttend(cache, id, &names, 40));
  ASSERT_TRUE(AppendAndAttend(cache, fork, &fork_names, 3));
  // What is always visible is always there.
  ASSERT_TRUE(Succeeds(cache.Truncate(id, 2)));
  names.resize(2);
  ASSERT_TRUE(AppendAndAttend(cache, id, &names, 60));
  EXPECT_TRUE(Succeeds(cache.Truncate(id, 0)));
  ASSERT_TRUE(Succeeds(cache.DropSequence(fork)));
  EXPECT_EQ(cache.usage().used_pages, 0);
}

TEST_P(KVRingOf, ForksShareTheWindowAndGoTheirOwnWays) {
  KVCacheSpec spec = Spec(16, 40, 5, 8, GetParam());
  KVCache cache = MakeCache(spec);
  const SequenceId parent = NewSequence(cache);
  std::vector<int64_t> names;
  ASSERT_TRUE(AppendAndAttend(cache, parent, &names, 150));
  const int64_t used = cache.usage().used_pages;
  const SequenceId child = *cache.Fork(parent, 145);
  EXPECT_EQ(cache.usage().used_pages, used);
  std::vector<int64_t> child_names(names.begin(), names.begin() + 145);
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(AppendAndAttend(cache, child, &child_names, 3));
    ASSERT_TRUE(AppendAndAttend(cache, parent, &names, 2));
    cache.impl().PoisonUnusedForTesting();
  }
  ASSERT_TRUE(Succeeds(cache.DropSequence(parent)));
  cache.impl().PoisonUnusedForTesting();
  EXPECT_TRUE(AttendsGroups(cache, child, child_names, 8));
}

// A window of few pages, and a length of many times the pool.
TEST(KVRing, LengthsMayPassThePool) {
  KVCacheSpec spec;
  spec.num_kv_heads = 1;
  spec.qk_dim = 4;
  spec.v_dim = 16;
  spec.page_tokens = 16;
  spec.max_tokens = 64;
  spec.max_positions = 5000;
  spec.groups = {{.window = 30, .num_always_visible = 4, .max_in_flight = 2}};
  spec.group_of_layer = {0};
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  std::vector<int64_t> names;
  for (int64_t i = 0; i < 4998; ++i) {
    ASSERT_TRUE(Succeeds(AppendTokens(cache, id, {i})));
    names.push_back(i);
  }
  EXPECT_LE(cache.usage().used_pages, 4);
  EXPECT_TRUE(AttendsGroups(cache, id, names, 2));
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, {4998, 4999})));
  EXPECT_TRUE(Fails(cache.Reserve(id, 1), StatusCode::kOutOfRange,
                    {"sequence " + std::to_string(id.value), "5000", "max_positions"}));
  EXPECT_EQ(*cache.Length(id), 5000);
}

TEST_P(KVRingOf, WhatTheWindowHasPassedIsRefused) {
  KVCache cache = MakeCache(Spec(16, 20, 3, 4, GetParam()));
  const SequenceId id = NewSequence(cache);
  std::vector<int64_t> names;
  ASSERT_TRUE(AppendAndAttend(cache, id, &names, 100));
  const std::string name = "sequence " + std::to_string(id.value);
  // Kept: 0 .. 2 and 100 - 4 - 20 + 1 = 77 and more.
  const auto attend = [&](int64_t q_len, int64_t window, int64_t sinks, int64_t group, int64_t layer) {
    Mask mask;
    mask.window = window;
    mask.num_always_visible = sinks;
    return AttendCache(cache, id, layer, q_len, 100, mask, group).status;
  };
  EXPECT_TRUE(Succeeds(attend(4, 20, 3, 1, 0)));
  EXPECT_TRUE(Succeeds(attend(1, 23, 3, 1, 0)));
  EXPECT_TRUE(Succeeds(attend(1, 23, 0, 1, 2)));
  EXPECT_TRUE(Fails(attend(5, 20, 3, 1, 0), StatusCode::kFailedPrecondition, {name, "token 76", "from 77"}));
  EXPECT_TRUE(Fails(attend(1, 24, 3, 1, 0), StatusCode::kFailedPrecondition, {name, "token 76", "from 77"}));
  EXPECT_TRUE(Fails(attend(1, 20, 4, 1, 0), StatusCode::kFailedPrecondition, {name, "token 3", "from 77"}));
  EXPECT_TRUE(Fails(attend(1, kNoWindow, 0, 1, 0), StatusCode::kFailedPrecondition, {name, "token 3"}));
  EXPECT_TRUE(Succeeds(attend(1, kNoWindow, 0, 0, 1)));
  // Layers and groups that do not belong together, and groups that there are not.
  EXPECT_TRUE(Fails(attend(1, 20, 3, 1, 1), StatusCode::kInvalidArgument, {"layer 1", "group 0", "group 1"}));
  EXPECT_TRUE(Fails(attend(1, 20, 3, 0, 2), StatusCode::kInvalidArgument, {"layer 2", "group 1", "group 0"}));
  EXPECT_TRUE(Fails(attend(1, 20, 3, 2, 2), StatusCode::kInvalidArgument, {"cache_group", "2"}));
  EXPECT_TRUE(Fails(attend(1, 20, 3, -1, 2), StatusCode::kInvalidArgument, {"cache_group", "-1"}));
  // Reading.
  std::vector<float> k(100 * 10), v(100 * 16);
  const auto read = [&](int64_t layer, int64_t begin, int64_t n) {
    return cache.Read(id, layer, begin, TokensHeadsDim(k.data(), n, 1, 10), TokensHeadsDim(v.data(), n, 1, 16));
  };
  EXPECT_TRUE(Succeeds(read(1, 0, 100)));
  EXPECT_TRUE(Succeeds(read(0, 0, 3)));
  EXPECT_TRUE(Succeeds(read(0, 77, 23)));
  EXPECT_EQ(k[0], TokenRows(cache.spec(), 0, {names[77]}, true).k[0]);
  EXPECT_TRUE(Fails(read(0, 0, 4), StatusCode::kFailedPrecondition, {name, "token 3", "from 77"}));
  EXPECT_TRUE(Fails(read(2, 76, 2), StatusCode::kFailedPrecondition, {name, "token 76", "from 77"}));
}

TEST_P(KVRingOf, DraftsAreCommittedInRingsToo) {
  KVCacheSpec spec = Spec(16, 20, 2, 8, GetParam());
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  std::vector<int64_t> names;
  ASSERT_TRUE(AppendAndAttend(cache, id, &names, 100));
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(Succeeds(cache.Reserve(id, 8)));
    for (int64_t layer = 0; layer < 3; ++layer) {
      const TokenRows rows(spec, layer, Names(1000 * round, 8));
      ASSERT_TRUE(Succeeds(cache.Write(id, layer, rows.k_view(), rows.v_view())));
    }
    const int64_t path[] = {0, 2, 3, 7};
    ASSERT_TRUE(Succeeds(cache.CommitPath(id, path, 4)));
    for (const int64_t i : path) names.push_back(1000 * round + i);
    cache.impl().PoisonUnusedForTesting();
    ASSERT_TRUE(AttendsGroups(cache, id, names, 4));
  }
}

// Each group may be the one that is short: nothing changes in the other.
TEST(KVRing, OneGroupShortOfAPageChangesNothing) {
  for (const int64_t full_tokens : {64, 128}) {
    KVCacheSpec spec = Spec(16, 200, 0, 1);
    spec.groups[0].max_tokens = full_tokens;
    spec.groups[1].max_tokens = 192 - full_tokens;
    KVCache cache = MakeCache(spec);
    const SequenceId id = NewSequence(cache);
    std::vector<int64_t> names;
    ASSERT_TRUE(AppendAndAttend(cache, id, &names, 60));
    ASSERT_TRUE(Succeeds(cache.Reserve(id, 2)));
    EXPECT_TRUE(Fails(cache.Reserve(id, 5), StatusCode::kResourceExhausted,
                      {"sequence " + std::to_string(id.value), full_tokens == 64 ? "group 0" : "group 1"}));
    EXPECT_TRUE(Succeeds(cache.impl().CheckReadable(id, 62)));
    EXPECT_EQ(cache.usage().used_pages, 8);
    const SequenceId fork = *cache.Fork(id, 60 - 15);
    EXPECT_TRUE(Fails(cache.Reserve(fork, 1), StatusCode::kResourceExhausted, {"1 more pages"}));
    EXPECT_EQ(cache.SequenceUsage(fork)->shared_pages, 6);
    EXPECT_TRUE(AttendsGroups(cache, id, names, 1));
  }
}

}  // namespace
}  // namespace headlane::internal
