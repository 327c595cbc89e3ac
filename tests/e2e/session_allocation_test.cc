// No allocation per token: a session has all its memory before the first one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "decoder/decoder_impl.h"
#include "headlane/decoder.h"
#include "kv/allocation_hooks.h"

namespace headlane::testing {
namespace {

TEST(SessionAllocation, NoneAfterCreate) {
  Result<Model> model = Model::Synthetic("tiny", 1);
  ASSERT_TRUE(model.ok()) << model.status().c_str();
  ASSERT_TRUE(model->LoadWeights().ok());
  Result<TokenSampler> sampler =
      TokenSampler::Create(model->info().vocab_size, {.temperature = 1.0f, .top_k = 40, .top_p = 0.9f});
  ASSERT_TRUE(sampler.ok());
  std::vector<int32_t> prompt(200);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i);
  std::vector<double> losses(prompt.size() - 1);

  for (const auto& [threads, dtype, window] :
       {std::tuple(1, DType::kF32, 0), std::tuple(2, DType::kF32, 0), std::tuple(2, DType::kI4, 100)}) {
    SessionOptions options;
    options.threads = threads;
    options.chunk = 48;
    options.max_context = 1200;
    options.k_dtype = options.v_dtype = dtype;
    options.window = window;
    options.rollback = 1200;
    Result<Session> session = Session::Create(*model, options);
    ASSERT_TRUE(session.ok()) << session.status().c_str();
    // The OpenMP runtime makes its threads at the first region.
    ASSERT_TRUE(session->Step(1).ok());

    const int64_t before = internal::NumAllocations();
    ASSERT_TRUE(session->Prefill(prompt).ok());
    EXPECT_EQ(internal::NumAllocations() - before, 0) << "prompt, " << threads << " threads";
    int32_t id = 1;
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(session->Step(id).ok());
      id = *sampler->Next(session->logits());
    }
    EXPECT_EQ(internal::NumAllocations() - before, 0) << "steps, " << threads << " threads";
    ASSERT_TRUE(session->Score(prompt, losses).ok());
    ASSERT_TRUE(session->Truncate(7).ok());
    ASSERT_TRUE(session->FillRandom(1100, 1).ok());
    ASSERT_TRUE(session->Step(1).ok());
    EXPECT_EQ(internal::NumAllocations() - before, 0) << "score, truncate, fill, " << threads << " threads";
  }
}

TEST(SessionAllocation, NoneInTheStepsOfABatch) {
  Result<Model> model = Model::Synthetic("tiny", 1);
  ASSERT_TRUE(model.ok() && model->LoadWeights().ok());
  SessionOptions options;
  options.threads = 2;
  options.page_tokens = 16;
  Result<BatchSession> session = BatchSession::Create(*model, options, 20);
  ASSERT_TRUE(session.ok()) << session.status().c_str();
  std::vector<int32_t> prompt(50, 3);
  ASSERT_TRUE(session->Prefill(std::vector<std::span<const int32_t>>(20, prompt)).ok());
  std::vector<BatchToken> tokens;
  for (int64_t i = 0; i < 20; ++i) tokens.push_back({i, 4});
  const int64_t before = internal::NumAllocations();
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(session->Step(std::span(tokens).first(20 - static_cast<size_t>(i % 3))).ok());
  }
  EXPECT_EQ(internal::NumAllocations() - before, 0);
}

// oneDNN allocates while it runs, which prompts do; single tokens and short prompts never get there.
TEST(SessionAllocation, NonePerTokenBesideCopiesForManyRows) {
  Result<Model> model = Model::Synthetic("tiny", 1);
  ASSERT_TRUE(model.ok()) << model.status().c_str();
  LoadOptions load;
  load.numerics = Numerics::kFastest;
  internal::ChoiceMachine machine = internal::ThisMachine();
  machine.measure = [](std::span<const Linear* const>, int64_t, Executor&, std::span<double> seconds) {
    std::fill(seconds.begin(), seconds.end(), 0.5);
    seconds[0] = 1;
    return OkStatus();
  };
  ASSERT_TRUE(internal::LoadModelWeights(const_cast<internal::ModelImpl&>(model->impl()), load, machine).ok());
  EXPECT_EQ(model->weight_copy_bytes() > 0, HasLinearBackend(LinearBackend::kOneDnn));
  SessionOptions options;
  options.threads = 2;
  Result<Session> session = Session::Create(*model, options);
  ASSERT_TRUE(session.ok()) << session.status().c_str();
  ASSERT_TRUE(session->Prefill(std::vector<int32_t>(200, 3)).ok());
  ASSERT_TRUE(session->Step(1).ok());
  const std::vector<int32_t> few(31, 5);
  const int64_t before = internal::NumAllocations();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(session->Step(i).ok());
  ASSERT_TRUE(session->Prefill(few).ok());
  EXPECT_EQ(internal::NumAllocations() - before, 0);
}

TEST(SessionAllocation, TheHooksCount) {
  const int64_t before = internal::NumAllocations();
  std::vector<int> some(1000);
  some[0] = 1;
  EXPECT_GT(internal::NumAllocations() - before, 0) << some[0];
}

}  // namespace
}  // namespace headlane::testing
