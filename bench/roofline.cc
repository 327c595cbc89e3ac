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
  if (work.on_integers) return 0;
  return limits.fma_gflops > 0 ? work.flops / (limits.fma_gflops * 1e9) : 0;
}

double FlopsOfPairs(const AttentionShape& shape, double pairs_per_head) {
  const ModelShape& model = shape.model;
  return 2.0 * static_cast<double>(model.qk_dim + model.v_dim) * pairs_per_head *
         static_cast<double>(model.num_q_heads * shape.num_sequences);
}

// A key or value of one head, by the formats' definitions (kv_cache.h), scales included.
double StoredRowBytes(DType dtype, int64_t dim) {
  const double features = static_cast<double>(dim);
  switch (dtype) {
    case DType::kI8:
    case DType::kF8E4M3:
      return features + 4;
    case DType::kI4:
      return features / 2 + 2 * std::ceil(features / 32);
    default:
      return features * static_cast<double>(DTypeBytes(dtype));
  }
}

double BytesOfKeys(const AttentionShape& shape, int64_t num_keys) {
  const ModelShape& model = shape.model;
  const double row_bytes =
      StoredRowBytes(shape.dtype, model.qk_dim) + (model.values_in_keys ? 0 : StoredRowBytes(shape.dtype, model.v_dim));
  return static_cast<double>(shape.num_sequences) * static_cast<double>(num_keys) *
         static_cast<double>(model.num_kv_heads) * row_bytes;
}

}  // namespace

const ModelShape* FindModelShape(const char* name) {
  for (const ModelShape& model : kModelShapes) {
    if (std::string_view(model.name) == name) return &model;
  }
  return nullptr;
}

int64_t AttentionShape::FirstVisible(int64_t row) const {
  if (modifiers.window < 0) return 0;
  return std::max<int64_t>(0, VisibleEnd(row) - modifiers.window);
}

double KvBytes(const AttentionShape& shape) { return BytesOfKeys(shape, shape.kv_len); }

Work AttentionWork(const AttentionShape& shape) {
  double pairs = 0;
  for (int64_t row = 0; row < shape.q_len; ++row) {
    pairs += static_cast<double>(shape.VisibleEnd(row) - shape.FirstVisible(row));
  }
  return {FlopsOfPairs(shape, pairs), BytesOfKeys(shape, shape.kv_len - shape.FirstVisible(0))};
}

Work PrefillWork(const AttentionShape& shape) {
  const double square = static_cast<double>(shape.q_len) * static_cast<double>(shape.kv_len);
  return {FlopsOfPairs(shape, square / 2), KvBytes(shape)};
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
