#include "bench/limits.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "bench/limits_kernels.h"
#include "bench/memory_block.h"
#include "bench/statistics.h"
#include "bench/thread_team.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace headlane::bench {
namespace {

// Best first.
std::vector<const LimitKernels*> SupportedKernels() {
  std::vector<const LimitKernels*> kernels;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) kernels.push_back(&Avx512LimitKernels());
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) kernels.push_back(&Avx2LimitKernels());
#elif defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kHwcapSve = 1ul << 22;
  if ((getauxval(AT_HWCAP) & kHwcapSve) != 0) kernels.push_back(&SveLimitKernels());
#endif
  kernels.push_back(&BaselineLimitKernels());
  return kernels;
}

// Where results go, so that no loop is without effect. One per thread: no line travels between them.
thread_local volatile float sink;

// Rates of the repetitions of one loop.
struct Rates {
  double best = 0;
  double median = 0;
};

Rates MeasureMultiplyAdds(ThreadTeam& team, const LimitKernels& kernels, double seconds) {
  constexpr int kMinRepetitions = 10;
  int64_t iterations = 1 << 12;
  const auto run = [&] { return team.Run([&](int) { sink = kernels.multiply_add(iterations); }); };
  // Long enough that starting together does not count, and short enough that some repetitions are undisturbed.
  constexpr double kRepetitionSeconds = 0.002;
  while (run() < kRepetitionSeconds / 2) iterations *= 2;
  std::vector<double> rates;
  const double operations = 2.0 * kernels.lanes * kernels.chains * static_cast<double>(iterations) * team.size();
  for (double spent = 0; spent < seconds || std::ssize(rates) < kMinRepetitions;) {
    const double time = run();
    spent += time;
    rates.push_back(operations / time);
  }
  return {ConfirmedMaximum(rates), Median(rates)};
}

// Each thread reads its own part of the block, window after window, so that no window is read again before all the
// others were: no cache holds it then.
class MemoryReader {
 public:
  MemoryReader(int threads, const ReadProbe::Parallel& parallel, MemoryBlock& block, bool touch)
      : threads_(threads), parallel_(parallel), thread_floats_(RoundDown(block.bytes() / 4 / threads, kPageFloats)) {
    // Touched by those who read it, so that it lies near them.
    if (touch) {
      parallel_([&](int id) {
        float* part = block.floats() + id * thread_floats_;
        for (int64_t i = 0; i < thread_floats_; ++i) part[i] = static_cast<float>(i & 7);
      });
    }
    data_ = block.floats();
  }

  int64_t window() const { return window_; }
  void set_window(int64_t window) { window_ = window; }

  // Bytes per second of one window: an eighth of each thread's part.
  double Read(const ReadKernel& kernel) {
    const int64_t window_floats = RoundDown(thread_floats_ / kWindows, kPageFloats);
    const int64_t stride = RoundDown(window_floats / kernel.streams, kPageFloats);
    // A little less than the stride, so that streams don't meet in the same sets of the caches and the same banks.
    const int64_t part = RoundDown(stride - kPageFloats, kernel.step);
    const int64_t stagger = kLineFloats * 5;
    const int64_t offset = window_ * window_floats;
    window_ = (window_ + 1) % kWindows;
    const double seconds =
        parallel_([&](int id) { sink = kernel.read(data_ + id * thread_floats_ + offset, stride - stagger, part); });
    return static_cast<double>(part) * 4 * kernel.streams * threads_ / seconds;
  }

 private:
  static constexpr int64_t kPageFloats = 1024;
  static constexpr int64_t kLineFloats = 16;
  static constexpr int64_t kWindows = 8;
  static int64_t RoundDown(int64_t a, int64_t b) { return a / b * b; }

  int threads_;
  const ReadProbe::Parallel& parallel_;
  int64_t thread_floats_;
  const float* data_ = nullptr;
  int64_t window_ = 0;
};

struct Read {
  const ReadKernel* kernel = nullptr;
  std::vector<double> rates;
};

bool BestFirst(const Read& a, const Read& b) { return ConfirmedMaximum(a.rates) > ConfirmedMaximum(b.rates); }

// All patterns twice: the best few.
std::vector<Read> BestReads(MemoryReader& reader, std::span<const ReadKernel> kernels) {
  constexpr int kPasses = 2;
  constexpr size_t kBest = 4;
  std::vector<Read> reads;
  for (const ReadKernel& kernel : kernels) {
    Read read{&kernel, {}};
    for (int i = 0; i < kPasses; ++i) read.rates.push_back(reader.Read(kernel));
    reads.push_back(std::move(read));
  }
  std::sort(reads.begin(), reads.end(), BestFirst);
  reads.resize(std::min(reads.size(), kBest));
  return reads;
}

// And these again and again.
Read MeasureReads(MemoryReader& reader, std::span<const ReadKernel> kernels, double seconds) {
  constexpr int kMinPasses = 4;
  std::vector<Read> reads = BestReads(reader, kernels);
  const Stopwatch watch;
  for (int pass = 0; pass < kMinPasses || watch.Seconds() < seconds; ++pass) {
    for (Read& read : reads) read.rates.push_back(reader.Read(*read.kernel));
  }
  std::sort(reads.begin(), reads.end(), BestFirst);
  return reads.front();
}

constexpr int64_t kLeastBufferBytes = int64_t{16} << 20;

// False when the system has not even the least.
bool AllocateAbout(MemoryBlock& block, int64_t bytes) {
  bytes = std::max(bytes, kLeastBufferBytes);
  while (!block.Allocate(bytes)) {
    if ((bytes /= 2) < kLeastBufferBytes) return false;
  }
  return true;
}

// Of the widest instruction set that has any.
std::span<const ReadKernel> SupportedReads(const std::vector<const LimitKernels*>& supported) {
  for (const LimitKernels* kernels : supported) {
    if (kernels->num_reads > 0) return {kernels->reads, static_cast<size_t>(kernels->num_reads)};
  }
  return {};
}

std::string Describe(const LimitKernels& kernels) {
  return std::string(kernels.name) + ", " + std::to_string(kernels.chains) + " chains of " +
         std::to_string(kernels.lanes) + " lanes";
}

std::string Describe(const LimitKernels& kernels, const ReadKernel& read) {
  std::string text = std::string(kernels.name) + ", " + std::to_string(read.streams) +
                     (read.streams == 1 ? " stream per thread" : " streams per thread");
  if (read.prefetch_bytes == 0) return text + ", no prefetch";
  text += ", prefetch " + std::to_string(read.prefetch_bytes) + " bytes ahead";
  return text + (std::string(read.hint) == "once" ? ", read once" : " to " + std::string(read.hint));
}

}  // namespace

MachineLimits MeasureLimits(int threads) { return MeasureLimits(threads, LimitsOptions()); }

MachineLimits MeasureLimits(int threads, const LimitsOptions& options) {
  ThreadTeam team(threads);
  MachineLimits limits;
  limits.threads = team.size();
  const std::vector<const LimitKernels*> supported = SupportedKernels();

  for (const LimitKernels* kernels : supported) {
    const Rates rates = MeasureMultiplyAdds(team, *kernels, options.fma_seconds);
    if (rates.best <= limits.fma_gflops * 1e9) continue;
    limits.fma_gflops = rates.best / 1e9;
    limits.fma_gflops_median = rates.median / 1e9;
    limits.fma_kernel = Describe(*kernels);
    limits.fma_lanes = kernels->lanes;
  }

  MemoryBlock block;
  if (!AllocateAbout(block, options.buffer_bytes)) return limits;
  limits.read_buffer_bytes = block.bytes();
  const ReadProbe::Parallel parallel = [&](const std::function<void(int)>& work) { return team.Run(work); };
  MemoryReader reader(team.size(), parallel, block, /*touch=*/true);
  const LimitKernels* widest = *std::find_if(supported.begin(), supported.end(),
                                             [](const LimitKernels* kernels) { return kernels->num_reads > 0; });
  const Read read = MeasureReads(reader, {widest->reads, static_cast<size_t>(widest->num_reads)}, options.read_seconds);
  limits.read_gbps = ConfirmedMaximum(read.rates) / 1e9;
  limits.read_gbps_median = Median(read.rates) / 1e9;
  limits.read_kernel = Describe(*widest, *read.kernel);
  return limits;
}

struct ReadProbe::State {
  MemoryBlock block;
  bool touched = false;
  int64_t window = 0;
  std::map<int, std::vector<Read>> best;  // by threads
};

ReadProbe::ReadProbe() : state_(std::make_unique<State>()) {
  (void)AllocateAbout(state_->block, LimitsOptions().buffer_bytes);  // else the figures are 0
}
ReadProbe::~ReadProbe() = default;

double ReadProbe::Gbps(int threads, const Parallel& parallel) {
  if (state_->block.bytes() == 0) return 0;
  MemoryReader reader(threads, parallel, state_->block, !state_->touched);
  state_->touched = true;
  reader.set_window(state_->window);
  std::vector<Read>& best = state_->best[threads];
  if (best.empty()) best = BestReads(reader, SupportedReads(SupportedKernels()));
  std::vector<double> rates;
  constexpr int kPasses = 2;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (const Read& read : best) rates.push_back(reader.Read(*read.kernel));
  }
  state_->window = reader.window();
  return ConfirmedMaximum(rates) / 1e9;
}

}  // namespace headlane::bench
