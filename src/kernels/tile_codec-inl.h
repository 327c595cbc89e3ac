// Tiles of one element type as operands in registers: how a vector of them is loaded, and how it is stored.
//
// Separate from element-inl.h, which knows rows of plain arrays: tiles interleave. Used by the micro-kernel (loading),
// by packing (storing) and by widening.
//
// A *line* of a tile is 64 bytes at 16 lanes: one step of the micro-kernel's loop in f32, two in 16 bits. T is the
// stored type; Column(lane) the offset of a lane in a line.
#if defined(HEADLANE_SRC_KERNELS_TILE_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_TILE_CODEC_INL_H_
#undef HEADLANE_SRC_KERNELS_TILE_CODEC_INL_H_
#else
#define HEADLANE_SRC_KERNELS_TILE_CODEC_INL_H_
#endif

#include <cstdint>

#include "base/tile_layout.h"
#include "hwy/highway.h"
#include "kernels/element-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Encode gives a vector as it is stored, in 32-bit lanes. kInfinity: its bits; larger magnitudes are NaN.
struct F32Tile {
  using T = float;
  using Element = F32Element;
  static constexpr DType kDType = DType::kF32;
  static constexpr int kSteps = 1;
  static constexpr int64_t kLine = kTileKeys;
  static constexpr int64_t kPack = 1;
  static constexpr int64_t Column(int64_t lane) { return lane; }

  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* line) {
    static_assert(kStep == 0);
    return hn::Load(d, line);
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> Encode(D, hn::Vec<D> v) {
    return v;
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> encoded, T* p) {
    hn::StoreU(encoded, d, p);
  }
  static constexpr int32_t kInfinity = 0x7F800000;
};

// What f16 and bf16 have in common: encoded vectors are the stored bits in 32-bit lanes.
template <class Element16, int32_t kInfinityBits>
struct Tile16Bit {
  using T = uint16_t;
  using Element = Element16;
  static constexpr DType kDType = Element::kDType;
  static constexpr int kSteps = 2;
  static constexpr int64_t kLine = 2 * kTileKeys;

  template <class D>
  static HWY_INLINE hn::Vec<hn::RebindToSigned<D>> Encode(D d, hn::Vec<D> v) {
    return Element::Bits(d, v);
  }
  static constexpr int32_t kInfinity = kInfinityBits;
};

struct F16Tile : Tile16Bit<F16Element, 0x7C00> {
  static constexpr int64_t kPack = 1;
  static constexpr int64_t Column(int64_t lane) { return lane; }

  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* line) {
    return LoadF16(d, line + kStep * kTileKeys);
  }
  template <class D>
  static HWY_INLINE void Store(D, hn::Vec<hn::RebindToSigned<D>> encoded, T* p) {
    const Lanes16Bit<D> d16;
    hn::StoreU(hn::DemoteTo(d16, encoded), d16, p);
  }
};

#undef HEADLANE_MASKS_FROM_MEMORY
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !HWY_COMPILER_MSVC
#define HEADLANE_MASKS_FROM_MEMORY 1
#else
#define HEADLANE_MASKS_FROM_MEMORY 0
#endif

struct BF16Tile : Tile16Bit<BF16Element, 0x7F80> {
  static constexpr int64_t kPack = 2;
  static constexpr int64_t Column(int64_t lane) { return 2 * lane; }

  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* line) {
    const hn::RebindToUnsigned<D> du;
    const uint32_t* const pairs = reinterpret_cast<const uint32_t*>(line);
    if constexpr (kStep == 0) return hn::BitCast(d, hn::ShiftLeft<16>(hn::Load(du, pairs)));
    const auto mask = hn::Set(du, 0xFFFF0000u);
#if HEADLANE_MASKS_FROM_MEMORY
    // Compilers would keep the pairs from the first step to the second, in registers that a block of sums has not to
    // spare.
    hn::Vec<D> v;
    asm("vandps %1, %2, %0" : "=v"(v.raw) : "m"(*reinterpret_cast<const decltype(v.raw)*>(line)), "v"(mask.raw));
    return v;
#else
    return hn::BitCast(d, hn::And(hn::Load(du, pairs), mask));
#endif
  }
  // The same for blocks that leave no register for the mask, which costs one more load where that matters.
  template <int kStep, class D>
  static HWY_INLINE hn::Vec<D> LoadInTightBlock(D d, const T* line) {
#if HEADLANE_MASKS_FROM_MEMORY && HWY_TARGET > HWY_AVX3
    if constexpr (kStep == 1) {
      alignas(32) static constexpr uint32_t kMask[8] = {0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u,
                                                        0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u};
      hn::Vec<D> v;
      using Raw = decltype(v.raw);
      asm("vmovaps %1, %0\n\tvandps %2, %0, %0"
          : "=&x"(v.raw)
          : "m"(*reinterpret_cast<const Raw*>(kMask)), "m"(*reinterpret_cast<const Raw*>(line)));
      return v;
    }
#endif
    return Load<kStep>(d, line);
  }
  // Both of a pair; p is where the first one stands.
  template <class D, class DI = hn::RebindToSigned<D>>
  static HWY_INLINE void StorePair(D, hn::Vec<DI> first, hn::Vec<DI> second, T* p) {
    const DI di;
    hn::StoreU(hn::Or(first, hn::ShiftLeft<16>(second)), di, reinterpret_cast<int32_t*>(p));
  }
  // One of a pair: the other one keeps its bits.
  template <class D, class DI = hn::RebindToSigned<D>>
  static HWY_INLINE void StoreOne(D, hn::Vec<DI> encoded, bool is_second, T* p) {
    const DI di;
    int32_t* const pair = reinterpret_cast<int32_t*>(p);
    const auto old = hn::LoadU(di, pair);
    const auto low = hn::Set(di, 0xFFFF);
    hn::StoreU(
        is_second ? hn::Or(hn::And(old, low), hn::ShiftLeft<16>(encoded)) : hn::Or(hn::AndNot(low, old), encoded), di,
        pair);
  }
};

// The larger of `taint` and the bits of encoded numbers without their signs. Integers, because a chain of these costs a
// cycle per link, where 0 * x + taint costs four.
template <class Tile, class D, class VEncoded>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> AddTaint(D, hn::Vec<hn::RebindToSigned<D>> taint, VEncoded encoded) {
  const hn::RebindToSigned<D> di;
  constexpr int32_t kMagnitude = Tile::kDType == DType::kF32 ? 0x7FFFFFFF : 0x7FFF;
  return hn::Max(taint, hn::And(hn::BitCast(di, encoded), hn::Set(di, kMagnitude)));
}

template <class Tile, class DI>
HWY_INLINE bool IsTainted(DI di, hn::Vec<DI> taint) {
  return !hn::AllTrue(di, hn::Lt(taint, hn::Set(di, Tile::kInfinity)));
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_TILE_CODEC_INL_H_
