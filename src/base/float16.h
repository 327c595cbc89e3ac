// Scalar conversions between f32 and the two 16-bit formats, by integer arithmetic: hardware forms differ between
// machines on denormals and NaN.
//
// Separate from the kernels so that plain code (operators on 16-bit tensors, packing tools, tests) has the very bits
// that kernels must produce. Called by src/ops and by tests of kernels that convert.
#ifndef HEADLANE_SRC_BASE_FLOAT16_H_
#define HEADLANE_SRC_BASE_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace headlane::internal {

inline constexpr uint16_t kCanonicalF16NaN = 0x7E00;
inline constexpr uint16_t kCanonicalBF16NaN = 0x7FC0;

// Exact, denormals included. A NaN keeps its sign and payload and is made quiet, as conversion instructions do.
constexpr float F16ToF32(uint16_t half) noexcept {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0x1F) {
    return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13 | (mantissa != 0 ? 0x00400000u : 0u));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + (127 - 15)) << 23 | mantissa << 13);
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // Denormal: mantissa * 2^-24. The shift moves its highest bit to bit 10, which becomes f32's hidden one.
  const uint32_t shift = static_cast<uint32_t>(std::countl_zero(mantissa)) - 21;
  return std::bit_cast<float>(sign | (127 - 15 + 1 - shift) << 23 | (mantissa << shift & 0x3FFu) << 13);
}

// Nearest, ties to even; beyond the largest finite value by half a step or more: infinity. Any NaN: kCanonicalF16NaN.
constexpr uint16_t F32ToF16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return kCanonicalF16NaN;
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 2^16 and above
  if (magnitude >= 0x38800000u) {                                              // 2^-14 and above: normal
    // The exponents' biases differ by 112. A carry out of the mantissa raises the exponent, up to infinity, as it
    // should.
    const uint32_t rebiased = magnitude - (112u << 23);
    return static_cast<uint16_t>(sign | (rebiased + 0xFFFu + (rebiased >> 13 & 1u)) >> 13);
  }
  if (magnitude <= 0x33000000u) return static_cast<uint16_t>(sign);  // up to 2^-25, the tie between 0 and 2^-24
  // Denormal: a multiple of 2^-24. The shift is 14 .. 24.
  const uint32_t shift = 126u - (magnitude >> 23);
  const uint32_t mantissa = (magnitude & 0x007FFFFFu) | 0x00800000u;
  const uint32_t half_step = (1u << (shift - 1)) - 1;
  return static_cast<uint16_t>(sign | (mantissa + half_step + (mantissa >> shift & 1u)) >> shift);
}

// Exact: the same bits, followed by zeros. NaNs too.
constexpr float BF16ToF32(uint16_t value) noexcept { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

// Nearest, ties to even, denormals included; infinity from half a step beyond the largest finite value on. Any NaN:
// kCanonicalBF16NaN.
constexpr uint16_t F32ToBF16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return kCanonicalBF16NaN;
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_FLOAT16_H_
