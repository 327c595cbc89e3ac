#include "reference/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace headlane::reference {
namespace {

// The largest magnitude with `bits` significant bits that is not above x.
double CutTo(int bits, double x) {
  if (x == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);  // in [0.5, 1)
  return std::ldexp(std::trunc(std::ldexp(fraction, bits)), exponent - bits);
}

// The nearest integer, ties to even, of a / b. Both are floats and quotients of interest are below 2^10, so that a
// double tells a tie from all else.
int NearestQuotient(double a, double b) {
  const double quotient = a / b;
  const double below = std::floor(quotient);
  const double rest = quotient - below;
  const bool up = rest > 0.5 || (rest == 0.5 && std::fmod(below, 2.0) != 0.0);
  return static_cast<int>(below) + (up ? 1 : 0);
}

constexpr double kMinScale = 0x1p-100;

// What makes the largest magnitude the largest code, rounded to f32 and cut to 16 bits.
float ByteScale(double largest, double largest_code) {
  if (largest == 0) return 0.0f;
  const double scale = CutTo(16, static_cast<double>(static_cast<float>(largest / largest_code)));
  return static_cast<float>(std::max(scale, kMinScale));
}

// The number of the 8 bits: sign, 4 of exponent with bias 7, 3 of mantissa.
double E4M3(int code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 128) != 0 ? -magnitude : magnitude;
}

// The code whose number is nearest to a / b, of two the even one; 0 without a sign.
int NearestE4M3(double a, double b) {
  static const std::array<double, 0x7F> numbers = [] {
    std::array<double, 0x7F> all;
    for (int code = 0; code < 0x7F; ++code) all[static_cast<size_t>(code)] = E4M3(code);
    return all;
  }();
  const double quotient = a / b;
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), quotient);
  if (above == numbers.begin()) return 0;
  if (above == numbers.end()) return 0x7E;
  const int code = static_cast<int>(above - numbers.begin());
  const double to_upper = *above - quotient, to_lower = quotient - *(above - 1);
  if (to_upper == to_lower) return code % 2 == 0 ? code : code - 1;
  return to_upper < to_lower ? code : code - 1;
}

// What makes the largest number, with its sign, the code -8, cut to 8 bits.
float Int4Scale(const float* group, int64_t n) {
  double largest = 0, lowest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(group[i])) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, static_cast<double>(group[i]));
    lowest = std::min(lowest, static_cast<double>(group[i]));
  }
  if (largest == 0 && lowest == 0) return 0.0f;
  const double magnitude = CutTo(8, std::max(largest, -lowest) / 8);
  if (magnitude < kMinScale) return static_cast<float>(kMinScale);
  return static_cast<float>(-lowest >= largest ? magnitude : -magnitude);
}

QuantizedRow QuantizeInt4(const float* row, int64_t dim) {
  QuantizedRow result;
  result.group = 32;
  for (int64_t i = 0; i < dim; ++i) {
    if (i % 32 == 0) result.scales.push_back(Int4Scale(row + i, std::min<int64_t>(32, dim - i)));
    const float scale = result.scales.back();
    int code = 0;
    if (scale != 0.0f && !std::isnan(scale)) {
      code = NearestQuotient(std::abs(static_cast<double>(row[i])), std::abs(static_cast<double>(scale)));
      if ((row[i] < 0.0f) != (scale < 0.0f)) code = -code;
      code = std::clamp(code, -8, 7);
    }
    result.codes.push_back(code);
  }
  return result;
}

}  // namespace

QuantizedRow Quantize(QuantizedType type, const float* row, int64_t dim) {
  if (type == QuantizedType::kI4) return QuantizeInt4(row, dim);
  const bool is_float = type == QuantizedType::kF8E4M3;
  QuantizedRow result;
  result.group = dim;
  double largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < dim; ++i) {
    finite = finite && std::isfinite(row[i]);
    largest = std::max(largest, std::abs(static_cast<double>(row[i])));
  }
  const float scale = finite ? ByteScale(largest, is_float ? 448.0 : 127.0) : std::numeric_limits<float>::quiet_NaN();
  result.scales.push_back(scale);
  for (int64_t i = 0; i < dim; ++i) {
    int code = 0;
    if (scale > 0.0f) {
      const double magnitude = std::abs(static_cast<double>(row[i]));
      code = is_float ? NearestE4M3(magnitude, static_cast<double>(scale))
                      : std::min(127, NearestQuotient(magnitude, static_cast<double>(scale)));
      if (row[i] < 0.0f && code != 0) code = is_float ? code | 128 : -code;
    }
    result.codes.push_back(code);
  }
  return result;
}

std::vector<float> Dequantize(QuantizedType type, const QuantizedRow& row) {
  std::vector<float> numbers;
  for (size_t i = 0; i < row.codes.size(); ++i) {
    const double scale = static_cast<double>(row.scales[i / static_cast<size_t>(row.group)]);
    const double code = type == QuantizedType::kF8E4M3 ? E4M3(row.codes[i]) : static_cast<double>(row.codes[i]);
    numbers.push_back(static_cast<float>(code * scale));
  }
  return numbers;
}

}  // namespace headlane::reference
