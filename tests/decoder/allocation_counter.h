// Counts what the program has allocated with operator new: live bytes and their peak.
//
// Replaces the global operators, so it is included by exactly one file of a test program. PCRE2 allocates with malloc
// and is not counted; it gets no lengths from files.
#ifndef HEADLANE_TESTS_DECODER_ALLOCATION_COUNTER_H_
#define HEADLANE_TESTS_DECODER_ALLOCATION_COUNTER_H_

#include <malloc.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace headlane::testing {

// Of one thread.
struct AllocationCounter {
  static inline thread_local size_t live = 0;
  static inline thread_local size_t peak = 0;
  static inline thread_local size_t calls = 0;

  // Peak bytes and number of calls count from here.
  static void Restart() {
    peak = live;
    calls = 0;
  }
  static void Add(void* block) {
    live += malloc_usable_size(block);
    ++calls;
    if (live > peak) peak = live;
  }
};

}  // namespace headlane::testing

void* operator new(size_t size) {
  void* block = std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) throw std::bad_alloc();
  headlane::testing::AllocationCounter::Add(block);
  return block;
}
void operator delete(void* block) noexcept {
  if (block != nullptr) headlane::testing::AllocationCounter::live -= malloc_usable_size(block);
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }

#endif  // HEADLANE_TESTS_DECODER_ALLOCATION_COUNTER_H_
