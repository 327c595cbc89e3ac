// Puts the tables of all translation units together, and chooses the target: this is the only file that asks Highway
// what the machine has.
#define HEADLANE_EVERY_TARGET
#include "kernels/targets.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/weight_tile.h"
#include "headlane/target.h"
#include "hwy/highway.h"
#include "hwy/per_target.h"
#include "hwy/targets.h"
#include "kernels/kernel_api.h"
#include "kernels/tables.h"
#include "kernels/targets_for_test.h"

namespace headlane {
namespace internal {
namespace {

constexpr int kMaxTargets = 24;

struct Registry {
  // One table per target that this machine can run; best first.
  KernelTable tables[kMaxTargets];
  int64_t targets[kMaxTargets];
  int num = 0;
  const KernelTable* best = nullptr;  // of those that the CPU lists
  std::atomic<const KernelTable*> active{nullptr};
  Status environment;
};

// Targets that count as supported whatever the CPU says, and whether it is too late to name some.
std::atomic<int64_t> added_targets{0};
std::atomic<bool> is_filled{false};

// Kernels of rows differ by what a panel has, not by format.
Int8Table WithRows(Int8Table table, const Int8Shared& shared) {
  for (int i = 0; i < kNumWeightFormats; ++i) {
    if (table.formats[i].one_row == nullptr) continue;
    const WeightTileInfo info = WeightTileOf(static_cast<WeightFormat>(i));
    table.formats[i].rows = info.group == 16 ? shared.groups_of_16
                            : info.bits == 8 ? shared.bytes
                            : info.has_min   ? shared.groups_of_32_with_min
                                             : shared.groups_of_32;
  }
  return table;
}

KernelTable MakeTable(int64_t target) {
  const KvKernels f32 = KvF32(target), f16 = KvF16(target), bf16 = KvBF16(target);
  const KvKernels int8 = KvInt8(target), fp8 = KvFp8(target), int4 = KvInt4(target);
  const RowsKernels rows = Rows(target);
  const SoftmaxKernels softmax = Softmax(target);
  const ElementwiseKernels elementwise = Elementwise(target);
  const LinearKernels linear = Linear(target);
  const WeightTables half = Weights16Bit(target), q8 = WeightsQ8(target), q4 = WeightsQ4(target);
  const WeightTables q5 = WeightsQ5(target), q45k = WeightsQ45K(target), q6k = WeightsQ6K(target);
  const HadamardKernels hadamard = Hadamard(target);
  const Int8Shared shared = WeightsInt8Rows(target);
  const Int8Table w8 = WithRows(WeightsInt8(target), shared);
  const Int8Kernels* const f = w8.formats;
  return {hwy::TargetName(target),
          {f32.compiled_for, f16.compiled_for, bf16.compiled_for, int8.compiled_for, fp8.compiled_for,
           int4.compiled_for, rows.compiled_for, softmax.compiled_for, elementwise.compiled_for, linear.compiled_for,
           hadamard.compiled_for, half.compiled_for, q8.compiled_for, q4.compiled_for, q5.compiled_for,
           q45k.compiled_for, q6k.compiled_for, shared.compiled_for, w8.compiled_for},
          linear.vector_bytes,
          {f32, f16, bf16, int8, fp8, int4},
          KToVTile(target),
          rows.qk,
          rows.pv,
          softmax,
          elementwise,
          linear.f32,
          {linear.weights, half.first, half.second, q8.first, q4.first, q4.second, q5.first, q5.second, q45k.first,
           q45k.second, q6k.first},
          {f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10]},
          shared.quantize,
          linear.register_block,
          hadamard.row};
}

const KernelTable* Find(Registry& registry, const char* name) {
  for (int i = 0; i < registry.num; ++i) {
    if (std::strcmp(registry.tables[i].target, name) == 0) return &registry.tables[i];
  }
  return nullptr;
}

// One of HWY_TARGETS, or 0.
int64_t BuiltTarget(const char* name) {
  for (int64_t bits = HWY_TARGETS; bits != 0; bits &= bits - 1) {
    if (std::strcmp(hwy::TargetName(bits & -bits), name) == 0) return bits & -bits;
  }
  return 0;
}

Status NoSuchTarget(const char* name) {
  if (BuiltTarget(name) != 0)
    return MakeStatus(StatusCode::kUnsupported, "SIMD target '%s' is built, but this machine can't run it", name);
  return MakeStatus(StatusCode::kNotFound, "SIMD target '%s' is not in this build", name);
}

// Best first: Highway gives better targets of one platform lower bits.
void Fill(Registry& registry) {
  is_filled = true;
  // The baseline by definition: without it there would be nothing to fall back to.
  const int64_t supported = HWY_TARGETS & (hwy::SupportedTargets() | HWY_STATIC_TARGET);
  for (int64_t bits = supported | added_targets; bits != 0 && registry.num < kMaxTargets; bits &= bits - 1) {
    const int64_t target = bits & -bits;
    registry.targets[registry.num] = target;
    KernelTable& table = registry.tables[registry.num++] = MakeTable(target);
    if (registry.best == nullptr && (supported & target) != 0) registry.best = &table;
  }
  registry.active = registry.best;
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

TargetInfo Describe(int64_t target, const KernelTable* table, bool active) {
  TargetInfo info;
  info.name = hwy::TargetName(target);
  info.has_fma = HasFma(target);
  if (table == nullptr) return info;  // nothing compiled for it may be called
  info.vector_bytes = table->vector_bytes;
  info.supported = true;
  info.active = active;
  constexpr int64_t kManyRows = 240;  // whole groups of any size up to 6
  const RegisterBlock block = table->register_block(kManyRows);
  info.num_registers = static_cast<int>(block.num_registers);
  info.block_rows = static_cast<int>(block.rows);
  info.block_cols = static_cast<int>(block.cols);
  return info;
}

}  // namespace

Status AddTargetForTest(const char* name) noexcept {
  const int64_t target = BuiltTarget(name);
  if (target == 0) return NoSuchTarget(name);
  if (is_filled) return MakeStatus(StatusCode::kFailedPrecondition, "the library is in use, too late for '%s'", name);
  added_targets |= target;
  return OkStatus();
}

const KernelTable& ActiveKernels() noexcept { return *TheRegistry().active.load(std::memory_order_acquire); }

}  // namespace internal

int ListTargets(TargetInfo* infos, int capacity) noexcept {
  internal::Registry& registry = internal::TheRegistry();
  int n = 0;
  for (int64_t bits = HWY_TARGETS; bits != 0; bits &= bits - 1, ++n) {
    if (n >= capacity) continue;
    const int64_t target = bits & -bits;
    const internal::KernelTable* table = internal::Find(registry, hwy::TargetName(target));
    infos[n] = internal::Describe(target, table, table == registry.active.load());
  }
  return n;
}

TargetInfo ActiveTarget() noexcept {
  internal::Registry& registry = internal::TheRegistry();
  const internal::KernelTable* active = registry.active.load();
  return internal::Describe(registry.targets[active - registry.tables], active, true);
}

Status ForceTarget(const char* name) noexcept {
  internal::Registry& registry = internal::TheRegistry();
  if (name == nullptr || *name == '\0') {
    registry.active = registry.best;
    return OkStatus();
  }
  const internal::KernelTable* table = internal::Find(registry, name);
  if (table == nullptr) return internal::NoSuchTarget(name);
  registry.active = table;
  return OkStatus();
}

Status TargetFromEnvironment() noexcept { return internal::TheRegistry().environment; }

}  // namespace headlane
