// Removal from the middle: what is left moves down with its bytes, keys turn with their positions, nobody else notices.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "headlane/kv_cache.h"
#include "headlane/ops.h"
#include "kv/attend.h"
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

// Half a unit in the last place, as a part of the number, or of the row's or group's largest where they share a scale.
float StepOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 1e-6f;
    case DType::kF16:
      return 0x1p-11f;
    case DType::kBF16:
    case DType::kI8:
      return 0x1p-8f;
    case DType::kF8E4M3:
      return 0x1p-4f;
    case DType::kI4:
      return 0x1p-3f;
  }
  return 0;
}

// F37: 12 tokens, 2 .. 5 dropped, the rest moved by -4; then 20 removals of one; against the same raw keys rotated at
// their new positions. Whole and partial rotation, both pairings, at an offset.
TEST(KVRemove, KeysTurnToTheirNewPositions) {
  for (const DType dtype : kEveryDType) {
    for (const RopeStyle style : {RopeStyle::kAdjacent, RopeStyle::kHalfSplit}) {
      for (const auto& [dim, offset] : {std::pair<int64_t, int64_t>{32, 0}, {16, 0}, {8, 20}}) {
        for (const int64_t removals : {1, 20}) {
          RopeShift shift;
          shift.rope.rotary_dim = dim;
          shift.rope.style = style;
          shift.rope.scaling = RopeScaling::kYarn;  // with an attention factor, which must not be applied twice
          shift.rope.factor = 4;
          shift.rope.original_context = 64;
          shift.first_feature = offset;
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
          // The raw keys, rotated where they stand now.
          TokenRows raw(cache.spec(), 1, Without(Names(0, 50), 2, 2 + gone));
          std::vector<float> cos(static_cast<size_t>((50 - gone) * dim / 2)), sin(cos.size());
          ASSERT_TRUE(Succeeds(RopeAnglesFrom(shift.rope, 0, 50 - gone, cos.data(), sin.data())));
          TensorView k = TokensHeadsDim(raw.k.data(), raw.n, 2, 32);
          k.data = raw.k.data() + offset;
          k.dim -= offset;
          ASSERT_TRUE(Succeeds(ApplyRope(shift.rope, cos.data(), sin.data(), k)));
          // Half a unit in the last place of what is stored, once at first and once per removal; a whole one of int4,
          // whose largest positive number may lose as much. Quantised rows have their features' codes in common.
          const float step = StepOf(dtype);
          for (size_t i = 0; i < raw.k.size(); ++i) {
            const int64_t feature = static_cast<int64_t>(i) % 32;
            const bool turned = IsQuantized(dtype) || (feature >= offset && feature < offset + dim);
            const float bound = turned ? 8.0f * step * static_cast<float>(removals + 1) : 0;
            ASSERT_NEAR(after.k[i], raw.k[i], bound) << "element " << i;
          }
          EXPECT_EQ(after.v, TokenRows(cache.spec(), 1, Without(Names(0, 50), 2, 2 + gone), true).v);
          // Tokens before the removal are untouched.
          for (size_t i = 0; i < 2 * 2 * 32; ++i) ASSERT_EQ(BitsOf(after.k[i]), BitsOf(before.k[i]));
        }
      }
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
