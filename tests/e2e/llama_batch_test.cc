// The forward pass over several sequences at once: prompts, chunks and steps in one batch give each sequence the bits
// of its solo run.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "decoder/decoder_impl.h"
#include "decoder/expect_status.h"
#include "decoder/llama.h"
#include "headlane/decoder.h"
#include "support/random.h"

namespace headlane::internal {
namespace {

using ::headlane::testing::Random;

std::vector<int32_t> SomeIds(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random.Int(0, 511)));
  return ids;
}

// The logits after each token, one by one, alone.
std::vector<std::vector<float>> Solo(const Model& model, const std::vector<int32_t>& ids) {
  Result<Session> session = Session::Create(model);
  EXPECT_TRUE(session.ok());
  std::vector<std::vector<float>> rows;
  for (const int32_t id : ids) {
    const auto logits = session->Step(id);
    EXPECT_TRUE(logits.ok());
    rows.emplace_back(logits->begin(), logits->end());
  }
  return rows;
}

class LlamaBatchTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMaxTokens = 64;
  static constexpr int64_t kMaxSequences = 3;

  void SetUp() override {
    Result<Model> model = Model::Synthetic("tiny", 3);
    ASSERT_TRUE(model.ok() && model->LoadWeights().ok());
    model_.emplace(std::move(model).value());
    const LlamaConfig& c = model_->impl().config;
    KVCacheSpec spec;
    spec.num_layers = c.num_layers;
    spec.num_kv_heads = c.num_kv_heads;
    spec.qk_dim = c.qk_dim;
    spec.v_dim = c.v_dim;
    spec.page_tokens = 16;
    spec.max_tokens = 16 * 9;
    Result<KVCache> cache = KVCache::Create(spec);
    ASSERT_TRUE(cache.ok());
    cache_.emplace(std::move(cache).value());
    std::vector<SequenceSpec> specs;
    for (int i = 0; i < kMaxSequences; ++i) {
      sequences_.push_back(*cache_->CreateSequence());
      specs.emplace_back();
      specs.back().cache_id = sequences_.back();
    }
    PlanOptions options;
    options.max_sequences = kMaxSequences;
    options.max_q_tokens = kMaxTokens;
    options.max_kv_len = 120;
    Result<AttentionPlan> plan = PlanAttention(LlamaAttentionSpec(c), *cache_, specs, options);
    ASSERT_TRUE(plan.ok()) << plan.status().c_str();
    plan_.emplace(std::move(plan).value());
    workspace_.emplace(std::move(*Workspace::Create(*plan_)));
    scratch_.emplace(std::move(*LlamaScratch::Create(model_->impl().View(), kMaxTokens, kMaxSequences)));
    logits_.resize(static_cast<size_t>(kMaxTokens * c.vocab_size));
  }

  Status Forward(const std::vector<SequenceTokens>& batch) {
    PhaseStats stats;
    OpenMPExecutor executor(2);
    int64_t rows = 0;
    for (const SequenceTokens& tokens : batch) rows += static_cast<int64_t>(tokens.ids.size());
    HEADLANE_RETURN_IF_ERROR(
        LlamaForward(model_->impl().View(), batch, *cache_, *plan_, *workspace_, *scratch_, executor, stats));
    return LlamaLogits(model_->impl().View(), *scratch_, 0, rows, logits_.data(), executor, stats);
  }

  std::vector<float> LogitsOfRow(size_t row) const {
    const size_t n = static_cast<size_t>(model_->info().vocab_size);
    const auto begin = logits_.begin() + static_cast<std::ptrdiff_t>(row * n);
    return {begin, begin + static_cast<std::ptrdiff_t>(n)};
  }

  std::optional<Model> model_;
  std::optional<KVCache> cache_;
  std::vector<SequenceId> sequences_;
  std::optional<AttentionPlan> plan_;
  std::optional<Workspace> workspace_;
  std::optional<LlamaScratch> scratch_;
  std::vector<float> logits_;
};

TEST_F(LlamaBatchTest, EachSequenceHasTheBitsOfItsSoloRun) {
  const std::vector<std::vector<int32_t>> ids = {SomeIds(50, 1), SomeIds(60, 2), SomeIds(9, 3)};
  std::vector<std::vector<std::vector<float>>> solo;
  for (const auto& sequence : ids) solo.push_back(Solo(*model_, sequence));
  // How many tokens of each come in a pass; the order of the sequences changes from pass to pass.
  const int64_t passes[][3] = {{20, 33, 1}, {1, 1, 1}, {1, 20, 0}, {0, 1, 5}, {28, 5, 2}};
  size_t done[3] = {0, 0, 0};
  size_t first = 0;
  for (const auto& pass : passes) {
    std::vector<SequenceTokens> batch;
    std::vector<std::pair<size_t, size_t>> rows;  // (sequence, token) of each row
    for (size_t i = 0; i < 3; ++i) {
      const size_t s = (first + i) % 3;
      const size_t n = static_cast<size_t>(pass[s]);
      batch.push_back({sequences_[s], std::span(ids[s]).subspan(done[s], n)});
      for (size_t t = 0; t < n; ++t) rows.emplace_back(s, done[s]++);
    }
    ++first;
    const Status status = Forward(batch);
    ASSERT_TRUE(status.ok()) << status.c_str();
    for (size_t row = 0; row < rows.size(); ++row) {
      ASSERT_EQ(LogitsOfRow(row), solo[rows[row].first][rows[row].second])
          << "sequence " << rows[row].first << " token " << rows[row].second;
    }
  }
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(done[s], ids[s].size());
    EXPECT_EQ(*cache_->Length(sequences_[s]), static_cast<int64_t>(ids[s].size()));
  }
}

TEST_F(LlamaBatchTest, AFailedBatchChangesNoSequence) {
  const std::vector<int32_t> ids = SomeIds(64, 1);
  ASSERT_TRUE(Forward({{sequences_[0], std::span(ids).first(40)}, {sequences_[1], std::span(ids).first(20)}}).ok());
  ASSERT_TRUE(
      Forward({{sequences_[0], std::span(ids).subspan(40, 8)}, {sequences_[1], std::span(ids).subspan(20, 40)}}).ok());
  // 9 pages: 3 + 4 are taken, the third sequence takes the rest, and for the second there is none.
  const KVCacheUsage before = cache_->usage();
  EXPECT_ERROR(Forward({{sequences_[2], std::span(ids).first(32)}, {sequences_[1], std::span(ids).first(10)}}),
               kResourceExhausted, "page");
  EXPECT_ERROR(Forward({{sequences_[2], std::span(ids).first(64)}, {sequences_[1], std::span(ids).first(1)}}),
               kResourceExhausted, "a batch of 65 tokens; the session was made for 64");
  EXPECT_EQ(cache_->usage().used_pages, before.used_pages);
  EXPECT_EQ(*cache_->Length(sequences_[1]), 60);
  EXPECT_EQ(*cache_->Length(sequences_[2]), 0);
  // And the sequence goes on with the right bits.
  std::vector<int32_t> all(ids.begin(), ids.begin() + 60);
  all.push_back(ids[60]);
  ASSERT_TRUE(Forward({{sequences_[1], std::span(ids).subspan(60, 1)}}).ok());
  EXPECT_EQ(LogitsOfRow(0), Solo(*model_, all).back());
}

}  // namespace
}  // namespace headlane::internal
