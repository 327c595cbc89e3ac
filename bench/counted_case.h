// What is counted: a call of a kernel, and memory for its operands.
//
// Separate from instruction_count.cc, which runs cases, and used by it and by counted_weights.cc, which has more of
// them.
#ifndef HEADLANE_BENCH_COUNTED_CASE_H_
#define HEADLANE_BENCH_COUNTED_CASE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/tile_layout.h"

namespace headlane::bench {

// Zeroed, and aligned as kernels want tiles and rows.
class Floats {
 public:
  explicit Floats(int64_t size) : memory_(static_cast<size_t>(size) + 16) {}
  float* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (internal::RoundUp(static_cast<int64_t>(address), internal::kTileAlignment) -
                             static_cast<int64_t>(address)) /
                                static_cast<int64_t>(sizeof(float));
  }
  void Fill(uint32_t seed) {
    for (float& x : memory_) {
      seed = seed * 1664525u + 1013904223u;
      x = static_cast<float>(static_cast<int32_t>(seed >> 8) - (1 << 23)) * (1.0f / (1 << 24));
    }
  }

 private:
  std::vector<float> memory_;
};

struct Case {
  std::string name;
  double units;  // of one call
  std::function<void()> call;
};

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_COUNTED_CASE_H_
