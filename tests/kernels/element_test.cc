// f16 and bf16 at the borders of the kernels: every code widened, every kind of rounding, on every target, against the
// scalar conversions (whose own correctness tests/base shows).
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/float16.h"
#include "kernels/kernel_api.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

float Widen(DType dtype, uint16_t code) {
  return dtype == DType::kF16 ? internal::F16ToF32(code) : internal::BF16ToF32(code);
}
uint16_t Narrow(DType dtype, float x) { return dtype == DType::kF16 ? internal::F32ToF16(x) : internal::F32ToBF16(x); }

TEST(ElementTest, EveryCodeIsWidenedExactly) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      const GuardedArray<uint16_t> codes(65536);
      for (size_t i = 0; i < 65536; ++i) codes[i] = static_cast<uint16_t>(i);
      const GuardedFloats y(65536);
      internal::ActiveKernels().elementwise.scale(codes.data(), dtype, 1, 1.0f, 65536, y.data());
      for (size_t i = 0; i < 65536; ++i) {
        const float expected = Widen(dtype, codes[i]);
        ASSERT_TRUE(SameBits(expected, y[i], NaNs::kEqual)) << target.name << " " << DTypeName(dtype) << " code " << i;
      }
    }
  }
}

TEST(ElementTest, ScaleOfAnyLengthAndStride) {
  Random random(31);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      for (int64_t n = 1; n <= 70; ++n) {
        for (int64_t stride : {1, 2, 5, -1, 0}) {
          const int64_t span = std::abs(stride) * (n - 1) + 1;
          const GuardedArray<uint16_t> x(static_cast<size_t>(span));
          for (size_t i = 0; i < x.size(); ++i) x[i] = Narrow(dtype, random.Float());
          const uint16_t* const first = x.data() + (stride < 0 ? span - 1 : 0);
          const GuardedFloats y(static_cast<size_t>(n));
          internal::ActiveKernels().elementwise.scale(first, dtype, stride, 0.0884f, n, y.data());
          for (int64_t i = 0; i < n; ++i) {
            ASSERT_TRUE(SameBits(Widen(dtype, first[i * stride]) * 0.0884f, y[static_cast<size_t>(i)]))
                << target.name << " " << DTypeName(dtype) << " n " << n << " stride " << stride << " [" << i << "]";
          }
        }
      }
    }
  }
}

TEST(ElementTest, StoreOfAnyLengthAndStride) {
  // Every tie of both types (bf16's have 16 low bits, f16's 13), their neighbours, and the extremes, and random
  // numbers.
  std::vector<float> values = {0.0f, -0.0f, 65519.0f, 65520.0f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f, 0x1p-133f, 0x1p-134f};
  for (const float special : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()}) {
    values.push_back(special);
    values.push_back(-special);
  }
  Random random(32);
  for (int i = 0; i < 2000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random.Next());
    for (const uint32_t low_bits : {13u, 16u}) {
      const uint32_t tie = (bits >> low_bits << low_bits) | 1u << (low_bits - 1);
      for (const uint32_t near : {bits, tie, tie - 1, tie + 1}) values.push_back(std::bit_cast<float>(near));
    }
  }
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      size_t next = 0;
      for (int64_t n = 1; n <= 70; ++n) {
        for (int64_t stride : {1, 2, 5, -1}) {
          const GuardedFloats x(static_cast<size_t>(n));
          for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = values[next++ % values.size()];
          const int64_t span = std::abs(stride) * (n - 1) + 1;
          const GuardedArray<uint16_t> y(static_cast<size_t>(span));
          std::fill_n(y.data(), y.size(), uint16_t{0x5A5A});
          uint16_t* const first = y.data() + (stride < 0 ? span - 1 : 0);
          internal::ActiveKernels().elementwise.store(x.data(), n, dtype, stride, first);
          for (int64_t i = 0; i < span; ++i) {
            const int64_t at = stride < 0 ? span - 1 - i : i;
            const bool is_stored = at % std::abs(stride) == 0;
            const size_t from = static_cast<size_t>(at / std::abs(stride));
            ASSERT_EQ(y[static_cast<size_t>(i)], is_stored ? Narrow(dtype, x[from]) : 0x5A5A)
                << target.name << " " << DTypeName(dtype) << " n " << n << " stride " << stride << " [" << i << "]";
          }
        }
      }
    }
  }
}

// What finish stores of x: o / 1 + 0.
void CheckRounding(const char* target, DType dtype, const std::vector<float>& x, int64_t stride) {
  const int64_t n = static_cast<int64_t>(x.size());
  const GuardedFloats o(static_cast<size_t>(internal::RoundUp(n, 16)));
  std::copy(x.begin(), x.end(), o.data());
  const GuardedArray<uint16_t> out(static_cast<size_t>((n - 1) * stride + 1));
  void* const row = out.data();
  const float m = 0.0f, l = 1.0f;
  internal::FinishArgs args{};
  args.rows = 1;
  args.v_dim = n;
  args.m = &m;
  args.l = &l;
  args.o = o.data();
  args.o_pitch = internal::RoundUp(n, 16);
  args.out = &row;
  args.out_dtype = dtype;
  args.out_stride = stride;
  internal::ActiveKernels().softmax.finish(args);
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[static_cast<size_t>(i)];
    ASSERT_EQ(Narrow(dtype, value + 0.0f), out[static_cast<size_t>(i * stride)])
        << target << " " << DTypeName(dtype) << " of " << std::hexfloat << value;
    for (int64_t j = 1; j < stride && i + 1 < n; ++j) {
      ASSERT_EQ(out[static_cast<size_t>(i * stride + j)], 0xFFFF) << "between features";
    }
  }
}

// Around every number of the type and every tie between two of them, and a walk over all floats.
std::vector<float> RoundingCases(DType dtype) {
  std::vector<float> cases;
  for (uint32_t code = 0; code < 0x8000; ++code) {
    const uint32_t bits = std::bit_cast<uint32_t>(Widen(dtype, static_cast<uint16_t>(code)));
    const uint32_t next = std::bit_cast<uint32_t>(Widen(dtype, static_cast<uint16_t>(code + 1)));
    for (uint32_t around : {bits, bits + (next - bits) / 2}) {
      for (uint32_t delta : {0xFFFFFFFFu, 0u, 1u}) {
        cases.push_back(std::bit_cast<float>(around + delta));
        cases.push_back(std::bit_cast<float>((around + delta) ^ 0x80000000u));
      }
    }
  }
  // Ties between f16's denormals are no halfway points of f32's bits.
  for (uint32_t i = 0; i < 2048; ++i) {
    for (int ulps : {-1, 0, 1}) {
      const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(i) * 0x1p-25f);
      cases.push_back(std::bit_cast<float>(bits + static_cast<uint32_t>(ulps)));
    }
  }
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 9973) {
    cases.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return cases;
}

TEST(ElementTest, OutputsAreRoundedToNearestEven) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      const std::vector<float> cases = RoundingCases(dtype);
      CheckRounding(target.name, dtype, cases, 1);
      if (::testing::Test::HasFatalFailure()) return;
      Random random(5);
      for (int64_t n = 1; n < 40; ++n) {
        for (int64_t stride : {1, 2, 7}) {
          std::vector<float> few;
          for (int64_t i = 0; i < n; ++i) few.push_back(random.Pick(cases));
          CheckRounding(target.name, dtype, few, stride);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(ElementTest, AnEmptyStateIsZeroInEveryType) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      const GuardedFloats o(16);  // NaNs
      const GuardedArray<uint16_t> out(7);
      void* const row = out.data();
      const float m = -std::numeric_limits<float>::infinity(), l = 0.0f;
      float lse = 1.0f;
      float* const lse_row = &lse;
      internal::ActiveKernels().softmax.finish({1, 7, &m, &l, o.data(), 16, &row, dtype, 1, &lse_row});
      for (size_t i = 0; i < 7; ++i) EXPECT_EQ(out[i], 0) << target.name;
      EXPECT_EQ(lse, m) << target.name;
    }
  }
}

}  // namespace
}  // namespace headlane::testing
