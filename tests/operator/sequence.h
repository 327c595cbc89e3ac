// Problems with their data: what the operator's tests feed to the reference and, through runner.h, to the library.
#ifndef HEADLANE_TESTS_OPERATOR_SEQUENCE_H_
#define HEADLANE_TESTS_OPERATOR_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "headlane/dtype.h"
#include "reference/problem.h"
#include "reference/quantize.h"
#include "support/random.h"

namespace headlane::testing {

// Heads and widths: what the sequences of one call share.
struct Heads {
  int64_t num_q_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t qk_dim = 1;
  int64_t v_dim = 1;
};

// What a row may see, and the cap of its scores; shared, too.
struct Sight {
  reference::Causal causal = reference::Causal::kBottomRight;
  int64_t window = -1;
  int64_t window_right = -1;
  int64_t num_always_visible = 0;
  int64_t chunk = 0;
  float softcap = 0.0f;
};

// A problem with its data. Copies share the data.
struct Sequence {
  reference::Problem problem;
  std::shared_ptr<std::vector<float>> q, k, v;
  bool values_in_keys = false;  // v is k, whose first v_dim columns are the values
  std::shared_ptr<std::vector<float>> bias, slopes, sinks;
  std::shared_ptr<std::vector<uint8_t>> mask, tree;

  // Query rows [begin, end) over the first kv_len keys. Not of a tree.
  Sequence Rows(int64_t begin, int64_t end, int64_t kv_len) const;

  // Attach what problems may have beside numbers. Several sequences may share one bias, mask, slopes, sinks; a call
  // broadcasts what they share and what has stride 0.
  void SetBias(std::shared_ptr<std::vector<float>> data, int64_t head_stride, int64_t row_stride);
  void SetMask(std::shared_ptr<std::vector<uint8_t>> data, int64_t head_stride, int64_t row_stride);
  void SetSlopes(std::shared_ptr<std::vector<float>> data);
  void SetSinks(std::shared_ptr<std::vector<float>> data);
  void SetTree(std::vector<uint8_t> data);  // [q_len][q_len]
};

// Random q, k, v in [-1, 1), the default scale.
Sequence RandomSequence(Random& random, const Heads& heads, const Sight& sight, int64_t q_len, int64_t kv_len);

// The trick q = 0, v[j] = j: the output is the mean of the visible key positions, one number that shows which keys were
// seen.
Sequence PositionSequence(const Sight& sight, int64_t q_len, int64_t kv_len, const Heads& heads = {});

// The same queries and keys; the values are the first columns of the keys. Requires v_dim <= qk_dim.
Sequence WithValuesInKeys(const Sequence& sequence);
// The same numbers with values of their own.
Sequence WithSeparateValues(const Sequence& sequence);

// Each element replaced by the nearest number of a type, in place, so that storing it as that type changes nothing.
void RoundAll(std::vector<float>& data, DType dtype);
reference::OutType OutTypeOf(DType dtype);
// The same for rows of `dim` numbers, which quantised types store with what they have in common.
void RoundRows(std::vector<float>& rows, DType dtype, int64_t dim);
reference::QuantizedType QuantizedTypeOf(DType dtype);

// Rows of a random tree of drafted tokens, parents before children, each row sees its ancestors and itself.
std::vector<uint8_t> RandomTree(Random& random, int64_t num_drafted);

// A few words about a problem, for SCOPED_TRACE.
std::string Describe(const reference::Problem& problem);

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_OPERATOR_SEQUENCE_H_
