// Layers of several parts, their outputs, packed bytes, and items for a team of threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/ops.h"
#include "linear/stored_weights.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace headlane {
namespace {

using testing::GuardedFloats;
using testing::Random;
using testing::SameBits;
using testing::StoredWeights;

constexpr int64_t kIn = 512;
constexpr int64_t kRowCounts[] = {1, 2, 5, 8, 9, 40, 128, 200, 256};

Result<Linear> Create(const std::vector<LinearPart>& parts, LinearOutput output = LinearOutput::kStore,
                      LinearBackend backend = LinearBackend::kTile) {
  LinearSpec spec;
  spec.backend = backend;
  spec.in_features = kIn;
  spec.parts = parts;
  spec.output = output;
  OpenMPExecutor executor(2);
  return Linear::Create(spec, executor);
}

Linear MustCreate(const std::vector<LinearPart>& parts, LinearOutput output = LinearOutput::kStore,
                  LinearBackend backend = LinearBackend::kTile) {
  Result<Linear> layer = Create(parts, output, backend);
  EXPECT_TRUE(layer.ok()) << layer.status().c_str();
  return std::move(layer).value();
}

std::vector<float> RunOn(const Linear& layer, const std::vector<float>& x, int64_t rows, Executor& executor,
                         float before = 0) {
  std::vector<float> y(static_cast<size_t>(rows * layer.out_features()), before);
  EXPECT_TRUE(layer.Run(x.data(), kIn, rows, y.data(), layer.out_features(), executor).ok());
  return y;
}

// q, k and v with formats of their own and some biases.
class Parts : public ::testing::Test {
 protected:
  Parts() {
    const WeightFormat formats[] = {WeightFormat::kQ4_K, WeightFormat::kQ4_1, WeightFormat::kQ6_K, WeightFormat::kF32};
    const int64_t sizes[] = {144, 50, 17, 3};
    for (size_t i = 0; i < 4; ++i) {
      weights_.push_back(testing::RandomWeights(formats[i], sizes[i], kIn, i + 1));
      biases_.push_back(Random(i + 20).Floats(static_cast<size_t>(sizes[i])));
    }
    for (size_t i = 0; i < 4; ++i) {
      parts_.push_back(weights_[i].Part());
      if (i % 2 == 0) parts_[i].bias = biases_[i].data();
    }
  }
  std::vector<StoredWeights> weights_;
  std::vector<std::vector<float>> biases_;
  std::vector<LinearPart> parts_;
};

TEST_F(Parts, HaveTheBitsOfSeparateLayersAndAddedBiases) {
  const Linear fused = MustCreate(parts_);
  EXPECT_EQ(fused.out_features(), 214);
  for (const int64_t rows : kRowCounts) {
    const std::vector<float> x = Random(5).Floats(static_cast<size_t>(rows * kIn));
    std::vector<float> expected(static_cast<size_t>(rows * 214));
    int64_t first = 0;
    for (size_t i = 0; i < 4; ++i) {
      LinearPart alone = parts_[i];
      alone.bias = nullptr;
      const std::vector<float> y = RunOn(MustCreate({alone}), x, rows, SerialExecutor());
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t f = 0; f < alone.out_features; ++f) {
          float& to = expected[static_cast<size_t>(row * 214 + first + f)];
          to = y[static_cast<size_t>(row * alone.out_features + f)];
          if (i % 2 == 0) to += biases_[i][static_cast<size_t>(f)];
        }
      }
      first += alone.out_features;
    }
    for (const int threads : {1, 2, 3}) {
      OpenMPExecutor executor(threads);
      EXPECT_TRUE(SameBits(expected, RunOn(fused, x, rows, executor))) << rows << " rows, threads " << threads;
    }
  }
}

TEST_F(Parts, AddToWhatIsThere) {
  const Linear store = MustCreate(parts_), add = MustCreate(parts_, LinearOutput::kAdd);
  for (const int64_t rows : kRowCounts) {
    const std::vector<float> x = Random(6).Floats(static_cast<size_t>(rows * kIn));
    const std::vector<float> sums = RunOn(store, x, rows, SerialExecutor());
    const std::vector<float> before = Random(7).Floats(sums.size());
    const GuardedFloats y(before);
    OpenMPExecutor executor(2);
    ASSERT_TRUE(add.Run(x.data(), kIn, rows, y.data(), 214, executor).ok());
    for (size_t i = 0; i < sums.size(); ++i) ASSERT_TRUE(SameBits(before[i] + sums[i], y[i])) << rows << " " << i;
  }
}

TEST(LayerOutputs, SwiGluHasTheBitsOfTheOperator) {
  for (const int64_t out : {16, 70, 300}) {
    const StoredWeights gate = testing::RandomWeights(WeightFormat::kQ4_1, out, kIn, 1);
    const StoredWeights up = testing::RandomWeights(WeightFormat::kQ6_K, out, kIn, 2);
    const std::vector<float> bias = Random(8).Floats(static_cast<size_t>(out));
    LinearPart gate_part = gate.Part();
    gate_part.bias = bias.data();
    const Linear fused = MustCreate({gate_part, up.Part()}, LinearOutput::kSwiGlu);
    EXPECT_EQ(fused.out_features(), out);
    const Linear gates = MustCreate({gate_part}), ups = MustCreate({up.Part()});
    for (const int64_t rows : kRowCounts) {
      const std::vector<float> x = Random(9).Floats(static_cast<size_t>(rows * kIn));
      const std::vector<float> g = RunOn(gates, x, rows, SerialExecutor()), u = RunOn(ups, x, rows, SerialExecutor());
      std::vector<float> expected(g.size());
      SiluMul(g.data(), out, u.data(), out, rows, out, expected.data(), out);
      for (const int threads : {1, 2, 3}) {
        OpenMPExecutor executor(threads);
        EXPECT_TRUE(SameBits(expected, RunOn(fused, x, rows, executor))) << out << " " << rows << " rows";
      }
    }
  }
}

TEST_F(Parts, PackedBytesAreALayer) {
  const Linear layer = MustCreate(parts_);
  LinearSpec spec;
  spec.in_features = kIn;
  std::vector<LinearPart> parts = parts_;
  for (LinearPart& part : parts) part.rows = {};
  spec.parts = parts;
  ASSERT_EQ(Linear::PackedBytes(spec).value(), static_cast<int64_t>(layer.packed().size()));
  const testing::GuardedBuffer copy(layer.packed().size());
  std::memcpy(copy.data(), layer.packed().data(), copy.bytes());
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(copy.data()), copy.bytes());
  Result<Linear> again = Linear::CreateFromPacked(spec, bytes);
  ASSERT_TRUE(again.ok()) << again.status().c_str();
  EXPECT_EQ(again.value().packed().data(), bytes.data());  // not copied
  const std::vector<float> x = Random(6).Floats(static_cast<size_t>(20 * kIn));
  EXPECT_TRUE(SameBits(RunOn(layer, x, 20, SerialExecutor()), RunOn(again.value(), x, 20, SerialExecutor())));

  const auto code = [&](std::span<const std::byte> packed) {
    return Linear::CreateFromPacked(spec, packed).status().code();
  };
  EXPECT_EQ(code(bytes.subspan(64)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({}), StatusCode::kInvalidArgument);
  std::vector<std::byte> longer(copy.bytes() + 64);
  const size_t odd = 64 - reinterpret_cast<uintptr_t>(longer.data()) % 64 + 8;
  if (odd + copy.bytes() <= longer.size()) {
    EXPECT_EQ(code({longer.data() + odd, copy.bytes()}), StatusCode::kInvalidArgument);
  }
  spec.backend = LinearBackend::kOneDnn;
  EXPECT_EQ(code(bytes), StatusCode::kUnsupported);

  // The layout's number tells formats, sizes and order apart.
  spec.backend = LinearBackend::kTile;
  const uint64_t number = Linear::PackedLayout(spec);
  EXPECT_EQ(number, Linear::PackedLayout(spec));
  std::swap(parts[0], parts[1]);
  EXPECT_NE(number, Linear::PackedLayout(spec));
  std::swap(parts[0], parts[1]);
  parts[0].format = WeightFormat::kQ5_K;
  EXPECT_NE(number, Linear::PackedLayout(spec));
  parts[0].format = WeightFormat::kQ4_K;
  spec.in_features = 768;
  EXPECT_NE(number, Linear::PackedLayout(spec));
}

TEST_F(Parts, ItemsInAnyOrderAndByAnyTeam) {
  const Linear layer = MustCreate(parts_, LinearOutput::kAdd);
  for (const int64_t rows : kRowCounts) {
    const std::vector<float> x = Random(6).Floats(static_cast<size_t>(rows * kIn));
    const std::vector<float> expected = RunOn(layer, x, rows, SerialExecutor(), 1.0f);
    for (const int workers : {1, 2, 3, 16}) {
      const int64_t num_items = layer.NumItems(rows, workers);
      ASSERT_GE(num_items, 1);
      std::vector<float> y(expected.size(), 1.0f);
      const LinearOperands operands = {x.data(), kIn, rows, y.data(), layer.out_features()};
      for (int64_t item = num_items; item-- > 0;) {
        ASSERT_TRUE(layer.RunItems(operands, workers, item, item + 1).ok());
      }
      EXPECT_TRUE(SameBits(expected, y)) << rows << " rows, cut for " << workers;

      std::fill(y.begin(), y.end(), 1.0f);
      std::atomic<int64_t> next = 0;
      std::vector<std::thread> threads;
      for (int i = 0; i < workers; ++i) {
        threads.emplace_back([&] { EXPECT_TRUE(layer.RunWorker(operands, workers, next).ok()); });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_TRUE(SameBits(expected, y)) << rows << " rows, team of " << workers;
      EXPECT_EQ(layer.RunItems(operands, workers, 0, num_items + 1).code(), StatusCode::kOutOfRange);
      EXPECT_EQ(layer.RunItems(operands, workers, -1, 0).code(), StatusCode::kOutOfRange);
      EXPECT_EQ(layer.RunItems(operands, workers, 1, 0).code(), StatusCode::kOutOfRange);
    }
  }
  EXPECT_EQ(layer.NumItems(0, 2), 0);
  std::atomic<int64_t> next = 0;
  EXPECT_TRUE(layer.RunWorker({}, 1, next).ok());  // no rows
}

TEST_F(Parts, ReadWeightsCountsOverTheParts) {
  const Linear layer = MustCreate(parts_);
  std::vector<float> row(kIn);
  int64_t feature = 0;
  for (const StoredWeights& w : weights_) {
    for (int64_t i = 0; i < w.out_features; ++i, ++feature) {
      ASSERT_TRUE(layer.ReadWeights(feature, row.data()).ok());
      ASSERT_TRUE(SameBits(row[5], testing::WeightOf(w.format, w.bytes.data() + i * w.row_bytes, 5))) << feature;
    }
  }
  EXPECT_EQ(layer.ReadWeights(feature, row.data()).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(layer.ReadWeights(-1, row.data()).code(), StatusCode::kOutOfRange);
}

TEST_F(Parts, RowsByCallbackAndWithGaps) {
  const StoredWeights& w = weights_[0];
  const std::vector<float> x = Random(6).Floats(static_cast<size_t>(2 * kIn));
  LinearPart plain = w.Part();
  const std::vector<float> expected = RunOn(MustCreate({plain}), x, 2, SerialExecutor());

  LinearPart read = plain;
  read.rows = {};
  read.rows.context = &w;
  read.rows.read = [](const void* context, int64_t row, void* out) noexcept {
    const StoredWeights& from = *static_cast<const StoredWeights*>(context);
    std::memcpy(out, from.bytes.data() + row * from.row_bytes, static_cast<size_t>(from.row_bytes));
    return OkStatus();
  };
  EXPECT_TRUE(SameBits(expected, RunOn(MustCreate({read}), x, 2, SerialExecutor())));
  read.rows.read = [](const void*, int64_t row, void*) noexcept {
    return MakeStatus(StatusCode::kDataLoss, "row %d is gone", static_cast<int>(row));
  };
  EXPECT_EQ(Create({read}).status().code(), StatusCode::kDataLoss);

  // At odd addresses.
  const int64_t stride = w.row_bytes + 3;
  const testing::GuardedBuffer gaps(static_cast<size_t>((w.out_features - 1) * stride + w.row_bytes));
  for (int64_t row = 0; row < w.out_features; ++row) {
    std::memcpy(gaps.data() + row * stride, w.bytes.data() + row * w.row_bytes, static_cast<size_t>(w.row_bytes));
  }
  LinearPart spaced = plain;
  spaced.rows.data = gaps.data();
  spaced.rows.data_bytes = static_cast<int64_t>(gaps.bytes());
  spaced.rows.row_stride = stride;
  EXPECT_TRUE(SameBits(expected, RunOn(MustCreate({spaced}), x, 2, SerialExecutor())));
}

void ExpectError(const Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << part;
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message();
}

TEST_F(Parts, HostileSpecs) {
  const auto with = [&](auto change) {
    std::vector<LinearPart> parts = parts_;
    change(parts);
    return Create(parts).status();
  };
  ExpectError(Create({}).status(), StatusCode::kInvalidArgument, "no parts");
  ExpectError(with([](auto& p) { p[1].out_features = 0; }), StatusCode::kInvalidArgument, "[0, 512]");
  ExpectError(with([](auto& p) { p[1].format = static_cast<WeightFormat>(77); }), StatusCode::kUnsupported,
              "part 1: weight format 77 is not supported; supported are F32");
  ExpectError(with([](auto& p) { p[2].rows.data = nullptr; }), StatusCode::kInvalidArgument, "part 2 needs either");
  ExpectError(with([](auto& p) { p[2].rows.data_bytes -= 1; }), StatusCode::kInvalidArgument,
              "part 2 has 7139 bytes of data, too few for 17 rows of 420 bytes");
  ExpectError(with([](auto& p) { p[2].rows.row_stride = 419; }), StatusCode::kInvalidArgument, "419 bytes apart");
  ExpectError(with([](auto& p) { p[2].rows.row_stride = INT64_MAX; }), StatusCode::kInvalidArgument, "too few for");
  ExpectError(with([](auto& p) { p[2].out_features = INT64_MAX; }), StatusCode::kResourceExhausted, "exceed memory");
  ExpectError(Create(parts_, static_cast<LinearOutput>(9)).status(), StatusCode::kInvalidArgument, "output 9");
  ExpectError(Create(parts_, LinearOutput::kSwiGlu).status(), StatusCode::kInvalidArgument, "SwiGLU takes two parts");
  ExpectError(Create({parts_[0], parts_[1]}, LinearOutput::kSwiGlu).status(), StatusCode::kInvalidArgument,
              "144 and 50");
  LinearSpec spec;
  spec.in_features = 500;
  spec.parts = parts_;
  ExpectError(Linear::Create(spec, SerialExecutor()).status(), StatusCode::kInvalidArgument,
              "part 0: a row of 500 weights is no whole number of Q4_K blocks of 256");
  spec.in_features = -5;
  EXPECT_EQ(Linear::PackedBytes(spec).status().code(), StatusCode::kInvalidArgument);
}

#if HEADLANE_WITH_ONEDNN
TEST_F(Parts, OneDnnAgreesWithinRounding) {
  for (const LinearOutput output : {LinearOutput::kStore, LinearOutput::kAdd}) {
    const Linear tile = MustCreate(parts_, output), onednn = MustCreate(parts_, output, LinearBackend::kOneDnn);
    EXPECT_TRUE(onednn.packed().empty());
    EXPECT_EQ(onednn.NumItems(3, 2), 0);
    for (const int64_t rows : {1, 40}) {
      const std::vector<float> x = Random(6).Floats(static_cast<size_t>(rows * kIn));
      const std::vector<float> a = RunOn(tile, x, rows, SerialExecutor(), 1.0f);
      const std::vector<float> b = RunOn(onednn, x, rows, SerialExecutor(), 1.0f);
      double largest = 0;
      for (const float value : a) largest = std::max(largest, std::abs(static_cast<double>(value)));
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], largest * 1e-4);
    }
  }
  std::atomic<int64_t> next = 0;
  const Linear onednn = MustCreate({parts_[0]}, LinearOutput::kStore, LinearBackend::kOneDnn);
  std::vector<float> x(kIn), y(144);
  EXPECT_EQ(onednn.RunWorker({x.data(), kIn, 1, y.data(), 144}, 1, next).code(), StatusCode::kUnsupported);
  EXPECT_EQ(onednn.ReadWeights(0, x.data()).code(), StatusCode::kUnsupported);
}
#endif

}  // namespace
}  // namespace headlane
