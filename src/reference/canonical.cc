// The canonical order of operations, version 1 (kNumericsVersion), for one query row and one query head. All numbers
// are f32; every operation rounds once; fma is std::fma; exp, ln and tanh are those of canonical_math.h.
//
//  1. q' = q * scale, per feature; where keys are stored rotated, q' = H q' (CanonicalHadamard).
//  2. s = 0; s = fma(q'[d], k[d], s) for d ascending.
//  3. softcap: s = cap * tanh(s / cap).
//  4. s = s + bias; then ALiBi: s = fma(slope, float(position of the key - position of the row), s).
//  5. Hidden keys, those with a bias of -inf among them, are out, whatever s is; a computed -inf counts as hidden. +inf
//  or NaN makes the row NaN, which it
//     does by itself.
//  6. Blocks of 128 keys by order, at absolute multiples.
//       m' = the largest of m and the visible scores, by comparison: NaN is passed over and comes in by its weight
//       no live key: the block is skipped
//       c = exp(m - m'); l[16] and o are multiplied by c
//       per live key ascending: w = exp(s - m'), l[order % 16] += w, o[j] = fma(w, v[j], o[j])
//     In an empty state (no block before it in the split) m is -inf and l and o are 0: nothing is multiplied.
//  7. Splits of 1024 keys by order, at absolute multiples, each starting from an empty state. At its end l is reduced:
//     for step 8, 4, 2, 1: l[j] += l[j + step].
//  8. States are folded in ascending order of the splits.
//       m = max, cA = exp(mA - m), cB = exp(mB - m)
//       l = fma(lB, cB, lA * cA), o = fma(oB, cB, oA * cA)
//     An empty state is skipped without arithmetic; the first that is not empty is copied.
//  9. The sink comes last, as a state with m = sink, l = 1, o = 0. Then, where values are stored rotated, o = H o.
// 10. out = o / l + 0 (no -0 is left), lse = m + ln(l). NaN is stored as 0x7FC00000. Empty: 0 and -inf. Then out is
//     rounded to its type, which may make a tiny negative number -0.
//
// The public state of a row is (m, l, o) after step 9.
//
// What may be left out, since it changes no bit: multiplications by c == 1, additions of weight +0 to l, fma with
// weight +0 and finite v (it may turn -0 into +0 in o, which step 10 hides).
#include "reference/canonical.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <utility>

#include "reference/canonical_math.h"
#include "reference/canonical_ops.h"

namespace headlane::reference {
namespace {

static_assert(FLT_EVAL_METHOD == 0, "excess precision would change bits");

constexpr float kInf = std::numeric_limits<float>::infinity();

float QuietNaN(float x) { return std::isnan(x) ? std::bit_cast<float>(uint32_t{0x7FC00000}) : x; }

// Steps 2 to 4.
float Score(const Problem& p, int64_t head, int64_t row, int64_t key, const float* scaled_q) {
  float s = CanonicalDot(scaled_q, KeyRow(p, head, key), p.qk_dim);
  if (p.softcap > 0.0f) s = p.softcap * CanonicalTanh(s / p.softcap);
  if (p.bias != nullptr) s = s + Bias(p, head, row, key);
  if (p.alibi_slopes != nullptr) {
    s = std::fma(p.alibi_slopes[head], static_cast<float>(KeyPosition(p, key) - RowPosition(p, row)), s);
  }
  return s;
}

// Keys [begin, end) of one split.
State Split(const Problem& p, int64_t head, int64_t row, int64_t begin, int64_t end, const float* scaled_q) {
  SplitState split(p.v_dim);
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t num_keys = std::min(kBlock, end - block);
    std::array<float, kBlock> scores{};
    std::array<bool, kBlock> visible{};
    for (int64_t i = 0; i < num_keys; ++i) {
      visible[i] = Visible(p, head, row, block + i);
      if (visible[i]) scores[i] = Score(p, head, row, block + i, scaled_q);
    }
    const BlockWeights weights = CanonicalSoftmaxStep(scores.data(), visible.data(), num_keys, split);
    CanonicalWeightedSum(weights, ValueRow(p, head, block), ValueStride(p), num_keys, split.o);
  }
  return {split.m, CanonicalReduce(split.l), std::move(split.o)};
}

}  // namespace

float CanonicalDot(const float* q, const float* k, int64_t dim) {
  float s = 0.0f;
  for (int64_t d = 0; d < dim; ++d) s = std::fma(q[d], k[d], s);
  return s;
}

BlockWeights CanonicalSoftmaxStep(const float* scores, const bool* visible, int64_t num_keys, SplitState& state) {
  BlockWeights block;
  float m = state.m;
  for (int64_t i = 0; i < num_keys; ++i) {
    block.live[i] = visible[i] && scores[i] != -kInf;
    block.any = block.any || block.live[i];
    if (block.live[i] && scores[i] > m) m = scores[i];
  }
  if (!block.any) return block;

  const bool is_empty = std::all_of(state.l.begin(), state.l.end(), [](float l) { return l == 0.0f; });
  if (!is_empty) {
    block.c = CanonicalExp(state.m - m);
    for (float& l : state.l) l = l * block.c;
  }
  state.m = m;
  for (int64_t i = 0; i < num_keys; ++i) {
    if (!block.live[i]) continue;
    block.w[i] = CanonicalExp(scores[i] - m);
    state.l[i % kLanes] = state.l[i % kLanes] + block.w[i];
  }
  return block;
}

void CanonicalWeightedSum(const BlockWeights& weights, const float* v, int64_t v_stride, int64_t num_keys,
                          std::vector<float>& o) {
  if (!weights.any) return;
  for (float& value : o) value = value * weights.c;
  for (int64_t i = 0; i < num_keys; ++i) {
    if (!weights.live[i]) continue;
    for (size_t j = 0; j < o.size(); ++j)
      o[j] = std::fma(weights.w[i], v[i * v_stride + static_cast<int64_t>(j)], o[j]);
  }
}

float CanonicalReduce(const std::array<float, kLanes>& l) {
  std::array<float, kLanes> sum = l;
  for (int64_t step = kLanes / 2; step >= 1; step /= 2) {
    for (int64_t j = 0; j < step; ++j) sum[j] = sum[j] + sum[j + step];
  }
  return sum[0];
}

void CanonicalFold(State& a, const State& b) {
  if (b.l == 0.0f) return;
  if (a.l == 0.0f) {
    a = b;
    return;
  }
  const float m = b.m > a.m ? b.m : a.m;
  const float c_a = CanonicalExp(a.m - m);
  const float c_b = CanonicalExp(b.m - m);
  a.m = m;
  a.l = std::fma(b.l, c_b, a.l * c_a);
  for (size_t j = 0; j < a.o.size(); ++j) a.o[j] = std::fma(b.o[j], c_b, a.o[j] * c_a);
}

void CanonicalFinish(const State& state, float* out, float* lse) {
  const bool is_empty = state.l == 0.0f;
  for (size_t j = 0; j < state.o.size(); ++j) out[j] = is_empty ? 0.0f : QuietNaN(state.o[j] / state.l + 0.0f);
  *lse = is_empty ? -kInf : QuietNaN(state.m + CanonicalLn(state.l));
}

float RoundTo(OutType type, float x) {
  if (type == OutType::kF32 || std::isinf(x)) return x;
  if (std::isnan(x)) return QuietNaN(x);
  const int mantissa_bits = type == OutType::kF16 ? 10 : 7;
  const int lowest_exponent = type == OutType::kF16 ? -14 : -126;
  const float largest = type == OutType::kF16 ? 65504.0f : 0x1.FEp127f;
  // The distance of neighbouring numbers of the type around x; frexp's fraction is in [0.5, 1).
  int exponent = 0;
  std::frexp(x, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - 1, lowest_exponent) - mantissa_bits);
  const double rounded = std::nearbyint(static_cast<double>(x) / step) * step;  // ties to even: the default mode
  if (std::fabs(rounded) > static_cast<double>(largest)) return std::copysign(kInf, x);
  return std::copysign(static_cast<float>(rounded), x);
}

std::vector<State> CanonicalStates(const Problem& p) {
  std::vector<State> states;
  std::vector<float> scaled_q(static_cast<size_t>(p.qk_dim));
  for (int64_t row = 0; row < p.q_len; ++row) {
    for (int64_t head = 0; head < p.num_q_heads; ++head) {
      const float* q = QueryRow(p, head, row);
      for (int64_t d = 0; d < p.qk_dim; ++d) scaled_q[d] = q[d] * p.scale;
      if (p.rotate) CanonicalHadamard(scaled_q.data(), p.qk_dim);

      State state;
      state.o.assign(static_cast<size_t>(p.v_dim), 0.0f);
      for (int64_t begin = 0; begin < p.kv_len; begin += kSplit) {
        CanonicalFold(state, Split(p, head, row, begin, std::min(begin + kSplit, p.kv_len), scaled_q.data()));
      }
      if (p.sinks != nullptr) {
        State sink{p.sinks[head], 1.0f, std::vector<float>(static_cast<size_t>(p.v_dim), 0.0f)};
        if (sink.m != -kInf) CanonicalFold(state, sink);
      }
      if (p.rotate) CanonicalHadamard(state.o.data(), p.v_dim);
      states.push_back(std::move(state));
    }
  }
  return states;
}

CanonicalResult CanonicalAttention(const Problem& p) {
  const std::vector<State> states = CanonicalStates(p);
  CanonicalResult result;
  result.out.assign(states.size() * static_cast<size_t>(p.v_dim), 0.0f);
  result.lse.assign(states.size(), 0.0f);
  for (size_t i = 0; i < states.size(); ++i) {
    CanonicalFinish(states[i], result.out.data() + i * static_cast<size_t>(p.v_dim), result.lse.data() + i);
  }
  for (float& x : result.out) x = RoundTo(p.out_type, x);
  return result;
}

}  // namespace headlane::reference
