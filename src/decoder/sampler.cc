#include "decoder/sampler.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>

#include "decoder/alloc_guard.h"
#include "decoder/mix_bits.h"
#include "decoder/sampler_exp.h"

namespace headlane {
namespace {

using decoder_internal::ExpNonPositive;
using decoder_internal::kGoldenGamma;
using decoder_internal::MixBits;

// Engines set flush-to-zero or another rounding on their threads. What is computed within must be in a function that is
// not inlined, else compilers may move it out.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;
  ~DefaultFloatEnvironment() { std::fesetenv(&callers_); }

 private:
  std::fenv_t callers_;
};

[[gnu::noinline]] Result<int32_t> FindGreatest(std::span<const float> logits) noexcept {
  if (logits.empty() || logits.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return MakeStatus(StatusCode::kInvalidArgument, "%zu logits; 1 to %d are possible", logits.size(),
                      std::numeric_limits<int32_t>::max());
  }
  int32_t best = -1;
  float greatest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    const float x = logits[i];
    if (x > greatest) {
      greatest = x;
      best = static_cast<int32_t>(i);
    } else if (x != x) {
      return MakeStatus(StatusCode::kInvalidArgument, "the logit of token %zu of %zu is NaN", i, logits.size());
    }
  }
  if (best < 0) return MakeStatus(StatusCode::kInvalidArgument, "all %zu logits are -inf", logits.size());
  return best;
}

}  // namespace

Result<int32_t> GreedyToken(std::span<const float> logits) noexcept {
  const DefaultFloatEnvironment environment;
  return FindGreatest(logits);
}

Result<Sampler> Sampler::Create(int32_t vocab_size, const SamplerOptions& options) {
  if (vocab_size < 1)
    return MakeStatus(StatusCode::kInvalidArgument, "a vocabulary of %d tokens; it needs at least 1", vocab_size);
  if (!(options.temperature >= 0 && options.temperature <= std::numeric_limits<float>::max())) {
    return MakeStatus(StatusCode::kInvalidArgument, "temperature is %g; 0 and more is possible",
                      static_cast<double>(options.temperature));
  }
  if (options.top_k < 0)
    return MakeStatus(StatusCode::kInvalidArgument, "top_k is %d; 0 and more is possible", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return MakeStatus(StatusCode::kInvalidArgument, "top_p is %g; it must be above 0 and at most 1",
                      static_cast<double>(options.top_p));
  }
  return decoder_internal::GuardAllocation("making a sampler", [&]() -> Result<Sampler> {
    Sampler sampler;
    sampler.options_ = options;
    sampler.vocab_size_ = vocab_size;
    if (sampler.options_.top_k >= vocab_size) sampler.options_.top_k = 0;
    sampler.state_ = options.seed;
    if (options.temperature > 0) {
      sampler.weights_.resize(static_cast<size_t>(vocab_size));
      if (sampler.options_.top_k > 0 || options.top_p < 1) sampler.candidates_.resize(static_cast<size_t>(vocab_size));
    }
    return sampler;
  });
}

Result<int32_t> Sampler::Next(std::span<const float> logits) noexcept {
  if (logits.size() != static_cast<size_t>(vocab_size_)) {
    return MakeStatus(StatusCode::kInvalidArgument, "%zu logits for a sampler of %d tokens", logits.size(),
                      vocab_size_);
  }
  const DefaultFloatEnvironment environment;
  Result<int32_t> greatest = FindGreatest(logits);
  if (!greatest.ok() || options_.temperature == 0) return greatest;
  return Draw(logits, logits[static_cast<size_t>(*greatest)]);
}

int32_t Sampler::Draw(std::span<const float> logits, float greatest) noexcept {
  const size_t num_logits = logits.size();
  double total = 0;
  for (size_t i = 0; i < num_logits; ++i) {
    const double below = static_cast<double>(logits[i]) - static_cast<double>(greatest);
    // Not through `below` where both are +inf.
    const bool is_greatest = logits[i] == greatest;
    weights_[i] = is_greatest ? 1.0 : ExpNonPositive(below / static_cast<double>(options_.temperature));
    total += weights_[i];
  }
  state_ += kGoldenGamma;
  const double uniform = static_cast<double>(MixBits(state_) >> 11) * 0x1p-53;

  if (candidates_.empty()) {
    return Pick(num_logits, uniform * total, [](size_t i) { return static_cast<int32_t>(i); });
  }
  const auto [count, kept_total] = Keep(logits, total);
  return Pick(count, uniform * kept_total, [&](size_t i) { return candidates_[i].id; });
}

// The first of `count` tokens, in the order of id_at, whose running sum of weights exceeds `target`. Rounding may leave
// none: then the last one with a weight.
template <typename IdAt>
int32_t Sampler::Pick(size_t count, double target, IdAt id_at) const noexcept {
  double sum = 0;
  int32_t last = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t id = id_at(i);
    const double weight = weights_[static_cast<size_t>(id)];
    if (!(weight > 0)) continue;
    sum += weight;
    last = id;
    if (sum > target) break;
  }
  return last;
}

// Puts the tokens that top-k and top-p keep at the front of candidates_, best first: how many, and their weights' sum.
// `total` is the sum of all weights.
Sampler::Kept Sampler::Keep(std::span<const float> logits, double total) noexcept {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto weight = [&](size_t i) { return weights_[static_cast<size_t>(candidates_[i].id)]; };
  const double p = static_cast<double>(options_.top_p);
  const size_t top_k = static_cast<size_t>(options_.top_k);
  size_t count = 0;
  // A token of those that top-p needs has at least the weight (1 - p) * total / V: else all the lighter ones, up to V
  // of them, could not make up the (1 - p) * total that is still missing before it. So the others need no sorting. The
  // factor makes the rounding of either sum harmless.
  const double least = top_k > 0 ? 0.0 : (1 - p) * total / static_cast<double>(logits.size()) * 0.99;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] >= least) candidates_[count++] = {logits[i], static_cast<int32_t>(i)};
  }
  const auto begin = candidates_.begin();
  if (top_k > 0 && top_k < count) {
    std::nth_element(begin, begin + static_cast<std::ptrdiff_t>(top_k), begin + static_cast<std::ptrdiff_t>(count),
                     better);
    count = top_k;
  }
  std::sort(begin, begin + static_cast<std::ptrdiff_t>(count), better);
  double share_of = total;
  if (top_k > 0) {
    share_of = 0;
    for (size_t i = 0; i < count; ++i) share_of += weight(i);
  }
  double sum = 0;
  size_t kept = 0;
  while (kept < count && (p == 1 || kept == 0 || sum < p * share_of)) sum += weight(kept++);
  return {kept, sum};
}

}  // namespace headlane
