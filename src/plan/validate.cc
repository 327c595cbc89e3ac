#include "plan/validate.h"

#include <algorithm>
#include <limits>

#include "base/checked_math.h"

namespace headlane::internal {
namespace {

using LL = long long;

// `what` is "spec.num_q_heads", "options.max_kv_len", ...
Status CheckField(const char* what, int64_t value, int64_t max) {
  if (value < 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "%s is %lld, must be at least 0", what, static_cast<LL>(value));
  }
  if (value > max) {
    return MakeStatus(StatusCode::kInvalidArgument, "%s is %lld, more than the limit of %lld", what,
                      static_cast<LL>(value), static_cast<LL>(max));
  }
  return OkStatus();
}

Status CheckSequenceField(int64_t index, const char* what, int64_t value, int64_t max) {
  if (value < 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "sequences[%lld].%s is %lld, must be at least 0",
                      static_cast<LL>(index), what, static_cast<LL>(value));
  }
  if (value > max) {
    return MakeStatus(StatusCode::kInvalidArgument, "sequences[%lld].%s is %lld, more than the limit of %lld",
                      static_cast<LL>(index), what, static_cast<LL>(value), static_cast<LL>(max));
  }
  return OkStatus();
}

bool Overlaps(const SequenceSpec& a, const SequenceSpec& b) {
  return a.batch == b.batch && a.q_begin < b.q_begin + b.q_len && b.q_begin < a.q_begin + a.q_len;
}

bool ComesBefore(const SequenceSpec& a, const SequenceSpec& b) {
  return a.batch != b.batch ? a.batch < b.batch : a.q_begin < b.q_begin;
}

Status OverlapError(const SequenceSpec& a, int64_t index_a, const SequenceSpec& b, int64_t index_b) {
  return MakeStatus(StatusCode::kInvalidArgument,
                    "sequences[%lld] and sequences[%lld] share query rows of batch entry %lld: tokens [%lld, %lld) and "
                    "[%lld, %lld)",
                    static_cast<LL>(index_a), static_cast<LL>(index_b), static_cast<LL>(a.batch),
                    static_cast<LL>(a.q_begin), static_cast<LL>(a.q_begin + a.q_len), static_cast<LL>(b.q_begin),
                    static_cast<LL>(b.q_begin + b.q_len));
}

// Two sequences with the same query rows would write the same outputs, and whoever came last would win.
Status CheckRowsAreDistinct(std::span<const SequenceSpec> sequences, std::span<int32_t> order) {
  // Almost every batch comes in order already.
  int64_t last = -1;
  int64_t num_filled = 0;
  bool sorted = true;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].q_len == 0) continue;
    if (last >= 0) {
      const SequenceSpec& previous = sequences[static_cast<size_t>(last)];
      if (Overlaps(previous, sequences[i])) return OverlapError(previous, last, sequences[i], static_cast<int64_t>(i));
      sorted = sorted && ComesBefore(previous, sequences[i]);
    }
    last = static_cast<int64_t>(i);
    order[static_cast<size_t>(num_filled++)] = static_cast<int32_t>(i);
  }
  if (sorted) return OkStatus();
  const std::span<int32_t> filled = order.first(static_cast<size_t>(num_filled));
  std::sort(filled.begin(), filled.end(), [&](int32_t a, int32_t b) {
    const SequenceSpec& x = sequences[static_cast<size_t>(a)];
    const SequenceSpec& y = sequences[static_cast<size_t>(b)];
    if (ComesBefore(x, y)) return true;
    return !ComesBefore(y, x) && a < b;
  });
  for (size_t i = 1; i < filled.size(); ++i) {
    const SequenceSpec& a = sequences[static_cast<size_t>(filled[i - 1])];
    const SequenceSpec& b = sequences[static_cast<size_t>(filled[i])];
    if (Overlaps(a, b)) return OverlapError(a, filled[i - 1], b, filled[i]);
  }
  return OkStatus();
}

bool IsFinite(float x) { return x - x == 0.0f; }

Status CheckWindow(const char* what, int64_t value) {
  if (value >= kNoWindow) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "spec.mask.%s is %lld, must be at least 0, or %lld for none", what,
                    static_cast<LL>(value), static_cast<LL>(kNoWindow));
}

Status CheckTree(const SequenceSpec& sequence, int64_t index) {
  const TreeMask& tree = sequence.tree;
  if (tree.bits == nullptr) return OkStatus();
  if (sequence.q_pos) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "sequences[%lld].q_pos is %lld, but its tree says where its %lld query rows stand",
                      static_cast<LL>(index), static_cast<LL>(*sequence.q_pos), static_cast<LL>(sequence.q_len));
  }
  if (sequence.q_len > sequence.kv_len) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "sequences[%lld].q_len is %lld, but with a tree they are the last keys, and kv_len is %lld",
                      static_cast<LL>(index), static_cast<LL>(sequence.q_len), static_cast<LL>(sequence.kv_len));
  }
  if (tree.row_words < CeilDiv(sequence.q_len, 64) || tree.row_words > kMaxQueryRows) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "sequences[%lld].tree.row_words is %lld, must be at least %lld for q_len %lld, and at most %lld",
                      static_cast<LL>(index), static_cast<LL>(tree.row_words),
                      static_cast<LL>(CeilDiv(sequence.q_len, 64)), static_cast<LL>(sequence.q_len),
                      static_cast<LL>(kMaxQueryRows));
  }
  return OkStatus();
}

Status CheckPosition(const SequenceSpec& sequence, int64_t index) {
  if (!sequence.q_pos || (*sequence.q_pos >= -kMaxKvLen && *sequence.q_pos <= kMaxKvLen)) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument,
                    "sequences[%lld].q_pos is %lld, past the limit of %lld on either side", static_cast<LL>(index),
                    static_cast<LL>(*sequence.q_pos), static_cast<LL>(kMaxKvLen));
}

// What a cache and pages have in common. Spec is KVCacheSpec or KVPagesSpec.
template <typename Spec>
Status CheckHeads(const Problem& problem, const char* what, const Spec& spec) {
  const struct {
    const char* name;
    int64_t wanted, stored;
  } fields[] = {{"num_kv_heads", problem.num_kv_heads, spec.num_kv_heads},
                {"qk_dim", problem.qk_dim, spec.qk_dim},
                {"v_dim", problem.v_dim, spec.v_dim},
                {"values_in_keys", problem.values_in_keys ? 1 : 0, spec.values_in_keys ? 1 : 0}};
  for (const auto& field : fields) {
    if (field.wanted != field.stored) {
      return MakeStatus(StatusCode::kInvalidArgument, "spec.%s is %lld, but the %s's %s is %lld", field.name,
                        static_cast<LL>(field.wanted), what, field.name, static_cast<LL>(field.stored));
    }
  }
  return OkStatus();
}

}  // namespace

Status ResolveProblem(const AttentionSpec& spec, bool from_cache, Problem* problem) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckField("spec.num_q_heads", spec.num_q_heads, kMaxHeads));
  HEADLANE_RETURN_IF_ERROR(CheckField("spec.num_kv_heads", spec.num_kv_heads, kMaxHeads));
  HEADLANE_RETURN_IF_ERROR(CheckField("spec.qk_dim", spec.qk_dim, kMaxDim));
  HEADLANE_RETURN_IF_ERROR(CheckField("spec.v_dim", spec.v_dim, kMaxDim));
  if (spec.num_kv_heads == 0 ? spec.num_q_heads != 0 : spec.num_q_heads % spec.num_kv_heads != 0) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "spec.num_q_heads is %lld, not a multiple of spec.num_kv_heads, which is %lld",
                      static_cast<LL>(spec.num_q_heads), static_cast<LL>(spec.num_kv_heads));
  }
  const int causality = static_cast<int>(spec.mask.causality);
  if (causality < 0 || causality > static_cast<int>(Causality::kTopLeft)) {
    return MakeStatus(StatusCode::kInvalidArgument, "spec.mask.causality is %d, not one of the %d known", causality,
                      static_cast<int>(Causality::kTopLeft) + 1);
  }
  HEADLANE_RETURN_IF_ERROR(CheckWindow("window", spec.mask.window));
  HEADLANE_RETURN_IF_ERROR(CheckWindow("window_right", spec.mask.window_right));
  constexpr int64_t kAnyLimit = std::numeric_limits<int64_t>::max();
  HEADLANE_RETURN_IF_ERROR(CheckField("spec.mask.num_always_visible", spec.mask.num_always_visible, kAnyLimit));
  HEADLANE_RETURN_IF_ERROR(CheckField("spec.mask.chunk", spec.mask.chunk, kAnyLimit));
  if (spec.scale && !IsFinite(*spec.scale)) {
    return MakeStatus(StatusCode::kInvalidArgument, "spec.scale is %g, must be finite",
                      static_cast<double>(*spec.scale));
  }
  if (!IsFinite(spec.softcap) || spec.softcap < 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "spec.softcap is %g, must be finite and at least 0, which is none",
                      static_cast<double>(spec.softcap));
  }
  if (spec.values_in_keys && spec.v_dim > spec.qk_dim) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "spec.v_dim is %lld, but spec.values_in_keys takes values from keys of spec.qk_dim %lld features",
                      static_cast<LL>(spec.v_dim), static_cast<LL>(spec.qk_dim));
  }
  const int numerics = static_cast<int>(spec.numerics);
  if (numerics < 0 || numerics > static_cast<int>(Numerics::kFastest)) {
    return MakeStatus(StatusCode::kInvalidArgument, "spec.numerics is %d, not one of the %d known", numerics,
                      static_cast<int>(Numerics::kFastest) + 1);
  }
  Problem p;
  p.num_q_heads = spec.num_q_heads;
  p.num_kv_heads = spec.num_kv_heads;
  p.group = spec.num_kv_heads == 0 ? 0 : spec.num_q_heads / spec.num_kv_heads;
  p.qk_dim = spec.qk_dim;
  p.v_dim = spec.v_dim;
  p.scale = spec.scale ? *spec.scale : DefaultScale(spec.qk_dim);
  p.mask = spec.mask;
  p.softcap = spec.softcap;
  p.values_in_keys = spec.values_in_keys;
  p.keys_in = from_cache ? KeysIn::kCache : KeysIn::kTensors;
  p.from_cache = from_cache;
  p.cache_group = spec.cache_group;
  p.num_stripes = CeilDiv(spec.v_dim, kTileKeys);
  p.q_pitch = RoundUp(spec.qk_dim, kTileKeys);
  p.o_pitch = p.num_stripes * kTileKeys;
  *problem = p;
  return OkStatus();
}

Status CheckCacheSpec(const Problem& problem, const KVCacheSpec& spec) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckHeads(problem, "cache", spec));
  const int64_t num_groups = std::max<int64_t>(static_cast<int64_t>(spec.groups.size()), 1);
  if (problem.cache_group < 0 || problem.cache_group >= num_groups) {
    return MakeStatus(StatusCode::kInvalidArgument, "spec.cache_group is %lld, but the cache has %lld layer groups",
                      static_cast<LL>(problem.cache_group), static_cast<LL>(num_groups));
  }
  return OkStatus();
}

Status CheckPagesSpec(const Problem& problem, const KVPagesSpec& spec) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckHeads(problem, "pages", spec));
  if (problem.cache_group == 0) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "spec.cache_group is %lld, but pages have no layer groups: must be 0",
                    static_cast<LL>(problem.cache_group));
}

Status CheckSequences(const Problem& problem, std::span<const SequenceSpec> sequences, std::span<int32_t> scratch,
                      BatchExtent* extent) noexcept {
  constexpr int64_t kMaxIndex = std::numeric_limits<int64_t>::max() / 4;  // sums of two still fit
  if (static_cast<uint64_t>(sequences.size()) > static_cast<uint64_t>(kMaxBatchSequences)) {
    return MakeStatus(StatusCode::kInvalidArgument, "%llu sequences, more than the limit of %lld",
                      static_cast<unsigned long long>(sequences.size()), static_cast<LL>(kMaxBatchSequences));
  }
  BatchExtent sum;
  sum.num_sequences = static_cast<int64_t>(sequences.size());
  for (int64_t i = 0; i < sum.num_sequences; ++i) {
    const SequenceSpec& sequence = sequences[static_cast<size_t>(i)];
    HEADLANE_RETURN_IF_ERROR(CheckSequenceField(i, "q_begin", sequence.q_begin, kMaxIndex));
    HEADLANE_RETURN_IF_ERROR(CheckSequenceField(i, "q_len", sequence.q_len, kMaxQueryRows));
    HEADLANE_RETURN_IF_ERROR(CheckSequenceField(i, "kv_len", sequence.kv_len, kMaxKvLen));
    HEADLANE_RETURN_IF_ERROR(CheckSequenceField(i, "batch", sequence.batch, kMaxIndex));
    if (!problem.from_cache) {
      HEADLANE_RETURN_IF_ERROR(CheckSequenceField(i, "kv_begin", sequence.kv_begin, kMaxIndex));
    }
    HEADLANE_RETURN_IF_ERROR(CheckSequenceField(i, "prefix_len", sequence.prefix_len, kMaxKvLen));
    HEADLANE_RETURN_IF_ERROR(CheckPosition(sequence, i));
    HEADLANE_RETURN_IF_ERROR(CheckTree(sequence, i));
    sum.num_q_tokens += sequence.q_len;
    sum.max_kv_len = std::max(sum.max_kv_len, sequence.kv_len);
    // kMaxBatchSequences * kMaxQueryRows * kMaxHeads would not fit, so after each.
    if (sum.num_q_tokens * std::max<int64_t>(problem.num_q_heads, 1) > kMaxQueryRows) {
      return MakeStatus(StatusCode::kInvalidArgument,
                        "sequences[0 .. %lld] have %lld query tokens of %lld heads, more rows than the limit of %lld",
                        static_cast<LL>(i), static_cast<LL>(sum.num_q_tokens), static_cast<LL>(problem.num_q_heads),
                        static_cast<LL>(kMaxQueryRows));
    }
  }
  HEADLANE_RETURN_IF_ERROR(CheckRowsAreDistinct(sequences, scratch));
  *extent = sum;
  return OkStatus();
}

Status CheckOptions(const PlanOptions& options) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckField("options.num_workers", options.num_workers, std::numeric_limits<int>::max()));
  HEADLANE_RETURN_IF_ERROR(CheckField("options.max_sequences", options.max_sequences, kMaxBatchSequences));
  HEADLANE_RETURN_IF_ERROR(CheckField("options.max_q_tokens", options.max_q_tokens, kMaxQueryRows));
  return CheckField("options.max_kv_len", options.max_kv_len, kMaxKvLen);
}

}  // namespace headlane::internal
