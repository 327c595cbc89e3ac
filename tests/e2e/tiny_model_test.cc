// The decoder on models of a few thousand weights: right against a forward pass in double precision, and the same bits
// however the tokens come in.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "decoder/expect_status.h"
#include "decoder/tiny_vocab.h"
#include "e2e/tiny_model.h"
#include "headlane/decoder.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

using LogitRows = std::vector<std::vector<float>>;

Model Load(const TinyModel& tiny, LinearBackend backend = LinearBackend::kTile) {
  const TemporaryFile file(tiny.Build());
  Result<Model> model = Model::Open(file.path());
  EXPECT_TRUE(model.ok()) << model.status().c_str();
  LoadOptions options;
  options.linear = backend;
  const Status loaded = model->LoadWeights(options);
  EXPECT_TRUE(loaded.ok()) << loaded.c_str();
  return std::move(model).value();
}

Session MakeSession(const Model& model, const SessionOptions& options) {
  Result<Session> session = Session::Create(model, options);
  EXPECT_TRUE(session.ok()) << session.status().c_str();
  return std::move(session).value();
}

std::vector<int32_t> SomeIds(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random.Int(0, 259)));
  return ids;
}

std::vector<float> Copy(std::span<const float> row) { return {row.begin(), row.end()}; }

// Logits after each token, fed one by one.
LogitRows StepAll(Session& session, const std::vector<int32_t>& ids) {
  LogitRows rows;
  for (const int32_t id : ids) {
    const auto logits = session.Step(id);
    EXPECT_TRUE(logits.ok()) << logits.status().c_str();
    rows.push_back(Copy(*logits));
  }
  return rows;
}

struct Variant {
  const char* name;
  void (*change)(TinyModel&);
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

const Variant kVariants[] = {
    {"Plain", [](TinyModel&) {}},
    {"UntiedHead", [](TinyModel& m) { m.tied_head = false; }},
    {"Biases", [](TinyModel& m) { m.biases = true; }},
    {"OneKvHead", [](TinyModel& m) { m.num_kv_heads = 1; }},
    {"AsManyKvHeads", [](TinyModel& m) { m.num_kv_heads = 4; }},
    {"GroupsOfThree",
     [](TinyModel& m) {
       m.num_q_heads = 9;
       m.num_kv_heads = 3;
       m.qk_dim = m.v_dim = m.rotary_dim = 8;
     }},
    {"HeadsWiderThanTheModel", [](TinyModel& m) { m.qk_dim = m.v_dim = m.rotary_dim = 20; }},
    {"ValuesOfAnotherWidth", [](TinyModel& m) { m.v_dim = 17; }},
    {"PartialRotation", [](TinyModel& m) { m.rotary_dim = 4; }},
    {"NoRotation", [](TinyModel& m) { m.rotary_dim = 0; }},
    {"LinearScaling", [](TinyModel& m) { m.rope_linear_factor = 4; }},
    {"LinearScalingFormerKey",
     [](TinyModel& m) {
       m.rope_linear_factor = 4;
       m.former_scale_key = true;
     }},
    // Base 20 spreads YaRN's ramp over several pairs.
    {"YarnWithARamp",
     [](TinyModel& m) {
       m.rope_yarn_factor = 4;
       m.rope_base = 20;
       m.rope_attention_factor = 0.75;
     }},
    {"AttentionFactorAlone", [](TinyModel& m) { m.rope_attention_factor = 1.25; }},
    {"DivisorsFromTheFile", [](TinyModel& m) { m.rope_divisors = {1.0f, 3.5f, 8.0f}; }},
    {"LargeBase", [](TinyModel& m) { m.rope_base = 500000; }},
    {"ScaleFromTheFile", [](TinyModel& m) { m.attention_scale = 0.0625; }},
    {"OneLayer", [](TinyModel& m) { m.num_layers = 1; }},
    {"LargeEpsilon", [](TinyModel& m) { m.epsilon = 0.5f; }},
};

class TinyModelTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    GetParam().change(tiny_);
    tiny_.MakeWeights(7);
  }
  TinyModel tiny_;
};

INSTANTIATE_TEST_SUITE_P(All, TinyModelTest, ::testing::ValuesIn(kVariants),
                         [](const auto& info) { return std::string(info.param.name); });

// Logits are of the size of 1 to 5; the pass has some 200 roundings of 2^-24 one behind the other.
constexpr double kTolerance = 4e-5;

TEST_P(TinyModelTest, LogitsAreThoseOfDoublePrecision) {
  const std::vector<int32_t> ids = SomeIds(40, 3);
  const auto expected = tiny_.Logits(ids);
  const Model model = Load(tiny_);
  Session session = MakeSession(model, SessionOptions());
  const LogitRows actual = StepAll(session, ids);
  double largest = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    for (size_t i = 0; i < expected[t].size(); ++i) {
      ASSERT_NEAR(expected[t][i], static_cast<double>(actual[t][i]), kTolerance) << "token " << t << " logit " << i;
      largest = std::max(largest, std::fabs(expected[t][i]));
    }
  }
  EXPECT_GT(largest, 1.0) << "logits too small for the tolerance to mean anything";
}

TEST_P(TinyModelTest, SameBitsForThreadsChunksAndPages) {
  const std::vector<int32_t> ids = SomeIds(50, 4);
  const Model model = Load(tiny_);
  SessionOptions options;
  options.threads = 1;
  Session session = MakeSession(model, options);
  const LogitRows expected = StepAll(session, ids);
  for (const int threads : {1, 2, 3}) {
    for (const int64_t chunk : {1, 7, 32, 512}) {
      for (const int64_t page : {16, 64}) {
        options.threads = threads;
        options.chunk = chunk;
        options.page_tokens = page;
        Session other = MakeSession(model, options);
        // A prompt, and then steps behind it.
        const size_t prompt = 33;
        ASSERT_TRUE(other.Prefill(std::span(ids).first(prompt)).ok());
        ASSERT_EQ(Copy(other.logits()), expected[prompt - 1])
            << threads << " threads, chunk " << chunk << ", page " << page;
        const LogitRows steps = StepAll(other, std::vector<int32_t>(ids.begin() + prompt, ids.end()));
        for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], expected[prompt + i]) << i;
      }
    }
  }
}

TEST_P(TinyModelTest, LossIsThatOfTheLogits) {
  const std::vector<int32_t> ids = SomeIds(41, 5);
  const auto logits = tiny_.Logits(ids);
  const Model model = Load(tiny_);
  std::vector<double> first;
  for (const int64_t chunk : {1, 20, 512}) {
    SessionOptions options;
    options.chunk = chunk;
    Session session = MakeSession(model, options);
    std::vector<double> losses(ids.size() - 1);
    ASSERT_TRUE(session.Score(ids, losses).ok());
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      double sum = 0;
      for (const double logit : logits[t]) sum += std::exp(logit);
      ASSERT_NEAR(losses[t], std::log(sum) - logits[t][static_cast<size_t>(ids[t + 1])], kTolerance) << t;
    }
    if (first.empty()) first = losses;
    EXPECT_EQ(losses, first) << "chunk " << chunk;
    // The session goes on from there.
    EXPECT_EQ(session.length(), 41);
    for (size_t i = 0; i < logits.back().size(); ++i) {
      ASSERT_NEAR(logits.back()[i], static_cast<double>(session.logits()[i]), kTolerance);
    }
  }
}

TEST(TinyModelSession, OneDnnAgreesWithinRounding) {
  if (!HasLinearBackend(LinearBackend::kOneDnn)) GTEST_SKIP() << "this build is without oneDNN";
  TinyModel tiny;
  tiny.MakeWeights(7);
  const std::vector<int32_t> ids = SomeIds(40, 3);
  const auto expected = tiny.Logits(ids);
  const Model model = Load(tiny, LinearBackend::kOneDnn);
  Session session = MakeSession(model, SessionOptions());
  ASSERT_TRUE(session.Prefill(ids).ok());
  for (size_t i = 0; i < expected.back().size(); ++i) {
    ASSERT_NEAR(expected.back()[i], static_cast<double>(session.logits()[i]), kTolerance);
  }
}

TEST(TinyModelSession, TruncateForgetsExactly) {
  TinyModel tiny;
  tiny.MakeWeights(11);
  const Model model = Load(tiny);
  const std::vector<int32_t> ids = SomeIds(60, 6);
  Session session = MakeSession(model, SessionOptions());
  const LogitRows expected = StepAll(session, ids);
  for (const int64_t length : {59, 32, 17, 16, 1, 0}) {
    ASSERT_TRUE(session.Truncate(length).ok());
    EXPECT_EQ(session.length(), length);
    EXPECT_TRUE(session.logits().empty());
    // Something else is written over it first.
    ASSERT_TRUE(session.Prefill(SomeIds(3, 99)).ok());
    ASSERT_TRUE(session.Truncate(length).ok());
    ASSERT_TRUE(session.Prefill(std::span(ids).subspan(static_cast<size_t>(length), 1)).ok());
    EXPECT_EQ(Copy(session.logits()), expected[static_cast<size_t>(length)]) << length;
  }
  EXPECT_ERROR(session.Truncate(2), kOutOfRange, "2");
  EXPECT_ERROR(session.Truncate(-1), kOutOfRange, "-1");
}

TEST(TinyModelSession, ErrorsLeaveTheSessionAsItWas) {
  TinyModel tiny;
  tiny.MakeWeights(11);
  const Model model = Load(tiny);
  SessionOptions options;
  options.max_context = 20;
  options.chunk = 4;
  Session session = MakeSession(model, options);
  const std::vector<int32_t> ids = SomeIds(20, 6);
  ASSERT_TRUE(session.Prefill(std::span(ids).first(5)).ok());
  const std::vector<float> logits = Copy(session.logits());

  std::vector<int32_t> bad = ids;
  bad[9] = 260;
  EXPECT_ERROR(session.Prefill(std::span(bad).subspan(5, 10)), kOutOfRange,
               "token 4 has the id 260; the vocabulary has 260");
  EXPECT_ERROR(session.Step(-1), kOutOfRange, "the id -1");
  EXPECT_ERROR(session.Prefill(std::span(ids).first(16)), kResourceExhausted,
               "5 tokens and 16 more do not fit into a context of 20");
  int calls = 0;
  EXPECT_ERROR(session.Prefill(std::span(ids).first(15),
                               [&](int64_t done, int64_t total) {
                                 EXPECT_EQ(total, 15);
                                 EXPECT_EQ(done, 4 * ++calls);
                                 return calls < 2;
                               }),
               kCancelled, "stopped after 8 of 15 tokens");
  std::vector<double> losses(3);
  EXPECT_ERROR(session.Score(std::span(ids).first(5), losses), kInvalidArgument, "3 places for 5 tokens");
  EXPECT_ERROR(session.FillRandom(4, 1), kOutOfRange, "there are 5 already");
  EXPECT_ERROR(session.FillRandom(21, 1), kResourceExhausted, "context of 20");
  EXPECT_EQ(session.length(), 5);
  EXPECT_EQ(Copy(session.logits()), logits);

  // And it goes on as if nothing had been: up to exactly its capacity.
  ASSERT_TRUE(session.Prefill(std::span(ids).subspan(5)).ok());
  EXPECT_EQ(session.length(), 20);
  Session whole = MakeSession(model, options);
  ASSERT_TRUE(whole.Prefill(ids).ok());
  EXPECT_EQ(Copy(session.logits()), Copy(whole.logits()));
  EXPECT_ERROR(session.Step(0), kResourceExhausted, "20 tokens and 1 more");
}

TEST(TinyModelSession, NothingToDoIsNoError) {
  TinyModel tiny;
  tiny.MakeWeights(11);
  const Model model = Load(tiny);
  Session session = MakeSession(model, SessionOptions());
  EXPECT_TRUE(session.Prefill({}).ok());
  EXPECT_TRUE(session.Score({}, {}).ok());
  EXPECT_TRUE(session.Truncate(0).ok());
  EXPECT_TRUE(session.FillRandom(0, 1).ok());
  EXPECT_EQ(session.length(), 0);
  EXPECT_TRUE(session.logits().empty());
}

TEST(TinyModelSession, BadOptionsAreNamed) {
  TinyModel tiny;
  tiny.MakeWeights(11);
  const Model model = Load(tiny);
  const auto create = [&](auto change) {
    SessionOptions options;
    change(options);
    return StatusOf(Session::Create(model, options));
  };
  EXPECT_ERROR(create([](SessionOptions& o) { o.max_context = 0; }), kInvalidArgument, "max_context is 0");
  EXPECT_ERROR(create([](SessionOptions& o) { o.max_context = int64_t{1} << 40; }), kInvalidArgument,
               "max_context is 1099511627776");
  EXPECT_ERROR(create([](SessionOptions& o) { o.chunk = 0; }), kInvalidArgument, "chunk is 0");
  EXPECT_ERROR(create([](SessionOptions& o) { o.threads = -1; }), kInvalidArgument, "threads is -1");
  EXPECT_ERROR(create([](SessionOptions& o) { o.page_tokens = 24; }), kInvalidArgument, "24");
  LoadOptions load;
  EXPECT_ERROR(const_cast<Model&>(model).LoadWeights(load), kFailedPrecondition, "loaded already");
}

TEST(TinyModelSession, WeightsMustBeLoaded) {
  TinyModel tiny;
  tiny.MakeWeights(11);
  const TemporaryFile file(tiny.Build());
  Result<Model> model = Model::Open(file.path());
  ASSERT_TRUE(model.ok());
  EXPECT_FALSE(model->weights_loaded());
  EXPECT_EQ(model->weight_bytes(), 0);
  EXPECT_ERROR(Session::Create(*model), kFailedPrecondition, "LoadWeights");
  // A load that was stopped can be tried again.
  LoadOptions options;
  options.progress = [](int64_t, int64_t) { return false; };
  EXPECT_ERROR(model->LoadWeights(options), kCancelled, "stopped");
  EXPECT_FALSE(model->weights_loaded());
  int64_t last = 0;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, model->info().num_parameters);
    last = done;
    return true;
  };
  EXPECT_TRUE(model->LoadWeights(options).ok());
  EXPECT_EQ(last, model->info().num_parameters);
  EXPECT_GE(model->weight_bytes(), 4 * (model->info().num_parameters - 100 * 24));
}

TEST(TinyModelSession, RandomFillIsSeededAndReadable) {
  TinyModel tiny;
  tiny.MakeWeights(11);
  const Model model = Load(tiny);
  std::vector<std::vector<float>> rows;
  for (const uint64_t seed : {1, 1, 2}) {
    Session session = MakeSession(model, SessionOptions());
    ASSERT_TRUE(session.FillRandom(700, seed).ok());
    EXPECT_EQ(session.length(), 700);
    EXPECT_TRUE(session.logits().empty());
    ASSERT_TRUE(session.Step(5).ok());
    rows.push_back(Copy(session.logits()));
    for (const float logit : rows.back()) ASSERT_TRUE(std::isfinite(logit));
  }
  EXPECT_EQ(rows[0], rows[1]);
  EXPECT_NE(rows[0], rows[2]);
}

TEST(TinyModelSession, StatsAddUp) {
  TinyModel tiny;
  tiny.MakeWeights(11);
  const Model model = Load(tiny);
  SessionOptions options;
  options.chunk = 16;
  Session session = MakeSession(model, options);
  ASSERT_TRUE(session.Prefill(SomeIds(40, 1)).ok());
  StepAll(session, SomeIds(3, 2));
  const PhaseStats prompt = session.prompt_stats();
  const PhaseStats steps = session.step_stats();
  EXPECT_EQ(prompt.tokens, 40);
  EXPECT_EQ(prompt.calls, 1);
  EXPECT_EQ(steps.tokens, 3);
  EXPECT_EQ(steps.calls, 3);
  for (const PhaseStats& s : {prompt, steps}) {
    EXPECT_GT(s.attention, 0);
    EXPECT_GT(s.append, 0);
    EXPECT_GT(s.linear, 0);
    EXPECT_GE(s.rest(), 0);
    EXPECT_GT(s.kv_bytes, 0);
  }
  // 40, 41, 42 and then the new token itself: 41 + 42 + 43 tokens were read, in 2 layers, 2 heads, 6 + 6 numbers; whole
  // tiles at most.
  const double token_bytes = 2 * 2 * 12 * 4;
  EXPECT_GE(steps.kv_bytes, (41 + 42 + 43) * token_bytes);
  EXPECT_LE(steps.kv_bytes, 3 * 48 * 2 * 2 * (6 + 16) * 4);
  // Weights once per chunk and once per step; the head once per prompt.
  EXPECT_DOUBLE_EQ(steps.weight_bytes, 3.0 * static_cast<double>(model.weight_bytes()));
  EXPECT_GT(prompt.weight_bytes, 2.0 * static_cast<double>(model.weight_bytes()) / 2);
  session.ResetStats();
  EXPECT_EQ(session.prompt_stats().tokens, 0);
  EXPECT_EQ(session.step_stats().total, 0);
}

}  // namespace
}  // namespace headlane::testing
