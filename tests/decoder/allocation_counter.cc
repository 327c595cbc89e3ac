#include "decoder/allocation_counter.h"

#include <malloc.h>

#include <cstdlib>
#include <new>

using headlane::testing::AllocationCounter;

void* operator new(size_t size) {
  void* block = std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) throw std::bad_alloc();
  AllocationCounter::live += malloc_usable_size(block);
  if (AllocationCounter::live > AllocationCounter::peak) AllocationCounter::peak = AllocationCounter::live;
  return block;
}

void operator delete(void* block) noexcept {
  if (block != nullptr) AllocationCounter::live -= malloc_usable_size(block);
  std::free(block);
}

void operator delete(void* block, size_t) noexcept { operator delete(block); }
