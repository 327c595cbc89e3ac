// Golden hashes: the bits of a few outputs, written down once, that every machine with FMA must reproduce. Inputs come
// from an integer generator. The scalar canonical program is asked as well, so that the table can't be regenerated from
// a wrong kernel: to change a line is to change the order of operations, and that is a new kNumericsVersion.
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <string>
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

void ExpectHashes(const Golden& g, const Output& output) {
  EXPECT_EQ(HashBits(output.out.data(), output.out.size()), g.out_hash);
  EXPECT_EQ(HashBits(output.lse.data(), output.lse.size()), g.lse_hash);
}

TEST(GoldenTest, TheScalarProgramHasTheseBits) {
  ASSERT_GE(kGolden.size(), 8u);
  std::string table;
  for (size_t i = 0; i < kGolden.size(); ++i) {
    const Sequence s = InputsOf(i);
    const Output canonical = reference::CanonicalAttention(s.problem);
    ExpectHashes(kGolden[i], canonical);
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
        ExpectHashes(kGolden[i], RunLibrary(InputsOf(i), options));
      }
    }
  }
}

}  // namespace
}  // namespace headlane::testing
