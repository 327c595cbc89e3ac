// exp over every float <= 0: 2 139 095 041 of them, NaNs aside.
//
// Kernel and scalar program agree on every one, which bounds the kernel by what is measured of the scalar program: its
// largest error over all of them is the published one, and it never increases as x falls. The first 850 million and the
// last billion are quick: there the result is exactly 1, or exactly +0.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/canonical_math.h"
#include "kernels/kernel_api.h"
#include "reference/canonical_math.h"
#include "support/bits.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

constexpr uint32_t kMinusZero = 0x80000000u;
// From here on, downwards, the scalar program is run; above it |x| < 2^-26 and the nearest float to e^x is 1.
const uint32_t kFirstInteresting = std::bit_cast<uint32_t>(-0x1p-26f);
const uint32_t kFirstBelowCutoff = std::bit_cast<uint32_t>(internal::kExpCutoff) + 1;
constexpr uint32_t kMinusInfinity = 0xFF800000u;

// What one thread saw of [begin, end), in bits.
struct Seen {
  std::string failure;
  double max_error = 0.0;  // |y - e^x| in ulps of e^x
};

constexpr int64_t kChunk = 4096;

using Kernel = void (*)(const float*, int64_t, float*) noexcept;

void Check(const std::vector<Kernel>& kernels, uint32_t begin, uint32_t end, bool run_scalar, float constant,
           Seen& seen) {
  std::vector<float> x(kChunk);
  std::vector<float> y(kChunk);
  std::vector<float> scalar(kChunk, constant);
  float previous = 2.0f;
  for (uint64_t from = begin; from < end; from += kChunk) {
    const int64_t n = static_cast<int64_t>(std::min<uint64_t>(kChunk, end - from));
    for (int64_t i = 0; i < n; ++i) x[i] = std::bit_cast<float>(static_cast<uint32_t>(from + static_cast<uint64_t>(i)));
    if (run_scalar) {
      for (int64_t i = 0; i < n; ++i) {
        const float value = scalar[i] = reference::CanonicalExp(x[i]);
        // e^x lies in [2^-126, 1]: every result is normal, and its ulp is that of e^x's binade.
        const double exact = std::exp(static_cast<double>(x[i]));
        const double ulp =
            std::bit_cast<double>((std::bit_cast<uint64_t>(exact) & 0x7FF0000000000000u) - (uint64_t{23} << 52));
        seen.max_error = std::max(seen.max_error, std::fabs(static_cast<double>(value) - exact) / ulp);
        if (!(value <= previous)) seen.failure = "increases at " + std::to_string(x[i]);
        previous = value;
      }
    }
    for (Kernel kernel : kernels) {
      kernel(x.data(), n, y.data());
      const ::testing::AssertionResult same = SameBits(scalar.data(), y.data(), static_cast<size_t>(n));
      if (!same) seen.failure = std::string(same.message()) + " from x = " + std::to_string(x[0]);
    }
    if (!seen.failure.empty()) return;
  }
}

// Returns the largest error.
double CheckOnAllThreads(const std::vector<Kernel>& kernels, uint32_t begin, uint32_t end, bool run_scalar,
                         float constant) {
  const unsigned num_threads = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  std::vector<Seen> seen(num_threads);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < num_threads; ++t) {
    // One float of overlap, so that monotonicity is seen across the borders too.
    const uint64_t length = static_cast<uint64_t>(end) - begin;
    const uint32_t from = begin + static_cast<uint32_t>(length * t / num_threads) - (t > 0 ? 1u : 0u);
    const uint32_t to = begin + static_cast<uint32_t>(length * (t + 1) / num_threads);
    threads.emplace_back([&, t, from, to] { Check(kernels, from, to, run_scalar, constant, seen[t]); });
  }
  for (std::thread& thread : threads) thread.join();
  double max_error = 0.0;
  for (const Seen& one : seen) {
    EXPECT_EQ(one.failure, "");
    max_error = std::max(max_error, one.max_error);
  }
  return max_error;
}

std::vector<Kernel> AllFmaKernels() {
  std::vector<Kernel> kernels;
  for (const TargetInfo& target : UsableFmaTargets()) {
    const ScopedTarget scope(target.name);
    kernels.push_back(internal::ActiveKernels().softmax.exp_nonpositive);
  }
  return kernels;
}

TEST(ExpExhaustiveTest, IsExactlyOneForTinyArguments) {
  for (uint32_t bits : {kMinusZero, kMinusZero + 1, kFirstInteresting - 1}) {
    EXPECT_EQ(reference::CanonicalExp(std::bit_cast<float>(bits)), 1.0f);
  }
  CheckOnAllThreads(AllFmaKernels(), kMinusZero, kFirstInteresting, false, 1.0f);
}

TEST(ExpExhaustiveTest, BitsErrorAndMonotonicityDownToTheCutoff) {
  const double max_error = CheckOnAllThreads(AllFmaKernels(), kFirstInteresting, kFirstBelowCutoff, true, 0.0f);
  RecordProperty("max_ulp", std::to_string(max_error));
  EXPECT_LE(max_error, internal::kExpObservedUlp);
  EXPECT_GE(max_error, internal::kExpObservedUlp - 0.005) << "the published error is not the real one";
}

TEST(ExpExhaustiveTest, IsExactlyZeroBelowTheCutoff) {
  for (uint32_t bits : {kFirstBelowCutoff, kMinusInfinity})
    EXPECT_EQ(reference::CanonicalExp(std::bit_cast<float>(bits)), 0.0f);
  CheckOnAllThreads(AllFmaKernels(), kFirstBelowCutoff, kMinusInfinity + 1, false, 0.0f);
}

}  // namespace
}  // namespace headlane::testing
