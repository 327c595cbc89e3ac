// pv: the weighted sum of one block, bit by bit against one fma per key in ascending order.
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
  int64_t v_dim;
  int64_t num_tiles;
};

enum class Mode {
  kFresh,   // o starts at 0
  kPlain,   // weights 0 where hidden, finite values everywhere
  kSelect,  // hidden keys hold NaN and infinities and are left out by their bit
};

void CheckValues(const TargetInfo& target, const Shape& shape, Mode mode, uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << target.name << " " << DTypeName(shape.dtype) << " rows " << shape.rows << " dim "
                                    << shape.v_dim << " tiles " << shape.num_tiles << " mode "
                                    << static_cast<int>(mode));
  Random random(seed);
  const int64_t num_keys = shape.num_tiles * 16;
  const int64_t stripes = internal::CeilDiv(shape.v_dim, 16);
  const int64_t pitch = (stripes + random.Int(0, 1)) * 16;
  std::vector<float> values = random.Floats(static_cast<size_t>(num_keys * shape.v_dim));
  const GuardedFloats w(static_cast<size_t>(shape.rows * internal::kBlockKeys));
  const GuardedFloats c(static_cast<size_t>(shape.rows));
  const GuardedFloats o(static_cast<size_t>(shape.rows * pitch));
  const GuardedArray<uint16_t> live(static_cast<size_t>(shape.rows * internal::kTilesPerBlock));

  // One key that no row sees holds garbage, when garbage is allowed.
  const int64_t poisoned = random.Int(0, num_keys - 1);
  if (mode == Mode::kSelect) {
    for (int64_t d = 0; d < shape.v_dim; ++d) {
      values[static_cast<size_t>(poisoned * shape.v_dim + d)] =
          random.Pick<float>({std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()});
    }
  }
  Round(shape.dtype, values);
  const Tiles tiles = Tiles::OfValues(shape.dtype, values, num_keys, shape.v_dim);

  std::vector<reference::BlockWeights> weights(static_cast<size_t>(shape.rows));
  std::vector<std::vector<float>> expected;
  for (int64_t r = 0; r < shape.rows; ++r) {
    reference::BlockWeights& row = weights[static_cast<size_t>(r)];
    row.any = true;
    row.c = mode == Mode::kFresh ? 1.0f : (random.OneIn(3) ? 1.0f : std::fabs(random.Float()));
    c[r] = row.c;
    for (int64_t i = 0; i < num_keys; ++i) {
      const bool is_live = i != poisoned && !random.OneIn(5);
      row.live[static_cast<size_t>(i)] = is_live;
      // Weights that underflowed to 0 stay live.
      row.w[static_cast<size_t>(i)] = !is_live || random.OneIn(8) ? 0.0f : std::fabs(random.Float());
      w[r * internal::kBlockKeys + i] = row.w[static_cast<size_t>(i)];
      uint16_t& bits = live[r * internal::kTilesPerBlock + i / 16];
      if (i % 16 == 0) bits = 0;
      bits = static_cast<uint16_t>(bits | (is_live ? 1u : 0u) << (i % 16));
    }
    expected.push_back(mode == Mode::kFresh ? std::vector<float>(static_cast<size_t>(shape.v_dim), 0.0f)
                                            : random.Floats(static_cast<size_t>(shape.v_dim), 4.0f));
    if (mode != Mode::kFresh) {
      std::fill_n(o.data() + r * pitch, stripes * 16, 0.0f);
      std::copy(expected.back().begin(), expected.back().end(), o.data() + r * pitch);
    }
    reference::CanonicalWeightedSum(row, values.data(), shape.v_dim, num_keys, expected.back());
  }

  internal::PvArgs args{};
  args.w = w.data();
  args.rows = shape.rows;
  args.v_tiles = tiles.pointers();
  args.num_tiles = shape.num_tiles;
  args.num_stripes = stripes;
  args.c = mode == Mode::kFresh ? nullptr : c.data();
  args.o = o.data();
  args.o_pitch = pitch;
  args.live = mode == Mode::kSelect ? live.data() : nullptr;
  args.stream = random.OneIn(2);
  internal::ActiveKernels().kv[static_cast<int>(shape.dtype)].pv(args);

  for (int64_t r = 0; r < shape.rows; ++r) {
    ASSERT_TRUE(Matches(target, expected[static_cast<size_t>(r)].data(), o.data() + r * pitch,
                        static_cast<size_t>(shape.v_dim), 1e-4, false))
        << "row " << r;
    for (int64_t j = stripes * 16; j < pitch; ++j)
      ASSERT_TRUE(std::isnan(o[r * pitch + j])) << "written behind the stripes";
  }
}

TEST(ValuesTest, EveryNumberOfRowsTilesAndOddDims) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : kAllDTypes) {
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 31, 64}) {
        for (int64_t dim : {1, 7, 16, 17, 33, 64}) {
          for (int64_t tiles : {1, 2, 3, 5, 8}) {
            for (Mode mode : {Mode::kFresh, Mode::kPlain, Mode::kSelect}) {
              CheckValues(target, {dtype, rows, dim, tiles}, mode,
                          static_cast<uint64_t>(rows * 1000 + dim * 10 + tiles));
            }
          }
        }
      }
    }
  }
}

TEST(ValuesTest, WideHeads) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : kAllDTypes) {
      for (int64_t dim : {80, 96, 128, 160, 256, 257, 512}) {
        for (int64_t rows : {1, 4, 6, 17}) {
          for (Mode mode : {Mode::kFresh, Mode::kPlain, Mode::kSelect})
            CheckValues(target, {dtype, rows, dim, 8}, mode, static_cast<uint64_t>(dim));
        }
      }
    }
  }
}

}  // namespace
}  // namespace headlane::testing
