#include "operator/golden_cases.h"

#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <utility>

#include "headlane/attention.h"
#include "support/bits.h"

namespace headlane::testing {
namespace {

using reference::Causal;

static_assert(kNumericsVersion == 1, "the hashes belong to version 1: replace them with the new version's");

struct Shape {
  Heads heads;
  Sight sight;
  int64_t q_len;
  int64_t kv_len;
  float q_size;  // spreads the scores
  uint64_t out_hash;
  uint64_t lse_hash;
};

const std::vector<Shape> kShapes = {
#include "operator/golden_hashes.inc"
};

uint64_t HashOf(const std::vector<float>& data) { return HashBits(data.data(), data.size()); }

std::string ShapeLine(size_t i, const Output& output) {
  static constexpr const char* kCausal[] = {"kNo", "kBottomRight", "kTopLeft"};
  const Shape& g = kShapes[i];
  char text[256];
  std::snprintf(text, sizeof(text),
                "{{%d, %d, %d, %d}, {Causal::%s, %d}, %d, %d, %g, 0x%016" PRIX64 "u, 0x%016" PRIX64 "u},\n",
                static_cast<int>(g.heads.num_q_heads), static_cast<int>(g.heads.num_kv_heads),
                static_cast<int>(g.heads.qk_dim), static_cast<int>(g.heads.v_dim),
                kCausal[static_cast<int>(g.sight.causal)], static_cast<int>(g.sight.window), static_cast<int>(g.q_len),
                static_cast<int>(g.kv_len), static_cast<double>(g.q_size), HashOf(output.out), HashOf(output.lse));
  return text;
}

GoldenInputs ShapeInputs(size_t i) {
  const Shape& g = kShapes[i];
  Random random(1000 + i);
  Sequence s = RandomSequence(random, g.heads, g.sight, g.q_len, g.kv_len);
  for (float& x : *s.q) x *= g.q_size;
  return {s, {}};
}

// Each case is one function of the words in its name.
struct Modifiers {
  const char* name;
  uint64_t out_hash;
  uint64_t lse_hash;
};

const std::vector<Modifiers> kModifiers = {
#include "operator/golden_modifiers.inc"
};

std::string ModifiersLine(size_t i, const Output& output) {
  char text[256];
  std::snprintf(text, sizeof(text), "{\"%s\", 0x%016" PRIX64 "u, 0x%016" PRIX64 "u},\n", kModifiers[i].name,
                HashOf(output.out), HashOf(output.lse));
  return text;
}

GoldenInputs ModifiersInputs(size_t i) {
  const std::string name = kModifiers[i].name;
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  Random random(2000 + i);
  Sight sight;
  if (has("softcap")) sight.softcap = 5.0f;
  if (has("window")) {
    sight.window = 700;
    sight.num_always_visible = 4;
  }
  const bool latent = has("latent");
  // Of decoding few rows have kernels of their own: three heads of queries to one of keys, or one of their own.
  const Heads heads = latent ? Heads{16, 1, 576, 512} : has("own") ? Heads{2, 2, 100, 72} : Heads{6, 2, 40, 24};
  const int64_t q_len = latent ? 2 : has("decode") ? 1 : 9;
  const int64_t kv_len = latent ? 300 : 1300;
  Sequence s = RandomSequence(random, heads, sight, q_len, kv_len);
  for (float& x : *s.q) x *= 8.0f;
  RunOptions options;
  if (latent) s = WithValuesInKeys(s);
  if (has("f16")) {
    options.q_dtype = options.k_dtype = options.v_dtype = has("bf16") ? DType::kBF16 : DType::kF16;
    for (auto* data : {s.q.get(), s.k.get(), s.v.get()}) RoundAll(*data, options.q_dtype);
    s.problem.out_type = OutTypeOf(options.q_dtype);
  }
  for (const auto& [word, dtype] :
       {std::pair("int8", DType::kI8), std::pair("fp8", DType::kF8E4M3), std::pair("int4", DType::kI4)}) {
    if (has(word)) options.k_dtype = options.v_dtype = dtype;
  }
  if (IsQuantized(options.k_dtype)) {
    RoundRows(*s.k, options.k_dtype, heads.qk_dim);
    if (!latent) RoundRows(*s.v, options.v_dtype, heads.v_dim);
  }
  const auto floats = [&](int64_t n, float size) {
    return std::make_shared<std::vector<float>>(random.Floats(static_cast<size_t>(n), size));
  };
  if (has("bias")) s.SetBias(floats(heads.num_q_heads * kv_len, 3.0f), kv_len, 0);
  if (has("alibi")) s.SetSlopes(floats(heads.num_q_heads, 0.01f));
  if (has("sinks")) s.SetSinks(floats(heads.num_q_heads, 4.0f));
  if (has("tree")) s.SetTree(RandomTree(random, q_len));
  if (has("mask")) {
    s.SetMask(std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(q_len * kv_len), uint8_t{0}), 0, kv_len);
    for (uint8_t& visible : *s.mask) visible = random.OneIn(3) ? 1 : 0;
  }
  return {s, options};
}

}  // namespace

std::vector<GoldenCase> GoldenShapes() {
  std::vector<GoldenCase> cases;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    cases.push_back(
        {"shape_" + std::to_string(i), i, kShapes[i].out_hash, kShapes[i].lse_hash, &ShapeInputs, &ShapeLine});
  }
  return cases;
}

std::vector<GoldenCase> GoldenModifiers() {
  std::vector<GoldenCase> cases;
  for (size_t i = 0; i < kModifiers.size(); ++i) {
    std::string name = kModifiers[i].name;
    for (char& c : name) c = c == ' ' ? '_' : c;
    cases.push_back({name, i, kModifiers[i].out_hash, kModifiers[i].lse_hash, &ModifiersInputs, &ModifiersLine});
  }
  return cases;
}

void ExpectHashes(const GoldenCase& golden, const Output& output) {
  EXPECT_EQ(HashOf(output.out), golden.out_hash);
  EXPECT_EQ(HashOf(output.lse), golden.lse_hash);
}

}  // namespace headlane::testing
