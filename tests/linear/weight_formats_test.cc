// Layers on stored weights, format by format: the weights are the defined ones to the bit, and a layer has the bits of
// the layer on these weights as f32, for any rows, threads and target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/target.h"
#include "linear/stored_weights.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane {
namespace {

using testing::GuardedFloats;
using testing::Random;
using testing::SameBits;
using testing::StoredWeights;

void RunOnThreads(void*, int num_workers, Executor::Task task, void* context) {
  std::vector<std::thread> threads;
  for (int i = 1; i < num_workers; ++i) threads.emplace_back([=] { task(context, 0); });
  task(context, 0);
  for (std::thread& thread : threads) thread.join();
}

Linear MustCreate(const LinearSpec& spec, Executor& executor) {
  Result<Linear> layer = Linear::Create(spec, executor);
  EXPECT_TRUE(layer.ok()) << layer.status().c_str();
  return std::move(layer).value();
}

Linear LayerOf(const StoredWeights& w, Executor& executor) {
  const LinearPart part = w.Part();
  LinearSpec spec;
  spec.in_features = w.in_features;
  spec.parts = {&part, 1};
  return MustCreate(spec, executor);
}

Linear DenseLayerOf(const std::vector<float>& weights, int64_t out, int64_t in, Executor& executor) {
  LinearPart part;
  part.out_features = out;
  part.rows.data = weights.data();
  part.rows.data_bytes = static_cast<int64_t>(weights.size() * sizeof(float));
  LinearSpec spec;
  spec.in_features = in;
  spec.parts = {&part, 1};
  return MustCreate(spec, executor);
}

int64_t BlockLen(WeightFormat format) { return FindWeightFormat(format)->block_len; }

TEST(WeightFormats, WeightsAreTheDefinedOnes) {
  for (const TargetInfo& target : testing::UsableTargets()) {
    const testing::ScopedTarget scope(target.name);
    for (const WeightFormat format : testing::kAllFormats) {
      for (const int64_t out : {1, 16, 37}) {
        for (const int64_t blocks : {1, 3, 20}) {
          const int64_t in = blocks * BlockLen(format);
          const StoredWeights w = testing::RandomWeights(format, out, in, static_cast<uint64_t>(out * 100 + in));
          const std::vector<float> expected = testing::Dequantised(w);
          const Linear layer = LayerOf(w, SerialExecutor());
          const GuardedFloats row(static_cast<size_t>(in));
          for (int64_t feature = 0; feature < out; ++feature) {
            ASSERT_TRUE(layer.ReadWeights(feature, row.data()).ok());
            for (int64_t k = 0; k < in; ++k) {
              ASSERT_TRUE(SameBits(expected[static_cast<size_t>(feature * in + k)], row[static_cast<size_t>(k)]))
                  << target.name << " " << WeightFormatName(format) << " feature " << feature << " input " << k << ": "
                  << row[static_cast<size_t>(k)] << " instead of " << expected[static_cast<size_t>(feature * in + k)];
            }
          }
        }
      }
    }
  }
}

void CheckRows(const StoredWeights& w, const std::vector<float>& dense, const std::vector<int64_t>& rows_list,
               const std::vector<int>& threads, const std::string& what) {
  const int64_t out = w.out_features, in = w.in_features;
  for (const int n : threads) {
    CallbackExecutor executor(nullptr, n, &RunOnThreads);
    const Linear layer = LayerOf(w, executor);
    const Linear reference = DenseLayerOf(dense, out, in, SerialExecutor());
    for (const int64_t rows : rows_list) {
      const GuardedFloats x(Random(static_cast<uint64_t>(rows)).Floats(static_cast<size_t>(rows * in)));
      const GuardedFloats y(static_cast<size_t>(rows * out));
      const GuardedFloats expected(static_cast<size_t>(rows * out));
      ASSERT_TRUE(layer.Run(x.data(), in, rows, y.data(), out, executor).ok());
      // Row by row, so that batches of the layer on f32 weights are checked too.
      for (int64_t row = 0; row < rows; ++row) {
        ASSERT_TRUE(reference.Run(x.data() + row * in, in, 1, expected.data() + row * out, out, SerialExecutor()).ok());
      }
      ASSERT_TRUE(SameBits(expected.data(), y.data(), expected.size()))
          << what << " " << WeightFormatName(w.format) << " [" << out << ", " << in << "] rows " << rows << " threads "
          << n;
    }
  }
}

TEST(WeightFormats, LayersHaveTheBitsOfTheirWeightsAsF32) {
  for (const TargetInfo& target : testing::UsableTargets()) {
    const testing::ScopedTarget scope(target.name);
    for (const WeightFormat format : testing::kAllFormats) {
      const int64_t block = BlockLen(format);
      for (const int64_t out : {1, 16, 33, 80, 130}) {
        const int64_t in = block == 1 ? 301 : block == 32 ? 96 : 512;
        const StoredWeights w = testing::RandomWeights(format, out, in, static_cast<uint64_t>(out));
        CheckRows(w, testing::Dequantised(w), {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}, {1, 3}, target.name);
      }
    }
  }
}

// Zeros and infinities are where weights made in one FMA could differ from products: sums that are -0, which only
// inputs of next to nothing give, sums of weights of 0 of either sign, and scales that are infinite or no number.
TEST(WeightFormats, SumsOfNothingAndInfiniteScales) {
  constexpr int64_t kOut = 80;
  const float inf = std::numeric_limits<float>::infinity(), least = std::numeric_limits<float>::denorm_min();
  const float inputs[][3] = {{0.0f, 0.0f, 0.0f},   {least, least, least}, {-least, 0.0f, 0.0f}, {-least, 0.0f, -0.0f},
                             {0.0f, -least, 0.0f}, {1.0f, -1.0f, 0.5f},   {inf, 0.0f, 0.0f}};
  for (const TargetInfo& target : testing::UsableTargets()) {
    const testing::ScopedTarget scope(target.name);
    for (const WeightFormat format : testing::kAllFormats) {
      const int64_t in = std::max<int64_t>(2 * BlockLen(format), 3);
      StoredWeights w = testing::RandomWeights(format, kOut, in, 11);
      for (const int at : testing::ScalesOf(format)) {
        constexpr uint16_t kScales[] = {0x7C00, 0xFC00, 0x7E00, 0x0000, 0x8000, 0x0001, 0x8001};
        // Features 0 to 15 have these; those of the second tile and the following are as they are.
        for (int64_t i = 0; i < 16; ++i) {
          std::memcpy(w.bytes.data() + i * w.row_bytes + at, &kScales[static_cast<size_t>(i) % std::size(kScales)], 2);
        }
      }
      const Linear layer = LayerOf(w, SerialExecutor());
      // What weights are is a matter of the other tests.
      std::vector<float> weights(static_cast<size_t>(kOut * in));
      for (int64_t i = 0; i < kOut; ++i) ASSERT_TRUE(layer.ReadWeights(i, weights.data() + i * in).ok());
      const Linear reference = DenseLayerOf(weights, kOut, in, SerialExecutor());
      for (const int64_t rows : {1, 2, 4, 7}) {
        for (int64_t first = 0; first < static_cast<int64_t>(std::size(inputs)); ++first) {
          std::vector<float> x(static_cast<size_t>(rows * in));
          for (int64_t i = 0; i < rows * in; ++i) {
            const float* const row = inputs[static_cast<size_t>(first + i / in) % std::size(inputs)];
            x[static_cast<size_t>(i)] = row[i % in % 3];
          }
          std::vector<float> y(static_cast<size_t>(rows * kOut)), expected(y.size());
          ASSERT_TRUE(layer.Run(x.data(), in, rows, y.data(), kOut, SerialExecutor()).ok());
          ASSERT_TRUE(reference.Run(x.data(), in, rows, expected.data(), kOut, SerialExecutor()).ok());
          for (size_t i = 0; i < y.size(); ++i) {
            if (std::isnan(y[i]) && std::isnan(expected[i])) continue;
            ASSERT_TRUE(SameBits(y[i], expected[i]))
                << target.name << " " << WeightFormatName(format) << " rows " << rows << " inputs " << first << " sum "
                << i << ": " << y[i] << " instead of " << expected[i];
          }
        }
      }
    }
  }
}

TEST(WeightFormats, ManyRowsAndThreads) {
  for (const TargetInfo& target : testing::UsableTargets()) {
    const testing::ScopedTarget scope(target.name);
    for (const WeightFormat format : testing::kAllFormats) {
      // More inputs than a panel has, and more rows than an item.
      const int64_t in = BlockLen(format) == 1 ? 1001 : BlockLen(format) == 32 ? 864 : 1024;
      const StoredWeights w = testing::RandomWeights(format, 150, in, 7);
      CheckRows(w, testing::Dequantised(w), {1, 3, 17, 128, 256, 512}, {1, 2, 3}, target.name);
    }
  }
}

// Beside the sums in double: the chain of FMAs errs by at most n rounding units of the sum of magnitudes.
TEST(WeightFormats, AccurateBesideDouble) {
  for (const WeightFormat format : testing::kAllFormats) {
    constexpr int64_t kOut = 20, kIn = 512;
    const StoredWeights w = testing::RandomWeights(format, kOut, kIn, 11);
    const std::vector<float> dense = testing::Dequantised(w);
    const Linear layer = LayerOf(w, SerialExecutor());
    for (const int64_t rows : {1, 5, 40}) {
      const std::vector<float> x = Random(3).Floats(static_cast<size_t>(rows * kIn));
      std::vector<float> y(static_cast<size_t>(rows * kOut));
      ASSERT_TRUE(layer.Run(x.data(), kIn, rows, y.data(), kOut, SerialExecutor()).ok());
      for (int64_t i = 0; i < rows * kOut; ++i) {
        double exact = 0.0, size = 0.0;
        for (int64_t k = 0; k < kIn; ++k) {
          const double product = static_cast<double>(x[static_cast<size_t>(i / kOut * kIn + k)]) *
                                 dense[static_cast<size_t>(i % kOut * kIn + k)];
          exact += product;
          size += std::fabs(product);
        }
        ASSERT_NEAR(y[static_cast<size_t>(i)], exact, size * kIn * 0x1p-24) << WeightFormatName(format);
      }
    }
  }
}

// As many bytes as the file has, where features fill tiles.
TEST(WeightFormats, TilesAreAsLargeAsRows) {
  for (const WeightFormat format : testing::kAllFormats) {
    const StoredWeights w = testing::RandomWeights(format, 64, 1024, 5);
    EXPECT_EQ(LayerOf(w, SerialExecutor()).weight_bytes(), w.bytes.size()) << WeightFormatName(format);
  }
}

// Tiles end where memory does: no kernel reads behind them.
TEST(WeightFormats, KernelsStayInsideOfTheTiles) {
  for (const TargetInfo& target : testing::UsableTargets()) {
    const testing::ScopedTarget scope(target.name);
    for (const WeightFormat format : testing::kAllFormats) {
      const int64_t in = BlockLen(format) == 1 ? 97 : BlockLen(format) * 2;
      const StoredWeights w = testing::RandomWeights(format, 50, in, 13);
      const LinearPart part = w.Part();
      LinearSpec spec;
      spec.in_features = in;
      spec.parts = {&part, 1};
      const Linear layer = MustCreate(spec, SerialExecutor());
      const testing::GuardedBuffer copy(layer.packed().size());
      std::memcpy(copy.data(), layer.packed().data(), copy.bytes());
      const Result<Linear> mapped =
          Linear::CreateFromPacked(spec, {reinterpret_cast<const std::byte*>(copy.data()), copy.bytes()});
      ASSERT_TRUE(mapped.ok()) << mapped.status().c_str();
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 20}) {
        const GuardedFloats x(Random(1).Floats(static_cast<size_t>(rows * in)));
        const GuardedFloats y(static_cast<size_t>(rows * 50)), z(static_cast<size_t>(rows * 50));
        ASSERT_TRUE(layer.Run(x.data(), in, rows, y.data(), 50, SerialExecutor()).ok());
        ASSERT_TRUE(mapped.value().Run(x.data(), in, rows, z.data(), 50, SerialExecutor()).ok());
        ASSERT_TRUE(SameBits(y.data(), z.data(), y.size())) << target.name << " " << WeightFormatName(format);
      }
    }
  }
}

TEST(WeightFormats, NamesAndSizes) {
  for (const WeightFormat format : testing::kAllFormats) {
    const WeightFormatInfo* info = FindWeightFormat(format);
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->format, format);
    EXPECT_NE(std::string(WeightFormatNames()).find(info->name), std::string::npos);
    EXPECT_EQ(StoredRowBytes(format, 512).value(), 512 / info->block_len * info->block_bytes);
  }
  EXPECT_EQ(FindWeightFormat(static_cast<WeightFormat>(kNumWeightFormats)), nullptr);
  EXPECT_EQ(FindWeightFormat(static_cast<WeightFormat>(-1)), nullptr);
  EXPECT_STREQ(WeightFormatName(static_cast<WeightFormat>(99)), "?");
  EXPECT_EQ(StoredRowBytes(WeightFormat::kQ4_K, 128).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(StoredRowBytes(WeightFormat::kF32, INT64_MAX).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(StoredRowBytes(static_cast<WeightFormat>(44), 128).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace headlane
