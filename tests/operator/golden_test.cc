// Golden hashes: the bits of a few outputs, written down once, that every machine with FMA must reproduce. Inputs come
// from an integer generator. The scalar canonical program is asked as well, so that the table can't be regenerated from
// a wrong kernel: to change a line is to change the order of operations, and that is a new kNumericsVersion.
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "operator/check.h"
#include "operator/runner.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

using reference::Causal;

struct Golden {
  Heads heads;
  Sight sight;
  int64_t q_len;
  int64_t kv_len;
  float q_size;  // spreads the scores
  uint64_t out_hash;
  uint64_t lse_hash;
};

static_assert(kNumericsVersion == 1, "the hashes belong to version 1: replace them with the new version's");

const std::vector<Golden> kGolden = {
#include "operator/golden_hashes.inc"
};

std::string Line(const Golden& g, const Output& output) {
  static constexpr const char* kCausal[] = {"kNo", "kBottomRight", "kTopLeft"};
  char text[256];
  std::snprintf(
      text, sizeof(text), "{{%d, %d, %d, %d}, {Causal::%s, %d}, %d, %d, %g, 0x%016" PRIX64 "u, 0x%016" PRIX64 "u},",
      static_cast<int>(g.heads.num_q_heads), static_cast<int>(g.heads.num_kv_heads), static_cast<int>(g.heads.qk_dim),
      static_cast<int>(g.heads.v_dim), kCausal[static_cast<int>(g.sight.causal)], static_cast<int>(g.sight.window),
      static_cast<int>(g.q_len), static_cast<int>(g.kv_len), static_cast<double>(g.q_size),
      HashBits(output.out.data(), output.out.size()), HashBits(output.lse.data(), output.lse.size()));
  return text;
}

Sequence InputsOf(size_t i) {
  const Golden& g = kGolden[i];
  Random random(1000 + i);
  Sequence s = RandomSequence(random, g.heads, g.sight, g.q_len, g.kv_len);
  for (float& x : *s.q) x *= g.q_size;
  return s;
}

void ExpectHashes(uint64_t out_hash, uint64_t lse_hash, const Output& output) {
  EXPECT_EQ(HashBits(output.out.data(), output.out.size()), out_hash);
  EXPECT_EQ(HashBits(output.lse.data(), output.lse.size()), lse_hash);
}

// Score modifiers, masks and element types; each case is one function of its data.
struct GoldenModifiers {
  const char* name;
  uint64_t out_hash;
  uint64_t lse_hash;
};

const std::vector<GoldenModifiers> kGoldenModifiers = {
#include "operator/golden_modifiers.inc"
};

std::pair<Sequence, RunOptions> ModifiersOf(size_t i) {
  const std::string name = kGoldenModifiers[i].name;
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  Random random(2000 + i);
  Sight sight;
  if (has("softcap")) sight.softcap = 5.0f;
  if (has("window")) {
    sight.window = 700;
    sight.num_always_visible = 4;
  }
  const bool latent = has("latent");
  const Heads heads = latent ? Heads{16, 1, 576, 512} : Heads{6, 2, 40, 24};
  const int64_t q_len = latent ? 2 : 9;
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

TEST(GoldenTest, TheScalarProgramHasTheseBits) {
  ASSERT_GE(kGolden.size(), 8u);
  std::string table;
  for (size_t i = 0; i < kGolden.size(); ++i) {
    const Sequence s = InputsOf(i);
    const Output canonical = reference::CanonicalAttention(s.problem);
    ExpectHashes(kGolden[i].out_hash, kGolden[i].lse_hash, canonical);
    EXPECT_TRUE(NearOracle(s.problem, canonical)) << "line " << i;
    table += Line(kGolden[i], canonical) + "\n";
  }
  if (::testing::Test::HasFailure()) std::printf("The scalar program gives\n%s", table.c_str());
}

TEST(GoldenTest, EveryFmaTargetHasTheseBits) {
  for (const TargetInfo& target : UsableFmaTargets()) {
    const ScopedTarget scope(target.name);
    for (size_t i = 0; i < kGolden.size(); ++i) {
      for (bool cache : {false, true}) {
        SCOPED_TRACE(::testing::Message() << target.name << " line " << i << " cache " << cache);
        RunOptions options;
        options.cache = cache;
        ExpectHashes(kGolden[i].out_hash, kGolden[i].lse_hash, RunLibrary(InputsOf(i), options));
      }
    }
  }
}

TEST(GoldenTest, TheScalarProgramHasTheseBitsWithModifiers) {
  ASSERT_GE(kGoldenModifiers.size(), 8u);
  std::string table;
  for (size_t i = 0; i < kGoldenModifiers.size(); ++i) {
    const GoldenModifiers& g = kGoldenModifiers[i];
    const Sequence s = ModifiersOf(i).first;
    const Output canonical = reference::CanonicalAttention(s.problem);
    ExpectHashes(g.out_hash, g.lse_hash, canonical);
    EXPECT_TRUE(NearOracle(s.problem, canonical)) << g.name;
    char text[256];
    std::snprintf(text, sizeof(text), "{\"%s\", 0x%016" PRIX64 "u, 0x%016" PRIX64 "u},\n", g.name,
                  HashBits(canonical.out.data(), canonical.out.size()),
                  HashBits(canonical.lse.data(), canonical.lse.size()));
    table += text;
  }
  if (::testing::Test::HasFailure()) std::printf("The scalar program gives\n%s", table.c_str());
}

TEST(GoldenTest, EveryFmaTargetHasTheseBitsWithModifiers) {
  for (const TargetInfo& target : UsableFmaTargets()) {
    const ScopedTarget scope(target.name);
    for (size_t i = 0; i < kGoldenModifiers.size(); ++i) {
      for (bool cache : {false, true}) {
        SCOPED_TRACE(::testing::Message() << target.name << " " << kGoldenModifiers[i].name << " cache " << cache);
        auto [sequence, options] = ModifiersOf(i);
        options.cache = cache;
        ExpectHashes(kGoldenModifiers[i].out_hash, kGoldenModifiers[i].lse_hash, RunLibrary(sequence, options));
      }
    }
  }
}

}  // namespace
}  // namespace headlane::testing
