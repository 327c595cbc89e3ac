// Puts the tables of all translation units together, and chooses the target: this is the only file that asks Highway
// what the machine has.
#include "kernels/targets.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "headlane/target.h"
#include "hwy/highway.h"
#include "hwy/per_target.h"
#include "hwy/targets.h"
#include "kernels/kernel_api.h"
#include "kernels/tables.h"

namespace headlane {
namespace internal {
namespace {

constexpr int kMaxTargets = 24;

struct Registry {
  // One table per target that this machine can run; best first.
  KernelTable tables[kMaxTargets];
  int64_t targets[kMaxTargets];
  int num = 0;
  std::atomic<const KernelTable*> active{nullptr};
  Status environment;
};

KernelTable MakeTable(int64_t target) {
  const RowsKernels rows = Rows(target);
  return {hwy::TargetName(target),
          {KvF32(target), KvF16(target), KvBF16(target)},
          KToVTile(target),
          rows.qk,
          rows.pv,
          Softmax(target),
          Elementwise(target),
          LinearF32(target),
          RegisterBlockOf(target)};
}

const KernelTable* Find(Registry& registry, const char* name) {
  for (int i = 0; i < registry.num; ++i) {
    if (std::strcmp(registry.tables[i].target, name) == 0) return &registry.tables[i];
  }
  return nullptr;
}

Status NoSuchTarget(const char* name) {
  for (int64_t bits = HWY_TARGETS; bits != 0; bits &= bits - 1) {
    if (std::strcmp(hwy::TargetName(bits & -bits), name) == 0) {
      return MakeStatus(StatusCode::kUnsupported, "SIMD target '%s' is built, but this machine can't run it", name);
    }
  }
  return MakeStatus(StatusCode::kNotFound, "SIMD target '%s' is not in this build", name);
}

// Best first: Highway gives better targets of one platform lower bits.
void Fill(Registry& registry) {
  for (int64_t bits = HWY_TARGETS & hwy::SupportedTargets(); bits != 0 && registry.num < kMaxTargets;
       bits &= bits - 1) {
    const int64_t target = bits & -bits;
    registry.targets[registry.num] = target;
    registry.tables[registry.num++] = MakeTable(target);
  }
  registry.active = &registry.tables[0];
  const char* name = std::getenv("HEADLANE_TARGET");
  if (name == nullptr || *name == '\0') return;
  if (const KernelTable* table = Find(registry, name)) {
    registry.active = table;
  } else {
    registry.environment = NoSuchTarget(name);
  }
}

Registry& TheRegistry() {
  static Registry registry;
  static std::once_flag once;
  std::call_once(once, [] { Fill(registry); });
  return registry;
}

// Targets without fused multiply-add: their bits differ.
bool HasFma(int64_t target) { return (target & (HWY_SSE2 | HWY_SSSE3 | HWY_SSE4 | HWY_EMU128 | HWY_SCALAR)) == 0; }

int VectorBytes(int64_t target) {
#if HWY_ARCH_X86
  return target <= HWY_AVX3 ? 64 : target <= HWY_AVX2 ? 32 : 16;
#else
  (void)target;
  return static_cast<int>(hwy::VectorBytes());
#endif
}

}  // namespace

const KernelTable& ActiveKernels() noexcept { return *TheRegistry().active.load(std::memory_order_acquire); }

}  // namespace internal

int ListTargets(TargetInfo* infos, int capacity) noexcept {
  internal::Registry& registry = internal::TheRegistry();
  int n = 0;
  for (int64_t bits = HWY_TARGETS; bits != 0; bits &= bits - 1, ++n) {
    if (n >= capacity) continue;
    const int64_t target = bits & -bits;
    const internal::KernelTable* table = internal::Find(registry, hwy::TargetName(target));
    infos[n] = {hwy::TargetName(target), table == nullptr ? 0 : internal::VectorBytes(target), internal::HasFma(target),
                table != nullptr, table != nullptr && table == registry.active.load()};
  }
  return n;
}

TargetInfo ActiveTarget() noexcept {
  internal::Registry& registry = internal::TheRegistry();
  const internal::KernelTable* active = registry.active.load();
  const int64_t target = registry.targets[active - registry.tables];
  return {active->target, internal::VectorBytes(target), internal::HasFma(target), true, true};
}

Status ForceTarget(const char* name) noexcept {
  internal::Registry& registry = internal::TheRegistry();
  if (name == nullptr || *name == '\0') {
    registry.active = &registry.tables[0];
    return OkStatus();
  }
  const internal::KernelTable* table = internal::Find(registry, name);
  if (table == nullptr) return internal::NoSuchTarget(name);
  registry.active = table;
  return OkStatus();
}

Status TargetFromEnvironment() noexcept { return internal::TheRegistry().environment; }

}  // namespace headlane
