// Medians and spreads of timings, and the clock they are taken with.
#ifndef HEADLANE_BENCH_STATISTICS_H_
#define HEADLANE_BENCH_STATISTICS_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace headlane::bench {

class Stopwatch {
 public:
  Stopwatch() : start_(std::chrono::steady_clock::now()) {}
  double Seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_;
};

// 0 for no values, in all of these.
inline double Maximum(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}
inline double Minimum(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
}

// The largest value that was reached at least twice: a single one far out is a fault of the clock or of a neighbour's
// absence, and no limit of the machine. The only one if there is one.
inline double ConfirmedMaximum(std::vector<double> values) {
  if (values.size() < 2) return Maximum(values);
  std::nth_element(values.begin(), values.begin() + 1, values.end(), std::greater<>());
  return values[1];
}

// The mean of the middle two for an even number.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// How far apart the repetitions are: (largest - smallest) / median.
inline double Spread(const std::vector<double>& values) {
  const double median = Median(values);
  return median == 0 ? 0 : (Maximum(values) - Minimum(values)) / median;
}

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_STATISTICS_H_
