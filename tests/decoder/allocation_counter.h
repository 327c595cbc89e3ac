// Counts what the program has allocated with operator new: live bytes and their peak.
//
// allocation_counter.cc replaces the global operators: a test program that lists it counts. PCRE2 allocates with malloc
// and is not counted; it gets no lengths from files.
#ifndef HEADLANE_TESTS_DECODER_ALLOCATION_COUNTER_H_
#define HEADLANE_TESTS_DECODER_ALLOCATION_COUNTER_H_

#include <cstddef>

namespace headlane::testing {

// Of one thread.
struct AllocationCounter {
  static inline thread_local size_t live = 0;
  static inline thread_local size_t peak = 0;

  // The peak counts from here.
  static void Restart() { peak = live; }
};

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_DECODER_ALLOCATION_COUNTER_H_
