#include "base/fp_environment.h"

#include <cfenv>
#include <cfloat>
#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

#if defined(__FAST_MATH__)
#error "Headlane promises the same bits everywhere: -ffast-math can't be used"
#endif
static_assert(FLT_EVAL_METHOD == 0, "floats must be computed as floats");

namespace headlane::internal {
namespace {

#if defined(__x86_64__) || defined(_M_X64)

// SSE and AVX obey MXCSR alone. Its reset value masks all exceptions and has neither flush-to-zero nor
// denormals-are-zero. The x87 unit is not used by the library.
constexpr unsigned kDefaultMxcsr = 0x1F80;

class SavedEnvironment {
 public:
  SavedEnvironment() : mxcsr_(_mm_getcsr()) { _mm_setcsr(kDefaultMxcsr); }
  ~SavedEnvironment() { _mm_setcsr(mxcsr_); }

 private:
  unsigned mxcsr_;
};

#elif defined(__aarch64__)

// FPCR 0 is the default of the procedure call standard; writing it is slow on some cores, so only where it differs.
// FPSR holds the cumulative exception flags.
class SavedEnvironment {
 public:
  SavedEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(fpcr_));
    asm volatile("mrs %0, fpsr" : "=r"(fpsr_));
    if (fpcr_ != 0) asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
  }
  ~SavedEnvironment() {
    if (fpcr_ != 0) asm volatile("msr fpcr, %0" : : "r"(fpcr_) : "memory");
    asm volatile("msr fpsr, %0" : : "r"(fpsr_) : "memory");
  }

 private:
  uint64_t fpcr_;
  uint64_t fpsr_;
};

#else

class SavedEnvironment {
 public:
  SavedEnvironment() {
    std::fegetenv(&environment_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~SavedEnvironment() { std::fesetenv(&environment_); }

 private:
  std::fenv_t environment_;
};

#endif

}  // namespace

// Not inlined, or `body` could be, and its arithmetic could then move across the writes above.
[[gnu::noinline]] void CallInDefaultFpEnvironment(void (*body)(void* context) noexcept, void* context) noexcept {
  const SavedEnvironment saved;
  body(context);
}

}  // namespace headlane::internal
