#include "bench/roofline.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace headlane::bench {
namespace {

double MemorySeconds(const Work& work, const MachineLimits& limits) {
  return limits.read_gbps > 0 ? work.bytes / (limits.read_gbps * 1e9) : 0;
}

double ComputeSeconds(const Work& work, const MachineLimits& limits) {
  return limits.fma_gflops > 0 ? work.flops / (limits.fma_gflops * 1e9) : 0;
}

double FlopsOfPairs(const AttentionShape& shape, double pairs_per_head) {
  const ModelShape& model = shape.model;
  return 2.0 * static_cast<double>(model.qk_dim + model.v_dim) * pairs_per_head *
         static_cast<double>(model.num_q_heads * shape.num_sequences);
}

}  // namespace

const ModelShape* FindModelShape(const char* name) {
  for (const ModelShape& model : kModelShapes) {
    if (std::string_view(model.name) == name) return &model;
  }
  return nullptr;
}

double KvBytes(const AttentionShape& shape, double bytes_per_element) {
  const ModelShape& model = shape.model;
  return static_cast<double>(shape.num_sequences) * static_cast<double>(shape.kv_len) *
         static_cast<double>(model.num_kv_heads * (model.qk_dim + model.v_dim)) * bytes_per_element;
}

Work AttentionWork(const AttentionShape& shape, double bytes_per_element) {
  const double rows = static_cast<double>(shape.q_len);
  // Rows see first, first + 1, ... keys.
  const double first = static_cast<double>(shape.VisibleKeys(0));
  return {FlopsOfPairs(shape, rows * first + rows * (rows - 1) / 2), KvBytes(shape, bytes_per_element)};
}

Work PrefillWork(const AttentionShape& shape, double bytes_per_element) {
  const double square = static_cast<double>(shape.q_len) * static_cast<double>(shape.kv_len);
  return {FlopsOfPairs(shape, square / 2), KvBytes(shape, bytes_per_element)};
}

Work LinearWork(int64_t rows, int64_t out_features, int64_t in_features, double bytes_per_weight) {
  const double weights = static_cast<double>(out_features) * static_cast<double>(in_features);
  return {2 * weights * static_cast<double>(rows), weights * bytes_per_weight};
}

double RooflineSeconds(const Work& work, const MachineLimits& limits) {
  return std::max(MemorySeconds(work, limits), ComputeSeconds(work, limits));
}

bool BoundByMemory(const Work& work, const MachineLimits& limits) {
  return MemorySeconds(work, limits) > ComputeSeconds(work, limits);
}

int64_t ColdCopies(double bytes) { return bytes > 0 ? static_cast<int64_t>(std::ceil(kColdBytes / bytes)) : 1; }

}  // namespace headlane::bench
