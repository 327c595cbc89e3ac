// The bridge between the reference's description of attention and the library's API: draws problems, runs them through
// attention.h in the ways that must not matter, and hands back out and lse per sequence.
#ifndef HEADLANE_TESTS_OPERATOR_RUNNER_H_
#define HEADLANE_TESTS_OPERATOR_RUNNER_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "headlane/attention.h"
#include "headlane/executor.h"
#include "reference/canonical.h"
#include "reference/problem.h"
#include "support/random.h"

namespace headlane::testing {

// Heads and widths: what the sequences of one call share.
struct Heads {
  int64_t num_q_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t qk_dim = 1;
  int64_t v_dim = 1;
};

// What a row may see; shared, too.
struct Sight {
  reference::Causal causal = reference::Causal::kBottomRight;
  int64_t window = -1;
};

// A problem with its data. Copies share the data.
struct Sequence {
  reference::Problem problem;
  std::shared_ptr<std::vector<float>> q, k, v;

  // Query rows [begin, end) over the first kv_len keys.
  Sequence Rows(int64_t begin, int64_t end, int64_t kv_len) const;
};

// Random q, k, v in [-1, 1), the default scale.
Sequence RandomSequence(Random& random, const Heads& heads, const Sight& sight, int64_t q_len, int64_t kv_len);

// The trick q = 0, v[j] = j: the output is the mean of the visible key positions, one number that shows which keys were
// seen.
Sequence PositionSequence(const Sight& sight, int64_t q_len, int64_t kv_len, const Heads& heads = {});

// A few words about a problem, for SCOPED_TRACE.
std::string Describe(const reference::Problem& problem);

using Output = reference::CanonicalResult;

struct RunOptions {
  Executor* executor = nullptr;  // nullptr: serial
  int plan_workers = 1;
  bool cache = false;  // keys and values in a KVCache whose free memory was full of NaN; else in plain tensors
  int64_t page_tokens = 16;
  bool padded = false;   // one batch entry per sequence, [batch, heads, tokens, dim]; else one packed entry
  bool update = false;   // the plan was made for shorter sequences, and Update()d to these
  bool want_lse = true;  // without: lse is returned as computed by nobody, all 0
  uint64_t seed = 1;     // of gaps between sequences and of the cache's history
};

// Runs all sequences in one call. Buffers end at guard pages, what belongs to no sequence is 0xFF and must stay so, the
// workspace is full of 0xFF.
std::vector<Output> RunLibrary(const std::vector<Sequence>& sequences, const RunOptions& options = {});
Output RunLibrary(const Sequence& sequence, const RunOptions& options = {});

// out and lse, bit by bit.
::testing::AssertionResult SameOutput(const Output& expected, const Output& actual);

AttentionSpec SpecOf(const reference::Problem& problem);

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_RUNNER_H_
