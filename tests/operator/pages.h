// Keys and values of sequences in pages that the caller manages, filled through slot mappings in random order.
//
// Separate from the runner, so that tests of pages alone can have them, too.
#ifndef HEADLANE_TESTS_OPERATOR_PAGES_H_
#define HEADLANE_TESTS_OPERATOR_PAGES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "headlane/kv_pages.h"
#include "operator/runner.h"
#include "operator/sequence.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace headlane::testing {

// Memory of all layers, each region ending at a page that nobody may touch and full of 0xFF, and the pages over it.
struct PagedMemory {
  std::vector<GuardedBuffer> memory;
  std::unique_ptr<KVPages> pages;
};

// Heads, dims, types and page_tokens from `spec`, whose kind and layers are set here. qk_dim and v_dim are not 0.
PagedMemory MakePagedMemory(KVPagesSpec spec, Pages kind, int64_t num_layers);

// Page numbers of sequences of these lengths, all different, in random order, each list ending at a guard page.
std::vector<GuardedArray<int32_t>> DealPages(const std::vector<int64_t>& lengths, int64_t page_tokens,
                                             int64_t num_pages, Random& random);

struct FilledPages {
  PagedMemory store;
  std::vector<GuardedArray<int32_t>> ids;  // per sequence
};

// All sequences in layer 1 of 2; layer 0 gets NaN. Tokens come in pieces, some of several sequences in one call, with
// tokens in between that are skipped.
FilledPages FillPages(const std::vector<Sequence>& sequences, const RunOptions& options, Random& random);

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_PAGES_H_
