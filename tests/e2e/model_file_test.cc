// What the loader refuses, and how: the thing named, with both numbers, before anything is allocated for it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "decoder/expect_status.h"
#include "decoder/gguf_writer.h"
#include "decoder/tiny_vocab.h"
#include "e2e/tiny_model.h"
#include "headlane/decoder.h"

namespace headlane::testing {
namespace {

Status OpenStatus(const std::vector<uint8_t>& bytes) {
  const TemporaryFile file(bytes);
  return StatusOf(Model::Open(file.path()));
}

// The keys of a good file, with some left out or changed by the test.
struct Keys {
  std::string architecture = "llama";
  uint32_t layers = 2, width = 24, ff_width = 40, q_heads = 4, kv_heads = 2, context = 128, rotary_dim = 6;
  float epsilon = 1e-5f, base = 10000.0f;
  std::function<void(GgufWriter&)> more = [](GgufWriter&) {};
  bool vocabulary = true;
};

class ModelFileTest : public ::testing::Test {
 protected:
  void SetUp() override { tiny_.MakeWeights(1); }

  std::vector<uint8_t> Build(
      const Keys& keys, const std::function<void(std::map<std::string, TinyModel::Tensor>&)>& change = [](auto&) {}) {
    GgufWriter writer;
    writer.Add("general.architecture", keys.architecture)
        .Add("llama.block_count", keys.layers)
        .Add("llama.embedding_length", keys.width)
        .Add("llama.feed_forward_length", keys.ff_width)
        .Add("llama.attention.head_count", keys.q_heads)
        .Add("llama.attention.head_count_kv", keys.kv_heads)
        .Add("llama.attention.layer_norm_rms_epsilon", keys.epsilon)
        .Add("llama.context_length", keys.context)
        .Add("llama.rope.freq_base", keys.base)
        .Add("llama.rope.dimension_count", keys.rotary_dim);
    keys.more(writer);
    if (keys.vocabulary) TinyBpe().AddTo(&writer);
    auto tensors = tiny_.tensors;
    change(tensors);
    for (const auto& [name, tensor] : tensors) {
      std::vector<uint64_t> dims = {static_cast<uint64_t>(tensor.row_len)};
      if (tensor.rows > 1) dims.push_back(static_cast<uint64_t>(tensor.rows));
      writer.AddTensorF32(name, dims, tensor.values);
    }
    return writer.Build();
  }

  TinyModel tiny_;
};

TEST_F(ModelFileTest, AGoodFileIsDescribed) {
  const TemporaryFile file(Build(Keys()));
  const Result<Model> model = Model::Open(file.path());
  ASSERT_TRUE(model.ok()) << model.status().c_str();
  const ModelInfo& info = model->info();
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.weight_type, "F32");
  EXPECT_EQ(info.name, file.path().substr(file.path().rfind('/') + 1));
  EXPECT_EQ(info.num_layers, 2);
  EXPECT_EQ(info.width, 24);
  EXPECT_EQ(info.ff_width, 40);
  EXPECT_EQ(info.num_q_heads, 4);
  EXPECT_EQ(info.num_kv_heads, 2);
  EXPECT_EQ(info.qk_dim, 6);
  EXPECT_EQ(info.v_dim, 6);
  EXPECT_EQ(info.vocab_size, 260);
  EXPECT_EQ(info.context_length, 128);
  EXPECT_TRUE(info.tied_head);
  // Embedding and last norm; per layer two norms, q and o, k and v, gate, up and down.
  EXPECT_EQ(info.num_parameters, 260 * 24 + 24 + 2 * (2 * 24 + 2 * 24 * 24 + 2 * 12 * 24 + 3 * 40 * 24));
}

TEST_F(ModelFileTest, OtherArchitecturesAreNamed) {
  Keys keys;
  keys.architecture = "mamba";
  EXPECT_ERROR(OpenStatus(Build(keys)), kUnsupported, "'mamba' is not supported; supported: llama");
  keys.architecture = std::string(100000, 'x');
  EXPECT_ERROR(OpenStatus(Build(keys)), kUnsupported, "supported: llama");
  keys.architecture = "";
  EXPECT_ERROR(OpenStatus(Build(keys)), kUnsupported, "''");
}

TEST_F(ModelFileTest, WhatWouldChangeTheFormulaIsRefused) {
  Keys keys;
  keys.more = [](GgufWriter& w) { w.Add("llama.expert_count", uint32_t{8}); };
  EXPECT_ERROR(OpenStatus(Build(keys)), kUnsupported, "llama.expert_count is 8");
  keys.more = [](GgufWriter& w) { w.Add("llama.attention.sliding_window", uint32_t{4096}); };
  EXPECT_ERROR(OpenStatus(Build(keys)), kUnsupported, "llama.attention.sliding_window is 4096");
  keys.more = [](GgufWriter& w) { w.Add("llama.rope.scaling.type", "longrope"); };
  EXPECT_ERROR(OpenStatus(Build(keys)), kUnsupported, "'longrope' is not supported; supported: none, linear, yarn");
  EXPECT_ERROR(OpenStatus(Build(Keys(), [](auto& t) { t["blk.0.attn_q_norm.weight"] = t["output_norm.weight"]; })),
               kUnsupported, "'blk.0.attn_q_norm.weight'");
}

TEST_F(ModelFileTest, SettingsOfYarnAreChecked) {
  const auto with = [&](auto more) {
    Keys keys;
    keys.more = [more](GgufWriter& w) {
      w.Add("llama.rope.scaling.type", "yarn").Add("llama.rope.scaling.factor", 4.0f);
      more(w);
    };
    return OpenStatus(Build(keys));
  };
  const auto with_float = [&](const std::string& key, float value) {
    return with([=](GgufWriter& w) { w.Add("llama.rope.scaling." + key, value); });
  };
  EXPECT_TRUE(with([](GgufWriter&) {}).ok());
  EXPECT_ERROR(with_float("yarn_ext_factor", 0.5f), kUnsupported, "yarn_ext_factor is 0.5; supported: 1");
  EXPECT_ERROR(with_float("yarn_log_multiplier", 0.1f), kUnsupported, "yarn_log_multiplier is 0.1; supported: 0");
  EXPECT_ERROR(with_float("attn_factor", 0.0f), kDataLoss, "llama.rope.scaling.attn_factor is 0");
  EXPECT_ERROR(with_float("yarn_attn_factor", NAN), kDataLoss, "llama.rope.scaling.yarn_attn_factor is");
  EXPECT_ERROR(with_float("attn_factor", 1e35f), kDataLoss, "attention_factor");
  EXPECT_ERROR(with_float("yarn_beta_fast", 1.0f), kDataLoss, "beta_slow 1 is not below beta_fast 1");
  EXPECT_ERROR(with_float("yarn_beta_slow", -1.0f), kDataLoss, "beta_slow is -1");
  EXPECT_ERROR(with([](GgufWriter& w) { w.Add("llama.rope.scaling.original_context_length", uint32_t{0}); }), kDataLoss,
               "original_context is 0");
  Keys keys;
  keys.more = [](GgufWriter& w) { w.Add("llama.rope.scaling.type", "yarn").Add("llama.rope.scaling.factor", -4.0f); };
  EXPECT_ERROR(OpenStatus(Build(keys)), kDataLoss, "llama.rope.scaling.factor is -4");
}

TEST_F(ModelFileTest, NumbersThatContradictAreRefused) {
  const auto with = [&](auto change) {
    Keys keys;
    change(keys);
    return OpenStatus(Build(keys));
  };
  EXPECT_ERROR(with([](Keys& k) { k.layers = 0; }), kDataLoss, "llama.block_count");
  EXPECT_ERROR(with([](Keys& k) { k.layers = 513; }), kDataLoss, "513");
  EXPECT_ERROR(with([](Keys& k) { k.layers = 3; }), kNotFound, "blk.2.attn_norm.weight");
  EXPECT_ERROR(with([](Keys& k) { k.layers = 1; }), kUnsupported, "blk.1.");
  EXPECT_ERROR(with([](Keys& k) { k.width = 0; }), kDataLoss, "llama.embedding_length");
  EXPECT_ERROR(with([](Keys& k) { k.width = 28; }), kDataLoss, "28");
  EXPECT_ERROR(with([](Keys& k) { k.width = 25; }), kDataLoss, "25, no multiple of llama.attention.head_count, 4");
  EXPECT_ERROR(with([](Keys& k) { k.ff_width = 41; }), kDataLoss, "41");
  EXPECT_ERROR(with([](Keys& k) { k.q_heads = 0; }), kDataLoss, "llama.attention.head_count");
  EXPECT_ERROR(with([](Keys& k) { k.kv_heads = 0; }), kDataLoss, "llama.attention.head_count_kv");
  EXPECT_ERROR(with([](Keys& k) { k.kv_heads = 3; }), kDataLoss, "4, no multiple of llama.attention.head_count_kv, 3");
  EXPECT_ERROR(with([](Keys& k) { k.kv_heads = 1; }), kDataLoss, "attn_k.weight");
  EXPECT_ERROR(with([](Keys& k) { k.context = 0; }), kDataLoss, "llama.context_length");
  EXPECT_ERROR(with([](Keys& k) { k.rotary_dim = 7; }), kDataLoss, "llama.rope.dimension_count is 7");
  EXPECT_ERROR(with([](Keys& k) { k.rotary_dim = 8; }), kDataLoss, "llama.rope.dimension_count is 8");
  EXPECT_ERROR(with([](Keys& k) { k.base = -1; }), kDataLoss, "llama.rope.freq_base is -1");
  EXPECT_ERROR(with([](Keys& k) { k.base = NAN; }), kDataLoss, "llama.rope.freq_base");
  EXPECT_ERROR(with([](Keys& k) { k.epsilon = -1; }), kDataLoss, "epsilon is -1");
  EXPECT_ERROR(with([](Keys& k) { k.epsilon = INFINITY; }), kDataLoss, "epsilon is inf");
  EXPECT_ERROR(with([](Keys& k) { k.vocabulary = false; }), kNotFound, "tokenizer");
  EXPECT_ERROR(with([](Keys& k) { k.more = [](GgufWriter& w) { w.Add("llama.vocab_size", uint32_t{261}); }; }),
               kDataLoss, "llama.vocab_size is 261, but token_embd.weight has 260");
  EXPECT_ERROR(with([](Keys& k) { k.more = [](GgufWriter& w) { w.Add("llama.attention.key_length", uint32_t{5}); }; }),
               kDataLoss, "5");
  EXPECT_ERROR(
      with([](Keys& k) { k.more = [](GgufWriter& w) { w.Add("llama.attention.value_length", uint32_t{0}); }; }),
      kDataLoss, "llama.attention.value_length");
  EXPECT_ERROR(with([](Keys& k) {
                 k.more = [](GgufWriter& w) {
                   w.Add("llama.rope.scaling.type", "linear").Add("llama.rope.scaling.factor", 0.0f);
                 };
               }),
               kDataLoss, "llama.rope.scaling.factor is 0");
}

TEST_F(ModelFileTest, TensorsOfOtherShapesAreRefused) {
  for (const auto& [name, tensor] : tiny_.tensors) {
    // One missing, one a row shorter (or, a vector, an element).
    const std::string missing = name;
    EXPECT_ERROR(OpenStatus(Build(Keys(), [&](auto& t) { t.erase(missing); })), kNotFound, missing);
    const Status status = OpenStatus(Build(Keys(), [&](auto& t) {
      TinyModel::Tensor& changed = t[missing];
      if (changed.rows > 1) {
        changed.rows -= 1;
      } else {
        changed.row_len -= 1;
      }
      changed.values.resize(static_cast<size_t>(changed.rows * changed.row_len));
    }));
    // A shorter embedding is a smaller vocabulary.
    EXPECT_ERROR(status, kDataLoss, missing == "token_embd.weight" ? "260 tokens" : missing);
  }
}

TEST_F(ModelFileTest, BadFactorsOfFrequenciesAreRefused) {
  const auto with = [&](std::vector<float> divisors) {
    return OpenStatus(Build(Keys(), [&](auto& t) {
      t["rope_freqs.weight"] = TinyModel::Tensor{1, static_cast<int64_t>(divisors.size()), divisors};
    }));
  };
  EXPECT_TRUE(with({1, 2, 4}).ok());
  EXPECT_ERROR(with({1, 2}), kDataLoss, "rope_freqs.weight");
  EXPECT_ERROR(with({1, 0, 4}), kDataLoss, "rope_freqs.weight[1] is 0");
  EXPECT_ERROR(with({1, 2, NAN}), kDataLoss, "rope_freqs.weight[2]");
}

TEST_F(ModelFileTest, AFileCutAnywhereIsRefused) {
  const std::vector<uint8_t> whole = Build(Keys());
  for (size_t size = 0; size < whole.size(); size += 1 + size / 60) {
    const Status status =
        OpenStatus(std::vector<uint8_t>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
    EXPECT_FALSE(status.ok()) << size;
    EXPECT_EQ(status.message().find('\n'), std::string_view::npos);
  }
}

TEST_F(ModelFileTest, NoFileAtAll) {
  EXPECT_ERROR(Model::Open("/no/such/file.gguf"), kNotFound, "/no/such/file.gguf");
  EXPECT_FALSE(Model::Open("/").ok());
  EXPECT_FALSE(Model::Open("").ok());
}

TEST(SyntheticModel, NamesAreListedAndLayersCanBeChosen) {
  EXPECT_ERROR(Model::Synthetic("gpt-5"), kInvalidArgument, "no synthetic shape 'gpt-5'; there are tiny, smollm2-135m");
  EXPECT_ERROR(Model::Synthetic("tiny:0"), kInvalidArgument, "1 .. 512");
  EXPECT_ERROR(Model::Synthetic("tiny:513"), kInvalidArgument, "1 .. 512");
  EXPECT_ERROR(Model::Synthetic("tiny:"), kInvalidArgument, "layers");
  EXPECT_ERROR(Model::Synthetic("tiny:2x"), kInvalidArgument, "layers");
  EXPECT_ERROR(Model::Synthetic(""), kInvalidArgument, "there are");
  for (const char* name : SyntheticShapeNames()) {
    const Result<Model> model = Model::Synthetic(std::string(name) + ":1");
    ASSERT_TRUE(model.ok()) << name << ": " << model.status().c_str();
    EXPECT_EQ(model->info().num_layers, 1) << name;
    // Any text can be said and read back, in chat form too.
    const auto ids = model->Encode("Hé\n", PromptMode::kLiteral);
    ASSERT_TRUE(ids.ok()) << ids.status().c_str();
    EXPECT_EQ(*model->Decode(*ids), "Hé\n");
    EXPECT_TRUE(model->Encode("hello", PromptMode::kChat).ok()) << name;
  }
}

TEST(SyntheticModel, TheSeedIsTheModel) {
  const auto logits = [](uint64_t seed) {
    Result<Model> model = Model::Synthetic("tiny", seed);
    EXPECT_TRUE(model.ok() && model->LoadWeights().ok());
    Result<Session> session = Session::Create(*model);
    EXPECT_TRUE(session.ok() && session->Prefill(std::vector<int32_t>{5, 6, 7}).ok());
    return std::vector<float>(session->logits().begin(), session->logits().end());
  };
  EXPECT_EQ(logits(1), logits(1));
  EXPECT_NE(logits(1), logits(2));
}

}  // namespace
}  // namespace headlane::testing
