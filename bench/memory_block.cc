#include "bench/memory_block.h"

#include <sys/mman.h>

#include <fstream>
#include <limits>
#include <string>

namespace headlane::bench {

bool MemoryBlock::Allocate(int64_t bytes) {
  Free();
  if (bytes == 0) return true;
  constexpr int64_t kAlignment = int64_t{2} << 20;
  if (bytes < 0 || bytes > std::numeric_limits<int64_t>::max() - kAlignment) return false;
  const int64_t mapping_bytes = bytes + kAlignment;
  void* mapping =
      mmap(nullptr, static_cast<size_t>(mapping_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return false;
  mapping_ = mapping;
  mapping_bytes_ = mapping_bytes;
  const uintptr_t start = (reinterpret_cast<uintptr_t>(mapping) + kAlignment - 1) / kAlignment * kAlignment;
  data_ = reinterpret_cast<void*>(start);
  bytes_ = bytes;
#if defined(MADV_HUGEPAGE)
  (void)madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice: small pages serve as well
#endif
  return true;
}

void MemoryBlock::Free() {
  if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(mapping_bytes_));
  mapping_ = data_ = nullptr;
  mapping_bytes_ = bytes_ = 0;
}

int64_t AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kField = "MemAvailable:";
    if (line.rfind(kField, 0) == 0) return std::stoll(line.substr(kField.size())) * 1024;
  }
  return std::numeric_limits<int64_t>::max();
}

}  // namespace headlane::bench
