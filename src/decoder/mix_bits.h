// The one bit mixer of this folder: hashes of the vocabulary and the sampler's generator.
#ifndef HEADLANE_SRC_DECODER_MIX_BITS_H_
#define HEADLANE_SRC_DECODER_MIX_BITS_H_

#include <cstdint>

namespace headlane::decoder_internal {

// What SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) adds per draw.
inline constexpr uint64_t kGoldenGamma = 0x9E3779B97F4A7C15u;

// Its finaliser: a bijection that spreads the bits of a number over all 64.
constexpr uint64_t MixBits(uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace headlane::decoder_internal

#endif  // HEADLANE_SRC_DECODER_MIX_BITS_H_
