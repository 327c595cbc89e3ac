// Conversions between f32 and 16-bit formats: every code, every rounding boundary, and both sides of each, against the
// formats' definitions in double arithmetic.
#include "base/float16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace headlane::internal {
namespace {

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

// The value of a code by the definition of a binary format. Requires: not a NaN.
double ValueOf(uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = static_cast<double>(code & ((1u << mantissa_bits) - 1));
  const double sign = code >> (exponent_bits + mantissa_bits) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return sign * std::numeric_limits<double>::infinity();
  const double significand = std::ldexp(mantissa, -mantissa_bits) + (exponent != 0 ? 1.0 : 0.0);
  return sign * std::ldexp(significand, (exponent != 0 ? exponent : 1) - bias);
}

struct Format {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  uint16_t nan;
  float (*widen)(uint16_t) noexcept;
  uint16_t (*narrow)(float) noexcept;

  uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  double Value(uint32_t code) const { return ValueOf(code, exponent_bits, mantissa_bits); }
};
constexpr Format kFormats[] = {
    {"f16", 5, 10, 0x7E00, F16ToF32, F32ToF16},
    {"bf16", 8, 7, 0x7FC0, BF16ToF32, F32ToBF16},
};

TEST(Float16, WideningIsExactForEveryCode) {
  for (const Format& f : kFormats) {
    for (uint32_t code = 0; code <= 0xFFFF; ++code) {
      const float wide = f.widen(static_cast<uint16_t>(code));
      if ((code & 0x7FFF) > f.infinity()) {
        EXPECT_TRUE(std::isnan(wide)) << f.name << " " << code;
        EXPECT_EQ(Bits(wide) >> 31, code >> 15) << f.name << " " << code;
        continue;
      }
      EXPECT_EQ(static_cast<double>(wide), f.Value(code)) << f.name << " " << code;
      EXPECT_EQ(std::signbit(wide), code >> 15 != 0) << f.name << " " << code;
    }
  }
}

TEST(Float16, EveryCodeComesBack) {
  for (const Format& f : kFormats) {
    for (uint32_t code = 0; code <= 0xFFFF; ++code) {
      const bool is_nan = (code & 0x7FFF) > f.infinity();
      EXPECT_EQ(f.narrow(f.widen(static_cast<uint16_t>(code))), is_nan ? f.nan : code) << f.name << " " << code;
    }
  }
}

TEST(Float16, EveryTieGoesToEvenAndItsNeighboursToTheNearer) {
  for (const Format& f : kFormats) {
    for (uint32_t low = 0; low < f.infinity(); ++low) {
      // The last one is the tie between the largest finite value and what would follow it.
      const uint32_t high = low + 1;
      const double above = high < f.infinity() ? f.Value(high) : 2.0 * f.Value(low) - f.Value(low - 1);
      const double middle = 0.5 * (f.Value(low) + above);
      const float tie = static_cast<float>(middle);
      ASSERT_EQ(static_cast<double>(tie), middle) << f.name << " " << low;
      for (const uint32_t sign : {0u, 0x8000u}) {
        const float s = sign != 0 ? -1.0f : 1.0f;
        EXPECT_EQ(f.narrow(s * tie), sign | (low % 2 == 0 ? low : high)) << f.name << " " << low;
        EXPECT_EQ(f.narrow(s * std::nextafter(tie, 0.0f)), sign | low) << f.name << " " << low;
        EXPECT_EQ(f.narrow(s * std::nextafter(tie, std::numeric_limits<float>::infinity())), sign | high)
            << f.name << " " << low;
      }
    }
  }
}

TEST(Float16, InfinitiesZerosAndNaNs) {
  const float inf = std::numeric_limits<float>::infinity();
  const float max = std::numeric_limits<float>::max();
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const Format& f : kFormats) {
    EXPECT_EQ(f.narrow(inf), f.infinity()) << f.name;
    EXPECT_EQ(f.narrow(-inf), 0x8000u | f.infinity()) << f.name;
    EXPECT_EQ(f.narrow(max), f.infinity()) << f.name;
    EXPECT_EQ(f.narrow(-max), 0x8000u | f.infinity()) << f.name;
    EXPECT_EQ(f.narrow(tiny), 0u) << f.name;
    EXPECT_EQ(f.narrow(-tiny), 0x8000u) << f.name;
    for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0x7FA00000u}) {
      EXPECT_EQ(f.narrow(std::bit_cast<float>(bits)), f.nan) << f.name << " " << bits;
    }
  }
}

TEST(Float16, AgreesWithRoundingToTheGridOverManyFloats) {
  // Independent of the boundary cases above: the step of the format at x, and nearbyint's ties to even.
  for (const Format& f : kFormats) {
    const int min_exponent = 2 - (1 << (f.exponent_bits - 1));
    for (uint64_t bits = 0; bits < 0x7F800000u; bits += 4099) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
      const int exponent = x == 0.0f ? min_exponent : std::max(std::ilogb(x), min_exponent);
      const double step = std::ldexp(1.0, exponent - f.mantissa_bits);
      const double rounded = std::nearbyint(static_cast<double>(x) / step) * step;
      const uint16_t code = f.narrow(x);
      if (rounded >= std::ldexp(1.0, 1 << (f.exponent_bits - 1))) {
        ASSERT_EQ(code, f.infinity()) << f.name << " " << x;
      } else {
        ASSERT_EQ(f.Value(code), rounded) << f.name << " " << x;
      }
    }
  }
}

TEST(Float16, WidenedNaNsAreQuietInF16AndTheSameBitsInBF16) {
  EXPECT_EQ(Bits(F16ToF32(0x7C01)), 0x7FC02000u);
  EXPECT_EQ(Bits(F16ToF32(0xFE55)), 0xFFCAA000u);
  EXPECT_EQ(Bits(BF16ToF32(0x7F81)), 0x7F810000u);
}

static_assert(F32ToF16(1.0f) == 0x3C00 && F16ToF32(0x3C00) == 1.0f);
static_assert(F32ToBF16(1.0f) == 0x3F80 && BF16ToF32(0x3F80) == 1.0f);

}  // namespace
}  // namespace headlane::internal
