// Running a tile layer allocates nothing, on no thread: replaces the program's allocator, so it is a program of its
// own.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "headlane/executor.h"
#include "headlane/linear.h"
#include "kv/allocation_hooks.h"
#include "linear/stored_weights.h"

namespace headlane {
namespace {

TEST(TileLinear, RunAllocatesNothing) {
  constexpr int64_t kOut = 500, kIn = 600, kMaxRows = 200;
  const auto read = [](const void*, int64_t row, float* out) noexcept {
    for (int64_t i = 0; i < kIn; ++i) out[i] = static_cast<float>((row + i) % 7);
    return OkStatus();
  };
  OpenMPExecutor executor(3);
  const int64_t before_create = internal::NumAllocations();
  Result<Linear> layer = Linear::Create(LinearBackend::kTile, kOut, kIn, {nullptr, read}, executor);
  ASSERT_TRUE(layer.ok());
  EXPECT_GT(internal::NumAllocations(), before_create);  // or the count below would mean nothing
  std::vector<float> x(kMaxRows * kIn, 1.0f), y(kMaxRows * kOut);
  // OpenMP itself allocates at the first region of a size.
  ASSERT_TRUE(layer.value().Run(x.data(), kIn, kMaxRows, y.data(), kOut, executor).ok());
  for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{6}, int64_t{7}, int64_t{25}, kMaxRows}) {
    const int64_t before = internal::NumAllocations();
    const Status status = layer.value().Run(x.data(), kIn, rows, y.data(), kOut, executor);
    const int64_t after = internal::NumAllocations();
    ASSERT_TRUE(status.ok());
    EXPECT_EQ(after, before) << rows;
  }
}

// The same for stored weights, outputs that need sums of their own, and items.
TEST(TileLinear, RunOfStoredWeightsAllocatesNothing) {
  constexpr int64_t kOut = 300, kIn = 512, kMaxRows = 150;
  OpenMPExecutor executor(3);
  const struct {
    LinearOutput output;
    LinearPrecision precision;
  } cases[] = {{LinearOutput::kStore, LinearPrecision::kExact},
               {LinearOutput::kAdd, LinearPrecision::kExact},
               {LinearOutput::kSwiGlu, LinearPrecision::kExact},
               {LinearOutput::kAdd, LinearPrecision::kInt8},
               {LinearOutput::kSwiGlu, LinearPrecision::kInt8}};
  for (const auto& [output, precision] : cases) {
    const testing::StoredWeights first = testing::RandomWeights(WeightFormat::kQ4_1, kOut, kIn, 1);
    const testing::StoredWeights second = testing::RandomWeights(WeightFormat::kQ6_K, kOut, kIn, 2);
    const std::vector<float> bias(kOut, 0.5f);
    LinearPart parts[2] = {first.Part(), second.Part()};
    parts[1].bias = bias.data();
    LinearSpec spec;
    spec.in_features = kIn;
    spec.parts = parts;
    spec.output = output;
    spec.precision = precision;
    const Result<Linear> layer = Linear::Create(spec, executor);
    ASSERT_TRUE(layer.ok()) << layer.status().c_str();
    const int64_t y_stride = layer.value().out_features();
    std::vector<float> x(kMaxRows * kIn, 1.0f), y(static_cast<size_t>(kMaxRows * y_stride)), row(kIn);
    ASSERT_TRUE(layer.value().Run(x.data(), kIn, kMaxRows, y.data(), y_stride, executor).ok());
    for (const int64_t rows : {int64_t{1}, int64_t{3}, int64_t{8}, int64_t{9}, kMaxRows}) {
      const LinearOperands operands = {x.data(), kIn, rows, y.data(), y_stride};
      std::atomic<int64_t> next = 0;
      const int64_t before = internal::NumAllocations();
      const bool ok = layer.value().Run(operands, executor).ok() && layer.value().RunWorker(operands, 2, next).ok() &&
                      layer.value().ReadWeights(kOut, row.data()).ok();
      const int64_t after = internal::NumAllocations();
      ASSERT_TRUE(ok);
      EXPECT_EQ(after, before) << rows;
    }
  }
}

// Memory that can't be had is an error of Create, and nothing leaks.
TEST(TileLinear, CreateSurvivesFailedAllocations) {
  if (!internal::CanFailAllocations()) GTEST_SKIP() << "the sanitizer's heap can't be made to fail";
  const auto read = [](const void*, int64_t, float* out) noexcept {
    for (int64_t i = 0; i < 100; ++i) out[i] = 1.0f;
    return OkStatus();
  };
  int num_failed = 0;
  for (int64_t n = 1; n < 100; ++n) {
    const int64_t live = internal::NumLiveAllocations();
    internal::FailAllocation(n);
    StatusCode code;
    {
      const Result<Linear> layer = Linear::Create(LinearBackend::kTile, 50, 100, {nullptr, read}, SerialExecutor());
      internal::FailAllocation(0);
      code = layer.status().code();
    }
    EXPECT_EQ(internal::NumLiveAllocations(), live) << n;
    if (code == StatusCode::kOk) break;
    EXPECT_EQ(code, StatusCode::kResourceExhausted) << n;
    ++num_failed;
  }
  EXPECT_GE(num_failed, 3);  // the layer, its weights, a buffer of rows
}

}  // namespace
}  // namespace headlane
