// Forks, copies before writing, and drafts: the same bits as sequences that share nothing, no byte of another
// sequence's touched, and refusals that change nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "headlane/attention.h"
#include "headlane/kv_cache.h"
#include "headlane/target.h"
#include "kv/attend.h"
#include "kv/fuzz_rows.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"

namespace headlane::internal {
namespace {

KVCacheSpec Spec(DType dtype, int64_t page_tokens, int64_t pages) {
  KVCacheSpec spec = SpecOf(dtype, dtype, 10, 20, page_tokens, pages);
  spec.num_layers = 2;
  return spec;
}

std::vector<int64_t> Joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The same at every type.
class KVForkOf : public ::testing::TestWithParam<DType> {};
class KVDraftOf : public ::testing::TestWithParam<DType> {};
std::string NameOf(const ::testing::TestParamInfo<DType>& info) { return DTypeName(info.param); }
INSTANTIATE_TEST_SUITE_P(EveryDType, KVForkOf, ::testing::ValuesIn(kEveryDType), NameOf);
INSTANTIATE_TEST_SUITE_P(EveryDType, KVDraftOf, ::testing::ValuesIn(kEveryDType), NameOf);

TEST_P(KVForkOf, PrefixAndBranchesHaveTheBitsOfPrivateSequences) {
  for (const int64_t page_tokens : {16, 48, 128}) {
    for (const int64_t prefix : {1, 15, 16, 17, 48, 49, 150}) {
      SCOPED_TRACE(std::to_string(page_tokens) + " " + std::to_string(prefix));
      KVCache cache = MakeCache(Spec(GetParam(), page_tokens, 100));
      cache.impl().PoisonUnusedForTesting();
      const SequenceId parent = NewSequence(cache);
      const std::vector<int64_t> common = Names(0, prefix);
      ASSERT_TRUE(Succeeds(AppendTokens(cache, parent, Names(0, prefix + 30))));
      const SequenceId a = *cache.Fork(parent, prefix);
      const SequenceId b = *cache.Fork(parent, prefix);
      EXPECT_EQ(cache.SequenceUsage(a)->shared_pages, CeilDiv(prefix, page_tokens));
      ASSERT_TRUE(Attends(cache, a, common));
      ASSERT_TRUE(Succeeds(AppendTokens(cache, a, Names(1000, 33))));
      ASSERT_TRUE(Succeeds(AppendTokens(cache, b, Names(2000, 20))));
      cache.impl().PoisonUnusedForTesting();
      EXPECT_TRUE(Attends(cache, parent, Names(0, prefix + 30)));
      EXPECT_TRUE(Attends(cache, a, Joined(common, Names(1000, 33))));
      EXPECT_TRUE(Attends(cache, b, Joined(common, Names(2000, 20))));
      // Rolled back and appended again, with the others still there.
      ASSERT_TRUE(Succeeds(cache.Truncate(a, prefix - 1)));
      ASSERT_TRUE(Succeeds(AppendTokens(cache, a, Names(3000, 40))));
      ASSERT_TRUE(Succeeds(cache.DropSequence(parent)));
      cache.impl().PoisonUnusedForTesting();
      EXPECT_TRUE(Attends(cache, a, Joined(Names(0, prefix - 1), Names(3000, 40))));
      EXPECT_TRUE(Attends(cache, b, Joined(common, Names(2000, 20))));
      ASSERT_TRUE(Succeeds(cache.DropSequence(a)));
      ASSERT_TRUE(Succeeds(cache.DropSequence(b)));
      EXPECT_EQ(cache.usage().used_pages, 0);
    }
  }
}

TEST_P(KVForkOf, SharesPagesAndCountsThem) {
  KVCache cache = MakeCache(Spec(GetParam(), 16, 10));
  const SequenceId parent = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, parent, Names(0, 40))));
  EXPECT_EQ(cache.usage().used_pages, 3);
  const SequenceId child = *cache.Fork(parent);
  EXPECT_EQ(cache.usage().used_pages, 3);
  EXPECT_EQ(cache.usage().num_tokens, 80);
  EXPECT_EQ(*cache.Length(child), 40);
  // The partly filled page is copied when the first of the two goes on, and then no more.
  ASSERT_TRUE(Succeeds(AppendTokens(cache, parent, Names(40, 1))));
  EXPECT_EQ(cache.usage().used_pages, 4);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, child, Names(50, 1))));
  EXPECT_EQ(cache.usage().used_pages, 4);
  EXPECT_EQ(cache.SequenceUsage(child)->shared_pages, 2);
  EXPECT_EQ(cache.SequenceUsage(child)->pages, 3);
  EXPECT_EQ(cache.SequenceUsage(child)->bytes, 3 * cache.usage().page_bytes);
  ASSERT_TRUE(Succeeds(cache.DropSequence(parent)));
  EXPECT_EQ(cache.usage().used_pages, 3);
  EXPECT_EQ(cache.SequenceUsage(child)->shared_pages, 0);
  EXPECT_TRUE(Attends(cache, child, Joined(Names(0, 40), Names(50, 1))));
}

// One page short: the copy is what does not fit.
TEST_P(KVForkOf, ReserveThatCannotCopyChangesNothing) {
  KVCache cache = MakeCache(Spec(GetParam(), 16, 3));
  const SequenceId parent = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, parent, Names(0, 36))));
  const SequenceId child = *cache.Fork(parent);
  EXPECT_TRUE(Succeeds(cache.Reserve(child, 0)));
  EXPECT_TRUE(Fails(cache.Reserve(child, 1), StatusCode::kResourceExhausted,
                    {"sequence " + std::to_string(child.value), "1 more pages", "0 are free"}));
  EXPECT_TRUE(Fails(AppendTokens(cache, parent, {99}), StatusCode::kResourceExhausted));
  EXPECT_EQ(cache.SequenceUsage(child)->shared_pages, 3);
  EXPECT_EQ(cache.usage().used_pages, 3);
  EXPECT_TRUE(Attends(cache, child, Names(0, 36)));
  EXPECT_TRUE(Attends(cache, parent, Names(0, 36)));
  // At the end of a page nothing is copied; with one page it fits.
  ASSERT_TRUE(Succeeds(cache.Truncate(child, 32)));
  EXPECT_TRUE(Fails(cache.Reserve(child, 1), StatusCode::kResourceExhausted));
  ASSERT_TRUE(Succeeds(cache.Truncate(child, 16)));
  EXPECT_TRUE(Succeeds(cache.Truncate(parent, 20)));
  EXPECT_TRUE(Succeeds(AppendTokens(cache, child, Names(100, 16))));
  EXPECT_TRUE(Attends(cache, parent, Names(0, 20)));
  EXPECT_TRUE(Attends(cache, child, Joined(Names(0, 16), Names(100, 16))));
}

// A page with reserved tokens belongs to one sequence: what it writes afterwards must not show up in a fork.
TEST_P(KVForkOf, ReservationsStayPrivate) {
  KVCache cache = MakeCache(Spec(GetParam(), 32, 4));
  const SequenceId parent = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, parent, Names(0, 40))));
  ASSERT_TRUE(Succeeds(cache.Reserve(parent, 3)));
  const SequenceId child = *cache.Fork(parent);
  EXPECT_EQ(cache.SequenceUsage(child)->shared_pages, 1);
  for (int64_t layer = 0; layer < 2; ++layer) {
    const TokenRows rows(cache.spec(), layer, Names(500, 3));
    ASSERT_TRUE(Succeeds(cache.Write(parent, layer, rows.k_view(), rows.v_view())));
  }
  ASSERT_TRUE(Succeeds(cache.Commit(parent, 3)));
  EXPECT_TRUE(Attends(cache, parent, Joined(Names(0, 40), Names(500, 3))));
  EXPECT_TRUE(Attends(cache, child, Names(0, 40)));
  // Pages that end before the reservation are shared, whole ones too.
  ASSERT_TRUE(Succeeds(cache.Reserve(parent, 3)));
  EXPECT_EQ(cache.SequenceUsage(*cache.Fork(parent, 20))->shared_pages, 1);
  // One page short.
  const SequenceId filler = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, filler, Names(900, 32))));
  ASSERT_EQ(cache.usage().free_bytes, 0);
  const int64_t sequences = cache.usage().num_sequences;
  EXPECT_TRUE(Fails(cache.Fork(parent).status(), StatusCode::kResourceExhausted,
                    {"sequence " + std::to_string(parent.value), "0 are free"}));
  EXPECT_EQ(cache.usage().num_sequences, sequences);
}

TEST(KVFork, RefusesWhatThereIsNot) {
  KVCacheSpec spec = Spec(DType::kF32, 16, 4);
  spec.max_sequences = 2;
  KVCache cache = MakeCache(spec);
  const SequenceId parent = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, parent, Names(0, 10))));
  EXPECT_TRUE(Fails(cache.Fork(parent, 11).status(), StatusCode::kOutOfRange, {"11", "10"}));
  EXPECT_TRUE(Fails(cache.Fork(parent, -2).status(), StatusCode::kOutOfRange, {"-2", "10"}));
  EXPECT_TRUE(Fails(cache.Fork(SequenceId{}).status(), StatusCode::kNotFound));
  ASSERT_TRUE(Succeeds(cache.Fork(parent, 0).status()));
  EXPECT_TRUE(Fails(cache.Fork(parent).status(), StatusCode::kResourceExhausted, {"2"}));
  EXPECT_EQ(cache.usage().used_pages, 1);
  EXPECT_EQ(cache.usage().num_tokens, 10);
}

// F53: numbers that wrap around when something is added to them.
TEST(KVFork, ExtremeNumbersAreErrors) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  KVCache cache = MakeCache(Spec(DType::kF32, 16, 4));
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, 20))));
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 2)));
  const int32_t ids[1] = {};
  for (const int64_t bad : {kMin, kMin + 1, int64_t{-2}, int64_t{21}, kMax - 1, kMax}) {
    const std::vector<std::string> named = {"sequence " + std::to_string(id.value), std::to_string(bad)};
    EXPECT_TRUE(Fails(cache.Fork(id, bad).status(), StatusCode::kOutOfRange, named));
    EXPECT_TRUE(Fails(cache.Remove(id, bad, 20, {}), StatusCode::kOutOfRange, named));
    EXPECT_TRUE(Fails(cache.Remove(id, 0, bad, {}), StatusCode::kOutOfRange, named));
    EXPECT_TRUE(Fails(cache.SetTokens(id, ids, bad), StatusCode::kOutOfRange, named));
    EXPECT_TRUE(Fails(cache.SetTokens(id, ids, 1, bad), StatusCode::kOutOfRange, named));
    EXPECT_TRUE(Fails(cache.SetTokens(id, ids, bad, 20), StatusCode::kOutOfRange, named));
    EXPECT_TRUE(Fails(cache.CommitPath(id, &bad, 1), StatusCode::kOutOfRange, named));
    EXPECT_TRUE(Fails(cache.CommitPath(id, &bad, bad), StatusCode::kOutOfRange, named));
  }
  EXPECT_EQ(cache.usage().num_sequences, 1);
  EXPECT_EQ(*cache.Length(id), 20);
  EXPECT_TRUE(Succeeds(cache.impl().CheckReadable(id, 22)));
  EXPECT_TRUE(Attends(cache, id, Names(0, 20)));
}

// The flag of a copied tile has to come along: a hidden slot of it may hold what is not finite.
TEST_P(KVForkOf, NonFiniteValuesBehindTheForkStayHidden) {
  KVCache cache = MakeCache(Spec(GetParam(), 32, 8));
  const SequenceId parent = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, parent, Names(0, 10))));
  ASSERT_TRUE(Succeeds(cache.Reserve(parent, 3)));
  for (int64_t layer = 0; layer < 2; ++layer) {
    TokenRows rows(cache.spec(), layer, Names(10, 3));
    for (float& x : rows.k) x = std::bit_cast<float>(0x7FC00000u);
    for (float& x : rows.v) x = std::bit_cast<float>(0xFF800000u);
    ASSERT_TRUE(Succeeds(cache.Write(parent, layer, rows.k_view(), rows.v_view())));
  }
  ASSERT_TRUE(Succeeds(cache.Commit(parent, 3)));
  const SequenceId child = *cache.Fork(parent, 10);
  EXPECT_TRUE(Attends(cache, child, Names(0, 10)));
  ASSERT_TRUE(Succeeds(AppendTokens(cache, child, Names(50, 1))));
  EXPECT_TRUE(Attends(cache, child, Joined(Names(0, 10), {50})));
  ASSERT_TRUE(Succeeds(cache.Truncate(parent, 9)));
  EXPECT_TRUE(Attends(cache, parent, Names(0, 9)));
}

TEST_P(KVDraftOf, AcceptedPathMovesTogether) {
  for (const int64_t length : {0, 5, 15, 16, 31, 40}) {
    for (const std::vector<int64_t>& path :
         {std::vector<int64_t>{}, {0}, {0, 1, 2}, {1}, {0, 2, 5}, {3, 17, 18, 40}, {0, 1, 30, 49}, {49}}) {
      KVCache cache = MakeCache(Spec(GetParam(), 16, 12));
      cache.impl().PoisonUnusedForTesting();
      const SequenceId id = NewSequence(cache);
      ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, length))));
      ASSERT_TRUE(Succeeds(cache.Reserve(id, 50)));
      for (int64_t layer = 0; layer < 2; ++layer) {
        const TokenRows rows(cache.spec(), layer, Names(100, 50));
        ASSERT_TRUE(Succeeds(cache.Write(id, layer, rows.k_view(), rows.v_view())));
      }
      ASSERT_TRUE(Succeeds(cache.CommitPath(id, path.data(), static_cast<int64_t>(path.size()))));
      std::vector<int64_t> names = Names(0, length);
      for (const int64_t token : path) names.push_back(100 + token);
      EXPECT_EQ(*cache.Length(id), static_cast<int64_t>(names.size()));
      EXPECT_EQ(cache.usage().used_pages, CeilDiv(static_cast<int64_t>(names.size()), 16));
      EXPECT_TRUE(Fails(cache.impl().CheckReadable(id, *cache.Length(id) + 1), StatusCode::kOutOfRange));
      cache.impl().PoisonUnusedForTesting();
      EXPECT_TRUE(Attends(cache, id, names));
      ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(300, 3))));
      EXPECT_TRUE(Attends(cache, id, Joined(names, Names(300, 3))));
    }
  }
}

// Only what is accepted has to be written, into tiles that nobody has written yet, too.
TEST_P(KVDraftOf, MovesIntoTilesThatWereNeverWritten) {
  KVCache cache = MakeCache(Spec(GetParam(), 64, 2));
  cache.impl().PoisonUnusedForTesting();
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 50)));
  for (int64_t layer = 0; layer < 2; ++layer) {
    const TokenRows rows(cache.spec(), layer, Names(0, 2));
    ASSERT_TRUE(Succeeds(cache.Write(id, layer, rows.k_view(), rows.v_view(), 40)));
  }
  const int64_t path[] = {40, 41};
  ASSERT_TRUE(Succeeds(cache.CommitPath(id, path, 2)));
  EXPECT_TRUE(Attends(cache, id, Names(0, 2)));
}

TEST(KVDraft, RefusalsNameBothNumbersAndChangeNothing) {
  KVCache cache = MakeCache(Spec(DType::kF32, 16, 4));
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, 3))));
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 4)));
  const TokenRows rows(cache.spec(), 0, Names(10, 4));
  ASSERT_TRUE(Succeeds(cache.Write(id, 0, rows.k_view(), rows.v_view())));
  const TokenRows two(cache.spec(), 1, Names(10, 2));
  ASSERT_TRUE(Succeeds(cache.Write(id, 1, two.k_view(), two.v_view())));
  const auto refused = [&](const std::vector<int64_t>& path, StatusCode code, const std::vector<std::string>& words) {
    EXPECT_TRUE(Fails(cache.CommitPath(id, path.data(), static_cast<int64_t>(path.size())), code, words));
    EXPECT_EQ(*cache.Length(id), 3);
    EXPECT_TRUE(Succeeds(cache.impl().CheckReadable(id, 7)));
  };
  const std::string name = "sequence " + std::to_string(id.value);
  refused({0, 1, 2, 3, 4}, StatusCode::kOutOfRange, {name, "5", "4"});
  refused({4}, StatusCode::kOutOfRange, {name, "accepted[0] is 4", "4 tokens"});
  refused({-1}, StatusCode::kOutOfRange, {name, "-1"});
  refused({1, 1}, StatusCode::kInvalidArgument, {name, "accepted[1] is 1"});
  refused({1, 0}, StatusCode::kInvalidArgument, {name, "accepted[1] is 0"});
  refused({0, 2}, StatusCode::kFailedPrecondition, {name, "token 2", "layer 1"});
  EXPECT_TRUE(Fails(cache.CommitPath(id, nullptr, 1), StatusCode::kInvalidArgument, {name, "null"}));
  EXPECT_TRUE(Fails(cache.CommitPath(id, nullptr, -1), StatusCode::kOutOfRange, {name, "-1"}));
  const int64_t path[] = {1};
  EXPECT_TRUE(Succeeds(cache.CommitPath(id, path, 1)));
  EXPECT_TRUE(Attends(cache, id, Joined(Names(0, 3), {11})));
}

// A path is committed in pages of its own, whatever the sequence shares.
TEST_P(KVDraftOf, DraftsOfForksDoNotMeet) {
  KVCache cache = MakeCache(Spec(GetParam(), 32, 8));
  const SequenceId a = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, a, Names(0, 20))));
  const SequenceId b = *cache.Fork(a);
  for (const SequenceId id : {a, b}) {
    ASSERT_TRUE(Succeeds(cache.Reserve(id, 8)));
    for (int64_t layer = 0; layer < 2; ++layer) {
      const TokenRows rows(cache.spec(), layer, Names(100 * (id.value + 1), 8));
      ASSERT_TRUE(Succeeds(cache.Write(id, layer, rows.k_view(), rows.v_view())));
    }
  }
  const int64_t path_a[] = {1, 4};
  const int64_t path_b[] = {0, 3, 7};
  ASSERT_TRUE(Succeeds(cache.CommitPath(a, path_a, 2)));
  ASSERT_TRUE(Succeeds(cache.CommitPath(b, path_b, 3)));
  const int64_t at_a = 100 * (a.value + 1);
  const int64_t at_b = 100 * (b.value + 1);
  EXPECT_TRUE(Attends(cache, a, Joined(Names(0, 20), {at_a + 1, at_a + 4})));
  EXPECT_TRUE(Attends(cache, b, Joined(Names(0, 20), {at_b, at_b + 3, at_b + 7})));
}

// A draft as speculative decoding makes it: a tree of tokens is reserved, written and attended to under its mask; one
// of its paths is committed, and what follows has the bits of a sequence that never had another.
TEST_P(KVDraftOf, PathsOfTreesThatWereAttendedTo) {
  Random random(11);
  for (const int64_t length : {0, 13, 60, 125}) {
    for (const int64_t num_drafted : {1, 6, 40, 70}) {
      SCOPED_TRACE(std::to_string(length) + " and " + std::to_string(num_drafted) + " drafted");
      KVCache cache = MakeCache(Spec(GetParam(), 16, 30));
      cache.impl().PoisonUnusedForTesting();
      const SequenceId id = NewSequence(cache);
      std::vector<int64_t> names = Names(0, length);
      ASSERT_TRUE(Succeeds(AppendTokens(cache, id, names)));
      for (int64_t round = 0; round < 3; ++round) {
        // Each token's parent is one before it, or none.
        const size_t n = static_cast<size_t>(num_drafted);
        const int64_t words = (num_drafted + 63) / 64;
        std::vector<int64_t> parents;
        std::vector<uint8_t> sees(n * n, 0);
        std::vector<uint64_t> bits(n * static_cast<size_t>(words), 0);
        for (int64_t i = 0; i < num_drafted; ++i) {
          parents.push_back(random.Int(std::max<int64_t>(-1, i - 4), i - 1));
          for (int64_t at = i; at >= 0; at = parents[static_cast<size_t>(at)]) {
            sees[static_cast<size_t>(i * num_drafted + at)] = 1;
            bits[static_cast<size_t>(i * words + at / 64)] |= uint64_t{1} << (at % 64);
          }
        }
        const std::vector<int64_t> drafted = Names(1000 * (round + 1), num_drafted);
        ASSERT_TRUE(Succeeds(cache.Reserve(id, num_drafted)));
        for (int64_t layer = 0; layer < 2; ++layer) {
          const TokenRows rows(cache.spec(), layer, drafted);
          ASSERT_TRUE(Succeeds(cache.Write(id, layer, rows.k_view(), rows.v_view())));
        }
        const std::vector<int64_t> all = Joined(names, drafted);
        SequenceSpec sequence;
        sequence.q_len = num_drafted;
        sequence.kv_len = static_cast<int64_t>(all.size());
        sequence.cache_id = id;
        sequence.tree = {bits.data(), words};
        for (int64_t layer = 0; layer < 2; ++layer) {
          AttentionArgs args;
          args.cache = &cache;
          args.layer = layer;
          const Attended got = internal::Run(SpecFor(cache.spec(), {}), sequence, args);
          ASSERT_TRUE(Succeeds(got.status));
          const TokenRows rows(cache.spec(), layer, all, true);
          SequenceSpec plain = sequence;
          plain.cache_id = {};
          AttentionArgs tensors;
          tensors.k = rows.k_view();
          tensors.v = rows.v_view();
          EXPECT_EQ(got.out, internal::Run(SpecFor(cache.spec(), {}), plain, tensors).out) << "layer " << layer;
          if (!ActiveTarget().has_fma || num_drafted > 6) continue;
          EXPECT_EQ(got.out, AttendCanonically(cache.spec(), {rows.k, rows.v}, num_drafted, {}, sees.data()))
              << "layer " << layer;
        }
        // From one of the tokens up to the root.
        std::vector<int64_t> path;
        for (int64_t at = random.Int(0, num_drafted - 1); at >= 0; at = parents[static_cast<size_t>(at)]) {
          path.insert(path.begin(), at);
        }
        ASSERT_TRUE(Succeeds(cache.CommitPath(id, path.data(), static_cast<int64_t>(path.size()))));
        cache.impl().PoisonUnusedForTesting();
        for (const int64_t i : path) names.push_back(drafted[static_cast<size_t>(i)]);
        EXPECT_TRUE(Attends(cache, id, names));
      }
    }
  }
}

}  // namespace
}  // namespace headlane::internal
