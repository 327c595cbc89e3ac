// The exponential and the softmax step out of the kernels' table, on data in L1. Inner interfaces: no public call is
// this small.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "bench/memory_block.h"
#include "bench/session.h"
#include "bench/source.h"
#include "kernels/kernel_api.h"

namespace headlane::bench {
namespace {

using internal::ActiveKernels;
using internal::kBlockKeys;
using internal::kTileKeys;
using internal::kTilesPerBlock;

constexpr int64_t kNumbers = 4096;

std::vector<float> Exponents() {
  std::vector<float> x = RandomFloats(kNumbers, 7);
  for (float& value : x) value = -10.0f * std::abs(value);
  return x;
}

void Libm(const float* x, int64_t n, float* y) noexcept {
  for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i]);
}

using Function = void (*)(const float* x, int64_t n, float* y) noexcept;

void RunExp(Session& session, benchmark::State& state, const Case& entry, Function function) {
  const std::vector<float> x = Exponents();
  std::vector<float> y(x.size());
  function(x.data(), kNumbers, y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(static_cast<double>(x[i]));
    constexpr double kMaxRelativeError = 0x1p-22;
    if (!(std::abs(y[i] - expected) <= kMaxRelativeError * expected)) {
      state.SkipWithError("wrong exponential");
      return;
    }
  }
  const double seconds = session.Time(state, entry, [&] {
    function(x.data(), kNumbers, y.data());
    benchmark::ClobberMemory();
    return OkStatus();
  });
  if (seconds > 0) state.counters[kItemsPerSecond] = static_cast<double>(kNumbers) / seconds / 1e9;
}

// One block of keys for `rows` rows with fresh scores each time: copying them in is a part of what is timed.
void RunSoftmax(Session& session, benchmark::State& state, const Case& entry, int64_t rows) {
  const size_t n = static_cast<size_t>(rows * kBlockKeys);
  const std::vector<float> scores = RandomFloats(static_cast<int64_t>(n), 8);
  // [rows][kBlockKeys], [rows][kTileKeys], [rows], [rows], each aligned as kernels want it.
  MemoryBlock block;
  const int64_t padded_rows = internal::RoundUp(rows, kTileKeys);
  const int64_t num_floats = static_cast<int64_t>(n) + (kTileKeys + 2) * padded_rows;
  if (!block.Allocate(num_floats * 4)) {
    state.SkipWithError("no memory");
    return;
  }
  float* const s = block.floats();
  float* const l = s + n;
  float* const m = l + kTileKeys * padded_rows;
  float* const c = m + padded_rows;
  const std::vector<int32_t> begin(static_cast<size_t>(rows), 0), end(static_cast<size_t>(rows), kBlockKeys);
  internal::SoftmaxArgs args{};
  args.s = s;
  args.rows = rows;
  args.num_tiles = kTilesPerBlock;
  args.begin = begin.data();
  args.end = end.data();
  args.m = m;
  args.l = l;
  args.c = c;
  const auto step = [&] {
    std::copy(scores.begin(), scores.end(), s);
    std::fill_n(m, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(l, rows * kTileKeys, 0.0f);
    ActiveKernels().softmax.softmax(args);
    benchmark::ClobberMemory();
    return OkStatus();
  };
  (void)step();
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = scores.begin() + row * kBlockKeys;
    const double max = *std::max_element(first, first + kBlockKeys);
    for (int64_t i = 0; i < kBlockKeys; ++i) {
      const double expected = std::exp(first[i] - max);
      constexpr double kMaxRelativeError = 0x1p-21;
      if (!(std::abs(s[row * kBlockKeys + i] - expected) <= kMaxRelativeError * expected)) {
        state.SkipWithError("wrong weights");
        return;
      }
    }
  }
  const double seconds = session.Time(state, entry, step);
  if (seconds > 0) state.counters[kItemsPerSecond] = static_cast<double>(n) / seconds / 1e9;
}

Case MathCase(const std::string& task, const std::string& variant) {
  Case entry;
  entry.variant = variant;
  entry.name = task + "/" + variant + "/threads:1";
  entry.task = entry.series = task + "/threads:1";
  return entry;
}

}  // namespace

void RegisterMath(Session& session) {
  const auto add_exp = [&](const char* variant, Function function) {
    session.Register(
        MathCase("exp/" + std::to_string(kNumbers), variant), /*quick=*/true, /*once=*/false,
        [&session, function](benchmark::State& state, const Case& entry) { RunExp(session, state, entry, function); });
  };
  if (session.options().baselines) add_exp("naive", Libm);
  add_exp("any", ActiveKernels().softmax.exp);
  add_exp("nonpositive", ActiveKernels().softmax.exp_nonpositive);
  for (const int64_t rows : {1, 4, 32}) {
    session.Register(
        MathCase("softmax/rows:" + std::to_string(rows), "block"), /*quick=*/rows != 4, /*once=*/false,
        [&session, rows](benchmark::State& state, const Case& entry) { RunSoftmax(session, state, entry, rows); });
  }
}

}  // namespace headlane::bench
