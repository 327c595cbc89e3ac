// Problems and batches for tests of planning: random ones, with every kind of mask, and single sequences.
#ifndef HEADLANE_TESTS_PLAN_BATCH_H_
#define HEADLANE_TESTS_PLAN_BATCH_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "headlane/attention.h"
#include "plan/problem.h"
#include "plan/validate.h"
#include "support/random.h"

namespace headlane::internal {

using ::headlane::testing::Random;

inline AttentionSpec MakeSpec(int64_t num_q_heads, int64_t num_kv_heads, int64_t qk_dim, int64_t v_dim,
                              const Mask& mask = {}) {
  AttentionSpec spec;
  spec.num_q_heads = num_q_heads;
  spec.num_kv_heads = num_kv_heads;
  spec.qk_dim = qk_dim;
  spec.v_dim = v_dim;
  spec.mask = mask;
  return spec;
}

inline Problem MakeProblem(const AttentionSpec& spec, bool from_cache = true) {
  Problem problem;
  EXPECT_TRUE(ResolveProblem(spec, from_cache, &problem).ok());
  return problem;
}

inline SequenceSpec Sequence(int64_t batch, int64_t q_len, int64_t kv_len) {
  SequenceSpec s;
  s.batch = batch;
  s.q_len = q_len;
  s.kv_len = kv_len;
  return s;
}

// Ancestors of a random tree of the sequence's drafted tokens. `memory` keeps its place.
inline void GiveTree(Random& random, SequenceSpec* s, std::deque<std::vector<uint64_t>>* memory) {
  s->kv_len = std::max(s->kv_len, s->q_len);
  s->q_pos.reset();
  const int64_t words = (s->q_len + 63) / 64;
  memory->emplace_back(static_cast<size_t>(std::max<int64_t>(1, s->q_len * words)));
  uint64_t* const bits = memory->back().data();
  for (int64_t i = 0; i < s->q_len; ++i) {
    const int64_t parent = random.Int(-1, i - 1);
    for (int64_t w = 0; w < words && parent >= 0; ++w) bits[i * words + w] = bits[parent * words + w];
    bits[i * words + i / 64] |= uint64_t{1} << (i % 64);
  }
  s->tree = {bits, words};
}

struct Case {
  AttentionSpec spec;
  Problem problem;
  std::vector<SequenceSpec> sequences;
  std::deque<std::vector<uint64_t>> trees;
  int num_workers = 1;

  int64_t QueryTokens() const {
    int64_t sum = 0;
    for (const SequenceSpec& s : sequences) sum += s.q_len;
    return sum;
  }
  int64_t MaxKvLen() const {
    int64_t most = 0;
    for (const SequenceSpec& s : sequences) most = std::max(most, s.kv_len);
    return most;
  }
};

inline std::string Describe(const Case& c) {
  const Mask& mask = c.problem.mask;
  std::string text = "heads " + std::to_string(c.problem.num_q_heads) + "/" + std::to_string(c.problem.num_kv_heads) +
                     " dims " + std::to_string(c.problem.qk_dim) + "/" + std::to_string(c.problem.v_dim) +
                     (c.problem.values_in_keys ? " values in keys" : "") + " causality " +
                     std::to_string(static_cast<int>(mask.causality)) + " window " + std::to_string(mask.window) + "/" +
                     std::to_string(mask.window_right) + " always " + std::to_string(mask.num_always_visible) +
                     " chunk " + std::to_string(mask.chunk) + " workers " + std::to_string(c.num_workers) + " (q, kv)";
  for (const SequenceSpec& s : c.sequences) {
    text += " (" + std::to_string(s.q_len) + ", " + std::to_string(s.kv_len);
    if (s.q_pos) text += " at " + std::to_string(*s.q_pos);
    if (s.prefix_len > 0) text += " prefix " + std::to_string(s.prefix_len);
    if (s.tree.bits != nullptr) text += " tree";
    text += ")";
  }
  return text;
}

inline Mask RandomMask(Random& random) {
  Mask mask;
  mask.causality = static_cast<Causality>(random.Int(0, 2));
  if (random.OneIn(2)) {
    mask.window = random.Pick(std::vector<int64_t>{0, 1, 5, 128, 1000, 1024, 3000, int64_t{1} << 62});
  }
  if (random.OneIn(5)) mask.window_right = random.Pick(std::vector<int64_t>{0, 1, 500, int64_t{1} << 62});
  if (random.OneIn(3)) mask.num_always_visible = random.Pick(std::vector<int64_t>{1, 4, 130, 1030, 7000});
  if (random.OneIn(4)) mask.chunk = random.Pick(std::vector<int64_t>{1, 16, 700, 2048, 8192, int64_t{1} << 62});
  return mask;
}

// A sequence of up to so many query tokens, with whatever a sequence can have.
inline SequenceSpec RandomSequence(Random& random, int64_t batch, int64_t most_tokens, Case* c) {
  SequenceSpec s =
      Sequence(batch, random.OneIn(3) ? random.Int(0, most_tokens) : random.Int(0, 3),
               random.Pick(std::vector<int64_t>{0, 1, 15, 17, 127, 129, 1023, 1024, 1025, 2048, 5000, 20000, 65536}));
  s.q_len = std::min(s.q_len, most_tokens);
  if (random.OneIn(5)) s.prefix_len = random.Int(0, s.kv_len + 100);
  if (random.OneIn(5)) s.q_pos = random.Int(-700, s.kv_len + 700);
  if (random.OneIn(5)) GiveTree(random, &s, &c->trees);
  return s;
}

inline Case RandomCase(Random& random) {
  Case c;
  const int64_t kv_heads = random.Int(1, 4);
  const int64_t group = random.Pick(std::vector<int64_t>{1, 2, 3, 4, 5, 7, 8, 16, 71, 128});
  const std::vector<int64_t> dims = {0, 1, 64, 128, 257, 576};
  c.spec = MakeSpec(kv_heads * group, kv_heads, random.Pick(dims), random.Pick(dims), RandomMask(random));
  c.spec.values_in_keys = c.spec.v_dim <= c.spec.qk_dim && random.OneIn(4);
  c.problem = MakeProblem(c.spec, random.OneIn(2));
  c.num_workers = static_cast<int>(random.Pick(std::vector<int64_t>{1, 2, 3, 8, 16, 64, 128}));
  const int64_t num_sequences = random.Int(0, 6);
  for (int64_t i = 0; i < num_sequences; ++i) c.sequences.push_back(RandomSequence(random, i, 600, &c));
  return c;
}

}  // namespace headlane::internal

#endif  // HEADLANE_TESTS_PLAN_BATCH_H_
