// Multi-head attention over packed batches of sequences: plan once per step, run once per layer.
//
// For query head h and row at position a, KV head h / (num_q_heads / num_kv_heads), key at position p:
//   s = scale * dot(q, k)                                 scaled dot product (Vaswani et al. 2017)
//   s = softcap * tanh(s / softcap)                       where softcap > 0 (Gemma 2)
//   s = s + bias; s = s + slope_h * (p - a)               additive bias; ALiBi (Press et al. 2022)
//   hidden keys, and those with s = -inf, are dropped
//   m = max(s, sink_h), l = sum exp(s - m) + exp(sink_h - m)      attention sink: a logit without a value (gpt-oss)
//   out = sum exp(s - m) * v / l; lse = m + ln l          (natural logarithm)
// computed block by block as in Milakov and Gimelshein 2018, Dao et al. 2022. Nothing visible: out = 0, lse = -inf;
// with a sink out = 0, lse = sink. A NaN or +inf in a visible score makes that row NaN, and only that row.
// Sums are f32 and divided last: values beyond 3e38 / (sum of weights) can overflow where their mean would not.
//
// Same bits: a row's out and lse depend on the row, its keys and values and their order only; not on threads, executor,
// batch mates, the split of a prompt into chunks, cache or plain tensors, page size, or SIMD width (targets with FMA).
#ifndef HEADLANE_ATTENTION_H_
#define HEADLANE_ATTENTION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "headlane/executor.h"
#include "headlane/kv_cache.h"
#include "headlane/kv_pages.h"
#include "headlane/mask.h"
#include "headlane/status.h"
#include "headlane/view.h"

namespace headlane {

// The order of floating-point operations that defines every result: keys in ascending order; blocks of kBlockKeys at
// absolute multiples are one step of the online softmax each; splits of kSplitKeys at absolute multiples start afresh
// and are folded in ascending order; sums of weights are kept by key index modulo kLanes. A change of any of it changes
// the version.
inline constexpr int kNumericsVersion = 1;
inline constexpr int64_t kNumericsLanes = 16;
inline constexpr int64_t kNumericsBlockKeys = 128;
inline constexpr int64_t kNumericsSplitKeys = 1024;

enum class Numerics : int32_t {
  kReproducible = 0,  // the canonical order: the same bits everywhere
  kFastest,           // may use instructions that round differently; in this version it is the same
};

// 1 / sqrt(qk_dim), computed in double and rounded to float once; 1 for qk_dim <= 0.
float DefaultScale(int64_t qk_dim) noexcept;

// What stays the same from step to step and from layer to layer.
struct AttentionSpec {
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;    // divides num_q_heads
  int64_t qk_dim = 0;          // width of queries and keys
  int64_t v_dim = 0;           // width of values and outputs
  std::optional<float> scale;  // DefaultScale(qk_dim) when empty
  Mask mask;
  float softcap = 0;  // 0: none
  // The values are the first v_dim features of the keys (multi-head latent attention: 576 and 512 with one KV head);
  // read once. args.v is not looked at.
  bool values_in_keys = false;
  Numerics numerics = Numerics::kReproducible;
  int64_t cache_group = 0;  // cache only: the layer group (KVCacheSpec::groups) that the plan is for
};

// One sequence of a batch. Its query rows are tokens [q_begin, q_begin + q_len) of batch entry `batch` of q and out; a
// packed batch has one entry and different q_begin, a padded one has q_begin 0 and different entries.
struct SequenceSpec {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t batch = 0;
  int64_t kv_begin = 0;   // plain tensors: first token of its keys and values in batch entry `batch` of k and v
  SequenceId cache_id{};  // cache: the sequence; kv_len may reach into what is reserved and written
  std::optional<int64_t> q_pos = std::nullopt;  // position of the first query row, see mask.h; not with a tree
  int64_t prefix_len = 0;                       // prefix-LM: causality does not hide keys at positions before it
  TreeMask tree = {};
  // KVPages: the pages of its tokens in order, at least as many as kv_len needs; copied when planned. -1: a page that
  // no row sees a token of.
  std::span<const int32_t> page_ids = {};
};

struct PlanOptions {
  // For how many workers the work is cut. Any number may run it. 0: as many as OpenMP would use.
  int num_workers = 0;
  // Update() works up to these without allocating; 0: what the first batch needs.
  int64_t max_sequences = 0;
  int64_t max_q_tokens = 0;  // sum of q_len over a batch
  int64_t max_kv_len = 0;    // of one sequence
};

// What a machine can do at best, with as many workers as a plan is made for; 0: not known.
struct MachinePeaks {
  double gflop_per_s = 0;  // a fused multiply-add is 2
  double gb_per_s = 0;     // reading memory
};

// What a plan decided, for people and for tests. Counts are of one run (one layer). Boolean masks are not known to it:
// they can only lower what is touched. Bytes of plain tensors are those of f32, whose element types come with the run.
struct PlanSummary {
  const char* target = "";       // SIMD target of the kernels
  const char* kernel = "";       // "decode", "tile", "decode+tile" or "none"
  int64_t num_items = 0;         // independent pieces of work
  int64_t num_splits = 0;        // items that share their rows with others and are merged
  int64_t num_rows = 0;          // query rows = sum q_len * num_q_heads
  double flops = 0;              // 2 * visible (row, key) pairs * (qk_dim + v_dim)
  double kv_bytes = 0;           // keys and values that some row sees, counted once
  int64_t num_decode_items = 0;  // what RunCounters of one run will show
  int64_t num_tile_items = 0;
  double touched_kv_bytes = 0;  // whole tiles, once per row block that visits them
  double touched_flops = 0;     // whole tiles
  size_t workspace_bytes = 0;
};

namespace internal {
class PlanImpl;
}

class AttentionPlan {
 public:
  AttentionPlan(AttentionPlan&&) noexcept;
  AttentionPlan& operator=(AttentionPlan&&) noexcept;
  ~AttentionPlan();

  // Moves the plan to the next step's lengths. Errors: those of planning, and ResourceExhausted past the reserved
  // capacity; the plan is unchanged then. Allocation: none. Threads: not while the plan runs.
  Status Update(std::span<const SequenceSpec> sequences) noexcept;
  Status Update(const KVCache& cache, std::span<const SequenceSpec> sequences) noexcept;
  Status Update(const KVPages& pages, std::span<const SequenceSpec> sequences) noexcept;

  // Bytes that a Workspace for this plan has, constant for its life, Update included.
  size_t workspace_bytes() const noexcept;
  // Counted when called, in time linear in the row blocks.
  PlanSummary summary() const noexcept;

  // The plan in words: kernels chosen and those that were not, with the reason; tiles, splits and items; the workspace
  // slot by slot; bytes, FLOPs and the roofline they give on a machine of these peaks. Errors: ResourceExhausted.
  // Allocates.
  Result<std::string> Explain(const MachinePeaks& peaks = {}) const noexcept;

  const internal::PlanImpl& impl() const noexcept { return *impl_; }
  explicit AttentionPlan(std::unique_ptr<internal::PlanImpl> impl) noexcept;

 private:
  std::unique_ptr<internal::PlanImpl> impl_;
};

// Keys and values in plain tensors. Errors: InvalidArgument (names the field and both numbers), ResourceExhausted
// (memory).
Result<AttentionPlan> PlanAttention(const AttentionSpec& spec, std::span<const SequenceSpec> sequences,
                                    const PlanOptions& options = {}) noexcept;
// Keys and values in a cache, whose spec must agree with `spec`. The plan keeps the page numbers, not the cache: after
// a Truncate, Drop, Reserve, Commit (with windows), Remove or CommitPath of a planned sequence, Update it. Errors: also
// NotFound, OutOfRange (kv_len past what is reserved), FailedPrecondition (the mask shows tokens that the layer group
// does not keep any more).
Result<AttentionPlan> PlanAttention(const AttentionSpec& spec, const KVCache& cache,
                                    std::span<const SequenceSpec> sequences, const PlanOptions& options = {}) noexcept;
// Keys and values in pages that the caller manages, whose spec must agree with `spec`. Errors: also OutOfRange (too few
// pages for kv_len, a page number that is none, or -1 where the mask shows tokens; names the sequence).
Result<AttentionPlan> PlanAttention(const AttentionSpec& spec, const KVPages& pages,
                                    std::span<const SequenceSpec> sequences, const PlanOptions& options = {}) noexcept;

// Scratch memory and progress of one run. Runs at the same time need one each.
class Workspace {
 public:
  // Errors: ResourceExhausted.
  static Result<Workspace> Create(const AttentionPlan& plan) noexcept;
  // Over `bytes` >= plan.workspace_bytes() of the caller's memory, which must outlive it. Errors: InvalidArgument.
  static Result<Workspace> Over(const AttentionPlan& plan, void* memory, size_t bytes) noexcept;

  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;
  ~Workspace();

  void* data() const noexcept { return data_; }
  size_t bytes() const noexcept { return bytes_; }

 private:
  Workspace(void* data, size_t bytes, void* owned) noexcept : data_(data), bytes_(bytes), owned_(owned) {}
  void* data_ = nullptr;
  size_t bytes_ = 0;
  void* owned_ = nullptr;
};

// What a run did, for comparison with what its plan said. Threads: workers add to it atomically.
struct RunCounters {
  std::atomic<int64_t> decode_items{0};  // items of up to 32 rows: one pass over the keys
  std::atomic<int64_t> tile_items{0};
  std::atomic<int64_t> kv_bytes{0};   // of the tiles of keys and values that were visited, once per row block
  std::atomic<int64_t> flops{0};      // 2 * (qk_dim + v_dim) per row and key of every tile that was multiplied
  std::atomic<int64_t> num_tiles{0};  // tiles multiplied, once per sub-block of rows
};

// Unnormalised attention of each query row: m the largest score, l = sum exp(s - m), o = sum exp(s - m) * v; so out = o
// / l and lse = m + ln l. Nothing visible: m = -inf, l = 0, o = 0. Sinks are part of it: where states of one row are
// to be merged, give the sink to one of the runs only.
struct StateView {
  LseView m;     // data null: no states wanted
  LseView l;     // required with m
  TensorView o;  // [batch, tokens, num_q_heads, v_dim] f32, required with m
};

// The tensors of one run (one layer).
struct AttentionArgs {
  // f32, f16 or bf16 each, converted exactly; results are rounded to nearest even.
  ConstTensorView q;               // [batch, tokens, num_q_heads, qk_dim]
  ConstTensorView k;               // plain tensors only: [batch, tokens, num_kv_heads, qk_dim]
  ConstTensorView v;               // plain tensors only: [batch, tokens, num_kv_heads, v_dim]
  const KVCache* cache = nullptr;  // cache only
  const KVPages* pages = nullptr;  // pages only
  int64_t layer = 0;               // cache and pages only
  TensorView out;                  // [batch, tokens, num_q_heads, v_dim]; rows of no sequence are left alone.
                                   // Must not overlap what is read: that happens while it is written.
  LseView lse;                     // optional, indexed like out's tokens and heads

  // Optional, all of them; batch, token and head index as q's. Columns are keys of the row's own sequence, 0 .. kv_len
  // - 1, in plain tensors, too, whatever its kv_begin. Broadcast by stride 0.
  ConstTensorView bias;                 // [batch, tokens, num_q_heads, columns] f32, f16 or bf16
  BoolMaskView mask;                    // [batch, tokens, num_q_heads, columns]; combined with the plan's mask by "and"
  const float* alibi_slopes = nullptr;  // [num_q_heads]
  const float* sinks = nullptr;         // [num_q_heads], neither scaled nor capped
  // The states (m, l, o) that out and lse are made of; with it out.data may be null.
  StateView state = {};

  // Polled now and then by every worker; true stops the run. Rows that are complete by then stay, all others become
  // NaN, lse too, and the run's status is Cancelled. May be called from any worker at any time.
  bool (*should_stop)(void* context) noexcept = nullptr;
  void* stop_context = nullptr;

  RunCounters* counters = nullptr;  // optional: added to, not reset
};

// Errors: InvalidArgument (shapes, strides, dtypes that don't exist, null data, out overlapping itself, workspace too
// small; names the tensor and both numbers), OutOfRange (a sequence reaches past a tensor's tokens or a mask's
// columns), Unsupported (states that are not f32). Nothing is written then. Cancelled: see AttentionArgs::should_stop.
// Allocation: none. Threads: the executor's; the same plan may run at the same time with different workspaces.
Status RunAttention(const AttentionPlan& plan, const AttentionArgs& args, Workspace& workspace,
                    Executor& executor) noexcept;

// For engines that call every operator on all their threads: first one thread calls PrepareRun, then, after a barrier,
// any number of threads call RunWorker with the same arguments. Each returns when no work is left for it; out is
// complete when all have returned. Worker numbers are hints and need not be distinct. FinishRun, after that, says
// whether the run was stopped (Cancelled). Allocation: none.
Status PrepareRun(const AttentionPlan& plan, const AttentionArgs& args, Workspace& workspace) noexcept;
void RunWorker(const AttentionPlan& plan, const AttentionArgs& args, Workspace& workspace, int worker) noexcept;
Status FinishRun(const AttentionPlan& plan, const Workspace& workspace) noexcept;

// Plan, workspace and run in one call, for tests and simple programs. Allocates.
Status Attention(const AttentionSpec& spec, std::span<const SequenceSpec> sequences, const AttentionArgs& args,
                 Executor& executor) noexcept;

// Joins states of the same query rows over disjoint sets of keys (a shared prefix and the rest, devices, ranks):
//   m = max(m_a, m_b), l = l_b * exp(m_b - m) + l_a * exp(m_a - m), o likewise
// a becomes the joined state. A state with l = 0 is empty, whatever its m and o hold: joined with it, the other one is
// kept bit for bit. The same as a run over all keys to the bit only if a run would fold the same splits in the same
// order (a ends at a multiple of kNumericsSplitKeys and holds one split or was itself folded so, b is one split);
// within rounding otherwise. Shapes: o [batch, tokens, heads, v_dim] of both; m, l indexed likewise. Errors:
// InvalidArgument (shapes, null data), Unsupported (dtype of o not f32). Allocation: none. Threads: the calling thread.
Status MergeStates(const StateView& a, const StateView& b) noexcept;

// The same for results: (out, lse) is the state m = lse, l = 1, o = out, and an empty one where lse = -inf.
// out_a, lse_a become the joined result. f32.
Status MergeOutputs(const TensorView& out_a, const LseView& lse_a, const ConstTensorView& out_b,
                    const LseView& lse_b) noexcept;

// out = o / l, lse = m + ln l of a state; empty: 0 and -inf. out: f32, f16, bf16; lse optional.
Status FinishStates(const StateView& state, const TensorView& out, const LseView& lse) noexcept;

}  // namespace headlane

#endif  // HEADLANE_ATTENTION_H_
