#include "kv/pool_memory.h"

#include <algorithm>
#include <atomic>

#include "base/blocking.h"
#include "base/tile_layout.h"

namespace headlane::internal {
namespace {

// At most what any system has as its page, so that none is left out.
constexpr int64_t kTouchBytes = 4096;

struct TouchTask {
  std::byte* data;
  int64_t bytes;
  std::atomic<int64_t> next{0};
};

// A chunk is what one huge page holds: two workers never share one.
void Touch(void* context, int) noexcept {
  auto& task = *static_cast<TouchTask*>(context);
  for (;;) {
    const int64_t begin = task.next.fetch_add(kHugePageBytes, std::memory_order_relaxed);
    if (begin >= task.bytes) return;
    const int64_t end = std::min(begin + kHugePageBytes, task.bytes);
    for (int64_t at = begin; at < end; at += kTouchBytes) {
      // A read alone would map a page of zeros that is nobody's.
      volatile auto* const byte = reinterpret_cast<volatile unsigned char*>(task.data + at);
      *byte = *byte;
    }
  }
}

}  // namespace

Result<PoolMemory> PoolMemory::Create(int64_t bytes) noexcept {
  PoolMemory memory;
  HEADLANE_ASSIGN_OR_RETURN(memory.own_, AlignedBuffer::Create(bytes, "KV cache pages"));
  memory.data_ = memory.own_.data();
  memory.bytes_ = bytes;
  return memory;
}

Result<PoolMemory> PoolMemory::Over(void* data, int64_t memory_bytes, int64_t bytes) noexcept {
  if (memory_bytes < bytes) {
    return MakeStatus(StatusCode::kInvalidArgument, "KVCacheSpec: memory_bytes is %lld, but %lld are needed",
                      static_cast<long long>(memory_bytes), static_cast<long long>(bytes));
  }
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(kTileAlignment));
  if (past != 0) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "KVCacheSpec: memory is %lld bytes past a multiple of %lld, must be at one",
                      static_cast<long long>(past), static_cast<long long>(kTileAlignment));
  }
  PoolMemory memory;
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

void PoolMemory::FirstTouch(Executor& executor) noexcept {
  TouchTask task{data_, bytes_, {}};
  const int64_t chunks = CeilDiv(bytes_, kHugePageBytes);
  executor.Run(static_cast<int>(std::clamp<int64_t>(chunks, 1, executor.num_workers())), &Touch, &task);
}

}  // namespace headlane::internal
