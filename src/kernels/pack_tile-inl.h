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

// Rows of keys that are prefetched while a tile is packed: those behind this tile and the next.
inline constexpr int64_t kRowsAhead = 32;

// 4 features of a key, and behind them, in the second block, those of another one.
template <class Row>
HWY_INLINE VPack LoadFour(const typename Row::T* key, [[maybe_unused]] const typename Row::T* second) {
  const DPack d;
#if HEADLANE_PACKED_KEYS == 8
  const hn::Half<DPack> dh;
  if constexpr (Row::kDType == DType::kF32) {
    return hn::Combine(d, hn::LoadU(dh, second), hn::LoadU(dh, key));
  } else {
    const Lanes16Bit<DPack> d16;
    const hn::Half<decltype(d16)> dh16;
    const auto both = hn::Combine(d16, hn::LoadU(dh16, second), hn::LoadU(dh16, key));
    if constexpr (Row::kDType == DType::kF16) return WidenF16(d, both);
    if constexpr (Row::kDType == DType::kBF16) return WidenBF16(d, both);
  }
#else
  return Row::Load(d, key);
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

// In: v_i holds the first four 32-bit words of key i, and in the second block those of the key 4 further on. Out: v_i
// holds word i of all keys. No struct of four: SVE's vectors can't be members.
HWY_INLINE void Transpose(VPack& v0, VPack& v1, VPack& v2, VPack& v3) {
  const DPack d;
  const hn::RepartitionToWide<DPack> d64;
  const auto a0 = hn::BitCast(d64, hn::InterleaveLower(d, v0, v1));  // 00 10 01 11
  const auto a1 = hn::BitCast(d64, hn::InterleaveLower(d, v2, v3));
  const auto a2 = hn::BitCast(d64, hn::InterleaveUpper(d, v0, v1));
  const auto a3 = hn::BitCast(d64, hn::InterleaveUpper(d, v2, v3));
  v0 = hn::BitCast(d, hn::InterleaveLower(d64, a0, a1));
  v1 = hn::BitCast(d, hn::InterleaveUpper(d64, a0, a1));
  v2 = hn::BitCast(d, hn::InterleaveLower(d64, a2, a3));
  v3 = hn::BitCast(d, hn::InterleaveUpper(d64, a2, a3));
}

// 4 features of kPackedKeys keys, given as the rows' vectors, to their slots.
template <class Tile>
HWY_INLINE void StoreTransposed(VPack v0, VPack v1, VPack v2, VPack v3, typename Tile::T* HWY_RESTRICT tile,
                                int64_t feature, int64_t slot) {
  Transpose(v0, v1, v2, v3);
  StoreTwoFeatures<Tile>(v0, v1, tile, feature, slot);
  StoreTwoFeatures<Tile>(v2, v3, tile, feature + 2, slot);
}

// Features [0, dim), a multiple of 4, of kPackedKeys keys. The addresses of the rows are kept in registers: computing
// them took longer than the transposes. Prefetches the same features of the keys that are packed after this tile and
// the next, if the tensor goes on as it does; behind its end a prefetch does nothing.
template <class Tile, class Row>
HWY_INLINE void TransposeKeys(const typename Row::T* rows, int64_t row_stride, int64_t dim,
                              typename Tile::T* HWY_RESTRICT tile, int64_t slot) {
  using T = typename Row::T;
  constexpr int64_t kLineFeatures = 64 / static_cast<int64_t>(sizeof(T));
  const T *r0 = rows, *r1 = r0 + row_stride, *r2 = r1 + row_stride, *r3 = r2 + row_stride;
  [[maybe_unused]] const T *r4 = r3 + row_stride, *r5 = r4 + row_stride, *r6 = r5 + row_stride, *r7 = r6 + row_stride;
  const int64_t ahead = kRowsAhead * row_stride;
  for (int64_t line = 0; line < dim; line += kLineFeatures) {
    __builtin_prefetch(r0 + line + ahead, 0, 3);
    __builtin_prefetch(r1 + line + ahead, 0, 3);
    __builtin_prefetch(r2 + line + ahead, 0, 3);
    __builtin_prefetch(r3 + line + ahead, 0, 3);
    if constexpr (kPackedKeys == 8) {
      __builtin_prefetch(r4 + line + ahead, 0, 3);
      __builtin_prefetch(r5 + line + ahead, 0, 3);
      __builtin_prefetch(r6 + line + ahead, 0, 3);
      __builtin_prefetch(r7 + line + ahead, 0, 3);
    }
    const int64_t end = HWY_MIN(dim, line + kLineFeatures);
    for (int64_t i = line; i < end; i += 4) {
      StoreTransposed<Tile>(LoadFour<Row>(r0 + i, r4 + i), LoadFour<Row>(r1 + i, r5 + i), LoadFour<Row>(r2 + i, r6 + i),
                            LoadFour<Row>(r3 + i, r7 + i), tile, i, slot);
    }
  }
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
      TransposeKeys<Tile, Row>(rows + key * args.row_stride, args.row_stride, dim, tile, args.slot_begin + key);
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

// One key, or two that are stored as pairs, to stripes [0, num_stripes), and the larger of `taint` and what they hold.
// kWhole: rows of dense features that fill the stripes.
template <class Tile, class Row, bool kWhole, class DI>
HWY_INLINE hn::Vec<DI> PackVKeys(DI di, hn::Vec<DI> taint, const PackTileArgs& args, const typename Row::T* row,
                                 bool pair, bool is_second, int64_t num_stripes, typename Tile::T* HWY_RESTRICT tile) {
  const hn::RebindToFloat<DI> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const typename Row::T* const partner = row + args.row_stride;
  for (int64_t stripe = 0; stripe < num_stripes; ++stripe, tile += kTileKeys * kTileKeys) {
    for (int64_t lane = 0; lane < kTileKeys; lane += lanes) {
      const int64_t i = stripe * kTileKeys + lane;
      typename Tile::T* const p = tile + Tile::Column(lane);
      const auto first = Tile::Encode(d, kWhole ? Row::Load(d, row + i) : LoadFeatures<Row>(d, row, args, i));
      taint = AddTaint<Tile>(d, taint, first);
      if constexpr (Tile::kPack == 1) {
        Tile::Store(d, first, p);
      } else if (pair) {
        const auto second =
            Tile::Encode(d, kWhole ? Row::Load(d, partner + i) : LoadFeatures<Row>(d, partner, args, i));
        taint = AddTaint<Tile>(d, taint, second);
        Tile::StorePair(d, first, second, p);
      } else {
        Tile::StoreOne(d, first, is_second, p);
      }
    }
  }
  (void)di;
  return taint;
}

template <class Tile, class Row>
HWY_INLINE void PackVRows(const PackTileArgs& args) {
  using T = typename Tile::T;
  const hn::CappedTag<float, kTileKeys> d;
  const hn::RebindToSigned<decltype(d)> di;
  const int64_t num_stripes = CeilDiv(args.dim, kTileKeys);
  const bool whole = args.dim_stride == 1 && args.dim % kTileKeys == 0;
  auto taint = hn::Zero(di);
  for (int64_t key = 0; key < args.num_keys;) {
    const typename Row::T* const row = static_cast<const typename Row::T*>(args.rows) + key * args.row_stride;
    const int64_t slot = args.slot_begin + key;
    const bool is_second = slot % Tile::kPack != 0;
    const bool pair = Tile::kPack == 2 && !is_second && key + 1 < args.num_keys;
    T* const tile = static_cast<T*>(args.tile) + VTileIndex(Tile::kDType, 0, slot - (is_second ? 1 : 0));
    if (whole) {
      taint = PackVKeys<Tile, Row, true>(di, taint, args, row, pair, is_second, num_stripes, tile);
    } else {
      taint = PackVKeys<Tile, Row, false>(di, taint, args, row, pair, is_second, num_stripes, tile);
    }
    key += pair ? 2 : 1;
  }
  if (args.non_finite != nullptr) *args.non_finite = IsTainted<Tile>(di, taint);
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
    default:  // no tensor's type
      break;
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
    default:  // no tensor's type
      break;
  }
}

// A stripe of V [16 keys][16 features] is the transpose of 16 features of K [16 features][16 keys].
inline HWY_MAYBE_UNUSED void KToVTile(const KToVTileArgs& args) noexcept {
  const hn::CappedTag<float, kTileKeys> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const hn::RebindToSigned<decltype(d)> di;
  auto taint = hn::Zero(di);
  for (int64_t i = 0; i < args.v_dim * kTileKeys; i += lanes) {
    taint = AddTaint<F32Tile>(d, taint, hn::Load(d, args.k_tile + i));
  }
  if (args.non_finite != nullptr) *args.non_finite = IsTainted<F32Tile>(di, taint);

  int64_t feature = 0;
  for (; feature + kTileKeys <= args.v_dim; feature += kTileKeys) {
    const float* const k = args.k_tile + feature * kTileKeys;
    float* const stripe = args.v_tile + feature * kTileKeys;
    for (int64_t lane = 0; lane < kTileKeys; lane += kPackedKeys) {
      const float* const rows = k + lane * kTileKeys;
      for (int64_t key = 0; key < kTileKeys; key += 4) {
        constexpr int64_t kSecond = 4 * kTileKeys;
        const float* const r = rows + key;
        StoreTransposed<F32Tile>(
            LoadFour<F32Element>(r, r + kSecond), LoadFour<F32Element>(r + kTileKeys, r + kTileKeys + kSecond),
            LoadFour<F32Element>(r + 2 * kTileKeys, r + 2 * kTileKeys + kSecond),
            LoadFour<F32Element>(r + 3 * kTileKeys, r + 3 * kTileKeys + kSecond), stripe, key, lane);
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
