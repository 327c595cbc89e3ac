// The caller's floating-point environment neither changes results nor is changed, on any thread (F51).
#include "base/fp_environment.h"

#include <fenv.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "exec/naive_attention.h"
#include "exec/parallel_for.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace headlane {
namespace {

using testing::CachedBatch;
using testing::MakeBatch;
using testing::Outputs;
using testing::TestBatch;

// Control and status together: MXCSR, or FPCR and FPSR.
uint64_t Registers() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t fpcr, fpsr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  asm volatile("mrs %0, fpsr" : "=r"(fpsr));
  return fpcr << 32 | fpsr;
#else
  return static_cast<uint64_t>(fegetround()) << 32 | static_cast<uint64_t>(fetestexcept(FE_ALL_EXCEPT));
#endif
}

// Rounds downwards, flushes denormals where the machine can, and has a status flag raised and others not.
class OddEnvironment {
 public:
  OddEnvironment() {
    fegetenv(&saved_);
    fesetround(FE_DOWNWARD);
    feclearexcept(FE_ALL_EXCEPT);
    feraiseexcept(FE_DIVBYZERO);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);  // flush-to-zero, denormals-are-zero
#elif defined(__aarch64__)
    uint64_t fpcr;
    asm volatile("mrs %0, fpcr" : "=r"(fpcr));
    asm volatile("msr fpcr, %0" : : "r"(fpcr | (uint64_t{1} << 24)));  // FZ
#endif
  }
  ~OddEnvironment() { fesetenv(&saved_); }

 private:
  fenv_t saved_;
};

// Not folded, and not moved across a change of the environment.
float Divide(float a, float b) {
  volatile float x = a, y = b;
  volatile float quotient = x / y;
  return quotient;
}
float Multiply(float a, float b) {
  volatile float x = a, y = b;
  volatile float product = x * y;
  return product;
}

TEST(FpEnvironment, IsTheDefaultInsideAndTheCallersOutside) {
  const float third = Divide(1, 3);
  const OddEnvironment odd;
  const uint64_t before = Registers();
  ASSERT_NE(Divide(1, 3), third) << "the test's environment is in force";
  feclearexcept(FE_ALL_EXCEPT);
  feraiseexcept(FE_DIVBYZERO);
  ASSERT_EQ(Registers(), before);
  float inside = 0, denormal = 0;
  internal::InDefaultFpEnvironment([&] {
    inside = Divide(1, 3);
    denormal = Multiply(std::numeric_limits<float>::min(), 0.5f);
    Divide(0, 0);  // raises a flag that nobody outside shall see
  });
  EXPECT_EQ(Registers(), before);
  EXPECT_EQ(inside, third);
  EXPECT_EQ(denormal, 0x1p-127f);
}

// Inputs that round, underflow and divide; a cut decode and a prefill.
const TestBatch& Batch() {
  static const TestBatch batch = [] {
    AttentionSpec spec;
    spec.num_q_heads = 4;
    spec.num_kv_heads = 2;
    spec.qk_dim = 24;
    spec.v_dim = 20;
    TestBatch b = MakeBatch(spec, {{1, 4000}, {50, 70}, {2, 0}}, 3);
    for (size_t i = 0; i < b.v.size(); i += 3) b.v[i] *= 1e-38f;
    for (size_t i = 0; i < b.q.size(); i += 7) b.q[i] *= 50.0f;
    return b;
  }();
  return batch;
}

// A pool whose threads have odd environments of their own; counts those that came back changed.
void OddThreads(void* pool, int num_workers, Executor::Task task, void* context) {
  std::vector<std::thread> threads;
  for (int i = 0; i < num_workers; ++i) {
    threads.emplace_back([=] {
      const OddEnvironment odd;
      const uint64_t before = Registers();
      task(context, i);
      *static_cast<std::atomic<int>*>(pool) += Registers() != before;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(FpEnvironment, PlanningAndRunningIgnoreTheCallersAndKeepIt) {
  const TestBatch& batch = Batch();
  Outputs expected(batch);
  ASSERT_TRUE(Attention(batch.spec, batch.sequences, batch.PlainArgs(expected.out.data(), expected.lse.data()),
                        SerialExecutor())
                  .ok());
  const CachedBatch cached(batch, 32);
  const float scale = DefaultScale(24);

  std::atomic<int> num_changed{0};
  CallbackExecutor odd_threads(&num_changed, 3, &OddThreads);
  const OddEnvironment odd;
  const uint64_t before = Registers();
  EXPECT_EQ(DefaultScale(24), scale);
  for (Executor* executor : {&SerialExecutor(), static_cast<Executor*>(&odd_threads)}) {
    Outputs plain(batch), from_cache(batch);
    const Status a =
        Attention(batch.spec, batch.sequences, batch.PlainArgs(plain.out.data(), plain.lse.data()), *executor);
    const Status b = Attention(batch.spec, cached.sequences,
                               cached.Args(batch, from_cache.out.data(), from_cache.lse.data()), *executor);
    const uint64_t after = Registers();
    EXPECT_EQ(after, before);
    EXPECT_TRUE(a.ok() && b.ok());
    EXPECT_TRUE(expected.SameBits(plain));
    EXPECT_TRUE(expected.SameBits(from_cache));
  }
  EXPECT_EQ(num_changed, 0);
}

TEST(FpEnvironment, ParallelForIsInTheDefaultOne) {
  const float third = Divide(1, 3);
  const OddEnvironment odd;
  float seen[3] = {0, 0, 0};
  internal::ParallelFor(SerialExecutor(), 3, 1, [&](int64_t begin, int64_t) { seen[begin] = Divide(1, 3); });
  for (const float x : seen) EXPECT_EQ(x, third);
}

#if defined(__x86_64__) && defined(__GLIBC__)
TEST(FpEnvironment, TrapsOfTheCallerDoNotFire) {
  const TestBatch& batch = Batch();
  fenv_t saved;
  fegetenv(&saved);
  feclearexcept(FE_ALL_EXCEPT);
  feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
  Outputs outputs(batch);
  const Status status =
      Attention(batch.spec, batch.sequences, batch.PlainArgs(outputs.out.data(), outputs.lse.data()), SerialExecutor());
  fesetenv(&saved);
  EXPECT_TRUE(status.ok()) << status.c_str();
}
#endif

}  // namespace
}  // namespace headlane
