// How far the library's f32 result may be from the oracle's: a bound derived from the order of operations, for each
// output on its own.
//
// Let u = 2^-24 be half an ulp of 1; a rounded operation errs by at most u relative to its result. First order in u
// throughout; the terms of higher order are covered by a factor of 1.01.
//
// Score: q' = q * scale is one rounding, the chain has qk_dim, each of a partial sum below A = scale * sum |q[d] k[d]|:
//   (qk_dim + 1) u A
//   softcap: (2 + 2 * kTanhMaxUlp) u |s|     s / cap, tanh (its ulps are 2 u) and the product; cap * tanh has slope 1,
//   and no two capped scores are farther apart than 2 cap
//   bias, ALiBi: u |s| each
// Weight. The running maxima m0 <= m1 <= ... <= m under which a key's weight is formed and rescaled are floats, whose
// own errors cancel between numerator and denominator. Relative error E of a weight: that of its score, and
//   u |s - m|                                the differences s - m0, m0 - m1, ... add up to s - m, each rounded once
//   (2 * kExpMaxUlp + 1) u (1 + blocks + splits)     exp and one product: at the key, per block of its split, per fold
// Sums. o: one fma per key of the split, one per fold. l: one addition per 16 keys, 4 in the tree, one per fold.
// With p = weight / l, summed over the visible keys:
//   |d out| <= sum p |v| (E + steps of o * u) + |out| (sum p E + steps of l * u + u)           u: the division
//   |d lse| <= sum p E + steps of l * u + 2 * kLnMaxUlp u |ln l| + u |lse|
// Output of 16 bits: half an ulp of the type, of |out| + |d out|: 2^-11 (f16), 2^-8 (bf16) times it, at least half of
// the smallest subnormal number.
// Underflow: a weight below 2^-126 may become 0, and products may be subnormal:
//   kv_len 2^-126 (1 + max |v|)
//
// Real errors are far below, since roundings cancel and partial sums are smaller than A; tests pin what is observed as
// well.
#ifndef HEADLANE_SRC_REFERENCE_ERROR_BOUND_H_
#define HEADLANE_SRC_REFERENCE_ERROR_BOUND_H_

#include <vector>

#include "reference/oracle.h"
#include "reference/problem.h"

namespace headlane::reference {

struct ErrorBound {
  std::vector<double> out;  // [q_len][num_q_heads][v_dim], absolute
  std::vector<double> lse;  // [q_len][num_q_heads], absolute
};

// `result` must be Oracle(problem). NaN rows have the bound 0: what is NaN must be NaN.
ErrorBound DeriveErrorBound(const Problem& problem, const OracleResult& result);

}  // namespace headlane::reference

#endif  // HEADLANE_SRC_REFERENCE_ERROR_BOUND_H_
