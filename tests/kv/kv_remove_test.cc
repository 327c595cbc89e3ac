// Removal from the middle: what is left moves down with its bytes, keys turn with their positions, nobody else notices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headlane/kv_cache.h"
#include "headlane/ops.h"
#include "kv/attend.h"
#include "kv/fuzz_rows.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"

namespace headlane::internal {
namespace {

KVCacheSpec Spec(DType dtype, int64_t page_tokens = 16) {
  KVCacheSpec spec = SpecOf(dtype, dtype, 32, 16, page_tokens, 40);
  spec.num_layers = 2;
  return spec;
}

std::vector<int64_t> Without(std::vector<int64_t> names, int64_t begin, int64_t end) {
  names.erase(names.begin() + begin, names.begin() + end);
  return names;
}

TEST(KVRemove, WithoutPositionsItIsTheSequenceWithoutThem) {
  for (const DType dtype : kEveryDType) {
    for (const int64_t page_tokens : {16, 48}) {
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 0},
                                       {0, 1},
                                       {0, 16},
                                       {5, 9},
                                       {15, 33},
                                       {16, 32},
                                       {90, 100},
                                       {99, 100},
                                       {0, 100},
                                       {40, 41},
                                       {100, 100}}) {
        SCOPED_TRACE(std::to_string(begin) + " " + std::to_string(end));
        KVCache cache = MakeCache(Spec(dtype, page_tokens));
        cache.impl().PoisonUnusedForTesting();
        const SequenceId id = NewSequence(cache);
        ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, 100))));
        const SequenceId fork = *cache.Fork(id);
        const SequenceId shorter = *cache.Fork(id, 20);
        ASSERT_TRUE(Succeeds(cache.Remove(id, begin, end, {})));
        cache.impl().PoisonUnusedForTesting();
        std::vector<int64_t> names = Without(Names(0, 100), begin, end);
        EXPECT_EQ(*cache.Length(id), static_cast<int64_t>(names.size()));
        EXPECT_TRUE(Attends(cache, id, names));
        EXPECT_TRUE(Attends(cache, fork, Names(0, 100)));
        EXPECT_TRUE(Attends(cache, shorter, Names(0, 20)));
        ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(200, 20))));
        for (const int64_t name : Names(200, 20)) names.push_back(name);
        EXPECT_TRUE(Attends(cache, id, names));
        for (const SequenceId each : {id, fork, shorter}) ASSERT_TRUE(Succeeds(cache.DropSequence(each)));
        EXPECT_EQ(cache.usage().used_pages, 0);
        EXPECT_EQ(cache.usage().num_tokens, 0);
      }
    }
  }
}

// Appends tokens whose keys are rotated for the positions where they stand, in f32.
void AppendRotated(KVCache& cache, SequenceId id, const RopeShift& shift, int64_t n) {
  const KVCacheSpec& spec = cache.spec();
  ASSERT_TRUE(Succeeds(cache.Reserve(id, n)));
  std::vector<float> cos(static_cast<size_t>(n * shift.rope.rotary_dim / 2)), sin(cos.size());
  ASSERT_TRUE(Succeeds(RopeAnglesFrom(shift.rope, *cache.Length(id), n, cos.data(), sin.data())));
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    TokenRows rows(spec, layer, Names(*cache.Length(id), n));
    TensorView k = TokensHeadsDim(rows.k.data(), n, spec.num_kv_heads, spec.qk_dim);
    k.data = rows.k.data() + shift.first_feature;
    k.dim -= shift.first_feature;
    ASSERT_TRUE(Succeeds(ApplyRope(shift.rope, cos.data(), sin.data(), k)));
    ASSERT_TRUE(Succeeds(cache.Write(id, layer, rows.k_view(), rows.v_view())));
  }
  ASSERT_TRUE(Succeeds(cache.Commit(id, n)));
}

struct Stored {
  std::vector<float> k, v;
};
Stored ReadAll(const KVCache& cache, SequenceId id, int64_t layer) {
  const KVCacheSpec& spec = cache.spec();
  const int64_t n = *cache.Length(id);
  Stored stored;
  stored.k.resize(static_cast<size_t>(n * spec.num_kv_heads * spec.qk_dim));
  stored.v.resize(static_cast<size_t>(n * spec.num_kv_heads * spec.v_dim));
  EXPECT_TRUE(Succeeds(cache.Read(id, layer, 0, TokensHeadsDim(stored.k.data(), n, spec.num_kv_heads, spec.qk_dim),
                                  TokensHeadsDim(stored.v.data(), n, spec.num_kv_heads, spec.v_dim))));
  return stored;
}

// What the stored keys of tokens [begin, n) become, head by head, when they are turned back by one position so many
// times: exactly, by the reference's programs.
std::vector<float> TurnedOften(const KVCacheSpec& spec, const RopeShift& shift, std::vector<float> keys, int64_t begin,
                               int64_t by, int64_t times) {
  for (size_t at = static_cast<size_t>(begin * spec.num_kv_heads * spec.qk_dim); at < keys.size();
       at += static_cast<size_t>(spec.qk_dim)) {
    const auto key = keys.begin() + static_cast<std::ptrdiff_t>(at);
    std::vector<float> row(key, key + spec.qk_dim);
    for (int64_t i = 0; i < times; ++i) row = TurnedKey(spec.k_dtype, spec.rotate, 0, shift, by, row);
    std::copy(row.begin(), row.end(), key);
  }
  return keys;
}

RopeShift Yarn(RopeStyle style, int64_t dim, int64_t offset) {
  RopeShift shift;
  shift.rope.rotary_dim = dim;
  shift.rope.style = style;
  shift.rope.scaling = RopeScaling::kYarn;  // with an attention factor, which must not be applied twice
  shift.rope.factor = 4;
  shift.rope.original_context = 64;
  shift.first_feature = offset;
  return shift;
}

// The raw keys of tokens [0, n) without [2, 2 + gone), rotated where they stand then.
std::vector<float> Rotated(const KVCacheSpec& spec, const RopeShift& shift, int64_t n, int64_t gone) {
  TokenRows raw(spec, 1, Without(Names(0, n), 2, 2 + gone));
  std::vector<float> cos(static_cast<size_t>(raw.n * shift.rope.rotary_dim / 2)), sin(cos.size());
  EXPECT_TRUE(Succeeds(RopeAnglesFrom(shift.rope, 0, raw.n, cos.data(), sin.data())));
  TensorView k = TokensHeadsDim(raw.k.data(), raw.n, spec.num_kv_heads, spec.qk_dim);
  k.data = raw.k.data() + shift.first_feature;
  k.dim -= shift.first_feature;
  EXPECT_TRUE(Succeeds(ApplyRope(shift.rope, cos.data(), sin.data(), k)));
  return raw.k;
}

// Of the features that turn, in rows of 32: root of the mean square of the difference, as a part of that of the second.
double RelativeError(const RopeShift& shift, const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const int64_t feature = static_cast<int64_t>(i % 32) - shift.first_feature;
    if (feature < 0 || feature >= shift.rope.rotary_dim) continue;
    const double difference = static_cast<double>(a[i]) - b[i];
    error += difference * difference;
    all += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(error / all);
}

// F37: 12 tokens, 2 .. 5 dropped, the rest moved by -4; then 20 removals of one. The stored keys are those of as many
// turns by the reference's programs, to the bit, and near the same raw keys rotated at their new positions. Whole and
// partial rotation, both pairings, at an offset; in a group that keeps everything, and in one with a window's ring.
TEST(KVRemove, KeysTurnToTheirNewPositions) {
  for (const DType dtype : kEveryDType) {
    for (const RopeStyle style : {RopeStyle::kAdjacent, RopeStyle::kHalfSplit}) {
      for (const auto& [dim, offset] : {std::pair<int64_t, int64_t>{32, 0}, {16, 0}, {8, 20}}) {
        for (const int64_t removals : {1, 20}) {
          SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + std::to_string(dim) + " from " + std::to_string(offset) +
                       ", removals " + std::to_string(removals));
          const RopeShift shift = Yarn(style, dim, offset);
          KVCache cache = MakeCache(Spec(dtype));
          const SequenceId id = NewSequence(cache);
          AppendRotated(cache, id, shift, 50);
          const Stored before = ReadAll(cache, id, 1);
          const int64_t n = removals == 1 ? 4 : 1;
          for (int64_t i = 0; i < removals; ++i) {
            ASSERT_TRUE(Succeeds(cache.Remove(id, 2, 2 + n, std::span<const RopeShift>(&shift, 1))));
          }
          const int64_t gone = n * removals;
          const Stored after = ReadAll(cache, id, 1);
          ASSERT_EQ(*cache.Length(id), 50 - gone);
          std::vector<float> kept = before.k;
          kept.erase(kept.begin() + 2 * 64, kept.begin() + (2 + gone) * 64);
          EXPECT_EQ(after.k, TurnedOften(cache.spec(), shift, kept, 2, n, removals));
          const std::vector<float> raw = Rotated(cache.spec(), shift, 50, gone);
          for (size_t i = 0; i < raw.size() && !IsQuantized(dtype); ++i) {
            const int64_t feature = static_cast<int64_t>(i % 32);
            if (feature >= offset && feature < offset + dim) continue;
            ASSERT_EQ(after.k[i], raw[i]) << "element " << i;
          }
          // Each removal adds at most what storing them at first did: a turn too small for the type is lost every time.
          // And they never come near to what keys would be that stayed as they were.
          const double one = RelativeError(shift, before.k, Rotated(cache.spec(), shift, 50, 0));
          const double error = RelativeError(shift, after.k, raw);
          EXPECT_LE(error, 1e-6 + 1.1 * one * static_cast<double>(removals + 1));
          EXPECT_LE(error, 0.8 * RelativeError(shift, kept, raw));
          EXPECT_EQ(after.v, TokenRows(cache.spec(), 1, Without(Names(0, 50), 2, 2 + gone), true).v);
          // Tokens before the removal are untouched.
          for (size_t i = 0; i < 2 * 2 * 32; ++i) ASSERT_EQ(BitsOf(after.k[i]), BitsOf(before.k[i]));
        }
      }
    }
  }
}

// The same in a window's ring that has lost tokens, beside a group that keeps everything and turns otherwise.
TEST(KVRemove, KeysTurnInRings) {
  for (const DType dtype : kEveryDType) {
    for (const bool rotate : {false, true}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + (rotate ? " rotated" : ""));
      KVCacheSpec spec = Spec(dtype);
      spec.rotate = rotate;
      spec.groups = {{}, {.window = 30, .num_always_visible = 3, .max_in_flight = 25}};
      spec.group_of_layer = {0, 1};
      KVCache cache = MakeCache(spec);
      cache.impl().PoisonUnusedForTesting();
      const SequenceId id = NewSequence(cache);
      for (int64_t i = 0; i < 10; ++i) ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(10 * i, 10))));
      // Kept from 100 - 25 - 30 + 1 = 46 on: read from there.
      const auto read = [&](int64_t layer, int64_t begin, int64_t n) {
        std::vector<float> k(static_cast<size_t>(n * 64)), v(static_cast<size_t>(n * 32));
        EXPECT_TRUE(Succeeds(
            cache.Read(id, layer, begin, TokensHeadsDim(k.data(), n, 2, 32), TokensHeadsDim(v.data(), n, 2, 16))));
        return Stored{k, v};
      };
      const RopeShift shifts[] = {Yarn(RopeStyle::kHalfSplit, 32, 0), Yarn(RopeStyle::kAdjacent, 10, 6)};
      std::vector<float> keys[] = {read(0, 46, 54).k, read(1, 46, 54).k};
      std::vector<float> values[] = {read(0, 46, 54).v, read(1, 46, 54).v};
      const Stored first = read(1, 0, 3);
      for (int64_t i = 0; i < 20; ++i) {
        ASSERT_TRUE(Succeeds(cache.Remove(id, 60, 61, shifts)));
        for (size_t layer = 0; layer < 2; ++layer) {
          keys[layer].erase(keys[layer].begin() + 14 * 64, keys[layer].begin() + 15 * 64);
          keys[layer] = TurnedOften(spec, shifts[layer], keys[layer], 14, 1, 1);
          values[layer].erase(values[layer].begin() + 14 * 32, values[layer].begin() + 15 * 32);
        }
      }
      cache.impl().PoisonUnusedForTesting();
      for (int64_t layer = 0; layer < 2; ++layer) {
        const Stored after = read(layer, 46, 34);
        EXPECT_EQ(after.k, keys[layer]) << "layer " << layer;
        EXPECT_EQ(after.v, values[layer]) << "layer " << layer;
      }
      EXPECT_EQ(read(1, 0, 3).k, first.k);
      EXPECT_EQ(read(1, 0, 3).v, first.v);
    }
  }
}

// Hybrid models rotate with other frequencies in their windowed layers.
TEST(KVRemove, EachLayerGroupTurnsByItsOwnRotation) {
  KVCacheSpec spec = Spec(DType::kF32);
  spec.groups = {{}, {.window = 200}};
  spec.group_of_layer = {0, 1};
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, 30))));
  RopeShift shifts[2];
  shifts[0].rope.rotary_dim = 32;
  shifts[1].rope.rotary_dim = 0;
  const Stored before[] = {ReadAll(cache, id, 0), ReadAll(cache, id, 1)};
  EXPECT_TRUE(Fails(cache.Remove(id, 0, 1, std::span<const RopeShift>(shifts, 1)), StatusCode::kInvalidArgument,
                    {"1 rotations", "2 layer groups"}));
  ASSERT_TRUE(Succeeds(cache.Remove(id, 0, 1, shifts)));
  const Stored after[] = {ReadAll(cache, id, 0), ReadAll(cache, id, 1)};
  EXPECT_TRUE(std::equal(after[1].k.begin(), after[1].k.end(), before[1].k.begin() + 64));
  EXPECT_FALSE(std::equal(after[0].k.begin(), after[0].k.end(), before[0].k.begin() + 64));
}

TEST(KVRemove, WindowsMoveOnlyWhatTheyKeep) {
  KVCacheSpec spec = Spec(DType::kF32);
  spec.groups = {{.window = 20, .num_always_visible = 2, .max_in_flight = 10}};
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  Mask mask;
  mask.window = 20;
  mask.num_always_visible = 2;
  std::vector<int64_t> names = Names(0, 25);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, names)));
  ASSERT_TRUE(Succeeds(cache.Remove(id, 1, 4, {})));  // nothing is lost yet
  names = Without(names, 1, 4);
  for (const int64_t name : Names(300, 78)) names.push_back(name);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(300, 78))));
  ASSERT_EQ(names.size(), 100u);
  // Kept from 100 - 10 - 20 + 1 = 71 on.
  EXPECT_TRUE(Fails(cache.Remove(id, 70, 72, {}), StatusCode::kFailedPrecondition, {"[70, 72)", "from 71"}));
  EXPECT_TRUE(Fails(cache.Remove(id, 75, 86, {}), StatusCode::kFailedPrecondition, {"[75, 86)"}));
  ASSERT_TRUE(Succeeds(cache.Remove(id, 75, 80, {})));
  names = Without(names, 75, 80);
  cache.impl().PoisonUnusedForTesting();
  EXPECT_TRUE(Succeeds(AttendCache(cache, id, 0, 1, 95, mask).status));
  EXPECT_EQ(AttendCache(cache, id, 1, 5, 95, mask).out, AttendNames(spec, names, 1, 5, mask).out);
}

TEST(KVRemove, RefusalsNameBothNumbersAndChangeNothing) {
  KVCacheSpec spec = Spec(DType::kF32);
  spec.max_tokens = 5 * 16;
  KVCache cache = MakeCache(spec);
  const SequenceId id = NewSequence(cache);
  ASSERT_TRUE(Succeeds(AppendTokens(cache, id, Names(0, 70))));
  const std::string name = "sequence " + std::to_string(id.value);
  RopeShift shift;
  shift.rope.rotary_dim = 32;
  const auto remove = [&](int64_t begin, int64_t end) {
    return cache.Remove(id, begin, end, std::span<const RopeShift>(&shift, 1));
  };
  EXPECT_TRUE(Fails(remove(-1, 2), StatusCode::kOutOfRange, {name, "-1"}));
  EXPECT_TRUE(Fails(remove(3, 2), StatusCode::kOutOfRange, {name, "[3, 2)"}));
  EXPECT_TRUE(Fails(remove(3, 71), StatusCode::kOutOfRange, {name, "71", "70"}));
  shift.first_feature = 1;
  EXPECT_TRUE(Fails(remove(0, 1), StatusCode::kInvalidArgument, {name, "32 features from 1", "32"}));
  shift.first_feature = 0;
  shift.rope.scaling = RopeScaling::kDynamicNtk;
  EXPECT_TRUE(Fails(remove(0, 1), StatusCode::kUnsupported, {name, "dynamic"}));
  shift.rope.scaling = RopeScaling::kNone;
  shift.rope.base = -1;
  EXPECT_TRUE(Fails(remove(0, 1), StatusCode::kInvalidArgument));
  shift.rope.base = 10000;
  // One page short of the copies.
  const SequenceId fork = *cache.Fork(id);
  EXPECT_TRUE(Fails(remove(3, 4), StatusCode::kResourceExhausted, {name, "5 shared pages", "0 are free"}));
  EXPECT_EQ(cache.SequenceUsage(id)->shared_pages, 5);
  EXPECT_TRUE(Attends(cache, id, Names(0, 70)));
  EXPECT_TRUE(Attends(cache, fork, Names(0, 70)));
  EXPECT_TRUE(Succeeds(remove(60, 70)));  // the end needs none
  EXPECT_TRUE(Attends(cache, id, Names(0, 60)));

  spec.values_in_keys = true;
  KVCache latent = MakeCache(spec);
  const SequenceId one = NewSequence(latent);
  ASSERT_TRUE(Succeeds(AppendTokens(latent, one, Names(0, 20))));
  shift.rope.rotary_dim = 16;
  shift.first_feature = 15;
  EXPECT_TRUE(Fails(latent.Remove(one, 0, 1, std::span<const RopeShift>(&shift, 1)), StatusCode::kUnsupported,
                    {"from 15", "16"}));
  shift.first_feature = 16;
  EXPECT_TRUE(Succeeds(latent.Remove(one, 0, 1, std::span<const RopeShift>(&shift, 1))));
}

}  // namespace
}  // namespace headlane::internal
