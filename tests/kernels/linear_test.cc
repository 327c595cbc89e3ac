// linear: each output one fma chain over k, whole or in parts that are stored and continued.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/compare.h"
#include "kernels/kernel_api.h"
#include "reference/canonical_ops.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

void CheckLinear(const TargetInfo& target, int64_t rows, int64_t k_len, int64_t num_features, int64_t cut,
                 uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << target.name << " rows " << rows << " k " << k_len << " features " << num_features
                                    << " cut " << cut);
  Random random(seed);
  const int64_t tiles = internal::CeilDiv(num_features, 16);
  const int64_t tile_stride = k_len * 16 + 16 * random.Int(0, 1);
  const int64_t x_pitch = k_len + random.Int(0, 3);
  const int64_t y_pitch = num_features + random.Int(0, 3);
  const std::vector<float> weights = random.Floats(static_cast<size_t>(num_features * k_len));
  const GuardedFloats x(static_cast<size_t>((rows - 1) * x_pitch + k_len));
  for (int64_t r = 0; r < rows; ++r) random.Fill(x.data() + r * x_pitch, static_cast<size_t>(k_len));
  const GuardedFloats w(static_cast<size_t>((tiles - 1) * tile_stride + k_len * 16));
  for (int64_t f = 0; f < tiles * 16; ++f) {
    for (int64_t k = 0; k < k_len; ++k) {
      w[f / 16 * tile_stride + k * 16 + f % 16] = f < num_features ? weights[static_cast<size_t>(f * k_len + k)] : 0.0f;
    }
  }
  const GuardedFloats y(static_cast<size_t>((rows - 1) * y_pitch + num_features));

  const auto run = [&](int64_t begin, int64_t end, bool accumulate) {
    internal::ActiveKernels().linear_f32({x.data() + begin, x_pitch, rows, end - begin, w.data() + begin * 16,
                                          tile_stride, tiles, accumulate, y.data(), y_pitch, num_features});
  };
  run(0, cut, false);
  if (cut < k_len) run(cut, k_len, true);

  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> expected(static_cast<size_t>(num_features));
    for (int64_t f = 0; f < num_features; ++f) {
      expected[static_cast<size_t>(f)] =
          reference::CanonicalLinear(x.data() + r * x_pitch, weights.data() + f * k_len, k_len);
    }
    ASSERT_TRUE(
        Matches(target, expected.data(), y.data() + r * y_pitch, expected.size(), 1e-6 * static_cast<double>(k_len)))
        << "row " << r;
    for (int64_t f = num_features; r + 1 < rows && f < y_pitch; ++f)
      ASSERT_TRUE(std::isnan(y[r * y_pitch + f])) << "between rows";
  }
}

TEST(LinearTest, OddShapesWholeAndInParts) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13, 33}) {
      for (int64_t k_len : {1, 3, 16, 65}) {
        for (int64_t features : {1, 5, 16, 17, 48, 61, 127, 160}) {
          for (int64_t cut : {k_len, (k_len + 1) / 2}) {
            CheckLinear(target, rows, k_len, features, cut, static_cast<uint64_t>(rows * 1000 + k_len * 10 + features));
          }
        }
      }
    }
  }
}

TEST(LinearTest, LongRows) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (int64_t rows : {1, 6, 32}) CheckLinear(target, rows, 576, 192, 256, static_cast<uint64_t>(rows));
  }
}

}  // namespace
}  // namespace headlane::testing
