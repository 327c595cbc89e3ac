// The default model against vectors computed in double precision from the same file: ids exactly, logits and losses
// within what f32 needs.
//
// HEADLANE_MODEL names the file. Without it the tests say so and are skipped, unless HEADLANE_REQUIRE_MODEL is 1: then
// they fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "headlane/decoder.h"
#include "support/bits.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEADLANE_SLOW_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HEADLANE_SLOW_BUILD 1
#endif
#endif

namespace headlane::testing {
namespace {

using Json = nlohmann::json;

// What the reference's page asks for: f32 arithmetic on the file's weights gives logits within 3e-5 of double
// precision.
constexpr double kLogitTolerance = 2e-4;
constexpr double kLossTolerance = 1e-4;

// A sanitizer's build takes minutes per prompt: it then checks the first prompts and tokens only, and says nothing
// about the rest.
#ifdef HEADLANE_SLOW_BUILD
constexpr size_t kMaxPrompts = 2;
constexpr size_t kMaxSteps = 4;
constexpr size_t kMaxScored = 64;
#else
constexpr size_t kMaxPrompts = SIZE_MAX;
constexpr size_t kMaxSteps = SIZE_MAX;
constexpr size_t kMaxScored = SIZE_MAX;
#endif

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<int32_t> Ids(const Json& json) { return json.get<std::vector<int32_t>>(); }

class ModelReferenceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const char* path = std::getenv("HEADLANE_MODEL");
    if (path == nullptr || *path == 0) return;
    reference_ = std::make_unique<Json>(Json::parse(ReadText(HEADLANE_TEST_DATA "/smollm2_135m_instruct_q4_1.json")));
    Result<Model> model = Model::Open(path);
    ASSERT_TRUE(model.ok()) << model.status().c_str();
    const Status loaded = model->LoadWeights();
    ASSERT_TRUE(loaded.ok()) << loaded.c_str();
    model_ = std::make_unique<Model>(std::move(model).value());
  }
  static void TearDownTestSuite() {
    model_.reset();
    reference_.reset();
  }

  void SetUp() override {
    if (model_) {
      ASSERT_EQ(model_->info().file_bytes, (*reference_)["model"]["bytes"].get<int64_t>())
          << "HEADLANE_MODEL is another file than the reference's";
      return;
    }
    const char* path = std::getenv("HEADLANE_MODEL");
    if (path != nullptr && *path != 0) FAIL() << "the model could not be loaded: " << path;
    const char* required = std::getenv("HEADLANE_REQUIRE_MODEL");
    if (required != nullptr && std::string(required) == "1") FAIL() << "HEADLANE_MODEL is not set, but required";
    std::printf("model test skipped: HEADLANE_MODEL names no model file\n");
    GTEST_SKIP();
  }

  static Session MakeSession(int64_t max_context, int threads = 0, int64_t chunk = 512) {
    SessionOptions options;
    options.max_context = max_context;
    options.threads = threads;
    options.chunk = chunk;
    Result<Session> session = Session::Create(*model_, options);
    EXPECT_TRUE(session.ok()) << session.status().c_str();
    return std::move(session).value();
  }

  static void ExpectTop(std::span<const float> logits, const Json& top) {
    ASSERT_FALSE(top.empty());
    for (const Json& pair : top) {
      const size_t id = pair[0].get<size_t>();
      ASSERT_LT(id, logits.size());
      EXPECT_NEAR(static_cast<double>(logits[id]), pair[1].get<double>(), kLogitTolerance) << "id " << id;
    }
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(best, top[0][0].get<int64_t>());
  }

  static std::unique_ptr<Json> reference_;
  static std::unique_ptr<Model> model_;
};

std::unique_ptr<Json> ModelReferenceTest::reference_;
std::unique_ptr<Model> ModelReferenceTest::model_;

TEST_F(ModelReferenceTest, EveryGenerationIsTheReferences) {
  Result<TokenSampler> sampler = TokenSampler::Create(model_->info().vocab_size, SamplingOptions());
  ASSERT_TRUE(sampler.ok());
  size_t num_prompts = 0;
  for (const Json& test : (*reference_)["generation"]) {
    if (num_prompts++ == kMaxPrompts) break;
    SCOPED_TRACE(test["name"].get<std::string>());
    const auto prompt_ids = model_->Encode(test["prompt"].get<std::string>(), PromptMode::kRaw);
    ASSERT_TRUE(prompt_ids.ok()) << prompt_ids.status().c_str();
    ASSERT_EQ(*prompt_ids, Ids(test["prompt_ids"]));

    const std::vector<int32_t> expected = Ids(test["generated_ids"]);
    Session session = MakeSession(static_cast<int64_t>(prompt_ids->size() + expected.size()));
    ASSERT_TRUE(session.Prefill(*prompt_ids).ok());
    ExpectTop(session.logits(), test["first_logits"]["top"]);
    const size_t count = std::min(kMaxSteps, expected.size());
    std::vector<int32_t> ids;
    for (;;) {
      const auto id = sampler->Next(session.logits());
      ASSERT_TRUE(id.ok()) << id.status().c_str();
      ids.push_back(*id);
      if (ids.size() == count || model_->IsStop(*id)) break;
      ASSERT_TRUE(session.Step(*id).ok());
    }
    EXPECT_EQ(ids, std::vector<int32_t>(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(count)));
    if (count == expected.size()) {
      ExpectTop(session.logits(), test["last_logits"]["top"]);
      EXPECT_EQ(*model_->Decode(ids), test["text"].get<std::string>());
    }
  }
}

// The reference's chat prompts are the template's text with its control tokens parsed; our own format builds the same
// ids.
TEST_F(ModelReferenceTest, ChatFormatIsTheTemplates) {
  int num_found = 0;
  for (const Json& test : (*reference_)["generation"]) {
    const std::string prompt = test["prompt"].get<std::string>();
    const std::string before = "<|im_end|>\n<|im_start|>user\n";
    const std::string after = "<|im_end|>\n<|im_start|>assistant\n";
    const size_t begin = prompt.find(before);
    if (begin == std::string::npos || prompt.find(after) != prompt.rfind(after)) continue;
    const size_t end = prompt.find(after);
    ++num_found;
    const std::string message = prompt.substr(begin + before.size(), end - begin - before.size());
    const auto ids = model_->Encode(message, PromptMode::kChat);
    ASSERT_TRUE(ids.ok()) << ids.status().c_str();
    EXPECT_EQ(*ids, Ids(test["prompt_ids"])) << message;
    const std::string_view system = "Be brief.";
    const auto other = model_->Encode(message, PromptMode::kChat, &system);
    ASSERT_TRUE(other.ok());
    EXPECT_NE(*other, *ids);
    EXPECT_EQ(*model_->Decode(*other), "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n" + message + after);
  }
  EXPECT_GE(num_found, 2);
}

TEST_F(ModelReferenceTest, LossesAreTheReferences) {
  const Json& expected = (*reference_)["perplexity"];
  const auto ids = model_->Encode(ReadText(HEADLANE_TEST_DATA "/reference_text.txt"), PromptMode::kLiteral);
  ASSERT_TRUE(ids.ok()) << ids.status().c_str();
  ASSERT_EQ(ids->size(), expected["tokens"].get<size_t>());
  const size_t n = std::min(ids->size(), kMaxScored);
  Session session = MakeSession(static_cast<int64_t>(n));
  std::vector<double> losses(n - 1);
  const Status scored = session.Score(std::span<const int32_t>(*ids).first(n), losses);
  ASSERT_TRUE(scored.ok()) << scored.c_str();

  const auto first = expected["loss_of_first_16"].get<std::vector<double>>();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(losses[i], first[i], kLogitTolerance) << i;
  const auto mean = [&](size_t begin, size_t end) {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += losses[i];
    return sum / static_cast<double>(end - begin);
  };
  if (n < ids->size()) return;
  const auto by_256 = expected["mean_loss_by_256"].get<std::vector<double>>();
  ASSERT_EQ(by_256.size(), (losses.size() + 255) / 256);
  for (size_t i = 0; i < by_256.size(); ++i) {
    EXPECT_NEAR(mean(256 * i, std::min(losses.size(), 256 * (i + 1))), by_256[i], kLossTolerance) << i;
  }
  EXPECT_NEAR(mean(0, losses.size()), expected["mean_loss"].get<double>(), kLossTolerance);
}

// Hashes of every row of logits of a prompt's end and of some steps behind it.
std::vector<uint64_t> HashesOf(Session session, const std::vector<int32_t>& prompt, size_t num_steps,
                               std::vector<int32_t>* ids) {
  Result<TokenSampler> sampler = TokenSampler::Create(static_cast<int64_t>(49152), SamplingOptions());
  std::vector<uint64_t> hashes;
  EXPECT_TRUE(session.Prefill(prompt).ok());
  for (size_t i = 0;; ++i) {
    hashes.push_back(HashBits(session.logits().data(), session.logits().size()));
    const auto id = sampler->Next(session.logits());
    ids->push_back(*id);
    if (i == num_steps) return hashes;
    EXPECT_TRUE(session.Step(*id).ok());
  }
}

TEST_F(ModelReferenceTest, SameBitsForThreadsAndChunks) {
  const Json& long_test = (*reference_)["generation"].back();
  std::vector<int32_t> prompt = Ids(long_test["prompt_ids"]);
  prompt.resize(std::min<size_t>(prompt.size(), std::min<size_t>(300, kMaxScored / 4)));
  const size_t num_steps = std::min<size_t>(6, kMaxSteps);
  const int64_t n = static_cast<int64_t>(prompt.size());
  std::vector<int32_t> expected_ids;
  const std::vector<uint64_t> expected = HashesOf(MakeSession(n + 16, 1, n), prompt, num_steps, &expected_ids);
  for (const int threads : {1, 2}) {
    for (const int64_t chunk : {int64_t{1}, int64_t{32}, n}) {
      std::vector<int32_t> ids;
      EXPECT_EQ(HashesOf(MakeSession(n + 16, threads, chunk), prompt, num_steps, &ids), expected)
          << threads << " threads, chunk " << chunk;
      EXPECT_EQ(ids, expected_ids);
    }
  }
}

}  // namespace
}  // namespace headlane::testing
