// What a case has to do at least, counted by hand and not by the library under test: operations, bytes, and the time
// that a machine at its limits would take for them.
#ifndef HEADLANE_BENCH_ROOFLINE_H_
#define HEADLANE_BENCH_ROOFLINE_H_

#include <cstdint>
#include <span>

#include "bench/limits.h"
#include "headlane/dtype.h"

namespace headlane::bench {

// The attention of one layer of a model.
struct ModelShape {
  const char* name;
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t qk_dim;
  int64_t v_dim;
  bool values_in_keys = false;  // latent attention: the values are the first v_dim features of the keys
};

inline constexpr ModelShape kModelShapes[] = {
    {"llama-3-8b", 32, 8, 128, 128},
    {"llama-2-7b", 32, 32, 128, 128},
    {"smollm2-135m", 9, 3, 64, 64},
    {"gemma-2b", 8, 1, 256, 256},
    {"phi-1.5", 32, 32, 64, 64},
    {"gemma-7b", 16, 16, 256, 256},
    {"one-head", 1, 1, 128, 128},  // no model's: one KV head cut over all threads, bound by memory alone
    {"deepseek-v3", 128, 1, 576, 512, true},
};

// Null when there is no such model.
const ModelShape* FindModelShape(const char* name);

// What scores go through besides scale and causality.
struct Modifiers {
  enum class Mask { kNone, kBytes, kBits };

  float softcap = 0;  // 0: none
  bool alibi = false;
  bool bias = false;        // additive, f32, one row per query row, for all heads
  Mask mask = Mask::kNone;  // a key in four hidden at random, for all heads; never a row's own
  int64_t window = -1;      // keys that a row sees up to its own; negative: all
};

// One call: sequences of equal lengths. Query row i of a sequence sees the keys up to kv_len - q_len + i, as in a
// causal model. Requires: q_len <= kv_len.
struct AttentionShape {
  ModelShape model;
  int64_t num_sequences = 1;
  int64_t q_len = 1;
  int64_t kv_len = 0;
  DType dtype = DType::kF32;  // of keys and values as stored
  Modifiers modifiers = {};

  int64_t group() const { return model.num_q_heads / model.num_kv_heads; }
  // The keys that row i sees, masks apart: [FirstVisible(i), VisibleEnd(i)).
  int64_t FirstVisible(int64_t row) const;
  int64_t VisibleEnd(int64_t row) const { return kv_len - q_len + row + 1; }
};

struct Work {
  double flops = 0;
  double bytes = 0;          // that must come out of memory
  bool on_integers = false;  // the peak of FMAs limits no such operations
};

// Bytes of all keys and values of one call, as stored.
double KvBytes(const AttentionShape& shape);

// Two operations for each multiply-add of a query with a key that it sees, and of a weight with its value. Keys behind
// a window are neither read nor multiplied; those that a mask hides count, since hiding them one by one saves nothing.
Work AttentionWork(const AttentionShape& shape);

// By the usual convention a causal prefill is half the square, 4 * q_len * kv_len * dim / 2 per head, which is a little
// less than the pairs seen.
Work PrefillWork(const AttentionShape& shape);

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
