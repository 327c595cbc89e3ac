// Quantised tiles: what packing stores, code by code and scale by scale, against the scalar codecs of the reference;
// what loading makes of every code; and scores, weighted sums and widening, bit by bit those of f32 tiles that hold the
// same numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/quantized.h"
#include "base/tile_layout.h"
#include "kernels/kernel_api.h"
#include "kernels/quantized_tiles.h"
#include "kernels/tiles.h"
#include "reference/quantize.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

const internal::KvKernels& Kernels(DType dtype) { return internal::ActiveKernels().kv[static_cast<int>(dtype)]; }

size_t Size(int64_t n) { return static_cast<size_t>(n); }

internal::PackTileArgs PackArgs(const void* rows, DType rows_dtype, int64_t row_stride, int64_t dim, int64_t num_keys,
                                int64_t slot_begin, void* tile, bool* non_finite) {
  internal::PackTileArgs args{};
  args.rows = rows;
  args.rows_dtype = rows_dtype;
  args.row_stride = row_stride;
  args.dim_stride = 1;
  args.dim = dim;
  args.num_keys = num_keys;
  args.slot_begin = slot_begin;
  args.tile = tile;
  args.non_finite = non_finite;
  return args;
}

// Codes and scales of keys [slot_begin, slot_begin + num_keys) of a tile that was full of 0xFF, and nothing else in it.
void ExpectStored(DType dtype, bool is_k, const std::vector<float>& rows, int64_t dim, int64_t slot_begin,
                  const unsigned char* tile) {
  const int64_t num_keys = static_cast<int64_t>(rows.size()) / dim;
  std::vector<bool> written(16, false);
  for (int64_t key = 0; key < num_keys; ++key) {
    const int64_t slot = slot_begin + key;
    written[Size(slot)] = true;
    const reference::QuantizedRow expected = reference::Quantize(TypeOf(dtype), &rows[Size(key * dim)], dim);
    for (int64_t d = 0; d < dim; ++d) {
      ASSERT_EQ(expected.codes[Size(d)], CodeAt(dtype, is_k, tile, dim, d, slot))
          << "feature " << d << " slot " << slot << " of " << rows[Size(key * dim + d)] << " scale "
          << expected.scales[Size(d / expected.group)];
      ASSERT_TRUE(SameBits(expected.scales[Size(d / expected.group)], ScaleAt(dtype, is_k, tile, dim, d, slot)))
          << "scale of feature " << d << " slot " << slot;
    }
    if (is_k) continue;
    for (int64_t d = dim; d < (dim + 15) / 16 * 16; ++d) {
      ASSERT_EQ(0, CodeAt(dtype, is_k, tile, dim, d, slot)) << "padding " << d;
    }
  }
  for (int64_t slot = 0; slot < 16; ++slot) {
    if (written[Size(slot)]) continue;
    for (int64_t d = 0; d < dim; ++d) {
      ASSERT_TRUE(IsUntouched(dtype, is_k, tile, dim, d, slot)) << "feature " << d << " slot " << slot;
    }
  }
}

void CheckPacked(DType dtype, const std::vector<float>& rows, int64_t dim, int64_t slot_begin) {
  const int64_t num_keys = static_cast<int64_t>(rows.size()) / dim;
  const GuardedFloats memory(rows);
  const bool finite = std::all_of(rows.begin(), rows.end(), [](float x) { return std::isfinite(x); });
  for (const bool is_k : {true, false}) {
    SCOPED_TRACE(::testing::Message() << DTypeName(dtype) << (is_k ? " k" : " v") << " dim " << dim << " keys "
                                      << num_keys << " from " << slot_begin << " of " << rows[0]);
    const GuardedBuffer tile(Size(is_k ? internal::KTileBytes(dtype, dim) : internal::VTileBytes(dtype, dim)));
    bool non_finite = finite;
    const auto args = PackArgs(memory.data(), DType::kF32, dim, dim, num_keys, slot_begin, tile.data(), &non_finite);
    is_k ? Kernels(dtype).pack_k(args) : Kernels(dtype).pack_v(args);
    ExpectStored(dtype, is_k, rows, dim, slot_begin, tile.data());
    if (!is_k) {
      EXPECT_EQ(non_finite, !finite);
    }
  }
}

TEST(QuantizedPack, CodesAndScalesAreTheReferences) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    Random random(1);
    for (const DType dtype : kQuantizedDTypes) {
      for (const int64_t dim : {1, 3, 15, 16, 17, 31, 32, 33, 46, 80, 100, 128, 257}) {
        for (int round = 0; round < 6; ++round) {
          const int64_t slot_begin = random.Int(0, 15);
          const int64_t num_keys = random.OneIn(2) ? 16 - slot_begin : 1;
          const float size = random.Pick<float>({1.0f, 1e-3f, 3e38f, 1e-30f, 1e-38f, 1e-44f, 77.0f});
          CheckPacked(dtype, random.Floats(Size(num_keys * dim), size), dim, slot_begin);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Zero, constant, huge, tiny, and not finite (F41).
TEST(QuantizedPack, F41OddRows) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    Random random(41);
    for (const DType dtype : kQuantizedDTypes) {
      for (const float x : {0.0f, -0.0f, 1.0f, -3.0f, kLargest, -kLargest, 3e38f, 6e4f * 127, 1e-6f, 0x1p-126f,
                            -0x1p-126f, kDenormal, -kDenormal, 0x1p-100f, 0x1p-93f, kInf, -kInf, kNaN}) {
        for (const int64_t dim : {1, 20, 64}) {
          std::vector<float> row(Size(dim), x);
          CheckPacked(dtype, row, dim, 3);
          for (size_t i = 1; i < row.size(); i += 2) row[i] = -x;
          CheckPacked(dtype, row, dim, 4);
          for (size_t i = 1; i < row.size(); ++i) row[i] = random.Float();
          CheckPacked(dtype, row, dim, 5);
          // What is read back is finite wherever the row was.
          const auto read = Dequantize(TypeOf(dtype), reference::Quantize(TypeOf(dtype), row.data(), dim));
          for (float y : read) EXPECT_TRUE(!std::isfinite(x) || std::isfinite(y)) << x << " gives " << y;
        }
      }
    }
  }
}

// Around every tie between neighbouring codes, an ulp below, on it, and above, for scales with few and with many bits:
// the code is the nearest number's, on ties the even one.
TEST(QuantizedPack, NearestWithTiesToEven) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    Random random(2);
    for (const DType dtype : kQuantizedDTypes) {
      for (int round = 0; round < 40; ++round) {
        // A row whose largest number gives the scale, then numbers around a tie.
        const float largest = round == 0 ? LargestCode(dtype) : (1.0f + std::fabs(random.Float())) * 37.0f;
        const float scale = reference::Quantize(TypeOf(dtype), &largest, 1).scales[0];
        std::vector<float> row = {largest};
        const std::vector<float> values = CodeValues(dtype);
        for (size_t i = 0; i + 1 < values.size() && row.size() < 900; ++i) {
          if (round > 0 && values.size() > 20 && !random.OneIn(3)) continue;
          const float tie = (values[i] + values[i + 1]) / 2 * scale;
          if (std::fabs(tie) >= largest) continue;
          // Each group of int4 has a scale of its own.
          if (row.size() % 32 > 28) row.resize((row.size() + 31) / 32 * 32, 0.0f);
          if (row.size() % 32 == 0) row.push_back(largest);
          for (float x : {std::nextafter(tie, -kInf), tie, std::nextafter(tie, kInf)}) row.push_back(x);
        }
        CheckPacked(dtype, row, static_cast<int64_t>(row.size()), 0);
        if (HasFailure()) return;
      }
    }
  }
}

// The reference itself: no code is nearer than the one that it chooses, and storing what was read changes nothing.
// The two codes that no number is stored as are NaN where the cache is read back.
TEST(QuantizedLoad, Fp8NaNCodes) {
  for (const int code : {0x7F, 0xFF}) EXPECT_TRUE(std::isnan(internal::F8E4M3ToF32(static_cast<uint8_t>(code))));
}

TEST(QuantizedReference, NearestAndIdempotent) {
  Random random(3);
  for (const DType dtype : kQuantizedDTypes) {
    const reference::QuantizedType type = TypeOf(dtype);
    const std::vector<float> values = CodeValues(dtype);
    for (int round = 0; round < 300; ++round) {
      const int64_t dim = random.Int(1, 70);
      std::vector<float> row = random.Floats(Size(dim), std::ldexp(1.0f, static_cast<int>(random.Int(-120, 126))));
      const reference::QuantizedRow stored = reference::Quantize(type, row.data(), dim);
      const std::vector<float> read = Dequantize(type, stored);
      for (int64_t d = 0; d < dim; ++d) {
        const double scale = static_cast<double>(stored.scales[Size(d / stored.group)]);
        const double x = static_cast<double>(row[Size(d)]);
        double least = HUGE_VAL;
        for (float value : values) least = std::min(least, std::fabs(x - static_cast<double>(value) * scale));
        EXPECT_EQ(least, std::fabs(x - static_cast<double>(read[Size(d)]))) << DTypeName(dtype) << " " << x;
      }
      const std::vector<float> again = Dequantize(type, reference::Quantize(type, read.data(), dim));
      EXPECT_TRUE(SameBits(read, again)) << DTypeName(dtype) << " dim " << dim;
    }
  }
}

// Rows of 16 bits are the same numbers in f32; strides other than 1.
TEST(QuantizedPack, RowsOfEveryTypeAndStride) {
  Random random(4);
  for (const DType dtype : kQuantizedDTypes) {
    for (const DType rows_dtype : kAllDTypes) {
      for (const int64_t dim_stride : {1, 3}) {
        for (const int64_t dim : {7, 32, 50}) {
          std::vector<float> values = random.Floats(Size(5 * dim));
          Round(rows_dtype, values);
          const int64_t row_stride = dim * dim_stride;
          const GuardedBuffer rows(Size((4 * row_stride + (dim - 1) * dim_stride + 1) * DTypeBytes(rows_dtype)));
          for (int64_t i = 0; i < 5 * dim; ++i) {
            StoreElement(rows_dtype, rows.data(), i / dim * row_stride + i % dim * dim_stride, values[Size(i)]);
          }
          for (const bool is_k : {true, false}) {
            const GuardedBuffer tile(Size(is_k ? internal::KTileBytes(dtype, dim) : internal::VTileBytes(dtype, dim)));
            bool non_finite = true;
            auto args = PackArgs(rows.data(), rows_dtype, row_stride, dim, 5, 6, tile.data(), &non_finite);
            args.dim_stride = dim_stride;
            is_k ? Kernels(dtype).pack_k(args) : Kernels(dtype).pack_v(args);
            ExpectStored(dtype, is_k, values, dim, 6, tile.data());
          }
        }
      }
    }
  }
}

// Every code with several scales, loaded by every kernel that loads: through widening here, the others below.
TEST(QuantizedLoad, AllCodes) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    for (const DType dtype : kQuantizedDTypes) {
      const std::vector<int> codes = AllCodeBits(dtype);
      const int64_t dim = static_cast<int64_t>(codes.size());
      for (const bool is_k : {true, false}) {
        const GuardedBuffer tile(Size(is_k ? internal::KTileBytes(dtype, dim) : internal::VTileBytes(dtype, dim)));
        for (int64_t slot = 0; slot < 16; ++slot) {
          for (int64_t d = 0; d < dim; ++d) {
            SetCodeBits(dtype, is_k, tile.data(), d, slot, codes[Size(d)]);
            SetScale(dtype, is_k, tile.data(), dim, d, slot, ScaleNumber(slot));
          }
          if (is_k) continue;
          for (int64_t d = dim; d < (dim + 15) / 16 * 16; ++d) {
            SetCodeBits(dtype, is_k, tile.data(), d, slot, 0);
          }
        }
        const GuardedFloats out(Size((dim + 15) / 16 * 256));
        const internal::WidenTileArgs args{.tile = tile.data(), .dim = dim, .out = out.data()};
        is_k ? Kernels(dtype).widen_k(args) : Kernels(dtype).widen_v(args);
        for (int64_t slot = 0; slot < 16; ++slot) {
          for (int64_t d = 0; d < dim; ++d) {
            const float expected = CodeNumber(dtype, codes[Size(d)]) * ScaleNumber(slot);
            const int64_t at = is_k ? d * 16 + slot : d / 16 * 256 + slot * 16 + d % 16;
            ASSERT_TRUE(SameBits(expected, out[Size(at)]))
                << DTypeName(dtype) << (is_k ? " k" : " v") << " code number " << d << " slot " << slot;
            const auto* bytes = reinterpret_cast<const std::byte*>(tile.data());
            ASSERT_TRUE(SameBits(expected, is_k ? internal::KTileElement(dtype, bytes, dim, d, slot)
                                                : internal::VTileElement(dtype, bytes, dim, d, slot)));
          }
        }
      }
    }
  }
}

struct Block {
  std::vector<GuardedBuffer> tiles;
  std::vector<GuardedFloats> wide;
  std::vector<const void*> tile_pointers, wide_pointers;
};

// A block of random keys or values, and the same as f32 tiles.
Block RandomBlock(DType dtype, bool is_k, int64_t num_tiles, int64_t dim, Random& random, bool poison) {
  Block block;
  for (int64_t t = 0; t < num_tiles; ++t) {
    std::vector<float> rows = random.Floats(Size(16 * dim), 2.0f);
    if (poison && t == 0) rows[Size(5 * dim)] = kNaN;
    block.tiles.emplace_back(Size(is_k ? internal::KTileBytes(dtype, dim) : internal::VTileBytes(dtype, dim)));
    block.wide.emplace_back(Size(is_k ? dim * 16 : (dim + 15) / 16 * 256));
    const auto args = PackArgs(rows.data(), DType::kF32, dim, dim, 16, 0, block.tiles.back().data(), nullptr);
    const internal::WidenTileArgs widen{.tile = block.tiles.back().data(), .dim = dim, .out = block.wide.back().data()};
    if (is_k) {
      Kernels(dtype).pack_k(args);
      Kernels(dtype).widen_k(widen);
    } else {
      Kernels(dtype).pack_v(args);
      Kernels(dtype).widen_v(widen);
    }
  }
  for (const auto& tile : block.tiles) block.tile_pointers.push_back(tile.data());
  for (const auto& tile : block.wide) block.wide_pointers.push_back(tile.data());
  return block;
}

TEST(QuantizedKernels, ScoresAreThoseOfTheWidenedTiles) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    Random random(5);
    for (const DType dtype : kQuantizedDTypes) {
      for (const int64_t dim : {1, 2, 3, 31, 32, 33, 46, 64, 65, 100, 128, 257}) {
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13}) {
          const int64_t num_tiles = random.Int(1, 8);
          const Block block = RandomBlock(dtype, true, num_tiles, dim, random, false);
          const GuardedFloats q(random.Floats(Size(rows * dim)));
          const GuardedFloats s(Size(rows * 128)), expected(Size(rows * 128));
          internal::QkArgs args{};
          args.q = q.data();
          args.q_pitch = dim;
          args.rows = rows;
          args.qk_dim = dim;
          args.k_tiles = block.wide_pointers.data();
          args.num_tiles = num_tiles;
          args.s = expected.data();
          Kernels(DType::kF32).qk(args);
          for (const bool stream : {false, true}) {
            args.k_tiles = block.tile_pointers.data();
            args.s = s.data();
            args.stream = stream;
            Kernels(dtype).qk(args);
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t i = 0; i < num_tiles * 16; ++i) {
                ASSERT_TRUE(SameBits(expected[Size(r * 128 + i)], s[Size(r * 128 + i)]))
                    << target.name << " " << DTypeName(dtype) << " dim " << dim << " rows " << rows << " row " << r
                    << " key " << i << " stream " << stream;
              }
            }
          }
        }
      }
    }
  }
}

TEST(QuantizedKernels, WeightedSumsAreThoseOfTheWidenedTiles) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    Random random(6);
    for (const DType dtype : kQuantizedDTypes) {
      for (const int64_t dim : {1, 16, 17, 33, 48, 64, 65, 80, 112, 128, 257}) {
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13}) {
          const int64_t num_tiles = random.Int(1, 8);
          const bool poison = random.OneIn(3);
          const Block block = RandomBlock(dtype, false, num_tiles, dim, random, poison);
          const int64_t pitch = (dim + 15) / 16 * 16;
          GuardedFloats w(random.Floats(Size(rows * 128)));
          const GuardedFloats c(random.Floats(Size(rows)));
          const std::vector<float> before = random.Floats(Size(rows * pitch));
          GuardedArray<uint16_t> live(Size(rows * 8));
          for (size_t i = 0; i < live.size(); ++i) {
            live[i] = static_cast<uint16_t>(random.Int(0, 0xFFFF) & ~(i % 8 == 0 && poison ? 1 << 5 : 0));
          }
          internal::PvArgs args{};
          args.w = w.data();
          args.rows = rows;
          args.num_tiles = num_tiles;
          args.num_stripes = pitch / 16;
          args.c = random.OneIn(3) ? nullptr : c.data();
          args.o_pitch = pitch;
          args.live = poison ? live.data() : nullptr;
          for (const bool stream : {false, true}) {
            const GuardedFloats expected(before), o(before);
            args.stream = stream;
            args.v_tiles = block.wide_pointers.data();
            args.o = expected.data();
            Kernels(DType::kF32).pv(args);
            args.v_tiles = block.tile_pointers.data();
            args.o = o.data();
            Kernels(dtype).pv(args);
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t d = 0; d < dim; ++d) {
                ASSERT_TRUE(SameBits(expected[Size(r * pitch + d)], o[Size(r * pitch + d)]))
                    << target.name << " " << DTypeName(dtype) << " dim " << dim << " rows " << rows << " row " << r
                    << " feature " << d << " stream " << stream << " live " << poison;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headlane::testing
