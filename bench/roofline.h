// What a case has to do at least, counted by hand and not by the library under test: operations, bytes, and the time
// that a machine at its limits would take for them.
#ifndef HEADLANE_BENCH_ROOFLINE_H_
#define HEADLANE_BENCH_ROOFLINE_H_

#include <cstdint>
#include <span>

#include "bench/limits.h"

namespace headlane::bench {

// The attention of one layer of a model.
struct ModelShape {
  const char* name;
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t qk_dim;
  int64_t v_dim;
};

inline constexpr ModelShape kModelShapes[] = {
    {"llama-3-8b", 32, 8, 128, 128},
    {"llama-2-7b", 32, 32, 128, 128},
    {"smollm2-135m", 9, 3, 64, 64},
    {"gemma-2b", 8, 1, 256, 256},
};

// Null when there is no such model.
const ModelShape* FindModelShape(const char* name);

// One call: sequences of equal lengths. Query row i of a sequence sees the keys [0, kv_len - q_len + i], as in a causal
// model. Requires: q_len <= kv_len.
struct AttentionShape {
  ModelShape model;
  int64_t num_sequences = 1;
  int64_t q_len = 1;
  int64_t kv_len = 0;

  int64_t group() const { return model.num_q_heads / model.num_kv_heads; }
  // The keys that row i sees.
  int64_t VisibleKeys(int64_t row) const { return kv_len - q_len + row + 1; }
};

struct Work {
  double flops = 0;
  double bytes = 0;  // that must come out of memory
};

// Bytes of all keys and values of one call.
double KvBytes(const AttentionShape& shape, double bytes_per_element = 4);

// Two operations for each multiply-add of a query with a key that it sees, and of a weight with its value.
Work AttentionWork(const AttentionShape& shape, double bytes_per_element = 4);

// By the usual convention a causal prefill is half the square, 4 * q_len * kv_len * dim / 2 per head, which is a little
// less than the pairs seen.
Work PrefillWork(const AttentionShape& shape, double bytes_per_element = 4);

// y = x * W^T: all weights once, and a multiply-add of each with each row. The rows themselves stay in caches.
Work LinearWork(int64_t rows, int64_t out_features, int64_t in_features, double bytes_per_weight = 4);

// The least time: the slower of moving the bytes and doing the operations, which overlap at best. 0 without limits.
double RooflineSeconds(const Work& work, const MachineLimits& limits);
bool BoundByMemory(const Work& work, const MachineLimits& limits);

// Copies of something of `bytes` that together are beyond every cache. Walking through them in turn finds each in
// memory again, as in a model with many layers.
int64_t ColdCopies(double bytes);
inline constexpr double kColdBytes = 512.0 * (1 << 20);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_ROOFLINE_H_
