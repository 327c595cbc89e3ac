// Rows of up to 16 keys to one quantised tile: scales, codes, and where they stand.
//
// Separate from pack_tile-inl.h, where a number is stored without looking at its neighbours; here a row (int8, fp8) or
// a group of 32 features (int4) is read twice, once for the largest magnitude and once for the codes.
//
// The scale is what makes the largest magnitude the largest code, with so few bits, cut off, that code * scale is
// exact. So a number read back is stored again as it was, nothing overflows, and no target rounds a product. A code is
// the nearest to x / scale, ties to even, exactly: see NearQuotient. Rows of zeros have scale 0. A row that is not
// finite has scale NaN and codes of 0, and is NaN where it is visible.
#if defined(HEADLANE_SRC_KERNELS_PACK_SCALED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_PACK_SCALED_INL_H_
#undef HEADLANE_SRC_KERNELS_PACK_SCALED_INL_H_
#else
#define HEADLANE_SRC_KERNELS_PACK_SCALED_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "base/quantized.h"
#include "base/tile_layout.h"
#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/pack_tile-inl.h"
#include "kernels/scaled_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DCode = hn::CappedTag<float, kTileKeys>;
using VCode = hn::Vec<DCode>;
using DCodeInt = hn::RebindToSigned<DCode>;
using VCodeInt = hn::Vec<DCodeInt>;

inline constexpr int32_t kInfinityBits = 0x7F800000;
inline constexpr uint32_t kScaleNaNBits = 0x7FC00000u;

// magnitude / scale, rounded so that rounding it once more to 8 bits or fewer is rounding the exact quotient. Division
// rounds to 24 bits, and may end on a tie where the exact quotient is beside it: the remainder, exact for quotients of
// so few bits and scales of 16, tells on which side, and one unit in the last place is enough to remember it.
HWY_INLINE VCode NearQuotient(DCode d, VCode magnitude, VCode scale) {
  const DCodeInt di;
  const VCode quotient = hn::Div(magnitude, scale);
  const VCode rest = hn::Sub(magnitude, hn::Mul(quotient, scale));
  const VCodeInt bits = hn::BitCast(di, quotient);
  const auto is_short = hn::Eq(hn::And(bits, hn::Set(di, 0xFFFF)), hn::Zero(di));
  const VCodeInt one = hn::Set(di, 1);
  const VCodeInt up = hn::IfThenElseZero(hn::RebindMask(di, hn::Gt(rest, hn::Zero(d))), one);
  const VCodeInt down = hn::IfThenElseZero(hn::RebindMask(di, hn::Lt(rest, hn::Zero(d))), one);
  return hn::BitCast(d, hn::Add(bits, hn::IfThenElseZero(is_short, hn::Sub(up, down))));
}

// The largest of 16 lanes or fewer, at least 0.
HWY_INLINE int32_t LargestLane(DCodeInt di, VCodeInt v) {
  alignas(64) int32_t lanes[kTileKeys];
  hn::Store(v, di, lanes);
  int32_t largest = 0;
  for (size_t i = 0; i < hn::Lanes(di); ++i) largest = HWY_MAX(largest, lanes[i]);
  return largest;
}

// The low 8 bits of each lane.
HWY_INLINE void StoreCodes(VCodeInt codes, uint8_t* to) {
  const hn::Rebind<uint8_t, DCode> d8;
  const hn::RebindToUnsigned<DCodeInt> du;
  hn::StoreU(hn::TruncateTo(d8, hn::BitCast(du, codes)), d8, to);
}

struct Int8Codec {
  using Tile = Int8Tile;
  static constexpr float kLargestCode = 127.0f;

  // Codes of a vector in 32-bit lanes.
  static HWY_INLINE VCodeInt Codes(DCode d, VCode x, VCode scale) {
    const DCodeInt di;
    const VCodeInt code =
        hn::Min(hn::NearestInt(NearQuotient(d, hn::Abs(x), scale)), hn::Set(di, static_cast<int32_t>(kLargestCode)));
    const VCodeInt sign = hn::ShiftRight<31>(hn::BitCast(di, x));
    return hn::Sub(hn::Xor(code, sign), sign);
  }
};

struct F8Codec {
  using Tile = F8Tile;
  static constexpr float kLargestCode = 448.0f;

  static HWY_INLINE VCodeInt Codes(DCode d, VCode x, VCode scale) {
    const DCodeInt di;
    const VCode q = NearQuotient(d, hn::Abs(x), scale);
    const VCodeInt bits = hn::BitCast(di, q);
    // Normal: the biases differ by 120; a carry out of the mantissa raises the exponent, as it should.
    const VCodeInt rebiased = hn::Sub(bits, hn::Set(di, 120 << 23));
    const VCodeInt odd = hn::And(hn::ShiftRight<20>(rebiased), hn::Set(di, 1));
    const VCodeInt normal = hn::ShiftRight<20>(hn::Add(hn::Add(rebiased, hn::Set(di, 0x7FFFF)), odd));
    // Denormal: a multiple of 2^-9, which is the last place of numbers from 2^14 on.
    const VCodeInt denormal = hn::And(hn::BitCast(di, hn::Add(q, hn::Set(d, 0x1p14f))), hn::Set(di, 0xFF));
    VCodeInt code = hn::IfThenElse(hn::RebindMask(di, hn::Lt(q, hn::Set(d, 0x1p-6f))), denormal, normal);
    code = hn::Min(code, hn::Set(di, 0x7E));
    const VCodeInt sign = hn::And(hn::ShiftRight<24>(hn::BitCast(di, x)), hn::Set(di, 0x80));
    // Zeros have no sign: a row that is read back and stored again may have become a row of zeros.
    return hn::IfThenZeroElse(hn::Eq(code, hn::Zero(di)), hn::Or(code, sign));
  }
};

// Halves of bytes, in 32-bit lanes.
HWY_INLINE VCodeInt Int4Codes(DCode d, VCode x, VCode scale) {
  const DCodeInt di;
  const VCodeInt magnitude = hn::NearestInt(NearQuotient(d, hn::Abs(x), hn::Abs(scale)));
  const VCodeInt sign = hn::ShiftRight<31>(hn::Xor(hn::BitCast(di, x), hn::BitCast(di, scale)));
  const VCodeInt code = hn::Sub(hn::Xor(magnitude, sign), sign);
  return hn::And(hn::Min(hn::Max(code, hn::Set(di, -8)), hn::Set(di, 7)), hn::Set(di, 15));
}

// The scale of rows whose largest magnitude has those bits.
template <class Codec>
HWY_INLINE float ByteScale(int32_t largest_bits) {
  if (largest_bits == 0) return 0.0f;
  if (largest_bits >= kInfinityBits) {
    float nan;
    std::memcpy(&nan, &kScaleNaNBits, sizeof(nan));
    return nan;
  }
  float scale;
  std::memcpy(&scale, &largest_bits, sizeof(scale));
  scale /= Codec::kLargestCode;
  uint32_t bits;
  std::memcpy(&bits, &scale, sizeof(bits));
  bits &= 0xFFFFFF00u;
  std::memcpy(&scale, &bits, sizeof(scale));
  return HWY_MAX(scale, kMinScale);
}

// One row: its scale, then its codes to where `at(feature)` says, 16 features at a time.
template <class Codec, class Row>
HWY_INLINE float RowScale(const PackTileArgs& args, const typename Row::T* row) {
  const DCode d;
  const DCodeInt di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  VCodeInt largest = hn::Zero(di);
  for (int64_t i = 0; i < args.dim; i += lanes) {
    const VCodeInt bits = hn::BitCast(di, LoadFeatures<Row>(d, row, args, i));
    largest = hn::Max(largest, hn::And(bits, hn::Set(di, 0x7FFFFFFF)));
  }
  return ByteScale<Codec>(LargestLane(di, largest));
}

// Codes of 16 features from `feature` on; 0 behind the end of the row, and of rows of zeros and rows that are not
// finite.
template <class Codec, class Row>
HWY_INLINE void RowCodes(const PackTileArgs& args, const typename Row::T* row, float scale, int64_t feature,
                         uint8_t* HWY_RESTRICT codes) {
  const DCode d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (!(scale > 0.0f)) {
    std::memset(codes, 0, kTileKeys);
    return;
  }
  for (int64_t lane = 0; lane < kTileKeys; lane += lanes) {
    const VCode x = LoadFeatures<Row>(d, row, args, feature + lane);
    StoreCodes(Codec::Codes(d, x, hn::Set(d, scale)), codes + lane);
  }
}

template <class Codec, class Row>
HWY_INLINE void PackScaledKRows(const PackTileArgs& args) {
  uint8_t* HWY_RESTRICT tile = static_cast<uint8_t*>(args.tile);
  float* const scales = reinterpret_cast<float*>(tile + KTileCodeBytes(Codec::Tile::kDType, args.dim));
  alignas(64) uint8_t codes[kTileKeys];
  for (int64_t key = 0; key < args.num_keys; ++key) {
    const typename Row::T* const row = static_cast<const typename Row::T*>(args.rows) + key * args.row_stride;
    const int64_t slot = args.slot_begin + key;
    const float scale = RowScale<Codec, Row>(args, row);
    scales[slot] = scale;
    for (int64_t feature = 0; feature < args.dim; feature += kTileKeys) {
      RowCodes<Codec, Row>(args, row, scale, feature, codes);
      const int64_t count = HWY_MIN(kTileKeys, args.dim - feature);
      for (int64_t i = 0; i < count; ++i) tile[(feature + i) * kTileKeys + slot] = codes[i];
    }
  }
}

template <class Codec, class Row>
HWY_INLINE void PackScaledVRows(const PackTileArgs& args) {
  uint8_t* HWY_RESTRICT tile = static_cast<uint8_t*>(args.tile);
  float* const scales = reinterpret_cast<float*>(tile + VTileCodeBytes(Codec::Tile::kDType, args.dim));
  bool non_finite = false;
  for (int64_t key = 0; key < args.num_keys; ++key) {
    const typename Row::T* const row = static_cast<const typename Row::T*>(args.rows) + key * args.row_stride;
    const int64_t slot = args.slot_begin + key;
    const float scale = RowScale<Codec, Row>(args, row);
    scales[slot] = scale;
    non_finite |= !(scale >= 0.0f);
    for (int64_t feature = 0; feature < args.dim; feature += kTileKeys) {
      RowCodes<Codec, Row>(args, row, scale, feature, tile + VTileIndex(Codec::Tile::kDType, feature, slot));
    }
  }
  if (args.non_finite != nullptr) *args.non_finite = non_finite;
}

// Scale of the group of features from `feature` on: what makes its largest number, with its sign, the code -8, cut to 8
// bits. Of two numbers of the same magnitude the negative one counts.
template <class Row>
HWY_INLINE float Int4Scale(const PackTileArgs& args, const typename Row::T* row, int64_t feature) {
  const DCode d;
  const DCodeInt di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  VCodeInt positive = hn::Zero(di), negative = hn::Zero(di);
  for (int64_t i = feature; i < HWY_MIN(feature + kInt4Group, args.dim); i += lanes) {
    const VCodeInt bits = hn::BitCast(di, LoadFeatures<Row>(d, row, args, i));
    const VCodeInt magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
    const VCodeInt sign = hn::ShiftRight<31>(bits);
    positive = hn::Max(positive, hn::AndNot(sign, magnitude));
    negative = hn::Max(negative, hn::And(sign, magnitude));
  }
  const int32_t largest_positive = LargestLane(di, positive), largest_negative = LargestLane(di, negative);
  const int32_t largest = HWY_MAX(largest_positive, largest_negative);
  if (largest == 0) return 0.0f;
  float scale;
  if (largest >= kInfinityBits) {
    std::memcpy(&scale, &kScaleNaNBits, sizeof(scale));
    return scale;
  }
  std::memcpy(&scale, &largest, sizeof(scale));
  scale *= 0.125f;
  uint32_t bits;
  std::memcpy(&bits, &scale, sizeof(bits));
  bits &= 0xFFFF0000u;
  std::memcpy(&scale, &bits, sizeof(scale));
  if (scale < kMinScale) return kMinScale;
  return largest_negative >= largest_positive ? scale : -scale;
}

HWY_INLINE uint16_t UpperHalf(float scale) {
  uint32_t bits;
  std::memcpy(&bits, &scale, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

// Halves of bytes for a group of features; 0 behind the end of the row.
template <class Row>
HWY_INLINE void Int4GroupCodes(const PackTileArgs& args, const typename Row::T* row, float scale, int64_t feature,
                               uint8_t* HWY_RESTRICT codes) {
  const DCode d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (scale == 0.0f || scale != scale) {
    std::memset(codes, 0, static_cast<size_t>(kInt4Group));
    return;
  }
  for (int64_t i = 0; i < kInt4Group; i += lanes) {
    StoreCodes(Int4Codes(d, LoadFeatures<Row>(d, row, args, feature + i), hn::Set(d, scale)), codes + i);
  }
}

template <class Row>
HWY_INLINE void PackInt4KRows(const PackTileArgs& args) {
  uint8_t* HWY_RESTRICT tile = static_cast<uint8_t*>(args.tile);
  uint16_t* const scales = reinterpret_cast<uint16_t*>(tile + KTileCodeBytes(DType::kI4, args.dim));
  alignas(64) uint8_t codes[kInt4Group];
  for (int64_t key = 0; key < args.num_keys; ++key) {
    const typename Row::T* const row = static_cast<const typename Row::T*>(args.rows) + key * args.row_stride;
    const int64_t slot = args.slot_begin + key;
    for (int64_t feature = 0; feature < args.dim; feature += kInt4Group) {
      const float scale = Int4Scale<Row>(args, row, feature);
      scales[feature / kInt4Group * kTileKeys + slot] = UpperHalf(scale);
      Int4GroupCodes<Row>(args, row, scale, feature, codes);
      const int64_t count = HWY_MIN(kInt4Group, args.dim - feature);
      uint8_t* to = tile + KTileIndex(DType::kI4, feature, slot);
      for (int64_t i = 0; i < count; i += 2, to += kTileKeys) *to = static_cast<uint8_t>(codes[i] | codes[i + 1] << 4);
    }
  }
}

template <class Row>
HWY_INLINE void PackInt4VRows(const PackTileArgs& args) {
  uint8_t* HWY_RESTRICT tile = static_cast<uint8_t*>(args.tile);
  uint16_t* const scales = reinterpret_cast<uint16_t*>(tile + VTileCodeBytes(DType::kI4, args.dim));
  alignas(64) uint8_t codes[kInt4Group];
  bool non_finite = false;
  for (int64_t key = 0; key < args.num_keys; ++key) {
    const typename Row::T* const row = static_cast<const typename Row::T*>(args.rows) + key * args.row_stride;
    const int64_t slot = args.slot_begin + key;
    // The other half of each byte is the neighbouring slot's.
    const int shift = slot % 2 == 0 ? 0 : 4;
    const uint8_t kept = slot % 2 == 0 ? 0xF0 : 0x0F;
    for (int64_t feature = 0; feature < args.dim; feature += kInt4Group) {
      const float scale = Int4Scale<Row>(args, row, feature);
      scales[feature / kInt4Group * kTileKeys + slot] = UpperHalf(scale);
      non_finite |= scale != scale;
      Int4GroupCodes<Row>(args, row, scale, feature, codes);
      const int64_t count = HWY_MIN(kInt4Group, RoundUp(args.dim, kTileKeys) - feature);
      for (int64_t i = 0; i < count; ++i) {
        uint8_t& to = tile[VTileIndex(DType::kI4, feature + i, slot)];
        to = static_cast<uint8_t>((to & kept) | codes[i] << shift);
      }
    }
  }
  if (args.non_finite != nullptr) *args.non_finite = non_finite;
}

struct Int4Codec {};
template <class Codec, class Row>
HWY_INLINE void PackScaledK(const PackTileArgs& args) {
  if constexpr (std::is_same_v<Codec, Int4Codec>) {
    PackInt4KRows<Row>(args);
  } else {
    PackScaledKRows<Codec, Row>(args);
  }
}
template <class Codec, class Row>
HWY_INLINE void PackScaledV(const PackTileArgs& args) {
  if constexpr (std::is_same_v<Codec, Int4Codec>) {
    PackInt4VRows<Row>(args);
  } else {
    PackScaledVRows<Codec, Row>(args);
  }
}

template <class Codec>
void PackScaledK(const PackTileArgs& args) noexcept {
  switch (args.rows_dtype) {
    case DType::kF32:
      return PackScaledK<Codec, F32Element>(args);
    case DType::kF16:
      return PackScaledK<Codec, F16Element>(args);
    case DType::kBF16:
      return PackScaledK<Codec, BF16Element>(args);
    default:  // no tensor's type
      break;
  }
}

template <class Codec>
void PackScaledV(const PackTileArgs& args) noexcept {
  switch (args.rows_dtype) {
    case DType::kF32:
      return PackScaledV<Codec, F32Element>(args);
    case DType::kF16:
      return PackScaledV<Codec, F16Element>(args);
    case DType::kBF16:
      return PackScaledV<Codec, BF16Element>(args);
    default:  // no tensor's type
      break;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_PACK_SCALED_INL_H_
