// Golden hashes of linear layers, format by format and target by target: what every target with FMA must reproduce.
#include <gtest/gtest.h>

#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "headlane/executor.h"
#include "headlane/linear.h"
#include "linear/int8_definition.h"
#include "linear/stored_weights.h"
#include "support/bits.h"
#include "support/random.h"
#include "targets/under_test.h"

namespace headlane::testing {
namespace {

struct GoldenWeights {
  WeightFormat format;
  uint64_t hash;
};

constexpr GoldenWeights kGolden[] = {
    {WeightFormat::kF32, 0xF3ABAC6C28F6FB30},  {WeightFormat::kF16, 0x9CB074D5A82784DB},
    {WeightFormat::kBF16, 0x8AA4F779CAAE80E7}, {WeightFormat::kQ8_0, 0xA2293D963941D30A},
    {WeightFormat::kQ4_0, 0xC8C731DC96DD7DCF}, {WeightFormat::kQ4_1, 0x52B42EF465C4AB24},
    {WeightFormat::kQ5_0, 0xE40BBD505786B065}, {WeightFormat::kQ5_1, 0x2D0BC475D5A8A875},
    {WeightFormat::kQ4_K, 0x467B31F16442968C}, {WeightFormat::kQ5_K, 0x0BA53F3E9AD36263},
    {WeightFormat::kQ6_K, 0x6578718971331B3E},
};

struct GoldenRun {
  std::string target;
  GoldenWeights golden;
};

std::vector<GoldenRun> GoldenRuns() {
  std::vector<GoldenRun> runs;
  for (const std::string& target : TargetsUnderTest()) {
    for (const GoldenWeights& golden : kGolden) runs.push_back({target, golden});
  }
  return runs;
}

constexpr int64_t kOut = 81, kIn = 512;

Result<Linear> LayerOf(const StoredWeights& weights, LinearPrecision precision) {
  const LinearPart part = weights.Part();
  LinearSpec spec;
  spec.in_features = kIn;
  spec.parts = {&part, 1};
  spec.precision = precision;
  return Linear::Create(spec, SerialExecutor());
}

// A failure gives the line of the table as it would have to be.
void ExpectGolden(const GoldenWeights& golden, const std::vector<float>& all) {
  char line[80];
  std::snprintf(line, sizeof(line), "{WeightFormat::k%s, 0x%016" PRIX64 "},", WeightFormatName(golden.format),
                HashBits(all.data(), all.size()));
  EXPECT_EQ(HashBits(all.data(), all.size()), golden.hash) << line;
}

class GoldenWeightsTargetTest : public ::testing::TestWithParam<GoldenRun> {};

// A last tile of one feature; every kernel of few rows, and panels.
TEST_P(GoldenWeightsTargetTest, HasTheBits) {
  const GoldenRun& run = GetParam();
  const OnTarget on(run.target);
  const StoredWeights weights = RandomWeights(run.golden.format, kOut, kIn, 17);
  const Result<Linear> layer = LayerOf(weights, LinearPrecision::kExact);
  ASSERT_TRUE(layer.ok()) << layer.status().c_str();
  const std::vector<float> dense = on.info().has_fma ? std::vector<float>() : Dequantised(weights);
  std::vector<float> all;
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13}) {
    const std::vector<float> x = Random(static_cast<uint64_t>(rows)).Floats(static_cast<size_t>(rows * kIn));
    std::vector<float> y(static_cast<size_t>(rows * kOut));
    ASSERT_TRUE(layer.value().Run(x.data(), kIn, rows, y.data(), kOut, SerialExecutor()).ok());
    all.insert(all.end(), y.begin(), y.end());
    for (int64_t i = 0; !dense.empty() && i < rows * kOut; ++i) {
      double exact = 0.0, size = 0.0;
      for (int64_t k = 0; k < kIn; ++k) {
        const double product = static_cast<double>(x[static_cast<size_t>(i / kOut * kIn + k)]) *
                               dense[static_cast<size_t>(i % kOut * kIn + k)];
        exact += product;
        size += std::fabs(product);
      }
      ASSERT_NEAR(y[static_cast<size_t>(i)], exact, size * kIn * 0x1p-23);
    }
  }
  if (!on.info().has_fma) return;
  ExpectGolden(run.golden, all);
}

// The same with activations of 8 bits.
constexpr GoldenWeights kGoldenInt8[] = {
    {WeightFormat::kQ8_0, 0x5829C27451DA88BC}, {WeightFormat::kQ4_0, 0xFE763BAE53D34FD0},
    {WeightFormat::kQ4_1, 0xC7CF24AC1961746B}, {WeightFormat::kQ5_0, 0xACC9645590D6F69C},
    {WeightFormat::kQ5_1, 0xBFDAC897CA7C0995}, {WeightFormat::kQ4_K, 0x99F311D2FE6EA677},
    {WeightFormat::kQ5_K, 0x366F80B1F6491E98}, {WeightFormat::kQ6_K, 0xD4B472776DF9FEBB},
};

class GoldenInt8TargetTest : public ::testing::TestWithParam<GoldenRun> {};

TEST_P(GoldenInt8TargetTest, HasTheBits) {
  const GoldenRun& run = GetParam();
  const OnTarget on(run.target);
  const StoredWeights weights = RandomWeights(run.golden.format, kOut, kIn, 17);
  const Result<Linear> layer = LayerOf(weights, LinearPrecision::kInt8);
  ASSERT_TRUE(layer.ok()) << layer.status().c_str();
  const std::vector<float> dense = on.info().has_fma ? std::vector<float>() : Dequantised(weights);
  std::vector<float> all;
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13}) {
    const std::vector<float> x = on.info().has_fma
                                     ? ActivationsWithEdges(rows, kIn, static_cast<uint64_t>(rows))
                                     : Random(static_cast<uint64_t>(rows)).Floats(static_cast<size_t>(rows * kIn));
    std::vector<float> y(static_cast<size_t>(rows * kOut));
    ASSERT_TRUE(layer.value().Run(x.data(), kIn, rows, y.data(), kOut, SerialExecutor()).ok());
    all.insert(all.end(), y.begin(), y.end());
    for (int64_t i = 0; !dense.empty() && i < rows * kOut; ++i) {
      const float* const row = x.data() + i / kOut * kIn;
      const float* const w = dense.data() + i % kOut * kIn;
      double exact = 0.0;
      for (int64_t k = 0; k < kIn; ++k) exact += static_cast<double>(row[k]) * w[k];
      ASSERT_NEAR(y[static_cast<size_t>(i)], exact, Int8Error(row, w, kIn));
    }
  }
  if (!on.info().has_fma) return;
  ExpectGolden(run.golden, all);
}

std::vector<GoldenRun> GoldenInt8Runs() {
  std::vector<GoldenRun> runs;
  for (const std::string& target : TargetsUnderTest()) {
    for (const GoldenWeights& golden : kGoldenInt8) runs.push_back({target, golden});
  }
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Targets, GoldenInt8TargetTest, ::testing::ValuesIn(GoldenInt8Runs()),
                         [](const ::testing::TestParamInfo<GoldenRun>& info) {
                           return std::string(WeightFormatName(info.param.golden.format)) + "_on_" + info.param.target;
                         });

INSTANTIATE_TEST_SUITE_P(Targets, GoldenWeightsTargetTest, ::testing::ValuesIn(GoldenRuns()),
                         [](const ::testing::TestParamInfo<GoldenRun>& info) {
                           return std::string(WeightFormatName(info.param.golden.format)) + "_on_" + info.param.target;
                         });

}  // namespace
}  // namespace headlane::testing
