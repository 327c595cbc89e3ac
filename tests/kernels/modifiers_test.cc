// scores: softcap, bias and ALiBi, one by one and together, bit by bit against the scalar program.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/compare.h"
#include "kernels/kernel_api.h"
#include "reference/canonical_math.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Modifiers {
  float softcap;
  bool bias;
  bool slopes;
};

void CheckModifiers(const TargetInfo& target, const Modifiers& modifiers, int64_t rows, int64_t num_tiles,
                    int64_t distance, Random& random) {
  SCOPED_TRACE(::testing::Message() << target.name << " cap " << modifiers.softcap << " bias " << modifiers.bias
                                    << " slopes " << modifiers.slopes << " rows " << rows << " tiles " << num_tiles
                                    << " distance " << distance);
  const int64_t num_keys = num_tiles * 16;
  const GuardedFloats s(static_cast<size_t>(rows * internal::kBlockKeys));
  const GuardedFloats bias(static_cast<size_t>((rows - 1) * internal::kBlockKeys + num_keys));
  const GuardedFloats slopes(static_cast<size_t>(rows));
  const GuardedArray<int64_t> row_offset(static_cast<size_t>(rows));
  const GuardedArray<int32_t> key_offset(static_cast<size_t>(num_keys));
  for (int64_t i = 0; i < num_keys; ++i) {
    // Far apart as well: a middle part may be missing from a sequence.
    key_offset[i] = static_cast<int32_t>(random.OneIn(8) ? random.Int(-2147483647 - 1, 2147483647) : i);
  }
  std::vector<float> expected(static_cast<size_t>(rows * num_keys));
  for (int64_t r = 0; r < rows; ++r) {
    row_offset[r] = distance + random.Int(-1000, 1000);
    slopes[r] = random.OneIn(6) ? 0.0f : random.Float();
    for (int64_t i = 0; i < num_keys; ++i) {
      float x = random.Float() * random.Pick<float>({1.0f, 1.0f, 100.0f, 1e-20f, 3e38f});
      if (random.OneIn(30)) x = random.Pick<float>({kNaN, kInf, -kInf, -0.0f});
      s[r * internal::kBlockKeys + i] = x;
      const float b = random.OneIn(30) ? -kInf : random.Float() * 3.0f;
      bias[r * internal::kBlockKeys + i] = b;
      if (modifiers.softcap > 0.0f) x = modifiers.softcap * reference::CanonicalTanh(x / modifiers.softcap);
      if (modifiers.bias) x = b == -kInf ? b : x + b;  // hidden, even where the score is NaN or infinite
      if (modifiers.slopes) x = std::fma(slopes[r], static_cast<float>(row_offset[r] + key_offset[i]), x);
      expected[static_cast<size_t>(r * num_keys + i)] = x;
    }
  }

  internal::ScoreArgs args{};
  args.s = s.data();
  args.rows = rows;
  args.num_tiles = num_tiles;
  args.softcap = modifiers.softcap;
  args.bias = modifiers.bias ? bias.data() : nullptr;
  args.slopes = modifiers.slopes ? slopes.data() : nullptr;
  args.row_offset = modifiers.slopes ? row_offset.data() : nullptr;
  args.key_offset = modifiers.slopes ? key_offset.data() : nullptr;
  internal::ActiveKernels().softmax.scores(args);

  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < num_keys; ++i) {
      const float x = expected[static_cast<size_t>(r * num_keys + i)];
      // Products with distances of up to 2^40 are rounded before the sum on targets without FMA.
      const double tolerance = 1e-5 + 1e-6 * std::fabs(static_cast<double>(slopes[r])) *
                                          std::fabs(static_cast<double>(row_offset[r] + key_offset[i]));
      ASSERT_TRUE(Matches(target, &x, s.data() + r * internal::kBlockKeys + i, 1, tolerance))
          << "row " << r << " key " << i;
    }
    for (int64_t i = num_keys; i < internal::kBlockKeys; ++i) {
      ASSERT_TRUE(std::isnan(s[r * internal::kBlockKeys + i])) << "row " << r << ": lane " << i << " was written";
    }
  }
}

TEST(ModifiersTest, AllCombinations) {
  Random random(21);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (float cap : {0.0f, 50.0f, 0.3f}) {
      for (bool bias : {false, true}) {
        for (bool slopes : {false, true}) {
          for (int64_t rows : {1, 3, 17}) {
            for (int64_t tiles : {1, 2, 7, 8}) {
              // 2^24 + 1 is the first integer without a float; 2^31 the first without an int32.
              for (int64_t distance : {int64_t{-131071}, (int64_t{1} << 24) + 1, (int64_t{1} << 31) - 500,
                                       -(int64_t{1} << 31), (int64_t{1} << 40) + 12345}) {
                CheckModifiers(target, {cap, bias, slopes}, rows, tiles, distance, random);
                if (::testing::Test::HasFatalFailure()) return;
                if (!slopes) break;
              }
            }
          }
        }
      }
    }
  }
}

// Distances that no float holds are rounded once and to even: through double or in two steps some of these differ.
TEST(ModifiersTest, DistancesAreRoundedOnce) {
  const int64_t big = int64_t{1} << 24;
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (int64_t offset :
         {big + 1, big + 2, big + 3, -big - 1, -big - 3, (int64_t{1} << 54) + (int64_t{1} << 30) + 1}) {
      alignas(64) float s[128] = {};
      const float slope = 1.0f;
      int32_t keys[16] = {};
      internal::ScoreArgs args{};
      args.s = s;
      args.rows = 1;
      args.num_tiles = 1;
      args.slopes = &slope;
      args.row_offset = &offset;
      args.key_offset = keys;
      internal::ActiveKernels().softmax.scores(args);
      for (int i = 0; i < 16; ++i) EXPECT_TRUE(SameBits(static_cast<float>(offset), s[i])) << target.name << offset;
    }
  }
}

}  // namespace
}  // namespace headlane::testing
