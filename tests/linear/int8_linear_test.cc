// Layers with 8-bit activations: the bits of the definition for any rows, threads and target, their distance from the
// exact layer, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/target.h"
#include "linear/int8_definition.h"
#include "linear/stored_weights.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane {
namespace {

using testing::GuardedFloats;
using testing::Int8Weights;
using testing::Random;
using testing::SameBits;
using testing::StoredWeights;

LinearSpec Int8Spec(const std::vector<LinearPart>& parts, int64_t in_features,
                    LinearOutput output = LinearOutput::kStore) {
  LinearSpec spec;
  spec.in_features = in_features;
  spec.parts = parts;
  spec.output = output;
  spec.precision = LinearPrecision::kInt8;
  return spec;
}

Linear MustCreate(const LinearSpec& spec, Executor& executor = SerialExecutor()) {
  Result<Linear> layer = Linear::Create(spec, executor);
  EXPECT_TRUE(layer.ok()) << layer.status().c_str();
  return std::move(layer).value();
}

std::vector<float> RunOn(const Linear& layer, const std::vector<float>& x, int64_t rows, Executor& executor,
                         float before = 0.0f) {
  std::vector<float> y(static_cast<size_t>(rows * layer.out_features()), before);
  EXPECT_TRUE(layer.Run(x.data(), layer.in_features(), rows, y.data(), layer.out_features(), executor).ok());
  return y;
}

void ExpectTheDefinedBits(const StoredWeights& w, const std::vector<int64_t>& row_counts, const char* target) {
  const std::vector<LinearPart> parts = {w.Part()};
  const Linear layer = MustCreate(Int8Spec(parts, w.in_features));
  const Int8Weights defined(w);
  const int64_t in = w.in_features, out = w.out_features;
  for (const int64_t rows : row_counts) {
    const std::vector<float> x = testing::ActivationsWithEdges(rows, in, static_cast<uint64_t>(rows + in));
    std::vector<float> expected;
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<float> y = defined.Times(x.data() + row * in);
      expected.insert(expected.end(), y.begin(), y.end());
    }
    for (const int threads : {1, 2, 3}) {
      OpenMPExecutor executor(threads);
      const GuardedFloats from(x), to(static_cast<size_t>(rows * out));
      ASSERT_TRUE(layer.Run(from.data(), in, rows, to.data(), out, executor).ok());
      ASSERT_TRUE(SameBits(to.data(), expected.data(), expected.size()))
          << WeightFormatName(w.format) << " [" << out << ", " << in << "] " << rows << " rows, " << threads
          << " threads, " << target;
    }
  }
}

TEST(Int8Linear, HasTheBitsOfTheDefinition) {
  for (const TargetInfo& target : testing::UsableTargets()) {
    if (!target.has_fma) continue;
    const testing::ScopedTarget scope(target.name);
    for (const WeightFormat format : testing::kBlockFormats) {
      const int64_t block = FindWeightFormat(format)->block_len;
      ExpectTheDefinedBits(testing::RandomWeights(format, 1, block, 1), {1, 2, 3}, target.name);
      ExpectTheDefinedBits(testing::RandomWeights(format, 37, 3 * block, 2), {1, 2, 5, 8, 9, 17}, target.name);
      ExpectTheDefinedBits(testing::RandomWeights(format, 187, 512, 3), {1, 3, 17, 43}, target.name);
      // More inputs than are quantised at a time.
      ExpectTheDefinedBits(testing::RandomWeights(format, 17, 12544, 4), {1, 3}, target.name);
      ExpectTheDefinedBits(testing::RandomWeights(format, 18, 1792, 5), {15, 41}, target.name);
    }
  }
}

// Codes of the largest size in weights and activations: the integer sums that come nearest to overflowing.
TEST(Int8Linear, LargestSumsAreExact) {
  for (const TargetInfo& target : testing::UsableTargets()) {
    if (!target.has_fma) continue;
    const testing::ScopedTarget scope(target.name);
    for (const WeightFormat format : testing::kBlockFormats) {
      for (const uint8_t fill : {0x00, 0xFF, 0x80, 0x7F}) {
        StoredWeights w = testing::RandomWeights(format, 17, 512, 6);
        const StoredWeights scales = w;
        const int64_t bytes = FindWeightFormat(format)->block_bytes;
        std::memset(w.bytes.data(), fill, w.bytes.size());
        for (size_t at = 0; at < w.bytes.size(); at += static_cast<size_t>(bytes)) {
          for (const int half : testing::ScalesOf(format)) {
            std::memcpy(&w.bytes[at + static_cast<size_t>(half)], &scales.bytes[at + static_cast<size_t>(half)], 2);
          }
        }
        const Int8Weights defined(w);
        const std::vector<LinearPart> parts = {w.Part()};
        const Linear layer = MustCreate(Int8Spec(parts, 512));
        for (const float value : {1.0f, -1.0f}) {
          const std::vector<float> x(512 * 5, value);
          const std::vector<float> expected = defined.Times(x.data());
          for (const int64_t rows : {1, 5}) {
            const std::vector<float> y = RunOn(layer, x, rows, SerialExecutor());
            for (int64_t row = 0; row < rows; ++row) {
              ASSERT_TRUE(SameBits(y.data() + row * 17, expected.data(), 17))
                  << WeightFormatName(format) << " " << int{fill} << " " << target.name;
            }
          }
        }
      }
    }
  }
}

// Within half a step of each activation; on every target, with FMA or not.
TEST(Int8Linear, IsNearTheExactLayer) {
  constexpr int64_t kOut = 40, kIn = 768;
  for (const TargetInfo& target : testing::UsableTargets()) {
    const testing::ScopedTarget scope(target.name);
    for (const WeightFormat format : testing::kBlockFormats) {
      const StoredWeights w = testing::RandomWeights(format, kOut, kIn, 7);
      const std::vector<float> dense = testing::Dequantised(w);
      const std::vector<LinearPart> parts = {w.Part()};
      const Linear layer = MustCreate(Int8Spec(parts, kIn));
      bool differs = false;
      for (const int64_t rows : {1, 11}) {
        const std::vector<float> x = Random(8).Floats(static_cast<size_t>(rows * kIn));
        const std::vector<float> y = RunOn(layer, x, rows, SerialExecutor());
        for (int64_t i = 0; i < rows * kOut; ++i) {
          const float* const row = x.data() + i / kOut * kIn;
          const float* const weights = dense.data() + i % kOut * kIn;
          double exact = 0.0;
          for (int64_t k = 0; k < kIn; ++k) exact += static_cast<double>(row[k]) * weights[k];
          const float value = y[static_cast<size_t>(i)];
          ASSERT_NEAR(value, exact, testing::Int8Error(row, weights, kIn)) << WeightFormatName(format) << target.name;
          differs = differs || value != static_cast<float>(exact);
        }
      }
      EXPECT_TRUE(differs);
    }
  }
}

TEST(Int8Linear, ValuesThatAreNotFiniteMakeTheirRowNaN) {
  constexpr int64_t kOut = 20, kIn = 256;
  for (const WeightFormat format : testing::kBlockFormats) {
    const StoredWeights w = testing::RandomWeights(format, kOut, kIn, 9);
    const std::vector<LinearPart> parts = {w.Part()};
    const Linear layer = MustCreate(Int8Spec(parts, kIn));
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x = Random(10).Floats(3 * kIn);
      const std::vector<float> before = RunOn(layer, x, 3, SerialExecutor());
      x[kIn + 77] = bad;
      const std::vector<float> y = RunOn(layer, x, 3, SerialExecutor());
      EXPECT_TRUE(SameBits(y.data(), before.data(), kOut));
      for (int64_t i = kOut; i < 2 * kOut; ++i) EXPECT_TRUE(std::isnan(y[static_cast<size_t>(i)]));
      EXPECT_TRUE(SameBits(y.data() + 2 * kOut, before.data() + 2 * kOut, kOut));
    }
  }
}

// Parts of several formats, of which one stays exact, with biases and every output: as layers of one part.
TEST(Int8Linear, PartsAndOutputs) {
  constexpr int64_t kIn = 512;
  const WeightFormat formats[] = {WeightFormat::kQ4_K, WeightFormat::kF16, WeightFormat::kQ6_K, WeightFormat::kQ8_0};
  const int64_t sizes[] = {144, 50, 17, 300};
  std::vector<StoredWeights> weights;
  std::vector<LinearPart> parts;
  const std::vector<float> bias = Random(11).Floats(300);
  for (size_t i = 0; i < 4; ++i) weights.push_back(testing::RandomWeights(formats[i], sizes[i], kIn, i + 30));
  for (size_t i = 0; i < 4; ++i) {
    parts.push_back(weights[i].Part());
    if (i % 2 == 0) parts.back().bias = bias.data();
  }
  OpenMPExecutor executor(2);
  const Linear fused = MustCreate(Int8Spec(parts, kIn), executor);
  const Linear added = MustCreate(Int8Spec(parts, kIn, LinearOutput::kAdd), executor);
  for (const int64_t rows : {1, 2, 8, 41, 100}) {
    const std::vector<float> x = testing::ActivationsWithEdges(rows, kIn, static_cast<uint64_t>(rows));
    std::vector<float> expected(static_cast<size_t>(rows * fused.out_features()));
    int64_t first = 0;
    for (const LinearPart& part : parts) {
      const Linear alone = MustCreate(Int8Spec({part}, kIn), executor);
      const std::vector<float> y = RunOn(alone, x, rows, executor);
      for (int64_t row = 0; row < rows; ++row) {
        std::copy_n(y.data() + row * part.out_features, part.out_features,
                    expected.data() + row * fused.out_features() + first);
      }
      first += part.out_features;
    }
    EXPECT_TRUE(SameBits(RunOn(fused, x, rows, executor).data(), expected.data(), expected.size())) << rows;
    for (float& y : expected) y = 0.375f + y;
    EXPECT_TRUE(SameBits(RunOn(added, x, rows, executor, 0.375f).data(), expected.data(), expected.size())) << rows;
    // Items of any size, by any number of workers.
    std::vector<float> y(expected.size(), 0.375f);
    const LinearOperands operands = {x.data(), kIn, rows, y.data(), fused.out_features(), {}};
    for (int64_t item = 0; item < added.NumItems(rows, 3); ++item) {
      ASSERT_TRUE(added.RunItems(operands, 3, item, item + 1).ok());
    }
    EXPECT_TRUE(SameBits(y.data(), expected.data(), expected.size())) << rows;
  }
}

TEST(Int8Linear, SwiGlu) {
  constexpr int64_t kIn = 768, kOut = 310;
  for (const WeightFormat second : {WeightFormat::kQ4_1, WeightFormat::kQ6_K, WeightFormat::kBF16}) {
    const StoredWeights gate = testing::RandomWeights(WeightFormat::kQ4_1, kOut, kIn, 12);
    const StoredWeights up = testing::RandomWeights(second, kOut, kIn, 13);
    const std::vector<LinearPart> parts = {gate.Part(), up.Part()};
    OpenMPExecutor executor(2);
    const Linear layer = MustCreate(Int8Spec(parts, kIn, LinearOutput::kSwiGlu), executor);
    const Linear sums = MustCreate(Int8Spec(parts, kIn), executor);
    for (const int64_t rows : {1, 3, 45}) {
      const std::vector<float> x = Random(14).Floats(static_cast<size_t>(rows * kIn));
      const std::vector<float> s = RunOn(sums, x, rows, executor), y = RunOn(layer, x, rows, executor);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < kOut; ++i) {
          const double g = s[static_cast<size_t>(row * 2 * kOut + i)];
          const double expected = g / (1 + std::exp(-g)) * s[static_cast<size_t>(row * 2 * kOut + kOut + i)];
          ASSERT_NEAR(y[static_cast<size_t>(row * kOut + i)], expected, std::fabs(expected) * 1e-5 + 1e-30);
        }
      }
      // The first row of many is the only one of one.
      const std::vector<float> one = RunOn(layer, std::vector<float>(x.begin(), x.begin() + kIn), 1, executor);
      EXPECT_TRUE(SameBits(one.data(), y.data(), one.size()));
    }
  }
}

// Numbers are no codes: such weights are multiplied with activations as they are.
TEST(Int8Linear, PlainNumbersStayExact) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16}) {
    const StoredWeights w = testing::RandomWeights(format, 50, 97, 15);
    const std::vector<LinearPart> parts = {w.Part()};
    LinearSpec spec = Int8Spec(parts, 97);
    const Linear layer = MustCreate(spec);
    EXPECT_EQ(layer.precision(), LinearPrecision::kInt8);
    spec.precision = LinearPrecision::kExact;
    const Linear exact = MustCreate(spec);
    EXPECT_EQ(exact.precision(), LinearPrecision::kExact);
    for (const int64_t rows : {1, 7, 30}) {
      const std::vector<float> x = Random(16).Floats(static_cast<size_t>(rows * 97));
      const std::vector<float> expected = RunOn(exact, x, rows, SerialExecutor());
      EXPECT_TRUE(SameBits(RunOn(layer, x, rows, SerialExecutor()).data(), expected.data(), expected.size()));
    }
  }
}

// Weights are read as they are: an embedding that is the output layer too stays exact.
TEST(Int8Linear, WeightsReadBackAreExact) {
  for (const WeightFormat format : testing::kBlockFormats) {
    const StoredWeights w = testing::RandomWeights(format, 37, 768, 17);
    const std::vector<float> expected = testing::Dequantised(w);
    const std::vector<LinearPart> parts = {w.Part()};
    const Linear layer = MustCreate(Int8Spec(parts, 768));
    const GuardedFloats row(768);
    for (int64_t feature = 0; feature < 37; ++feature) {
      ASSERT_TRUE(layer.ReadWeights(feature, row.data()).ok());
      for (int64_t k = 0; k < 768; ++k) {
        ASSERT_EQ(row.data()[k], expected[static_cast<size_t>(feature * 768 + k)])
            << WeightFormatName(format) << " " << feature << " " << k;
      }
    }
  }
}

// Packed bytes: as many as without, of another layout, good for another layer; and no kernel reads behind them.
TEST(Int8Linear, PackedBytes) {
  for (const TargetInfo& target : testing::UsableTargets()) {
    const testing::ScopedTarget scope(target.name);
    for (const WeightFormat format : testing::kBlockFormats) {
      const StoredWeights w = testing::RandomWeights(format, 50, 512, 18);
      const std::vector<LinearPart> parts = {w.Part()};
      LinearSpec spec = Int8Spec(parts, 512);
      const Linear layer = MustCreate(spec);
      const testing::GuardedBuffer copy(layer.packed().size());
      std::memcpy(copy.data(), layer.packed().data(), copy.bytes());
      const Result<Linear> mapped =
          Linear::CreateFromPacked(spec, {reinterpret_cast<const std::byte*>(copy.data()), copy.bytes()});
      ASSERT_TRUE(mapped.ok()) << mapped.status().c_str();
      for (const int64_t rows : {1, 2, 9}) {
        const std::vector<float> x = Random(19).Floats(static_cast<size_t>(rows * 512));
        const std::vector<float> expected = RunOn(layer, x, rows, SerialExecutor());
        EXPECT_TRUE(
            SameBits(RunOn(mapped.value(), x, rows, SerialExecutor()).data(), expected.data(), expected.size()));
      }
      const uint64_t layout = Linear::PackedLayout(spec);
      EXPECT_EQ(Linear::PackedBytes(spec).value(), static_cast<int64_t>(layer.packed().size()));
      spec.precision = LinearPrecision::kExact;
      EXPECT_NE(Linear::PackedLayout(spec), layout);
      EXPECT_EQ(Linear::PackedBytes(spec).value(), static_cast<int64_t>(layer.packed().size()));
    }
  }
}

TEST(Int8Linear, Refusals) {
  const StoredWeights w = testing::RandomWeights(WeightFormat::kQ4_0, 5, 64, 20);
  const std::vector<LinearPart> parts = {w.Part()};
  LinearSpec spec = Int8Spec(parts, 64);
  spec.backend = LinearBackend::kOneDnn;
  const Status status = Linear::Create(spec, SerialExecutor()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(std::string(status.c_str()).find("int8"), std::string::npos) << status.c_str();
  spec.backend = LinearBackend::kTile;
  spec.precision = static_cast<LinearPrecision>(2);
  EXPECT_EQ(Linear::Create(spec, SerialExecutor()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Linear::PackedBytes(spec).status().code(), StatusCode::kInvalidArgument);
  EXPECT_STREQ(LinearPrecisionName(LinearPrecision::kExact), "exact");
  EXPECT_STREQ(LinearPrecisionName(LinearPrecision::kInt8), "int8");
  EXPECT_STREQ(LinearPrecisionName(static_cast<LinearPrecision>(2)), "?");
  spec.precision = LinearPrecision::kInt8;
  EXPECT_NE(std::string(MustCreate(spec).implementation()).find("int8"), std::string::npos);
}

}  // namespace
}  // namespace headlane
