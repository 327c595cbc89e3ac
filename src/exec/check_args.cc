#include "exec/check_args.h"

#include <algorithm>

#include "base/view_check.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_pages_impl.h"

namespace headlane::internal {
namespace {

using LL = long long;

Status Mismatch(const char* tensor, const char* field, int64_t value, int64_t wanted) {
  return MakeStatus(StatusCode::kInvalidArgument, "%s.%s is %lld, but the plan's is %lld", tensor, field,
                    static_cast<LL>(value), static_cast<LL>(wanted));
}

template <typename View>
Status CheckShape(const char* name, const View& view, int64_t num_heads, int64_t dim) {
  if (view.num_heads != num_heads) return Mismatch(name, "num_heads", view.num_heads, num_heads);
  if (view.dim != dim) return Mismatch(name, "dim", view.dim, dim);
  return CheckView(name, view);
}

// The part of a tensor that a sequence names.
struct Range {
  int64_t batch;
  int64_t begin;
  int64_t len;
};
Range QueryRange(const SequenceSpec& s) { return {s.batch, s.q_begin, s.q_len}; }
Range KeyRange(const SequenceSpec& s) { return {s.batch, s.kv_begin, s.kv_len}; }

// Names the first sequence that reaches past the tensor. Requires: there is one.
Status ReachError(const PlanImpl& plan, const char* name, int64_t num_batch, int64_t num_tokens,
                  Range (*range_of)(const SequenceSpec&)) {
  int64_t index = 0;
  for (const SequenceSpec& sequence : plan.sequences()) {
    const Range range = range_of(sequence);
    if (range.len > 0 && range.batch >= num_batch) {
      return MakeStatus(StatusCode::kOutOfRange, "sequences[%lld] is in batch entry %lld of %s, which has %lld",
                        static_cast<LL>(index), static_cast<LL>(range.batch), name, static_cast<LL>(num_batch));
    }
    if (range.begin + range.len > num_tokens) {
      return MakeStatus(StatusCode::kOutOfRange,
                        "sequences[%lld] reaches to token %lld of %s, which has %lld (%lld from %lld on)",
                        static_cast<LL>(index), static_cast<LL>(range.begin + range.len), name,
                        static_cast<LL>(num_tokens), static_cast<LL>(range.len), static_cast<LL>(range.begin));
    }
    ++index;
  }
  return MakeStatus(StatusCode::kInternal, "no sequence reaches past %s", name);
}

template <typename View>
Status CheckQuerySide(const PlanImpl& plan, const char* name, const View& view, int64_t dim) {
  HEADLANE_RETURN_IF_ERROR(CheckShape(name, view, plan.problem().num_q_heads, dim));
  if (view.num_batch < plan.reach().q_batch || view.num_tokens < plan.reach().q_tokens) {
    return ReachError(plan, name, view.num_batch, view.num_tokens, &QueryRange);
  }
  return OkStatus();
}

Status CheckKeySide(const PlanImpl& plan, const char* name, const ConstTensorView& view, int64_t dim) {
  HEADLANE_RETURN_IF_ERROR(CheckShape(name, view, plan.problem().num_kv_heads, dim));
  if (view.num_batch < plan.reach().kv_batch || view.num_tokens < plan.reach().kv_tokens) {
    return ReachError(plan, name, view.num_batch, view.num_tokens, &KeyRange);
  }
  return OkStatus();
}

// One number per row, for the same rows as `rows`.
Status CheckPerRow(const PlanImpl& plan, const char* name, const LseView& lse, const TensorView& rows) {
  TensorView view;
  view.data = lse.data;
  view.num_batch = rows.num_batch;
  view.num_tokens = rows.num_tokens;
  view.num_heads = plan.problem().num_q_heads;
  view.dim = 1;
  view.batch_stride = lse.batch_stride;
  view.token_stride = lse.token_stride;
  view.head_stride = lse.head_stride;
  return CheckView(name, view);
}

Status CheckState(const PlanImpl& plan, const StateView& state) {
  if (state.o.dtype != DType::kF32) {
    return MakeStatus(StatusCode::kUnsupported, "state.o is %s, but states are f32", DTypeName(state.o.dtype));
  }
  HEADLANE_RETURN_IF_ERROR(CheckQuerySide(plan, "state.o", state.o, plan.problem().v_dim));
  HEADLANE_RETURN_IF_ERROR(CheckPerRow(plan, "state.m", state.m, state.o));
  return CheckPerRow(plan, "state.l", state.l, state.o);
}

// Of what is written, something must be wanted, and each must be writable.
Status CheckOutputs(const PlanImpl& plan, const AttentionArgs& args) {
  const bool has_state = args.state.m.data != nullptr;
  if (has_state) HEADLANE_RETURN_IF_ERROR(CheckState(plan, args.state));
  if (args.out.data == nullptr && has_state && args.lse.data == nullptr) return OkStatus();
  if (args.out.data == nullptr && has_state) return CheckPerRow(plan, "lse", args.lse, args.state.o);
  HEADLANE_RETURN_IF_ERROR(CheckQuerySide(plan, "out", args.out, plan.problem().v_dim));
  return args.lse.data == nullptr ? OkStatus() : CheckPerRow(plan, "lse", args.lse, args.out);
}

int64_t MostKeys(const PlanImpl& plan) {
  int64_t most = 0;
  for (const SequenceSpec& sequence : plan.sequences()) {
    if (sequence.q_len > 0) most = std::max(most, sequence.kv_len);
  }
  return most;
}

Status CheckColumns(const PlanImpl& plan, const char* name, int64_t num_columns) {
  const int64_t most = MostKeys(plan);
  if (num_columns >= most) return OkStatus();
  return MakeStatus(StatusCode::kOutOfRange, "%s has %lld columns, but a sequence has %lld keys", name,
                    static_cast<LL>(num_columns), static_cast<LL>(most));
}

Status CheckModifiers(const PlanImpl& plan, const AttentionArgs& args) {
  const int64_t num_heads = plan.problem().num_q_heads;
  if (args.bias.data != nullptr) {
    HEADLANE_RETURN_IF_ERROR(CheckQuerySide(plan, "bias", args.bias, args.bias.dim));
    HEADLANE_RETURN_IF_ERROR(CheckColumns(plan, "bias", args.bias.dim));
  }
  const BoolMaskView& mask = args.mask;
  if (mask.data == nullptr) return OkStatus();
  if (mask.num_heads != num_heads) return Mismatch("mask", "num_heads", mask.num_heads, num_heads);
  HEADLANE_RETURN_IF_ERROR(CheckView("mask", mask));
  if (mask.num_batch < plan.reach().q_batch || mask.num_tokens < plan.reach().q_tokens) {
    return ReachError(plan, "mask", mask.num_batch, mask.num_tokens, &QueryRange);
  }
  return CheckColumns(plan, "mask", mask.num_columns);
}

// What a cache and pages have in common. Spec is KVCacheSpec or KVPagesSpec.
template <typename Spec>
Status CheckStored(const PlanImpl& plan, const char* name, const Spec& given) {
  const Problem& planned = plan.problem();
  const struct {
    const char* field;
    int64_t given, planned;
  } fields[] = {{"num_kv_heads", given.num_kv_heads, planned.num_kv_heads},
                {"qk_dim", given.qk_dim, planned.qk_dim},
                {"v_dim", given.v_dim, planned.v_dim},
                {"page_tokens", given.page_tokens, plan.page_tokens()},
                {"values_in_keys", given.values_in_keys ? 1 : 0, planned.values_in_keys ? 1 : 0},
                {"rotate", given.rotate ? 1 : 0, planned.rotate ? 1 : 0}};
  for (const auto& field : fields) {
    if (field.given != field.planned) return Mismatch(name, field.field, field.given, field.planned);
  }
  const bool same_v = given.v_dtype == planned.v_dtype || planned.values_in_keys;
  if (given.k_dtype == planned.k_dtype && same_v) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "%s holds %s and %s, but the plan is for %s and %s", name,
                    DTypeName(given.k_dtype), DTypeName(given.v_dtype), DTypeName(planned.k_dtype),
                    DTypeName(planned.v_dtype));
}

Status CheckPages(const PlanImpl& plan, const AttentionArgs& args) {
  if (args.pages == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "the plan was made for pages, but args.pages is null");
  }
  const KVPagesImpl& pages = args.pages->impl();
  if (pages.has_tiles() != (plan.problem().keys_in == KeysIn::kTilePages)) {
    return MakeStatus(StatusCode::kInvalidArgument, "the plan was made for pages of %s, but args.pages has %s",
                      pages.has_tiles() ? "rows" : "tiles", pages.has_tiles() ? "tiles" : "rows");
  }
  HEADLANE_RETURN_IF_ERROR(CheckStored(plan, "args.pages", pages.spec()));
  if (plan.reach().max_page >= pages.spec().num_pages) {
    return MakeStatus(StatusCode::kInvalidArgument, "the plan reads page %lld, but args.pages has %lld",
                      static_cast<LL>(plan.reach().max_page), static_cast<LL>(pages.spec().num_pages));
  }
  if (args.layer >= 0 && args.layer < pages.num_layers()) return OkStatus();
  return MakeStatus(StatusCode::kOutOfRange, "args.layer is %lld, but the pages have %lld layers",
                    static_cast<LL>(args.layer), static_cast<LL>(pages.num_layers()));
}

Status CheckCache(const PlanImpl& plan, const AttentionArgs& args) {
  if (args.cache == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "the plan was made for a cache, but args.cache is null");
  }
  const KVCacheSpec& given = args.cache->spec();
  HEADLANE_RETURN_IF_ERROR(CheckStored(plan, "args.cache", given));
  const int64_t group = plan.problem().cache_group;
  if (group >= args.cache->impl().NumGroups()) {
    return Mismatch("args.cache", "number of layer groups", args.cache->impl().NumGroups(), group + 1);
  }
  const int64_t total_pages = args.cache->impl().layout().groups[group].total_pages;
  if (plan.reach().max_page >= total_pages) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "the plan reads page %lld, but args.cache has %lld: it is another cache",
                      static_cast<LL>(plan.reach().max_page), static_cast<LL>(total_pages));
  }
  if (args.layer < 0 || args.layer >= given.num_layers) {
    return MakeStatus(StatusCode::kOutOfRange, "args.layer is %lld, but the cache has %lld layers",
                      static_cast<LL>(args.layer), static_cast<LL>(given.num_layers));
  }
  const int64_t group_of_layer = args.cache->impl().GroupOfLayer(args.layer);
  if (group_of_layer != group) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "args.layer %lld is in layer group %lld of args.cache, but the plan is for group %lld",
                      static_cast<LL>(args.layer), static_cast<LL>(group_of_layer), static_cast<LL>(group));
  }
  return OkStatus();
}

}  // namespace

Status CheckArgs(const PlanImpl& plan, const AttentionArgs& args) noexcept {
  const Problem& problem = plan.problem();
  if (plan.work().blocks.empty()) return OkStatus();  // no query rows
  HEADLANE_RETURN_IF_ERROR(CheckQuerySide(plan, "q", args.q, problem.qk_dim));
  HEADLANE_RETURN_IF_ERROR(CheckOutputs(plan, args));
  HEADLANE_RETURN_IF_ERROR(CheckModifiers(plan, args));
  if (args.cache != nullptr && problem.keys_in != KeysIn::kCache) {
    return MakeStatus(StatusCode::kInvalidArgument, "the plan was made for %s, but args.cache is set",
                      problem.keys_in == KeysIn::kTensors ? "plain tensors" : "pages");
  }
  if (args.pages != nullptr && (problem.keys_in == KeysIn::kCache || problem.keys_in == KeysIn::kTensors)) {
    return MakeStatus(StatusCode::kInvalidArgument, "the plan was made for %s, but args.pages is set",
                      problem.keys_in == KeysIn::kTensors ? "plain tensors" : "a cache");
  }
  if (problem.keys_in == KeysIn::kCache) return CheckCache(plan, args);
  if (problem.keys_in != KeysIn::kTensors) return CheckPages(plan, args);
  if (plan.reach().kv_batch == 0) return OkStatus();  // no keys
  HEADLANE_RETURN_IF_ERROR(CheckKeySide(plan, "k", args.k, problem.qk_dim));
  if (problem.values_in_keys) return OkStatus();
  return CheckKeySide(plan, "v", args.v, problem.v_dim);
}

}  // namespace headlane::internal
