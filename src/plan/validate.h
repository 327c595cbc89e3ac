// What a plan accepts. Every refusal names the field, the index of the sequence, and both numbers.
//
// Separate from planning, so that everything behind it may rely on numbers that are small, not negative and consistent.
// Called by plan.cc only.
#ifndef HEADLANE_SRC_PLAN_VALIDATE_H_
#define HEADLANE_SRC_PLAN_VALIDATE_H_

#include <cstdint>
#include <span>

#include "headlane/attention.h"
#include "headlane/kv_pages.h"
#include "headlane/status.h"
#include "plan/problem.h"

namespace headlane::internal {

// Zero heads, dims, tokens and sequences are legal: such a problem is empty, or its outputs are zeros.
// Errors: InvalidArgument.
Status ResolveProblem(const AttentionSpec& spec, bool from_cache, Problem* problem) noexcept;

// The cache holds what the problem reads, in any element type. Errors: InvalidArgument.
Status CheckCacheSpec(const Problem& problem, const KVCacheSpec& spec) noexcept;

// The same of pages that the caller manages.
Status CheckPagesSpec(const Problem& problem, const KVPagesSpec& spec) noexcept;

// What a batch needs of the capacities that are fixed at plan time.
struct BatchExtent {
  int64_t num_sequences = 0;
  int64_t num_q_tokens = 0;  // sum of q_len
  int64_t max_kv_len = 0;
};

// Fields and sums in range, and no query row belongs to two sequences. A prefix_len past kv_len is legal: a prompt that
// comes in chunks has one until its prefix is complete, and there are no keys to be seen yet. `scratch` has
// sequences.size() elements. Errors: InvalidArgument.
Status CheckSequences(const Problem& problem, std::span<const SequenceSpec> sequences, std::span<int32_t> scratch,
                      BatchExtent* extent) noexcept;

// Negative or absurd numbers. Errors: InvalidArgument.
Status CheckOptions(const PlanOptions& options) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_PLAN_VALIDATE_H_
