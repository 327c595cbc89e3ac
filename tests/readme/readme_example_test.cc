// The README's example decodes, and its steps give the bits of one causal call over all tokens.
#include "readme_example.inc"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "headlane/headlane.h"

namespace {

constexpr int64_t kTokens = 5, kLayers = 2, kQHeads = 32, kKvHeads = 8, kDim = 128;

std::vector<float> q_all, k_all, v_all, out_all;
int64_t step = 0;

float Value(int64_t i) { return static_cast<float>((i * 2654435761LL >> 7) % 2001 - 1000) * 1e-3f; }

const float* LayerQkv(int64_t layer, int which) {
  const int64_t row = layer * kTokens + step;
  if (which == 0) return &q_all[static_cast<size_t>(row * kQHeads * kDim)];
  return &(which == 1 ? k_all : v_all)[static_cast<size_t>(row * kKvHeads * kDim)];
}

float* LayerOut(int64_t layer) { return &out_all[static_cast<size_t>((layer * kTokens + step) * kQHeads * kDim)]; }

TEST(ReadmeExample, StepsGiveTheBitsOfOneCall) {
  q_all.resize(kLayers * kTokens * kQHeads * kDim);
  out_all.assign(q_all.size(), -1.0f);
  k_all.resize(kLayers * kTokens * kKvHeads * kDim);
  v_all.resize(k_all.size());
  for (size_t i = 0; i < q_all.size(); ++i) q_all[i] = Value(static_cast<int64_t>(i));
  for (size_t i = 0; i < k_all.size(); ++i) k_all[i] = Value(static_cast<int64_t>(3 * i + 1));
  for (size_t i = 0; i < v_all.size(); ++i) v_all[i] = Value(static_cast<int64_t>(5 * i + 2));

  headlane::KVCacheSpec cache_spec;
  cache_spec.num_layers = kLayers;
  cache_spec.num_kv_heads = kKvHeads;
  cache_spec.qk_dim = cache_spec.v_dim = kDim;
  cache_spec.max_tokens = 128;
  auto cache = headlane::KVCache::Create(cache_spec);
  ASSERT_TRUE(cache.ok()) << cache.status().c_str();
  const auto id = cache->CreateSequence();
  ASSERT_TRUE(id.ok()) << id.status().c_str();

  headlane::AttentionSpec spec;
  spec.num_q_heads = kQHeads;
  spec.num_kv_heads = kKvHeads;
  spec.qk_dim = spec.v_dim = kDim;
  headlane::PlanOptions options;
  options.max_sequences = 1;
  options.max_q_tokens = 1;
  options.max_kv_len = 128;
  auto plan = headlane::PlanAttention(spec, *cache, {}, options);
  ASSERT_TRUE(plan.ok()) << plan.status().c_str();
  auto workspace = headlane::Workspace::Create(*plan);
  ASSERT_TRUE(workspace.ok()) << workspace.status().c_str();
  headlane::OpenMPExecutor executor;
  for (step = 0; step < kTokens; ++step) {
    const headlane::Status status = DecodeStep(*cache, *id, *plan, *workspace, executor, kLayers, LayerQkv, LayerOut);
    ASSERT_TRUE(status.ok()) << status.c_str();
  }

  for (int64_t layer = 0; layer < kLayers; ++layer) {
    step = 0;
    std::vector<float> whole(kTokens * kQHeads * kDim);
    headlane::SequenceSpec sequence;
    sequence.q_len = sequence.kv_len = kTokens;
    headlane::AttentionArgs args;
    args.q = headlane::TokensHeadsDim(LayerQkv(layer, 0), kTokens, kQHeads, kDim);
    args.k = headlane::TokensHeadsDim(LayerQkv(layer, 1), kTokens, kKvHeads, kDim);
    args.v = headlane::TokensHeadsDim(LayerQkv(layer, 2), kTokens, kKvHeads, kDim);
    args.out = headlane::TokensHeadsDim(whole.data(), kTokens, kQHeads, kDim);
    const headlane::Status status = headlane::Attention(spec, {&sequence, 1}, args, headlane::SerialExecutor());
    ASSERT_TRUE(status.ok()) << status.c_str();
    EXPECT_EQ(std::memcmp(whole.data(), LayerOut(layer), whole.size() * sizeof(float)), 0) << "layer " << layer;
  }
}

}  // namespace
