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
#include "kv/kv_pages_impl.h"
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

KeysIn KeyStore::keys_in() const noexcept {
  if (cache != nullptr) return KeysIn::kCache;
  if (pages == nullptr) return KeysIn::kTensors;
  return pages->impl().has_tiles() ? KeysIn::kTilePages : KeysIn::kRowPages;
}
bool KeyStore::rotate() const noexcept {
  return cache != nullptr ? cache->spec().rotate : pages != nullptr && pages->spec().rotate;
}
int64_t KeyStore::page_tokens() const noexcept {
  return cache != nullptr ? cache->spec().page_tokens : pages != nullptr ? pages->spec().page_tokens : 0;
}
DType KeyStore::k_dtype() const noexcept { return cache != nullptr ? cache->spec().k_dtype : pages->spec().k_dtype; }
DType KeyStore::v_dtype() const noexcept { return cache != nullptr ? cache->spec().v_dtype : pages->spec().v_dtype; }

Result<std::unique_ptr<PlanImpl>> PlanImpl::Create(const AttentionSpec& spec, const KeyStore& store,
                                                   std::span<const SequenceSpec> sequences,
                                                   const PlanOptions& options) noexcept {
  Problem problem;
  const KeysIn keys_in = store.keys_in();
  HEADLANE_RETURN_IF_ERROR(ResolveProblem(spec, keys_in == KeysIn::kCache || keys_in == KeysIn::kTilePages, &problem));
  problem.keys_in = keys_in;
  if (store.cache != nullptr) HEADLANE_RETURN_IF_ERROR(CheckCacheSpec(problem, store.cache->spec()));
  if (store.pages != nullptr) HEADLANE_RETURN_IF_ERROR(CheckPagesSpec(problem, store.pages->spec()));
  HEADLANE_RETURN_IF_ERROR(CheckOptions(options));
  try {
    std::unique_ptr<PlanImpl> plan(new PlanImpl);
    plan->kernels_ = &ActiveKernels();
    plan->problem_ = problem;
    if (keys_in != KeysIn::kTensors) {
      plan->page_tokens_ = store.page_tokens();
      plan->problem_.k_dtype = store.k_dtype();
      // That of values in keys is nobody's, and not looked at.
      plan->problem_.v_dtype = problem.values_in_keys ? store.k_dtype() : store.v_dtype();
      plan->problem_.rotate = store.rotate();
    }
    plan->SetTileBytes(store);
    // The limit is checked again with all fields; here it only keeps an absurd size from being allocated.
    plan->scratch_.resize(std::min(sequences.size(), static_cast<size_t>(kMaxBatchSequences)));
    BatchExtent extent;
    HEADLANE_RETURN_IF_ERROR(plan->CheckBatch(store, sequences, &extent));
    HEADLANE_RETURN_IF_ERROR(plan->Reserve(store, extent, options));
    plan->Fill(store, sequences);
    return plan;
  } catch (const std::bad_alloc&) {
    return OutOfMemory("a plan of these capacities");
  } catch (const std::length_error&) {
    return OutOfMemory("a plan of these capacities");
  }
}

Status PlanImpl::CheckStore(const KeyStore& store) const noexcept {
  if (store.keys_in() != problem_.keys_in) {
    const char* const names[] = {"plain tensors", "a cache", "pages of tiles", "pages of rows"};
    return MakeStatus(StatusCode::kInvalidArgument, "the plan was made for %s, but is updated for %s",
                      names[static_cast<int>(problem_.keys_in)], names[static_cast<int>(store.keys_in())]);
  }
  if (problem_.keys_in == KeysIn::kTensors) return OkStatus();
  const char* const name = store.cache != nullptr ? "cache" : "pages";
  if (store.cache != nullptr) HEADLANE_RETURN_IF_ERROR(CheckCacheSpec(problem_, store.cache->spec()));
  if (store.pages != nullptr) HEADLANE_RETURN_IF_ERROR(CheckPagesSpec(problem_, store.pages->spec()));
  if (store.page_tokens() != page_tokens_) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "the plan was made for pages of %lld tokens, but the %s's have %lld",
                      static_cast<LL>(page_tokens_), name, static_cast<LL>(store.page_tokens()));
  }
  if (store.k_dtype() != problem_.k_dtype || (store.v_dtype() != problem_.v_dtype && !problem_.values_in_keys)) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "the plan was made for keys in %s and values in %s, but the %s's are %s and %s",
                      DTypeName(problem_.k_dtype), DTypeName(problem_.v_dtype), name, DTypeName(store.k_dtype()),
                      DTypeName(store.v_dtype()));
  }
  if (store.rotate() != problem_.rotate) {
    return MakeStatus(StatusCode::kInvalidArgument, "the plan was made for rotate %d, but the %s's rotate is %d",
                      problem_.rotate ? 1 : 0, name, store.rotate() ? 1 : 0);
  }
  return OkStatus();
}

Status PlanImpl::Update(const KeyStore& store, std::span<const SequenceSpec> sequences) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckStore(store));
  // Before the fields: the scratch of their check has this size.
  if (sequences.size() > static_cast<size_t>(capacity_.num_sequences)) {
    return OverCapacity("a number of sequences of", static_cast<int64_t>(sequences.size()), capacity_.num_sequences);
  }
  BatchExtent extent;
  HEADLANE_RETURN_IF_ERROR(CheckBatch(store, sequences, &extent));
  if (extent.num_q_tokens > capacity_.num_q_tokens) {
    return OverCapacity("a number of query tokens of", extent.num_q_tokens, capacity_.num_q_tokens);
  }
  if (extent.max_kv_len > capacity_.max_kv_len) {
    return OverCapacity("a largest kv_len of", extent.max_kv_len, capacity_.max_kv_len);
  }
  if (problem_.keys_in != KeysIn::kTensors) {
    // Another cache may have more pages than the one that the plan was made for.
    int64_t num_pages = 0;
    for (const SequenceSpec& sequence : sequences) num_pages += CeilDiv(sequence.kv_len, page_tokens_);
    if (num_pages > page_capacity_) return OverCapacity("a number of pages of", num_pages, page_capacity_);
  }
  Fill(store, sequences);
  return OkStatus();
}

Status PlanImpl::CheckBatch(const KeyStore& store, std::span<const SequenceSpec> sequences,
                            BatchExtent* extent) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckSequences(problem_, sequences, scratch_, extent));
  if (problem_.keys_in == KeysIn::kTensors || (store.cache == nullptr && store.pages == nullptr)) return OkStatus();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceSpec& sequence = sequences[i];
    Status status = store.cache != nullptr ? store.cache->impl().CheckReadable(sequence.cache_id, sequence.kv_len)
                                           : store.pages->impl().CheckTable(sequence.page_ids, sequence.kv_len);
    if (status.ok() && sequence.q_len > 0) {
      // What the window of the layer group has passed, or what has no page, must not be seen.
      const RowKeys seen = VisibleHull(ResolveMask(problem_.mask, sequence), 0, sequence.q_len);
      for (const KeyInterval& keys : {seen.first, seen.rest}) {
        if (!status.ok() || keys.empty()) continue;
        status = store.cache != nullptr
                     ? store.cache->impl().CheckKept(sequence.cache_id, problem_.cache_group, keys.begin, keys.end)
                     : store.pages->impl().CheckPages(sequence.page_ids, keys.begin, keys.end);
      }
    }
    if (!status.ok()) return MakeStatus(status.code(), "sequences[%lld]: %s", static_cast<LL>(i), status.c_str());
  }
  return OkStatus();
}

void PlanImpl::SetTileBytes(const KeyStore& store) noexcept {
  constexpr int64_t kFloat = sizeof(float);
  if (store.pages != nullptr) {
    tile_bytes_ = store.pages->impl().TileBytes();
    return;
  }
  const KVCache* const cache = store.cache;
  const int64_t k = cache != nullptr ? cache->impl().layout().k_tile_bytes : kTileKeys * problem_.qk_dim * kFloat;
  const int64_t v = cache != nullptr ? cache->impl().layout().v_tile_bytes : kTileKeys * problem_.v_dim * kFloat;
  tile_bytes_ = k + (problem_.values_in_keys ? 0 : v);
}

Status PlanImpl::Reserve(const KeyStore& store, const BatchExtent& extent, const PlanOptions& options) {
  HEADLANE_DCHECK(options.num_workers >= 1);
  capacity_.num_sequences = std::max(extent.num_sequences, options.max_sequences);
  capacity_.num_q_tokens = std::max(extent.num_q_tokens, options.max_q_tokens);
  capacity_.max_kv_len = std::max(extent.max_kv_len, options.max_kv_len);
  int64_t max_kv_len = capacity_.max_kv_len;
  if (store.cache != nullptr) max_kv_len = std::min(max_kv_len, store.cache->impl().layout().max_positions);
  if (problem_.keys_in != KeysIn::kTensors) {
    const int64_t pages_per_sequence = CeilDiv(max_kv_len, page_tokens_);
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

void PlanImpl::Fill(const KeyStore& store, std::span<const SequenceSpec> sequences) {
  sequences_.assign(sequences.begin(), sequences.end());
  reach_ = BatchReach();
  for (const SequenceSpec& s : sequences) {
    if (s.q_len > 0) reach_.q_batch = std::max(reach_.q_batch, s.batch + 1);
    reach_.q_tokens = std::max(reach_.q_tokens, s.q_begin + s.q_len);
    if (problem_.keys_in == KeysIn::kTensors) {
      if (s.kv_len > 0) reach_.kv_batch = std::max(reach_.kv_batch, s.batch + 1);
      reach_.kv_tokens = std::max(reach_.kv_tokens, s.kv_begin + s.kv_len);
    }
  }

  page_begin_.clear();
  pages_.clear();
  if (problem_.keys_in != KeysIn::kTensors) {
    for (const SequenceSpec& s : sequences) {
      const int64_t num_pages = CeilDiv(s.kv_len, page_tokens_);
      const size_t begin = pages_.size();
      HEADLANE_DCHECK(static_cast<int64_t>(begin) + num_pages <= page_capacity_);
      page_begin_.push_back(static_cast<int64_t>(begin));
      pages_.resize(begin + static_cast<size_t>(num_pages));
      if (store.cache != nullptr) {
        store.cache->impl().CopyPageIds(s.cache_id, num_pages, pages_.data() + begin, problem_.cache_group);
      } else {
        std::copy_n(s.page_ids.data(), num_pages, pages_.data() + begin);
      }
    }
    for (const int32_t page : pages_) reach_.max_page = std::max(reach_.max_page, page);
  }
  // The caller's lists need not outlive the call.
  for (SequenceSpec& s : sequences_) s.page_ids = {};

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
  internal::InDefaultFpEnvironment([&] { status = impl_->Update({}, sequences); });
  return status;
}

Status AttentionPlan::Update(const KVCache& cache, std::span<const SequenceSpec> sequences) noexcept {
  Status status;
  internal::InDefaultFpEnvironment([&] { status = impl_->Update({.cache = &cache}, sequences); });
  return status;
}

Status AttentionPlan::Update(const KVPages& pages, std::span<const SequenceSpec> sequences) noexcept {
  Status status;
  internal::InDefaultFpEnvironment([&] { status = impl_->Update({.pages = &pages}, sequences); });
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
