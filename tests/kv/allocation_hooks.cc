#include "kv/allocation_hooks.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEADLANE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define HEADLANE_SANITIZED 1
#endif
#endif

#ifndef HEADLANE_SANITIZED
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headlane::internal {
namespace {

std::atomic<int64_t> num_allocations{0};
std::atomic<int64_t> num_live{0};
// Allocations that this thread still has until one fails; 0: none will.
thread_local int64_t until_failure = 0;

[[maybe_unused]] bool MayAllocate() {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (until_failure == 0 || --until_failure != 0) return true;
  errno = ENOMEM;  // as malloc says it, and callers of the C library hear it
  return false;
}

[[maybe_unused]] void* Counted(void* memory) {
  if (memory != nullptr) num_live.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

}  // namespace

int64_t NumAllocations() noexcept { return num_allocations.load(std::memory_order_relaxed); }
int64_t NumLiveAllocations() noexcept { return num_live.load(std::memory_order_relaxed); }
void FailAllocation(int64_t n) noexcept { until_failure = n; }

#ifdef HEADLANE_SANITIZED

extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                                         void (*free_hook)(const volatile void*));

bool CanFailAllocations() noexcept { return false; }

namespace {
void OnMalloc(const volatile void*, size_t) { num_allocations.fetch_add(1, std::memory_order_relaxed); }
void OnFree(const volatile void*) {}
[[maybe_unused]] const int installed = __sanitizer_install_malloc_and_free_hooks(OnMalloc, OnFree);
}  // namespace

#else

bool CanFailAllocations() noexcept { return true; }

// glibc's own entry points, which stay when malloc is replaced.
extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* __libc_realloc(void*, size_t);
extern "C" void* __libc_memalign(size_t, size_t);
extern "C" void __libc_free(void*);

#endif

}  // namespace headlane::internal

#ifndef HEADLANE_SANITIZED

namespace hooks = headlane::internal;

extern "C" {

void* malloc(size_t size) { return hooks::MayAllocate() ? hooks::Counted(hooks::__libc_malloc(size)) : nullptr; }

void* calloc(size_t count, size_t size) {
  return hooks::MayAllocate() ? hooks::Counted(hooks::__libc_calloc(count, size)) : nullptr;
}

void* realloc(void* memory, size_t size) {
  if (!hooks::MayAllocate()) return nullptr;
  void* const result = hooks::__libc_realloc(memory, size);
  return memory == nullptr ? hooks::Counted(result) : result;
}

void* memalign(size_t alignment, size_t size) {
  return hooks::MayAllocate() ? hooks::Counted(hooks::__libc_memalign(alignment, size)) : nullptr;
}

void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void** memory, size_t alignment, size_t size) {
  *memory = memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

void free(void* memory) {
  if (memory == nullptr) return;
  hooks::num_live.fetch_sub(1, std::memory_order_relaxed);
  hooks::__libc_free(memory);
}

void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  if (!hooks::MayAllocate()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  const long result = syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
  if (result == -1) return MAP_FAILED;
  return hooks::Counted(reinterpret_cast<void*>(result));
}

int munmap(void* address, size_t bytes) noexcept {
  hooks::num_live.fetch_sub(1, std::memory_order_relaxed);
  return static_cast<int>(syscall(SYS_munmap, address, bytes));
}

}  // extern "C"

#endif
