#include "reference/canonical_math.h"

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/canonical_math.h"

namespace headlane::reference {
namespace {

using namespace headlane::internal;  // NOLINT(google-build-using-namespace): the constants, which fill every line here.

static_assert(FLT_EVAL_METHOD == 0, "excess precision would change bits");
static_assert(std::bit_cast<uint32_t>(kExpMagic) << 23 == 127u << 23,
              "the low bits of the magic number are the exponent bias");

// x = n ln 2 + r. t carries n + 127 in its low bits.
struct Reduced {
  float t;
  float r;
};

Reduced Reduce(float x) {
  const float t = std::fma(x, kLog2E, kExpMagic);
  const float n = t - kExpMagic;
  float r = std::fma(n, -kLn2Hi, x);
  r = std::fma(n, -kLn2Lo, r);
  return {t, r};
}

float PowerOfTwo(float t) { return std::bit_cast<float>(std::bit_cast<uint32_t>(t) << 23); }

// e^r - 1
float ExpMinusOne(float r) {
  float p = kExpC6;
  p = std::fma(p, r, kExpC5);
  p = std::fma(p, r, kExpC4);
  p = std::fma(p, r, kExpC3);
  p = std::fma(p, r, kExpC2);
  return std::fma(r * r, p, r);
}

}  // namespace

float CanonicalExp(float x) {
  const auto [t, r] = Reduce(x);
  const float p = ExpMinusOne(r) + 1.0f;
  float y = p * PowerOfTwo(t > kExpMagicMax ? kExpMagicMax : t);
  if (t > kExpMagicMax) y = y + y;
  if (x < kExpCutoff) return 0.0f;
  if (x > kExpOverflow) return std::numeric_limits<float>::infinity();
  return y;
}

float CanonicalLn(float x) {
  if (std::isnan(x) || x < 0.0f) return std::numeric_limits<float>::quiet_NaN();
  if (x == 0.0f) return -std::numeric_limits<float>::infinity();
  if (std::isinf(x)) return x;
  int32_t k0 = 0;
  if (x < 0x1p-126f) {
    x = x * 0x1p23f;
    k0 = -23;
  }
  const int32_t i = std::bit_cast<int32_t>(x) - kLnSqrtHalfBits;
  const float e = static_cast<float>((i >> 23) + k0);
  const float f = std::bit_cast<float>((i & 0x007FFFFF) + kLnSqrtHalfBits) - 1.0f;
  float q = kLnC10;
  q = std::fma(q, f, kLnC9);
  q = std::fma(q, f, kLnC8);
  q = std::fma(q, f, kLnC7);
  q = std::fma(q, f, kLnC6);
  q = std::fma(q, f, kLnC5);
  q = std::fma(q, f, kLnC4);
  q = std::fma(q, f, kLnC3);
  q = std::fma(q, f, kLnC2);
  float y = std::fma(f * f, q, f);
  y = std::fma(e, kLn2Lo, y);
  y = std::fma(e, kLn2Hi, y);
  return y;
}

float CanonicalTanh(float x) {
  float z = -2.0f * std::fabs(x);
  if (z < kTanhClamp) z = kTanhClamp;
  const auto [t, r] = Reduce(z);
  const float scale = PowerOfTwo(t);
  const float g = std::fma(scale, ExpMinusOne(r), scale - 1.0f);
  return std::copysign(-g / (2.0f + g), x);
}

}  // namespace headlane::reference
