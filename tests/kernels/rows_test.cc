// qk_rows and pv_rows: scores and weighted sums straight from rows of plain tensors, bit by bit against the scalar
// program, for every type, any alignment and stride, and parts of blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/compare.h"
#include "kernels/kernel_api.h"
#include "kernels/tiles.h"
#include "reference/canonical.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

struct Shape {
  DType dtype;
  int64_t rows;
  int64_t dim;
  int64_t num_keys;
  int64_t num_heads = 1;
};

// Rows against a guard page, with poison between them, and the numbers that they hold. The heads of a key are
// neighbours.
struct Rows {
  Rows(const Shape& shape, Random& random)
      : head_stride(shape.dim + random.Pick<int64_t>({0, 1, 3, 16, 512})),
        key_stride(shape.num_heads * head_stride + (shape.num_heads > 1 ? random.Pick<int64_t>({0, 5}) : 0)),
        memory(
            static_cast<size_t>(((shape.num_keys - 1) * key_stride + (shape.num_heads - 1) * head_stride + shape.dim) *
                                DTypeBytes(shape.dtype))),
        values(static_cast<size_t>(shape.num_heads)) {
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      std::vector<float>& of_head = values[static_cast<size_t>(head)];
      of_head = random.Floats(static_cast<size_t>(shape.num_keys * shape.dim));
      Round(shape.dtype, of_head);
      for (int64_t key = 0; key < shape.num_keys; ++key) {
        for (int64_t d = 0; d < shape.dim; ++d) {
          Set(shape, head, key, d, of_head[static_cast<size_t>(key * shape.dim + d)]);
        }
      }
    }
  }
  void Set(const Shape& shape, int64_t head, int64_t key, int64_t d, float x) {
    values[static_cast<size_t>(head)][static_cast<size_t>(key * shape.dim + d)] = x;
    StoreElement(shape.dtype, memory.data(), key * key_stride + head * head_stride + d, x);
  }
  int64_t head_stride;
  int64_t key_stride;
  GuardedBuffer memory;
  std::vector<std::vector<float>> values;  // [head][key][feature]
};

void CheckScores(const TargetInfo& target, const Shape& shape, Random& random) {
  SCOPED_TRACE(::testing::Message() << target.name << " " << DTypeName(shape.dtype) << " rows " << shape.rows << " dim "
                                    << shape.dim << " keys " << shape.num_keys << " heads " << shape.num_heads);
  const Rows keys(shape, random);
  const int64_t pitch = shape.dim + random.Int(0, 5);
  const int64_t all_rows = shape.num_heads * shape.rows;
  const GuardedFloats q(static_cast<size_t>((all_rows - 1) * pitch + shape.dim));
  for (int64_t r = 0; r < all_rows; ++r) random.Fill(q.data() + r * pitch, static_cast<size_t>(shape.dim));
  const GuardedFloats scratch(static_cast<size_t>(2 * 16 * shape.dim));
  // A part of a block begins at any tile.
  const int64_t first = random.Int(0, 8 - internal::CeilDiv(shape.num_keys, 16)) * 16;
  const GuardedFloats s(static_cast<size_t>(all_rows * internal::kBlockKeys));
  internal::ActiveKernels().qk_rows({.q = q.data(),
                                     .q_pitch = pitch,
                                     .rows = shape.rows,
                                     .qk_dim = shape.dim,
                                     .k = keys.memory.data(),
                                     .k_dtype = shape.dtype,
                                     .num_heads = shape.num_heads,
                                     .row_stride = keys.key_stride,
                                     .head_stride = keys.head_stride,
                                     .num_keys = shape.num_keys,
                                     .ahead = random.Int(0, 5),
                                     .next = random.OneIn(2) ? keys.memory.data() : nullptr,
                                     .scratch = scratch.data(),
                                     .s = s.data() + first});
  for (int64_t r = 0; r < all_rows; ++r) {
    const std::vector<float>& values = keys.values[static_cast<size_t>(r / shape.rows)];
    std::vector<float> expected(static_cast<size_t>(shape.num_keys));
    for (int64_t key = 0; key < shape.num_keys; ++key) {
      expected[static_cast<size_t>(key)] =
          reference::CanonicalDot(q.data() + r * pitch, values.data() + key * shape.dim, shape.dim);
    }
    const float* const actual = s.data() + r * internal::kBlockKeys;
    ASSERT_TRUE(
        Matches(target, expected.data(), actual + first, expected.size(), 1e-6 * static_cast<double>(shape.dim)))
        << "row " << r;
    for (int64_t i = 0; i < internal::kBlockKeys; ++i) {
      if (i >= first && i < first + internal::RoundUp(shape.num_keys, 16)) continue;
      ASSERT_TRUE(std::isnan(actual[i])) << "row " << r << ": lane " << i << " was written";
    }
  }
}

enum class Mode { kAllLive, kSomeHidden, kPoisoned };

void CheckValues(const TargetInfo& target, const Shape& shape, bool fresh, Mode mode, Random& random) {
  SCOPED_TRACE(::testing::Message() << target.name << " " << DTypeName(shape.dtype) << " rows " << shape.rows << " dim "
                                    << shape.dim << " keys " << shape.num_keys << " heads " << shape.num_heads
                                    << " mode " << static_cast<int>(mode));
  Rows rows(shape, random);
  const int64_t poisoned = random.Int(0, shape.num_keys - 1);
  if (mode == Mode::kPoisoned) {
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      for (int64_t d = 0; d < shape.dim; ++d) {
        rows.Set(shape, head, poisoned, d, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
  const int64_t pitch = shape.dim + 16 * random.Int(0, 1);
  const int64_t all_rows = shape.num_heads * shape.rows;
  const GuardedFloats w(static_cast<size_t>(all_rows * internal::kBlockKeys));
  const GuardedFloats c(static_cast<size_t>(all_rows));
  const GuardedFloats o(static_cast<size_t>(all_rows * pitch));
  const GuardedArray<uint16_t> live(static_cast<size_t>(all_rows * internal::kTilesPerBlock));
  std::vector<std::vector<float>> expected;
  for (int64_t r = 0; r < all_rows; ++r) {
    reference::BlockWeights row;
    row.any = true;
    row.c = fresh ? 1.0f : std::fabs(random.Float());
    c[r] = row.c;
    for (int64_t i = 0; i < internal::RoundUp(shape.num_keys, 16); ++i) {
      const bool exists = i < shape.num_keys;
      const bool is_live = exists && (mode == Mode::kAllLive || (i != poisoned && !random.OneIn(5)));
      const float weight = !is_live || random.OneIn(8) ? 0.0f : std::fabs(random.Float());
      w[r * internal::kBlockKeys + i] = weight;
      uint16_t& bits = live[r * internal::kTilesPerBlock + i / 16];
      if (i % 16 == 0) bits = 0;
      bits = static_cast<uint16_t>(bits | (is_live ? 1u : 0u) << (i % 16));
      if (!exists) continue;
      row.live[static_cast<size_t>(i)] = is_live;
      row.w[static_cast<size_t>(i)] = weight;
    }
    expected.push_back(fresh ? std::vector<float>(static_cast<size_t>(shape.dim), 0.0f)
                             : random.Floats(static_cast<size_t>(shape.dim), 4.0f));
    if (!fresh) std::copy(expected.back().begin(), expected.back().end(), o.data() + r * pitch);
    reference::CanonicalWeightedSum(row, rows.values[static_cast<size_t>(r / shape.rows)].data(), shape.dim,
                                    shape.num_keys, expected.back());
  }
  internal::ActiveKernels().pv_rows({.w = w.data(),
                                     .rows = shape.rows,
                                     .v = rows.memory.data(),
                                     .v_dtype = shape.dtype,
                                     .num_heads = shape.num_heads,
                                     .row_stride = rows.key_stride,
                                     .head_stride = rows.head_stride,
                                     .num_keys = shape.num_keys,
                                     .ahead = random.Int(0, 5),
                                     .next = random.OneIn(2) ? rows.memory.data() : nullptr,
                                     .v_dim = shape.dim,
                                     .c = fresh ? nullptr : c.data(),
                                     .o = o.data(),
                                     .o_pitch = pitch,
                                     .live = live.data()});
  for (int64_t r = 0; r < all_rows; ++r) {
    ASSERT_TRUE(Matches(target, expected[static_cast<size_t>(r)].data(), o.data() + r * pitch,
                        static_cast<size_t>(shape.dim), 1e-4, false))
        << "row " << r;
    for (int64_t j = shape.dim; j < pitch; ++j) ASSERT_TRUE(std::isnan(o[r * pitch + j])) << "written behind v_dim";
  }
}

TEST(RowsTest, ScoresOfAllShapesAndTypes) {
  Random random(41);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : kAllDTypes) {
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 8, 13}) {
        for (int64_t dim : {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 40, 64, 80, 128, 257}) {
          for (int64_t keys : {1, 3, 15, 16, 17, 31, 32, 33, 48, 100, 128}) {
            CheckScores(target, {dtype, rows, dim, keys, random.OneIn(2) ? 1 : random.Int(2, 5)}, random);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(RowsTest, WeightedSumsOfAllShapesAndTypes) {
  Random random(42);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : kAllDTypes) {
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 8, 13}) {
        for (int64_t dim : {16, 32, 48, 80, 128, 256}) {
          for (int64_t keys : {1, 15, 16, 17, 33, 128}) {
            for (Mode mode : {Mode::kAllLive, Mode::kSomeHidden, Mode::kPoisoned}) {
              CheckValues(target, {dtype, rows, dim, keys, random.OneIn(2) ? 1 : random.Int(2, 5)}, random.OneIn(2),
                          mode, random);
              if (::testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headlane::testing
