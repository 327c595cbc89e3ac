// Tiles of the quantised types as operands in registers: code * scale, in f32.
//
// Separate from tile_codec-inl.h, whose tiles are numbers without scales. Used by the micro-kernel (loading), by
// packing and by widening.
//
// Of keys a scale is a vector: the lanes' own (LaneScale). Of values it is one number for all features of a step
// (StepScale).
#if defined(HEADLANE_SRC_KERNELS_SCALED_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_SCALED_TILE_INL_H_
#undef HEADLANE_SRC_KERNELS_SCALED_TILE_INL_H_
#else
#define HEADLANE_SRC_KERNELS_SCALED_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/tile_layout.h"
#include "hwy/highway.h"
#include "kernels/element-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What int8 and fp8 have in common: one line per step, one f32 scale per key or value.
struct ByteTile {
  using T = uint8_t;
  static constexpr bool kScaled = true;
  static constexpr int kSteps = 1;
  static constexpr int64_t kLine = kTileKeys;
  static constexpr int64_t kPack = 1;
  static constexpr int64_t kGroup = 0;  // features per scale; 0: all
  static constexpr int64_t Column(int64_t lane) { return lane; }

  // `scales`: of a group, all 16 keys.
  static constexpr int64_t kGroupScaleBytes = kTileKeys * static_cast<int64_t>(sizeof(float));
  template <class D>
  static HWY_INLINE hn::Vec<D> LaneScale(D d, const T* scales, int64_t lane) {
    return hn::LoadU(d, reinterpret_cast<const float*>(scales) + lane);
  }
  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> StepScale(D d, const T* scales, int64_t key) {
    return hn::Set(d, reinterpret_cast<const float*>(scales)[key]);
  }
};

struct Int8Tile : ByteTile {
  static constexpr DType kDType = DType::kI8;

  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* line, hn::Vec<D> scale) {
    return hn::Mul(hn::ConvertTo(d, LoadSigned8(d, line)), scale);
  }
};

#undef HEADLANE_HALVES_THROUGH_MEMORY
#if HWY_TARGET == HWY_AVX2 && !HWY_COMPILER_MSVC
#define HEADLANE_HALVES_THROUGH_MEMORY 1
// The codes of a few steps as f16. From memory vcvtph2ps takes half a cycle and from a register a whole one (Zen 3: a
// shuffle less), which makes the way through L1 worth a store; and the instructions that make halves do not wait in the
// schedulers among those that use them, if a few lines are put before the first of them is taken.
//
// Vectors come in the order of columns, and of more steps than one the even ones in front of the odd ones.
template <int kSteps>
struct alignas(32) HalfLine {
  uint16_t half[kSteps][2][8];

  template <class V>
  HWY_INLINE void Put(int i, V halves) {
    // Compilers would take them from the register after all.
    asm("vmovdqa %1, %0" : "=m"(half[i]) : "x"(halves.raw));
  }
  template <int kStep, int kColumn, class D>
  HWY_INLINE hn::Vec<D> Take(D /*d*/) const {
    constexpr int kPlace = kSteps == 1 ? kColumn : kStep % 2 * kSteps + kColumn * (kSteps / 2) + kStep / 2;
    hn::Vec<D> numbers;
    asm("vcvtph2ps %1, %0" : "=x"(numbers.raw) : "m"(half[kPlace / 2][kPlace % 2]));
    return numbers;
  }
  template <int kStep, int kColumn, class D>
  HWY_INLINE hn::Vec<D> Take(D d, hn::Vec<D> scale) const {
    return hn::Mul(Take<kStep, kColumn>(d), scale);
  }
  // The scales stay in memory, where a block of sums leaves no registers for them.
  template <int kStep, int kColumn, class D>
  HWY_INLINE hn::Vec<D> Take(D d, const float* HWY_RESTRICT scales) const {
    using Scales = float[8];
    hn::Vec<D> numbers = Take<kStep, kColumn>(d);
    asm("vmulps %1, %0, %0" : "+x"(numbers.raw) : "m"(*reinterpret_cast<const Scales*>(scales)));
    return numbers;
  }
};
// What putting a line needs, loaded anew for each: kept, it would take the registers of those that use lines.
template <class V>
HWY_INLINE V LoadedHere(const uint8_t (&bytes)[32]) {
  V v;
  asm volatile("vmovdqa %1, %0" : "=x"(v.raw) : "m"(bytes));
  return v;
}
#else
#define HEADLANE_HALVES_THROUGH_MEMORY 0
#endif

// sign, 4 bits of exponent, 3 of mantissa: 7 bits further up in 16 they are an f16 of 1 / 256 of the number, denormals
// included, and the scale makes up for it, exactly. (NaN codes, which are never stored, would be 480.)
struct F8Tile : ByteTile {
  static constexpr DType kDType = DType::kF8E4M3;

  template <class D>
  static HWY_INLINE hn::Vec<D> LaneScale(D d, const T* scales, int64_t lane) {
    return hn::Mul(ByteTile::LaneScale(d, scales, lane), hn::Set(d, 256.0f));
  }
  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> StepScale(D d, const T* scales, int64_t key) {
    return hn::Mul(ByteTile::StepScale<kStep>(d, scales, key), hn::Set(d, 256.0f));
  }
  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* line, hn::Vec<D> scale) {
    // The sign fills the bits above it; that of the exponent which f16 has and E4M3 has not must be 0.
#if HWY_TARGET_IS_SVE
    const svbool_t all = svptrue_b32();
    const svuint32_t shifted = svreinterpret_u32_s32(hn::ShiftLeft<7>(LoadSigned8(d, line)));
    // Twice, which makes it a constant that fits into an instruction: what is above 16 bits is not read.
    const svuint32_t half = svand_n_u32_x(all, shifted, 0xBFFFBFFFu);
    return hn::Mul(svcvt_f32_f16_x(all, svreinterpret_f16_u32(half)), scale);
#else
    const hn::Rebind<int8_t, D> d8;
    const hn::Rebind<int16_t, D> d16;
    const Lanes16Bit<D> du16;
    const auto codes = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(line)));
    const auto half = hn::And(hn::BitCast(du16, hn::ShiftLeft<7>(codes)), hn::Set(du16, uint16_t{0xBFFF}));
    return hn::Mul(WidenF16(d, half), scale);
#endif
  }

#if HEADLANE_HALVES_THROUGH_MEMORY
  // What is put at once: so many steps, in so many parts.
  static constexpr int kPutSteps = 1;
  static constexpr int kPutParts = 1;
  using Line = HalfLine<kPutSteps>;
  static constexpr int kPutting = 1;
  template <int kIndex>
  static HWY_INLINE hn::Vec<hn::CappedTag<uint16_t, kTileKeys>> LoadPutting() {
    alignas(32) static constexpr uint8_t kMask[32] = {0xFF, 0xBF, 0xFF, 0xBF, 0xFF, 0xBF, 0xFF, 0xBF, 0xFF, 0xBF, 0xFF,
                                                      0xBF, 0xFF, 0xBF, 0xFF, 0xBF, 0xFF, 0xBF, 0xFF, 0xBF, 0xFF, 0xBF,
                                                      0xFF, 0xBF, 0xFF, 0xBF, 0xFF, 0xBF, 0xFF, 0xBF, 0xFF, 0xBF};
    return LoadedHere<hn::Vec<hn::CappedTag<uint16_t, kTileKeys>>>(kMask);
  }
  template <int kPart, class V>
  static HWY_INLINE void Put(V mask, V, const T* line, Line* to) {
    const hn::CappedTag<int16_t, kTileKeys> d16;
    const hn::CappedTag<uint16_t, kTileKeys> du16;
    const hn::CappedTag<int8_t, kTileKeys> d8;
    const auto codes = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(line)));
    to->Put(0, hn::And(hn::BitCast(du16, hn::ShiftLeft<7>(codes)), mask));
  }
  // A line alone.
  template <class V>
  static HWY_INLINE void PutLine(V mask, V, const T* line, Line* to) {
    Put<0>(mask, mask, line, to);
  }
#endif
};

// Two steps per line: the halves of bytes, with signs.
struct Int4Tile {
  using T = uint8_t;
  static constexpr DType kDType = DType::kI4;
  static constexpr bool kScaled = true;
  static constexpr int kSteps = 2;
  static constexpr int64_t kLine = kTileKeys;
  static constexpr int64_t kGroup = kInt4Group;
  static constexpr int64_t kGroupScaleBytes = kTileKeys * static_cast<int64_t>(sizeof(uint16_t));
  static constexpr int64_t Column(int64_t lane) { return lane; }

  template <class D>
  static HWY_INLINE hn::Vec<D> LaneScale(D d, const T* scales, int64_t lane) {
    return LoadBF16(d, reinterpret_cast<const uint16_t*>(scales) + lane);
  }
  // A pair of keys at a time, as one word.
  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> StepScale(D d, const T* scales, int64_t key) {
    const hn::RebindToUnsigned<D> du;
    uint32_t pair;
    std::memcpy(&pair, scales + (key - kStep) * static_cast<int64_t>(sizeof(uint16_t)), sizeof(pair));
    if constexpr (kStep == 0) return hn::BitCast(d, hn::ShiftLeft<16>(hn::Set(du, pair)));
    return hn::BitCast(d, hn::And(hn::Set(du, pair), hn::Set(du, 0xFFFF0000u)));
  }
  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* line, hn::Vec<D> scale) {
    const auto pairs = LoadSigned8(d, line);
    const auto codes = kStep == 0 ? hn::ShiftRight<28>(hn::ShiftLeft<28>(pairs)) : hn::ShiftRight<4>(pairs);
    return hn::Mul(hn::ConvertTo(d, codes), scale);
  }

#if HEADLANE_HALVES_THROUGH_MEMORY
  // A code has so few digits that the upper half of an f16 holds it: one of 16 bytes. Two lines at once, so that each
  // block of 128 bits is one of them: first the lower halves of bytes, then the upper ones.
  static constexpr int kPutSteps = 4;
  static constexpr int kPutParts = 2;
  using Line = HalfLine<kPutSteps>;
  static constexpr int kPutting = 2;
  template <int kIndex>
  static HWY_INLINE hn::Vec<hn::CappedTag<uint8_t, 2 * kTileKeys>> LoadPutting() {
    alignas(32) static constexpr uint8_t kTables[2][2 * kTileKeys] = {
        {0, 0x3C, 0x40, 0x42, 0x44, 0x45, 0x46, 0x47, 0xC8, 0xC7, 0xC6, 0xC5, 0xC4, 0xC2, 0xC0, 0xBC,
         0, 0x3C, 0x40, 0x42, 0x44, 0x45, 0x46, 0x47, 0xC8, 0xC7, 0xC6, 0xC5, 0xC4, 0xC2, 0xC0, 0xBC},
        {15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15,
         15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15}};
    return LoadedHere<hn::Vec<hn::CappedTag<uint8_t, 2 * kTileKeys>>>(kTables[kIndex]);
  }
  template <int kPart, class V>
  static HWY_INLINE void PutCodes(V table, V mask, V codes, Line* to) {
    const hn::CappedTag<uint8_t, 2 * kTileKeys> d8;
    const hn::CappedTag<uint16_t, kTileKeys> d16;
    if constexpr (kPart == 1) codes = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, codes)));
    const auto upper = hn::TableLookupBytes(table, hn::And(codes, mask));
    to->Put(2 * kPart, hn::InterleaveLower(d8, hn::Zero(d8), upper));
    to->Put(2 * kPart + 1, hn::InterleaveUpper(d8, hn::Zero(d8), upper));
  }
  template <int kPart, class V>
  static HWY_INLINE void Put(V table, V mask, const T* lines, Line* to) {
    PutCodes<kPart>(table, mask, hn::LoadU(hn::CappedTag<uint8_t, 2 * kTileKeys>(), lines), to);
  }
  template <class V>
  static HWY_INLINE void PutLine(V table, V mask, const T* line, Line* to) {
    const V codes = hn::LoadDup128(hn::CappedTag<uint8_t, 2 * kTileKeys>(), line);
    PutCodes<0>(table, mask, codes, to);
    PutCodes<1>(table, mask, codes, to);
  }
#endif
};

#if HEADLANE_HALVES_THROUGH_MEMORY
// Those of all keys of a tile.
template <class Tile, class D>
HWY_INLINE void StoreScales(D d, const typename Tile::T* scales, float* to) {
  for (int64_t key = 0; key < kTileKeys; key += static_cast<int64_t>(hn::Lanes(d))) {
    hn::Store(Tile::LaneScale(d, scales, key), d, to + key);
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_SCALED_TILE_INL_H_
