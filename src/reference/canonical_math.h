// The canonical exp, ln and tanh as scalar programs: what every SIMD target must reproduce bit for bit.
// Called by the canonical attention program and by tests. The derivations and error bounds stand in
// base/canonical_math.h.
#ifndef HEADLANE_SRC_REFERENCE_CANONICAL_MATH_H_
#define HEADLANE_SRC_REFERENCE_CANONICAL_MATH_H_

namespace headlane::reference {

// e^x for any x. Below kExpCutoff +0, above kExpOverflow +inf.
float CanonicalExp(float x);

// ln x for any x: -inf for +-0, NaN for x < 0.
float CanonicalLn(float x);

float CanonicalTanh(float x);

}  // namespace headlane::reference

#endif  // HEADLANE_SRC_REFERENCE_CANONICAL_MATH_H_
