// pack_k and pack_v: rows to tiles, for any strides, alignment and range of slots.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <vector>

#include "kernels/kernel_api.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

struct Layout {
  int64_t dim;
  int64_t num_keys;
  int64_t slot_begin;
  bool dense_dims;  // dim_stride 1
  bool descending;  // negative stride between keys
};

// Rows in guarded memory, so that a vector loaded over a row's end is seen.
struct Rows {
  Rows(const Layout& layout, Random& random)
      : dim_stride(layout.dense_dims ? 1 : 2),
        row_stride((layout.dim * dim_stride + random.Int(0, 3)) * (layout.descending ? -1 : 1)),
        memory(static_cast<size_t>(std::abs(row_stride) * (layout.num_keys - 1) + (layout.dim - 1) * dim_stride + 1)) {
    first = memory.data() + (layout.descending ? -row_stride * (layout.num_keys - 1) : 0);
    for (int64_t key = 0; key < layout.num_keys; ++key) {
      for (int64_t d = 0; d < layout.dim; ++d) first[key * row_stride + d * dim_stride] = random.Float();
    }
  }
  float at(int64_t key, int64_t d) const { return first[key * row_stride + d * dim_stride]; }
  float& at(int64_t key, int64_t d) { return first[key * row_stride + d * dim_stride]; }

  int64_t dim_stride;
  int64_t row_stride;
  GuardedFloats memory;
  float* first;
};

void CheckPackK(const Layout& layout, Random& random) {
  const Rows rows(layout, random);
  const GuardedFloats tile(static_cast<size_t>(layout.dim * 16));
  internal::ActiveKernels().kv[0].pack_k({rows.first, DType::kF32, rows.row_stride, rows.dim_stride, layout.dim, layout.num_keys,
                                           layout.slot_begin, tile.data(), nullptr});
  const GuardedFloats untouched(1);
  for (int64_t d = 0; d < layout.dim; ++d) {
    for (int64_t slot = 0; slot < 16; ++slot) {
      const int64_t key = slot - layout.slot_begin;
      const float expected = key >= 0 && key < layout.num_keys ? rows.at(key, d) : untouched[0];
      ASSERT_TRUE(SameBits(expected, tile[d * 16 + slot])) << "feature " << d << " slot " << slot;
    }
  }
}

void CheckPackV(const Layout& layout, Random& random, float special) {
  Rows rows(layout, random);
  if (special != 0.0f) rows.at(random.Int(0, layout.num_keys - 1), random.Int(0, layout.dim - 1)) = special;
  const int64_t stripes = internal::CeilDiv(layout.dim, 16);
  const GuardedFloats tile(static_cast<size_t>(stripes * 256));
  bool non_finite = false;
  internal::ActiveKernels().kv[0].pack_v({rows.first, DType::kF32, rows.row_stride, rows.dim_stride, layout.dim, layout.num_keys,
                                           layout.slot_begin, tile.data(), &non_finite});
  EXPECT_EQ(non_finite, special != 0.0f && !(special - special == 0.0f));
  const GuardedFloats untouched(1);
  for (int64_t d = 0; d < stripes * 16; ++d) {
    for (int64_t slot = 0; slot < 16; ++slot) {
      const int64_t key = slot - layout.slot_begin;
      const bool written = key >= 0 && key < layout.num_keys;
      const float expected = !written ? untouched[0] : d < layout.dim ? rows.at(key, d) : 0.0f;
      ASSERT_TRUE(SameBits(expected, tile[d / 16 * 256 + slot * 16 + d % 16])) << "feature " << d << " slot " << slot;
    }
  }
}

TEST(PackTest, AnySlotsStridesAndDims) {
  Random random(7);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (int64_t dim : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 46, 64, 80, 129}) {
      for (int64_t num_keys = 1; num_keys <= 16; ++num_keys) {
        for (int64_t slot_begin = 0; slot_begin + num_keys <= 16; slot_begin += 1 + random.Int(0, 4)) {
          const Layout layout{dim, num_keys, slot_begin, !random.OneIn(4), random.OneIn(4)};
          SCOPED_TRACE(::testing::Message()
                       << target.name << " dim " << dim << " keys " << num_keys << " slot " << slot_begin << " dense "
                       << layout.dense_dims << " descending " << layout.descending);
          CheckPackK(layout, random);
          CheckPackV(layout, random, 0.0f);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(PackTest, TellsWhetherAValueIsNotFinite) {
  Random random(8);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    for (float special :
         {kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max(), 1e-45f, -0.0f}) {
      for (int64_t dim : {1, 5, 16, 33}) {
        for (int64_t num_keys : {1, 3, 16}) CheckPackV({dim, num_keys, 0, !random.OneIn(3), false}, random, special);
      }
    }
  }
}

}  // namespace
}  // namespace headlane::testing
