// Test data from an integer generator: the same on every machine, with no libm and no <random> distribution in between.
#ifndef HEADLANE_TESTS_SUPPORT_RANDOM_H_
#define HEADLANE_TESTS_SUPPORT_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace headlane::testing {

// SplitMix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // In [low, high], both included.
  int64_t Int(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % (static_cast<uint64_t>(high - low) + 1));
  }

  bool OneIn(int64_t n) { return Int(0, n - 1) == 0; }

  // In [-1, 1), a multiple of 2^-23: exact in f32.
  float Float() { return static_cast<float>(static_cast<int64_t>(Next() >> 40) - (int64_t{1} << 23)) * 0x1p-23f; }

  void Fill(float* data, size_t n, float size = 1.0f) {
    for (size_t i = 0; i < n; ++i) data[i] = Float() * size;
  }

  std::vector<float> Floats(size_t n, float size = 1.0f) {
    std::vector<float> data(n);
    Fill(data.data(), n, size);
    return data;
  }

  template <typename T>
  const T& Pick(const std::vector<T>& values) {
    return values[static_cast<size_t>(Int(0, static_cast<int64_t>(values.size()) - 1))];
  }

  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<size_t>(Int(0, static_cast<int64_t>(i) - 1))]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_SUPPORT_RANDOM_H_
