// The edge matrix in small, for machines a thousand times slower than the real ones: lengths around a vector, a tile
// and a block, odd head dimensions, all element types, decode and prefill, tensors and caches. What runner.h promises
// holds here on every target: operands, outputs and the workspace end at guard pages, caches' pages held NaN before,
// and what lies between rows is NaN and stays so.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headlane/executor.h"
#include "operator/check.h"
#include "operator/runner.h"
#include "targets/under_test.h"

namespace headlane::testing {
namespace {

// Of keys and values; queries are f32 where those are quantised, which only caches are.
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kI4};

struct EdgeHeads {
  const char* name;
  Heads heads;
};

// Groups of 1, 2, 3 and 7 query heads; 7 * 1 row of decoding is more than one group of rows of a micro-kernel.
constexpr EdgeHeads kHeads[] = {
    {"dims_1_1", {1, 1, 1, 1}},     {"dims_33_17", {3, 1, 33, 17}}, {"dims_257_257", {2, 1, 257, 257}},
    {"dims_64_64", {4, 2, 64, 64}}, {"dims_16_40", {7, 1, 16, 40}},
};

struct EdgeRun {
  std::string target;
  EdgeHeads heads;
  DType dtype;
};

std::vector<EdgeRun> EdgeRuns() {
  std::vector<EdgeRun> runs;
  for (const std::string& target : TargetsUnderTest()) {
    for (const EdgeHeads& heads : kHeads) {
      for (DType dtype : kDTypes) runs.push_back({target, heads, dtype});
    }
  }
  return runs;
}

Sequence SequenceOf(Random& random, const EdgeRun& run, const Sight& sight, int64_t q_len, int64_t kv_len) {
  Sequence s = RandomSequence(random, run.heads.heads, sight, q_len, kv_len);
  if (IsQuantized(run.dtype)) {
    RoundRows(*s.k, run.dtype, run.heads.heads.qk_dim);
    RoundRows(*s.v, run.dtype, run.heads.heads.v_dim);
    return s;
  }
  for (auto* data : {s.q.get(), s.k.get(), s.v.get()}) RoundAll(*data, run.dtype);
  s.problem.out_type = OutTypeOf(run.dtype);
  return s;
}

RunOptions OptionsOf(const EdgeRun& run) {
  RunOptions options;
  options.k_dtype = options.v_dtype = run.dtype;
  if (!IsQuantized(run.dtype)) options.q_dtype = options.bias_dtype = run.dtype;
  return options;
}

void Check(const OnTarget& on, const std::vector<Sequence>& sequences, const RunOptions& options) {
  if (IsQuantized(options.k_dtype) && !options.cache) return;
  const std::vector<Output> outputs = RunLibrary(sequences, options);
  for (size_t i = 0; i < sequences.size(); ++i) {
    SCOPED_TRACE(Describe(sequences[i].problem) + ", " + Describe(options));
    // That the canonical program is near the oracle is shown by the operator's own tests.
    if (on.info().has_fma) {
      EXPECT_TRUE(IsCanonical(sequences[i].problem, outputs[i]));
    } else {
      EXPECT_TRUE(NearOracle(sequences[i].problem, outputs[i]));
    }
  }
}

class EdgeTargetTest : public ::testing::TestWithParam<EdgeRun> {};

TEST_P(EdgeTargetTest, DecodeOfEveryLengthAroundAnEdge) {
  const EdgeRun& run = GetParam();
  const OnTarget on(run.target);
  Random random(1);
  std::vector<Sequence> sequences;
  for (int64_t kv_len : {1, 15, 16, 17, 31, 33, 127, 128, 129, 0}) {
    sequences.push_back(SequenceOf(random, run, {}, 1, kv_len));
  }
  for (const bool cache : {false, true}) {
    RunOptions options = OptionsOf(run);
    options.cache = cache;
    Check(on, sequences, options);
  }
}

TEST_P(EdgeTargetTest, PrefillOfOddLengths) {
  const EdgeRun& run = GetParam();
  const OnTarget on(run.target);
  Random random(2);
  const std::vector<std::pair<int64_t, int64_t>> lengths = {{2, 2}, {7, 23}, {17, 17}, {13, 131}};
  std::vector<Sequence> sequences;
  for (const auto& [q_len, kv_len] : lengths) sequences.push_back(SequenceOf(random, run, {}, q_len, kv_len));
  RunOptions options = OptionsOf(run);
  options.padded = true;
  Check(on, sequences, options);
  options.cache = true;
  options.page_tokens = 48;
  options.plan_workers = 2;
  Check(on, sequences, options);
}

TEST_P(EdgeTargetTest, ModifiersAndMasks) {
  const EdgeRun& run = GetParam();
  const OnTarget on(run.target);
  Random random(3);
  Sight sight;
  sight.softcap = 5.0f;
  sight.window = 30;
  sight.num_always_visible = 2;
  const int64_t q_len = 5, kv_len = 45;
  Sequence s = SequenceOf(random, run, sight, q_len, kv_len);
  const size_t heads = static_cast<size_t>(run.heads.heads.num_q_heads);
  auto bias = std::make_shared<std::vector<float>>(random.Floats(static_cast<size_t>(q_len * kv_len), 3.0f));
  if (!IsQuantized(run.dtype)) RoundAll(*bias, run.dtype);
  s.SetBias(bias, 0, kv_len);
  s.SetMask(std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(q_len * kv_len), uint8_t{1}), 0, kv_len);
  for (uint8_t& visible : *s.mask) visible = random.OneIn(5) ? 0 : 1;
  s.SetSlopes(std::make_shared<std::vector<float>>(random.Floats(heads, 0.1f)));
  s.SetSinks(std::make_shared<std::vector<float>>(random.Floats(heads, 4.0f)));
  RunOptions options = OptionsOf(run);
  Check(on, {s}, options);
  options.mask_format = BoolMaskView::Format::kBits;
  options.cache = true;
  Check(on, {s}, options);
}

INSTANTIATE_TEST_SUITE_P(Targets, EdgeTargetTest, ::testing::ValuesIn(EdgeRuns()),
                         [](const ::testing::TestParamInfo<EdgeRun>& info) {
                           return std::string(info.param.heads.name) + "_" + DTypeName(info.param.dtype) + "_on_" +
                                  info.param.target;
                         });

class OracleTargetTest : public EachTarget {};

// Long enough for several splits; the other tests stay within one.
TEST_P(OracleTargetTest, SplitsAndManyBlocks) {
  Random random(4);
  const Sequence s = RandomSequence(random, {2, 1, 32, 32}, {}, 3, 1100);
  for (const bool cache : {false, true}) {
    RunOptions options;
    options.cache = cache;
    options.plan_workers = 3;
    const Output output = RunLibrary(s, options);
    EXPECT_TRUE(NearOracle(s.problem, output));
    if (target().has_fma) {
      EXPECT_TRUE(IsCanonical(s.problem, output));
    }
  }
}

// The same bits with threads: emulators translate for each thread, and vector lengths are a thread's own.
TEST_P(OracleTargetTest, TwoThreads) {
  Random random(5);
  std::vector<Sequence> sequences;
  for (int64_t kv_len : {40, 300, 17, 129}) sequences.push_back(RandomSequence(random, {4, 2, 32, 32}, {}, 4, kv_len));
  const std::vector<Output> serial = RunLibrary(sequences);
  OpenMPExecutor two(2);
  RunOptions options;
  options.executor = &two;
  options.plan_workers = 2;
  const std::vector<Output> parallel = RunLibrary(sequences, options);
  for (size_t i = 0; i < sequences.size(); ++i) EXPECT_TRUE(SameOutput(serial[i], parallel[i]));
}

INSTANTIATE_TEST_SUITE_P(Targets, OracleTargetTest, ::testing::ValuesIn(TargetsUnderTest()), NameOn);

}  // namespace
}  // namespace headlane::testing
