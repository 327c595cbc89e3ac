// Linear layers of known models: the library's own backend beside oneDNN's.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "bench/session.h"
#include "bench/source.h"
#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/weight_format.h"

namespace headlane::bench {
namespace {

struct LayerShape {
  const char* name;
  int64_t out_features;
  int64_t in_features;
  bool quick;
};
constexpr LayerShape kLayers[] = {
    {"smollm2-135m-up", 1536, 576, false},  // no whole number of blocks of 256 inputs: no K formats
    {"smollm2-135m-head", 49152, 576, false},
    {"llama-3-8b-q", 4096, 4096, true},
};

// What is measured: our layers in every format, beside oneDNN's on f32, and those of blocks with activations of 8 bits.
struct Kind {
  const char* name;
  LinearBackend backend;
  WeightFormat format;
  LinearPrecision precision = LinearPrecision::kExact;
};
constexpr Kind kKinds[] = {
    {"onednn", LinearBackend::kOneDnn, WeightFormat::kF32},
    {"tile", LinearBackend::kTile, WeightFormat::kF32},
    {"f16", LinearBackend::kTile, WeightFormat::kF16},
    {"bf16", LinearBackend::kTile, WeightFormat::kBF16},
    {"q8_0", LinearBackend::kTile, WeightFormat::kQ8_0},
    {"q4_0", LinearBackend::kTile, WeightFormat::kQ4_0},
    {"q4_1", LinearBackend::kTile, WeightFormat::kQ4_1},
    {"q5_0", LinearBackend::kTile, WeightFormat::kQ5_0},
    {"q5_1", LinearBackend::kTile, WeightFormat::kQ5_1},
    {"q4_k", LinearBackend::kTile, WeightFormat::kQ4_K},
    {"q5_k", LinearBackend::kTile, WeightFormat::kQ5_K},
    {"q6_k", LinearBackend::kTile, WeightFormat::kQ6_K},
    {"q8_0-int8", LinearBackend::kTile, WeightFormat::kQ8_0, LinearPrecision::kInt8},
    {"q4_0-int8", LinearBackend::kTile, WeightFormat::kQ4_0, LinearPrecision::kInt8},
    {"q4_1-int8", LinearBackend::kTile, WeightFormat::kQ4_1, LinearPrecision::kInt8},
    {"q4_k-int8", LinearBackend::kTile, WeightFormat::kQ4_K, LinearPrecision::kInt8},
    {"q6_k-int8", LinearBackend::kTile, WeightFormat::kQ6_K, LinearPrecision::kInt8},
};

double BytesPerWeight(WeightFormat format) {
  const WeightFormatInfo& info = *FindWeightFormat(format);
  return static_cast<double>(info.block_bytes) / info.block_len;
}

Requirement RequirementOf(const Kind& kind, int64_t rows) {
  if (kind.backend != LinearBackend::kTile || kind.precision != LinearPrecision::kExact) return Requirement::kNone;
  if (rows == 1) return BytesPerWeight(kind.format) >= 1 ? Requirement::kLinearRow : Requirement::kLinearRowCodes;
  return rows >= 512 ? Requirement::kLinearRows : Requirement::kNone;
}

// Stored rows of any number of copies, out of a pool. Codes are any bits; the f16 numbers of blocks are small.
struct WeightPool {
  std::vector<uint8_t> bytes;
  int64_t row_bytes = 0;
  uint64_t num_places = 0;  // where rows may begin, 64 bytes or whole blocks apart
  uint64_t place_bytes = 0;
  uint64_t copy = 0;

  const uint8_t* Row(int64_t row) const {
    return bytes.data() + (static_cast<uint64_t>(row) * 7919 + copy * 104729) % num_places * place_bytes;
  }
  static Status Read(const void* context, int64_t row, void* out) noexcept {
    const WeightPool& pool = *static_cast<const WeightPool*>(context);
    std::memcpy(out, pool.Row(row), static_cast<size_t>(pool.row_bytes));
    return OkStatus();
  }
};

// Where the f16 numbers of a block stand.
std::vector<size_t> HalvesOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ8_0:
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ5_0:
      return {0};
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return {0, 2};
    case WeightFormat::kQ6_K:
      return {208};
    case WeightFormat::kF16:
      return {0};
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
      break;
  }
  return {};
}

WeightPool MakePool(WeightFormat format, int64_t in_features) {
  const WeightFormatInfo& info = *FindWeightFormat(format);
  WeightPool pool;
  pool.row_bytes = in_features / info.block_len * info.block_bytes;
  pool.place_bytes = static_cast<uint64_t>(info.block_bytes);
  pool.num_places = (uint64_t{4} << 20) / pool.place_bytes;
  const std::vector<float> random = RandomFloats((int64_t{1} << 20) + pool.row_bytes, 3);
  pool.bytes.resize(pool.num_places * pool.place_bytes + static_cast<size_t>(pool.row_bytes));
  std::memcpy(pool.bytes.data(), random.data(), pool.bytes.size());
  // The upper halves of floats are numbers; the lower ones are random bits.
  if (format == WeightFormat::kBF16) {
    for (size_t i = 0; i + 4 <= pool.bytes.size(); i += 4) std::memcpy(&pool.bytes[i], &pool.bytes[i + 2], 2);
  }
  for (size_t block = 0; block + pool.place_bytes <= pool.bytes.size(); block += pool.place_bytes) {
    for (const size_t at : HalvesOf(format)) {
      const uint16_t half = static_cast<uint16_t>(0x2000 + block % 0x1000);
      std::memcpy(&pool.bytes[block + at], &half, sizeof(half));
    }
  }
  return pool;
}

struct LinearInputs {
  WeightPool pool;
  std::vector<Linear> layers;  // copies
  std::vector<float> x, y, weights;
  size_t next = 0;
};

constexpr int64_t kMostRows = 512;

Result<std::unique_ptr<LinearInputs>> MakeInputs(const LayerShape& shape, const Kind& kind, Executor& executor) {
  auto inputs = std::make_unique<LinearInputs>();
  WeightPool& pool = inputs->pool = MakePool(kind.format, shape.in_features);
  inputs->x = RandomFloats(kMostRows * shape.in_features, 4);
  inputs->y.resize(static_cast<size_t>(kMostRows * shape.out_features));
  const int64_t copies =
      ColdCopies(LinearWork(1, shape.out_features, shape.in_features, BytesPerWeight(kind.format)).bytes);
  for (int64_t i = 0; i < copies; ++i) {
    pool.copy = static_cast<uint64_t>(i);
    LinearPart part;
    part.out_features = shape.out_features;
    part.format = kind.format;
    part.rows.context = &pool;
    part.rows.read = &WeightPool::Read;
    LinearSpec spec;
    spec.backend = kind.backend;
    spec.precision = kind.precision;
    spec.in_features = shape.in_features;
    spec.parts = {&part, 1};
    HEADLANE_ASSIGN_OR_RETURN(Linear layer, Linear::Create(spec, executor));
    inputs->layers.push_back(std::move(layer));
    // The last copy's pool serves the check.
  }
  if (kind.backend == LinearBackend::kTile) {
    inputs->weights.resize(static_cast<size_t>(shape.in_features));
  }
  return inputs;
}

// A few outputs of the last layer, added up in double. f32 chains of FMAs err by at most n rounding units of the sum of
// the magnitudes; activations of 8 bits are at most half a step of 1/127 of the row's largest from their numbers.
Status Check(LinearInputs& inputs, const LayerShape& shape, int64_t rows, Executor& executor) {
  const Linear& layer = inputs.layers.back();
  HEADLANE_RETURN_IF_ERROR(
      layer.Run(inputs.x.data(), shape.in_features, rows, inputs.y.data(), shape.out_features, executor));
  for (const int64_t row : {int64_t{0}, rows - 1}) {
    for (const int64_t feature : {int64_t{0}, int64_t{15}, shape.out_features / 2, shape.out_features - 1}) {
      // What weights are is a matter of tests; here of whether sums are theirs.
      const float* w = reinterpret_cast<const float*>(inputs.pool.Row(feature));
      if (layer.backend() == LinearBackend::kTile) {
        HEADLANE_RETURN_IF_ERROR(layer.ReadWeights(feature, inputs.weights.data()));
        w = inputs.weights.data();
      }
      const float* x = inputs.x.data() + row * shape.in_features;
      double expected = 0, magnitude = 0, weights = 0, largest = 0;
      for (int64_t k = 0; k < shape.in_features; ++k) {
        const double term = static_cast<double>(x[k]) * w[k];
        expected += term;
        magnitude += std::abs(term);
        weights += std::abs(static_cast<double>(w[k]));
        largest = std::max(largest, std::abs(static_cast<double>(x[k])));
      }
      double bound = static_cast<double>(shape.in_features) * 0x1p-24 * magnitude;
      if (layer.precision() == LinearPrecision::kInt8) bound += weights * largest / 254;
      const float got = inputs.y[static_cast<size_t>(row * shape.out_features + feature)];
      if (std::abs(got - expected) <= bound) continue;
      return MakeStatus(StatusCode::kInternal, "wrong output in row %lld feature %lld: %.9g instead of %.9g",
                        static_cast<long long>(row), static_cast<long long>(feature), static_cast<double>(got),
                        expected);
    }
  }
  return OkStatus();
}

void RunCase(Session& session, benchmark::State& state, const Case& entry, const LayerShape& shape, const Kind& kind,
             int64_t rows) {
  const std::string key = std::string("linear/") + shape.name + "/" + kind.name;
  OpenMPExecutor executor(entry.threads);
  auto inputs = session.GetInputs<LinearInputs>(key, [&] { return MakeInputs(shape, kind, executor); });
  Status status = inputs.status();
  if (status.ok()) status = Check(**inputs, shape, rows, executor);
  if (!status.ok()) {
    Session::Fail(state, status);
    return;
  }
  LinearInputs& all = **inputs;
  session.Time(state, entry, [&] {
    const Linear& layer = all.layers[all.next];
    all.next = (all.next + 1) % all.layers.size();
    return layer.Run(all.x.data(), shape.in_features, rows, all.y.data(), shape.out_features, executor);
  });
  state.SetLabel(all.layers.front().implementation());
}

}  // namespace

void RegisterLinear(Session& session) {
  for (const LayerShape& shape : kLayers) {
    for (const Kind& kind : kKinds) {
      if (!HasLinearBackend(kind.backend)) continue;
      if (kind.backend == LinearBackend::kOneDnn && !session.options().baselines) continue;
      if (shape.in_features % FindWeightFormat(kind.format)->block_len != 0) continue;
      for (const int64_t rows : {int64_t{1}, int64_t{8}, kMostRows}) {
        for (const int threads : session.options().threads) {
          const std::string name = std::string("linear/") + shape.name + "/rows:" + std::to_string(rows);
          const std::string threads_part = "/threads:" + std::to_string(threads);
          Case entry;
          entry.variant = kind.name;
          entry.name = name + "/" + entry.variant + threads_part;
          entry.task = name + threads_part;
          entry.series = entry.name;
          entry.length = rows;
          entry.threads = threads;
          entry.work = LinearWork(rows, shape.out_features, shape.in_features, BytesPerWeight(kind.format));
          entry.work.on_integers = kind.precision == LinearPrecision::kInt8;
          entry.requirement = RequirementOf(kind, rows);
          if (entry.requirement == Requirement::kLinearRows) entry.reference = name + "/onednn" + threads_part;
          session.Register(entry, shape.quick, /*once=*/false,
                           [&session, &shape, &kind, rows](benchmark::State& state, const Case& registered) {
                             RunCase(session, state, registered, shape, kind, rows);
                           });
        }
      }
    }
  }
}

}  // namespace headlane::bench
