// qk of every element type: scores of one block, bit by bit against one fma chain per key.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/compare.h"
#include "kernels/kernel_api.h"
#include "kernels/tiles.h"
#include "reference/canonical.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

struct Shape {
  DType dtype;
  int64_t rows;
  int64_t qk_dim;
  int64_t num_tiles;
};

void CheckScores(const TargetInfo& target, const Shape& shape, uint64_t seed, float special) {
  SCOPED_TRACE(::testing::Message() << target.name << " " << DTypeName(shape.dtype) << " rows " << shape.rows << " dim "
                                    << shape.qk_dim << " tiles " << shape.num_tiles);
  Random random(seed);
  const int64_t num_keys = shape.num_tiles * 16;
  std::vector<float> keys = random.Floats(static_cast<size_t>(num_keys * shape.qk_dim));
  if (special != 0.0f) keys[static_cast<size_t>(random.Int(0, num_keys * shape.qk_dim - 1))] = special;
  Round(shape.dtype, keys);
  const Tiles tiles = Tiles::OfKeys(shape.dtype, keys, num_keys, shape.qk_dim);
  // A pitch wider than the row: what lies between the rows is 0xFF and must not be used.
  const int64_t pitch = shape.qk_dim + random.Int(0, 5);
  const GuardedFloats q(static_cast<size_t>((shape.rows - 1) * pitch + shape.qk_dim));
  for (int64_t r = 0; r < shape.rows; ++r) random.Fill(q.data() + r * pitch, static_cast<size_t>(shape.qk_dim));
  const GuardedFloats s(static_cast<size_t>(shape.rows * internal::kBlockKeys));

  internal::QkArgs args{};
  args.q = q.data();
  args.q_pitch = pitch;
  args.rows = shape.rows;
  args.qk_dim = shape.qk_dim;
  args.k_tiles = tiles.pointers();
  args.num_tiles = shape.num_tiles;
  args.s = s.data();
  args.stream = random.OneIn(2);
  internal::ActiveKernels().kv[static_cast<int>(shape.dtype)].qk(args);

  // Targets without FMA round each product, in proportion to the largest factor.
  const double largest = std::isfinite(special) ? std::max(1.0, std::fabs(static_cast<double>(special))) : 1.0;
  const double tolerance = 1e-6 * static_cast<double>(shape.qk_dim) * largest;
  for (int64_t r = 0; r < shape.rows; ++r) {
    std::vector<float> expected(static_cast<size_t>(num_keys));
    for (int64_t key = 0; key < num_keys; ++key) {
      expected[static_cast<size_t>(key)] =
          reference::CanonicalDot(q.data() + r * pitch, keys.data() + key * shape.qk_dim, shape.qk_dim);
    }
    const float* actual = s.data() + r * internal::kBlockKeys;
    ASSERT_TRUE(Matches(target, expected.data(), actual, expected.size(), tolerance)) << "row " << r;
    for (int64_t key = num_keys; key < internal::kBlockKeys; ++key) {
      ASSERT_TRUE(std::isnan(actual[key])) << "row " << r << ": lane " << key << " behind the tiles was written";
    }
  }
}

TEST(ScoresTest, EveryNumberOfRowsTilesAndOddDims) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : kAllDTypes) {
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 31, 64}) {
        for (int64_t dim : {1, 2, 3, 7, 16, 33, 64}) {
          for (int64_t tiles = 1; tiles <= 8; ++tiles)
            CheckScores(target, {dtype, rows, dim, tiles}, static_cast<uint64_t>(rows * 1000 + dim * 10 + tiles), 0.0f);
        }
      }
    }
  }
}

TEST(ScoresTest, WideHeads) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : kAllDTypes) {
      for (int64_t dim : {80, 96, 128, 160, 192, 256, 257, 576}) {
        for (int64_t rows : {1, 4, 6, 17}) CheckScores(target, {dtype, rows, dim, 8}, static_cast<uint64_t>(dim), 0.0f);
      }
    }
  }
}

// A NaN or infinity in one key reaches the scores of that key only: lanes never mix.
TEST(ScoresTest, NonFiniteKeysStayInTheirLane) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (float special : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f}) {
      for (DType dtype : kAllDTypes) {
        for (int64_t rows : {1, 5, 16}) CheckScores(target, {dtype, rows, 24, 3}, static_cast<uint64_t>(rows), special);
      }
    }
  }
}

}  // namespace
}  // namespace headlane::testing
