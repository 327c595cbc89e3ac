// The scalar canonical program: attention in f32, one operation at a time, in the order that defines every result of
// the library.
//
// A kernel on a target with FMA must equal this bit for bit. The whole (CanonicalAttention) is compared with the
// operator, the pieces with the kernels. The order is written down at the head of canonical.cc.
#ifndef HEADLANE_SRC_REFERENCE_CANONICAL_H_
#define HEADLANE_SRC_REFERENCE_CANONICAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/problem.h"

namespace headlane::reference {

inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kBlock = 128;
inline constexpr int64_t kSplit = 1024;

struct CanonicalResult {
  std::vector<float> out;  // [q_len][num_q_heads][v_dim], rounded to problem.out_type
  std::vector<float> lse;  // [q_len][num_q_heads]
};

CanonicalResult CanonicalAttention(const Problem& problem);

// ---- The pieces ----

// One row's state inside a split.
struct SplitState {
  explicit SplitState(int64_t v_dim) : o(static_cast<size_t>(v_dim), 0.0f) {}
  float m = -std::numeric_limits<float>::infinity();
  std::array<float, kLanes> l{};  // lane = order % 16
  std::vector<float> o;           // [v_dim]
};

// One row's state of a finished split, or of several that were folded. l == 0: no key was visible.
struct State {
  float m = -std::numeric_limits<float>::infinity();
  float l = 0.0f;
  std::vector<float> o;  // [v_dim], not divided by l
};

// What CanonicalAttention divides: the folded states of all rows and heads, the sink among them. [q_len][num_q_heads]
std::vector<State> CanonicalStates(const Problem& problem);

// What one block of keys does to a row before V is looked at.
struct BlockWeights {
  bool any = false;                 // some key counts; otherwise the block is skipped
  float c = 1.0f;                   // factor for o
  std::array<float, kBlock> w{};    // weights, 0 where `live` is not set
  std::array<bool, kBlock> live{};  // visible and its score not -inf
};

// q' . k, one fma per feature in ascending order. q is already times the scale.
float CanonicalDot(const float* q, const float* k, int64_t dim);

// Steps 6 (without V) of the order: `scores` and `visible` hold num_keys <= 128 keys, the first of which stands at a
// multiple of 128.
BlockWeights CanonicalSoftmaxStep(const float* scores, const bool* visible, int64_t num_keys, SplitState& state);

// Step 6, V's part: o = o * c, then one fma per live key in ascending order. v: [num_keys] rows of v_stride elements.
void CanonicalWeightedSum(const BlockWeights& weights, const float* v, int64_t v_stride, int64_t num_keys,
                          std::vector<float>& o);

// Step 7.
float CanonicalReduce(const std::array<float, kLanes>& l);

// Step 8: folds b, which comes later, into a.
void CanonicalFold(State& a, const State& b);

// Step 10. out: [v_dim].
void CanonicalFinish(const State& state, float* out, float* lse);

// The end of step 10 for outputs of 16 bits: to the nearest number of the type, ties to the one whose last bit is 0.
// Beyond the largest: infinity. NaN: 0x7FC00000, the widened form of either type's plain NaN.
float RoundTo(OutType type, float x);

}  // namespace headlane::reference

#endif  // HEADLANE_SRC_REFERENCE_CANONICAL_H_
