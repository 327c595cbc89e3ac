// Counts and fails the allocations of a test program: the heap's, on all threads, and (but under sanitizers) memory
// mapped by the program.
//
// Linked into the program that asks for it; replaces malloc and its family there, so that operator new and the C
// library are seen too. Under sanitizers, whose heap can't be replaced, it counts through their hooks and can't fail
// anything.
#ifndef HEADLANE_TESTS_KV_ALLOCATION_HOOKS_H_
#define HEADLANE_TESTS_KV_ALLOCATION_HOOKS_H_

#include <cstdint>

namespace headlane::internal {

// Allocations of all threads since the program started.
int64_t NumAllocations() noexcept;

// Allocations made and not yet given back, if CanFailAllocations().
int64_t NumLiveAllocations() noexcept;

// False under sanitizers.
bool CanFailAllocations() noexcept;

// The n-th allocation of this thread from now on fails (1: the next); 0: none. Requires CanFailAllocations().
void FailAllocation(int64_t n) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_TESTS_KV_ALLOCATION_HOOKS_H_
