// The oneDNN backend: right within what f32 sums allow, any shape, and a guest that leaves the caller's OpenMP setting
// alone.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "headlane/executor.h"
#include "headlane/linear.h"
#include "linear/onednn_linear.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

#if HEADLANE_WITH_OPENMP
#include <omp.h>
#endif

namespace headlane {
namespace {

using testing::GuardedFloats;
using testing::Random;

struct Matrix {
  int64_t in_features;
  std::vector<float> weights;  // [out][in]
};

Linear MustCreate(int64_t out, int64_t in, const Matrix& matrix, Executor& executor) {
  const auto read = [](const void* context, int64_t row, float* to) noexcept {
    const Matrix& m = *static_cast<const Matrix*>(context);
    std::memcpy(to, m.weights.data() + row * m.in_features, static_cast<size_t>(m.in_features) * sizeof(float));
    return OkStatus();
  };
  Result<Linear> layer = Linear::Create(LinearBackend::kOneDnn, out, in, {&matrix, read}, executor);
  EXPECT_TRUE(layer.ok()) << layer.status().c_str();
  return std::move(layer).value();
}

Matrix RandomMatrix(int64_t out, int64_t in) {
  return {in, Random(static_cast<uint64_t>(out * 7919 + in)).Floats(static_cast<size_t>(out * in))};
}

// A sum of n products in any order errs by at most n u sum |x w|.
void ExpectClose(const Matrix& m, const float* x, int64_t x_stride, int64_t rows, const float* y, int64_t y_stride,
                 int64_t out) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t feature = 0; feature < out; ++feature) {
      double exact = 0.0, size = 0.0;
      for (int64_t k = 0; k < m.in_features; ++k) {
        const double product =
            static_cast<double>(x[row * x_stride + k]) * m.weights[static_cast<size_t>(feature * m.in_features + k)];
        exact += product;
        size += std::fabs(product);
      }
      ASSERT_NEAR(y[row * y_stride + feature], exact, size * static_cast<double>(m.in_features) * 0x1p-24)
          << rows << " x " << out << " x " << m.in_features << " at " << row << ", " << feature;
    }
  }
}

TEST(OneDnnLinear, AnyShape) {
  OpenMPExecutor executor(2);
  for (const int64_t out : {1, 7, 16, 17, 100, 576}) {
    for (const int64_t in : {1, 7, 16, 17, 100, 576}) {
      const Matrix matrix = RandomMatrix(out, in);
      const Linear layer = MustCreate(out, in, matrix, executor);
      EXPECT_EQ(layer.backend(), LinearBackend::kOneDnn);
      EXPECT_GE(layer.weight_bytes(), static_cast<size_t>(out * in) * sizeof(float));
      const std::string implementation = layer.implementation();
      EXPECT_EQ(implementation.find("onednn "), 0u) << implementation;
      EXPECT_EQ(implementation.find("onednn ref"), std::string::npos) << implementation;
      for (const int64_t rows : {1, 2, 3, 17, 64, 65}) {
        const GuardedFloats x(Random(static_cast<uint64_t>(rows)).Floats(static_cast<size_t>(rows * in)));
        const GuardedFloats y(static_cast<size_t>(rows * out));
        const Status status = layer.Run(x.data(), in, rows, y.data(), out, executor);
        ASSERT_TRUE(status.ok()) << status.c_str();
        ExpectClose(matrix, x.data(), in, rows, y.data(), out, out);
      }
    }
  }
}

TEST(OneDnnLinear, Strides) {
  constexpr int64_t kOut = 33, kIn = 50;
  const Matrix matrix = RandomMatrix(kOut, kIn);
  const Linear layer = MustCreate(kOut, kIn, matrix, SerialExecutor());
  // More pairs of strides than the layer keeps primitives for, the first one again at the end.
  for (int64_t gap = 0; gap <= 40; ++gap) {
    const int64_t x_stride = kIn + gap % 40, y_stride = kOut + 2 * (gap % 40);
    const std::vector<float> x = Random(5).Floats(static_cast<size_t>(9 * x_stride));
    for (const int64_t rows : {1, 9}) {
      std::vector<float> y(static_cast<size_t>(9 * y_stride), 7.0f);
      ASSERT_TRUE(layer.Run(x.data(), x_stride, rows, y.data(), y_stride, SerialExecutor()).ok());
      ExpectClose(matrix, x.data(), x_stride, rows, y.data(), y_stride, kOut);
      for (int64_t i = 0; i < 9 * y_stride; ++i) {
        if (i / y_stride < rows && i % y_stride < kOut) continue;
        EXPECT_EQ(y[static_cast<size_t>(i)], 7.0f) << i;
      }
    }
  }
}

TEST(OneDnnLinear, FromSeveralThreadsAtOnce) {
  constexpr int64_t kOut = 100, kIn = 200, kRows = 10;
  const Matrix matrix = RandomMatrix(kOut, kIn);
  const Linear layer = MustCreate(kOut, kIn, matrix, SerialExecutor());
  const std::vector<float> x = Random(6).Floats(kRows * kIn);
  std::vector<std::vector<float>> results(4, std::vector<float>(kRows * kOut));
  std::vector<std::thread> threads;
  for (std::vector<float>& y : results) {
    threads.emplace_back([&] {
      for (int64_t rows = 1; rows <= kRows; ++rows)
        EXPECT_TRUE(layer.Run(x.data(), kIn, rows, y.data(), kOut, SerialExecutor()).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& y : results) ExpectClose(matrix, x.data(), kIn, kRows, y.data(), kOut, kOut);
}

// Two parts of f32 weights with a bias each.
struct TwoParts {
  TwoParts(int64_t out, int64_t in)
      : in_features(in),
        matrices{RandomMatrix(out, in), RandomMatrix(out, in + 1)},
        biases{Random(21).Floats(static_cast<size_t>(out)), Random(22).Floats(static_cast<size_t>(out))} {
    matrices[1].in_features = in;  // of longer rows, cut off
    for (size_t i = 0; i < 2; ++i) {
      parts[i].out_features = out;
      parts[i].rows.data = matrices[i].weights.data();
      parts[i].rows.data_bytes = out * in * int64_t{sizeof(float)};
      parts[i].bias = biases[i].data();
    }
  }
  LinearSpec Spec(LinearBackend backend, LinearOutput output) const { return {backend, in_features, parts, output}; }

  int64_t in_features;
  Matrix matrices[2];
  std::vector<float> biases[2];
  LinearPart parts[2];
};

TEST(OneDnnLinear, FromTilesWithEveryOutputAndScratchOfTheCallers) {
  constexpr int64_t kOut = 40, kIn = 70, kRows = 21;
  const TwoParts two(kOut, kIn);
  OpenMPExecutor executor(2);
  const std::vector<float> x = Random(9).Floats(kRows * kIn);
  for (const LinearOutput output : {LinearOutput::kStore, LinearOutput::kAdd, LinearOutput::kSwiGlu}) {
    const Result<Linear> tiles = Linear::Create(two.Spec(LinearBackend::kTile, output), executor);
    ASSERT_TRUE(tiles.ok()) << tiles.status().c_str();
    const Result<Linear> layer = Linear::CreateFromTiles(two.Spec(LinearBackend::kOneDnn, output), *tiles, executor);
    ASSERT_TRUE(layer.ok()) << layer.status().c_str();
    EXPECT_GE(layer->weight_bytes(), size_t{2 * kOut * kIn * 4});
    const int64_t width = layer->out_features();
    ASSERT_EQ(width, tiles->out_features());
    EXPECT_EQ(tiles->ScratchBytes(kRows), 0);
    EXPECT_EQ(layer->ScratchBytes(0), 0);
    const int64_t scratch_bytes = layer->ScratchBytes(kRows);
    EXPECT_EQ(scratch_bytes, output == LinearOutput::kSwiGlu ? kRows * 2 * kOut * 4 : 0);
    EXPECT_EQ(layer->ScratchBytes(INT64_MAX / 2), output == LinearOutput::kSwiGlu ? INT64_MAX : 0);

    const std::vector<float> before(static_cast<size_t>(kRows * width), 0.5f);
    std::vector<float> expected = before, own = before;
    ASSERT_TRUE(tiles->Run(x.data(), kIn, kRows, expected.data(), width, executor).ok());
    ASSERT_TRUE(layer->Run(x.data(), kIn, kRows, own.data(), width, executor).ok());
    for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], expected[i], 1e-4) << i;
    if (scratch_bytes == 0) continue;
    const testing::GuardedBuffer scratch(static_cast<size_t>(scratch_bytes) + 64);
    std::byte* const begin =
        reinterpret_cast<std::byte*>(scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64);
    std::vector<float> given = before;
    LinearOperands operands = {x.data(), kIn, kRows, given.data(), width, {begin, static_cast<size_t>(scratch_bytes)}};
    ASSERT_TRUE(layer->Run(operands, executor).ok());
    EXPECT_EQ(given, own);
    operands.scratch = {begin, static_cast<size_t>(scratch_bytes) - 1};
    EXPECT_EQ(layer->Run(operands, executor).code(), StatusCode::kInvalidArgument);
    operands.scratch = {begin + 4, static_cast<size_t>(scratch_bytes)};
    EXPECT_EQ(layer->Run(operands, executor).code(), StatusCode::kInvalidArgument);
  }
}

TEST(OneDnnLinear, FromTilesRefuses) {
  const TwoParts two(40, 70), other(41, 70);
  const Linear tiles = Linear::Create(two.Spec(LinearBackend::kTile, LinearOutput::kStore), SerialExecutor()).value();
  const Linear onednn =
      Linear::Create(two.Spec(LinearBackend::kOneDnn, LinearOutput::kStore), SerialExecutor()).value();
  const auto code = [](const LinearSpec& spec, const Linear& from) {
    return Linear::CreateFromTiles(spec, from, SerialExecutor()).status().code();
  };
  EXPECT_EQ(code(two.Spec(LinearBackend::kOneDnn, LinearOutput::kStore), onednn), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(two.Spec(LinearBackend::kTile, LinearOutput::kStore), tiles), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(other.Spec(LinearBackend::kOneDnn, LinearOutput::kStore), tiles), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(two.Spec(static_cast<LinearBackend>(7), LinearOutput::kStore), tiles), StatusCode::kInvalidArgument);
}

// Right where the processor can, refused where it would only be slower.
TEST(OneDnnLinear, Bf16) {
  constexpr int64_t kOut = 64, kIn = 128, kRows = 33;
  const TwoParts two(kOut, kIn);
  const Linear tiles = Linear::Create(two.Spec(LinearBackend::kTile, LinearOutput::kSwiGlu), SerialExecutor()).value();
  const Result<Linear> layer =
      Linear::CreateFromTiles(two.Spec(LinearBackend::kOneDnnBf16, LinearOutput::kSwiGlu), tiles, SerialExecutor());
  if (!layer.ok()) {
    EXPECT_EQ(layer.status().code(), StatusCode::kUnsupported) << layer.status().c_str();
    return;
  }
  EXPECT_GE(layer->weight_bytes(), size_t{2 * kOut * kIn * 2});
  EXPECT_LT(layer->weight_bytes(), size_t{2 * kOut * kIn * 4});
  EXPECT_EQ(layer->ScratchBytes(kRows), kRows * (2 * kOut * 4 + kIn * 2));
  const std::vector<float> x = Random(9).Floats(kRows * kIn);
  std::vector<float> expected(kRows * kOut), actual(kRows * kOut);
  ASSERT_TRUE(tiles.Run(x.data(), kIn, kRows, expected.data(), kOut, SerialExecutor()).ok());
  ASSERT_TRUE(layer->Run(x.data(), kIn, kRows, actual.data(), kOut, SerialExecutor()).ok());
  // Two roundings of 2^-9 in each product, whose sums are some ten large; and those multiplied.
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 0.02 * (10 + std::fabs(expected[i])));
}

TEST(OneDnnLinear, WhatCountsAsFast) {
  using internal::IsFastBf16;
  using internal::IsFastImplementation;
  EXPECT_TRUE(IsFastImplementation("brg_matmul:avx2"));
  EXPECT_TRUE(IsFastImplementation("gemm:jit:f32"));
  EXPECT_FALSE(IsFastImplementation("ref:any"));
  EXPECT_FALSE(IsFastImplementation("ref_int8:any"));
  // As dnnl_cpu_isa_t numbers them.
  constexpr uint32_t kAvx2 = 0x7, kAvx2Vnni2 = 0x1f, kAvx512 = 0x27, kAvx512Vnni = 0x67, kAvx512Bf16 = 0xe7,
                     kAmx = 0xfef;
  EXPECT_TRUE(IsFastBf16(kAvx512Bf16, "brg_matmul:avx512_core_bf16"));
  EXPECT_TRUE(IsFastBf16(kAmx, "brg_matmul:avx10_1_512_amx"));
  EXPECT_FALSE(IsFastBf16(kAmx, "ref:any"));
  for (const uint32_t isa : {0u, kAvx2, kAvx2Vnni2, kAvx512, kAvx512Vnni}) {
    EXPECT_FALSE(IsFastBf16(isa, "brg_matmul:avx512_core")) << isa;
  }
}

#if HEADLANE_WITH_OPENMP
TEST(OneDnnLinear, LeavesTheCallersOpenMPSettingAlone) {
  constexpr int64_t kOut = 64, kIn = 64, kRows = 8;
  const Matrix matrix = RandomMatrix(kOut, kIn);
  const std::vector<float> x = Random(7).Floats(kRows * kIn);
  std::vector<float> y(kRows * kOut);
  const int before = omp_get_max_threads();
  for (const int threads : {1, 2, 3, before + 4}) {
    OpenMPExecutor executor(threads);
    const Linear layer = MustCreate(kOut, kIn, matrix, executor);
    EXPECT_EQ(omp_get_max_threads(), before);
    ASSERT_TRUE(layer.Run(x.data(), kIn, kRows, y.data(), kOut, executor).ok());
    EXPECT_EQ(omp_get_max_threads(), before);
    ExpectClose(matrix, x.data(), kIn, kRows, y.data(), kOut, kOut);
  }
}
#endif

// libgomp's threads do not survive fork(): a child that waits for them hangs. Without OpenMP in the library nothing
// keeps oneDNN from that, so the child is refused.
TEST(OneDnnLinear, DoesNotHangInAForkedChild) {
  constexpr int64_t kOut = 300, kIn = 300, kRows = 64;
  const Matrix matrix = RandomMatrix(kOut, kIn);
  OpenMPExecutor executor(3);
  const Linear layer = MustCreate(kOut, kIn, matrix, executor);
  const std::vector<float> x = Random(8).Floats(kRows * kIn);
  std::vector<float> y(kRows * kOut);
  ASSERT_TRUE(layer.Run(x.data(), kIn, kRows, y.data(), kOut, executor).ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    std::vector<float> again(y.size());
    const Status run = layer.Run(x.data(), kIn, kRows, again.data(), kOut, executor);
#if HEADLANE_WITH_OPENMP
    if (!run.ok() || std::fabs(again[5] - y[5]) > 1e-3f) _exit(1);
    const Linear fresh = MustCreate(kOut, kIn, matrix, executor);
    if (!fresh.Run(x.data(), kIn, kRows, again.data(), kOut, executor).ok() || std::fabs(again[7] - y[7]) > 1e-3f)
      _exit(2);
#else
    if (run.code() != StatusCode::kUnsupported) _exit(3);
#endif
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace headlane
