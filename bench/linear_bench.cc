// Linear layers of known models: the library's own backend beside oneDNN's.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "bench/session.h"
#include "bench/source.h"
#include "headlane/executor.h"
#include "headlane/linear.h"

namespace headlane::bench {
namespace {

struct LayerShape {
  const char* name;
  int64_t out_features;
  int64_t in_features;
  bool quick;
};
constexpr LayerShape kLayers[] = {
    {"smollm2-135m-up", 1536, 576, false},
    {"smollm2-135m-head", 49152, 576, false},
    {"llama-3-8b-q", 4096, 4096, true},
};

// Rows of weights of any number of copies, out of a pool.
struct WeightPool {
  std::vector<float> values;
  int64_t in_features = 0;
  uint64_t copy = 0;

  const float* Row(int64_t row) const {
    const uint64_t places = values.size() - static_cast<uint64_t>(in_features);
    return values.data() + (static_cast<uint64_t>(row) * 7919 + copy * 104729) % places;
  }
  static Status Read(const void* context, int64_t row, float* out) noexcept {
    const WeightPool& pool = *static_cast<const WeightPool*>(context);
    std::copy_n(pool.Row(row), pool.in_features, out);
    return OkStatus();
  }
};

struct LinearInputs {
  WeightPool pool;
  std::vector<Linear> layers;  // copies
  std::vector<float> x, y;
  size_t next = 0;
};

constexpr int64_t kMostRows = 512;

Result<std::unique_ptr<LinearInputs>> MakeInputs(const LayerShape& shape, LinearBackend backend, Executor& executor) {
  auto inputs = std::make_unique<LinearInputs>();
  WeightPool& pool = inputs->pool;
  pool.in_features = shape.in_features;
  pool.values = RandomFloats((int64_t{1} << 20) + shape.in_features, 3);
  inputs->x = RandomFloats(kMostRows * shape.in_features, 4);
  inputs->y.resize(static_cast<size_t>(kMostRows * shape.out_features));
  const int64_t copies = ColdCopies(LinearWork(1, shape.out_features, shape.in_features).bytes);
  for (int64_t i = 0; i < copies; ++i) {
    pool.copy = static_cast<uint64_t>(i);
    HEADLANE_ASSIGN_OR_RETURN(Linear layer, Linear::Create(backend, shape.out_features, shape.in_features,
                                                           {&pool, WeightPool::Read}, executor));
    inputs->layers.push_back(std::move(layer));
  }
  return inputs;
}

// A few outputs of the last layer, added up in double. f32 chains of FMAs err by at most n rounding units of the sum of
// the magnitudes.
Status Check(LinearInputs& inputs, const LayerShape& shape, int64_t rows, Executor& executor) {
  const Linear& layer = inputs.layers.back();
  HEADLANE_RETURN_IF_ERROR(
      layer.Run(inputs.x.data(), shape.in_features, rows, inputs.y.data(), shape.out_features, executor));
  for (const int64_t row : {int64_t{0}, rows - 1}) {
    for (const int64_t feature : {int64_t{0}, int64_t{15}, shape.out_features / 2, shape.out_features - 1}) {
      const float* w = inputs.pool.Row(feature);
      const float* x = inputs.x.data() + row * shape.in_features;
      double expected = 0, magnitude = 0;
      for (int64_t k = 0; k < shape.in_features; ++k) {
        const double term = static_cast<double>(x[k]) * w[k];
        expected += term;
        magnitude += std::abs(term);
      }
      const float got = inputs.y[static_cast<size_t>(row * shape.out_features + feature)];
      if (std::abs(got - expected) <= static_cast<double>(shape.in_features) * 0x1p-24 * magnitude) continue;
      return MakeStatus(StatusCode::kInternal, "wrong output in row %lld feature %lld: %.9g instead of %.9g",
                        static_cast<long long>(row), static_cast<long long>(feature), static_cast<double>(got),
                        expected);
    }
  }
  return OkStatus();
}

void RunCase(Session& session, benchmark::State& state, const Case& entry, const LayerShape& shape,
             LinearBackend backend, int64_t rows) {
  const std::string key = std::string("linear/") + shape.name + "/" + LinearBackendName(backend);
  OpenMPExecutor executor(entry.threads);
  auto inputs = session.GetInputs<LinearInputs>(key, [&] { return MakeInputs(shape, backend, executor); });
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
    for (const LinearBackend backend : {LinearBackend::kOneDnn, LinearBackend::kTile}) {
      if (!HasLinearBackend(backend)) continue;
      if (backend == LinearBackend::kOneDnn && !session.options().baselines) continue;
      for (const int64_t rows : {int64_t{1}, int64_t{8}, kMostRows}) {
        for (const int threads : session.options().threads) {
          const std::string name = std::string("linear/") + shape.name + "/rows:" + std::to_string(rows);
          const std::string threads_part = "/threads:" + std::to_string(threads);
          Case entry;
          entry.variant = LinearBackendName(backend);
          entry.name = name + "/" + entry.variant + threads_part;
          entry.task = name + threads_part;
          entry.series = entry.name;
          entry.length = rows;
          entry.threads = threads;
          entry.work = LinearWork(rows, shape.out_features, shape.in_features);
          session.Register(entry, shape.quick, /*once=*/false,
                           [&session, &shape, backend, rows](benchmark::State& state, const Case& registered) {
                             RunCase(session, state, registered, shape, backend, rows);
                           });
        }
      }
    }
  }
}

}  // namespace headlane::bench
