#include "exec/output.h"

#include <algorithm>
#include <limits>

#include "kernels/kernel_api.h"

namespace headlane::internal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Calls f(row, token of the batch entry, query head) for each row of a block.
template <typename F>
void ForEachRow(const RunContext& run, const RowBlock& block, const F& f) {
  const Problem& problem = run.plan.problem();
  const SequenceSpec& sequence = run.plan.sequences()[static_cast<size_t>(block.sequence)];
  int64_t r = 0;
  for (int64_t kv_head = block.kv_head; kv_head < block.kv_head + block.num_heads; ++kv_head) {
    int64_t token = sequence.q_begin + block.row_begin / problem.group;
    int64_t in_group = block.row_begin % problem.group;
    for (int64_t end = r + block.head_rows(); r < end; ++r) {
      f(r, token, kv_head * problem.group + in_group);
      if (++in_group == problem.group) {
        in_group = 0;
        ++token;
      }
    }
  }
}

float* LseAddress(const LseView& view, int64_t batch, int64_t token, int64_t head) {
  return view.data + batch * view.batch_stride + token * view.token_stride + head * view.head_stride;
}

void FoldSinks(const RunContext& run, const RowBlock& block, const Slot& slot, const State& state) {
  const Problem& problem = run.plan.problem();
  float* const m = slot.sinks;
  float* const l = m + block.num_rows;
  ForEachRow(run, block, [&](int64_t r, int64_t, int64_t head) {
    m[r] = run.args.sinks[head];
    l[r] = m[r] == -kInfinity ? 0.0f : 1.0f;
  });
  std::fill_n(slot.zeros, problem.o_pitch, 0.0f);
  FoldArgs args;
  args.rows = block.num_rows;
  args.o_width = problem.o_pitch;
  args.m_a = state.m;
  args.l_a = state.l;
  args.o_a = state.o;
  args.pitch_a = problem.o_pitch;
  args.m_b = m;
  args.l_b = l;
  args.o_b = slot.zeros;
  args.pitch_b = 0;
  run.plan.kernels().softmax.fold(args);
}

// Sums of rotated values, turned back. The o of an empty state was perhaps never written, and is not looked at.
void RotateBack(const RunContext& run, const RowBlock& block, const State& state) {
  const Problem& problem = run.plan.problem();
  for (int64_t r = 0; r < block.num_rows; ++r) {
    if (state.l[r] != 0.0f) run.plan.kernels().hadamard(state.o + r * problem.o_pitch, problem.v_dim);
  }
}

float Canonical(float x) { return x == x ? x : kNaN; }

void WriteStates(const RunContext& run, const RowBlock& block, const State& state) {
  const Problem& problem = run.plan.problem();
  const int64_t batch = run.plan.sequences()[static_cast<size_t>(block.sequence)].batch;
  const StateView& view = run.args.state;
  ForEachRow(run, block, [&](int64_t r, int64_t token, int64_t head) {
    const bool empty = state.l[r] == 0.0f;
    *LseAddress(view.m, batch, token, head) = empty ? -kInfinity : Canonical(state.m[r]);
    *LseAddress(view.l, batch, token, head) = Canonical(state.l[r]);
    if (problem.v_dim == 0) return;
    float* const o = static_cast<float*>(view.o.data) + batch * view.o.batch_stride + token * view.o.token_stride +
                     head * view.o.head_stride;
    const float* const from = state.o + r * problem.o_pitch;
    for (int64_t i = 0; i < problem.v_dim; ++i) o[i * view.o.dim_stride] = empty ? 0.0f : Canonical(from[i]);
  });
}

void WriteOutputs(const RunContext& run, const RowBlock& block, const Slot& slot, const State& state) {
  const Problem& problem = run.plan.problem();
  const int64_t batch = run.plan.sequences()[static_cast<size_t>(block.sequence)].batch;
  const TensorView& out = run.args.out;
  const LseView& lse = run.args.lse;
  const bool want_out = out.data != nullptr && problem.v_dim > 0;
  const int64_t element = DTypeBytes(out.dtype);
  ForEachRow(run, block, [&](int64_t r, int64_t token, int64_t head) {
    // Without features `out` may be null; nothing is stored then.
    slot.out_rows[r] =
        !want_out ? nullptr
                  : static_cast<std::byte*>(out.data) +
                        element * (batch * out.batch_stride + token * out.token_stride + head * out.head_stride);
    if (lse.data != nullptr) slot.lse_rows[r] = LseAddress(lse, batch, token, head);
  });
  FinishArgs args;
  args.rows = block.num_rows;
  args.v_dim = want_out ? problem.v_dim : 0;
  args.m = state.m;
  args.l = state.l;
  args.o = state.o;
  args.o_pitch = problem.o_pitch;
  args.out = slot.out_rows;
  args.out_dtype = out.dtype;
  args.out_stride = out.dim_stride;
  args.lse = lse.data != nullptr ? slot.lse_rows : nullptr;
  run.plan.kernels().softmax.finish(args);
}

}  // namespace

State StateInWorkspace(const RunContext& run, const RowBlock& block, int64_t index) {
  const StateLayout layout = MakeStateLayout(block.num_rows, run.plan.problem().o_pitch);
  float* const base = reinterpret_cast<float*>(run.memory.states() + block.state_offset + index * layout.bytes);
  return {base, base + layout.l, base + layout.o};
}

State StateInSlot(const Slot& slot, int index) { return {slot.m[index], slot.l[index], slot.o[index]}; }

void Fold(const RunContext& run, int64_t num_rows, const State& a, const State& b) {
  const int64_t o_pitch = run.plan.problem().o_pitch;
  FoldArgs args;
  args.rows = num_rows;
  args.o_width = o_pitch;
  args.m_a = a.m;
  args.l_a = a.l;
  args.o_a = a.o;
  args.pitch_a = o_pitch;
  args.m_b = b.m;
  args.l_b = b.l;
  args.o_b = b.o;
  args.pitch_b = o_pitch;
  run.plan.kernels().softmax.fold(args);
}

void Finish(const RunContext& run, const RowBlock& block, const Slot& slot, const State& state) {
  if (run.args.sinks != nullptr) FoldSinks(run, block, slot, state);
  if (run.plan.problem().rotate) RotateBack(run, block, state);
  if (run.args.state.m.data != nullptr) WriteStates(run, block, state);
  if (run.args.out.data != nullptr || run.args.lse.data != nullptr) WriteOutputs(run, block, slot, state);
}

void FinishWithNaN(const RunContext& run, const RowBlock& block, const Slot& slot) {
  const State state = StateInSlot(slot, 0);
  std::fill_n(state.m, block.num_rows, kNaN);
  std::fill_n(state.l, block.num_rows, kNaN);
  std::fill_n(state.o, block.num_rows * run.plan.problem().o_pitch, kNaN);
  if (run.args.state.m.data != nullptr) WriteStates(run, block, state);
  if (run.args.out.data != nullptr || run.args.lse.data != nullptr) WriteOutputs(run, block, slot, state);
}

}  // namespace headlane::internal
