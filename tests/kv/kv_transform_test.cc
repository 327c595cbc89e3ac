// Keys that are normalised and turned on their way into a cache or into pages: the bits of the operators on the tensor
// followed by a plain write, whatever is stored; refusals before anything is written; removal from rotated caches.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "headlane/kv_cache.h"
#include "headlane/kv_pages.h"
#include "headlane/ops.h"
#include "kv/kv_test_util.h"
#include "operator/pages.h"
#include "support/random.h"

namespace headlane::internal {
namespace {

using testing::PagedMemory;
using testing::Pages;

// [tokens][heads][dim] of a tensor's type, dense or with the features apart.
class TypedRows {
 public:
  TypedRows(Random& random, DType dtype, int64_t tokens, int64_t heads, int64_t dim, int64_t dim_stride = 1)
      : bytes_(static_cast<size_t>(tokens * heads * dim * dim_stride * DTypeBytes(dtype)), 0xFF) {
    view_ = {bytes_.data(), dtype, 1, tokens, heads, dim, 0, heads * dim * dim_stride, dim * dim_stride, dim_stride};
    for (int64_t i = 0; i < tokens * heads * dim; ++i) {
      const float x = static_cast<float>(random.Int(-4000, 4000)) * 0x1p-10f;
      const uint16_t half = dtype == DType::kF16 ? F32ToF16(x) : F32ToBF16(x);
      std::memcpy(bytes_.data() + i * dim_stride * DTypeBytes(dtype),
                  dtype == DType::kF32 ? static_cast<const void*>(&x) : &half, static_cast<size_t>(DTypeBytes(dtype)));
    }
  }
  TypedRows(const TypedRows& other) : bytes_(other.bytes_), view_(other.view_) { view_.data = bytes_.data(); }
  TypedRows& operator=(const TypedRows&) = delete;
  const TensorView& view() const { return view_; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  std::vector<unsigned char> bytes_;
  TensorView view_;
};

// The same on the tensor, by the operators.
void ApplyToTensor(const KeyTransform& transform, const std::vector<int64_t>& positions, const TensorView& k) {
  if (transform.norm) {
    ASSERT_TRUE(Succeeds(RmsNormHeads(transform.norm_weight, transform.norm_epsilon, k)));
  }
  const int64_t pairs = transform.rope.rope.rotary_dim / 2;
  if (pairs == 0) return;
  std::vector<float> cos(positions.size() * static_cast<size_t>(pairs)), sin(cos.size());
  ASSERT_TRUE(Succeeds(RopeAngles(transform.rope.rope, positions.data(), static_cast<int64_t>(positions.size()),
                                  cos.data(), sin.data())));
  TensorView turned = k;
  turned.data = static_cast<char*>(k.data) + transform.rope.first_feature * k.dim_stride * DTypeBytes(k.dtype);
  turned.dim = k.dim - transform.rope.first_feature;
  ASSERT_TRUE(Succeeds(ApplyRope(transform.rope.rope, cos.data(), sin.data(), turned)));
}

KVCacheSpec Spec(DType stored, int64_t qk_dim = 48, bool rotate = false) {
  KVCacheSpec spec;
  spec.num_kv_heads = 2;
  spec.qk_dim = qk_dim;
  spec.v_dim = 24;
  spec.k_dtype = spec.v_dtype = stored;
  spec.page_tokens = 32;
  spec.max_tokens = 160;
  spec.rotate = rotate;
  return spec;
}

std::vector<uint32_t> BitsOfRows(const std::vector<float>& rows) {
  std::vector<uint32_t> bits(rows.size());
  std::memcpy(bits.data(), rows.data(), rows.size() * sizeof(float));
  return bits;
}

std::vector<uint32_t> ReadKeys(const KVCache& cache, SequenceId id, int64_t begin, int64_t n) {
  const KVCacheSpec& spec = cache.spec();
  std::vector<float> k(static_cast<size_t>(n * spec.num_kv_heads * spec.qk_dim));
  std::vector<float> v(static_cast<size_t>(n * spec.num_kv_heads * spec.v_dim));
  EXPECT_TRUE(Succeeds(cache.Read(id, 0, begin, TokensHeadsDim(k.data(), n, spec.num_kv_heads, spec.qk_dim),
                                  TokensHeadsDim(v.data(), n, spec.num_kv_heads, spec.v_dim))));
  return BitsOfRows(k);
}

struct Case {
  bool norm;
  bool weight;
  int64_t rotary_dim;
  int64_t first_feature;
  RopeStyle style;
};
constexpr Case kCases[] = {{false, false, 48, 0, RopeStyle::kAdjacent}, {false, false, 20, 8, RopeStyle::kHalfSplit},
                           {true, true, 48, 0, RopeStyle::kHalfSplit},  {true, false, 6, 42, RopeStyle::kAdjacent},
                           {true, true, 0, 0, RopeStyle::kAdjacent},    {false, false, 0, 0, RopeStyle::kAdjacent}};

// How a call says where its tokens stand.
enum class Where { kBySequence, kListed, kAngles };

TEST(KVTransform, HasTheBitsOfTheOperatorsAndAWrite) {
  Random random(1);
  std::vector<float> weight(48);
  for (float& w : weight) w = static_cast<float>(random.Int(1, 100)) * 0.02f;
  for (const DType stored : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kI4}) {
    for (const DType given : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const Case& c : kCases) {
        const bool rotate = random.OneIn(3);
        KeyTransform transform;
        transform.norm = c.norm;
        transform.norm_weight = c.weight ? weight.data() : nullptr;
        transform.rope.rope.rotary_dim = c.rotary_dim;
        transform.rope.rope.style = c.style;
        transform.rope.first_feature = c.first_feature;
        const Where where = random.Pick<Where>({Where::kBySequence, Where::kListed, Where::kAngles});
        const int64_t length = random.Int(0, 40), begin = random.Int(0, 5), n = random.Int(1, 60);
        std::vector<int64_t> positions;
        for (int64_t i = 0; i < n; ++i) {
          positions.push_back(where == Where::kListed ? random.Int(-3, 100000) : length + begin + i);
        }
        std::vector<float> cos(static_cast<size_t>(n * c.rotary_dim / 2) + 1), sin(cos.size());
        if (where == Where::kListed) transform.positions = positions.data();
        if (where == Where::kAngles) {
          ASSERT_TRUE(Succeeds(RopeAngles(transform.rope.rope, positions.data(), n, cos.data(), sin.data())));
          transform.cos = cos.data();
          transform.sin = sin.data();
        }

        const TypedRows before(random, given, length + begin, 2, 48);
        const TypedRows k(random, given, n, 2, 48, random.OneIn(3) ? 2 : 1);
        const TypedRows v(random, given, std::max(n, length + begin), 2, 24);
        const auto values = [&](int64_t count) {
          TensorView view = v.view();
          view.num_tokens = count;
          return view;
        };
        std::vector<uint32_t> read[2];
        for (const bool by_operators : {false, true}) {
          KVCache cache = MakeCache(Spec(stored, 48, rotate));
          const SequenceId id = NewSequence(cache);
          TensorView first = before.view();
          first.num_tokens = length;
          ASSERT_TRUE(Succeeds(cache.Append(id, first, values(length))));
          ASSERT_TRUE(Succeeds(cache.Reserve(id, begin + n)));
          first.num_tokens = begin;
          ASSERT_TRUE(Succeeds(cache.Write(id, 0, first, values(begin))));
          if (by_operators) {
            const TypedRows changed(k);
            ApplyToTensor(transform, positions, changed.view());
            ASSERT_TRUE(Succeeds(cache.Write(id, 0, changed.view(), values(n), begin)));
          } else {
            const std::vector<unsigned char> bytes = k.bytes();
            ASSERT_TRUE(Succeeds(cache.Write(id, 0, k.view(), values(n), transform, begin)));
            EXPECT_EQ(k.bytes(), bytes);
          }
          ASSERT_TRUE(Succeeds(cache.Commit(id, begin + n)));
          read[by_operators ? 1 : 0] = ReadKeys(cache, id, 0, length + begin + n);
        }
        EXPECT_EQ(read[0], read[1]) << DTypeName(given) << " to " << DTypeName(stored) << (rotate ? " rotated" : "");
      }
    }
  }
}

// A rotated cache holds what a plain one holds of rows that were rotated before.
TEST(KVTransform, RotatedRowsAreThoseOfHadamardHeads) {
  Random random(2);
  for (const DType stored : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kI4}) {
    for (const int64_t dim : {1, 31, 48, 128, 576}) {
      const TypedRows k(random, DType::kF32, 45, 2, dim), v(random, DType::kF32, 45, 2, 24);
      const TypedRows turned_k(k), turned_v(v);
      ASSERT_TRUE(Succeeds(HadamardHeads(turned_k.view())));
      ASSERT_TRUE(Succeeds(HadamardHeads(turned_v.view())));
      KVCache rotating = MakeCache(Spec(stored, dim, true)), plain = MakeCache(Spec(stored, dim));
      const SequenceId a = NewSequence(rotating), b = NewSequence(plain);
      ASSERT_TRUE(Succeeds(rotating.Append(a, k.view(), v.view())));
      ASSERT_TRUE(Succeeds(plain.Append(b, turned_k.view(), turned_v.view())));
      EXPECT_EQ(ReadKeys(rotating, a, 0, 45), ReadKeys(plain, b, 0, 45)) << DTypeName(stored) << " " << dim;
    }
  }
}

// Heads so wide that few rows are made at once; the rotated features of a latent behind its values.
TEST(KVTransform, WideHeads) {
  Random random(3);
  for (const auto& [dim, first, rotary_dim, latent] : {std::tuple<int64_t, int64_t, int64_t, bool>{576, 512, 64, true},
                                                       {4096, 0, 4096, false},
                                                       {3000, 0, 2998, false}}) {
    KVCacheSpec spec = Spec(DType::kF16, dim);
    spec.values_in_keys = latent;
    if (latent) spec.v_dim = 512;
    KeyTransform transform;
    transform.rope.rope.rotary_dim = rotary_dim;
    transform.rope.first_feature = first;
    const TypedRows k(random, DType::kF32, 35, 2, dim), v(random, DType::kF32, 35, 2, 24);
    const TypedRows changed(k);
    std::vector<int64_t> positions(35);
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i);
    ApplyToTensor(transform, positions, changed.view());
    KVCache a = MakeCache(spec), b = MakeCache(spec);
    const SequenceId of_a = NewSequence(a), of_b = NewSequence(b);
    ASSERT_TRUE(Succeeds(a.Append(of_a, k.view(), v.view(), transform)));
    ASSERT_TRUE(Succeeds(b.Append(of_b, changed.view(), v.view())));
    EXPECT_EQ(ReadKeys(a, of_a, 0, 35), ReadKeys(b, of_b, 0, 35)) << dim;
  }
}

TEST(KVTransform, PagesHoldWhatACacheHolds) {
  Random random(4);
  std::vector<float> weight(48, 1.25f);
  for (const Pages kind : {Pages::kTiles, Pages::kTokenRows, Pages::kHeadRows}) {
    for (const DType stored : {DType::kF32, DType::kBF16, DType::kI4}) {
      for (const bool rotate : {false, true}) {
        if (kind != Pages::kTiles && IsQuantized(stored)) continue;
        KVPagesSpec spec;
        spec.num_kv_heads = 2;
        spec.qk_dim = 48;
        spec.v_dim = 24;
        spec.k_dtype = spec.v_dtype = stored;
        spec.rotate = rotate;
        spec.page_tokens = 32;
        spec.num_pages = 4;
        PagedMemory store = MakePagedMemory(spec, kind, 1);
        KeyTransform transform;
        transform.norm = true;
        transform.norm_weight = weight.data();
        transform.rope.rope.rotary_dim = 32;
        const TypedRows k(random, DType::kF16, 70, 2, 48), v(random, DType::kF32, 70, 2, 24);
        KVCache cache = MakeCache(Spec(stored, 48, rotate));
        const SequenceId id = NewSequence(cache);
        ASSERT_TRUE(Succeeds(cache.Append(id, k.view(), v.view(), transform)));

        const std::vector<int32_t> ids = {2, 3, 0};
        std::vector<int64_t> slots, positions;
        for (int64_t i = 0; i < 70; ++i) {
          slots.push_back(ids[static_cast<size_t>(i / 32)] * 32 + i % 32);
          positions.push_back(i);
        }
        EXPECT_TRUE(Fails(store.pages->Write(0, k.view(), v.view(), slots, transform), StatusCode::kInvalidArgument,
                          {"positions", "70"}));
        transform.positions = positions.data();
        ASSERT_TRUE(Succeeds(store.pages->Write(0, k.view(), v.view(), slots, transform)));
        std::vector<float> read_k(70 * 2 * 48), read_v(70 * 2 * 24);
        ASSERT_TRUE(Succeeds(store.pages->Read(ids, 0, 0, TokensHeadsDim(read_k.data(), 70, 2, 48),
                                               TokensHeadsDim(read_v.data(), 70, 2, 24))));
        EXPECT_EQ(BitsOfRows(read_k), ReadKeys(cache, id, 0, 70)) << DTypeName(stored) << rotate;
      }
    }
  }
}

TEST(KVTransform, IsRefusedBeforeAnythingIsWritten) {
  Random random(5);
  const TypedRows k(random, DType::kF32, 4, 2, 48), v(random, DType::kF32, 4, 2, 24);
  KVCache cache = MakeCache(Spec(DType::kF32));
  const SequenceId id = NewSequence(cache);
  const auto refuses = [&](auto change, StatusCode code, const std::vector<std::string>& words) {
    KeyTransform transform;
    transform.rope.rope.rotary_dim = 48;
    change(transform);
    EXPECT_TRUE(Succeeds(cache.Reserve(id, 4)));
    EXPECT_TRUE(Fails(cache.Write(id, 0, k.view(), v.view(), transform), code, words));
    EXPECT_TRUE(Fails(cache.Commit(id, 1), StatusCode::kFailedPrecondition, {"not written"}));
    EXPECT_TRUE(Fails(cache.Append(id, k.view(), v.view(), transform), code, words));
    EXPECT_EQ(*cache.Length(id), 0);
  };
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  using T = KeyTransform;
  const std::vector<int64_t> far = {0, 1, (int64_t{1} << 53) + 1, 2}, fast = {0, int64_t{1} << 52, 1, 2};
  const std::vector<int64_t> low = {0, std::numeric_limits<int64_t>::min(), 1, 2};
  float angles[4 * 24] = {};
  refuses([](T& t) { t.rope.rope.rotary_dim = 47; }, kInvalid, {"rotary_dim", "47"});
  refuses([](T& t) { t.rope.rope.rotary_dim = -2; }, kInvalid, {"-2"});
  refuses([](T& t) { t.rope.first_feature = 1; }, kInvalid, {"48", "1"});
  refuses([](T& t) { t.rope.first_feature = -1; }, kInvalid, {"-1"});
  refuses([](T& t) { t.rope.first_feature = std::numeric_limits<int64_t>::max(); }, kInvalid, {"48"});
  refuses([](T& t) { t.rope.rope.scaling = RopeScaling::kDynamicNtk; }, kInvalid, {});
  refuses([&](T& t) { t.cos = angles; }, kInvalid, {"sin is null"});
  refuses([&](T& t) { t.sin = angles; }, kInvalid, {"cos is null"});
  refuses([&](T& t) { t.positions = far.data(); }, StatusCode::kOutOfRange, {"9007199254740993"});
  refuses([&](T& t) { t.positions = low.data(); }, StatusCode::kOutOfRange, {"-9223372036854775808"});
  refuses([&](T& t) { t.positions = fast.data(); }, StatusCode::kOutOfRange, {"4503599627370496"});
  refuses([](T& t) { t.norm = true, t.norm_epsilon = NAN; }, kInvalid, {"epsilon"});
  refuses([](T& t) { t.norm = true, t.norm_epsilon = -1; }, kInvalid, {"epsilon", "-1"});

  KVCacheSpec latent = Spec(DType::kF32);
  latent.values_in_keys = true;
  KVCache of_latent = MakeCache(latent);
  KeyTransform transform;
  transform.rope.rope.rotary_dim = 26;
  transform.rope.first_feature = 22;
  EXPECT_TRUE(Fails(of_latent.Append(NewSequence(of_latent), k.view(), {}, transform), kInvalid, {"22", "24"}));
  KVCacheSpec wide = Spec(DType::kF32, 4100);
  KVCache of_wide = MakeCache(wide);
  const TypedRows wide_k(random, DType::kF32, 4, 2, 4100);
  EXPECT_TRUE(Fails(of_wide.Append(NewSequence(of_wide), wide_k.view(), v.view(), transform), StatusCode::kUnsupported,
                    {"4100", "4096"}));
  wide.rotate = true;
  EXPECT_TRUE(Fails(KVCache::Create(wide).status(), StatusCode::kUnsupported, {"rotate", "4100", "4096"}));
  latent.rotate = true;
  EXPECT_TRUE(Fails(KVCache::Create(latent).status(), StatusCode::kUnsupported, {"rotate", "24", "48"}));
  latent.v_dim = 32;
  EXPECT_TRUE(Succeeds(KVCache::Create(latent).status()));
}

// Removal turns keys back although they are stored rotated, and leaves values as they are.
TEST(KVTransform, RemovalFromARotatedCache) {
  Random random(6);
  for (const bool latent : {false, true}) {
    KVCacheSpec spec = Spec(DType::kF32, 48, true);
    spec.values_in_keys = latent;
    if (latent) spec.v_dim = 32;
    KeyTransform transform;
    transform.rope.rope.rotary_dim = 16;
    transform.rope.first_feature = 32;
    const TypedRows k(random, DType::kF32, 60, 2, 48), v(random, DType::kF32, 60, 2, 24);
    KVCache cache = MakeCache(spec), direct = MakeCache(spec);
    const SequenceId id = NewSequence(cache), other = NewSequence(direct);
    ASSERT_TRUE(Succeeds(cache.Append(id, k.view(), v.view(), transform)));
    const std::vector<uint32_t> before = ReadKeys(cache, id, 0, 60);
    ASSERT_TRUE(Succeeds(cache.Remove(id, 10, 27, std::vector<RopeShift>{transform.rope})));
    TensorView part = k.view(), v_part = v.view();
    part.num_tokens = v_part.num_tokens = 10;
    ASSERT_TRUE(Succeeds(direct.Append(other, part, v_part, transform)));
    part = k.view();
    v_part = v.view();
    part.data = static_cast<float*>(part.data) + 27 * 96;
    v_part.data = static_cast<float*>(v_part.data) + 27 * 48;
    part.num_tokens = v_part.num_tokens = 33;
    ASSERT_TRUE(Succeeds(direct.Append(other, part, v_part, transform)));
    const std::vector<uint32_t> got = ReadKeys(cache, id, 0, 43), expected = ReadKeys(direct, other, 0, 43);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(std::bit_cast<float>(got[i]), std::bit_cast<float>(expected[i]), 1e-5f) << i;
      // Features that are values keep their bits.
      const bool is_value = latent && i % 48 < 32;
      EXPECT_TRUE(!is_value || got[i] == before[i < 10 * 96 ? i : i + 17 * 96]) << i;
    }
  }
}

}  // namespace
}  // namespace headlane::internal
