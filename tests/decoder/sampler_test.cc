// The next token: greedy, drawn, and the two filters; and that neither the machine nor its state has a say.
#include "decoder/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <numeric>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "decoder/expect_status.h"
#include "decoder/mix_bits.h"
#include "decoder/sampler_exp.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Logits = std::vector<float>;

Sampler Make(int32_t vocab_size, const SamplerOptions& options) {
  Result<Sampler> sampler = Sampler::Create(vocab_size, options);
  EXPECT_TRUE(sampler.ok()) << sampler.status().message();
  return std::move(sampler).value();
}

std::vector<int32_t> Draws(const Logits& logits, const SamplerOptions& options, int count) {
  Sampler sampler = Make(static_cast<int32_t>(logits.size()), options);
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(sampler.Next(logits).value());
  return ids;
}

// The sampler's definition, written again: full sort, no shortcut, std::exp.
int32_t ReferenceDraw(const Logits& logits, const SamplerOptions& options, double uniform) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto weight = [&](int32_t id) {
    return std::exp((logits[static_cast<size_t>(id)] - top) / options.temperature);
  };
  const bool some_k = options.top_k > 0 && static_cast<size_t>(options.top_k) < logits.size();
  const bool filtered = some_k || options.top_p < 1;
  if (filtered) {
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    });
  }
  if (some_k) order.resize(static_cast<size_t>(options.top_k));
  double total = 0;
  for (const int32_t id : order) total += weight(id);
  size_t kept = 0;
  for (double sum = 0; kept < order.size() && (kept == 0 || options.top_p == 1 || sum < options.top_p * total);
       ++kept) {
    sum += weight(order[kept]);
  }
  order.resize(kept);
  double sum_of_kept = 0;
  for (const int32_t id : order) sum_of_kept += weight(id);
  double sum = 0;
  for (const int32_t id : order) {
    sum += weight(id);
    if (sum > uniform * sum_of_kept) return id;
  }
  return order.back();
}

TEST(GreedyTest, TiesGoToTheLowerId) {
  EXPECT_EQ(GreedyToken(Logits{1, 3, 3, 2}).value(), 1);
  EXPECT_EQ(GreedyToken(Logits{-0.0f, 0.0f}).value(), 0);
  EXPECT_EQ(GreedyToken(Logits{0.0f, -0.0f}).value(), 0);
  EXPECT_EQ(GreedyToken(Logits{-kInf, -5, -kInf}).value(), 1);
  EXPECT_EQ(GreedyToken(Logits{3, kInf, kInf}).value(), 1);
  EXPECT_EQ(GreedyToken(Logits{std::numeric_limits<float>::denorm_min(), 0}).value(), 0);
  EXPECT_EQ(GreedyToken(Logits{-1}).value(), 0);
}

TEST(GreedyTest, RefusesWhatHasNoGreatest) {
  EXPECT_ERROR(GreedyToken({}), kInvalidArgument, "0 logits");
  EXPECT_ERROR(GreedyToken(Logits{1, kNaN, 2}), kInvalidArgument, "the logit of token 1 of 3 is NaN");
  EXPECT_ERROR(GreedyToken(Logits{kInf, kNaN}), kInvalidArgument, "token 1 of 2 is NaN");
  EXPECT_ERROR(GreedyToken(Logits{-kInf, -kInf}), kInvalidArgument, "all 2 logits are -inf");
}

TEST(SamplerTest, RefusesOptionsByName) {
  const auto create = [](SamplerOptions options, int32_t vocab = 4) {
    return StatusOf(Sampler::Create(vocab, options));
  };
  EXPECT_ERROR(create({.temperature = -1}), kInvalidArgument, "temperature is -1");
  EXPECT_ERROR(create({.temperature = kNaN}), kInvalidArgument, "temperature is nan");
  EXPECT_ERROR(create({.temperature = kInf}), kInvalidArgument, "temperature is inf");
  EXPECT_ERROR(create({.temperature = 1, .top_k = -1}), kInvalidArgument, "top_k is -1");
  EXPECT_ERROR(create({.temperature = 1, .top_p = 0}), kInvalidArgument, "top_p is 0");
  EXPECT_ERROR(create({.temperature = 1, .top_p = 1.5f}), kInvalidArgument, "top_p is 1.5");
  EXPECT_ERROR(create({.temperature = 1, .top_p = kNaN}), kInvalidArgument, "top_p is nan");
  EXPECT_ERROR(create({}, 0), kInvalidArgument, "0 tokens");
}

TEST(SamplerTest, RefusesBadLogitsAndKeepsItsState) {
  Sampler sampler = Make(3, {.temperature = 1, .seed = 5});
  EXPECT_ERROR(sampler.Next(Logits{1, 2}), kInvalidArgument, "2 logits for a sampler of 3 tokens");
  EXPECT_ERROR(sampler.Next(Logits{1, kNaN, 2}), kInvalidArgument, "token 1 of 3 is NaN");
  EXPECT_ERROR(sampler.Next(Logits{-kInf, -kInf, -kInf}), kInvalidArgument, "all 3 logits are -inf");
  const Logits flat(3, 1.0f);
  std::vector<int32_t> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(sampler.Next(flat).value());
  EXPECT_EQ(ids, Draws(flat, {.temperature = 1, .seed = 5}, 20));
}

TEST(SamplerTest, TheGeneratorIsSplitMix64) {
  // The sequence of the seed 0 as its authors publish it. A flat distribution over 2^20 tokens shows the upper 20 bits.
  constexpr uint64_t kExpected[] = {0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC};
  const Logits flat(1 << 20, 0.0f);
  Sampler sampler = Make(1 << 20, {.temperature = 1});
  for (const uint64_t expected : kExpected) EXPECT_EQ(sampler.Next(flat).value(), static_cast<int32_t>(expected >> 44));
  sampler.Reset();
  EXPECT_EQ(sampler.Next(flat).value(), static_cast<int32_t>(kExpected[0] >> 44));
}

TEST(SamplerTest, EqualsItsDefinition) {
  Random random(7);
  int differs_from_greedy = 0;
  for (int round = 0; round < 3000; ++round) {
    const int32_t n = static_cast<int32_t>(random.Int(1, 300));
    Logits logits = random.Floats(static_cast<size_t>(n), 8.0f);
    for (float& x : logits) {
      if (random.OneIn(10)) x = logits[0];  // ties
      if (random.OneIn(20)) x = -kInf;
    }
    logits[static_cast<size_t>(random.Int(0, n - 1))] = random.Float();
    SamplerOptions options;
    options.temperature = random.Pick<float>({0.1f, 0.7f, 1.0f, 2.0f, 50.0f});
    options.top_k = random.Pick<int32_t>({0, 0, 1, 2, 40, 1000});
    options.top_p = random.Pick<float>({1.0f, 1.0f, 0.95f, 0.5f, 0.05f});
    options.seed = random.Next();
    const double uniform =
        static_cast<double>(decoder_internal::MixBits(options.seed + decoder_internal::kGoldenGamma) >> 11) * 0x1p-53;
    const int32_t expected = ReferenceDraw(logits, options, uniform);
    ASSERT_EQ(Draws(logits, options, 1)[0], expected)
        << n << " logits, T " << options.temperature << " k " << options.top_k << " p " << options.top_p;
    differs_from_greedy += expected != GreedyToken(logits).value();
  }
  EXPECT_GT(differs_from_greedy, 500);
}

TEST(SamplerTest, DrawsInProportion) {
  // e^0 : e^-ln 2 : e^-ln 4 = 4 : 2 : 1, and one that is impossible.
  const Logits logits = {0, -kInf, -0.69314718f, -1.38629436f};
  int counts[4] = {};
  for (const int32_t id : Draws(logits, {.temperature = 1, .seed = 3}, 70000)) ++counts[id];
  EXPECT_EQ(counts[1], 0);
  // Five standard deviations.
  EXPECT_NEAR(counts[0], 40000, 660);
  EXPECT_NEAR(counts[2], 20000, 600);
  EXPECT_NEAR(counts[3], 10000, 470);
}

TEST(SamplerTest, FiltersKeepWhatTheySay) {
  const Logits logits = {1, 4, 3, 4, 2};
  const auto seen = [&](SamplerOptions options) {
    options.temperature = 20;  // nearly flat, so that whatever is kept comes up
    std::vector<int32_t> ids = Draws(logits, options, 500);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(seen({}), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(seen({.top_k = 1}), (Ids{1}));
  EXPECT_EQ(seen({.top_k = 2}), (Ids{1, 3}));
  EXPECT_EQ(seen({.top_k = 3}), (Ids{1, 2, 3}));
  EXPECT_EQ(seen({.top_k = 99}), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(seen({.top_p = 1e-6f}), (Ids{1}));
  EXPECT_EQ(seen({.top_p = 0.3f}), (Ids{1, 3}));
  EXPECT_EQ(seen({.top_p = 0.999f}), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(seen({.top_k = 3, .top_p = 0.5f}), (Ids{1, 3}));
}

TEST(SamplerTest, ExtremeTemperaturesAndLogits) {
  const Logits logits = {1, 2, 1.5f};
  EXPECT_EQ(Draws(logits, {.temperature = std::numeric_limits<float>::denorm_min(), .seed = 1}, 50),
            std::vector<int32_t>(50, 1));
  int counts[3] = {};
  for (const int32_t id : Draws(logits, {.temperature = 1e30f, .seed = 1}, 3000)) ++counts[id];
  for (const int count : counts) EXPECT_NEAR(count, 1000, 130);
  for (const float p : {1.0f, 0.9f}) {
    EXPECT_EQ(Draws({3e38f, -3e38f, 0}, {.temperature = 1, .top_p = p}, 20), std::vector<int32_t>(20, 0));
    // Two infinite logits share everything.
    const std::vector<int32_t> ids = Draws({0, kInf, kInf}, {.temperature = 1, .top_p = p}, 200);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 0);
    EXPECT_GT(std::count(ids.begin(), ids.end(), 1), 50);
    EXPECT_GT(std::count(ids.begin(), ids.end(), 2), 50);
  }
}

TEST(SamplerTest, TheCallersFloatEnvironmentHasNoSay) {
  Random random(9);
  const Logits logits = random.Floats(1000, 5.0f);
  const Logits denormals = {0, 1e-40f, 2e-40f};
  const SamplerOptions options = {.temperature = 0.9f, .top_p = 0.9f, .seed = 11};
  const std::vector<int32_t> expected = Draws(logits, options, 200);
  for (const int rounding : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
    ASSERT_EQ(std::fesetround(rounding), 0);
    const std::vector<int32_t> ids = Draws(logits, options, 200);
    EXPECT_EQ(std::fegetround(), rounding);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(ids, expected);
  }
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
  const std::vector<int32_t> ids = Draws(logits, options, 200);
  const int32_t greedy = GreedyToken(denormals).value();
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(ids, expected);
  EXPECT_EQ(greedy, 2);
  EXPECT_EQ(after & 0x8040, 0x8040u);
#endif
}

TEST(SamplerExpTest, IsWithinItsBound) {
  using decoder_internal::ExpNonPositive;
  EXPECT_EQ(ExpNonPositive(0.0), 1.0);
  EXPECT_EQ(ExpNonPositive(-0.0), 1.0);
  EXPECT_EQ(ExpNonPositive(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(ExpNonPositive(-1e300), 0.0);
  EXPECT_EQ(ExpNonPositive(-708.0000001), 0.0);
  EXPECT_GT(ExpNonPositive(-708.0), 0.0);
  Random random(3);
  long double worst = 0;
  for (int i = 0; i < 1000000; ++i) {
    const double u = static_cast<double>(random.Next() >> 11) * 0x1p-53;
    const double x = -(i % 3 == 0 ? u : i % 3 == 1 ? 40 * u : 708 * u);
    const long double exact = std::exp(static_cast<long double>(x));
    worst = std::max(worst, std::abs(ExpNonPositive(x) - exact) / exact);
  }
  EXPECT_LT(worst, 0x1p-50L);
}

}  // namespace
}  // namespace headlane::testing
