// A plan: the checked problem, its sequences, and the work they were cut into.
//
// Separate from the public header so that execution sees all of it and users see nothing. Made and updated by plan.cc,
// read by src/exec; a run changes nothing here, so that any number of runs may share a plan.
#ifndef HEADLANE_SRC_PLAN_PLAN_IMPL_H_
#define HEADLANE_SRC_PLAN_PLAN_IMPL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "headlane/attention.h"
#include "headlane/kv_pages.h"
#include "headlane/status.h"
#include "kernels/kernel_api.h"
#include "plan/problem.h"
#include "plan/validate.h"
#include "plan/work.h"
#include "plan/workspace_layout.h"

namespace headlane::internal {

// How far the sequences reach, so that a run checks its tensors without walking over them.
struct BatchReach {
  int64_t q_batch = 0;  // batch entries and tokens that queries and outputs need
  int64_t q_tokens = 0;
  int64_t kv_batch = 0;  // the same of keys and values in plain tensors
  int64_t kv_tokens = 0;
  int32_t max_page = -1;  // cache and pages: the largest page number
};

// Where keys and values are that a plan reads: at most one of them, or else in plain tensors.
struct KeyStore {
  const KVCache* cache = nullptr;
  const KVPages* pages = nullptr;

  KeysIn keys_in() const noexcept;
  bool rotate() const noexcept;
  int64_t page_tokens() const noexcept;  // 0: plain tensors
  DType k_dtype() const noexcept;        // cache and pages
  DType v_dtype() const noexcept;
};

class PlanImpl {
 public:
  // Errors: see PlanAttention.
  static Result<std::unique_ptr<PlanImpl>> Create(const AttentionSpec& spec, const KeyStore& store,
                                                  std::span<const SequenceSpec> sequences,
                                                  const PlanOptions& options) noexcept;
  // Errors: see AttentionPlan::Update. On an error nothing is changed.
  Status Update(const KeyStore& store, std::span<const SequenceSpec> sequences) noexcept;

  const KernelTable& kernels() const noexcept { return *kernels_; }
  const Problem& problem() const noexcept { return problem_; }
  int64_t page_tokens() const noexcept { return page_tokens_; }  // cache and pages
  std::span<const SequenceSpec> sequences() const noexcept { return sequences_; }
  // Page numbers of a sequence in ascending order; -1 where no row sees a token. Cache and pages only.
  const int32_t* PagesOf(int64_t sequence) const noexcept {
    return pages_.data() + page_begin_[static_cast<size_t>(sequence)];
  }
  // Bytes of a tile of keys and values as they are stored; plain tensors are taken as f32.
  int64_t tile_bytes() const noexcept { return tile_bytes_; }
  const BatchReach& reach() const noexcept { return reach_; }
  const Work& work() const noexcept { return work_; }
  const WorkLimits& limits() const noexcept { return limits_; }
  const WorkCapacity& room() const noexcept { return room_; }
  const WorkspaceLayout& layout() const noexcept { return layout_; }

 private:
  PlanImpl() = default;

  Status CheckStore(const KeyStore& store) const noexcept;
  Status CheckBatch(const KeyStore& store, std::span<const SequenceSpec> sequences, BatchExtent* extent) noexcept;
  Status Reserve(const KeyStore& store, const BatchExtent& extent, const PlanOptions& options);
  void SetTileBytes(const KeyStore& store) noexcept;
  // Requires: checked, and within the capacity.
  void Fill(const KeyStore& store, std::span<const SequenceSpec> sequences);

  const KernelTable* kernels_ = nullptr;
  Problem problem_;
  int64_t page_tokens_ = 0;
  BatchExtent capacity_;
  int64_t page_capacity_ = 0;
  int64_t tile_bytes_ = 0;
  WorkLimits limits_;
  WorkCapacity room_;
  WorkspaceLayout layout_;

  std::vector<SequenceSpec> sequences_;
  std::vector<int32_t> scratch_;
  std::vector<int64_t> page_begin_;  // [sequences] index into pages_
  std::vector<int32_t> pages_;
  BatchReach reach_;
  Work work_;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_PLAN_PLAN_IMPL_H_
