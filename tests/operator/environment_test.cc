// The floating-point environment belongs to the caller: engines flush subnormals to zero, on some threads only, and may
// round as they like. Whatever it is, results have the same bits, and it is the same afterwards on every thread.
#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <cstdint>
#include <thread>
#include <vector>

#include "operator/check.h"
#include "operator/runner.h"

#if HEADLANE_WITH_OPENMP
#include <omp.h>
#endif

namespace headlane::testing {
namespace {

// The control register that holds flush-to-zero and the rounding mode.
#if defined(__x86_64__) || defined(__i386__)
using Control = uint32_t;
constexpr Control kFlushBits = 0x8040;  // FTZ and DAZ
constexpr Control kExceptionFlags = 0x3F;
constexpr Control kRoundUp = 0x4000;
Control ReadControl() { return __builtin_ia32_stmxcsr() & ~kExceptionFlags; }
void WriteControl(Control value) { __builtin_ia32_ldmxcsr(value); }
#elif defined(__aarch64__)
using Control = uint64_t;
constexpr Control kFlushBits = Control{1} << 24;
constexpr Control kRoundUp = Control{1} << 22;
Control ReadControl() {
  Control value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void WriteControl(Control value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
using Control = int;
constexpr Control kFlushBits = 0;
constexpr Control kRoundUp = 0;
Control ReadControl() { return std::fegetround(); }
void WriteControl(Control value) { std::fesetround(value); }
#endif

// Restores the register at the end of a scope.
class ScopedControl {
 public:
  explicit ScopedControl(Control extra) : before_(ReadControl()) { WriteControl(before_ | extra); }
  ~ScopedControl() { WriteControl(before_); }

 private:
  Control before_;
};

// Subnormals on the way and at the end, and roundings in every step.
Sequence Delicate() {
  Random random(77);
  Sequence s = RandomSequence(random, {4, 2, 12, 20}, {}, 30, 1500);
  for (size_t i = 0; i < s.v->size(); ++i) {
    // By feature, so that nothing larger hides them.
    if (i % 20 % 3 == 0) (*s.v)[i] *= 1e-39f;
    if (i % 20 % 3 == 1) (*s.v)[i] *= 0x1p-120f;
  }
  for (size_t i = 0; i < s.k->size(); i += 12) (*s.k)[i] *= 1e-39f;
  for (size_t i = 0; i < s.q->size(); ++i) (*s.q)[i] *= i % 7 == 0 ? 60.0f : 1.0f;
  return s;
}

const std::vector<Control> kSettings = {kFlushBits, kRoundUp, kFlushBits | kRoundUp};

TEST(FpEnvironment, TheSettingsAreReal) {
  // volatile: computed now, not by the compiler.
  volatile float one = 1.0f;
  volatile float small = 0x1p-30f;
  volatile float tiny = 0x1p-126f;
  {
    const ScopedControl scope(kRoundUp);
    one = one + small;
  }
  {
    const ScopedControl scope(kFlushBits);
    tiny = tiny * 0.5f;
  }
  EXPECT_EQ(one, kRoundUp != 0 ? 1.0f + 0x1p-23f : 1.0f) << "rounding upwards did not arrive";
  EXPECT_EQ(tiny, kFlushBits != 0 ? 0.0f : 0x1p-127f) << "flush to zero did not arrive";
}

TEST(FpEnvironment, BitsAndRegisterOnTheCallingThread) {
  const Sequence s = Delicate();
  const Output expected = RunLibrary(s);
  ASSERT_TRUE(NearOracle(s.problem, expected));
  for (Control setting : kSettings) {
    for (bool cache : {false, true}) {
      RunOptions options;
      options.cache = cache;
      Output output;
      Control after = 0;
      const Control before = ReadControl() | setting;
      {
        // Planning and appending happen in it as well.
        const ScopedControl scope(setting);
        output = RunLibrary(s, options);
        after = ReadControl();
      }
      EXPECT_EQ(before, after) << "setting " << setting;
      EXPECT_TRUE(SameOutput(expected, output)) << "setting " << setting << " cache " << cache;
    }
  }
}

TEST(FpEnvironment, DefaultScale) {
  const float expected = DefaultScale(80);
  const ScopedControl scope(kRoundUp);
  for (int64_t dim = 1; dim < 300; ++dim) {
    const float in_scope = DefaultScale(dim);
    WriteControl(ReadControl() & ~kRoundUp);
    const float outside = DefaultScale(dim);
    WriteControl(ReadControl() | kRoundUp);
    EXPECT_TRUE(SameBits(outside, in_scope)) << dim;
  }
  EXPECT_TRUE(SameBits(expected, DefaultScale(80)));
}

// Each worker thread has a setting of its own.
class UnevenThreads final : public Executor {
 public:
  int num_workers() const noexcept override { return 4; }
  void Run(int num_workers, Task task, void* context) noexcept override {
    std::vector<std::thread> threads;
    for (int i = 0; i < num_workers; ++i) {
      threads.emplace_back([this, task, context, i] {
        const ScopedControl scope(kSettings[static_cast<size_t>(i) % kSettings.size()]);
        const Control before = ReadControl();
        task(context, i);
        if (ReadControl() != before) changed_ = true;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  bool changed() const { return changed_; }

 private:
  std::atomic<bool> changed_{false};
};

TEST(FpEnvironment, EveryThreadItsOwn) {
  const Sequence s = Delicate();
  const Output expected = RunLibrary(s);
  UnevenThreads executor;
  for (bool cache : {false, true}) {
    RunOptions options;
    options.executor = &executor;
    options.plan_workers = 4;
    options.cache = cache;
    EXPECT_TRUE(SameOutput(expected, RunLibrary(s, options)));
    EXPECT_FALSE(executor.changed());
  }
}

#if HEADLANE_WITH_OPENMP
constexpr int kThreads = 3;

// What each thread of the runtime has in a region of its own.
std::vector<Control> ControlsOfOpenMPThreads() {
  std::vector<Control> controls(kThreads);
#pragma omp parallel num_threads(kThreads)
  controls[static_cast<size_t>(omp_get_thread_num())] = ReadControl();
  return controls;
}

// GNU's OpenMP keeps threads and their registers from region to region; LLVM's copies the caller's register at each.
TEST(FpEnvironment, OpenMPThreads) {
  const Sequence s = Delicate();
  const Output expected = RunLibrary(s);
  OpenMPExecutor executor(kThreads);
  RunOptions options;
  options.executor = &executor;
  options.plan_workers = kThreads;
  for (Control callers : kSettings) {
    const ScopedControl scope(callers);
#pragma omp parallel num_threads(kThreads)
    {
      const size_t t = static_cast<size_t>(omp_get_thread_num());
      if (t > 0) WriteControl(ReadControl() | kSettings[t % kSettings.size()]);
    }
    const std::vector<Control> before = ControlsOfOpenMPThreads();
    const Output output = RunLibrary(s, options);
    EXPECT_EQ(before, ControlsOfOpenMPThreads());
    EXPECT_EQ(before[0] & callers, callers);
    EXPECT_TRUE(SameOutput(expected, output));
#pragma omp parallel num_threads(kThreads)
    WriteControl(ReadControl() & ~(kFlushBits | kRoundUp));
  }
}
#endif

}  // namespace
}  // namespace headlane::testing
