// Multi-head attention over packed batches of sequences: plan once per step, run once per layer.
//
// For query row at position a, key at position p, KV head h / (num_q_heads / num_kv_heads):
//   s = scale * dot(q, k), hidden keys dropped; m = max s; l = sum exp(s - m)
//   out = sum exp(s - m) * v / l; lse = m + ln l
// (Vaswani et al. 2017; computed block by block as in Milakov and Gimelshein 2018, Dao et al. 2022.) Nothing visible:
// out = 0, lse = -inf. A NaN or +inf in a visible score makes that row NaN, and only that row.
//
// Same bits: a row's out and lse depend on the row, its keys and values and their order only; not on threads, executor,
// batch mates, the split of a prompt into chunks, cache or plain tensors, page size, or SIMD width (targets with FMA).
#ifndef HEADLANE_ATTENTION_H_
#define HEADLANE_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "headlane/executor.h"
#include "headlane/kv_cache.h"
#include "headlane/mask.h"
#include "headlane/status.h"
#include "headlane/view.h"

namespace headlane {

// The order of floating-point operations that defines every result. A change of it changes this number.
inline constexpr int kNumericsVersion = 1;

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
};

struct PlanOptions {
  // For how many workers the work is cut. Any number may run it. 0: as many as OpenMP would use.
  int num_workers = 0;
  // Update() works up to these without allocating; 0: what the first batch needs.
  int64_t max_sequences = 0;
  int64_t max_q_tokens = 0;  // sum of q_len over a batch
  int64_t max_kv_len = 0;    // of one sequence
};

// What a plan decided, for people and for tests. Counts are of one run (one layer).
struct PlanSummary {
  const char* target = "";  // SIMD target of the kernels
  const char* kernel = "";  // "decode", "tile", "decode+tile" or "none"
  int64_t num_items = 0;    // independent pieces of work
  int64_t num_splits = 0;   // items that share their rows with others and are merged
  int64_t num_rows = 0;     // query rows = sum q_len * num_q_heads
  double flops = 0;         // 2 * visible (row, key) pairs * (qk_dim + v_dim)
  double kv_bytes = 0;      // keys and values that some row sees, counted once
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

  // Bytes that a Workspace for this plan has, constant for its life, Update included.
  size_t workspace_bytes() const noexcept;
  PlanSummary summary() const noexcept;

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
// a Truncate, Drop or Reserve of a planned sequence, Update it. Errors: also NotFound, OutOfRange (kv_len past what is
// reserved).
Result<AttentionPlan> PlanAttention(const AttentionSpec& spec, const KVCache& cache,
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

// The tensors of one run (one layer).
struct AttentionArgs {
  ConstTensorView q;               // [batch, tokens, num_q_heads, qk_dim] f32
  ConstTensorView k;               // plain tensors only: [batch, tokens, num_kv_heads, qk_dim] f32
  ConstTensorView v;               // plain tensors only: [batch, tokens, num_kv_heads, v_dim] f32
  const KVCache* cache = nullptr;  // cache only
  int64_t layer = 0;               // cache only
  TensorView out;                  // [batch, tokens, num_q_heads, v_dim] f32; rows of no sequence are left alone.
                                   // Must not overlap q, k or v: they are read while it is written.
  LseView lse;                     // optional, indexed like out's tokens and heads
};

// Errors: InvalidArgument (shapes, strides, null data, out overlapping itself, workspace too small; names the tensor
// and both numbers), OutOfRange (a sequence reaches past a tensor's tokens), Unsupported (dtype). Nothing is written
// then. Allocation: none. Threads: the executor's; the same plan may run at the same time with different workspaces.
Status RunAttention(const AttentionPlan& plan, const AttentionArgs& args, Workspace& workspace,
                    Executor& executor) noexcept;

// For engines that call every operator on all their threads: first one thread calls PrepareRun, then, after a barrier,
// any number of threads call RunWorker with the same arguments. Each returns when no work is left for it; out is
// complete when all have returned. Worker numbers are hints and need not be distinct. Allocation: none.
Status PrepareRun(const AttentionPlan& plan, const AttentionArgs& args, Workspace& workspace) noexcept;
void RunWorker(const AttentionPlan& plan, const AttentionArgs& args, Workspace& workspace, int worker) noexcept;

// Plan, workspace and run in one call, for tests and simple programs. Allocates.
Status Attention(const AttentionSpec& spec, std::span<const SequenceSpec> sequences, const AttentionArgs& args,
                 Executor& executor) noexcept;

}  // namespace headlane

#endif  // HEADLANE_ATTENTION_H_
