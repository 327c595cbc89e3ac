// The bridge between the reference's description of attention and the library's API: runs problems through attention.h
// in the ways that must not matter, and hands back out and lse per sequence.
#ifndef HEADLANE_TESTS_OPERATOR_RUNNER_H_
#define HEADLANE_TESTS_OPERATOR_RUNNER_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "headlane/attention.h"
#include "headlane/executor.h"
#include "operator/sequence.h"
#include "reference/canonical.h"

namespace headlane::testing {

using Output = reference::CanonicalResult;

// Pages that the caller manages, in place of a KVCache.
enum class Pages {
  kNo,
  kTiles,
  kTokenRows,  // [page][token][head][dim]
  kHeadRows,   // [page][head][token][dim]
};

struct RunOptions {
  Executor* executor = nullptr;  // nullptr: serial
  int plan_workers = 1;
  bool cache = false;        // keys and values in a KVCache whose free memory was full of NaN; else in plain tensors
  Pages pages = Pages::kNo;  // otherwise not with `cache`
  int64_t page_tokens = 16;
  bool rotate = false;   // cache and pages: keys and values are stored rotated
  bool padded = false;   // one batch entry per sequence, [batch, heads, tokens, dim]; else one packed entry
  bool update = false;   // the plan was made for shorter sequences, and Update()d to these
  bool want_lse = true;  // without: lse is returned as computed by nobody, all 0
  uint64_t seed = 1;     // of gaps between sequences and of the cache's history
  // Element types of the operands, whose numbers must be of that type already; k_dtype and v_dtype are the cache's,
  // too; what is quantised there is f32 in tensors. The output's is the problem's.
  DType q_dtype = DType::kF32;
  DType k_dtype = DType::kF32;
  DType v_dtype = DType::kF32;
  DType bias_dtype = DType::kF32;
  BoolMaskView::Format mask_format = BoolMaskView::Format::kBytes;
  bool want_out = true;  // without: only with states
  // Not null: the states are wanted, too. Per sequence, [q_len][num_q_heads].
  std::vector<std::vector<reference::State>>* states = nullptr;
};

std::string Describe(const RunOptions& options);

// Runs all sequences in one call. Buffers end at guard pages, what belongs to no sequence is 0xFF and must stay so, the
// workspace is full of 0xFF.
std::vector<Output> RunLibrary(const std::vector<Sequence>& sequences, const RunOptions& options = {});
Output RunLibrary(const Sequence& sequence, const RunOptions& options = {});

// out and lse, bit by bit.
::testing::AssertionResult SameOutput(const Output& expected, const Output& actual);

AttentionSpec SpecOf(const reference::Problem& problem);

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_RUNNER_H_
