#include "base/aligned_buffer.h"

#include <new>
#include <utility>

#include "base/checked_math.h"

#if defined(__unix__) || defined(__APPLE__)
#define HEADLANE_HAS_MMAP 1
#include <sys/mman.h>
#include <unistd.h>
#else
#define HEADLANE_HAS_MMAP 0
#endif

namespace headlane::internal {
namespace {

Status NoMemory(const char* what, int64_t bytes) {
  return MakeStatus(StatusCode::kResourceExhausted, "%s: the system has no %lld bytes of memory", what,
                    static_cast<long long>(bytes));
}

#if HEADLANE_HAS_MMAP
int64_t SystemPageBytes() {
  const long bytes = sysconf(_SC_PAGESIZE);
  return bytes > 0 ? bytes : 4096;
}
#endif

}  // namespace

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    Free();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mapping_ = std::exchange(other.mapping_, nullptr);
    mapping_bytes_ = std::exchange(other.mapping_bytes_, 0);
  }
  return *this;
}

AlignedBuffer::~AlignedBuffer() { Free(); }

#if HEADLANE_HAS_MMAP

// Mapped rather than taken from the heap: untouched whatever the heap held before, a plain error for absurd sizes even
// where a sanitizer's heap would abort, and room for the guard.
Result<AlignedBuffer> AlignedBuffer::Create(int64_t bytes, const char* what) noexcept {
  AlignedBuffer buffer;
  if (bytes == 0) return buffer;
  const int64_t system_page = SystemPageBytes();
  const bool huge = bytes >= kHugePageBytes;
  int64_t usable = 0;
  int64_t mapping_bytes = 0;
  if (bytes < 0 || !CheckedRoundUp(bytes, system_page, &usable) || !CheckedAdd(usable, system_page, &mapping_bytes) ||
      !CheckedAdd(mapping_bytes, huge ? kHugePageBytes : 0, &mapping_bytes)) {
    return NoMemory(what, bytes);
  }
  void* const mapping =
      mmap(nullptr, static_cast<size_t>(mapping_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return NoMemory(what, bytes);
  buffer.mapping_ = mapping;
  buffer.mapping_bytes_ = mapping_bytes;
  buffer.bytes_ = bytes;
  buffer.data_ = static_cast<std::byte*>(mapping);
  if (huge) {
    const int64_t misalignment = static_cast<int64_t>(reinterpret_cast<uintptr_t>(mapping) % kHugePageBytes);
    buffer.data_ += misalignment == 0 ? 0 : kHugePageBytes - misalignment;
#if defined(MADV_HUGEPAGE)
    // Advice: where it is refused, small pages serve as well.
    (void)madvise(buffer.data_, static_cast<size_t>(usable), MADV_HUGEPAGE);
#endif
  }
  // The guard is a help in finding defects; where the system has no room for one more mapping, the block is good
  // without it.
  (void)mprotect(buffer.data_ + usable, static_cast<size_t>(system_page), PROT_NONE);
  return buffer;
}

void AlignedBuffer::Free() noexcept {
  if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(mapping_bytes_));
  mapping_ = nullptr;
}

#else

Result<AlignedBuffer> AlignedBuffer::Create(int64_t bytes, const char* what) noexcept {
  AlignedBuffer buffer;
  if (bytes == 0) return buffer;
  constexpr std::align_val_t kAlignment{4096};
  if (bytes < 0 || static_cast<uint64_t>(bytes) > SIZE_MAX) return NoMemory(what, bytes);
  buffer.mapping_ = ::operator new(static_cast<size_t>(bytes), kAlignment, std::nothrow);
  if (buffer.mapping_ == nullptr) return NoMemory(what, bytes);
  buffer.mapping_bytes_ = bytes;
  buffer.bytes_ = bytes;
  buffer.data_ = static_cast<std::byte*>(buffer.mapping_);
  return buffer;
}

void AlignedBuffer::Free() noexcept {
  ::operator delete(mapping_, std::align_val_t{4096});
  mapping_ = nullptr;
}

#endif

}  // namespace headlane::internal
