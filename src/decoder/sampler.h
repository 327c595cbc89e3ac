// From logits to the next token: greedy, or drawn with temperature, top-k and top-p from a seed.
//
// The same logits, options and seed give the same ids on every machine: own generator, own uniform, own exp, all in
// double with plain + - * /, sums in the pinned orders below, in the default floating-point environment whatever the
// caller's is. Called once per step by the decoder loop.
//
// Drawing, with T = temperature, m = the greatest logit:
//   1. Weight of a token: w = exp((x - m) / T), exactly 1 where x == m; a logit of -inf has weight 0.
//   2. top-k: only the k tokens with the greatest (logit, then lower id) stay.
//   3. top-p: of those, in that order, the fewest whose weights add up to at least p times all of theirs; at least one.
//      (Temperature first, so that p is a share of the probabilities one draws from.)
//   4. u = uniform in [0, 1); the token drawn is the first whose running sum exceeds u times the sum.
// Sums run in ascending id without top-k and top-p; else in the order of step 2 (the total that p refers to: ascending
// id without top-k). Generator: SplitMix64 (Steele, Lea, Flood 2014) from the seed, one draw a step; u = its upper 53
// bits / 2^53.
#ifndef HEADLANE_SRC_DECODER_SAMPLER_H_
#define HEADLANE_SRC_DECODER_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "headlane/status.h"

namespace headlane {

struct SamplerOptions {
  float temperature = 0.0f;  // 0: greedy, and the rest is ignored. Else finite and > 0.
  int32_t top_k = 0;         // 0, or the size of the vocabulary and more: all
  float top_p = 1.0f;        // in (0, 1]; 1: all
  uint64_t seed = 0;
};

// The token with the greatest logit, the lower id among equal ones. One pass, no allocation. Errors: kInvalidArgument
// (no logits; a NaN, naming its id; all -inf).
Result<int32_t> GreedyToken(std::span<const float> logits) noexcept;

class Sampler {
 public:
  // Reserves what steps over `vocab_size` logits need. Errors: kInvalidArgument (an option or the size out of its
  // range, naming it), kResourceExhausted (memory).
  static Result<Sampler> Create(int32_t vocab_size, const SamplerOptions& options);

  // The next token; advances the generator by one draw unless greedy. Errors: as GreedyToken, and kInvalidArgument when
  // there are not `vocab_size` logits; the generator stays then. Allocation: none. Threads: one at a time.
  Result<int32_t> Next(std::span<const float> logits) noexcept;

  // Starts over as after Create.
  void Reset() noexcept { state_ = options_.seed; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };

  struct Kept {
    size_t count;
    double sum;
  };

  Sampler() = default;
  // Not inlined: see DefaultFloatEnvironment in the source file.
  [[gnu::noinline]] int32_t Draw(std::span<const float> logits, float greatest) noexcept;
  Kept Keep(std::span<const float> logits, double total) noexcept;
  template <typename IdAt>
  int32_t Pick(size_t count, double target, IdAt id_at) const noexcept;

  SamplerOptions options_;
  int32_t vocab_size_ = 0;
  uint64_t state_ = 0;
  std::vector<double> weights_;        // [vocab_size], by id
  std::vector<Candidate> candidates_;  // [vocab_size], with top-k or top-p only
};

}  // namespace headlane

#endif  // HEADLANE_SRC_DECODER_SAMPLER_H_
