// One sequence of tokens, come about in every way that there is: attention over it always has the bits of attention
// over plain tensors, of which one row after the other stands in memory. Every type, every page size, one row
// (decoding) and many (a prompt), in layers that keep everything and in layers with a window.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "headlane/kv_cache.h"
#include "kv/attend.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"
#include "kv/save_util.h"

namespace headlane::internal {
namespace {

constexpr int64_t kLength = 300;
constexpr int64_t kWindow = 100;
constexpr int64_t kSinks = 4;
constexpr int64_t kRows[] = {1, 5, 37};

// Layer 0 keeps everything, layer 1 what the window of up to 40 rows in flight sees.
KVCacheSpec HybridSpec(DType k, DType v, int64_t page_tokens) {
  KVCacheSpec spec = SpecOf(k, v, 40, 24, page_tokens, CeilDiv(1800, page_tokens));
  spec.num_layers = 2;
  spec.groups = {{}, {.window = kWindow, .num_always_visible = kSinks, .max_in_flight = 40}};
  spec.group_of_layer = {0, 1};
  return spec;
}

struct Held {
  KVCache cache;
  SequenceId id;
};
void Append(Held& held, int64_t first, int64_t n) {
  ASSERT_TRUE(Succeeds(AppendTokens(held.cache, held.id, Names(first, n))));
}
Held Empty(const KVCacheSpec& spec) {
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  return {std::move(cache), id};
}
Held Appended(const KVCacheSpec& spec, int64_t n) {
  Held held = Empty(spec);
  Append(held, 0, n);
  return held;
}

// Tokens 0 .. kLength - 1 of one sequence.
struct Way {
  const char* name;
  Held (*make)(const KVCacheSpec& spec);
};
constexpr Way kWays[] = {
    {"at once", [](const KVCacheSpec& spec) { return Appended(spec, kLength); }},
    {"one by one",
     [](const KVCacheSpec& spec) {
       Held held = Empty(spec);
       for (int64_t i = 0; i < kLength; ++i) Append(held, i, 1);
       return held;
     }},
    {"in odd parts, reserved once",
     [](const KVCacheSpec& spec) {
       Held held = Empty(spec);
       for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, 7}, {7, 130}, {137, 33}, {170, 130}}) {
         Append(held, first, n);
       }
       return held;
     }},
    {"in poisoned pages",
     [](const KVCacheSpec& spec) {
       Held held = Empty(spec);
       held.cache.impl().PoisonUnusedForTesting();
       Append(held, 0, kLength);
       held.cache.impl().PoisonUnusedForTesting();
       return held;
     }},
    {"in pages of others that are gone",
     [](const KVCacheSpec& spec) {
       Held held = Empty(spec);
       while (AppendTokens(held.cache, held.id, Names(9000, 30)).ok()) {
       }
       EXPECT_TRUE(Succeeds(held.cache.DropSequence(held.id)));
       held.id = NewSequence(held.cache);
       Append(held, 0, kLength);
       return held;
     }},
    {"forked, the other goes on",
     [](const KVCacheSpec& spec) {
       Held held = Appended(spec, kLength);
       const SequenceId parent = held.id;
       held.id = *held.cache.Fork(parent);
       EXPECT_TRUE(Succeeds(AppendTokens(held.cache, parent, Names(9000, 50))));
       return held;
     }},
    {"forked from a longer one",
     [](const KVCacheSpec& spec) {
       Held held = Appended(spec, kLength + 3);
       held.id = *held.cache.Fork(held.id, kLength);
       return held;
     }},
    {"forked in the middle, the other dropped",
     [](const KVCacheSpec& spec) {
       Held held = Appended(spec, 205);
       const SequenceId parent = held.id;
       held.id = *held.cache.Fork(parent, 201);
       EXPECT_TRUE(Succeeds(AppendTokens(held.cache, parent, Names(9000, 50))));
       Append(held, 201, 60);
       EXPECT_TRUE(Succeeds(held.cache.DropSequence(parent)));
       held.cache.impl().PoisonUnusedForTesting();
       Append(held, 261, kLength - 261);
       return held;
     }},
    {"rolled back and appended again",
     [](const KVCacheSpec& spec) {
       Held held = Appended(spec, 270);
       Append(held, 9000, 25);
       EXPECT_TRUE(Succeeds(held.cache.Truncate(held.id, 270)));
       Append(held, 270, kLength - 270);
       return held;
     }},
    {"drafted, the path of a tree taken",
     [](const KVCacheSpec& spec) {
       Held held = Appended(spec, kLength - 4);
       std::vector<int64_t> draft = Names(9000, 20);
       const int64_t path[] = {0, 2, 9, 17};
       for (int64_t i = 0; i < 4; ++i) draft[static_cast<size_t>(path[i])] = kLength - 4 + i;
       EXPECT_TRUE(Succeeds(held.cache.Reserve(held.id, 20)));
       for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
         const TokenRows rows(spec, layer, draft);
         EXPECT_TRUE(Succeeds(held.cache.Write(held.id, layer, rows.k_view(), rows.v_view())));
       }
       EXPECT_TRUE(Succeeds(held.cache.CommitPath(held.id, path, 4)));
       return held;
     }},
    {"others removed from it",
     [](const KVCacheSpec& spec) {
       Held held = Appended(spec, 90);
       Append(held, 9000, 9);
       Append(held, 90, 20);
       EXPECT_TRUE(Succeeds(held.cache.Remove(held.id, 90, 99, {})));
       Append(held, 110, kLength - 110);
       return held;
     }},
    {"behind a prefix found by its ids",
     [](const KVCacheSpec& spec) {
       Held held = Appended(spec, 280);
       const std::vector<int32_t> ids(kLength, 8);
       EXPECT_TRUE(Succeeds(held.cache.SetTokens(held.id, ids.data(), 280)));
       int64_t matched = 0;
       held.id = *held.cache.ForkPrefix(ids.data(), kLength, &matched);
       EXPECT_EQ(matched, 280 / spec.page_tokens * spec.page_tokens);
       Append(held, matched, kLength - matched);
       return held;
     }},
    {"saved and restored",
     [](const KVCacheSpec& spec) {
       const Held saved = Appended(spec, kLength);
       Held held = Empty(spec);
       held.cache.impl().PoisonUnusedForTesting();
       held.id = Restored(held.cache, Saved(saved.cache, {saved.id}))[0];
       return held;
     }},
    {"restored in the middle",
     [](const KVCacheSpec& spec) {
       Held held = Appended(spec, 203);
       const SequenceId fork = *held.cache.Fork(held.id, 199);
       const std::vector<SequenceId> ids = Restored(held.cache, Saved(held.cache, {held.id, fork}));
       EXPECT_TRUE(Succeeds(AppendTokens(held.cache, ids[0], Names(9000, 30))));
       held.id = ids[1];
       Append(held, 199, kLength - 199);
       return held;
     }},
};

Mask WindowMask() {
  Mask mask;
  mask.window = kWindow;
  mask.num_always_visible = kSinks;
  return mask;
}

struct Rows {
  int64_t layer, q_len;
  Mask mask;
};
std::vector<Rows> AllRows() {
  std::vector<Rows> rows;
  for (const int64_t q_len : kRows) {
    rows.push_back({0, q_len, Mask{}});
    rows.push_back({0, q_len, WindowMask()});
    rows.push_back({1, q_len, WindowMask()});
  }
  return rows;
}

void ExpectSameBits(DType k, DType v, const std::vector<int64_t>& page_sizes) {
  const std::vector<Rows> all = AllRows();
  std::vector<Attended> expected;
  for (const Rows& rows : all) {
    expected.push_back(AttendNames(HybridSpec(k, v, 16), Names(0, kLength), rows.layer, rows.q_len, rows.mask));
    ASSERT_TRUE(Succeeds(expected.back().status));
  }
  for (const int64_t page_tokens : page_sizes) {
    for (const Way& way : kWays) {
      SCOPED_TRACE(std::string(DTypeName(k)) + " " + DTypeName(v) + ", pages of " + std::to_string(page_tokens) + ", " +
                   way.name);
      const Held held = way.make(HybridSpec(k, v, page_tokens));
      ASSERT_EQ(*held.cache.Length(held.id), kLength);
      for (size_t i = 0; i < all.size(); ++i) {
        const Attended got =
            AttendCache(held.cache, held.id, all[i].layer, all[i].q_len, kLength, all[i].mask, all[i].layer);
        ASSERT_TRUE(Succeeds(got.status));
        ASSERT_EQ(0, std::memcmp(expected[i].out.data(), got.out.data(), got.out.size() * sizeof(float)))
            << all[i].q_len << " rows in layer " << all[i].layer;
      }
    }
  }
}

TEST(KVSameBits, EveryWayAtEveryDTypeAndPageSize) {
  for (const DType dtype : kEveryDType) ExpectSameBits(dtype, dtype, {16, 48, 256});
}

TEST(KVSameBits, KeysOfOneTypeAndValuesOfAnother) {
  for (int k = 0; k < kNumDTypes; ++k) {
    for (const int further : {1, 3}) ExpectSameBits(kEveryDType[k], kEveryDType[(k + further) % kNumDTypes], {32});
  }
}

// Or the comparison would see nothing: another last token has other bits.
TEST(KVSameBits, SeesOneTokenThatIsAnother) {
  for (const DType dtype : kEveryDType) {
    const KVCacheSpec spec = HybridSpec(dtype, dtype, 32);
    Held held = Appended(spec, kLength - 1);
    Append(held, kLength, 1);
    for (const Rows& rows : AllRows()) {
      const Attended expected = AttendNames(spec, Names(0, kLength), rows.layer, rows.q_len, rows.mask);
      const Attended got = AttendCache(held.cache, held.id, rows.layer, rows.q_len, kLength, rows.mask, rows.layer);
      EXPECT_NE(expected.out, got.out);
    }
  }
}

}  // namespace
}  // namespace headlane::internal
