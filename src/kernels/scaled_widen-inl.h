// Quantised tiles as f32, which many rows use: widened once, into memory.
//
// Separate from scaled_kernels-inl.h, where each use decodes codes on their way into registers. Called by the element
// types' translation units.
#if defined(HEADLANE_SRC_KERNELS_SCALED_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADLANE_SRC_KERNELS_SCALED_WIDEN_INL_H_
#undef HEADLANE_SRC_KERNELS_SCALED_WIDEN_INL_H_
#else
#define HEADLANE_SRC_KERNELS_SCALED_WIDEN_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/kernel_api.h"
#include "kernels/scaled_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HEADLANE_HALVES_THROUGH_MEMORY
// Lines of a tile one after the other, a few ahead: `scales(step, column)` is the scale of a vector.
template <class Tile, class Scales>
HWY_INLINE void WidenLinesOfCodes(const typename Tile::T* HWY_RESTRICT line, int64_t num_steps, const Scales& scales,
                                  float* HWY_RESTRICT out) {
  static_assert(kColsPerTile == 2);
  const DF d;
  constexpr int64_t kAtOnce = 8 / Tile::kPutSteps;
  constexpr int64_t kPutBytes = Tile::kPutSteps / Tile::kSteps * Tile::kLine;
  typename Tile::Line line_buffer[kAtOnce];
  typename Tile::Line* lines = line_buffer;
  KeepAddress(lines);
  const auto putting0 = LoadPutting<Tile, 0, true>();
  const auto putting1 = LoadPutting<Tile, 1, true>();
  int64_t step = 0;
#define HEADLANE_WIDEN_(i, kStep)                                                                      \
  hn::Store(lines[i].template Take<kStep, 0>(d, scales(step + kStep, 0)), d, out + kStep * kTileKeys); \
  hn::Store(lines[i].template Take<kStep, 1>(d, scales(step + kStep, 1)), d, out + kStep * kTileKeys + kTileKeys / 2);
  while (step + Tile::kPutSteps <= num_steps) {
    const int64_t num_lines = std::min<int64_t>(kAtOnce, (num_steps - step) / Tile::kPutSteps);
    for (int64_t i = 0; i < num_lines; ++i, line += kPutBytes) {
      Tile::template Put<0>(putting0, putting1, line, lines + i);
      if constexpr (Tile::kPutParts == 2) Tile::template Put<1>(putting0, putting1, line, lines + i);
    }
    for (int64_t i = 0; i < num_lines; ++i, step += Tile::kPutSteps, out += Tile::kPutSteps * kTileKeys) {
      HEADLANE_WIDEN_(i, 0)
      if constexpr (Tile::kPutSteps == 4) {
        HEADLANE_WIDEN_(i, 1)
        HEADLANE_WIDEN_(i, 2)
        HEADLANE_WIDEN_(i, 3)
      }
    }
  }
  for (; step < num_steps; step += Tile::kSteps, line += Tile::kLine, out += Tile::kSteps * kTileKeys) {
    Tile::PutLine(putting0, putting1, line, lines);
    HEADLANE_WIDEN_(0, 0)
    if constexpr (Tile::kSteps == 2) {
      if (step + 1 < num_steps) {
        HEADLANE_WIDEN_(0, 1)
      }
    }
  }
#undef HEADLANE_WIDEN_
}

template <class Tile>
HWY_INLINE void WidenLinesK(const WidenTileArgs& args) {
  struct Scales {
    VF of_column[2];
    HWY_INLINE VF operator()(int64_t, int column) const { return of_column[column]; }
  };
  const DF d;
  const typename Tile::T* tile = static_cast<const typename Tile::T*>(args.tile);
  const typename Tile::T* group_scales = KScales<Tile>(tile, args.dim);
  const int64_t group = Tile::kGroup == 0 ? args.dim : Tile::kGroup;
  for (int64_t first = 0; first < args.dim; first += group, group_scales += Tile::kGroupScaleBytes) {
    const Scales scales{{Tile::LaneScale(d, group_scales, 0), Tile::LaneScale(d, group_scales, kTileKeys / 2)}};
    WidenLinesOfCodes<Tile>(tile + first / Tile::kSteps * Tile::kLine, std::min(group, args.dim - first), scales,
                            args.out + first * kTileKeys);
  }
}

template <class Tile>
HWY_INLINE void WidenLinesV(const WidenTileArgs& args) {
  struct Scales {
    const float* of_key;
    HWY_INLINE VF operator()(int64_t key, int) const { return hn::Set(DF(), of_key[key]); }
  };
  const typename Tile::T* tile = static_cast<const typename Tile::T*>(args.tile);
  const int64_t num_stripes = CeilDiv(args.dim, kTileKeys);
  alignas(64) float of_key[kTileKeys];
  for (int64_t stripe = 0; stripe < num_stripes; ++stripe) {
    StoreScales<Tile>(DF(), VScales<Tile>(tile, num_stripes, stripe * kTileKeys), of_key);
    WidenLinesOfCodes<Tile>(tile + stripe * kStripeBytes<Tile>, kTileKeys, Scales{of_key},
                            args.out + stripe * (kTileKeys * kTileKeys));
  }
}
#endif

// The lanes of one vector of keys after the other, so that their scale stays in a register.
template <class Tile>
void WidenScaledK(const WidenTileArgs& args) noexcept {
#if HEADLANE_HALVES_THROUGH_MEMORY
  if constexpr (kByLines<Tile>) return WidenLinesK<Tile>(args);
#endif
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const typename Tile::T* HWY_RESTRICT tile = static_cast<const typename Tile::T*>(args.tile);
  float* HWY_RESTRICT out = args.out;
  const int64_t group = Tile::kGroup == 0 ? args.dim : Tile::kGroup;
  const typename Tile::T* scales = KScales<Tile>(tile, args.dim);
  for (int64_t first = 0; first < args.dim; first += group, scales += Tile::kGroupScaleBytes) {
    const int64_t end = std::min(args.dim, first + group);
    for (int64_t lane = 0; lane < kTileKeys; lane += lanes) {
      const VF scale = Tile::LaneScale(d, scales, lane);
      const typename Tile::T* HWY_RESTRICT line = tile + first / Tile::kSteps * Tile::kLine + Tile::Column(lane);
      for (int64_t i = first; i < end; i += Tile::kSteps, line += Tile::kLine) {
        hn::Store(Tile::template Load<0>(d, line, scale), d, out + i * kTileKeys + lane);
        if constexpr (Tile::kSteps == 2) {
          if (i + 1 < end) {
            hn::Store(Tile::template Load<1>(d, line, scale), d, out + (i + 1) * kTileKeys + lane);
          }
        }
      }
    }
  }
}

template <class Tile>
void WidenScaledV(const WidenTileArgs& args) noexcept {
#if HEADLANE_HALVES_THROUGH_MEMORY
  if constexpr (kByLines<Tile>) return WidenLinesV<Tile>(args);
#endif
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const typename Tile::T* HWY_RESTRICT tile = static_cast<const typename Tile::T*>(args.tile);
  float* HWY_RESTRICT out = args.out;
  const int64_t num_stripes = CeilDiv(args.dim, kTileKeys);
  for (int64_t feature = 0; feature < num_stripes * kTileKeys; feature += kTileKeys) {
    for (int64_t key = 0; key < kTileKeys; key += Tile::kSteps) {
      for (int64_t lane = 0; lane < kTileKeys; lane += lanes, out += lanes) {
        hn::Store(LoadValues<Tile, 0>(d, tile, num_stripes, feature + lane, key), d, out);
      }
      if constexpr (Tile::kSteps == 2) {
        for (int64_t lane = 0; lane < kTileKeys; lane += lanes, out += lanes) {
          hn::Store(LoadValues<Tile, 1>(d, tile, num_stripes, feature + lane, key + 1), d, out);
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#endif  // HEADLANE_SRC_KERNELS_SCALED_WIDEN_INL_H_
