// AttentionPlan and the PlanImpl behind it: capacities, and the copy of the sequences and their pages. What a plan says
// of itself is in summary.cc and explain.cc: it is only computed when asked for.
#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/fp_environment.h"
#include "kv/kv_cache_impl.h"
#include "mask/visibility.h"
#include "plan/plan_impl.h"
#include "plan/summary.h"

namespace headlane {
namespace internal {
namespace {

using LL = long long;

Status OutOfMemory(const char* what) { return MakeStatus(StatusCode::kResourceExhausted, "no memory for %s", what); }

Status OverCapacity(const char* what, int64_t wanted, int64_t capacity) {
  return MakeStatus(StatusCode::kResourceExhausted, "the batch has %s %lld, but the plan was made for %lld", what,
                    static_cast<LL>(wanted), static_cast<LL>(capacity));
}

}  // namespace

Result<std::unique_ptr<PlanImpl>> PlanImpl::Create(const AttentionSpec& spec, const KVCache* cache,
                                                   std::span<const SequenceSpec> sequences,
                                                   const PlanOptions& options) noexcept {
  Problem problem;
  HEADLANE_RETURN_IF_ERROR(ResolveProblem(spec, cache != nullptr, &problem));
  if (cache != nullptr) HEADLANE_RETURN_IF_ERROR(CheckCacheSpec(problem, cache->spec()));
  HEADLANE_RETURN_IF_ERROR(CheckOptions(options));
  try {
    std::unique_ptr<PlanImpl> plan(new PlanImpl);
    plan->kernels_ = &ActiveKernels();
    plan->problem_ = problem;
    if (cache != nullptr) {
      plan->cache_spec_ = cache->spec();
      plan->problem_.k_dtype = cache->spec().k_dtype;
      plan->problem_.v_dtype = cache->spec().v_dtype;
      plan->problem_.rotate = cache->spec().rotate;
    }
    plan->SetTileBytes(cache);
    // The limit is checked again with all fields; here it only keeps an absurd size from being allocated.
    plan->scratch_.resize(std::min(sequences.size(), static_cast<size_t>(kMaxBatchSequences)));
    BatchExtent extent;
    HEADLANE_RETURN_IF_ERROR(plan->CheckBatch(cache, sequences, &extent));
    HEADLANE_RETURN_IF_ERROR(plan->Reserve(cache, extent, options));
    plan->Fill(cache, sequences);
    return plan;
  } catch (const std::bad_alloc&) {
    return OutOfMemory("a plan of these capacities");
  } catch (const std::length_error&) {
    return OutOfMemory("a plan of these capacities");
  }
}

Status PlanImpl::Update(const KVCache* cache, std::span<const SequenceSpec> sequences) noexcept {
  if ((cache != nullptr) != problem_.from_cache) {
    return MakeStatus(StatusCode::kInvalidArgument, "the plan was made for %s, but is updated for %s",
                      problem_.from_cache ? "a cache" : "plain tensors",
                      cache != nullptr ? "a cache" : "plain tensors");
  }
  if (cache != nullptr) {
    HEADLANE_RETURN_IF_ERROR(CheckCacheSpec(problem_, cache->spec()));
    if (cache->spec().page_tokens != cache_spec_.page_tokens) {
      return MakeStatus(StatusCode::kInvalidArgument,
                        "the plan was made for pages of %lld tokens, but the cache's have %lld",
                        static_cast<LL>(cache_spec_.page_tokens), static_cast<LL>(cache->spec().page_tokens));
    }
    if (cache->spec().k_dtype != problem_.k_dtype ||
        (cache->spec().v_dtype != problem_.v_dtype && !problem_.values_in_keys)) {
      return MakeStatus(StatusCode::kInvalidArgument,
                        "the plan was made for keys in %s and values in %s, but the cache's are %s and %s",
                        DTypeName(problem_.k_dtype), DTypeName(problem_.v_dtype), DTypeName(cache->spec().k_dtype),
                        DTypeName(cache->spec().v_dtype));
    }
  }
  // Before the fields: the scratch of their check has this size.
  if (sequences.size() > static_cast<size_t>(capacity_.num_sequences)) {
    return OverCapacity("a number of sequences of", static_cast<int64_t>(sequences.size()), capacity_.num_sequences);
  }
  BatchExtent extent;
  HEADLANE_RETURN_IF_ERROR(CheckBatch(cache, sequences, &extent));
  if (extent.num_q_tokens > capacity_.num_q_tokens) {
    return OverCapacity("a number of query tokens of", extent.num_q_tokens, capacity_.num_q_tokens);
  }
  if (extent.max_kv_len > capacity_.max_kv_len) {
    return OverCapacity("a largest kv_len of", extent.max_kv_len, capacity_.max_kv_len);
  }
  if (cache != nullptr) {
    // Another cache may have more pages than the one that the plan was made for.
    int64_t num_pages = 0;
    for (const SequenceSpec& sequence : sequences) num_pages += CeilDiv(sequence.kv_len, cache_spec_.page_tokens);
    if (num_pages > page_capacity_) return OverCapacity("a number of pages of", num_pages, page_capacity_);
  }
  Fill(cache, sequences);
  return OkStatus();
}

Status PlanImpl::CheckBatch(const KVCache* cache, std::span<const SequenceSpec> sequences,
                            BatchExtent* extent) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckSequences(problem_, sequences, scratch_, extent));
  if (cache == nullptr) return OkStatus();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceSpec& sequence = sequences[i];
    Status status = cache->impl().CheckReadable(sequence.cache_id, sequence.kv_len);
    if (status.ok() && sequence.q_len > 0) {
      // What the window of the layer group has passed must not be seen.
      const RowKeys seen = VisibleHull(ResolveMask(problem_.mask, sequence), 0, sequence.q_len);
      for (const KeyInterval& keys : {seen.first, seen.rest}) {
        if (!status.ok() || keys.empty()) continue;
        status = cache->impl().CheckKept(sequence.cache_id, problem_.cache_group, keys.begin, keys.end);
      }
    }
    if (!status.ok()) return MakeStatus(status.code(), "sequences[%lld]: %s", static_cast<LL>(i), status.c_str());
  }
  return OkStatus();
}

void PlanImpl::SetTileBytes(const KVCache* cache) noexcept {
  constexpr int64_t kFloat = sizeof(float);
  const int64_t k = cache != nullptr ? cache->impl().layout().k_tile_bytes : kTileKeys * problem_.qk_dim * kFloat;
  const int64_t v = cache != nullptr ? cache->impl().layout().v_tile_bytes : kTileKeys * problem_.v_dim * kFloat;
  tile_bytes_ = k + (problem_.values_in_keys ? 0 : v);
}

Status PlanImpl::Reserve(const KVCache* cache, const BatchExtent& extent, const PlanOptions& options) {
  HEADLANE_DCHECK(options.num_workers >= 1);
  capacity_.num_sequences = std::max(extent.num_sequences, options.max_sequences);
  capacity_.num_q_tokens = std::max(extent.num_q_tokens, options.max_q_tokens);
  capacity_.max_kv_len = std::max(extent.max_kv_len, options.max_kv_len);
  int64_t max_kv_len = capacity_.max_kv_len;
  if (cache != nullptr) {
    max_kv_len = std::min(max_kv_len, cache->impl().layout().max_positions);
    const int64_t pages_per_sequence = CeilDiv(max_kv_len, cache->spec().page_tokens);
    if (!CheckedMul(pages_per_sequence, capacity_.num_sequences, &page_capacity_)) return OutOfMemory("page numbers");
  }
  limits_ = MakeWorkLimits(problem_, std::min(options.num_workers, kMaxWorkers), capacity_.num_sequences,
                           capacity_.num_q_tokens, max_kv_len);
  room_ = MakeWorkCapacity(problem_, limits_, capacity_.num_sequences, capacity_.num_q_tokens);
  HEADLANE_RETURN_IF_ERROR(MakeWorkspaceLayout(problem_, limits_, room_, &layout_));

  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  sequences_.reserve(size(capacity_.num_sequences));
  scratch_.resize(size(capacity_.num_sequences));
  page_begin_.reserve(size(capacity_.num_sequences));
  pages_.reserve(size(page_capacity_));
  work_.blocks.reserve(size(room_.num_blocks));
  work_.items.reserve(size(room_.num_items));
  work_.counters.reserve(size(room_.num_counters));
  return OkStatus();
}

void PlanImpl::Fill(const KVCache* cache, std::span<const SequenceSpec> sequences) {
  sequences_.assign(sequences.begin(), sequences.end());
  reach_ = BatchReach();
  for (const SequenceSpec& s : sequences) {
    if (s.q_len > 0) reach_.q_batch = std::max(reach_.q_batch, s.batch + 1);
    reach_.q_tokens = std::max(reach_.q_tokens, s.q_begin + s.q_len);
    if (!problem_.from_cache) {
      if (s.kv_len > 0) reach_.kv_batch = std::max(reach_.kv_batch, s.batch + 1);
      reach_.kv_tokens = std::max(reach_.kv_tokens, s.kv_begin + s.kv_len);
    }
  }

  page_begin_.clear();
  pages_.clear();
  if (cache != nullptr) {
    for (const SequenceSpec& s : sequences) {
      const int64_t num_pages = CeilDiv(s.kv_len, cache_spec_.page_tokens);
      const size_t begin = pages_.size();
      HEADLANE_DCHECK(static_cast<int64_t>(begin) + num_pages <= page_capacity_);
      page_begin_.push_back(static_cast<int64_t>(begin));
      pages_.resize(begin + static_cast<size_t>(num_pages));
      cache->impl().CopyPageIds(s.cache_id, num_pages, pages_.data() + begin, problem_.cache_group);
    }
    for (const int32_t page : pages_) reach_.max_page = std::max(reach_.max_page, page);
  }

#if HEADLANE_DCHECK_IS_ON
  const size_t room[] = {work_.blocks.capacity(), work_.items.capacity(), work_.counters.capacity()};
#endif
  BuildWork(problem_, sequences_, limits_, &work_);
#if HEADLANE_DCHECK_IS_ON
  // Nothing has grown: Update allocates nothing.
  HEADLANE_DCHECK(room[0] == work_.blocks.capacity());
  HEADLANE_DCHECK(room[1] == work_.items.capacity());
  HEADLANE_DCHECK(room[2] == work_.counters.capacity());
#endif
}

}  // namespace internal

AttentionPlan::AttentionPlan(std::unique_ptr<internal::PlanImpl> impl) noexcept : impl_(std::move(impl)) {}
AttentionPlan::AttentionPlan(AttentionPlan&&) noexcept = default;
AttentionPlan& AttentionPlan::operator=(AttentionPlan&&) noexcept = default;
AttentionPlan::~AttentionPlan() = default;

Status AttentionPlan::Update(std::span<const SequenceSpec> sequences) noexcept {
  Status status;
  internal::InDefaultFpEnvironment([&] { status = impl_->Update(nullptr, sequences); });
  return status;
}

Status AttentionPlan::Update(const KVCache& cache, std::span<const SequenceSpec> sequences) noexcept {
  Status status;
  internal::InDefaultFpEnvironment([&] { status = impl_->Update(&cache, sequences); });
  return status;
}

size_t AttentionPlan::workspace_bytes() const noexcept { return static_cast<size_t>(impl_->layout().bytes); }
PlanSummary AttentionPlan::summary() const noexcept {
  PlanSummary summary;
  internal::InDefaultFpEnvironment([&] { summary = internal::Summarize(*impl_); });
  return summary;
}

Result<std::string> AttentionPlan::Explain(const MachinePeaks& peaks) const noexcept {
  std::string text;
  bool complete = true;
  // What is called in between throws nothing.
  internal::InDefaultFpEnvironment([&] {
    try {
      text = internal::Explain(*impl_, peaks);
    } catch (const std::bad_alloc&) {
      complete = false;
    } catch (const std::length_error&) {
      complete = false;
    }
  });
  if (!complete) return internal::OutOfMemory("an explanation");
  return text;
}

}  // namespace headlane
