// Tensors that do not fit the plan: a typed error with the tensor's name and both numbers, and nothing written.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "exec/naive_attention.h"
#include "headlane/attention.h"

namespace headlane {
namespace {

using testing::CachedBatch;
using testing::MakeBatch;
using testing::Outputs;
using testing::TestBatch;

constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();

TestBatch Batch() {
  AttentionSpec spec;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.qk_dim = 16;
  spec.v_dim = 12;
  return MakeBatch(spec, {{1, 30}, {3, 50}}, 1);
}

struct Case {
  std::function<void(AttentionArgs*)> spoil;
  StatusCode code;
  std::vector<std::string> parts;
};

void ExpectRefused(const AttentionPlan& plan, const AttentionArgs& good, const Outputs& outputs,
                   const std::vector<Case>& cases) {
  auto workspace = Workspace::Create(plan);
  ASSERT_TRUE(workspace.ok());
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    AttentionArgs args = good;
    cases[i].spoil(&args);
    const Status status = RunAttention(plan, args, *workspace, SerialExecutor());
    EXPECT_EQ(status.code(), cases[i].code) << status.c_str();
    for (const std::string& part : cases[i].parts) {
      EXPECT_NE(status.message().find(part), std::string_view::npos)
          << "'" << part << "' is not in: " << status.c_str();
    }
    EXPECT_TRUE(outputs.AllUnwritten());
  }
}

TEST(CheckArgs, PlainTensors) {
  const TestBatch batch = Batch();
  const CachedBatch cached(batch, 16);
  auto plan = PlanAttention(batch.spec, batch.sequences);
  ASSERT_TRUE(plan.ok());
  Outputs outputs(batch);
  const AttentionArgs good = batch.PlainArgs(outputs.out.data(), outputs.lse.data());
  const auto kInvalid = StatusCode::kInvalidArgument;
  const auto kRange = StatusCode::kOutOfRange;
  using A = AttentionArgs*;
  const std::vector<Case> cases = {
      {[](A a) { a->q.num_heads = 5; }, kInvalid, {"q", "5", "4"}},
      {[](A a) { a->q.dim = 15; }, kInvalid, {"q", "15", "16"}},
      {[](A a) { a->q.data = nullptr; }, kInvalid, {"q", "null"}},
      {[](A a) { a->q.dtype = static_cast<DType>(99); }, StatusCode::kInvalidArgument, {"q", "99"}},
      {[](A a) { a->q.num_tokens = 3; }, kRange, {"sequences[1]", "4", "q", "3"}},
      {[](A a) { a->q.num_tokens = 0; }, kRange, {"sequences[0]", "1", "q", "0"}},
      {[](A a) { a->q.num_tokens = -1; }, kInvalid, {"q", "-1"}},
      {[](A a) { a->q.num_batch = 0; }, kRange, {"sequences[0]", "q", "0"}},
      {[](A a) { a->q.token_stride = kMax64 / 2; }, kInvalid, {"q", "stride"}},
      {[](A a) { a->q.data = reinterpret_cast<const char*>(a->q.data) + 1; }, kInvalid, {"q", "1", "4"}},
      {[](A a) { a->k.num_heads = 4; }, kInvalid, {"k", "4", "2"}},
      {[](A a) { a->k.dim = 12; }, kInvalid, {"k", "12", "16"}},
      {[](A a) { a->k.num_tokens = 79; }, kRange, {"sequences[1]", "80", "k", "79"}},
      {[](A a) { a->k.data = nullptr; }, kInvalid, {"k", "null"}},
      {[](A a) { a->k.dtype = static_cast<DType>(-1); }, StatusCode::kInvalidArgument, {"k", "-1"}},
      {[](A a) { a->v.num_heads = 1; }, kInvalid, {"v", "1", "2"}},
      {[](A a) { a->v.dim = 16; }, kInvalid, {"v", "16", "12"}},
      {[](A a) { a->v.num_tokens = 29; }, kRange, {"sequences[0]", "30", "v", "29"}},
      {[](A a) { a->v.data = nullptr; }, kInvalid, {"v", "null"}},
      {[](A a) { a->out.num_heads = 2; }, kInvalid, {"out", "2", "4"}},
      {[](A a) { a->out.dim = 16; }, kInvalid, {"out", "16", "12"}},
      {[](A a) { a->out.num_tokens = 2; }, kRange, {"sequences[1]", "4", "out", "2"}},
      {[](A a) { a->out.data = nullptr; }, kInvalid, {"out", "null"}},
      {[](A a) { a->out.dtype = static_cast<DType>(kNumDTypes); }, StatusCode::kInvalidArgument, {"out", "6"}},
      {[](A a) { a->out.dtype = DType::kI8; }, StatusCode::kUnsupported, {"out", "int8"}},
      {[](A a) { a->out.token_stride = 47; }, kInvalid, {"out", "47"}},
      {[](A a) { a->out.head_stride = 11; }, kInvalid, {"out", "11"}},
      {[](A a) { a->out.dim_stride = 0; }, kInvalid, {"out", "0"}},
      {[](A a) { a->lse.token_stride = 3; }, kInvalid, {"lse", "3"}},
      {[](A a) { a->lse.head_stride = 0; }, kInvalid, {"lse", "0"}},
      {[](A a) { a->lse.head_stride = kMax64; }, kInvalid, {"lse"}},
      {[&](A a) { a->cache = cached.cache.get(); }, kInvalid, {"cache", "plain"}},
  };
  ExpectRefused(*plan, good, outputs, cases);

  // What is wrong with tensors that nothing is read from is nobody's business, and LSE is optional.
  auto workspace = Workspace::Create(*plan);
  ASSERT_TRUE(workspace.ok());
  AttentionArgs args = good;
  args.lse = LseView();
  EXPECT_TRUE(RunAttention(*plan, args, *workspace, SerialExecutor()).ok());
  std::vector<SequenceSpec> no_keys(1);
  no_keys[0].q_len = 2;
  EXPECT_TRUE(plan->Update(no_keys).ok());
  args.k = args.v = ConstTensorView();
  EXPECT_TRUE(RunAttention(*plan, args, *workspace, SerialExecutor()).ok());
  EXPECT_TRUE(plan->Update(std::span<const SequenceSpec>()).ok());
  EXPECT_TRUE(RunAttention(*plan, AttentionArgs(), *workspace, SerialExecutor()).ok());
}

TEST(CheckArgs, Caches) {
  const TestBatch batch = Batch();
  const CachedBatch cached(batch, 16, /*num_layers=*/2);
  auto plan = PlanAttention(batch.spec, *cached.cache, cached.sequences);
  ASSERT_TRUE(plan.ok());
  Outputs outputs(batch);
  const AttentionArgs good = cached.Args(batch, outputs.out.data(), outputs.lse.data());
  KVCacheSpec other_spec = cached.cache->spec();
  const auto other = [&](auto change) {
    KVCacheSpec spec = other_spec;
    change(&spec);
    return KVCache::Create(spec).value();
  };
  const KVCache other_heads = other([](KVCacheSpec* s) { s->num_kv_heads = 3; });
  const KVCache other_dim = other([](KVCacheSpec* s) { s->v_dim = 13; });
  const KVCache other_pages = other([](KVCacheSpec* s) { s->page_tokens = 32; });
  const KVCache smaller = other([](KVCacheSpec* s) { s->max_tokens = 16; });
  const auto kInvalid = StatusCode::kInvalidArgument;
  using A = AttentionArgs*;
  ExpectRefused(*plan, good, outputs,
                {
                    {[](A a) { a->cache = nullptr; }, kInvalid, {"cache", "null"}},
                    {[](A a) { a->layer = 2; }, StatusCode::kOutOfRange, {"layer", "2"}},
                    {[](A a) { a->layer = -1; }, StatusCode::kOutOfRange, {"layer", "-1", "2"}},
                    {[&](A a) { a->cache = &other_heads; }, kInvalid, {"num_kv_heads", "3", "2"}},
                    {[&](A a) { a->cache = &other_dim; }, kInvalid, {"v_dim", "13", "12"}},
                    {[&](A a) { a->cache = &other_pages; }, kInvalid, {"page_tokens", "32", "16"}},
                    {[&](A a) { a->cache = &smaller; }, kInvalid, {"page", "1"}},
                    {[](A a) { a->q.num_tokens = 3; }, StatusCode::kOutOfRange, {"sequences[1]", "4", "3"}},
                });
}

TEST(CheckArgs, Modifiers) {
  const TestBatch batch = Batch();  // 4 query tokens, up to 50 keys
  auto plan = PlanAttention(batch.spec, batch.sequences);
  ASSERT_TRUE(plan.ok());
  Outputs outputs(batch);
  AttentionArgs good = batch.PlainArgs(outputs.out.data(), outputs.lse.data());
  const std::vector<float> bias(4 * 4 * 50);
  const std::vector<uint8_t> mask(4 * 4 * 50);
  std::vector<float> m(16), l(16), o(16 * 12);
  good.bias = TokensHeadsDim(bias.data(), 4, 4, 50);
  good.mask.data = mask.data();
  good.mask.num_tokens = good.mask.num_heads = 4;
  good.mask.num_columns = 50;
  good.state.m = {m.data(), 0, 4, 1};
  good.state.l = {l.data(), 0, 4, 1};
  good.state.o = TokensHeadsDim(o.data(), 4, 4, 12);
  const auto kInvalid = StatusCode::kInvalidArgument;
  const auto kRange = StatusCode::kOutOfRange;
  using A = AttentionArgs*;
  ExpectRefused(*plan, good, outputs,
                {
                    {[](A a) { a->bias.num_heads = 1; }, kInvalid, {"bias", "num_heads", "1", "4"}},
                    {[](A a) { a->bias.num_tokens = 3; }, kRange, {"bias", "4", "3"}},
                    {[](A a) { a->bias.dim = 49; }, kRange, {"bias", "49", "50"}},
                    {[](A a) { a->bias.dtype = static_cast<DType>(77); }, kInvalid, {"bias", "77"}},
                    {[](A a) { a->bias.token_stride = kMax64; }, kInvalid, {"bias"}},
                    {[](A a) { a->mask.num_heads = 2; }, kInvalid, {"mask", "num_heads", "2", "4"}},
                    {[](A a) { a->mask.num_batch = 0; }, kRange, {"mask", "0"}},
                    {[](A a) { a->mask.num_columns = 16; }, kRange, {"mask", "16", "50"}},
                    {[](A a) { a->mask.num_columns = -1; }, kInvalid, {"mask", "-1"}},
                    {[](A a) { a->mask.head_stride = kMax64; }, kInvalid, {"mask"}},
                    {[](A a) { a->mask.format = static_cast<BoolMaskView::Format>(9); }, kInvalid, {"mask", "9"}},
                    {[](A a) { a->state.o.dtype = DType::kF16; }, StatusCode::kUnsupported, {"state.o", "f16"}},
                    {[](A a) { a->state.o.dim = 13; }, kInvalid, {"state.o", "13", "12"}},
                    {[](A a) { a->state.l.data = nullptr; }, kInvalid, {"state.l", "null"}},
                    {[](A a) { a->state.m.token_stride = 0; }, kInvalid, {"state.m"}},
                });
  // With states, neither out nor lse is needed.
  auto workspace = Workspace::Create(*plan);
  ASSERT_TRUE(workspace.ok());
  good.out = TensorView();
  good.lse = LseView();
  EXPECT_TRUE(RunAttention(*plan, good, *workspace, SerialExecutor()).ok());
  EXPECT_TRUE(outputs.AllUnwritten());
}

TEST(CheckArgs, WorkspaceTooSmall) {
  const TestBatch batch = Batch();
  std::vector<SequenceSpec> long_sequence(1);
  long_sequence[0].q_len = 1;
  long_sequence[0].kv_len = 1;
  auto small = PlanAttention(batch.spec, long_sequence, {.num_workers = 1});
  auto large = PlanAttention(batch.spec, batch.sequences, {.num_workers = 4});
  ASSERT_TRUE(small.ok() && large.ok());
  auto workspace = Workspace::Create(*small);
  ASSERT_TRUE(workspace.ok());
  Outputs outputs(batch);
  const AttentionArgs args = batch.PlainArgs(outputs.out.data(), outputs.lse.data());
  const Status status = RunAttention(*large, args, *workspace, SerialExecutor());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(std::to_string(large->workspace_bytes())), std::string_view::npos) << status.c_str();
  RunWorker(*large, args, *workspace, 0);
  Workspace moved = std::move(workspace).value();
  Workspace gone = std::move(moved);
  EXPECT_FALSE(RunAttention(*small, args, moved, SerialExecutor()).ok()) << "a moved-from workspace has no memory";
  EXPECT_TRUE(outputs.AllUnwritten());
}

}  // namespace
}  // namespace headlane
