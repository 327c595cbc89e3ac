// Several prompts as one batch: each has the bits of its solo run, and what they share is computed and stored once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decoder/expect_status.h"
#include "e2e/session_model.h"
#include "headlane/decoder.h"

namespace headlane::testing {
namespace {

using Ids = std::vector<int32_t>;

Ids Join(std::initializer_list<Ids> parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<std::span<const int32_t>> Spans(const std::vector<Ids>& prompts) {
  return {prompts.begin(), prompts.end()};
}

int32_t Best(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The rows of logits of a prompt's end and of greedy steps behind it.
std::vector<std::vector<float>> Solo(const Model& model, const SessionOptions& options, const Ids& prompt,
                                     size_t num_steps) {
  Session session = MakeSession(model, options);
  EXPECT_TRUE(session.Prefill(prompt).ok());
  std::vector<std::vector<float>> rows = {Copy(session.logits())};
  for (size_t i = 0; i < num_steps; ++i) {
    EXPECT_TRUE(session.Step(Best(session.logits())).ok());
    rows.push_back(Copy(session.logits()));
  }
  return rows;
}

BatchSession MakeBatch(const Model& model, const SessionOptions& options, int64_t n, int64_t cache_tokens = 0) {
  Result<BatchSession> session = BatchSession::Create(model, options, n, cache_tokens);
  EXPECT_TRUE(session.ok()) << session.status().c_str();
  return std::move(session).value();
}

class BatchSessionTest : public ::testing::Test {
 protected:
  BatchSessionTest() {
    tiny_.MakeWeights(5);
    model_.emplace(LoadTiny(tiny_));
  }
  // Prompts that share nothing, a page and more, a bit, everything; one that is the beginning of another.
  static std::vector<Ids> Prompts() {
    const Ids common = SomeIds(53, 1);
    return {Join({common, SomeIds(20, 2)}),
            Join({common, SomeIds(7, 3)}),
            SomeIds(30, 4),
            common,
            Join({common, SomeIds(20, 2), SomeIds(11, 5)}),
            Join({common, SomeIds(7, 3)}),
            SomeIds(1, 6)};
  }
  static constexpr int64_t kTokensOfPrompts = 53 + 20 + 7 + 30 + 11 + 1;

  TinyModel tiny_;
  std::optional<Model> model_;
};

TEST_F(BatchSessionTest, EachHasTheBitsOfItsSoloRun) {
  const std::vector<Ids> prompts = Prompts();
  const size_t num_steps = 25;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kI4}) {
    for (const int64_t window : {0, 24}) {
      for (const int64_t chunk : {5, 64, 512}) {
        SessionOptions options;
        options.k_dtype = options.v_dtype = dtype;
        options.window = window;
        options.chunk = chunk;
        options.page_tokens = 16;
        options.max_context = 160;
        options.threads = 2;
        SCOPED_TRACE(std::string(DTypeName(dtype)) + " window " + std::to_string(window) + " chunk " +
                     std::to_string(chunk));
        BatchSession batch = MakeBatch(*model_, options, static_cast<int64_t>(prompts.size()));
        const Status status = batch.Prefill(Spans(prompts));
        ASSERT_TRUE(status.ok()) << status.c_str();
        EXPECT_EQ(batch.prompt_stats().tokens, kTokensOfPrompts);
        std::vector<std::vector<std::vector<float>>> solo;
        for (const Ids& prompt : prompts) solo.push_back(Solo(*model_, options, prompt, num_steps));
        for (size_t step = 0;; ++step) {
          std::vector<BatchToken> tokens;
          for (size_t i = 0; i < prompts.size(); ++i) {
            const auto sequence = static_cast<int64_t>(i);
            // Some end sooner; their logits stay.
            const size_t at = std::min(step, 5 * i + 3);
            ASSERT_EQ(Copy(batch.logits(sequence)), solo[i][at]) << "prompt " << i << " step " << step;
            ASSERT_EQ(batch.length(sequence), static_cast<int64_t>(prompts[i].size() + at));
            if (at == step && at < 5 * i + 3) tokens.push_back({sequence, Best(batch.logits(sequence))});
          }
          if (step == num_steps) break;
          // The order of a pass means nothing.
          if (step % 2 == 1) std::reverse(tokens.begin(), tokens.end());
          ASSERT_TRUE(batch.Step(tokens).ok());
        }
      }
    }
  }
}

TEST_F(BatchSessionTest, WhatPromptsShareIsStoredOnce) {
  SessionOptions options;
  options.page_tokens = 16;
  options.max_context = 400;
  const Ids common = SomeIds(320, 1);
  std::vector<Ids> prompts;
  for (uint64_t i = 0; i < 8; ++i) prompts.push_back(Join({common, SomeIds(10, 10 + i)}));
  // 20 pages of all, and one of each: a limit that has no room for a second copy.
  BatchSession batch = MakeBatch(*model_, options, 8, 320 + 8 * 16);
  const Status status = batch.Prefill(Spans(prompts));
  ASSERT_TRUE(status.ok()) << status.c_str();
  const SessionMemory memory = batch.memory();
  EXPECT_EQ(memory.cache_bytes, 28 * memory.page_bytes);
  EXPECT_EQ(memory.cache_used_bytes, 28 * memory.page_bytes);
  EXPECT_EQ(memory.kept_tokens, 320 + 8 * 10);
  EXPECT_EQ(memory.waste_bytes(), 8 * 6 * memory.kv_bytes_per_token);
  // No room for a seventeenth token of their own: said, and nothing has changed.
  std::vector<BatchToken> tokens;
  for (int step = 0; step < 6; ++step) {
    tokens.clear();
    for (int64_t i = 0; i < 8; ++i) tokens.push_back({i, 3});
    ASSERT_TRUE(batch.Step(tokens).ok());
  }
  const std::vector<float> before = Copy(batch.logits(7));
  EXPECT_ERROR(batch.Step(tokens), kResourceExhausted, "page");
  EXPECT_EQ(batch.length(0), 336);
  EXPECT_EQ(Copy(batch.logits(7)), before);
  EXPECT_ERROR(MakeBatch(*model_, options, 8, 320).Prefill(Spans(prompts)), kResourceExhausted, "page");
}

TEST_F(BatchSessionTest, ErrorsAreNamed) {
  SessionOptions options;
  options.max_context = 40;
  options.page_tokens = 16;
  options.chunk = 4;
  BatchSession batch = MakeBatch(*model_, options, 2);
  std::vector<Ids> prompts = {SomeIds(20, 1), SomeIds(30, 2)};
  EXPECT_ERROR(batch.Prefill(Spans({prompts[0]})), kInvalidArgument, "1 prompts for 2 sequences");
  prompts[1].clear();
  EXPECT_ERROR(batch.Prefill(Spans(prompts)), kInvalidArgument, "prompt 1 is empty");
  prompts[1] = SomeIds(41, 2);
  EXPECT_ERROR(batch.Prefill(Spans(prompts)), kResourceExhausted, "prompt 1: 0 tokens and 41 more");
  prompts[1] = {3, 260};
  EXPECT_ERROR(batch.Prefill(Spans(prompts)), kOutOfRange, "prompt 1: token 1 has the id 260");
  EXPECT_EQ(batch.length(0), 0);
  EXPECT_TRUE(batch.logits(0).empty());

  prompts[1] = SomeIds(30, 2);
  int64_t last = 0;
  EXPECT_ERROR(batch.Prefill(Spans(prompts),
                             [&](int64_t done, int64_t total) {
                               EXPECT_EQ(total, 50);
                               last = done;
                               return done < 20;
                             }),
               kCancelled, "of 50 tokens");
  EXPECT_GE(last, 20);
  EXPECT_EQ(batch.length(0) + batch.length(1), 0);
  EXPECT_EQ(batch.memory().cache_used_bytes, 0);

  ASSERT_TRUE(batch.Prefill(Spans(prompts)).ok());
  const BatchToken twice[] = {{0, 1}, {0, 2}};
  EXPECT_ERROR(batch.Step(twice), kInvalidArgument, "sequence 0 has two tokens");
  const BatchToken nobody[] = {{0, 1}, {2, 2}};
  EXPECT_ERROR(batch.Step(nobody), kOutOfRange, "sequence 2; there are 2");
  const BatchToken no_id[] = {{0, 1}, {1, 260}};
  EXPECT_ERROR(batch.Step(no_id), kOutOfRange, "the id 260");
  EXPECT_TRUE(batch.Step({}).ok());
  EXPECT_EQ(batch.length(0), 20);
  EXPECT_FALSE(batch.logits(0).empty());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(batch.Step(std::span(no_id).first(1)).ok());
  const BatchToken both[] = {{0, 1}, {1, 2}};
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(batch.Step(both).ok());
  EXPECT_ERROR(batch.Step(both), kResourceExhausted, "40 tokens and 1 more");
  // The same session, other prompts.
  ASSERT_TRUE(batch.Prefill(Spans(prompts)).ok());
  EXPECT_EQ(Copy(batch.logits(1)), Solo(*model_, options, prompts[1], 0)[0]);

  EXPECT_ERROR(BatchSession::Create(*model_, options, 0), kInvalidArgument, "num_sequences is 0");
  EXPECT_ERROR(BatchSession::Create(*model_, options, 5000), kInvalidArgument, "num_sequences is 5000");
  EXPECT_ERROR(BatchSession::Create(*model_, options, 1, -1), kInvalidArgument, "cache_tokens is -1");
}

}  // namespace
}  // namespace headlane::testing
