// Numerics::kFastest: which layers get a copy on another backend follows what was measured, and nothing else; what runs
// on them is right within rounding; single tokens keep their bits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "decoder/decoder_impl.h"
#include "decoder/expect_status.h"
#include "decoder/tiny_vocab.h"
#include "e2e/session_model.h"
#include "headlane/executor.h"

namespace headlane::testing {
namespace {

using internal::ChoiceMachine;
using internal::LoadModelWeights;

constexpr LinearBackend kTile = LinearBackend::kTile, kOneDnn = LinearBackend::kOneDnn,
                        kBf16 = LinearBackend::kOneDnnBf16;

// Answers what a test says in place of a machine. Layers of oneDNN in f32 are real where the build has it; others are
// views of the tiles.
struct FakeMachine {
  using Shape = std::pair<int64_t, int64_t>;  // out, in

  // Seconds by number of rows and backend; tiles take 1.
  std::map<std::pair<int64_t, LinearBackend>, double> seconds;
  std::map<Shape, double> factors;  // of a shape's others; 1 if it isn't there
  std::map<LinearBackend, Status> refused;
  Status measure_status;
  int64_t fail_make_from = INT64_MAX;  // the number of the call
  std::map<LinearBackend, int64_t> makes;
  int64_t num_makes = 0;
  int64_t num_measures = 0;

  void Set(LinearBackend backend, double at_512, double at_128, double at_32) {
    seconds[{512, backend}] = at_512;
    seconds[{128, backend}] = at_128;
    seconds[{32, backend}] = at_32;
  }

  ChoiceMachine Machine() {
    ChoiceMachine machine;
    machine.make = [this](const LinearSpec& spec, const Linear& tiles, Executor& executor) -> Result<Linear> {
      ++makes[spec.backend];
      if (num_makes++ >= fail_make_from) return MakeStatus(StatusCode::kResourceExhausted, "no memory left");
      if (const auto status = refused.find(spec.backend); status != refused.end()) return status->second;
      if (spec.backend == kOneDnn && HasLinearBackend(kOneDnn)) {
        return Linear::CreateFromTiles(spec, tiles, executor);
      }
      LinearSpec view = spec;
      view.backend = kTile;
      return Linear::CreateFromPacked(view, tiles.packed());
    };
    machine.measure = [this](std::span<const Linear* const> layers, int64_t rows, Executor&, std::span<double> out) {
      ++num_measures;
      EXPECT_EQ(layers.size(), out.size());
      const auto factor = factors.find({layers[0]->out_features(), layers[0]->in_features()});
      // The tiles, and then the others, in the order of their numbers; fewer where some were refused.
      std::vector<double> others;
      for (const LinearBackend backend : {kOneDnn, kBf16}) {
        if (refused.contains(backend)) continue;
        const auto found = seconds.find({rows, backend});
        others.push_back((found == seconds.end() ? 2.0 : found->second) *
                         (factor == factors.end() ? 1.0 : factor->second));
      }
      out[0] = 1;
      if (rows == 512) {
        for (size_t i = 1; i < out.size(); ++i) out[i] = others[i - 1];
      } else {
        EXPECT_EQ(out.size(), 2U);  // the tiles and the one that won
        out[1] = *std::min_element(others.begin(), others.end());
      }
      return measure_status;
    };
    return machine;
  }
};

class Fastest : public ::testing::Test {
 protected:
  Fastest() {
    tiny_.biases = true;
    tiny_.MakeWeights(7);
    options_.numerics = Numerics::kFastest;
    options_.threads = 2;
  }

  Model Open() const {
    const TemporaryFile file(tiny_.Build());
    Result<Model> model = Model::Open(file.path());
    EXPECT_TRUE(model.ok()) << model.status().c_str();
    return std::move(model).value();
  }
  Status Load(Model& model, FakeMachine& machine) const {
    return LoadModelWeights(const_cast<internal::ModelImpl&>(model.impl()), options_, machine.Machine());
  }
  Model Loaded(FakeMachine& machine) const {
    Model model = Open();
    const Status status = Load(model, machine);
    EXPECT_TRUE(status.ok()) << status.c_str();
    return model;
  }
  // All layers on oneDNN from 32 rows on.
  Model LoadedWithCopies() const {
    FakeMachine machine;
    machine.Set(kOneDnn, 0.5, 0.5, 0.5);
    machine.refused[kBf16] = MakeStatus(StatusCode::kUnsupported, "no bf16");
    return Loaded(machine);
  }

  TinyModel tiny_;
  LoadOptions options_;
};

int64_t CountCopies(const Model& model) {
  int64_t count = 0;
  for (const auto& layer : model.impl().many_rows->layers) {
    for (const auto& copy : layer) count += copy.layer ? 1 : 0;
  }
  return count;
}

TEST_F(Fastest, AFasterBackendIsCopied) {
  const int64_t tiles = LoadTiny(tiny_).weight_bytes();
  FakeMachine machine;
  machine.Set(kOneDnn, 0.5, 0.5, 0.5);
  machine.refused[kBf16] = MakeStatus(StatusCode::kUnsupported, "no bf16 here");
  const Model model = Loaded(machine);
  ASSERT_EQ(model.layer_choices().size(), 4U);
  int64_t copies = 0, weights = 0;
  const char* const names[] = {"qkv", "o", "gate_up", "down"};
  for (size_t i = 0; i < 4; ++i) {
    const LayerChoice& choice = model.layer_choices()[i];
    EXPECT_EQ(choice.layer, names[i]);
    EXPECT_EQ(choice.num_layers, tiny_.num_layers);
    EXPECT_EQ(choice.many_rows, kOneDnn) << names[i];
    EXPECT_EQ(choice.from_rows, 32) << names[i];
    EXPECT_EQ(choice.rows, 512);
    ASSERT_EQ(choice.candidates.size(), 3U);
    EXPECT_EQ(choice.candidates[0].backend, kTile);
    EXPECT_EQ(choice.candidates[0].seconds, 1);
    EXPECT_EQ(choice.candidates[1].seconds, 0.5);
    EXPECT_EQ(choice.candidates[2].backend, kBf16);
    EXPECT_ERROR(choice.candidates[2].status, kUnsupported, "no bf16 here");
    EXPECT_EQ(choice.candidates[2].seconds, 0);
    copies += choice.bytes;
    weights += choice.num_layers * choice.in_features * choice.out_features * (i == 2 ? 2 : 1);
  }
  EXPECT_GT(copies, 0);
  EXPECT_GE(copies, HasLinearBackend(kOneDnn) ? 4 * weights : 1);
  EXPECT_EQ(model.weight_copy_bytes(), copies);
  EXPECT_EQ(model.weight_bytes(), tiles + copies);
  EXPECT_EQ(CountCopies(model), 4 * tiny_.num_layers);
  // What was measured became the copy: nothing is made twice.
  EXPECT_EQ(machine.makes[kOneDnn], 4 * tiny_.num_layers);
  EXPECT_EQ(machine.makes[kBf16], 4);
}

TEST_F(Fastest, ASlowerOneLeavesNothingBehind) {
  const int64_t tiles = LoadTiny(tiny_).weight_bytes();
  for (const double seconds : {2.0, 1.0, 0.98}) {
    FakeMachine machine;
    machine.Set(kOneDnn, seconds, 0.1, 0.1);
    machine.Set(kBf16, seconds, 0.1, 0.1);
    const Model model = Loaded(machine);
    for (const LayerChoice& choice : model.layer_choices()) {
      EXPECT_EQ(choice.many_rows, kTile);
      EXPECT_EQ(choice.from_rows, 0);
      EXPECT_EQ(choice.bytes, 0);
      EXPECT_EQ(choice.candidates[1].seconds, seconds);
    }
    EXPECT_EQ(machine.num_measures, 4);  // fewer rows are of no interest then
    EXPECT_EQ(model.weight_copy_bytes(), 0);
    EXPECT_EQ(model.weight_bytes(), tiles);
    EXPECT_EQ(CountCopies(model), 0);
    // And it is the reproducible model.
    const std::vector<int32_t> ids = SomeIds(70, 3);
    const Model reproducible = LoadTiny(tiny_);
    Session a = MakeSession(model, {}), b = MakeSession(reproducible, {});
    ASSERT_TRUE(a.Prefill(ids).ok() && b.Prefill(ids).ok());
    EXPECT_EQ(Copy(a.logits()), Copy(b.logits()));
  }
}

TEST_F(Fastest, FromTheFewestRowsThatItWins) {
  for (const auto& [at_512, at_128, at_32, from] :
       {std::tuple(0.5, 0.5, 2.0, 128), std::tuple(0.5, 2.0, 0.5, 512), std::tuple(0.5, 0.5, 0.96, 32)}) {
    FakeMachine machine;
    machine.Set(kOneDnn, at_512, at_128, at_32);
    machine.refused[kBf16] = MakeStatus(StatusCode::kUnsupported, "no bf16");
    const Model model = Loaded(machine);
    for (const LayerChoice& choice : model.layer_choices()) EXPECT_EQ(choice.from_rows, from) << choice.layer;
    const internal::ManyRows& many = *model.impl().many_rows;
    EXPECT_EQ(many.fewest_rows, from);
    EXPECT_EQ(many.Find(0, internal::LayerKind::kO, from - 1), nullptr);
    EXPECT_NE(many.Find(0, internal::LayerKind::kO, from), nullptr);
    EXPECT_NE(many.Find(1, internal::LayerKind::kDown, 100000), nullptr);
  }
}

TEST_F(Fastest, ShapesAreChosenOneByOneAndHaveToBeWorthItTogether) {
  // Only o; then o by so little that a pass gains next to nothing (each shape's tiles take the same time here).
  for (const auto& [seconds, copied] : {std::pair(0.5, true), std::pair(0.9, false)}) {
    FakeMachine machine;
    machine.Set(kOneDnn, 2, 2, 2);
    machine.refused[kBf16] = MakeStatus(StatusCode::kUnsupported, "no bf16");
    machine.factors[{tiny_.width, tiny_.num_q_heads * tiny_.v_dim}] = seconds / 2;
    const Model model = Loaded(machine);
    for (const LayerChoice& choice : model.layer_choices()) {
      EXPECT_EQ(choice.many_rows, copied && choice.layer == "o" ? kOneDnn : kTile) << choice.layer;
      EXPECT_EQ(choice.from_rows, copied && choice.layer == "o" ? 32 : 0) << choice.layer;
    }
    EXPECT_EQ(CountCopies(model), copied ? tiny_.num_layers : 0);
    EXPECT_EQ(model.weight_copy_bytes() > 0, copied);
  }
}

TEST_F(Fastest, Bf16WhereItIsTheFastest) {
  FakeMachine machine;
  machine.Set(kOneDnn, 0.5, 0.5, 0.5);
  machine.Set(kBf16, 0.25, 0.25, 0.25);
  const Model model = Loaded(machine);
  for (const LayerChoice& choice : model.layer_choices()) {
    EXPECT_EQ(choice.many_rows, kBf16);
    EXPECT_EQ(choice.candidates[2].seconds, 0.25);
  }
  EXPECT_EQ(machine.makes[kBf16], 4 * tiny_.num_layers);
  EXPECT_EQ(machine.makes[kOneDnn], 4);  // measured and let go
}

TEST_F(Fastest, WhatFails) {
  const auto unloaded = [](const Model& model) {
    return !model.weights_loaded() && model.weight_bytes() == 0 && model.layer_choices().empty();
  };
  Model model = Open();
  FakeMachine machine;
  machine.Set(kOneDnn, 0.5, 0.5, 0.5);
  machine.measure_status = MakeStatus(StatusCode::kInternal, "oneDNN broke");
  EXPECT_ERROR(Load(model, machine), kInternal, "oneDNN broke");
  EXPECT_TRUE(unloaded(model));

  // Layers to measure are a try; layers to keep are not.
  machine.measure_status = OkStatus();
  machine.num_makes = 0;
  machine.fail_make_from = 8;
  EXPECT_ERROR(Load(model, machine), kResourceExhausted, "no memory left");
  EXPECT_TRUE(unloaded(model));
  machine.num_makes = 0;
  machine.fail_make_from = 0;
  Model tiles_only = Open();
  ASSERT_TRUE(Load(tiles_only, machine).ok());
  EXPECT_EQ(tiles_only.weight_copy_bytes(), 0);
  EXPECT_ERROR(tiles_only.layer_choices()[0].candidates[1].status, kResourceExhausted, "no memory left");

  // Stopped when all parameters are there, and layers are being copied.
  machine = FakeMachine();
  machine.Set(kOneDnn, 0.5, 0.5, 0.5);
  int at_end = 0;
  options_.progress = [&](int64_t done, int64_t total) { return done < total || ++at_end < 3; };
  EXPECT_ERROR(Load(model, machine), kCancelled, "stopped");
  EXPECT_TRUE(unloaded(model));
  options_.progress = nullptr;

  options_.linear = kOneDnn;
  EXPECT_ERROR(Load(model, machine), kInvalidArgument, "'onednn'");
  options_.linear = kTile;
  options_.numerics = static_cast<Numerics>(2);  // NOLINT(clang-analyzer-optin.core.EnumCastOutOfRange)
  EXPECT_ERROR(Load(model, machine), kInvalidArgument, "numerics is 2");
  EXPECT_TRUE(unloaded(model));
  options_.numerics = Numerics::kFastest;
  EXPECT_TRUE(Load(model, machine).ok());
  EXPECT_ERROR(model.LoadWeights(options_), kFailedPrecondition, "loaded already");
}

TEST_F(Fastest, ReproducibleAsksNobody) {
  options_.numerics = Numerics::kReproducible;
  FakeMachine machine;
  machine.Set(kOneDnn, 0.5, 0.5, 0.5);
  const Model model = Loaded(machine);
  EXPECT_EQ(machine.num_makes, 0);
  EXPECT_EQ(machine.num_measures, 0);
  EXPECT_TRUE(model.layer_choices().empty());
  EXPECT_EQ(model.weight_copy_bytes(), 0);
}

// Logits are of the size of 1 to 5; sums of 24 to 40 products in any order.
constexpr double kTolerance = 4e-5;

void ExpectNear(std::span<const double> expected, std::span<const float> actual, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(expected[i], static_cast<double>(actual[i]), kTolerance) << what << ", logit " << i;
  }
}

void OneAfterTheOther(void*, int n, Executor::Task task, void* context) {
  for (int i = 0; i < n; ++i) task(context, i);
}
void OnThreads(void*, int n, Executor::Task task, void* context) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) threads.emplace_back([=] { task(context, i); });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Fastest, LogitsAreThoseOfDoublePrecisionOnAnyExecutor) {
  const std::vector<int32_t> ids = SomeIds(90, 3);
  const auto expected = tiny_.Logits(ids);
  const Model model = LoadedWithCopies();
  OpenMPExecutor one(1), three(3);
  CallbackExecutor serial(nullptr, 2, &OneAfterTheOther), threads(nullptr, 3, &OnThreads);
  for (Executor* executor : std::initializer_list<Executor*>{&SerialExecutor(), &one, &three, &serial, &threads}) {
    for (const int64_t chunk : {512, 40, 33}) {
      SessionOptions options;
      options.executor = executor;
      options.chunk = chunk;
      Session session = MakeSession(model, options);
      // Many rows, then fewer in the last chunk, then single ones.
      ASSERT_TRUE(session.Prefill(std::span(ids).first(85)).ok());
      ExpectNear(expected[84], session.logits(), "prompt");
      for (size_t i = 85; i < ids.size(); ++i) ASSERT_TRUE(session.Step(ids[i]).ok());
      ExpectNear(expected.back(), session.logits(), "steps");
    }
  }
}

TEST_F(Fastest, LossesAndBatchesToo) {
  const std::vector<int32_t> ids = SomeIds(60, 5);
  const auto expected = tiny_.Logits(ids);
  const Model model = LoadedWithCopies();
  Session session = MakeSession(model, {});
  int64_t observed = 0;
  session.Observe([&](const LayerRows& rows) { observed += static_cast<int64_t>(rows.positions.size()); });
  std::vector<double> losses(ids.size() - 1);
  ASSERT_TRUE(session.Score(ids, losses).ok());
  EXPECT_EQ(observed, 60 * tiny_.num_layers);
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    double sum = 0;
    for (const double logit : expected[t]) sum += std::exp(logit);
    ASSERT_NEAR(losses[t], std::log(sum) - expected[t][static_cast<size_t>(ids[t + 1])], kTolerance) << t;
  }
  // What linear layers read: the copies, and the head's tiles once per pass.
  const double read = session.prompt_stats().weight_bytes;
  EXPECT_GT(read, static_cast<double>(model.weight_copy_bytes()));

  Result<BatchSession> batch = BatchSession::Create(model, {}, 3);
  ASSERT_TRUE(batch.ok()) << batch.status().c_str();
  const std::vector<int32_t> others[] = {ids, SomeIds(50, 6), SomeIds(3, 8)};
  const std::vector<std::span<const int32_t>> prompts(std::begin(others), std::end(others));
  ASSERT_TRUE(batch->Prefill(prompts).ok());
  for (int64_t i = 0; i < 3; ++i) {
    ExpectNear(tiny_.Logits(others[i]).back(), batch->logits(i), "sequence " + std::to_string(i));
  }
}

// Tokens one by one never see a copy; behind a prompt the same ones are drawn.
TEST_F(Fastest, SingleTokensHaveTheirBits) {
  const Model fastest = LoadedWithCopies(), exact = LoadTiny(tiny_);
  const std::vector<int32_t> ids = SomeIds(50, 4);
  Session a = MakeSession(fastest, {}), b = MakeSession(exact, {});
  EXPECT_EQ(StepAll(a, ids), StepAll(b, ids));
  EXPECT_EQ(a.step_stats().weight_bytes, b.step_stats().weight_bytes);
  const auto generate = [&](Session& session) {
    EXPECT_TRUE(session.Truncate(0).ok());
    EXPECT_TRUE(session.Prefill(ids).ok());
    std::vector<int32_t> drawn;
    for (int i = 0; i < 30; ++i) {
      const std::span<const float> logits = session.logits();
      drawn.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      EXPECT_TRUE(session.Step(drawn.back()).ok());
    }
    return drawn;
  };
  EXPECT_EQ(generate(a), generate(b));
}

// On what this machine is, whatever it chooses.
TEST_F(Fastest, ThisMachine) {
  Model model = Open();
  const Status status = model.LoadWeights(options_);
  ASSERT_TRUE(status.ok()) << status.c_str();
  ASSERT_EQ(model.layer_choices().size(), 4U);
  for (const LayerChoice& choice : model.layer_choices()) {
    ASSERT_EQ(choice.candidates.size(), 3U);
    for (const LayerChoice::Candidate& candidate : choice.candidates) {
      EXPECT_EQ(candidate.implementation.find(" ref"), std::string::npos) << candidate.implementation;
      if (candidate.backend != kTile && !HasLinearBackend(candidate.backend)) {
        EXPECT_ERROR(candidate.status, kUnsupported, "not in this build");
      } else if (!candidate.status.ok()) {
        EXPECT_EQ(candidate.backend, kBf16) << candidate.status.c_str();
        EXPECT_ERROR(candidate.status, kUnsupported, "processor");
      } else if (HasLinearBackend(kOneDnn)) {
        EXPECT_GT(candidate.seconds, 0) << candidate.implementation;
      }
    }
    EXPECT_EQ(choice.many_rows == kTile, choice.from_rows == 0);
    EXPECT_EQ(choice.many_rows == kTile, choice.bytes == 0);
  }
  const std::vector<int32_t> ids = SomeIds(90, 3);
  const auto expected = tiny_.Logits(ids).back();
  Session session = MakeSession(model, {});
  ASSERT_TRUE(session.Prefill(ids).ok());
  // Bf16 where there is some.
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(expected[i], static_cast<double>(session.logits()[i]), 0.2) << i;
  }
}

}  // namespace
}  // namespace headlane::testing
