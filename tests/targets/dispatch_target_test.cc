// The forced target is the one that runs, and the one chosen by itself is the best that the processor has: asked of the
// compiler's run-time and of the kernel, not of Highway, whose answer is under test.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "headlane/attention.h"
#include "kernels/kernel_api.h"
#include "kernels/targets_for_test.h"
#include "targets/under_test.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace headlane::testing {
namespace {

// Whether the processor and the system have what a target needs. Nothing: this test does not know the target, or not
// the system.
#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))
constexpr bool kKnowsSystem = true;
#else
constexpr bool kKnowsSystem = false;
#endif
#if defined(__x86_64__)
std::optional<bool> MachineHas(const std::string& target) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512cd");
  const bool bf16 = avx3 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi2") &&
                    __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("avx512vnni");
  if (target == "SSE2") return true;
  if (target == "AVX2") return avx2;
  if (target == "AVX3") return avx3;
  if (target == "AVX3_ZEN4") return bf16 && __builtin_cpu_is("amd");
  if (target == "AVX3_SPR") return bf16 && __builtin_cpu_supports("avx512fp16");
  return std::nullopt;
}
#elif defined(__aarch64__) && defined(__linux__)
std::optional<bool> MachineHas(const std::string& target) {
  // Numbers of the kernel's interface, which headers older than the kernel lack.
  constexpr unsigned long kAes = 1ul << 3, kHalf = 1ul << 10, kDot = 1ul << 20, kSve = 1ul << 22;
  constexpr unsigned long kSve2 = 1ul << 1, kBF16 = 1ul << 14;
  constexpr int kGetVectorLength = 51;
  const unsigned long first = getauxval(16), second = getauxval(26);
  const int bytes = (first & kSve) != 0 ? prctl(kGetVectorLength) & 0xFFFF : 0;
  if (target == "NEON") return true;
  if (target == "NEON_BF16") {
    return (first & kAes) != 0 && (first & kHalf) != 0 && (first & kDot) != 0 && (second & kBF16) != 0;
  }
  if (target == "SVE") return bytes > 0;
  if (target == "SVE_256") return bytes == 32;
  if (target == "SVE2") return (second & kSve2) != 0;
  if (target == "SVE2_128") return (second & kSve2) != 0 && bytes == 16;
  return std::nullopt;
}
#else
std::optional<bool> MachineHas(const std::string&) { return std::nullopt; }
#endif

std::vector<TargetInfo> AllTargets() {
  std::vector<TargetInfo> targets(static_cast<size_t>(ListTargets(nullptr, 0)));
  ListTargets(targets.data(), static_cast<int>(targets.size()));
  return targets;
}

bool IsAdded(const std::string& target) {
  for (const std::string& added : TheOptions().added) {
    if (added == target) return true;
  }
  return false;
}

TEST(ChosenTargetTest, IsTheBestThatTheProcessorHas) {
  if (!kKnowsSystem) GTEST_SKIP() << "on this system nobody but Highway knows what the processor has";
  const ScopedTarget restore(ActiveTarget().name);
  ASSERT_TRUE(ForceTarget(nullptr).ok());
  const std::string chosen = ActiveTarget().name;
  bool is_found = false;
  for (const TargetInfo& target : AllTargets()) {
    const std::optional<bool> has = MachineHas(target.name);
    ASSERT_TRUE(has.has_value()) << "a target that MachineHas must be told of: " << target.name;
    EXPECT_EQ(target.supported, *has || IsAdded(target.name)) << target.name;
    // The list is best first.
    if (*has && !is_found) {
      EXPECT_EQ(chosen, target.name);
    }
    is_found = is_found || *has;
    EXPECT_EQ(target.active, target.name == chosen);
  }
  EXPECT_TRUE(is_found);
}

TEST(ChosenTargetTest, NoTargetIsAddedAfterTheFirstUse) {
  EXPECT_EQ(internal::AddTargetForTest(ActiveTarget().name).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(internal::AddTargetForTest("NO_SUCH_TARGET").code(), StatusCode::kNotFound);
}

class ForcedTargetTest : public EachTarget {};

TEST_P(ForcedTargetTest, IsTheOneThatRuns) {
  // The fixture has asked the kernels.
  EXPECT_EQ(ActiveTarget().name, GetParam());
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 1;
  spec.qk_dim = spec.v_dim = 64;
  SequenceSpec sequence;
  sequence.q_len = 1;
  sequence.kv_len = 100;
  const Result<AttentionPlan> plan = PlanAttention(spec, std::vector<SequenceSpec>{sequence});
  ASSERT_TRUE(plan.ok()) << plan.status().c_str();
  EXPECT_EQ(plan->summary().target, GetParam());
}

TEST_P(ForcedTargetTest, HasVectorsOfItsWidth) {
  const int bytes = target().vector_bytes;
  const std::string& name = GetParam();
  if (name == "SSE2" || name.starts_with("NEON") || name == "SVE2_128") {
    EXPECT_EQ(bytes, 16);
  } else if (name == "AVX2" || name == "SVE_256") {
    EXPECT_EQ(bytes, 32);
  } else if (name.starts_with("AVX3")) {
    EXPECT_EQ(bytes, 64);
  } else {
    EXPECT_TRUE(bytes >= 16 && bytes <= 256 && bytes % 16 == 0) << bytes;
  }
  // Tiles have 16 lanes: what is wider is cut.
  EXPECT_EQ(internal::ActiveKernels().register_block(1).lanes, std::min(bytes / 4, 16));
}

TEST_P(ForcedTargetTest, HasBlocksThatFitItsRegisters) {
  const std::string& name = GetParam();
  const bool has_many = name.starts_with("AVX3") || name.starts_with("NEON") || name.starts_with("SVE");
  for (int64_t rows = 1; rows <= 40; ++rows) {
    const internal::RegisterBlock block = internal::ActiveKernels().register_block(rows);
    EXPECT_EQ(block.num_registers, has_many ? 32 : 16);
    // The accumulators, and as operands the shorter side and one more.
    EXPECT_EQ(block.used_registers, block.rows * block.cols + std::min(block.rows, block.cols) + 1) << rows;
    EXPECT_LE(block.used_registers, block.num_registers) << rows;
    EXPECT_GE(block.rows, 1) << rows;
    EXPECT_LE(block.rows, std::min<int64_t>(rows, 6)) << rows;
    // Chains that hide the latency of multiply-adds.
    EXPECT_GE(block.rows * block.cols, 8) << rows;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ForcedTargetTest, ::testing::ValuesIn(TargetsUnderTest()), NameOn);

}  // namespace
}  // namespace headlane::testing
