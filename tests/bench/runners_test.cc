// Every implementation that the benchmarks time computes attention, and the check before timing would notice if not.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/attention_runner.h"

namespace headlane::bench {
namespace {

constexpr Implementation kAll[] = {kCache, kPlain, kNaive, kOneDnn, kOneDnnGraph};

RunnerResult MakeRunner(const Implementation& implementation, const Source& source, int64_t num_copies) {
  HEADLANE_ASSIGN_OR_RETURN(std::shared_ptr<KeysValues> data,
                            KeysValues::Make(source, implementation.storage, num_copies));
  return implementation.make(source, std::move(data));
}

const std::vector<AttentionShape>& Shapes() {
  static const std::vector<AttentionShape> shapes = {
      {{"prefill", 4, 2, 32, 32}, 1, 150, 150},    {{"decode", 6, 2, 32, 48}, 3, 1, 1100},
      {{"rows", 4, 1, 16, 16}, 2, 5, 200},         {{"one key", 2, 2, 8, 8}, 1, 1, 1},
      {{"latent", 4, 1, 48, 32, true}, 2, 1, 150},
  };
  return shapes;
}

// Runs it on two copies with several numbers of threads, and checks that the check knows the copies apart.
void CheckRunner(const Implementation& implementation, const AttentionShape& shape, bool may_be_unsupported) {
  constexpr int64_t kCopies = 2;
  SCOPED_TRACE(std::string(implementation.name) + " " + shape.model.name + " " + DTypeName(shape.dtype));
  const Source source(shape);
  RunnerResult runner = MakeRunner(implementation, source, kCopies);
  if (may_be_unsupported && runner.status().code() == StatusCode::kUnsupported) return;
  ASSERT_TRUE(runner.ok()) << runner.status().c_str();
  for (const int threads : {2, 1}) {
    const Status status = (*runner)->SetThreads(threads);
    if (status.code() == StatusCode::kUnsupported) continue;
    ASSERT_TRUE(status.ok()) << status.c_str();
    for (int64_t copy = 0; copy < kCopies; ++copy) {
      ASSERT_TRUE((*runner)->Run(copy).ok());
      const Status checked = CheckOutputs(source, **runner, copy);
      EXPECT_TRUE(checked.ok()) << checked.c_str();
      EXPECT_FALSE(CheckOutputs(source, **runner, 1 - copy).ok());
    }
  }
}

TEST(Runners, AllComputeAttentionOnEveryCopy) {
  for (const AttentionShape& shape : Shapes()) {
    for (const Implementation& implementation : kAll) {
      // The unfused baseline must exist with oneDNN; its Graph API and what it makes of a pattern differ by version.
      const bool is_graph = implementation.make == MakeOneDnnGraphRunner;
      const bool is_onednn = is_graph || implementation.make == MakeOneDnnRunner;
      const bool has_no_latent = implementation.make == MakeNaiveRunner && shape.model.values_in_keys;
      CheckRunner(implementation, shape, is_graph || has_no_latent || (is_onednn && !HEADLANE_WITH_ONEDNN));
    }
  }
}

TEST(Runners, KeysAndValuesOfSixteenBits) {
  for (AttentionShape shape : Shapes()) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      shape.dtype = dtype;
      for (const Implementation& implementation : kAll) CheckRunner(implementation, shape, implementation.is_baseline);
    }
  }
}

TEST(Runners, ModifiersAreComputedOrRefused) {
  AttentionShape shape{{"modified", 4, 2, 32, 32}, 1, 20, 150};
  const Modifiers all[] = {{.softcap = 3},
                           {.alibi = true},
                           {.bias = true},
                           {.mask = Modifiers::Mask::kBytes},
                           {.mask = Modifiers::Mask::kBits},
                           {.window = 40}};
  const AttentionShape plain = shape;
  for (const Modifiers& modifiers : all) {
    shape.modifiers = modifiers;
    for (const Implementation& implementation : kAll) {
      CheckRunner(implementation, shape, implementation.is_baseline);
      if (!implementation.is_baseline) continue;
      EXPECT_EQ(MakeRunner(implementation, Source(shape), 1).status().code(), StatusCode::kUnsupported);
    }
    // Without it, the output is another, and the check knows.
    const Source source(shape), source_without(plain);
    RunnerResult without = MakeRunner(kCache, source_without, 1);
    ASSERT_TRUE(without.ok() && (*without)->SetThreads(1).ok() && (*without)->Run(0).ok());
    EXPECT_FALSE(CheckOutputs(source, **without, 0).ok());
  }
}

TEST(KeysValues, AreSharedWhateverTheQueries) {
  const AttentionShape one{{"shared", 4, 2, 16, 16}, 1, 1, 100};
  AttentionShape many = one;
  many.q_len = 7;
  EXPECT_EQ(KeysValues::Key(one, Storage::kCache, 2), KeysValues::Key(many, Storage::kCache, 2));
  const Source source_one(one), source_many(many);
  for (const Storage storage : {Storage::kCache, Storage::kTokensHeads, Storage::kHeadsTokens}) {
    Result<std::shared_ptr<KeysValues>> data = KeysValues::Make(source_one, storage, 2);
    ASSERT_TRUE(data.ok()) << data.status().c_str();
    EXPECT_GE((*data)->bytes_per_copy(), 100 * 2 * 32 * 4);
    if (storage == Storage::kHeadsTokens) continue;
    RunnerResult runner = MakeHeadlaneRunner(source_many, *data);
    ASSERT_TRUE(runner.ok() && (*runner)->SetThreads(2).ok() && (*runner)->Run(1).ok());
    EXPECT_TRUE(CheckOutputs(source_many, **runner, 1).ok());
  }
  many.kv_len = 101;
  EXPECT_NE(KeysValues::Key(one, Storage::kCache, 2), KeysValues::Key(many, Storage::kCache, 2));
  EXPECT_NE(KeysValues::Key(one, Storage::kCache, 2), KeysValues::Key(one, Storage::kTokensHeads, 2));
  many = one;
  many.dtype = DType::kBF16;
  EXPECT_NE(KeysValues::Key(one, Storage::kCache, 2), KeysValues::Key(many, Storage::kCache, 2));
}

// Gives what another runner gave, but for one output.
class Spoiled final : public AttentionRunner {
 public:
  Spoiled(const AttentionRunner& right, const AttentionShape& shape) : right_(right), row_(shape.model.v_dim) {}

  Status SetThreads(int) override { return OkStatus(); }
  Status Run(int64_t) override { return OkStatus(); }
  int64_t workspace_bytes() const override { return 0; }
  const float* Output(int64_t sequence, int64_t row, int64_t head) const override {
    const float* right = right_.Output(sequence, row, head);
    row_.assign(right, right + row_.size());
    if (sequence == bad_sequence && row == bad_row && head == bad_head) row_.back() = change(row_.back());
    return row_.data();
  }

  int64_t bad_sequence = 0, bad_row = 0, bad_head = 0;
  float (*change)(float) = nullptr;

 private:
  const AttentionRunner& right_;
  mutable std::vector<float> row_;
};

TEST(CheckOutputs, NoticesOneWrongOutput) {
  const AttentionShape& shape = Shapes()[1];
  const Source source(shape);
  RunnerResult right = MakeRunner(kNaive, source, 1);
  ASSERT_TRUE(right.ok()) << right.status().c_str();
  ASSERT_TRUE((*right)->SetThreads(1).ok());
  ASSERT_TRUE((*right)->Run(0).ok());
  Spoiled spoiled(**right, shape);
  spoiled.change = [](float value) { return value; };
  // The naive loops are allowed more than the proven bound, and may need it.
  ASSERT_TRUE(CheckOutputs(source, spoiled, 0).ok());
  for (float (*change)(float) : {+[](float value) { return value + 1e-4f; }, +[](float) { return 0.0f; },
                                 +[](float) { return std::numeric_limits<float>::quiet_NaN(); },
                                 +[](float) { return std::numeric_limits<float>::infinity(); }}) {
    for (const int64_t sequence : {int64_t{0}, shape.num_sequences - 1}) {
      for (const int64_t head : {int64_t{0}, shape.model.num_q_heads - 1}) {
        spoiled.change = change;
        spoiled.bad_sequence = sequence;
        spoiled.bad_head = head;
        const Status status = CheckOutputs(source, spoiled, 0);
        EXPECT_EQ(status.code(), StatusCode::kInternal);
        const std::string place = "sequence " + std::to_string(sequence) + " row 0 head " + std::to_string(head);
        EXPECT_NE(std::string(status.c_str()).find(place), std::string::npos) << status.c_str();
      }
    }
  }
}

TEST(Source, CopiesAreWhatRowsSay) {
  const AttentionShape& shape = Shapes()[1];
  const ModelShape& model = shape.model;
  const Source source(shape);
  const auto size = [&](int64_t dim) {
    return static_cast<size_t>(shape.num_sequences * shape.kv_len * model.num_kv_heads * dim);
  };
  std::vector<float> k(size(model.qk_dim)), v(size(model.v_dim));
  source.CopyKeys(1, Source::Layout::kTokensHeads, k.data());
  source.CopyValues(1, Source::Layout::kHeadsTokens, v.data());
  for (int64_t s = 0; s < shape.num_sequences; ++s) {
    for (int64_t t = 0; t < shape.kv_len; t += 63) {
      for (int64_t h = 0; h < model.num_kv_heads; ++h) {
        const int64_t k_at = ((s * shape.kv_len + t) * model.num_kv_heads + h) * model.qk_dim;
        const int64_t v_at = ((s * model.num_kv_heads + h) * shape.kv_len + t) * model.v_dim;
        EXPECT_EQ(k[static_cast<size_t>(k_at + 1)], source.Key(1, s, t)[h * model.qk_dim + 1]);
        EXPECT_EQ(v[static_cast<size_t>(v_at + 1)], source.Value(1, s, t, h)[1]);
      }
    }
  }
  EXPECT_NE(source.Key(0, 0, 0), source.Key(1, 0, 0));
  EXPECT_NE(source.Key(0, 0, 0), source.Key(0, 1, 0));
}

}  // namespace
}  // namespace headlane::bench
