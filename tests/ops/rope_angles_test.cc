// Rotary angles: every float is the one next to the true sine or cosine, at any position, with any scaling, alone or in
// a batch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "headlane/ops.h"
#include "ops/double_double.h"
#include "ops/helpers.h"
#include "ops/rope_frequencies.h"

namespace headlane {
namespace {

using internal::DoubleDouble;

// The specs of rope_vectors.inc, in the order and with the numbers of generate_rope_vectors.py.
enum SpecId {
  kPlain2,
  kPlain64,
  kPlain128,
  kPlain80,
  kLinear,
  kLlama3,
  kDivisors,
  kNtk,
  kNtk2,
  kDynamicNtk,
  kDynamicNtkShort,
  kYarn,
  kYarnNotTruncated,
  kYarnBetas,
  kYarnNarrow,
  kYarnAllSlow,
  kYarnAllFast,
  kLongRope,
  kNumSpecs,
};

RopeSpec MakeYarn(double factor, double original_context, int64_t rotary_dim = 64, double base = 10000.0) {
  RopeSpec spec;
  spec.rotary_dim = rotary_dim;
  spec.base = base;
  spec.scaling = RopeScaling::kYarn;
  spec.factor = factor;
  spec.original_context = original_context;
  return spec;
}

RopeSpec MakeDynamicNtk(int64_t context_length) {
  RopeSpec spec;
  spec.rotary_dim = 64;
  spec.scaling = RopeScaling::kDynamicNtk;
  spec.factor = 3.0;
  spec.original_context = 4096.0;
  return ResolveRope(spec, context_length).value();
}

RopeSpec MakeSpec(SpecId id, std::vector<float>* divisors) {
  RopeSpec spec;
  spec.rotary_dim = 64;
  switch (id) {
    case kPlain2:
      spec.rotary_dim = 2;
      break;
    case kPlain128:
      spec.rotary_dim = 128;
      spec.base = 500000.0;
      break;
    case kPlain80:
      spec.rotary_dim = 80;
      spec.base = 1e6;
      break;
    case kLinear:
      spec.scaling = RopeScaling::kLinear;
      spec.factor = 3.0;
      break;
    case kLlama3:
      spec.base = 500000.0;
      spec.scaling = RopeScaling::kLlama3;
      spec.factor = 32.0;
      break;
    case kNtk:
    case kNtk2:
      spec.rotary_dim = id == kNtk ? 128 : 2;
      spec.scaling = RopeScaling::kNtk;
      spec.factor = 4.0;
      break;
    case kDynamicNtk:
      return MakeDynamicNtk(10001);
    case kDynamicNtkShort:
      return MakeDynamicNtk(4096);
    case kYarn:
      return MakeYarn(4.0, 32768.0, 128, 1e6);
    case kYarnNotTruncated:
      spec = MakeYarn(32.0, 4096.0, 64, 150000.0);
      spec.yarn_truncate = false;
      break;
    case kYarnBetas:
      spec = MakeYarn(8.0, 2048.0);
      spec.beta_fast = 16.0;
      spec.beta_slow = 2.0;
      spec.attention_factor = 0.75;
      break;
    case kYarnNarrow:
      spec = MakeYarn(8.0, 2048.0);
      spec.beta_fast = 11.0;
      spec.beta_slow = 9.7;
      spec.yarn_truncate = false;
      break;
    case kYarnAllSlow:
      return MakeYarn(4.0, 4.0);
    case kYarnAllFast:
      return MakeYarn(4.0, 1e30);
    case kLongRope:
      spec.attention_factor = LongRopeMscale(32.0, 4096.0);
      [[fallthrough]];
    case kDivisors:
      for (int pair = 0; pair < 32; ++pair) divisors->push_back(1.0f + static_cast<float>(pair) * 0.625f);
      spec.frequency_divisors = divisors->data();
      break;
    default:
      break;
  }
  return spec;
}

struct RopeVector {
  SpecId spec;
  int64_t pair;
  int64_t position;
  uint32_t cos_bits;
  uint32_t sin_bits;
};
constexpr RopeVector kRopeVectors[] = {
#include "ops/rope_vectors.inc"
};

TEST(RopeAngles, EveryVectorIsCorrectlyRounded) {
  for (const RopeVector& v : kRopeVectors) {
    std::vector<float> divisors;
    const RopeSpec spec = MakeSpec(v.spec, &divisors);
    const int64_t num_pairs = spec.rotary_dim / 2;
    std::vector<float> cos(num_pairs), sin(num_pairs);
    ASSERT_TRUE(RopeAngles(spec, &v.position, 1, cos.data(), sin.data()).ok());
    EXPECT_EQ(Bits(cos[v.pair]), v.cos_bits) << "spec " << v.spec << " pair " << v.pair << " position " << v.position;
    EXPECT_EQ(Bits(sin[v.pair]), v.sin_bits) << "spec " << v.spec << " pair " << v.pair << " position " << v.position;
  }
}

TEST(RopeAngles, CountedPositionsAreListedPositions) {
  for (int id = 0; id < kNumSpecs; ++id) {
    std::vector<float> divisors;
    const RopeSpec spec = MakeSpec(static_cast<SpecId>(id), &divisors);
    const int64_t num_pairs = spec.rotary_dim / 2;
    for (const int64_t first : {int64_t{0}, int64_t{-3}, int64_t{131071}, (int64_t{1} << 24) - 2}) {
      constexpr int64_t kN = 5;
      const int64_t positions[kN] = {first, first + 1, first + 2, first + 3, first + 4};
      std::vector<float> cos(kN * num_pairs), sin(kN * num_pairs), counted_cos(cos), counted_sin(sin);
      ASSERT_TRUE(RopeAngles(spec, positions, kN, cos.data(), sin.data()).ok());
      ASSERT_TRUE(RopeAnglesFrom(spec, first, kN, counted_cos.data(), counted_sin.data()).ok());
      EXPECT_EQ(cos, counted_cos) << id;
      EXPECT_EQ(sin, counted_sin) << id;
    }
  }
}

TEST(RopeAngles, NeighbouringPositionsStayApart) {
  RopeSpec spec;
  spec.rotary_dim = 2;
  const int64_t positions[] = {256, 257, 131071};
  float cos[3], sin[3];
  ASSERT_TRUE(RopeAngles(spec, positions, 3, cos, sin).ok());
  EXPECT_NEAR(cos[0], -0.039790760, 1e-8);
  EXPECT_NEAR(cos[1], 0.819305529, 1e-7);
  EXPECT_NEAR(cos[2], std::cos(131071.0), 1e-7);
  // Also far out and for the pairs that turn slowest but for a few: a step of one position is seen.
  spec.rotary_dim = 128;
  const int64_t far[] = {131070, 131071, (1 << 24) - 1, 1 << 24};
  std::vector<float> far_cos(4 * 64), far_sin(4 * 64);
  ASSERT_TRUE(RopeAngles(spec, far, 4, far_cos.data(), far_sin.data()).ok());
  for (int pair = 0; pair < 64; ++pair) {
    for (int i = 0; i < 4; i += 2) {
      const int64_t a = i * 64 + pair, b = (i + 1) * 64 + pair;
      EXPECT_TRUE(far_cos[a] != far_cos[b] || far_sin[a] != far_sin[b]) << "pair " << pair << " position " << far[i];
    }
  }
}

TEST(RopeAngles, AloneAndInABatch) {
  for (int id = 0; id < kNumSpecs; ++id) {
    std::vector<float> divisors;
    const RopeSpec spec = MakeSpec(static_cast<SpecId>(id), &divisors);
    const int64_t num_pairs = spec.rotary_dim / 2;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < 33; ++i) positions.push_back(i * i * i * 113 - 5000);
    const int64_t n = static_cast<int64_t>(positions.size());
    std::vector<float> cos(n * num_pairs), sin(n * num_pairs), one_cos(num_pairs), one_sin(num_pairs);
    ASSERT_TRUE(RopeAngles(spec, positions.data(), n, cos.data(), sin.data()).ok());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(RopeAngles(spec, &positions[i], 1, one_cos.data(), one_sin.data()).ok());
      for (int64_t pair = 0; pair < num_pairs; ++pair) {
        EXPECT_EQ(Bits(one_cos[pair]), Bits(cos[i * num_pairs + pair]));
        EXPECT_EQ(Bits(one_sin[pair]), Bits(sin[i * num_pairs + pair]));
      }
    }
  }
}

TEST(RopeAngles, NothingToDo) {
  RopeSpec spec;
  spec.rotary_dim = 0;
  const int64_t position = 3;
  EXPECT_TRUE(RopeAngles(spec, &position, 1, nullptr, nullptr).ok());
  spec.rotary_dim = 8;
  EXPECT_TRUE(RopeAngles(spec, nullptr, 0, nullptr, nullptr).ok());
  EXPECT_TRUE(RopeAnglesFrom(spec, 5, 0, nullptr, nullptr).ok());
}

void ExpectError(StatusCode code, const char* part, const RopeSpec& spec, int64_t position = 1) {
  std::vector<float> cos(64), sin(64);
  const Status status = RopeAngles(spec, &position, 1, cos.data(), sin.data());
  EXPECT_EQ(status.code(), code) << part;
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message();
}

TEST(RopeAngles, Errors) {
  const double kNaN = std::numeric_limits<double>::quiet_NaN();
  const double kInf = std::numeric_limits<double>::infinity();
  RopeSpec good;
  good.rotary_dim = 8;
  RopeSpec spec = good;
  spec.rotary_dim = 7;
  ExpectError(StatusCode::kInvalidArgument, "rotary_dim is 7", spec);
  spec.rotary_dim = -2;
  ExpectError(StatusCode::kInvalidArgument, "rotary_dim is -2", spec);
  for (const double base : {0.0, -1.0, kNaN, kInf}) {
    spec = good;
    spec.base = base;
    ExpectError(StatusCode::kInvalidArgument, "base", spec);
  }
  spec = good;
  spec.scaling = RopeScaling::kLinear;
  spec.factor = 0.0;
  ExpectError(StatusCode::kInvalidArgument, "factor is 0", spec);
  spec.scaling = static_cast<RopeScaling>(17);
  ExpectError(StatusCode::kInvalidArgument, "scaling 17", spec);
  spec = good;
  spec.style = static_cast<RopeStyle>(-1);
  ExpectError(StatusCode::kInvalidArgument, "style -1", spec);
  spec = good;
  spec.scaling = RopeScaling::kLlama3;
  spec.original_context = kNaN;
  ExpectError(StatusCode::kInvalidArgument, "original_context", spec);
  spec.original_context = 8192.0;
  spec.low_frequency_factor = 4.0;
  ExpectError(StatusCode::kInvalidArgument, "low_frequency_factor 4 is not below high_frequency_factor 4", spec);
  const float divisors[] = {1.0f, 1.0f, 0.0f, 1.0f};
  spec = good;
  spec.frequency_divisors = divisors;
  ExpectError(StatusCode::kInvalidArgument, "divisor 2", spec);
  ExpectError(StatusCode::kOutOfRange, "position 9223372036854775807", good, std::numeric_limits<int64_t>::max());
  ExpectError(StatusCode::kOutOfRange, "position -9223372036854775808", good, std::numeric_limits<int64_t>::min());
  spec = good;
  spec.base = 1e-12;  // frequencies above 1
  ExpectError(StatusCode::kOutOfRange, "pair 3", spec, int64_t{1} << 24);
  float cos[4], sin[4];
  const int64_t position = 1;
  EXPECT_EQ(RopeAngles(good, &position, -1, cos, sin).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeAngles(good, nullptr, 1, cos, sin).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeAngles(good, &position, 1, nullptr, sin).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeAnglesFrom(good, 0, -1, cos, sin).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeAnglesFrom(good, 0, 1, cos, nullptr).code(), StatusCode::kInvalidArgument);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kLast = int64_t{1} << 53;
  EXPECT_EQ(RopeAnglesFrom(good, kMax, 1, cos, sin).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(RopeAnglesFrom(good, -kMax - 1, 1, cos, sin).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(RopeAnglesFrom(good, 0, kMax, cos, sin).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(RopeAnglesFrom(good, kLast, 2, cos, sin).code(), StatusCode::kOutOfRange);
  spec = good;
  spec.scaling = RopeScaling::kLinear;
  spec.factor = 1e10;
  EXPECT_TRUE(RopeAnglesFrom(spec, kLast, 1, cos, sin).ok());
}

TEST(RopeFrequencies, AreConsistentBetweenFreshPowersAndProducts) {
  // Pair 32 starts from a fresh power, pairs 1 .. 31 and 33 .. from products: base^(-2j/d) squared is the frequency of
  // pair 2j.
  RopeSpec spec;
  spec.rotary_dim = 256;
  spec.base = 500000.0;
  internal::RopeFrequencies frequencies(spec);
  std::vector<DoubleDouble> f;
  for (int pair = 0; pair < 128; ++pair) f.push_back(frequencies.Next());
  EXPECT_EQ(f[0].hi, 1.0);
  EXPECT_EQ(f[0].lo, 0.0);
  for (int pair = 0; pair < 64; ++pair) {
    const DoubleDouble square = Multiply(f[pair], f[pair]);
    const DoubleDouble difference = Add(square, Negate(f[2 * pair]));
    EXPECT_LE(std::fabs(difference.hi), 0x1p-95 * square.hi) << pair;
  }
}

}  // namespace
}  // namespace headlane
