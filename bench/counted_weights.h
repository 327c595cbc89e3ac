// The kernels of linear layers on stored weights, as cases to be counted.
//
// Separate from instruction_count.cc, whose cases have a block of keys as their operands.
#ifndef HEADLANE_BENCH_COUNTED_WEIGHTS_H_
#define HEADLANE_BENCH_COUNTED_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/counted_case.h"
#include "headlane/weight_format.h"
#include "kernels/kernel_api.h"

namespace headlane::bench {

// Its cases refer to it. Their unit is 16 outputs x 32 inputs, of one row; of `int8_quantize`, 32 inputs.
class CountedWeights {
 public:
  explicit CountedWeights(const internal::KernelTable& table);
  CountedWeights(const CountedWeights&) = delete;
  CountedWeights& operator=(const CountedWeights&) = delete;

  // One format for each source file.
  void AddTo(std::vector<Case>* cases);

 private:
  void AddFormat(WeightFormat format, std::vector<Case>* cases);
  void AddInt8(WeightFormat format, std::vector<Case>* cases);
  void FewRows(WeightFormat format, int64_t rows);
  void Expand(void (*expand)(const internal::ExpandArgs&) noexcept);
  void Quantize();
  // Of one run: what both kinds of kernel read.
  internal::Int8Args ArgsOf(const internal::Int8Kernels& kernels, int64_t rows);
  void OneRow(WeightFormat format);
  void RowsOfPanel(WeightFormat format);
  const uint8_t* tiles() { return reinterpret_cast<const uint8_t*>(tiles_.data()); }

  const internal::KernelTable& table_;
  internal::Int8Rows quantized_;
  Floats x_, tiles_, panel_, y_, codes_, pairs_, groups_;
};

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_COUNTED_WEIGHTS_H_
