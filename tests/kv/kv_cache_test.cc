// The contract of KVCache call by call: what is refused, with which words, and that a refusal changes nothing.
#include "headlane/kv_cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"

namespace headlane::internal {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

KVCacheSpec SmallSpec() {
  KVCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = 2;
  spec.qk_dim = 5;
  spec.v_dim = 20;
  spec.page_tokens = 16;
  spec.max_tokens = 64;
  spec.max_sequences = 3;
  return spec;
}

bool operator==(const KVCacheUsage& a, const KVCacheUsage& b) {
  return a.page_bytes == b.page_bytes && a.bytes_per_token == b.bytes_per_token && a.total_pages == b.total_pages &&
         a.used_pages == b.used_pages && a.limit_bytes == b.limit_bytes && a.used_bytes == b.used_bytes &&
         a.free_bytes == b.free_bytes && a.num_sequences == b.num_sequences && a.num_tokens == b.num_tokens;
}

// n tokens of a cache's shape, all elements = value.
struct Rows {
  Rows(const KVCacheSpec& spec, int64_t n, float value = 1)
      : k_data(static_cast<size_t>(n * spec.num_kv_heads * spec.qk_dim), value),
        v_data(static_cast<size_t>(n * spec.num_kv_heads * spec.v_dim), value),
        k(TokensHeadsDim(std::as_const(k_data).data(), n, spec.num_kv_heads, spec.qk_dim)),
        v(TokensHeadsDim(std::as_const(v_data).data(), n, spec.num_kv_heads, spec.v_dim)),
        k_out(TokensHeadsDim(k_data.data(), n, spec.num_kv_heads, spec.qk_dim)),
        v_out(TokensHeadsDim(v_data.data(), n, spec.num_kv_heads, spec.v_dim)) {}
  std::vector<float> k_data, v_data;
  ConstTensorView k, v;
  TensorView k_out, v_out;
};

// Everything that a caller can see of a sequence, to show that a refused call changed nothing.
struct Snapshot {
  Snapshot(const KVCache& cache, SequenceId id) : usage(cache.usage()), length(*cache.Length(id)) {
    reserved = 0;
    while (cache.impl().CheckReadable(id, length + reserved + 1).ok()) ++reserved;
    for (int64_t layer = 0; layer < cache.spec().num_layers; ++layer) {
      Rows rows(cache.spec(), length);
      EXPECT_TRUE(Succeeds(cache.Read(id, layer, 0, rows.k_out, rows.v_out)));
      contents.insert(contents.end(), rows.k_data.begin(), rows.k_data.end());
      contents.insert(contents.end(), rows.v_data.begin(), rows.v_data.end());
    }
  }
  friend bool operator==(const Snapshot& a, const Snapshot& b) {
    return a.usage == b.usage && a.length == b.length && a.reserved == b.reserved && a.contents == b.contents;
  }
  KVCacheUsage usage;
  int64_t length;
  int64_t reserved;
  std::vector<float> contents;
};

TEST(KVCacheCreate, RefusesEverySpecThatMakesNoSense) {
  const struct {
    int64_t KVCacheSpec::* field;
    const char* name;
    std::vector<int64_t> bad;
  } cases[] = {
      {&KVCacheSpec::num_layers, "num_layers", {0, -1, kMin}},
      {&KVCacheSpec::num_kv_heads, "num_kv_heads", {0, -1, kMin}},
      {&KVCacheSpec::qk_dim, "qk_dim", {0, -1, kMin}},
      {&KVCacheSpec::v_dim, "v_dim", {0, -1, kMin}},
      {&KVCacheSpec::max_tokens, "max_tokens", {0, -1, kMin}},
      {&KVCacheSpec::max_sequences, "max_sequences", {0, -1, kMin, kMaxSequences + 1, kMax}},
      {&KVCacheSpec::page_tokens, "page_tokens", {0, -16, 1, 15, 17, 24, 257, 272, kMax, kMin}},
  };
  for (const auto& [field, name, bad] : cases) {
    for (const int64_t value : bad) {
      KVCacheSpec spec = SmallSpec();
      spec.*field = value;
      EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument, {name, std::to_string(value)}));
    }
  }
}

TEST(KVCacheCreate, RefusesSizesPastSixtyFourBits) {
  for (int64_t KVCacheSpec::* field : {&KVCacheSpec::num_layers, &KVCacheSpec::num_kv_heads, &KVCacheSpec::qk_dim,
                                       &KVCacheSpec::v_dim, &KVCacheSpec::max_tokens}) {
    for (const int64_t value : {kMax, kMax / 4, kMax / 64}) {
      KVCacheSpec spec = SmallSpec();
      spec.*field = value;
      EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument, {std::to_string(value)}));
    }
  }
  // Products that come out small modulo 2^64.
  KVCacheSpec spec = SmallSpec();
  spec.num_layers = int64_t{1} << 32;
  spec.num_kv_heads = int64_t{1} << 32;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument));
  // Page numbers have 32 bits.
  spec = SmallSpec();
  spec.max_tokens = (int64_t{1} << 31) * spec.page_tokens;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kInvalidArgument, {std::to_string(int64_t{1} << 31)}));
}

TEST(KVCacheCreate, MoreMemoryThanThereIsIsAnError) {
  KVCacheSpec spec = SmallSpec();
  spec.num_layers = int64_t{1} << 44;
  EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kResourceExhausted, {"bytes"}));
}

TEST(KVCacheCreate, RefusesOtherTypes) {
  for (const DType dtype : {static_cast<DType>(77), static_cast<DType>(-1), static_cast<DType>(kNumDTypes)}) {
    const std::string number = std::to_string(static_cast<int>(dtype));
    KVCacheSpec spec = SmallSpec();
    spec.k_dtype = dtype;
    EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kUnsupported, {"k_dtype", number}));
    spec = SmallSpec();
    spec.v_dtype = dtype;
    EXPECT_TRUE(Fails(KVCache::Create(spec).status(), StatusCode::kUnsupported, {"v_dtype", number}));
  }
}

TEST(KVCacheCreate, AccountsBytesAsTheHeaderSays) {
  KVCacheSpec spec = SmallSpec();
  spec.num_layers = 7;
  spec.max_tokens = 65;  // five pages of 16
  const KVCache cache = MakeCache(spec);
  const KVCacheUsage usage = cache.usage();
  EXPECT_EQ(usage.bytes_per_token, 7 * 2 * (5 + 32) * 4);  // v_dim 20 in two stripes of 16
  EXPECT_EQ(usage.page_bytes, 16 * usage.bytes_per_token);
  EXPECT_EQ(usage.total_pages, 5);
  EXPECT_EQ(usage.limit_bytes, 5 * usage.page_bytes);
  EXPECT_EQ(usage.free_bytes, usage.limit_bytes);
  EXPECT_EQ(usage.used_bytes, 0);
  EXPECT_EQ(usage.num_sequences, 0);
  EXPECT_EQ(cache.spec().max_tokens, 65);
}

TEST(KVCache, FillsToExactlyItsCapacityAndNotOneTokenMore) {
  const KVCacheSpec spec = SmallSpec();
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  for (int i = 0; i < 64; ++i) {
    const Rows one(spec, 1, static_cast<float>(i));
    ASSERT_TRUE(Succeeds(cache.Append(id, one.k, one.v)));
  }
  EXPECT_EQ(cache.usage().free_bytes, 0);
  EXPECT_EQ(cache.usage().used_pages, 4);
  const Snapshot before(cache, id);
  const Rows one(spec, 1, 99);
  EXPECT_TRUE(Fails(cache.Append(id, one.k, one.v), StatusCode::kResourceExhausted,
                    {"sequence 0", "1 more pages", "0 are free"}));
  EXPECT_TRUE(Fails(cache.Reserve(id, 1), StatusCode::kResourceExhausted));
  EXPECT_TRUE(before == Snapshot(cache, id));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(before.contents[static_cast<size_t>(i) * 10], static_cast<float>(i));
  // At once, too.
  ASSERT_TRUE(Succeeds(cache.Truncate(id, 0)));
  const Rows all(spec, 64);
  EXPECT_TRUE(Succeeds(cache.Append(id, all.k, all.v)));
}

TEST(KVCache, RefusedReserveKeepsTheEarlierReservationAndWhatWasWritten) {
  const KVCacheSpec spec = SmallSpec();
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  const SequenceId other = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(other, 16)));
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 20)));
  const Rows rows(spec, 20, 3);
  ASSERT_TRUE(Succeeds(cache.Write(id, 0, rows.k, rows.v)));
  const Snapshot before(cache, id);
  EXPECT_EQ(before.reserved, 20);
  EXPECT_TRUE(
      Fails(cache.Reserve(id, 49), StatusCode::kResourceExhausted, {"sequence 0", "49", "2 more pages", "1 are free"}));
  EXPECT_TRUE(Fails(cache.Reserve(id, kMax), StatusCode::kResourceExhausted, {std::to_string(kMax)}));
  EXPECT_TRUE(Fails(cache.Reserve(id, -1), StatusCode::kInvalidArgument, {"sequence 0", "-1"}));
  EXPECT_TRUE(Fails(cache.Reserve(id, kMin), StatusCode::kInvalidArgument));
  EXPECT_TRUE(before == Snapshot(cache, id));
  EXPECT_TRUE(Succeeds(cache.Commit(id, 20)));
  EXPECT_TRUE(Fails(cache.Reserve(id, kMax), StatusCode::kResourceExhausted, {std::to_string(kMax)}));
}

TEST(KVCache, ReserveDropsTheEarlierReservation) {
  const KVCacheSpec spec = SmallSpec();
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 40)));
  EXPECT_EQ(cache.usage().used_pages, 3);
  const Rows rows(spec, 40);
  ASSERT_TRUE(Succeeds(cache.Write(id, 0, rows.k, rows.v)));
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 2)));
  EXPECT_EQ(cache.usage().used_pages, 1);
  // What was written for the earlier one does not count for this one.
  EXPECT_TRUE(Fails(cache.Commit(id, 2), StatusCode::kFailedPrecondition, {"sequence 0", "2 tokens"}));
  EXPECT_TRUE(Fails(cache.Commit(id, 3), StatusCode::kOutOfRange, {"3", "2"}));
  const Rows two(spec, 2);
  ASSERT_TRUE(Succeeds(cache.Write(id, 0, two.k, two.v)));
  EXPECT_TRUE(Succeeds(cache.Commit(id, 2)));
  EXPECT_EQ(*cache.Length(id), 2);
}

TEST(KVCache, CommitsPartsOfAReservationOneAfterTheOther) {
  const KVCacheSpec spec = SmallSpec();
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 10)));
  const Rows rows(spec, 10);
  ASSERT_TRUE(Succeeds(cache.Write(id, 0, rows.k, rows.v)));
  EXPECT_TRUE(Fails(cache.Commit(id, -1), StatusCode::kOutOfRange, {"-1", "10"}));
  EXPECT_TRUE(Fails(cache.Commit(id, kMin), StatusCode::kOutOfRange));
  EXPECT_TRUE(Fails(cache.Commit(id, 11), StatusCode::kOutOfRange, {"11", "10"}));
  EXPECT_TRUE(Succeeds(cache.Commit(id, 0)));
  EXPECT_EQ(*cache.Length(id), 0);
  EXPECT_TRUE(Succeeds(cache.Commit(id, 4)));
  EXPECT_EQ(*cache.Length(id), 4);
  EXPECT_TRUE(Fails(cache.Commit(id, 7), StatusCode::kOutOfRange, {"7", "6"}));
  EXPECT_TRUE(Succeeds(cache.Commit(id, 6)));
  EXPECT_EQ(*cache.Length(id), 10);
  EXPECT_EQ(cache.usage().num_tokens, 10);
}

TEST(KVCache, CommitNamesTheLayerThatWasForgotten) {
  KVCacheSpec spec = SmallSpec();
  spec.num_layers = 3;
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 20)));
  const Rows rows(spec, 20);
  const Rows part(spec, 18);
  ASSERT_TRUE(Succeeds(cache.Write(id, 0, rows.k, rows.v)));
  ASSERT_TRUE(Succeeds(cache.Write(id, 2, rows.k, rows.v)));
  EXPECT_TRUE(Fails(cache.Commit(id, 20), StatusCode::kFailedPrecondition, {"sequence 0", "number 0", "layer 1"}));
  ASSERT_TRUE(Succeeds(cache.Write(id, 1, part.k, part.v)));
  EXPECT_TRUE(Fails(cache.Commit(id, 20), StatusCode::kFailedPrecondition, {"number 18", "layer 1"}));
  EXPECT_EQ(*cache.Length(id), 0);
  EXPECT_TRUE(Succeeds(cache.Commit(id, 18)));
  const Rows rest(spec, 2);
  ASSERT_TRUE(Succeeds(cache.Write(id, 1, rest.k, rest.v)));
  EXPECT_TRUE(Succeeds(cache.Commit(id, 2)));
}

TEST(KVCache, AppendIsAllOrNothing) {
  const KVCacheSpec spec = SmallSpec();
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  const Rows rows(spec, 20, 2);
  ASSERT_TRUE(Succeeds(cache.Append(id, rows.k, rows.v)));
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 5)));
  const Snapshot before(cache, id);
  ConstTensorView bad = rows.v;
  bad.dim = 19;
  EXPECT_TRUE(Fails(cache.Append(id, rows.k, bad), StatusCode::kInvalidArgument, {"v", "19", "20"}));
  const Rows many(spec, 45);
  EXPECT_TRUE(Fails(cache.Append(id, many.k, many.v), StatusCode::kResourceExhausted));
  EXPECT_TRUE(before == Snapshot(cache, id));
  EXPECT_EQ(before.reserved, 5);

  KVCacheSpec two = spec;
  two.num_layers = 2;
  KVCache deep = MakeCache(two);
  EXPECT_TRUE(
      Fails(deep.Append(NewSequence(deep), rows.k, rows.v), StatusCode::kFailedPrecondition, {"sequence 0", "2"}));
}

TEST(KVCache, WriteRefusesWhatDoesNotFitAndWritesNothing) {
  KVCacheSpec spec = SmallSpec();
  spec.num_layers = 2;
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 8)));
  const Rows good(spec, 8, 1);
  for (int64_t layer = 0; layer < 2; ++layer) ASSERT_TRUE(Succeeds(cache.Write(id, layer, good.k, good.v)));

  const Rows rows(spec, 4, 9);
  using Change = void (*)(ConstTensorView*, ConstTensorView*);
  const struct {
    Change change;
    StatusCode code;
    std::vector<std::string> words;
  } views[] = {
      {[](ConstTensorView* k, ConstTensorView*) { k->data = nullptr; }, StatusCode::kInvalidArgument, {"k", "null"}},
      {[](ConstTensorView*, ConstTensorView* v) { v->data = nullptr; }, StatusCode::kInvalidArgument, {"v", "null"}},
      {[](ConstTensorView*, ConstTensorView* v) { v->dtype = static_cast<DType>(kNumDTypes); },
       StatusCode::kInvalidArgument,
       {"v", std::to_string(kNumDTypes)}},
      {[](ConstTensorView* k, ConstTensorView*) { k->dtype = static_cast<DType>(-3); },
       StatusCode::kInvalidArgument,
       {"k", "-3"}},
      {[](ConstTensorView* k, ConstTensorView*) { k->num_heads = 3; },
       StatusCode::kInvalidArgument,
       {"k", "num_heads", "3", "2"}},
      {[](ConstTensorView*, ConstTensorView* v) { v->num_heads = 1; },
       StatusCode::kInvalidArgument,
       {"v", "num_heads", "1", "2"}},
      {[](ConstTensorView* k, ConstTensorView*) { k->dim = 20; },
       StatusCode::kInvalidArgument,
       {"k", "dim", "20", "5"}},
      {[](ConstTensorView*, ConstTensorView* v) { v->dim = 5; }, StatusCode::kInvalidArgument, {"v", "dim", "5", "20"}},
      {[](ConstTensorView*, ConstTensorView* v) { v->num_tokens = 3; },
       StatusCode::kInvalidArgument,
       {"v", "num_tokens", "3", "4"}},
      {[](ConstTensorView* k, ConstTensorView* v) { k->num_tokens = v->num_tokens = -4; },
       StatusCode::kInvalidArgument,
       {"k", "-4"}},
      {[](ConstTensorView* k, ConstTensorView* v) { k->num_tokens = v->num_tokens = 9; },
       StatusCode::kOutOfRange,
       {"sequence 0", "9", "8"}},
      {[](ConstTensorView* k, ConstTensorView*) { k->token_stride = kMax / 2; },
       StatusCode::kInvalidArgument,
       {"k", "stride"}},
      {[](ConstTensorView*, ConstTensorView* v) { v->dim_stride = kMin; },
       StatusCode::kInvalidArgument,
       {"v", "stride"}},
      {[](ConstTensorView* k, ConstTensorView* v) { k->num_tokens = v->num_tokens = kMax; },
       StatusCode::kInvalidArgument,
       {"stride"}},
      {[](ConstTensorView* k, ConstTensorView* v) {
         k->num_tokens = v->num_tokens = kMax;
         k->token_stride = v->token_stride = 0;
       },
       StatusCode::kOutOfRange,
       {"sequence 0", std::to_string(kMax), "8"}},
      {[](ConstTensorView* k, ConstTensorView*) { k->data = static_cast<const char*>(k->data) + 2; },
       StatusCode::kInvalidArgument,
       {"k", "2 bytes"}},
      {[](ConstTensorView* k, ConstTensorView*) { k->num_batch = 0; }, StatusCode::kOutOfRange, {"k", "batch"}},
      {[](ConstTensorView*, ConstTensorView* v) { v->num_batch = -1; },
       StatusCode::kInvalidArgument,
       {"v", "num_batch", "-1"}},
  };
  for (const auto& [change, code, words] : views) {
    ConstTensorView k = rows.k;
    ConstTensorView v = rows.v;
    change(&k, &v);
    EXPECT_TRUE(Fails(cache.Write(id, 0, k, v), code, words));
  }
  const struct {
    int64_t layer, begin, batch;
    std::vector<std::string> words;
  } places[] = {
      {2, 0, 0, {"sequence 0", "layer 2", "2"}},
      {-1, 0, 0, {"layer -1"}},
      {kMax, 0, 0, {"layer"}},
      {kMin, 0, 0, {"layer"}},
      {0, 5, 0, {"sequence 0", "5", "8"}},
      {0, -1, 0, {"-1"}},
      {0, kMax, 0, {"8"}},
      {0, kMin, 0, {"8"}},
      {0, 0, 1, {"batch entry 1 of 1"}},
      {0, 0, -1, {"batch"}},
      {0, 0, kMax, {"batch"}},
  };
  for (const auto& [layer, begin, batch, words] : places) {
    EXPECT_TRUE(Fails(cache.Write(id, layer, rows.k, rows.v, begin, batch), StatusCode::kOutOfRange, words));
  }
  ASSERT_TRUE(Succeeds(cache.Commit(id, 8)));
  const Snapshot after(cache, id);
  EXPECT_EQ(after.contents, std::vector<float>(after.contents.size(), 1.0f));
  // Nothing is reserved any more.
  EXPECT_TRUE(Fails(cache.Write(id, 0, rows.k, rows.v), StatusCode::kOutOfRange, {"sequence 0", "4", "0"}));
}

TEST(KVCache, NoTokensIsNoError) {
  const KVCacheSpec spec = SmallSpec();
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  const ConstTensorView k = TokensHeadsDim(static_cast<const float*>(nullptr), 0, 2, 5);
  const ConstTensorView v = TokensHeadsDim(static_cast<const float*>(nullptr), 0, 2, 20);
  EXPECT_TRUE(Succeeds(cache.Append(id, k, v)));
  EXPECT_TRUE(Succeeds(cache.Reserve(id, 0)));
  EXPECT_TRUE(Succeeds(cache.Write(id, 0, k, v)));
  EXPECT_TRUE(Succeeds(cache.Commit(id, 0)));
  EXPECT_TRUE(Succeeds(cache.Truncate(id, 0)));
  EXPECT_TRUE(Succeeds(cache.Abandon(id)));
  EXPECT_TRUE(Succeeds(cache.Read(id, 0, 0, TokensHeadsDim(static_cast<float*>(nullptr), 0, 2, 5),
                                  TokensHeadsDim(static_cast<float*>(nullptr), 0, 2, 20))));
  EXPECT_EQ(cache.usage().used_pages, 0);
}

TEST(KVCache, TruncateGivesBackPagesAndRefusesOtherLengths) {
  const KVCacheSpec spec = SmallSpec();
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  const Rows rows(spec, 40);
  ASSERT_TRUE(Succeeds(cache.Append(id, rows.k, rows.v)));
  for (const int64_t length : {int64_t{41}, int64_t{-1}, kMax, kMin}) {
    EXPECT_TRUE(
        Fails(cache.Truncate(id, length), StatusCode::kOutOfRange, {"sequence 0", std::to_string(length), "40"}));
  }
  EXPECT_EQ(cache.usage().used_pages, 3);
  const std::pair<int64_t, int64_t> steps[] = {{40, 3}, {33, 3}, {32, 2}, {31, 2}, {17, 2}, {16, 1}, {1, 1}, {0, 0}};
  for (const auto& [length, pages] : steps) {
    ASSERT_TRUE(Succeeds(cache.Truncate(id, length)));
    EXPECT_EQ(cache.usage().used_pages, pages) << length;
    EXPECT_EQ(*cache.Length(id), length);
    EXPECT_EQ(cache.usage().num_tokens, length);
  }
}

TEST(KVCache, TruncateAndAbandonDropTheReservation) {
  const KVCacheSpec spec = SmallSpec();
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  const Rows rows(spec, 10);
  for (const bool abandon : {true, false}) {
    ASSERT_TRUE(Succeeds(cache.Truncate(id, 0)));
    ASSERT_TRUE(Succeeds(cache.Append(id, rows.k, rows.v)));
    ASSERT_TRUE(Succeeds(cache.Reserve(id, 30)));
    EXPECT_EQ(cache.usage().used_pages, 3);
    EXPECT_TRUE(Succeeds(abandon ? cache.Abandon(id) : cache.Truncate(id, 10)));
    EXPECT_EQ(cache.usage().used_pages, 1);
    EXPECT_TRUE(Fails(cache.Commit(id, 1), StatusCode::kOutOfRange));
    EXPECT_TRUE(Fails(cache.impl().CheckReadable(id, 11), StatusCode::kOutOfRange, {"sequence 0", "11", "10"}));
    EXPECT_EQ(*cache.Length(id), 10);
  }
}

TEST(KVCache, StaleIdsAreErrorsAndNotOtherSequences) {
  const KVCacheSpec spec = SmallSpec();
  KVCache cache = MakeCache(spec);
  const Rows rows(spec, 1);
  // Also those that are yet to come.
  for (int64_t value = 0; value < 4; ++value) {
    EXPECT_TRUE(Fails(cache.Length(SequenceId{value}).status(), StatusCode::kNotFound, {std::to_string(value)}));
  }
  std::vector<SequenceId> old;
  for (int i = 0; i < 20; ++i) {
    const SequenceId id = NewSequence(cache);
    for (const SequenceId stale : old) {
      EXPECT_NE(stale.value, id.value);
      EXPECT_TRUE(Fails(cache.Append(stale, rows.k, rows.v), StatusCode::kNotFound, {std::to_string(stale.value)}));
    }
    ASSERT_TRUE(Succeeds(cache.Append(id, rows.k, rows.v)));
    ASSERT_TRUE(Succeeds(cache.DropSequence(id)));
    EXPECT_EQ(cache.usage().used_pages, 0);
    EXPECT_EQ(cache.usage().num_tokens, 0);
    old.push_back(id);
  }
  for (const int64_t value : {int64_t{-1}, kMin, kMax, int64_t{1000}}) {
    const SequenceId id{value};
    Rows out(spec, 1);
    const std::vector<std::string> words = {std::to_string(value)};
    EXPECT_TRUE(Fails(cache.DropSequence(id), StatusCode::kNotFound, words));
    EXPECT_TRUE(Fails(cache.Length(id).status(), StatusCode::kNotFound, words));
    EXPECT_TRUE(Fails(cache.Reserve(id, 1), StatusCode::kNotFound, words));
    EXPECT_TRUE(Fails(cache.Write(id, 0, rows.k, rows.v), StatusCode::kNotFound, words));
    EXPECT_TRUE(Fails(cache.Commit(id, 1), StatusCode::kNotFound, words));
    EXPECT_TRUE(Fails(cache.Abandon(id), StatusCode::kNotFound, words));
    EXPECT_TRUE(Fails(cache.Append(id, rows.k, rows.v), StatusCode::kNotFound, words));
    EXPECT_TRUE(Fails(cache.Truncate(id, 0), StatusCode::kNotFound, words));
    EXPECT_TRUE(Fails(cache.Read(id, 0, 0, out.k_out, out.v_out), StatusCode::kNotFound, words));
    EXPECT_TRUE(Fails(cache.impl().CheckReadable(id, 0), StatusCode::kNotFound, words));
  }
}

TEST(KVCache, HoldsNoMoreSequencesThanSaid) {
  KVCache cache = MakeCache(SmallSpec());
  std::vector<SequenceId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(NewSequence(cache));
  EXPECT_TRUE(Fails(cache.CreateSequence().status(), StatusCode::kResourceExhausted, {"3"}));
  EXPECT_EQ(cache.usage().num_sequences, 3);
  ASSERT_TRUE(Succeeds(cache.DropSequence(ids[1])));
  EXPECT_EQ(cache.usage().num_sequences, 2);
  EXPECT_NE(NewSequence(cache).value, ids[1].value);
  EXPECT_TRUE(Fails(cache.CreateSequence().status(), StatusCode::kResourceExhausted));
}

TEST(KVCache, ReadRefusesWhatIsNotThere) {
  const KVCacheSpec spec = SmallSpec();
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  const Rows rows(spec, 10, 4);
  ASSERT_TRUE(Succeeds(cache.Append(id, rows.k, rows.v)));
  ASSERT_TRUE(Succeeds(cache.Reserve(id, 10)));
  Rows out(spec, 4, 7);
  for (const int64_t begin : {int64_t{7}, int64_t{-1}, kMax, kMin}) {
    EXPECT_TRUE(Fails(cache.Read(id, 0, begin, out.k_out, out.v_out), StatusCode::kOutOfRange,
                      {"sequence 0", std::to_string(begin), "10"}));
  }
  for (const int64_t layer : {int64_t{1}, int64_t{-1}, kMax}) {
    EXPECT_TRUE(Fails(cache.Read(id, layer, 0, out.k_out, out.v_out), StatusCode::kOutOfRange, {"layer"}));
  }
  TensorView bad = out.k_out;
  bad.dim = 4;
  EXPECT_TRUE(Fails(cache.Read(id, 0, 0, bad, out.v_out), StatusCode::kInvalidArgument, {"k", "4", "5"}));
  bad = out.v_out;
  bad.data = nullptr;
  EXPECT_TRUE(Fails(cache.Read(id, 0, 0, out.k_out, bad), StatusCode::kInvalidArgument, {"v", "null"}));
  bad = out.v_out;
  bad.dtype = DType::kF16;
  EXPECT_TRUE(Fails(cache.Read(id, 0, 0, out.k_out, bad), StatusCode::kUnsupported, {"v", "f16"}));
  bad = out.v_out;
  bad.token_stride = 0;
  EXPECT_TRUE(Fails(cache.Read(id, 0, 0, out.k_out, bad), StatusCode::kInvalidArgument, {"v", "overlap"}));
  EXPECT_EQ(out.k_data, std::vector<float>(out.k_data.size(), 7.0f));
  EXPECT_EQ(out.v_data, std::vector<float>(out.v_data.size(), 7.0f));
  EXPECT_TRUE(Succeeds(cache.Read(id, 0, 6, out.k_out, out.v_out)));
  EXPECT_EQ(out.v_data, std::vector<float>(out.v_data.size(), 4.0f));
}

TEST(KVCache, SequencesSurviveAMove) {
  const KVCacheSpec spec = SmallSpec();
  KVCache first = MakeCache(spec);
  const SequenceId id = NewSequence(first);
  const Rows rows(spec, 3, 5);
  ASSERT_TRUE(Succeeds(first.Append(id, rows.k, rows.v)));
  KVCache second = std::move(first);
  KVCache third = MakeCache(spec);
  third = std::move(second);
  EXPECT_EQ(Snapshot(third, id).contents, std::vector<float>(3 * 2 * 25, 5.0f));
}

}  // namespace
}  // namespace headlane::internal
