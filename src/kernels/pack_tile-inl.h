// Rows of up to 16 keys to one tile: a transpose for K, a copy in stripes for V; and a V tile from a K tile.
//
// Rows are read a line of the processor's cache after the other, 8 or 4 keys at a time and each line once: rows of one
// head are often a multiple of 4 KiB apart, so that the lines of 16 keys would need more than the 8 ways that a set of
// L1 has.
#if defined(HEADLANE_SRC_KERNELS_PACK_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_PACK_TILE_INL_H_
#undef HEADLANE_SRC_KERNELS_PACK_TILE_INL_H_
#else
#define HEADLANE_SRC_KERNELS_PACK_TILE_INL_H_
#endif

#include "base/tile_layout.h"
#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/tile_codec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Keys that are transposed together, with 4 features: two blocks of 128 bits where vectors have two, one elsewhere.
#undef HEADLANE_PACKED_KEYS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define HEADLANE_PACKED_KEYS 8
#else
#define HEADLANE_PACKED_KEYS 4
#endif
inline constexpr int64_t kPackedKeys = HEADLANE_PACKED_KEYS;
using DPack = hn::FixedTag<float, kPackedKeys>;
using VPack = hn::Vec<DPack>;

// 4 features of key `row`, and behind them, in the second block, those of the key 4 rows on.
template <class Row>
HWY_INLINE VPack LoadFour(const typename Row::T* row, [[maybe_unused]] int64_t row_stride) {
  const DPack d;
#if HEADLANE_PACKED_KEYS == 8
  const hn::Half<DPack> dh;
  if constexpr (Row::kDType == DType::kF32) {
    return hn::Combine(d, hn::LoadU(dh, row + 4 * row_stride), hn::LoadU(dh, row));
  } else {
    const Lanes16Bit<DPack> d16;
    const hn::Half<decltype(d16)> dh16;
    const auto both = hn::Combine(d16, hn::LoadU(dh16, row + 4 * row_stride), hn::LoadU(dh16, row));
    if constexpr (Row::kDType == DType::kF16) return WidenF16(d, both);
    if constexpr (Row::kDType == DType::kBF16) return WidenBF16(d, both);
  }
#else
  return Row::Load(d, row);
#endif
}

// Two features of kPackedKeys keys to their slots.
template <class Tile>
HWY_INLINE void StoreTwoFeatures(VPack first, VPack second, typename Tile::T* HWY_RESTRICT tile, int64_t feature,
                                 int64_t slot) {
  const DPack d;
  typename Tile::T* const p = tile + KTileIndex(Tile::kDType, feature, slot);
  if constexpr (Tile::kPack == 2) {
    Tile::StorePair(d, Tile::Encode(d, first), Tile::Encode(d, second), p);
  } else {
    Tile::Store(d, Tile::Encode(d, first), p);
    Tile::Store(d, Tile::Encode(d, second), p + kTileKeys);
  }
}

// kPackedKeys keys x 4 features, transposed in registers.
template <class Tile, class Row>
HWY_INLINE void TransposeFour(const typename Row::T* rows, int64_t row_stride, typename Tile::T* HWY_RESTRICT tile,
                              int64_t feature, int64_t slot) {
  const DPack d;
  const hn::RepartitionToWide<DPack> d64;
  const VPack r0 = LoadFour<Row>(rows, row_stride);
  const VPack r1 = LoadFour<Row>(rows + row_stride, row_stride);
  const VPack r2 = LoadFour<Row>(rows + 2 * row_stride, row_stride);
  const VPack r3 = LoadFour<Row>(rows + 3 * row_stride, row_stride);
  const auto a0 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));  // 00 10 01 11
  const auto a1 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto a2 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto a3 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  StoreTwoFeatures<Tile>(hn::BitCast(d, hn::InterleaveLower(d64, a0, a1)),
                         hn::BitCast(d, hn::InterleaveUpper(d64, a0, a1)), tile, feature, slot);
  StoreTwoFeatures<Tile>(hn::BitCast(d, hn::InterleaveLower(d64, a2, a3)),
                         hn::BitCast(d, hn::InterleaveUpper(d64, a2, a3)), tile, feature + 2, slot);
}

template <class Tile, class Row>
HWY_INLINE void PackKRows(const PackTileArgs& args) {
  typename Tile::T* HWY_RESTRICT tile = static_cast<typename Tile::T*>(args.tile);
  const typename Row::T* const rows = static_cast<const typename Row::T*>(args.rows);
  int64_t dim = 0;
  int64_t first_key = 0;
  if (args.dim_stride == 1 && args.slot_begin % kPackedKeys == 0) {
    first_key = args.num_keys / kPackedKeys * kPackedKeys;
    dim = args.dim / 4 * 4;
    for (int64_t key = 0; key < first_key; key += kPackedKeys) {
      const typename Row::T* const group = rows + key * args.row_stride;
      for (int64_t i = 0; i < dim; i += 4) {
        TransposeFour<Tile, Row>(group + i, args.row_stride, tile, i, args.slot_begin + key);
      }
    }
  }
  // What is left: the last keys of all features, and the last features of all keys.
  for (int64_t key = 0; key < args.num_keys; ++key) {
    const typename Row::T* const row = rows + key * args.row_stride;
    const int64_t slot = args.slot_begin + key;
    for (int64_t i = key < first_key ? dim : 0; i < args.dim; ++i) {
      tile[KTileIndex(Tile::kDType, i, slot)] = Tile::Element::FromF32(Row::ToF32(row[i * args.dim_stride]));
    }
    // The partner of an odd last feature: never used, but no slot keeps what an earlier life left.
    if (Tile::kPack == 2 && args.dim % 2 != 0) tile[KTileIndex(Tile::kDType, args.dim, slot)] = 0;
  }
}

// A vector of features [feature, feature + lanes) of a row; zeros behind its end.
template <class Row, class D>
HWY_INLINE hn::Vec<D> LoadFeatures(D d, const typename Row::T* row, const PackTileArgs& args, int64_t feature) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t count = args.dim - feature;
  if (args.dim_stride == 1) {
    if (HWY_LIKELY(count >= lanes)) return Row::Load(d, row + feature);
    if (count <= 0) return hn::Zero(d);
    return Row::LoadN(d, row + feature, static_cast<size_t>(count));
  }
  alignas(64) float values[kTileKeys];
  for (int64_t i = 0; i < lanes; ++i) {
    values[i] = i < count ? Row::ToF32(row[(feature + i) * args.dim_stride]) : 0.0f;
  }
  return hn::Load(d, values);
}

template <class Tile, class Row>
HWY_INLINE void PackVRows(const PackTileArgs& args) {
  using T = typename Tile::T;
  const hn::CappedTag<float, kTileKeys> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t padded = RoundUp(args.dim, kTileKeys);
  auto taint = Tile::NoTaint(d);
  int64_t key = 0;
  while (key < args.num_keys) {
    const typename Row::T* const row = static_cast<const typename Row::T*>(args.rows) + key * args.row_stride;
    const int64_t slot = args.slot_begin + key;
    T* HWY_RESTRICT const tile = static_cast<T*>(args.tile) + VTileIndex(Tile::kDType, 0, slot / Tile::kPack * Tile::kPack);
    if constexpr (Tile::kPack == 2) {
      const bool pair = slot % 2 == 0 && key + 1 < args.num_keys;
      for (int64_t i = 0; i < padded; i += lanes) {
        T* const p = tile + VTileIndex(Tile::kDType, i, 0);
        const auto first = Tile::Encode(d, LoadFeatures<Row>(d, row, args, i));
        taint = Tile::AddTaint(d, taint, first);
        if (pair) {
          const auto second = Tile::Encode(d, LoadFeatures<Row>(d, row + args.row_stride, args, i));
          taint = Tile::AddTaint(d, taint, second);
          Tile::StorePair(d, first, second, p);
        } else {
          Tile::StoreOne(d, first, slot % 2 != 0, p);
        }
      }
      key += pair ? 2 : 1;
    } else {
      for (int64_t i = 0; i < padded; i += lanes) {
        const auto encoded = Tile::Encode(d, LoadFeatures<Row>(d, row, args, i));
        taint = Tile::AddTaint(d, taint, encoded);
        Tile::Store(d, encoded, tile + VTileIndex(Tile::kDType, i, 0));
      }
      ++key;
    }
  }
  if (args.non_finite != nullptr) *args.non_finite = Tile::IsTainted(d, taint);
}

template <class Tile>
void PackK(const PackTileArgs& args) noexcept {
  switch (args.rows_dtype) {
    case DType::kF32:
      return PackKRows<Tile, F32Element>(args);
    case DType::kF16:
      return PackKRows<Tile, F16Element>(args);
    case DType::kBF16:
      return PackKRows<Tile, BF16Element>(args);
  }
}

template <class Tile>
void PackV(const PackTileArgs& args) noexcept {
  switch (args.rows_dtype) {
    case DType::kF32:
      return PackVRows<Tile, F32Element>(args);
    case DType::kF16:
      return PackVRows<Tile, F16Element>(args);
    case DType::kBF16:
      return PackVRows<Tile, BF16Element>(args);
  }
}

// A stripe of V [16 keys][16 features] is the transpose of 16 features of K [16 features][16 keys].
inline HWY_MAYBE_UNUSED void KToVTile(const KToVTileArgs& args) noexcept {
  const hn::CappedTag<float, kTileKeys> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto taint = F32Tile::NoTaint(d);
  for (int64_t i = 0; i < args.v_dim * kTileKeys; i += lanes) {
    taint = F32Tile::AddTaint(d, taint, hn::Load(d, args.k_tile + i));
  }
  if (args.non_finite != nullptr) *args.non_finite = F32Tile::IsTainted(d, taint);

  int64_t feature = 0;
  for (; feature + kTileKeys <= args.v_dim; feature += kTileKeys) {
    const float* const k = args.k_tile + feature * kTileKeys;
    float* const stripe = args.v_tile + feature * kTileKeys;
    for (int64_t lane = 0; lane < kTileKeys; lane += kPackedKeys) {
      for (int64_t key = 0; key < kTileKeys; key += 4) {
        TransposeFour<F32Tile, F32Element>(k + lane * kTileKeys + key, kTileKeys, stripe, key, lane);
      }
    }
  }
  if (feature == args.v_dim) return;
  for (int64_t key = 0; key < kTileKeys; ++key) {
    for (int64_t lane = 0; lane < kTileKeys; ++lane) {
      args.v_tile[(feature + key) * kTileKeys + lane] =
          feature + lane < args.v_dim ? args.k_tile[(feature + lane) * kTileKeys + key] : 0.0f;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_PACK_TILE_INL_H_
