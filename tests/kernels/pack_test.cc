// pack_k, pack_v and the widening of tiles, k_to_v_tile: rows of every type to tiles of every type, for any strides,
// alignment and range of slots, against plain loops.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernel_api.h"
#include "kernels/tiles.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Layout {
  DType rows;
  DType tile;
  int64_t dim;
  int64_t num_keys;
  int64_t slot_begin;
  bool dense_dims;  // dim_stride 1
  bool descending;  // negative stride between keys
};

const internal::KvKernels& Kernels(DType dtype) { return internal::ActiveKernels().kv[static_cast<int>(dtype)]; }

// Rows in guarded memory, so that a vector loaded over a row's end is seen. Numbers that the type holds.
struct Rows {
  Rows(const Layout& layout, Random& random, float size = 1.0f)
      : dtype(layout.rows),
        dim(layout.dim),
        dim_stride(layout.dense_dims ? 1 : 2),
        row_stride((layout.dim * dim_stride + random.Int(0, 3)) * (layout.descending ? -1 : 1)),
        memory(static_cast<size_t>((std::abs(row_stride) * (layout.num_keys - 1) + (layout.dim - 1) * dim_stride + 1) *
                                   DTypeBytes(dtype))),
        first(layout.descending ? -row_stride * (layout.num_keys - 1) : 0),
        values(static_cast<size_t>(layout.num_keys * layout.dim)) {
    for (int64_t key = 0; key < layout.num_keys; ++key) {
      for (int64_t d = 0; d < dim; ++d) Set(key, d, random.Float() * size);
    }
  }
  void Set(int64_t key, int64_t d, float x) {
    StoreElement(dtype, memory.data(), first + key * row_stride + d * dim_stride, x);
    values[static_cast<size_t>(key * dim + d)] = Rounded(dtype, x);
  }
  float at(int64_t key, int64_t d) const { return values[static_cast<size_t>(key * dim + d)]; }
  const void* begin() const { return memory.data() + first * DTypeBytes(dtype); }

  DType dtype;
  int64_t dim;
  int64_t dim_stride;
  int64_t row_stride;
  GuardedBuffer memory;
  int64_t first;
  std::vector<float> values;
};

internal::PackTileArgs Args(const Layout& layout, const Rows& rows, void* tile, bool* non_finite) {
  internal::PackTileArgs args{};
  args.rows = rows.begin();
  args.rows_dtype = layout.rows;
  args.row_stride = rows.row_stride;
  args.dim_stride = rows.dim_stride;
  args.dim = layout.dim;
  args.num_keys = layout.num_keys;
  args.slot_begin = layout.slot_begin;
  args.tile = tile;
  args.non_finite = non_finite;
  return args;
}

uint32_t Bits(DType dtype, float x) {
  uint32_t memory = 0;
  StoreElement(dtype, &memory, 0, x);
  return ElementBits(dtype, &memory, 0);
}
uint32_t Untouched(DType dtype) { return dtype == DType::kF32 ? 0xFFFFFFFFu : 0xFFFFu; }

void CheckPackK(const Layout& layout, Random& random) {
  const Rows rows(layout, random);
  const int64_t elements = KElements(layout.tile, layout.dim);
  const GuardedBuffer tile(static_cast<size_t>((elements * DTypeBytes(layout.tile) + 63) / 64 * 64));
  Kernels(layout.tile).pack_k(Args(layout, rows, tile.data(), nullptr));
  for (int64_t slot = 0; slot < 16; ++slot) {
    const int64_t key = slot - layout.slot_begin;
    const bool written = key >= 0 && key < layout.num_keys;
    for (int64_t d = 0; d < layout.dim; ++d) {
      ASSERT_EQ(written ? Bits(layout.tile, rows.at(key, d)) : Untouched(layout.tile),
                ElementBits(layout.tile, tile.data(), KIndex(layout.tile, d, slot)))
          << "feature " << d << " slot " << slot;
    }
    if (elements / 16 > layout.dim) {
      ASSERT_EQ(written ? 0 : 0xFFFFu, ElementBits(layout.tile, tile.data(), KIndex(layout.tile, layout.dim, slot)))
          << "partner of the odd last feature, slot " << slot;
    }
  }
}

// `special` goes into one place; `tainted`: whether the tile then holds something that is not finite.
void CheckPackV(const Layout& layout, Random& random, float special, bool tainted) {
  Rows rows(layout, random);
  if (special != 0.0f) rows.Set(random.Int(0, layout.num_keys - 1), random.Int(0, layout.dim - 1), special);
  const GuardedBuffer tile(static_cast<size_t>(VElements(layout.dim) * DTypeBytes(layout.tile)));
  bool non_finite = !tainted;
  Kernels(layout.tile).pack_v(Args(layout, rows, tile.data(), &non_finite));
  EXPECT_EQ(non_finite, tainted) << "of " << special;
  for (int64_t d = 0; d < VElements(layout.dim) / 16; ++d) {
    for (int64_t slot = 0; slot < 16; ++slot) {
      const int64_t key = slot - layout.slot_begin;
      const bool written = key >= 0 && key < layout.num_keys;
      const uint32_t expected = !written         ? Untouched(layout.tile)
                                : d < layout.dim ? Bits(layout.tile, rows.at(key, d))
                                                 : 0u;
      ASSERT_EQ(expected, ElementBits(layout.tile, tile.data(), VIndex(layout.tile, d, slot)))
          << "feature " << d << " slot " << slot;
    }
  }
}

TEST(PackTest, AnySlotsStridesDimsAndTypes) {
  Random random(7);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType rows : kAllDTypes) {
      for (DType tile : kAllDTypes) {
        for (int64_t dim : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 46, 64, 80, 129}) {
          for (int64_t num_keys = 1; num_keys <= 16; ++num_keys) {
            for (int64_t slot_begin = 0; slot_begin + num_keys <= 16; slot_begin += 1 + random.Int(0, 4)) {
              const Layout layout{rows, tile, dim, num_keys, slot_begin, !random.OneIn(4), random.OneIn(4)};
              SCOPED_TRACE(::testing::Message()
                           << target.name << " " << DTypeName(rows) << " to " << DTypeName(tile) << " dim " << dim
                           << " keys " << num_keys << " slot " << slot_begin << " dense " << layout.dense_dims
                           << " descending " << layout.descending);
              CheckPackK(layout, random);
              CheckPackV(layout, random, 0.0f, false);
              if (::testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST(PackTest, TellsWhetherAValueThatWasStoredIsNotFinite) {
  Random random(8);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType rows : kAllDTypes) {
      for (DType tile : kAllDTypes) {
        SCOPED_TRACE(::testing::Message() << target.name << " " << DTypeName(rows) << " to " << DTypeName(tile));
        // 65520 is the first that rounds to f16's infinity; 0x1.FEFFp127 the last that bf16 rounds down.
        for (float special : {kInf, -kInf, kNaN, std::numeric_limits<float>::max(), -65520.0f, 65519.0f, 65504.0f,
                              0x1.FEFEp127f, -0x1.FFp127f, 1e-45f, -0.0f}) {
          const float stored = Rounded(tile, Rounded(rows, special));
          const bool tainted = !(stored - stored == 0.0f);
          for (int64_t dim : {1, 5, 16, 33}) {
            for (int64_t num_keys : {1, 2, 3, 16}) {
              CheckPackV({rows, tile, dim, num_keys, 0, !random.OneIn(3), false}, random, special, tainted);
              if (::testing::Test::HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

// Through the vectors as through single elements: a tile of 16 keys and the same rows one by one have the same bits.
TEST(PackTest, RoundsInVectorsAsOneByOne) {
  Random random(9);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      for (int64_t round = 0; round < 200; ++round) {
        const Layout layout{DType::kF32, dtype, 64, 16, 0, true, false};
        Rows rows(layout, random);
        for (int64_t key = 0; key < 16; ++key) {
          for (int64_t d = 0; d < 64; ++d) {
            rows.Set(key, d, std::bit_cast<float>(static_cast<uint32_t>(random.Next())));
            // Ties between neighbours, and f16's denormals.
            if (random.OneIn(2)) rows.Set(key, d, static_cast<float>(random.Int(-4096, 4096)) * 0x1p-25f);
            if (random.OneIn(4)) rows.Set(key, d, static_cast<float>(random.Int(0, 8191)) * 0x1p-3f);
          }
        }
        for (bool keys : {true, false}) {
          const GuardedBuffer tile(2048);
          const auto pack = keys ? Kernels(dtype).pack_k : Kernels(dtype).pack_v;
          bool non_finite = false;
          pack(Args(layout, rows, tile.data(), &non_finite));
          for (int64_t key = 0; key < 16; ++key) {
            for (int64_t d = 0; d < 64; ++d) {
              const int64_t index = keys ? KIndex(dtype, d, key) : VIndex(dtype, d, key);
              ASSERT_EQ(Bits(dtype, rows.at(key, d)), ElementBits(dtype, tile.data(), index))
                  << target.name << " " << DTypeName(dtype) << std::hexfloat << " of " << rows.at(key, d);
            }
          }
        }
      }
    }
  }
}

TEST(WidenTest, EveryCodeInEveryPlaceAndOddDims) {
  Random random(10);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    EXPECT_EQ(Kernels(DType::kF32).widen_k, nullptr);
    EXPECT_EQ(Kernels(DType::kF32).widen_v, nullptr);
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      uint32_t code = 0;
      for (int64_t dim : {1, 2, 3, 15, 16, 17, 33, 64, 257, 4096}) {
        SCOPED_TRACE(::testing::Message() << target.name << " " << DTypeName(dtype) << " dim " << dim);
        for (bool keys : {true, false}) {
          const int64_t elements = keys ? KElements(dtype, dim) : VElements(dim);
          const int64_t steps = keys ? dim : elements / 16;
          const GuardedBuffer tile(static_cast<size_t>((elements * 2 + 63) / 64 * 64));
          for (int64_t i = 0; i < elements; ++i) {
            reinterpret_cast<uint16_t*>(tile.data())[i] = static_cast<uint16_t>(code++);
          }
          const GuardedFloats out(static_cast<size_t>(steps * 16));
          (keys ? Kernels(dtype).widen_k : Kernels(dtype).widen_v)({tile.data(), dim, out.data()});
          for (int64_t d = 0; d < (keys ? dim : steps); ++d) {
            for (int64_t slot = 0; slot < 16; ++slot) {
              const int64_t from = keys ? KIndex(dtype, d, slot) : VIndex(dtype, d, slot);
              const int64_t to = keys ? KIndex(DType::kF32, d, slot) : VIndex(DType::kF32, d, slot);
              const uint16_t bits = static_cast<uint16_t>(ElementBits(dtype, tile.data(), from));
              ASSERT_TRUE(SameBits(dtype == DType::kF16 ? internal::F16ToF32(bits) : internal::BF16ToF32(bits),
                                   out[static_cast<size_t>(to)], NaNs::kEqual))
                  << "feature " << d << " slot " << slot << " code " << bits;
            }
          }
        }
      }
    }
  }
}

TEST(KToVTileTest, FirstFeaturesOfKeysAsValues) {
  Random random(11);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (int64_t qk_dim : {1, 2, 7, 15, 16, 17, 31, 40, 64, 576}) {
      for (int64_t v_dim : {int64_t{1}, qk_dim / 2, qk_dim - 1, qk_dim, int64_t{512}}) {
        if (v_dim < 1 || v_dim > qk_dim) continue;
        for (float special : {0.0f, kNaN, -kInf}) {
          SCOPED_TRACE(::testing::Message() << target.name << " " << qk_dim << " / " << v_dim << " " << special);
          const GuardedFloats k(static_cast<size_t>(qk_dim * 16));
          random.Fill(k.data(), k.size());
          const int64_t feature = random.Int(0, qk_dim - 1);
          if (special != 0.0f) k[static_cast<size_t>(feature * 16 + random.Int(0, 15))] = special;
          const GuardedFloats v(static_cast<size_t>(VElements(v_dim)));
          bool non_finite = special == 0.0f;
          internal::ActiveKernels().k_to_v_tile({k.data(), v_dim, v.data(), &non_finite});
          EXPECT_EQ(non_finite, special != 0.0f && feature < v_dim);
          for (int64_t d = 0; d < VElements(v_dim) / 16; ++d) {
            for (int64_t slot = 0; slot < 16; ++slot) {
              ASSERT_TRUE(SameBits(d < v_dim ? k[static_cast<size_t>(d * 16 + slot)] : 0.0f,
                                   v[static_cast<size_t>(VIndex(DType::kF32, d, slot))]))
                  << "feature " << d << " slot " << slot;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headlane::testing
