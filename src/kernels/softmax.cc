// The online softmax over blocks of 128 keys, and what ends and joins its states.
//
// State of a row: m the largest score so far, l[16] partial sums of e^(s - m) by key index modulo 16, o the weighted
// sum of values. A block with largest score b moves it to m' = max(m, b): l and o are multiplied by c = e^(m - m'),
// then its keys are added (Milakov and Gimelshein 2018). m = -inf marks a state that has seen nothing; its l is 0, and
// only then: the largest key of a state adds e^0 = 1. A row with NaN scores has l = NaN whatever m is, since e^(NaN -
// m) is NaN; Max may therefore treat NaN as the target likes, and the sign of a zero maximum changes no difference.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/dispatch.h"
#include "kernels/element-inl.h"
#include "kernels/score_modifiers-inl.h"
#include "kernels/simd_math-inl.h"
#include "kernels/tables.h"

HWY_BEFORE_NAMESPACE();
namespace headlane::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kTileKeys>;
using VF = hn::Vec<DF>;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

HWY_INLINE int64_t NumLanes() { return static_cast<int64_t>(hn::Lanes(DF())); }

// The numbers that stand for c, l, lse: rows are few, so they are computed 16 at a time in this.
struct alignas(64) Lanes16 {
  float v[kTileKeys];
};

// Scores outside of [begin, end) become -inf.
HWY_INLINE void HideOutside(float* HWY_RESTRICT s, int64_t num_keys, int64_t begin, int64_t end) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const int64_t lanes = NumLanes();
  for (int64_t i = 0; i < num_keys; i += lanes) {
    if (begin <= i && i + lanes <= end) continue;
    const auto key = hn::Iota(di, static_cast<int32_t>(i));
    const auto visible = hn::And(hn::Ge(key, hn::Set(di, static_cast<int32_t>(begin))),
                                 hn::Lt(key, hn::Set(di, static_cast<int32_t>(end))));
    hn::Store(hn::IfThenElse(hn::RebindMask(d, visible), hn::Load(d, s + i), hn::Set(d, -kInfinity)), d, s + i);
  }
}

alignas(64) inline constexpr int32_t kLaneBits[kTileKeys] = {1 << 0,  1 << 1,  1 << 2,  1 << 3, 1 << 4,  1 << 5,
                                                             1 << 6,  1 << 7,  1 << 8,  1 << 9, 1 << 10, 1 << 11,
                                                             1 << 12, 1 << 13, 1 << 14, 1 << 15};

// Scores whose bit is clear become -inf.
HWY_INLINE void HideClear(float* HWY_RESTRICT s, int64_t num_tiles, const uint16_t* HWY_RESTRICT visible) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const int64_t lanes = NumLanes();
  for (int64_t t = 0; t < num_tiles; ++t) {
    if (visible[t] == 0xFFFF) continue;
    const auto bits = hn::Set(di, visible[t]);
    for (int64_t i = 0; i < kTileKeys; i += lanes) {
      const auto is_clear = hn::RebindMask(d, hn::Eq(hn::And(bits, hn::Load(di, kLaneBits + i)), hn::Zero(di)));
      float* const scores = s + t * kTileKeys + i;
      hn::Store(hn::IfThenElse(is_clear, hn::Set(d, -kInfinity), hn::Load(d, scores)), d, scores);
    }
  }
}

HWY_INLINE float Largest(const float* HWY_RESTRICT s, int64_t num_keys) {
  const DF d;
  const int64_t lanes = NumLanes();
  // Four chains: a block has up to 32 vectors and Max a latency of 4.
  VF a = hn::Load(d, s), b = a, c = a, e = a;
  int64_t i = lanes;
  for (; i + 4 * lanes <= num_keys; i += 4 * lanes) {
    a = hn::Max(a, hn::Load(d, s + i));
    b = hn::Max(b, hn::Load(d, s + i + lanes));
    c = hn::Max(c, hn::Load(d, s + i + 2 * lanes));
    e = hn::Max(e, hn::Load(d, s + i + 3 * lanes));
  }
  for (; i < num_keys; i += lanes) a = hn::Max(a, hn::Load(d, s + i));
  return hn::ReduceMax(d, hn::Max(hn::Max(a, b), hn::Max(c, e)));
}

// Bit i of live[t]: key i of tile t counts.
void MarkLive(const float* HWY_RESTRICT s, int64_t num_tiles, uint16_t* HWY_RESTRICT live) {
  const DF d;
  const int64_t lanes = NumLanes();
  for (int64_t t = 0; t < num_tiles; ++t) {
    uint32_t bits = 0;
    for (int64_t i = 0; i < kTileKeys; i += lanes) {
      // One bit per lane, in whole bytes.
      uint8_t bytes[8] = {};
      hn::StoreMaskBits(d, hn::Ne(hn::Load(d, s + t * kTileKeys + i), hn::Set(d, -kInfinity)), bytes);
      bits |= (bytes[0] | static_cast<uint32_t>(bytes[1]) << 8) << i;
    }
    live[t] = static_cast<uint16_t>(bits);
  }
}

// s = e^(s - m), added to l by lane in ascending order of keys.
//
// e^x is a chain of 17 operations, and a processor looks ahead over too few instructions to fill the latency of one
// with the next ones. Two loops halve the chain: the first leaves r in s and 2^n in `scale`, the second finishes (Zen
// 3: 8.9 cycles per vector of 8, against 10.1 in one loop).
HWY_INLINE void Weights(float* HWY_RESTRICT s, int64_t num_keys, float m, float c, float* HWY_RESTRICT l) {
  const DF d;
  const int64_t lanes = NumLanes();
  alignas(64) float scale[kBlockKeys];
  // A row that has seen nothing: all its scores are -inf (or NaN), any finite number serves.
  const VF shift = hn::Set(d, m == -kInfinity ? 0.0f : m);
#pragma GCC unroll 4
  for (int64_t i = 0; i < num_keys; i += lanes) {
    const VF x = hn::Sub(hn::Load(d, s + i), shift);
    VF t;
    const VF r = ReduceByLn2(d, x, t);
    // Where e^x is 0: e^0 * 0, whatever r would have been.
    const auto is_zero = hn::Lt(x, hn::Set(d, kExpCutoff));
    hn::Store(hn::IfThenZeroElse(is_zero, r), d, s + i);
    hn::Store(hn::IfThenZeroElse(is_zero, PowerOfTwo(d, t)), d, scale + i);
  }
  const VF factor = hn::Set(d, c);
  if (lanes == kTileKeys) {
    VF sum = hn::Mul(hn::Load(d, l), factor);
    for (int64_t i = 0; i < num_keys; i += kTileKeys) {
      const VF w = ExpFromParts(d, hn::Load(d, s + i), hn::Load(d, scale + i));
      hn::Store(w, d, s + i);
      sum = hn::Add(sum, w);
    }
    hn::Store(sum, d, l);
    return;
  }
  // Two vectors of a tile at a time: two chains of sums.
  for (int64_t lane = 0; lane < kTileKeys; lane += 2 * lanes) {
    VF sum0 = hn::Mul(hn::Load(d, l + lane), factor);
    VF sum1 = hn::Mul(hn::Load(d, l + lane + lanes), factor);
#pragma GCC unroll 2
    for (int64_t i = lane; i < num_keys; i += kTileKeys) {
      const VF w0 = ExpFromParts(d, hn::Load(d, s + i), hn::Load(d, scale + i));
      const VF w1 = ExpFromParts(d, hn::Load(d, s + i + lanes), hn::Load(d, scale + i + lanes));
      hn::Store(w0, d, s + i);
      hn::Store(w1, d, s + i + lanes);
      sum0 = hn::Add(sum0, w0);
      sum1 = hn::Add(sum1, w1);
    }
    hn::Store(sum0, d, l + lane);
    hn::Store(sum1, d, l + lane + lanes);
  }
}

HWY_INLINE void SoftmaxRows(const SoftmaxArgs& args, int64_t row0, int64_t rows) {
  const DF d;
  const int64_t num_keys = args.num_tiles * kTileKeys;
  Lanes16 old_m, new_m;
  for (int64_t i = 0; i < kTileKeys; ++i) old_m.v[i] = new_m.v[i] = 0.0f;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t r = row0 + i;
    float* s = args.s + r * kBlockKeys;
    if (args.visible != nullptr) {
      HideClear(s, args.num_tiles, args.visible + r * kTilesPerBlock);
    } else if (args.begin[r] > 0 || args.end[r] < num_keys) {
      HideOutside(s, num_keys, args.begin[r], args.end[r]);
    }
    if (args.live != nullptr) MarkLive(s, args.num_tiles, args.live + r * kTilesPerBlock);
    const float largest = Largest(s, num_keys);
    old_m.v[i] = args.m[r];
    // Not `largest > m`: a NaN must not stop the row's own maximum from being kept.
    new_m.v[i] = args.m[r] >= largest ? args.m[r] : largest;
  }
  // c = e^(m - m'), and 1 where m = m', both -inf included.
  Lanes16 c;
  for (int64_t i = 0; i < kTileKeys; i += NumLanes()) {
    const VF a = hn::Load(d, old_m.v + i), b = hn::Load(d, new_m.v + i);
    hn::Store(hn::IfThenElse(hn::Eq(a, b), hn::Set(d, 1.0f), ExpNonPositive(d, hn::Sub(a, b))), d, c.v + i);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t r = row0 + i;
    Weights(args.s + r * kBlockKeys, num_keys, new_m.v[i], c.v[i], args.l + r * kTileKeys);
    args.m[r] = new_m.v[i];
    args.c[r] = c.v[i];
  }
}

void SoftmaxBlock(const SoftmaxArgs& args) noexcept {
  for (int64_t row0 = 0; row0 < args.rows; row0 += kTileKeys) {
    SoftmaxRows(args, row0, HWY_MIN(args.rows - row0, kTileKeys));
  }
}

void Reduce(const ReduceArgs& args) noexcept {
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* l = args.l16 + r * kTileKeys;
    float sum[8];
    for (int64_t j = 0; j < 8; ++j) sum[j] = l[j] + l[j + 8];
    for (int64_t step = 4; step > 0; step /= 2) {
      for (int64_t j = 0; j < step; ++j) sum[j] += sum[j + step];
    }
    args.l[r] = sum[0];
  }
}

void FoldRow(const FoldArgs& args, int64_t r) {
  const DF d;
  const int64_t lanes = NumLanes();
  float* HWY_RESTRICT o_a = args.o_a + r * args.pitch_a;
  const float* HWY_RESTRICT o_b = args.o_b + r * args.pitch_b;
  const float l_a = args.l_a[r], l_b = args.l_b[r];
  if (l_b == 0.0f) return;
  if (l_a == 0.0f) {
    args.m_a[r] = args.m_b[r];
    args.l_a[r] = l_b;
    for (int64_t i = 0; i < args.o_width; i += lanes) hn::Store(hn::Load(d, o_b + i), d, o_a + i);
    return;
  }
  const float m_a = args.m_a[r], m_b = args.m_b[r];
  const float m = m_a >= m_b ? m_a : m_b;
  const VF c_a = ExpNonPositive(d, hn::Set(d, m_a - m));
  const VF c_b = ExpNonPositive(d, hn::Set(d, m_b - m));
  args.m_a[r] = m;
  args.l_a[r] = hn::GetLane(hn::MulAdd(hn::Set(d, l_b), c_b, hn::Mul(hn::Set(d, l_a), c_a)));
  for (int64_t i = 0; i < args.o_width; i += lanes) {
    hn::Store(hn::MulAdd(hn::Load(d, o_b + i), c_b, hn::Mul(hn::Load(d, o_a + i), c_a)), d, o_a + i);
  }
}

void Fold(const FoldArgs& args) noexcept {
  for (int64_t r = 0; r < args.rows; ++r) FoldRow(args, r);
}

// Any NaN becomes the one that all targets agree on.
HWY_INLINE VF CanonicalNaN(DF d, VF x) {
  const hn::RebindToUnsigned<DF> du;
  return hn::IfThenElse(hn::IsNaN(x), hn::BitCast(d, hn::Set(du, 0x7FC00000u)), x);
}

// out = o / l + 0 of one row, rounded to the element type.
template <class Element>
HWY_INLINE void FinishOut(const FinishArgs& args, int64_t r) {
  const DF d;
  const int64_t lanes = NumLanes();
  typename Element::T* const out = static_cast<typename Element::T*>(args.out[r]);
  const float* HWY_RESTRICT o = args.o + r * args.o_pitch;
  const bool empty = args.l[r] == 0.0f;
  const VF sum = hn::Set(d, args.l[r]);
  alignas(64) typename Element::T stripe[kTileKeys];
  for (int64_t i = 0; i < args.v_dim; i += lanes) {
    // An empty state has no o.
    VF y = hn::Zero(d);
    if (!empty) y = CanonicalNaN(d, hn::Add(hn::Div(hn::Load(d, o + i), sum), hn::Zero(d)));
    const int64_t count = HWY_MIN(lanes, args.v_dim - i);
    if (args.out_stride == 1) {
      Element::StoreN(d, y, out + i, static_cast<size_t>(count));
      continue;
    }
    Element::StoreN(d, y, stripe, static_cast<size_t>(lanes));
    for (int64_t j = 0; j < count; ++j) out[(i + j) * args.out_stride] = stripe[j];
  }
}

HWY_INLINE float LogSumExp(float m, float l) {
  const DF d;
  if (l == 0.0f) return -kInfinity;
  return hn::GetLane(CanonicalNaN(d, hn::Add(hn::Set(d, m), Log(d, hn::Set(d, l)))));
}

template <class Element>
HWY_INLINE void FinishRows(const FinishArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    FinishOut<Element>(args, r);
    if (args.lse != nullptr) *args.lse[r] = LogSumExp(args.m[r], args.l[r]);
  }
}

void Finish(const FinishArgs& args) noexcept {
  switch (args.out_dtype) {
    case DType::kF32:
      return FinishRows<F32Element>(args);
    case DType::kF16:
      return FinishRows<F16Element>(args);
    case DType::kBF16:
      return FinishRows<BF16Element>(args);
    default:  // no tensor's type
      break;
  }
}

// A function of one vector over arrays of any length and alignment.
template <class F>
HWY_INLINE void Apply(const F& f, const float* x, int64_t n, float* y) {
  const DF d;
  const int64_t lanes = NumLanes();
  for (int64_t i = 0; i < n; i += lanes) {
    const size_t count = static_cast<size_t>(HWY_MIN(lanes, n - i));
    hn::StoreN(f(d, hn::LoadN(d, x + i, count)), d, y + i, count);
  }
}

struct ExpNonPositiveOp {
  HWY_INLINE VF operator()(DF d, VF x) const { return ExpNonPositive(d, x); }
};
struct ExpOp {
  HWY_INLINE VF operator()(DF d, VF x) const { return Exp(d, x); }
};
struct LogOp {
  HWY_INLINE VF operator()(DF d, VF x) const { return Log(d, x); }
};
struct TanhOp {
  HWY_INLINE VF operator()(DF d, VF x) const { return Tanh(d, x); }
};

void ExpNonPositiveArray(const float* x, int64_t n, float* y) noexcept { Apply(ExpNonPositiveOp(), x, n, y); }
void ExpArray(const float* x, int64_t n, float* y) noexcept { Apply(ExpOp(), x, n, y); }
void LogArray(const float* x, int64_t n, float* y) noexcept { Apply(LogOp(), x, n, y); }
void TanhArray(const float* x, int64_t n, float* y) noexcept { Apply(TanhOp(), x, n, y); }

SoftmaxKernels SoftmaxTable() {
  return {&ModifyScores,        &SoftmaxBlock, &Reduce,   &Fold,      &Finish,
          &ExpNonPositiveArray, &ExpArray,     &LogArray, &TanhArray, hwy::TargetName(HWY_TARGET)};
}

}  // namespace HWY_NAMESPACE
}  // namespace headlane::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headlane::internal {
HWY_EXPORT(SoftmaxTable);
SoftmaxKernels Softmax(int64_t target) { return HEADLANE_CALL_FOR_TARGET(SoftmaxTable, target); }
}  // namespace headlane::internal
#endif
