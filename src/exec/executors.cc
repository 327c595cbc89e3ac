// The executor that needs nothing: the calling thread.
#include <new>

#include "headlane/executor.h"

namespace headlane {
namespace {

class CallingThread final : public Executor {
 public:
  int num_workers() const noexcept override { return 1; }
  void Run(int, Task task, void* context) noexcept override { task(context, 0); }
};

}  // namespace

Executor& SerialExecutor() noexcept {
  // Never destroyed: destructors of other static objects may still run attention.
  alignas(CallingThread) static unsigned char storage[sizeof(CallingThread)];
  static Executor* const executor = ::new (static_cast<void*>(storage)) CallingThread;
  return *executor;
}

}  // namespace headlane
