// Runs code in the default floating-point environment: round to nearest, denormals kept, exceptions masked.
//
// Engines set flush-to-zero, other rounding modes or traps, often on some of their threads only; the same bits on every
// thread need one environment. The work is a function behind a pointer because compilers move arithmetic across a write
// to the control register, which they take for unrelated. Called by whatever computes on a caller's thread: each worker
// of a run, planning, operators.
#ifndef HEADLANE_SRC_BASE_FP_ENVIRONMENT_H_
#define HEADLANE_SRC_BASE_FP_ENVIRONMENT_H_

#include <memory>
#include <type_traits>

namespace headlane::internal {

// Calls body(context) and gives the caller's environment back unchanged, status flags included. Costs a few
// nanoseconds. Threads: any.
void CallInDefaultFpEnvironment(void (*body)(void* context) noexcept, void* context) noexcept;

// The same for anything callable without arguments.
template <typename Function>
void InDefaultFpEnvironment(Function&& function) noexcept {
  using F = std::remove_reference_t<Function>;
  CallInDefaultFpEnvironment([](void* context) noexcept { (*static_cast<F*>(context))(); },
                             const_cast<std::remove_const_t<F>*>(std::addressof(function)));
}

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_FP_ENVIRONMENT_H_
