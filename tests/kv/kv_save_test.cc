// Saving and restoring: the bits of attention, the sharing of pages, what can still be rolled back, ids, and what the
// same tokens make of any history; refusals of another spec, of too little room, and of streams and files that fail.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "headlane/kv_cache.h"
#include "headlane/kv_file.h"
#include "kv/attend.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"
#include "kv/save_util.h"

namespace headlane::internal {
namespace {

constexpr int64_t kWindow = 20;

// Layer group 0 keeps everything, layer group 1 is a ring. Dims that fill no tile.
KVCacheSpec HybridSpec(DType k, DType v, int64_t page_tokens) {
  KVCacheSpec spec = SpecOf(k, v, 11, 20, page_tokens, 0);
  spec.num_layers = 3;
  spec.max_tokens = 40 * page_tokens;
  spec.max_positions = 640;
  spec.groups = {{}, {.window = kWindow, .num_always_visible = 3, .max_in_flight = 4}};
  spec.group_of_layer = {1, 0, 1};
  return spec;
}

// The bits of a row at the end of the sequence and of 3, in every layer.
std::vector<float> Bits(const KVCache& cache, SequenceId id) {
  const KVCacheSpec& spec = cache.spec();
  const int64_t length = *cache.Length(id);
  std::vector<float> bits;
  for (int64_t layer = 0; layer < spec.num_layers && length > 0; ++layer) {
    const int32_t group = spec.group_of_layer.empty() ? 0 : spec.group_of_layer[static_cast<size_t>(layer)];
    Mask mask;
    if (!spec.groups.empty()) {
      mask.window = spec.groups[static_cast<size_t>(group)].window;
      mask.num_always_visible = spec.groups[static_cast<size_t>(group)].num_always_visible;
    }
    for (const int64_t q_len : {int64_t{1}, std::min<int64_t>(3, length)}) {
      const Attended attended = AttendCache(cache, id, layer, q_len, length, mask, group);
      // After a roll-back a ring keeps no more than what the next row sees.
      if (q_len > 1 && attended.status.code() == StatusCode::kFailedPrecondition) continue;
      EXPECT_TRUE(Succeeds(attended.status));
      bits.insert(bits.end(), attended.out.begin(), attended.out.end());
    }
  }
  return bits;
}
::testing::AssertionResult SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " numbers differ";
}

// Forks, roll-backs, removals, rings that have gone round, an empty sequence, and reserved tokens.
std::vector<SequenceId> MakeHistory(KVCache& cache) {
  const SequenceId a = NewSequence(cache);
  EXPECT_TRUE(Succeeds(AppendTokens(cache, a, Names(0, 70))));
  const std::vector<int32_t> ids(70, 9);
  EXPECT_TRUE(Succeeds(cache.SetTokens(a, ids.data(), 70)));
  const SequenceId b = *cache.Fork(a, 68);
  EXPECT_TRUE(Succeeds(AppendTokens(cache, b, Names(1000, 30))));
  const SequenceId c = *cache.Fork(a);
  const SequenceId d = NewSequence(cache);
  EXPECT_TRUE(Succeeds(AppendTokens(cache, d, Names(2000, 12))));
  EXPECT_TRUE(Succeeds(cache.Remove(d, 2, 5, {})));
  EXPECT_TRUE(Succeeds(AppendTokens(cache, d, Names(2100, 1))));
  const SequenceId e = NewSequence(cache);
  const SequenceId f = NewSequence(cache);
  EXPECT_TRUE(Succeeds(AppendTokens(cache, f, Names(3000, 60))));
  EXPECT_TRUE(Succeeds(cache.Truncate(f, 57)));
  EXPECT_TRUE(Succeeds(cache.Reserve(f, 5)));
  for (int64_t layer = 0; layer < cache.spec().num_layers; ++layer) {
    const TokenRows rows(cache.spec(), layer, Names(4000, 5));
    EXPECT_TRUE(Succeeds(cache.Write(f, layer, rows.k_view(), rows.v_view())));
  }
  return {a, b, c, d, e, f};
}

// What the bytes say but for the ids of the cache that they came from.
Bytes WithoutIds(Bytes bytes) {
  const std::vector<Section> sections = SectionsOf(bytes);
  for (const Section& section : sections) {
    if (section.kind == SavedKind::kSequence) std::memset(&bytes[section.begin], 0, sizeof(int64_t));
  }
  MendChecksums(sections, &bytes);
  return bytes;
}

void ExpectRoundTrip(const KVCacheSpec& spec) {
  KVCache cache = MakeCache(spec);
  cache.impl().PoisonUnusedForTesting();
  const std::vector<SequenceId> ids = MakeHistory(cache);
  const Bytes bytes = Saved(cache, ids);
  // Into a cache with another pool that is in use, over poison.
  KVCacheSpec other_spec = spec;
  other_spec.max_tokens = 64 * spec.page_tokens;
  other_spec.max_sequences = 20;
  KVCache other = MakeCache(other_spec);
  const SequenceId own = NewSequence(other);
  ASSERT_TRUE(Succeeds(AppendTokens(other, own, Names(5000, 33))));
  other.impl().PoisonUnusedForTesting();
  const std::vector<float> own_bits = Bits(other, own);
  const KVCacheUsage before = other.usage();

  const Result<std::vector<RestoredSequence>> restored = Restore(other, bytes);
  ASSERT_TRUE(Succeeds(restored.status()));
  ASSERT_EQ(restored->size(), ids.size());
  // The reservation is not saved; all else takes what it took.
  ASSERT_TRUE(Succeeds(cache.Abandon(ids[5])));
  EXPECT_EQ(other.usage().used_bytes - before.used_bytes, cache.usage().used_bytes);
  EXPECT_EQ(other.usage().num_tokens - before.num_tokens, cache.usage().num_tokens);
  std::vector<SequenceId> new_ids;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto& [saved, id] = (*restored)[i];
    new_ids.push_back(id);
    EXPECT_EQ(saved, ids[i]);
    ASSERT_EQ(*other.Length(id), *cache.Length(ids[i]));
    EXPECT_EQ(other.SequenceUsage(id)->pages, cache.SequenceUsage(ids[i])->pages);
    EXPECT_EQ(other.SequenceUsage(id)->shared_pages, cache.SequenceUsage(ids[i])->shared_pages);
    EXPECT_TRUE(SameBits(Bits(other, id), Bits(cache, ids[i]))) << "sequence " << i;
  }
  EXPECT_TRUE(SameBits(Bits(other, own), own_bits));
  // The same tokens give the same bytes, from any pages.
  EXPECT_EQ(WithoutIds(Saved(other, new_ids)), WithoutIds(bytes));

  // They live on as the saved ones do: forks go their own ways, and rings roll back as far as they could.
  const int64_t limit = std::max<int64_t>(57 - 1, 0);
  EXPECT_EQ(other.Truncate(new_ids[5], limit).code(), cache.Truncate(ids[5], limit).code());
  EXPECT_TRUE(Fails(other.Truncate(new_ids[0], 60), StatusCode::kFailedPrecondition));
  ASSERT_TRUE(Succeeds(other.Truncate(new_ids[0], 67)));
  ASSERT_TRUE(Succeeds(cache.Truncate(ids[0], 67)));
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE(Succeeds(AppendTokens(cache, ids[i], Names(7000 + 100 * static_cast<int64_t>(i), 21))));
    ASSERT_TRUE(Succeeds(AppendTokens(other, new_ids[i], Names(7000 + 100 * static_cast<int64_t>(i), 21))));
    other.impl().PoisonUnusedForTesting();
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_TRUE(SameBits(Bits(other, new_ids[i]), Bits(cache, ids[i]))) << "sequence " << i;
  }
  EXPECT_TRUE(SameBits(Bits(other, own), own_bits));
  for (const SequenceId id : new_ids) ASSERT_TRUE(Succeeds(other.DropSequence(id)));
  EXPECT_EQ(other.usage().used_pages, before.used_pages);
}

TEST(KVSave, HasTheBitsOfWhatWasSavedAtEveryDType) {
  for (const DType k : kEveryDType) {
    for (const DType v : kEveryDType) {
      SCOPED_TRACE(std::string(DTypeName(k)) + " " + DTypeName(v));
      ExpectRoundTrip(HybridSpec(k, v, 16));
    }
  }
}

TEST(KVSave, AnyPageSize) {
  for (const DType dtype : kEveryDType) {
    for (const int64_t page_tokens : {32, 48, 64, 128, 256}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + std::to_string(page_tokens));
      ExpectRoundTrip(HybridSpec(dtype, dtype, page_tokens));
    }
  }
}

// Whole pages of tiles without padding take another way.
TEST(KVSave, DimsThatFillTilesAndValuesInKeys) {
  for (const DType dtype : kEveryDType) {
    SCOPED_TRACE(DTypeName(dtype));
    KVCacheSpec spec = HybridSpec(dtype, dtype, 32);
    spec.qk_dim = 64;
    spec.v_dim = 32;
    ExpectRoundTrip(spec);
    spec.values_in_keys = true;
    ExpectRoundTrip(spec);
    spec.qk_dim = 33;
    spec.v_dim = 17;
    ExpectRoundTrip(spec);
  }
}

TEST(KVSave, RotatedKeysAndValues) {
  for (const DType dtype : kEveryDType) {
    KVCacheSpec spec = HybridSpec(dtype, dtype, 32);
    spec.rotate = true;
    ExpectRoundTrip(spec);
  }
}

// Some sequences of many, in any order, one of them twice, or none.
TEST(KVSave, SomeSequences) {
  KVCache cache = MakeCache(HybridSpec(DType::kI8, DType::kF16, 16));
  const std::vector<SequenceId> ids = MakeHistory(cache);
  KVCache other = MakeCache(cache.spec());
  const std::vector<SequenceId> some = Restored(other, Saved(cache, {ids[1], ids[0], ids[1]}));
  ASSERT_EQ(some.size(), 3u);
  EXPECT_TRUE(SameBits(Bits(other, some[0]), Bits(cache, ids[1])));
  EXPECT_TRUE(SameBits(Bits(other, some[1]), Bits(cache, ids[0])));
  EXPECT_TRUE(SameBits(Bits(other, some[2]), Bits(cache, ids[1])));
  EXPECT_EQ(other.SequenceUsage(some[0])->shared_pages, other.SequenceUsage(some[0])->pages);
  const CacheState before(other);
  EXPECT_TRUE(Restored(other, Saved(cache, {})).empty());
  EXPECT_TRUE(Unchanged(other, before));
  // Restored where it came from it is there twice, sharing nothing with the first.
  const int64_t used = cache.usage().used_pages;
  ASSERT_TRUE(Succeeds(cache.DropSequence(ids[4])));
  const std::vector<SequenceId> again = Restored(cache, Saved(cache, {ids[3]}));
  EXPECT_TRUE(SameBits(Bits(cache, again[0]), Bits(cache, ids[3])));
  EXPECT_EQ(cache.usage().used_pages, used + cache.SequenceUsage(ids[3])->pages);
}

// F39: one token; holes that are filled again; and a page whose longest sequence is not among the saved ones.
TEST(KVSave, F39SmallHistories) {
  for (const DType dtype : kEveryDType) {
    KVCache cache = MakeCache(SpecOf(dtype, dtype, 32, 16, 16, 20));
    cache.impl().PoisonUnusedForTesting();
    const SequenceId one = NewSequence(cache);
    ASSERT_TRUE(Succeeds(AppendTokens(cache, one, {5})));
    const SequenceId holes = NewSequence(cache);
    ASSERT_TRUE(Succeeds(AppendTokens(cache, holes, Names(0, 8))));
    ASSERT_TRUE(Succeeds(cache.Remove(holes, 2, 5, {})));
    ASSERT_TRUE(Succeeds(AppendTokens(cache, holes, {50})));
    const SequenceId shorter = *cache.Fork(holes, 3);
    KVCache other = MakeCache(cache.spec());
    other.impl().PoisonUnusedForTesting();
    const std::vector<SequenceId> ids = Restored(other, Saved(cache, {one, holes}));
    EXPECT_TRUE(Attends(other, ids[0], {5}));
    EXPECT_TRUE(Attends(other, ids[1], {0, 1, 5, 6, 7, 50}));
    const std::vector<SequenceId> part = Restored(other, Saved(cache, {shorter}));
    EXPECT_TRUE(Attends(other, part[0], {0, 1, 5}));
    ASSERT_TRUE(Succeeds(AppendTokens(other, part[0], {60})));
    EXPECT_TRUE(Attends(other, part[0], {0, 1, 5, 60}));
    EXPECT_EQ(other.usage().used_pages, 3);
  }
}

// Values that are not finite are seen by those who see them, and by nobody else.
TEST(KVSave, NonFiniteTokens) {
  for (const DType dtype : kEveryDType) {
    for (const bool in_keys : {false, true}) {
      KVCacheSpec spec = SpecOf(dtype, dtype, 40, 24, 32, 4);
      spec.values_in_keys = in_keys;
      KVCache cache = MakeCache(spec);
      const SequenceId id = NewSequence(cache);
      ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, 20))));
      TokenRows rows(spec, 0, {20});
      for (float& x : rows.k) x = std::bit_cast<float>(0x7FC00000u);
      for (float& x : rows.v) x = std::bit_cast<float>(0xFF800000u);
      ASSERT_TRUE(Succeeds(cache.Append(id, rows.k_view(), rows.v_view())));
      KVCache other = MakeCache(spec);
      other.impl().PoisonUnusedForTesting();
      const SequenceId back = Restored(other, Saved(cache, {id}))[0];
      const Attended seen = AttendCache(other, back, 0, 1, 21);
      EXPECT_TRUE(SameBits(seen.out, AttendCache(cache, id, 0, 1, 21).out)) << DTypeName(dtype);
      EXPECT_NE(seen.out[0], seen.out[0]);
      EXPECT_TRUE(SameBits(AttendCache(other, back, 0, 1, 20).out, AttendCache(cache, id, 0, 1, 20).out));
      // A prompt of several rows, of which the last one sees it.
      EXPECT_TRUE(SameBits(AttendCache(other, back, 0, 5, 21).out, AttendCache(cache, id, 0, 5, 21).out));
    }
  }
}

TEST(KVSave, IdsComeAlong) {
  KVCache cache = MakeCache(SpecOf(DType::kF16, DType::kI4, 32, 16, 16, 20));
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, 50))));
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 50; ++i) tokens.push_back(1000 + i);
  ASSERT_TRUE(Succeeds(cache.SetTokens(id, tokens.data(), 40)));
  const SequenceId fork = *cache.Fork(id, 35);
  KVCache other = MakeCache(cache.spec());
  const std::vector<SequenceId> ids = Restored(other, Saved(cache, {fork, id}));
  int64_t matched = 0;
  const Result<SequenceId> found = other.ForkPrefix(tokens.data(), 50, &matched);
  ASSERT_TRUE(Succeeds(found.status()));
  EXPECT_EQ(matched, 32);
  EXPECT_TRUE(Attends(other, *found, Names(0, 32)));
  // They go on where they ended, and keep what they have.
  EXPECT_TRUE(Fails(other.SetTokens(ids[1], tokens.data(), 1, 45), StatusCode::kFailedPrecondition, {"45", "40"}));
  EXPECT_TRUE(Succeeds(other.SetTokens(ids[1], tokens.data() + 40, 10, 40)));
  EXPECT_TRUE(Fails(other.SetTokens(ids[0], tokens.data(), 5, 1), StatusCode::kInvalidArgument, {"1001", "1000"}));
  ASSERT_TRUE(Succeeds(other.ForkPrefix(tokens.data(), 50, &matched).status()));
  EXPECT_EQ(matched, 48);
}

struct SpecChange {
  const char* field;
  void (*change)(KVCacheSpec*);
  std::vector<std::string> words;
};
TEST(KVSave, AnotherSpecIsRefusedByFieldAndNumbers) {
  const KVCacheSpec spec = HybridSpec(DType::kF16, DType::kF16, 32);
  KVCache cache = MakeCache(spec);
  const Bytes bytes = Saved(cache, MakeHistory(cache));
  const SpecChange changes[] = {
      {"num_layers",
       [](KVCacheSpec* s) {
         s->num_layers = 4;
         s->group_of_layer = {1, 0, 1, 0};
       },
       {"is 3", "has 4"}},
      {"num_kv_heads", [](KVCacheSpec* s) { s->num_kv_heads = 3; }, {"is 2", "has 3"}},
      {"qk_dim", [](KVCacheSpec* s) { s->qk_dim = 12; }, {"is 11", "has 12"}},
      {"v_dim", [](KVCacheSpec* s) { s->v_dim = 32; }, {"is 20", "has 32"}},
      {"k_dtype", [](KVCacheSpec* s) { s->k_dtype = DType::kBF16; }, {"is 1", "has 2"}},
      {"v_dtype", [](KVCacheSpec* s) { s->v_dtype = DType::kI8; }, {"is 1", "has 3"}},
      {"page_tokens", [](KVCacheSpec* s) { s->page_tokens = 16; }, {"is 32", "has 16"}},
      {"rotate", [](KVCacheSpec* s) { s->rotate = true; }, {"is 0", "has 1"}},
      {"groups.size()",
       [](KVCacheSpec* s) {
         s->groups.push_back({});
         s->group_of_layer = {1, 0, 2};
       },
       {"is 2", "has 3"}},
      {"groups[1].window", [](KVCacheSpec* s) { s->groups[1].window = 21; }, {"is 20", "has 21"}},
      {"groups[1].window", [](KVCacheSpec* s) { s->groups[1].window = kNoWindow; }, {"is 20"}},
      {"groups[1].num_always_visible", [](KVCacheSpec* s) { s->groups[1].num_always_visible = 0; }, {"is 3", "has 0"}},
      {"groups[1].max_in_flight", [](KVCacheSpec* s) { s->groups[1].max_in_flight = 9; }, {"is 4", "has 9"}},
      {"group_of_layer[1]", [](KVCacheSpec* s) { s->group_of_layer = {1, 1, 0}; }, {"is 0", "has 1"}},
  };
  for (const SpecChange& change : changes) {
    KVCacheSpec other_spec = spec;
    change.change(&other_spec);
    KVCache other = MakeCache(other_spec);
    const CacheState before(other);
    std::vector<std::string> words = change.words;
    words.push_back(change.field);
    EXPECT_TRUE(Fails(Restore(other, bytes).status(), StatusCode::kInvalidArgument, words));
    EXPECT_TRUE(Unchanged(other, before));
  }
  KVCacheSpec in_keys = spec;
  in_keys.v_dim = 11;
  KVCache without = MakeCache(in_keys);
  in_keys.values_in_keys = true;
  KVCache with = MakeCache(in_keys);
  EXPECT_TRUE(Fails(Restore(without, Saved(with, {NewSequence(with)})).status(), StatusCode::kInvalidArgument,
                    {"v_dtype is 0, the cache has 1"}));
}

TEST(KVSave, TooLittleRoomChangesNothing) {
  const KVCacheSpec spec = HybridSpec(DType::kF8E4M3, DType::kI4, 16);
  KVCache cache = MakeCache(spec);
  const std::vector<SequenceId> ids = MakeHistory(cache);
  const Bytes bytes = Saved(cache, ids);
  ASSERT_TRUE(Succeeds(cache.Abandon(ids[5])));
  int64_t used[2] = {};
  for (const Section& section : SectionsOf(bytes)) {
    if (section.kind != SavedKind::kGroups) continue;
    for (size_t g = 0; g < 2; ++g) {
      SavedGroup group;
      std::memcpy(&group, &bytes[section.begin + g * sizeof(group)], sizeof(group));
      used[g] = group.num_pages;
    }
  }
  ASSERT_EQ(used[0] + used[1], cache.usage().used_pages);
  const auto refused = [&](const KVCacheSpec& short_spec, StatusCode code, const std::vector<std::string>& words) {
    KVCache other = MakeCache(short_spec);
    const SequenceId own = NewSequence(other);
    ASSERT_TRUE(Succeeds(AppendTokens(other, own, {1, 2, 3})));
    const CacheState before(other);
    EXPECT_TRUE(Fails(Restore(other, bytes).status(), code, words));
    EXPECT_TRUE(Unchanged(other, before));
    // The next id is the one that it would have been.
    EXPECT_EQ(NewSequence(other).value, own.value + 1);
  };
  for (const size_t g : {size_t{0}, size_t{1}}) {
    // The page of `own` is the one too many.
    KVCacheSpec short_spec = spec;
    short_spec.groups[0].max_tokens = short_spec.groups[1].max_tokens = 1600;
    short_spec.groups[g].max_tokens = used[g] * 16;
    refused(short_spec, StatusCode::kResourceExhausted,
            {"needs " + std::to_string(used[g]) + " pages, " + std::to_string(used[g] - 1) + " are free",
             "group " + std::to_string(g)});
  }
  KVCacheSpec short_spec = spec;
  short_spec.max_sequences = 6;
  refused(short_spec, StatusCode::kResourceExhausted, {"6 sequences", "5 more"});
  short_spec = spec;
  short_spec.max_positions = 97;
  refused(short_spec, StatusCode::kOutOfRange, {"98 tokens", "max_positions 97"});
  short_spec.max_positions = 98;
  short_spec.max_sequences = 7;
  short_spec.groups[0].max_tokens = (used[0] + 1) * 16;
  short_spec.groups[1].max_tokens = (used[1] + 1) * 16;
  KVCache enough = MakeCache(short_spec);
  ASSERT_TRUE(Succeeds(AppendTokens(enough, NewSequence(enough), {1, 2, 3})));
  EXPECT_TRUE(Succeeds(Restore(enough, bytes).status()));
  EXPECT_EQ(enough.usage().free_bytes, 0);
}

TEST(KVSave, StreamsThatFail) {
  KVCache cache = MakeCache(HybridSpec(DType::kBF16, DType::kI8, 16));
  const std::vector<SequenceId> ids = MakeHistory(cache);
  const CacheState before(cache);
  MemoryStream whole;
  ASSERT_TRUE(Succeeds(SaveSequences(cache, ids, whole.sink())));
  for (int64_t n = 1; n <= whole.num_calls; ++n) {
    MemoryStream failing;
    failing.fails_at = n;
    EXPECT_TRUE(Fails(SaveSequences(cache, ids, failing.sink()), StatusCode::kCancelled));
    EXPECT_EQ(failing.num_calls, n);
  }
  EXPECT_TRUE(Unchanged(cache, before));
  KVCache other = MakeCache(cache.spec());
  const CacheState empty(other);
  MemoryStream reading{whole.bytes};
  ASSERT_TRUE(Succeeds(RestoreSequences(other, reading.source()).status()));
  const std::vector<SequenceId> all = *AllSequences(other);
  for (const SequenceId id : all) ASSERT_TRUE(Succeeds(other.DropSequence(id)));
  for (int64_t n = 1; n <= reading.num_calls; ++n) {
    MemoryStream failing{whole.bytes};
    failing.fails_at = n;
    ASSERT_TRUE(Fails(RestoreSequences(other, failing.source()).status(), StatusCode::kCancelled));
    ASSERT_TRUE(Unchanged(other, empty));
  }
  EXPECT_TRUE(Fails(SaveSequences(cache, ids, KVSink{}), StatusCode::kInvalidArgument, {"write"}));
  EXPECT_TRUE(Fails(RestoreSequences(other, KVSource{}).status(), StatusCode::kInvalidArgument, {"read"}));
  const std::vector<SequenceId> gone = {ids[0], SequenceId{12345}};
  EXPECT_TRUE(Fails(SaveSequences(cache, gone, whole.sink()), StatusCode::kNotFound, {"12345"}));
  EXPECT_TRUE(Fails(SavedBytes(cache, gone).status(), StatusCode::kNotFound, {"12345"}));
}

class KVSaveFile : public ::testing::Test {
 protected:
  KVSaveFile()
      : folder_(std::filesystem::temp_directory_path() / ("headlane_kv_save_" + std::to_string(::getpid()))),
        path_((folder_ / "cache").string()) {
    std::filesystem::create_directories(folder_);
  }
  ~KVSaveFile() override { std::filesystem::remove_all(folder_); }
  int64_t NumFiles() const {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(KVSaveFile, RoundTripAndReplacement) {
  KVCache cache = MakeCache(HybridSpec(DType::kF32, DType::kF32, 16));
  const std::vector<SequenceId> ids = MakeHistory(cache);
  ASSERT_TRUE(Succeeds(SaveSequences(cache, std::span(ids).first(1), path_.c_str())));
  ASSERT_TRUE(Succeeds(SaveSequences(cache, ids, path_.c_str())));
  EXPECT_EQ(NumFiles(), 1);
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path_)), *SavedBytes(cache, ids));
  KVCache other = MakeCache(cache.spec());
  const Result<std::vector<RestoredSequence>> restored = RestoreSequences(other, path_.c_str());
  ASSERT_TRUE(Succeeds(restored.status()));
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_TRUE(SameBits(Bits(other, (*restored)[i].id), Bits(cache, ids[i])));
  }
}

// A link stays one, and what it leads to is replaced, with its permissions; what is no file is left alone.
TEST_F(KVSaveFile, LinksAreFollowedAndOnlyFilesReplaced) {
  namespace fs = std::filesystem;
  KVCache cache = MakeCache(HybridSpec(DType::kF32, DType::kF32, 16));
  const std::vector<SequenceId> ids = MakeHistory(cache);
  const fs::path target = folder_ / "target";
  fs::create_symlink("target", path_);
  ASSERT_TRUE(Succeeds(SaveSequences(cache, std::span(ids).first(1), path_.c_str())));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(target)));
  fs::permissions(target, fs::perms::owner_read | fs::perms::owner_write);
  ASSERT_TRUE(Succeeds(SaveSequences(cache, ids, path_.c_str())));
  EXPECT_TRUE(fs::is_symlink(fs::symlink_status(path_)));
  EXPECT_EQ(static_cast<int64_t>(fs::file_size(target)), *SavedBytes(cache, ids));
  EXPECT_EQ(fs::status(target).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(NumFiles(), 2);
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, folder_.string()}) {
    EXPECT_TRUE(Fails(SaveSequences(cache, ids, path.c_str()), StatusCode::kFailedPrecondition,
                      {path.substr(0, 20), "no regular file"}));
  }
  EXPECT_TRUE(fs::is_fifo(pipe));
  fs::remove(path_);
  fs::create_symlink(fs::path(path_).filename(), path_);  // to itself
  EXPECT_FALSE(SaveSequences(cache, ids, path_.c_str()).ok());
  EXPECT_TRUE(fs::is_symlink(fs::symlink_status(path_)));
  EXPECT_EQ(NumFiles(), 3);
}

TEST_F(KVSaveFile, FilesThatAreNotThereOrWrong) {
  KVCache cache = MakeCache(HybridSpec(DType::kF32, DType::kF32, 16));
  const std::vector<SequenceId> ids = MakeHistory(cache);
  const CacheState before(cache);
  const std::string no_folder = (folder_ / "none" / "cache").string();
  EXPECT_TRUE(Fails(SaveSequences(cache, ids, no_folder.c_str()), StatusCode::kNotFound,
                    {no_folder.substr(0, 20), "No such file"}));
  EXPECT_TRUE(Fails(RestoreSequences(cache, path_.c_str()).status(), StatusCode::kNotFound, {"No such file"}));
  EXPECT_TRUE(Fails(RestoreSequences(cache, folder_.c_str()).status(), StatusCode::kFailedPrecondition, {"directory"}));
  EXPECT_TRUE(Fails(SaveSequences(cache, ids, folder_.c_str()), StatusCode::kFailedPrecondition, {"no regular file"}));
  EXPECT_FALSE(std::filesystem::exists(folder_.string() + ".part"));
  const char* const no_path = nullptr;
  EXPECT_TRUE(Fails(SaveSequences(cache, ids, no_path), StatusCode::kInvalidArgument, {"null"}));
  EXPECT_TRUE(Fails(RestoreSequences(cache, "").status(), StatusCode::kInvalidArgument, {"empty"}));
  EXPECT_EQ(NumFiles(), 0);
  // One byte too many, one too few.
  ASSERT_TRUE(Succeeds(SaveSequences(cache, ids, path_.c_str())));
  const auto size = std::filesystem::file_size(path_);
  KVCache other = MakeCache(cache.spec());
  const CacheState empty(other);
  std::filesystem::resize_file(path_, size + 1);
  EXPECT_TRUE(Fails(RestoreSequences(other, path_.c_str()).status(), StatusCode::kDataLoss, {std::to_string(size)}));
  EXPECT_TRUE(Unchanged(other, empty));
  std::filesystem::resize_file(path_, size - 1);
  EXPECT_TRUE(Fails(RestoreSequences(other, path_.c_str()).status(), StatusCode::kDataLoss,
                    {std::to_string(size - 1), "1 more"}));
  EXPECT_TRUE(Unchanged(other, empty));
  EXPECT_TRUE(Unchanged(cache, before));
}

// A disk that is full: what was there under that name stays, and nothing else does.
TEST_F(KVSaveFile, DiskFull) {
  KVCache cache = MakeCache(HybridSpec(DType::kF32, DType::kF32, 16));
  const std::vector<SequenceId> ids = MakeHistory(cache);
  ASSERT_TRUE(Succeeds(SaveSequences(cache, std::span(ids).first(1), path_.c_str())));
  const auto size = std::filesystem::file_size(path_);
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 10000;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = SaveSequences(cache, ids, path_.c_str());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(Fails(status, StatusCode::kResourceExhausted, {"File too large"}));
  EXPECT_EQ(NumFiles(), 1);
  EXPECT_EQ(std::filesystem::file_size(path_), size);
}

// The fork stays where it was; its parent goes on, and passes pages that only the fork still has, but not all they
// share.
TEST(KVSave, ParentsThatPassedWhatTheirForksKeep) {
  KVCacheSpec spec = SpecOf(DType::kF32, DType::kF32, 16, 16, 16, 24);
  spec.groups = {{.window = 30, .num_always_visible = 0, .max_in_flight = 5}};
  KVCache cache = MakeCache(spec);
  const SequenceId parent = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, parent, Names(0, 48))));
  const SequenceId fork = *cache.Fork(parent);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, parent, Names(48, 32))));  // pages 0 and 1 are given back
  KVCache other = MakeCache(spec);
  Mask mask;
  mask.window = 30;
  for (const std::vector<SequenceId>& saved : {std::vector{fork, parent}, std::vector{parent, fork}}) {
    const std::vector<SequenceId> restored = Restored(other, Saved(cache, saved));
    ASSERT_EQ(restored.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const int64_t length = saved[i] == fork ? 48 : 80;
      const Attended expected = AttendNames(spec, Names(0, length), 0, 3, mask);
      const Attended got = AttendCache(other, restored[i], 0, 3, length, mask);
      ASSERT_TRUE(Succeeds(expected.status));
      ASSERT_TRUE(Succeeds(got.status));
      EXPECT_EQ(got.out, expected.out) << length;
      ASSERT_TRUE(Succeeds(other.DropSequence(restored[i])));
    }
  }
}

}  // namespace
}  // namespace headlane::internal
