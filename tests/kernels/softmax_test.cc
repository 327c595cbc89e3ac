// One online-softmax step, the reduction, the fold and the finish, bit by bit against the scalar program.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/compare.h"
#include "kernels/kernel_api.h"
#include "reference/canonical.h"
#include "support/guarded_buffer.h"
#include "support/random.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Scores of one row and block. Lanes that the row does not see hold what memory may hold: anything.
float RandomScore(Random& random, int64_t kind) {
  switch (kind) {
    case 0:
      return random.Float() * 4.0f;
    case 1:  // wide: weights underflow, maxima jump
      return random.Float() * 200.0f;
    case 2:
      return random.OneIn(3) ? -kInf : random.Float();
    case 3:
      return random.Float() * 3e38f;
    case 4:
      return 0.0f;
    default:
      return random.OneIn(40) ? random.Pick<float>({kNaN, kInf, -kInf}) : random.Float();
  }
}

// All keys, none, one, or any.
void SetVisibleBits(Random& random, int64_t shape, int64_t num_keys, uint16_t* visible) {
  const int64_t one = random.Int(0, num_keys - 1);
  for (int64_t t = 0; t < num_keys / 16; ++t) {
    const uint16_t some = static_cast<uint16_t>(random.Int(0, 0xFFFF));
    const uint16_t only = t == one / 16 ? static_cast<uint16_t>(1u << one % 16) : 0;
    visible[t] = shape == 0 ? 0xFFFF : shape == 1 ? 0 : shape == 2 ? only : some;
  }
}

void CheckSteps(const TargetInfo& target, int64_t rows, bool want_live, bool by_bits, uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << target.name << " rows " << rows << " live " << want_live << " bits " << by_bits
                                    << " seed " << seed);
  Random random(seed);
  const int64_t block = internal::kBlockKeys;
  const GuardedFloats m(static_cast<size_t>(rows));
  const GuardedFloats l(static_cast<size_t>(rows * 16));
  const GuardedFloats c(static_cast<size_t>(rows));
  const GuardedArray<int32_t> begin(static_cast<size_t>(rows));
  const GuardedArray<int32_t> end(static_cast<size_t>(rows));
  const GuardedArray<uint16_t> live(static_cast<size_t>(rows * internal::kTilesPerBlock));
  const GuardedArray<uint16_t> visible(static_cast<size_t>(rows * internal::kTilesPerBlock));
  std::fill_n(m.data(), rows, -kInf);
  std::fill_n(l.data(), rows * 16, 0.0f);
  std::vector<reference::SplitState> states(static_cast<size_t>(rows), reference::SplitState(0));

  const auto IsVisible = [&](int64_t r, int64_t i) {
    if (by_bits) return (visible[r * internal::kTilesPerBlock + i / 16] >> (i % 16) & 1) != 0;
    return i >= begin[r] && i < end[r];
  };

  // Several blocks in a row: from the empty state on.
  for (int64_t step = 0; step < 5; ++step) {
    const GuardedFloats s(static_cast<size_t>(rows * block));
    const int64_t num_tiles = random.Int(1, 8);
    const int64_t num_keys = num_tiles * 16;
    const int64_t kind = random.Int(0, 5);
    std::vector<std::vector<float>> scores;
    for (int64_t r = 0; r < rows; ++r) {
      scores.emplace_back(static_cast<size_t>(num_keys));
      for (float& score : scores.back()) score = RandomScore(random, kind);
      const int64_t shape = random.Int(0, 4);
      begin[r] = static_cast<int32_t>(shape == 0 ? 0 : random.Int(0, num_keys));
      end[r] = static_cast<int32_t>(shape <= 1 ? num_keys : random.Int(0, num_keys));
      if (by_bits) SetVisibleBits(random, shape, num_keys, visible.data() + r * internal::kTilesPerBlock);
      for (int64_t i = 0; i < num_keys; ++i) {
        if (!IsVisible(r, i)) scores.back()[static_cast<size_t>(i)] = random.Pick<float>({kNaN, kInf, 1e38f, -kInf});
      }
      std::copy(scores.back().begin(), scores.back().end(), s.data() + r * block);
    }

    internal::SoftmaxArgs args{};
    args.s = s.data();
    args.rows = rows;
    args.num_tiles = num_tiles;
    // With bits the intervals are not looked at.
    args.begin = by_bits ? nullptr : begin.data();
    args.end = by_bits ? nullptr : end.data();
    args.visible = by_bits ? visible.data() : nullptr;
    args.m = m.data();
    args.l = l.data();
    args.c = c.data();
    args.live = want_live ? live.data() : nullptr;
    internal::ActiveKernels().softmax.softmax(args);

    for (int64_t r = 0; r < rows; ++r) {
      SCOPED_TRACE(::testing::Message() << "step " << step << " kind " << kind << " row " << r << " keys [" << begin[r]
                                        << ", " << end[r] << ") of " << num_keys);
      std::array<bool, 128> seen{};
      for (int64_t i = 0; i < num_keys; ++i) seen[static_cast<size_t>(i)] = IsVisible(r, i);
      reference::SplitState& state = states[static_cast<size_t>(r)];
      const bool was_empty = std::all_of(state.l.begin(), state.l.end(), [](float x) { return x == 0.0f; });
      const reference::BlockWeights expected =
          reference::CanonicalSoftmaxStep(scores[static_cast<size_t>(r)].data(), seen.data(), num_keys, state);
      if (std::isnan(reference::CanonicalReduce(state.l))) {
        // The row is lost, and its sum must say so; which of the lanes do is nobody's business.
        std::array<float, 16> lanes;
        std::copy_n(l.data() + r * 16, 16, lanes.begin());
        ASSERT_TRUE(std::isnan(reference::CanonicalReduce(lanes)));
        continue;
      }
      ASSERT_TRUE(Matches(target, state.l.data(), l.data() + r * 16, 16, 1e-4));
      ASSERT_TRUE(Matches(target, &state.m, m.data() + r, 1, 0.0, false));
      if (!was_empty) {
        ASSERT_TRUE(Matches(target, &expected.c, c.data() + r, 1, 1e-5));
      }
      ASSERT_FALSE(std::isnan(c[r])) << "a state that is empty must not become NaN";
      ASSERT_TRUE(Matches(target, expected.w.data(), s.data() + r * block, static_cast<size_t>(num_keys), 1e-5));
      for (int64_t i = num_keys; i < block; ++i)
        ASSERT_TRUE(std::isnan(s[r * block + i])) << "lane " << i << " was written";
      for (int64_t i = 0; want_live && i < num_keys; ++i) {
        ASSERT_EQ((live[r * internal::kTilesPerBlock + i / 16] >> (i % 16)) & 1, expected.live[static_cast<size_t>(i)])
            << "live, key " << i;
      }
    }
  }
}

TEST(SoftmaxTest, StepsOverRandomBlocks) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (int64_t rows : {1, 2, 3, 5, 8, 15, 16, 17, 33}) {
      for (uint64_t seed = 0; seed < 48; ++seed) CheckSteps(target, rows, seed % 2 == 0, seed % 4 >= 2, seed);
    }
  }
}

TEST(SoftmaxTest, AWhollyHiddenBlockChangesNothing) {
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (bool empty : {true, false}) {
      const GuardedFloats s(128);
      float m = empty ? -kInf : 3.0f;
      alignas(64) float l[16];
      for (int i = 0; i < 16; ++i) l[i] = empty ? 0.0f : static_cast<float>(i) * 0.3f;
      float before[16];
      std::copy(l, l + 16, before);
      float c = -1.0f;
      const int32_t begin = 64;
      const int32_t end = 64;
      internal::SoftmaxArgs args{};
      args.s = s.data();
      args.rows = 1;
      args.num_tiles = 8;
      args.begin = &begin;
      args.end = &end;
      args.m = &m;
      args.l = l;
      args.c = &c;
      internal::ActiveKernels().softmax.softmax(args);
      EXPECT_TRUE(SameBits(empty ? -kInf : 3.0f, m)) << target.name;
      EXPECT_TRUE(SameBits(before, l, 16)) << target.name;
      EXPECT_TRUE(SameBits(1.0f, c)) << target.name;
      for (int i = 0; i < 128; ++i)
        EXPECT_TRUE(s[static_cast<size_t>(i)] == 0.0f) << target.name << " weight of hidden key " << i;
    }
  }
}

TEST(ReduceTest, FixedTree) {
  Random random(3);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (int64_t rows = 1; rows <= 9; ++rows) {
      const GuardedFloats l16(static_cast<size_t>(rows * 16));
      random.Fill(l16.data(), l16.size(), 1000.0f);
      const GuardedFloats l(static_cast<size_t>(rows));
      internal::ActiveKernels().softmax.reduce({l16.data(), rows, l.data()});
      for (int64_t r = 0; r < rows; ++r) {
        std::array<float, 16> lanes;
        std::copy_n(l16.data() + r * 16, 16, lanes.begin());
        EXPECT_TRUE(SameBits(reference::CanonicalReduce(lanes), l[r])) << target.name;
      }
    }
  }
}

reference::State RandomState(Random& random, int64_t width) {
  reference::State state;
  const int64_t kind = random.Int(0, 7);
  state.o = random.Floats(static_cast<size_t>(width), 10.0f);
  if (kind == 0) {  // empty: o holds whatever memory held
    std::fill(state.o.begin(), state.o.end(), kNaN);
    return state;
  }
  state.m = kind == 1 ? random.Float() * 300.0f : random.Float();
  state.l = 1.0f + std::fabs(random.Float()) * 50.0f;
  if (kind == 2) state.l = kNaN;
  if (kind == 3) state.o[0] = kInf;
  return state;
}

TEST(FoldTest, RandomAndEmptyStates) {
  Random random(4);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (int64_t round = 0; round < 200; ++round) {
      const int64_t rows = random.Int(1, 9);
      const int64_t width = random.Int(1, 5) * 16;
      const int64_t pitch_a = width + 16 * random.Int(0, 1);
      const int64_t pitch_b = width + 16 * random.Int(0, 1);
      const GuardedFloats m_a(static_cast<size_t>(rows)), l_a(static_cast<size_t>(rows)),
          o_a(static_cast<size_t>(rows * pitch_a));
      const GuardedFloats m_b(static_cast<size_t>(rows)), l_b(static_cast<size_t>(rows)),
          o_b(static_cast<size_t>(rows * pitch_b));
      std::vector<reference::State> expected;
      for (int64_t r = 0; r < rows; ++r) {
        reference::State a = RandomState(random, width);
        const reference::State b = RandomState(random, width);
        m_a[r] = a.m, l_a[r] = a.l, m_b[r] = b.m, l_b[r] = b.l;
        std::copy(a.o.begin(), a.o.end(), o_a.data() + r * pitch_a);
        std::copy(b.o.begin(), b.o.end(), o_b.data() + r * pitch_b);
        reference::CanonicalFold(a, b);
        expected.push_back(a);
      }
      internal::ActiveKernels().softmax.fold(
          {rows, width, m_a.data(), l_a.data(), o_a.data(), pitch_a, m_b.data(), l_b.data(), o_b.data(), pitch_b});
      for (int64_t r = 0; r < rows; ++r) {
        const reference::State& state = expected[static_cast<size_t>(r)];
        ASSERT_TRUE(Matches(target, &state.m, m_a.data() + r, 1, 0.0, false)) << round;
        ASSERT_TRUE(Matches(target, &state.l, l_a.data() + r, 1, 1e-3)) << round;
        if (state.l != 0.0f) {
          ASSERT_TRUE(Matches(target, state.o.data(), o_a.data() + r * pitch_a, static_cast<size_t>(width), 1e-3))
              << round;
        }
      }
    }
  }
}

TEST(FinishTest, DividesNormalisesAndStaysInItsRow) {
  Random random(5);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (int64_t v_dim : {1, 2, 7, 15, 16, 17, 33, 64, 80}) {
      for (int64_t stride : {1, 3}) {
        for (bool want_lse : {true, false}) {
          const int64_t rows = 9;
          const int64_t pitch = internal::RoundUp(v_dim, 16);
          const GuardedFloats m(rows), l(rows), o(static_cast<size_t>(rows * pitch));
          std::vector<GuardedFloats> outs;
          std::vector<void*> out_rows;
          std::vector<float> lses(rows, -7.0f);
          std::vector<float*> lse_rows;
          std::vector<reference::State> states;
          for (int64_t r = 0; r < rows; ++r) {
            reference::State state = RandomState(random, v_dim);
            if (r == 1) state.o[0] = -0.0f, state.l = 2.0f;
            if (r == 2) state.l = 1.0f;
            m[r] = state.m, l[r] = state.l;
            std::copy(state.o.begin(), state.o.end(), o.data() + r * pitch);
            states.push_back(state);
            outs.emplace_back(static_cast<size_t>((v_dim - 1) * stride + 1));
            out_rows.push_back(outs.back().data());
            lse_rows.push_back(&lses[static_cast<size_t>(r)]);
          }
          internal::ActiveKernels().softmax.finish({rows, v_dim, m.data(), l.data(), o.data(), pitch, out_rows.data(),
                                                    DType::kF32, stride, want_lse ? lse_rows.data() : nullptr});
          for (int64_t r = 0; r < rows; ++r) {
            std::vector<float> expected(static_cast<size_t>(v_dim));
            float expected_lse = 0.0f;
            reference::CanonicalFinish(states[static_cast<size_t>(r)], expected.data(), &expected_lse);
            for (int64_t j = 0; j < v_dim; ++j) {
              const float* const out = outs[static_cast<size_t>(r)].data();
              ASSERT_TRUE(SameBits(expected[static_cast<size_t>(j)], out[j * stride])) << target.name << " row " << r;
              if (j + 1 < v_dim && stride > 1) {
                ASSERT_TRUE(std::isnan(out[j * stride + 1])) << "between features";
              }
            }
            const float lse = lses[static_cast<size_t>(r)];
            if (!want_lse) {
              ASSERT_EQ(lse, -7.0f);
            }
            if (want_lse) {
              ASSERT_TRUE(Matches(target, &expected_lse, &lse, 1, 1e-5));
            }
            if (want_lse && std::isnan(lse)) {
              ASSERT_TRUE(SameBits(std::bit_cast<float>(0x7FC00000u), lse));
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headlane::testing
