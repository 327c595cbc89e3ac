// How far the library's f32 result may be from the oracle's: a bound derived from the order of operations, for each output on its own.
//
// Let u = 2^-24 be half an ulp of 1; a rounded operation errs by at most u relative to its result. First order in u throughout; the terms of
// higher order are covered by kSafety.
//
// Score. q' = q * scale: 1 rounding; the chain of qk_dim fma: at most qk_dim roundings, each of a partial sum below
//   A = scale * sum_d |q[d] k[d]|:                                     ds <= (qk_dim + 1) u A
//   softcap: s / cap and cap * tanh(): one rounding each, tanh kTanhMaxUlp (2 u each), slope at most 1:   ds += (2 + 2 * 3) u |s|
//   bias: one rounding; ALiBi: one fma:                                ds += u |s + bias|, ds += u |s|
// Weight. The running maxima m0 <= m1 <= ... <= m under which a key's weight is formed and rescaled are floats, whose errors cancel between
//   numerator and denominator. The differences s - m0, m0 - m1, ... add up to s - m; each is rounded once, and exp turns an absolute error into
//   a relative one:                                                    u |s - m|
//   exp kExpMaxUlp (2 u each) and one product with it, at the key itself, at most once per block of its split, and per fold:
//                                                                      (2 * 1.2 + 1) u * (1 + blocks + splits)
// Sums. o: one fma per key of the split and one per fold. l: one addition per 16 keys of the split, 4 in the tree, one per fold.
// With p = weight / l, E = the relative error of a weight by the above, summed over the visible keys:
//   |d out| <= sum p |v| (E + fma of o * u) + |out| * (sum p E + additions of l * u) + u |out|        the last for the division
//   |d lse| <= sum p E + additions of l * u + 2 * kLnMaxUlp u |ln l| + u |lse|
// Underflow: a weight below 2^-126 may become 0, and products may be subnormal:  + kv_len 2^-126 max |v| (and + kv_len 2^-126 for lse)
//
// Real errors are far below, since roundings cancel and partial sums are smaller than A; tests pin the ratio that is observed as well.
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
