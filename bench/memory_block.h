// Memory as the benchmarks want it: aligned, with huge pages where the system has them, and an answer instead of an
// exception when there is none.
//
// Separate from the library's own buffers, which the benchmarks don't depend on.
#ifndef HEADLANE_BENCH_MEMORY_BLOCK_H_
#define HEADLANE_BENCH_MEMORY_BLOCK_H_

#include <cstdint>

namespace headlane::bench {

class MemoryBlock {
 public:
  MemoryBlock() = default;
  ~MemoryBlock() { Free(); }
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

  // Replaces what it had by `bytes` >= 0 of zeros, aligned to 2 MiB, which take memory only where touched. False, and
  // empty then, when the system refuses.
  bool Allocate(int64_t bytes);
  void Free();

  float* floats() { return static_cast<float*>(data_); }
  const float* floats() const { return static_cast<const float*>(data_); }
  int64_t bytes() const { return bytes_; }
  void* bytes_at(int64_t offset) { return static_cast<char*>(data_) + offset; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  void* mapping_ = nullptr;
  int64_t mapping_bytes_ = 0;
};

// What the system could still give without taking from others; a large number where it does not tell.
int64_t AvailableMemoryBytes();

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_MEMORY_BLOCK_H_
