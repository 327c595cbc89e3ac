#include "operator/check.h"

#include <string>
#include <utility>
#include <vector>

namespace headlane::testing {
namespace {

using reference::Problem;

// Whether some row sees other keys, or sees one with another bias or distance, in the second problem.
bool Differ(const Problem& a, const Problem& b) {
  const int64_t heads = a.bias_head_stride != 0 || a.mask_head_stride != 0 ? a.num_q_heads : 1;
  for (int64_t row = 0; row < a.q_len; ++row) {
    for (int64_t key = 0; key < a.kv_len; ++key) {
      for (int64_t head = 0; head < heads; ++head) {
        const bool visible = Visible(a, head, row, key);
        if (visible != Visible(b, head, row, key)) return true;
        if (!visible) continue;
        if (Bias(a, head, row, key) != Bias(b, head, row, key)) return true;
        if (a.alibi_slopes != nullptr && RowPosition(a, row) != RowPosition(b, row)) return true;
      }
    }
  }
  return false;
}

std::vector<std::pair<std::string, Problem>> Shifted(const Problem& p) {
  std::vector<std::pair<std::string, Problem>> shifted;
  const auto add = [&](const char* name, int64_t Problem::* field, int64_t by) {
    shifted.emplace_back(std::string(name) + (by > 0 ? " + " : " - ") + std::to_string(std::abs(by)), p);
    shifted.back().second.*field += by;
  };
  for (int64_t by : {-1, 1}) {
    add("rows", &Problem::shift_rows, by);
    if (p.window > -by && p.window >= 0) add("window", &Problem::window, by);
    if (p.window_right >= 0 && p.window_right + by >= 0) add("window_right", &Problem::window_right, by);
    if (p.num_always_visible > 0) add("num_always_visible", &Problem::num_always_visible, by);
    if (p.chunk > 0 && p.chunk + by > 0) add("chunk", &Problem::chunk, by);
    if (p.prefix_len > 0) add("prefix_len", &Problem::prefix_len, by);
  }
  if (p.kv_len > 1 && (p.mask != nullptr || p.bias != nullptr || p.tree != nullptr))
    add("columns", &Problem::shift_columns, 1);
  return shifted;
}

}  // namespace

int64_t ExpectShiftedOracleDisagrees(const Problem& problem, const Output& output) {
  int64_t ways = 0;
  for (const auto& [name, shifted] : Shifted(problem)) {
    if (!Differ(problem, shifted)) continue;
    ++ways;
    EXPECT_FALSE(NearOracle(shifted, output)) << name << " is not noticed: " << Describe(problem);
  }
  return ways;
}

}  // namespace headlane::testing
