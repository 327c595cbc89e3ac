// Linear layers: the tile backend bit by bit against one chain of FMAs per output, whatever rows, threads and blocking;
// errors of both.
#include "headlane/linear.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "headlane/executor.h"
#include "headlane/target.h"
#include "reference/canonical_ops.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane {
namespace {

using testing::GuardedFloats;
using testing::Random;
using testing::SameBits;

// Rows of a dense matrix [out][in]; counts how often each is read.
struct DenseRows {
  const std::vector<float>& weights;
  int64_t in_features;
  std::vector<std::atomic<int>> reads;
  int64_t fail_from = INT64_MAX;  // rows from here on can't be read

  DenseRows(const std::vector<float>& w, int64_t out_features, int64_t in)
      : weights(w), in_features(in), reads(static_cast<size_t>(out_features)) {}

  WeightRows rows() const { return {this, &Read}; }
  static Status Read(const void* context, int64_t row, float* out) noexcept {
    const DenseRows& self = *static_cast<const DenseRows*>(context);
    if (row >= self.fail_from)
      return MakeStatus(StatusCode::kDataLoss, "row %lld is damaged", static_cast<long long>(row));
    const_cast<std::atomic<int>&>(self.reads[static_cast<size_t>(row)]).fetch_add(1);
    for (int64_t i = 0; i < self.in_features; ++i)
      out[i] = self.weights[static_cast<size_t>(row * self.in_features + i)];
    return OkStatus();
  }
};

// Real threads in any order, and worker numbers that mean nothing.
void RunOnThreads(void* started, int num_workers, Executor::Task task, void* context) {
  if (started != nullptr) static_cast<std::atomic<int>*>(started)->fetch_add(num_workers);
  std::vector<std::thread> threads;
  for (int i = 1; i < num_workers; ++i) threads.emplace_back([=] { task(context, 0); });
  task(context, 0);
  for (std::thread& thread : threads) thread.join();
}

// One worker comes, however many were asked for.
void RunOnOneThread(void*, int, Executor::Task task, void* context) { task(context, 5); }

Linear MustCreate(LinearBackend backend, int64_t out_features, int64_t in_features, const std::vector<float>& weights,
                  Executor& executor) {
  const DenseRows rows(weights, out_features, in_features);
  Result<Linear> layer = Linear::Create(backend, out_features, in_features, rows.rows(), executor);
  EXPECT_TRUE(layer.ok()) << layer.status().c_str();
  for (const std::atomic<int>& reads : rows.reads) EXPECT_EQ(reads.load(), 1);
  return std::move(layer).value();
}

// [rows][out]
std::vector<float> Canonical(const std::vector<float>& x, const std::vector<float>& weights, int64_t rows, int64_t out,
                             int64_t in) {
  std::vector<float> y(static_cast<size_t>(rows * out));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t feature = 0; feature < out; ++feature) {
      y[static_cast<size_t>(row * out + feature)] =
          reference::CanonicalLinear(x.data() + row * in, weights.data() + feature * in, in);
    }
  }
  return y;
}

void CheckShape(int64_t rows, int64_t out, int64_t in, const std::vector<int>& threads) {
  Random random(static_cast<uint64_t>(rows * 1000003 + out * 1009 + in));
  const std::vector<float> weights = random.Floats(static_cast<size_t>(out * in));
  const std::vector<float> x = random.Floats(static_cast<size_t>(rows * in));
  const std::vector<float> expected = Canonical(x, weights, rows, out, in);
  for (const int n : threads) {
    CallbackExecutor executor(nullptr, n, &RunOnThreads);
    const Linear layer = MustCreate(LinearBackend::kTile, out, in, weights, executor);
    const GuardedFloats gx(x);
    const GuardedFloats gy(static_cast<size_t>(rows * out));
    ASSERT_TRUE(layer.Run(gx.data(), in, rows, gy.data(), out, executor).ok());
    EXPECT_TRUE(SameBits(expected.data(), gy.data(), expected.size()))
        << rows << " x " << out << " x " << in << ", threads " << n;
  }
}

constexpr int64_t kFeatures[] = {1, 7, 15, 16, 17, 33, 80, 97, 576, 1000};

TEST(TileLinear, FewRowsAreOneChainOfFmas) {
  for (const TargetInfo& target : testing::UsableFmaTargets()) {
    const testing::ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17}) {
      for (const int64_t out : kFeatures) {
        for (const int64_t in : kFeatures) {
          if (rows * out * in > 2000000 && rows != 1 && rows != 7) continue;  // a scalar chain is slow
          CheckShape(rows, out, in, rows == 1 || rows == 7 ? std::vector<int>{1, 2, 3} : std::vector<int>{2});
        }
      }
    }
  }
}

TEST(TileLinear, ManyRowsAreOneChainOfFmas) {
  for (const TargetInfo& target : testing::UsableFmaTargets()) {
    const testing::ScopedTarget scope(target.name);
    SCOPED_TRACE(target.name);
    // Past every block: rows 24 and 192, 12 tiles, 320 inputs.
    CheckShape(512, 17, 576, {1, 2, 3});
    CheckShape(512, 1, 1, {2});
    CheckShape(193, 210, 321, {1, 3});
    CheckShape(25, 209, 641, {1, 2, 3, 16});
    CheckShape(49, 1000, 319, {2});
  }
}

TEST(TileLinear, TargetsWithoutFmaAreAccurate) {
  constexpr int64_t kRows = 30, kOut = 33, kIn = 300;
  Random random(1);
  const std::vector<float> weights = random.Floats(kOut * kIn), x = random.Floats(kRows * kIn);
  for (const TargetInfo& target : testing::UsableTargets()) {
    const testing::ScopedTarget scope(target.name);
    const Linear layer = MustCreate(LinearBackend::kTile, kOut, kIn, weights, SerialExecutor());
    EXPECT_EQ(std::string(layer.implementation()), std::string("tile ") + target.name);
    std::vector<float> y(kRows * kOut), one(kOut);
    ASSERT_TRUE(layer.Run(x.data(), kIn, kRows, y.data(), kOut, SerialExecutor()).ok());
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t feature = 0; feature < kOut; ++feature) {
        double exact = 0.0, size = 0.0;
        for (int64_t k = 0; k < kIn; ++k) {
          const double product = static_cast<double>(x[row * kIn + k]) * weights[feature * kIn + k];
          exact += product;
          size += std::fabs(product);
        }
        EXPECT_NEAR(y[row * kOut + feature], exact, size * kIn * 0x1p-23) << target.name;
      }
      ASSERT_TRUE(layer.Run(x.data() + row * kIn, kIn, 1, one.data(), kOut, SerialExecutor()).ok());
      EXPECT_TRUE(SameBits(one.data(), y.data() + row * kOut, kOut))
          << target.name << " alone and in a batch, row " << row;
    }
  }
}

TEST(TileLinear, StridesLeaveTheGapsAlone) {
  constexpr int64_t kRows = 29, kOut = 19, kIn = 300, kXStride = 301, kYStride = 37;
  Random random(2);
  const std::vector<float> weights = random.Floats(kOut * kIn), x = random.Floats(kRows * kXStride);
  const Linear layer = MustCreate(LinearBackend::kTile, kOut, kIn, weights, SerialExecutor());
  std::vector<float> y(kRows * kYStride, 7.0f);
  ASSERT_TRUE(layer.Run(x.data(), kXStride, kRows, y.data(), kYStride, SerialExecutor()).ok());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kYStride; ++i) {
      // Without FMA outputs are not canonical.
      if (i < kOut && !ActiveTarget().has_fma) continue;
      const float expected =
          i < kOut ? reference::CanonicalLinear(x.data() + row * kXStride, weights.data() + i * kIn, kIn) : 7.0f;
      ASSERT_TRUE(SameBits(expected, y[row * kYStride + i])) << row << " " << i;
    }
  }
}

TEST(TileLinear, ExecutorsDoNotMatter) {
  constexpr int64_t kRows = 200, kOut = 300, kIn = 400;
  Random random(3);
  const std::vector<float> weights = random.Floats(kOut * kIn), x = random.Floats(kRows * kIn);
  OpenMPExecutor openmp2(2), openmp7(7);
  CallbackExecutor one(nullptr, 8, &RunOnOneThread), many(nullptr, 40, &RunOnThreads);
  const Linear layer = MustCreate(LinearBackend::kTile, kOut, kIn, weights, many);
  std::vector<float> expected(kRows * kOut);
  ASSERT_TRUE(layer.Run(x.data(), kIn, kRows, expected.data(), kOut, SerialExecutor()).ok());
  for (Executor* executor : {static_cast<Executor*>(&openmp2), static_cast<Executor*>(&openmp7),
                             static_cast<Executor*>(&one), static_cast<Executor*>(&many)}) {
    for (const int64_t rows : {int64_t{1}, int64_t{20}, kRows}) {
      std::vector<float> y(expected.size(), 7.0f);
      ASSERT_TRUE(layer.Run(x.data(), kIn, rows, y.data(), kOut, *executor).ok());
      EXPECT_TRUE(SameBits(expected.data(), y.data(), static_cast<size_t>(rows * kOut))) << rows;
    }
  }
  // The same layer from several threads at once.
  std::vector<std::vector<float>> results(4, std::vector<float>(expected.size()));
  std::vector<std::thread> threads;
  for (std::vector<float>& y : results) {
    threads.emplace_back([&] { EXPECT_TRUE(layer.Run(x.data(), kIn, kRows, y.data(), kOut, openmp2).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& y : results) EXPECT_TRUE(SameBits(expected, y));
}

TEST(TileLinear, SharesTheWorkWhenThereIsSome) {
  constexpr int64_t kOut = 2000, kIn = 1000;
  Random random(4);
  const std::vector<float> weights = random.Floats(kOut * kIn), x = random.Floats(kIn);
  std::atomic<int> started = 0;
  CallbackExecutor executor(&started, 3, &RunOnThreads);
  const Linear layer = MustCreate(LinearBackend::kTile, kOut, kIn, weights, executor);
  EXPECT_EQ(started.exchange(0), 3);  // packing
  std::vector<float> y(kOut);
  ASSERT_TRUE(layer.Run(x.data(), kIn, 1, y.data(), kOut, executor).ok());
  EXPECT_EQ(started.load(), 3);
}

TEST(TileLinear, NonFiniteNumbersStayInTheirRowAndFeature) {
  constexpr int64_t kRows = 9, kOut = 20, kIn = 40;
  std::vector<float> weights(kOut * kIn, 1.0f), x(kRows * kIn, 1.0f);
  x[4 * kIn + 3] = NAN;
  weights[17 * kIn + 5] = INFINITY;
  const Linear layer = MustCreate(LinearBackend::kTile, kOut, kIn, weights, SerialExecutor());
  std::vector<float> y(kRows * kOut);
  ASSERT_TRUE(layer.Run(x.data(), kIn, kRows, y.data(), kOut, SerialExecutor()).ok());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t feature = 0; feature < kOut; ++feature) {
      const float value = y[row * kOut + feature];
      if (row == 4) {
        EXPECT_TRUE(std::isnan(value));
      } else {
        EXPECT_EQ(value, feature == 17 ? INFINITY : 40.0f);
      }
    }
  }
}

TEST(Linear, Properties) {
  const std::vector<float> weights(17 * 5, 1.0f);
  Linear layer = MustCreate(LinearBackend::kTile, 17, 5, weights, SerialExecutor());
  EXPECT_EQ(layer.out_features(), 17);
  EXPECT_EQ(layer.in_features(), 5);
  EXPECT_EQ(layer.backend(), LinearBackend::kTile);
  EXPECT_EQ(layer.weight_bytes(), size_t{2 * 16 * 5 * 4});
  EXPECT_EQ(std::string(layer.implementation()), std::string("tile ") + ActiveTarget().name);
  EXPECT_STREQ(LinearBackendName(LinearBackend::kTile), "tile");
  EXPECT_STREQ(LinearBackendName(LinearBackend::kOneDnn), "onednn");
  EXPECT_STREQ(LinearBackendName(LinearBackend::kOneDnnBf16), "onednn-bf16");
  EXPECT_STREQ(LinearBackendName(static_cast<LinearBackend>(9)), "?");
  EXPECT_TRUE(HasLinearBackend(LinearBackend::kTile));
  EXPECT_EQ(HasLinearBackend(LinearBackend::kOneDnn), HEADLANE_WITH_ONEDNN != 0);
  EXPECT_EQ(HasLinearBackend(LinearBackend::kOneDnnBf16), HEADLANE_WITH_ONEDNN != 0);
  EXPECT_FALSE(HasLinearBackend(static_cast<LinearBackend>(9)));

  const Linear taken = std::move(layer);
  EXPECT_EQ(taken.out_features(), 17);
  float x[5] = {}, y[17];
  EXPECT_EQ(layer.Run(x, 5, 1, y, 17, SerialExecutor()).code(),
            StatusCode::kFailedPrecondition);  // NOLINT(bugprone-use-after-move)
}

void ExpectError(const Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << part;
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message();
}

TEST(Linear, ErrorsOfCreate) {
  const std::vector<float> weights(17 * 5, 1.0f);
  const DenseRows rows(weights, 17, 5);
  const auto create = [&](LinearBackend backend, int64_t out, int64_t in, const WeightRows& source) {
    return Linear::Create(backend, out, in, source, SerialExecutor()).status();
  };
  ExpectError(create(LinearBackend::kTile, 0, 5, rows.rows()), StatusCode::kInvalidArgument, "[0, 5]");
  ExpectError(create(LinearBackend::kTile, 17, -1, rows.rows()), StatusCode::kInvalidArgument, "[17, -1]");
  ExpectError(create(LinearBackend::kTile, 17, 5, {}), StatusCode::kInvalidArgument, "rows.read is null");
  ExpectError(create(static_cast<LinearBackend>(7), 17, 5, rows.rows()), StatusCode::kInvalidArgument, "backend 7");
  ExpectError(create(LinearBackend::kTile, INT64_MAX / 2, 5, rows.rows()), StatusCode::kResourceExhausted,
              "exceed memory");
  ExpectError(create(LinearBackend::kTile, 5, INT64_MAX, rows.rows()), StatusCode::kResourceExhausted, "exceed memory");
  ExpectError(create(LinearBackend::kTile, int64_t{1} << 30, int64_t{1} << 28, rows.rows()),
              StatusCode::kResourceExhausted, "weights");
#if !HEADLANE_WITH_ONEDNN
  ExpectError(create(LinearBackend::kOneDnn, 17, 5, rows.rows()), StatusCode::kUnsupported,
              "'onednn' is not in this build");
  ExpectError(create(LinearBackend::kOneDnnBf16, 17, 5, rows.rows()), StatusCode::kUnsupported,
              "'onednn-bf16' is not in this build");
#endif
}

// The error of the lowest damaged row, for any number of threads.
TEST(Linear, ReportsTheFirstRowThatCannotBeRead) {
  constexpr int64_t kOut = 700, kIn = 9;
  const std::vector<float> weights(kOut * kIn, 1.0f);
  for (const LinearBackend backend : {LinearBackend::kTile, LinearBackend::kOneDnn}) {
    if (!HasLinearBackend(backend)) continue;
    for (const int threads : {1, 2, 3, 7}) {
      for (const int64_t first_bad : {0, 5, 100, 699}) {
        DenseRows rows(weights, kOut, kIn);
        rows.fail_from = first_bad;
        CallbackExecutor executor(nullptr, threads, &RunOnThreads);
        const Status status = Linear::Create(backend, kOut, kIn, rows.rows(), executor).status();
        ExpectError(status, StatusCode::kDataLoss, "row " + std::to_string(first_bad) + " is damaged");
      }
    }
  }
}

TEST(Linear, ErrorsOfRunWriteNothing) {
  constexpr int64_t kOut = 17, kIn = 5;
  const std::vector<float> weights(kOut * kIn, 1.0f), x(4 * kIn, 1.0f);
  for (const LinearBackend backend : {LinearBackend::kTile, LinearBackend::kOneDnn}) {
    if (!HasLinearBackend(backend)) continue;
    const Linear layer = MustCreate(backend, kOut, kIn, weights, SerialExecutor());
    std::vector<float> y(4 * kOut, 7.0f);
    const auto run = [&](const float* in, int64_t x_stride, int64_t rows, float* out, int64_t y_stride) {
      return layer.Run(in, x_stride, rows, out, y_stride, SerialExecutor());
    };
    ExpectError(run(x.data(), kIn, -3, y.data(), kOut), StatusCode::kInvalidArgument, "-3 rows");
    ExpectError(run(nullptr, kIn, 2, y.data(), kOut), StatusCode::kInvalidArgument, "x is null");
    ExpectError(run(x.data(), kIn, 2, nullptr, kOut), StatusCode::kInvalidArgument, "y is null");
    ExpectError(run(x.data(), 4, 2, y.data(), kOut), StatusCode::kInvalidArgument,
                "x_stride is 4, shorter than a row of 5");
    ExpectError(run(x.data(), kIn, 2, y.data(), 16), StatusCode::kInvalidArgument,
                "y_stride is 16, shorter than a row of 17");
    ExpectError(run(x.data(), INT64_MAX / 2, 3, y.data(), kOut), StatusCode::kInvalidArgument, "exceed memory");
    EXPECT_TRUE(run(nullptr, 0, 0, nullptr, 0).ok());
    for (const float value : y) EXPECT_EQ(value, 7.0f);
  }
}

}  // namespace
}  // namespace headlane
