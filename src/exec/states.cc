// MergeStates, MergeOutputs and FinishStates: what engines do with states of several runs.
//
// The arithmetic is that of a run's own folds (kernel_api.h, FoldArgs and FinishArgs), row by row through buffers of a
// fixed size, so that any strides and widths do.
#include <algorithm>
#include <limits>

#include "base/fp_environment.h"
#include "base/view_check.h"
#include "headlane/attention.h"
#include "kernels/kernel_api.h"

namespace headlane {
namespace {

using LL = long long;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Features that go through the buffers at a time.
constexpr int64_t kChunk = 512;

struct alignas(64) Row {
  float o[kChunk];
};

Status CheckF32(const char* name, DType dtype) {
  if (dtype == DType::kF32) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported, "%s is %s, but states are f32", name, DTypeName(dtype));
}

// One number per row of `o`.
template <typename View>
Status CheckPerRow(const char* name, const LseView& per_row, const View& o) {
  View view = o;
  view.data = per_row.data;
  view.dim = 1;
  view.dim_stride = 1;
  view.dtype = DType::kF32;
  view.batch_stride = per_row.batch_stride;
  view.token_stride = per_row.token_stride;
  view.head_stride = per_row.head_stride;
  return internal::CheckView(name, view);
}

template <typename A, typename B>
Status CheckSameShape(const char* name_a, const A& a, const char* name_b, const B& b) {
  const struct {
    const char* field;
    int64_t a, b;
  } fields[] = {{"num_batch", a.num_batch, b.num_batch},
                {"num_tokens", a.num_tokens, b.num_tokens},
                {"num_heads", a.num_heads, b.num_heads},
                {"dim", a.dim, b.dim}};
  for (const auto& field : fields) {
    if (field.a == field.b) continue;
    return MakeStatus(StatusCode::kInvalidArgument, "%s.%s is %lld, but %s.%s is %lld", name_a, field.field,
                      static_cast<LL>(field.a), name_b, field.field, static_cast<LL>(field.b));
  }
  return OkStatus();
}

int64_t Offset(const LseView& view, int64_t b, int64_t t, int64_t h) {
  return b * view.batch_stride + t * view.token_stride + h * view.head_stride;
}
template <typename View>
int64_t RowOffset(const View& view, int64_t b, int64_t t, int64_t h) {
  return b * view.batch_stride + t * view.token_stride + h * view.head_stride;
}

// Calls f(batch, token, head) for every row.
template <typename View, typename F>
void ForEachRow(const View& view, const F& f) {
  for (int64_t b = 0; b < view.num_batch; ++b) {
    for (int64_t t = 0; t < view.num_tokens; ++t) {
      for (int64_t h = 0; h < view.num_heads; ++h) f(b, t, h);
    }
  }
}

template <typename View>
void ReadChunk(const View& view, int64_t row, int64_t begin, int64_t count, float* to) {
  const float* const from = static_cast<const float*>(view.data) + row + begin * view.dim_stride;
  for (int64_t i = 0; i < count; ++i) to[i] = from[i * view.dim_stride];
  std::fill(to + count, to + kChunk, 0.0f);
}

void WriteChunk(const TensorView& view, int64_t row, int64_t begin, int64_t count, const float* from) {
  float* const to = static_cast<float*>(view.data) + row + begin * view.dim_stride;
  for (int64_t i = 0; i < count; ++i) to[i * view.dim_stride] = from[i];
}

struct Scalars {
  float m, l;
};

// Folds row b into row a; returns the new m and l.
Scalars FoldRow(const internal::KernelTable& kernels, const TensorView& o_a, int64_t row_a, Scalars a,
                const ConstTensorView& o_b, int64_t row_b, Scalars b) {
  Scalars folded = a;
  int64_t begin = 0;
  do {
    Row chunk_a, chunk_b;
    const int64_t count = std::min(kChunk, o_a.dim - begin);
    if (count > 0) {
      ReadChunk(o_a, row_a, begin, count, chunk_a.o);
      ReadChunk(o_b, row_b, begin, count, chunk_b.o);
    }
    folded = a;
    internal::FoldArgs fold;
    fold.rows = 1;
    fold.o_width = internal::RoundUp(count, internal::kTileKeys);
    fold.m_a = &folded.m;
    fold.l_a = &folded.l;
    fold.o_a = chunk_a.o;
    fold.pitch_a = kChunk;
    fold.m_b = &b.m;
    fold.l_b = &b.l;
    fold.o_b = chunk_b.o;
    fold.pitch_b = kChunk;
    kernels.softmax.fold(fold);
    // An empty state's o means nothing, and joined with another it is still to become zeros.
    if (folded.l == 0.0f) std::fill_n(chunk_a.o, kChunk, 0.0f);
    if (count > 0) WriteChunk(o_a, row_a, begin, count, chunk_a.o);
    begin += kChunk;
  } while (begin < o_a.dim);
  if (folded.l == 0.0f) folded.m = -kInfinity;
  return folded;
}

// out = o / l and lse of one row.
void FinishRow(const internal::KernelTable& kernels, const ConstTensorView& o, int64_t row, Scalars state,
               const TensorView& out, int64_t out_row, float* lse) {
  const int64_t element = DTypeBytes(out.dtype);
  for (int64_t begin = 0; begin == 0 || begin < o.dim; begin += kChunk) {
    Row chunk;
    const int64_t count = std::min(kChunk, o.dim - begin);
    if (count > 0) ReadChunk(o, row, begin, count, chunk.o);
    void* to = count > 0 ? static_cast<std::byte*>(out.data) + element * (out_row + begin * out.dim_stride) : nullptr;
    internal::FinishArgs finish;
    finish.rows = 1;
    finish.v_dim = count;
    finish.m = &state.m;
    finish.l = &state.l;
    finish.o = chunk.o;
    finish.o_pitch = kChunk;
    finish.out = &to;
    finish.out_dtype = out.dtype;
    finish.out_stride = out.dim_stride;
    finish.lse = begin == 0 && lse != nullptr ? &lse : nullptr;
    kernels.softmax.finish(finish);
  }
}

ConstTensorView Const(const TensorView& view) { return view; }

Status CheckState(const char* name_o, const char* name_m, const char* name_l, const StateView& state) {
  HEADLANE_RETURN_IF_ERROR(CheckF32(name_o, state.o.dtype));
  HEADLANE_RETURN_IF_ERROR(internal::CheckView(name_o, state.o));
  HEADLANE_RETURN_IF_ERROR(CheckPerRow(name_m, state.m, state.o));
  return CheckPerRow(name_l, state.l, state.o);
}

}  // namespace

Status MergeStates(const StateView& a, const StateView& b) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckState("a.o", "a.m", "a.l", a));
  HEADLANE_RETURN_IF_ERROR(CheckState("b.o", "b.m", "b.l", b));
  HEADLANE_RETURN_IF_ERROR(CheckSameShape("a.o", a.o, "b.o", b.o));
  const internal::KernelTable& kernels = internal::ActiveKernels();
  internal::InDefaultFpEnvironment([&] {
    ForEachRow(a.o, [&](int64_t batch, int64_t token, int64_t head) {
      float& m = a.m.data[Offset(a.m, batch, token, head)];
      float& l = a.l.data[Offset(a.l, batch, token, head)];
      const Scalars from{b.m.data[Offset(b.m, batch, token, head)], b.l.data[Offset(b.l, batch, token, head)]};
      const Scalars folded = FoldRow(kernels, a.o, RowOffset(a.o, batch, token, head), {m, l}, Const(b.o),
                                     RowOffset(b.o, batch, token, head), from);
      m = folded.m;
      l = folded.l;
    });
  });
  return OkStatus();
}

Status MergeOutputs(const TensorView& out_a, const LseView& lse_a, const ConstTensorView& out_b,
                    const LseView& lse_b) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckF32("out_a", out_a.dtype));
  HEADLANE_RETURN_IF_ERROR(CheckF32("out_b", out_b.dtype));
  HEADLANE_RETURN_IF_ERROR(internal::CheckView("out_a", out_a));
  HEADLANE_RETURN_IF_ERROR(internal::CheckView("out_b", out_b));
  HEADLANE_RETURN_IF_ERROR(CheckPerRow("lse_a", lse_a, out_a));
  HEADLANE_RETURN_IF_ERROR(CheckPerRow("lse_b", lse_b, out_b));
  HEADLANE_RETURN_IF_ERROR(CheckSameShape("out_a", out_a, "out_b", out_b));
  const internal::KernelTable& kernels = internal::ActiveKernels();
  internal::InDefaultFpEnvironment([&] {
    ForEachRow(out_a, [&](int64_t batch, int64_t token, int64_t head) {
      float& lse = lse_a.data[Offset(lse_a, batch, token, head)];
      const float other = lse_b.data[Offset(lse_b, batch, token, head)];
      const auto state_of = [](float x) { return Scalars{x, x == -kInfinity ? 0.0f : 1.0f}; };
      const int64_t row = RowOffset(out_a, batch, token, head);
      const Scalars folded =
          FoldRow(kernels, out_a, row, state_of(lse), out_b, RowOffset(out_b, batch, token, head), state_of(other));
      // A side that was kept as it is: dividing by its l of 1 changes no bit, and ln 1 is 0.
      FinishRow(kernels, Const(out_a), row, folded, out_a, row, &lse);
    });
  });
  return OkStatus();
}

Status FinishStates(const StateView& state, const TensorView& out, const LseView& lse) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckState("state.o", "state.m", "state.l", state));
  HEADLANE_RETURN_IF_ERROR(internal::CheckView("out", out));
  HEADLANE_RETURN_IF_ERROR(CheckSameShape("state.o", state.o, "out", out));
  if (lse.data != nullptr) HEADLANE_RETURN_IF_ERROR(CheckPerRow("lse", lse, out));
  const internal::KernelTable& kernels = internal::ActiveKernels();
  internal::InDefaultFpEnvironment([&] {
    ForEachRow(out, [&](int64_t batch, int64_t token, int64_t head) {
      const Scalars scalars{state.m.data[Offset(state.m, batch, token, head)],
                            state.l.data[Offset(state.l, batch, token, head)]};
      float* const to = lse.data == nullptr ? nullptr : lse.data + Offset(lse, batch, token, head);
      FinishRow(kernels, Const(state.o), RowOffset(state.o, batch, token, head), scalars, out,
                RowOffset(out, batch, token, head), to);
    });
  });
  return OkStatus();
}

}  // namespace headlane
