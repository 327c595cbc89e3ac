// Element types and places: queries, keys, values, biases and outputs of 16 bits, in any strides, and values that are
// the first columns of the keys. F27, F29 and F43 of the list of public faults for types other than f32.
//
// 16-bit operands are converted exactly, so the same numbers in any type give the same bits; outputs are those of f32,
// rounded once.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "operator/check.h"
#include "operator/runner.h"
#include "operator/tensors.h"
#include "operator/ways.h"
#include "support/guarded_buffer.h"
#include "support/targets.h"

namespace headlane::testing {
namespace {

using reference::Causal;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
const std::vector<DType> kDTypes = {DType::kF32, DType::kF16, DType::kBF16};

// All of one type, which both 16-bit types have (few enough bits, not too small): the same numbers may be run as any.
void RoundToBoth(std::vector<float>& data) {
  for (float& x : data) x = std::round(x * 64.0f) / 64.0f;
}

void Round(const Sequence& s, DType q, DType k, DType v) {
  RoundAll(*s.q, q);
  RoundAll(*s.k, k);
  if (!s.values_in_keys) RoundAll(*s.v, v);
}

TEST(DTypes, TheSameNumbersInAnyTypeHaveTheSameBits) {
  Random random(1);
  for (int64_t q_len : {1, 3, 40}) {
    for (int64_t kv_len : {5, 33, 300, 1100}) {
      const Sequence s = RandomSequence(random, {6, 2, 20, 36}, {}, q_len, kv_len);
      RoundToBoth(*s.q);
      RoundToBoth(*s.k);
      RoundToBoth(*s.v);
      const Output expected = RunLibrary(s);
      EXPECT_TRUE(NearOracle(s.problem, expected));
      for (DType q : kDTypes) {
        for (DType k : kDTypes) {
          for (DType v : kDTypes) {
            for (RunOptions way : {AllWays()[0], AllWays()[3]}) {
              way.q_dtype = q;
              way.k_dtype = k;
              way.v_dtype = v;
              ASSERT_TRUE(SameOutput(expected, RunLibrary(s, way))) << Describe(s.problem) << ", " << Describe(way);
            }
          }
        }
      }
    }
  }
}

TEST(DTypes, RoundedOutputs) {
  Random random(2);
  for (const TargetInfo& target : UsableTargets()) {
    const ScopedTarget scope(target.name);
    for (float size : {1.0f, 1e-4f, 1e-7f, 3e4f, 1e-38f, 1e36f}) {
      Sequence s = RandomSequence(random, {4, 2, 8, 46}, {}, 7, 90);
      for (float& x : *s.v) x *= size;
      const Output wide = RunLibrary(s);
      for (DType dtype : {DType::kF16, DType::kBF16}) {
        s.problem.out_type = OutTypeOf(dtype);
        const Output narrow = RunLibrary(s);
        EXPECT_TRUE(SameBits(wide.lse, narrow.lse));
        for (size_t i = 0; i < wide.out.size(); ++i)
          ASSERT_TRUE(SameBits(reference::RoundTo(s.problem.out_type, wide.out[i]), narrow.out[i]))
              << DTypeName(dtype) << " of " << wide.out[i] << " on " << target.name;
        if (dtype == DType::kBF16 || size <= 1.0f) {
          EXPECT_TRUE(NearOracle(s.problem, narrow));
        }
      }
      s.problem.out_type = reference::OutType::kF32;
    }
  }
  // NaN, infinity and zeros of rows without keys.
  Sequence s = RandomSequence(random, {1, 1, 4, 5}, {}, 3, 2);
  (*s.v)[0] = kNaN;
  (*s.v)[1] = kInf;
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    s.problem.out_type = OutTypeOf(dtype);
    const Output output = RunLibrary(s);
    for (size_t d = 0; d < 5; ++d) EXPECT_TRUE(SameBits(0.0f, output.out[d]));
    EXPECT_TRUE(SameBits(std::bit_cast<float>(0x7FC00000u), output.out[5]));
    EXPECT_EQ(output.out[6], kInf);
    EXPECT_TRUE(std::isfinite(output.out[7]));
  }
}

// Denormals, the largest numbers, and a NaN in keys and values of 16 bits, in plain tensors and in the cache.
TEST(DTypes, CornersOfTheTypes) {
  Random random(3);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const float tiny = dtype == DType::kF16 ? 0x1p-24f : 0x1p-133f;
    const float largest = dtype == DType::kF16 ? 65504.0f : 0x1.FEp127f;
    for (float special : {tiny, -tiny, tiny * 37.0f, largest, -largest, 0.0f, -0.0f, kNaN, kInf, -kInf}) {
      for (bool in_k : {false, true}) {
        const Sequence s = RandomSequence(random, {2, 1, 8, 20}, {}, 3, 50);
        Round(s, DType::kF32, dtype, dtype);
        std::vector<float>& data = in_k ? *s.k : *s.v;
        for (size_t i = 3; i < data.size(); i += 19) data[i] = special;
        for (RunOptions way : AllWays()) {
          way.k_dtype = way.v_dtype = dtype;
          const Output output = RunLibrary(s, way);
          if (ActiveTarget().has_fma) {
            ASSERT_TRUE(IsCanonical(s.problem, output)) << special << " " << in_k << ", " << Describe(way);
          }
        }
      }
    }
  }
}

TEST(DTypes, F43HeadSizes) {
  Random random(43);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (int64_t qk_dim : {1, 3, 46, 80, 100, 112, 128, 192, 256, 257, 576}) {
      for (int64_t v_dim : {1, 128, 512}) {
        for (int64_t kv_len : {1, 33}) {
          for (int64_t q_len : {1, 30}) {
            Sequence s = RandomSequence(random, {4, 2, qk_dim, v_dim}, {}, q_len, kv_len);
            Round(s, dtype, dtype, dtype);
            s.problem.out_type = OutTypeOf(dtype);
            Output first;
            for (RunOptions way : {AllWays()[0], AllWays()[3]}) {
              way.q_dtype = way.k_dtype = way.v_dtype = dtype;
              const Output output = RunLibrary(s, way);
              if (first.out.empty()) {
                first = output;
                ASSERT_TRUE(NearOracle(s.problem, output)) << Describe(s.problem);
              }
              ASSERT_TRUE(SameOutput(first, output)) << Describe(s.problem) << ", " << Describe(way);
            }
          }
        }
      }
    }
  }
}

// f16, causal, each of the extents 0 in turn.
TEST(DTypes, F27ZeroInEveryDimension) {
  Random random(27);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (const auto& [heads, q_len, kv_len] : std::vector<std::tuple<Heads, int64_t, int64_t>>{{{7, 7, 7, 0}, 9, 7},
                                                                                               {{7, 7, 7, 7}, 0, 7},
                                                                                               {{7, 7, 7, 7}, 9, 0},
                                                                                               {{7, 7, 0, 7}, 9, 7},
                                                                                               {{7, 7, 0, 0}, 9, 7}}) {
      Sequence s = RandomSequence(random, heads, {}, q_len, kv_len);
      Round(s, dtype, dtype, dtype);
      s.problem.out_type = OutTypeOf(dtype);
      RunOptions options;
      options.q_dtype = options.k_dtype = options.v_dtype = dtype;
      const Output output = RunLibrary(s, options);
      EXPECT_TRUE(NearOracle(s.problem, output)) << Describe(s.problem);
      if (kv_len == 0) {
        for (float x : output.out) EXPECT_TRUE(SameBits(0.0f, x));
      }
    }
  }
}

// Every operand and the output in strides of its own.
TEST(DTypes, F29AnyStridesAndAlignment) {
  Random random(29);
  struct Placed {
    GuardedBuffer memory;
    TensorView view;
    int64_t elements;
  };
  const int64_t tokens = 21;
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (const auto& [qk_dim, v_dim] : std::vector<std::pair<int64_t, int64_t>>{{8, 8}, {46, 46}, {17, 33}, {64, 16}}) {
      Sequence dense = RandomSequence(random, {4, 2, qk_dim, v_dim}, {}, tokens, tokens);
      Round(dense, dtype, dtype, dtype);
      dense.problem.out_type = OutTypeOf(dtype);
      const Output expected = RunLibrary(dense);
      for (int layout = 0; layout < 6; ++layout) {
        SCOPED_TRACE(::testing::Message()
                     << DTypeName(dtype) << " dims " << qk_dim << "/" << v_dim << " layout " << layout);
        const auto place = [&](const float* rows, int64_t num_heads, int64_t dim) {
          const int64_t strides[6][3] = {{num_heads * dim, dim, 1},
                                         {dim, tokens * dim, 1},
                                         {1, dim * tokens, tokens},  // transposed
                                         {num_heads * (dim + 3) + 1, dim + 3, 1},
                                         {num_heads * dim * 3, dim * 3, 3},
                                         {-num_heads * dim, dim, 1}};
          const auto [token, head, step] = strides[layout];
          const int64_t elements = (tokens - 1) * std::abs(token) + (num_heads - 1) * head + (dim - 1) * step + 1;
          Placed placed{GuardedBuffer(static_cast<size_t>(elements * DTypeBytes(dtype))), {}, elements};
          const int64_t origin = token < 0 ? -token * (tokens - 1) : 0;
          for (int64_t t = 0; rows != nullptr && t < tokens; ++t) {
            for (int64_t h = 0; h < num_heads; ++h) {
              for (int64_t d = 0; d < dim; ++d)
                StoreElement(dtype, placed.memory.data(), origin + t * token + h * head + d * step, *rows++);
            }
          }
          placed.view = {placed.memory.data() + origin * DTypeBytes(dtype),
                         dtype,
                         1,
                         tokens,
                         num_heads,
                         dim,
                         0,
                         token,
                         head,
                         step};
          return placed;
        };
        const Placed q = place(dense.problem.q, 4, qk_dim);
        const Placed k = place(dense.problem.k, 2, qk_dim);
        const Placed v = place(dense.problem.v, 2, v_dim);
        const Placed out = place(nullptr, 4, v_dim);
        AttentionArgs args;
        args.q = q.view;
        args.k = k.view;
        args.v = v.view;
        args.out = out.view;
        SequenceSpec spec;
        spec.q_len = spec.kv_len = tokens;
        const Status status = Attention(SpecOf(dense.problem), std::vector<SequenceSpec>{spec}, args, SerialExecutor());
        ASSERT_TRUE(status.ok()) << status.c_str();
        size_t i = 0;
        const int64_t origin = layout == 5 ? 4 * v_dim * (tokens - 1) : 0;
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t h = 0; h < 4; ++h) {
            for (int64_t d = 0; d < v_dim; ++d) {
              const int64_t at =
                  origin + t * out.view.token_stride + h * out.view.head_stride + d * out.view.dim_stride;
              ASSERT_TRUE(SameBits(expected.out[i++], LoadElement(dtype, out.memory.data(), at)));
            }
          }
        }
        int64_t touched = 0;
        for (int64_t e = 0; e < out.elements; ++e)
          touched += std::isnan(LoadElement(dtype, out.memory.data(), e)) ? 0 : 1;
        EXPECT_EQ(touched, tokens * 4 * v_dim) << "something between the elements was written";
      }
    }
  }
}

TEST(DTypes, F29OverlapIsRefusedInAnyType) {
  std::vector<uint16_t> data(64, 0x3C00);
  std::vector<uint16_t> out(64, 0x7777);
  SequenceSpec sequence;
  sequence.q_len = sequence.kv_len = 2;
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 2;
  spec.qk_dim = spec.v_dim = 4;
  const auto view = [](std::vector<uint16_t>& memory) {
    TensorView dense = TokensHeadsDim(reinterpret_cast<float*>(memory.data()), 2, 2, 4);
    dense.dtype = DType::kF16;
    return dense;
  };
  AttentionArgs args;
  args.q = args.k = args.v = view(data);
  args.out = view(out);
  args.out.token_stride = 4;
  const Status status = Attention(spec, std::vector<SequenceSpec>{sequence}, args, SerialExecutor());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.c_str();
  for (uint16_t x : out) EXPECT_EQ(x, 0x7777);
}

// Multi-head latent attention and smaller: values from the keys have the bits of the same values elsewhere.
TEST(DTypes, ValuesInKeys) {
  Random random(5);
  for (const Heads& heads : {Heads{16, 1, 576, 512}, Heads{3, 1, 576, 512}, Heads{4, 2, 40, 40}, Heads{2, 2, 17, 1},
                             Heads{6, 2, 33, 32}, Heads{8, 1, 20, 17}}) {
    for (int64_t q_len : {1, 2, 5, 33}) {
      for (int64_t kv_len : {1, 40, 300, 1100}) {
        if (heads.qk_dim > 500 && q_len * kv_len > 2000) continue;
        for (DType dtype : kDTypes) {
          const Sequence s = WithValuesInKeys(RandomSequence(random, heads, {}, q_len, kv_len));
          RoundAll(*s.k, dtype);
          RunOptions options;
          options.k_dtype = options.v_dtype = dtype;
          const Output expected = RunLibrary(WithSeparateValues(s), options);
          if (q_len < 3) {
            ASSERT_TRUE(NearOracle(s.problem, expected));
          }
          for (RunOptions way : AllWays()) {
            way.k_dtype = way.v_dtype = dtype;
            ASSERT_TRUE(SameOutput(expected, RunLibrary(s, way))) << Describe(s.problem) << ", " << Describe(way);
          }
        }
      }
    }
  }
}

// What is written into a cache is rounded to its type; attention is then that of the rounded numbers.
TEST(DTypes, CacheRoundsWhatIsWritten) {
  Random random(6);
  for (DType k_dtype : kDTypes) {
    for (DType v_dtype : kDTypes) {
      const Sequence s = RandomSequence(random, {4, 2, 24, 20}, {}, 1, 77);
      for (size_t i = 0; i < s.v->size(); i += 7) (*s.v)[i] *= 1e-6f;
      const auto rounded = [&](const std::vector<float>& data, DType dtype) {
        std::vector<float> copy = data;
        RoundAll(copy, dtype);
        return copy;
      };
      Sequence stored = s;
      stored.k = std::make_shared<std::vector<float>>(rounded(*s.k, k_dtype));
      stored.v = std::make_shared<std::vector<float>>(rounded(*s.v, v_dtype));
      stored.problem.k = stored.k->data();
      stored.problem.v = stored.v->data();

      Result<KVCache> cache = KVCache::Create({.num_layers = 1,
                                               .num_kv_heads = 2,
                                               .qk_dim = 24,
                                               .v_dim = 20,
                                               .k_dtype = k_dtype,
                                               .v_dtype = v_dtype,
                                               .page_tokens = 32,
                                               .max_tokens = 96});
      ASSERT_TRUE(cache.ok()) << cache.status().c_str();
      SequenceSpec spec;
      spec.q_len = 1;
      spec.kv_len = 77;
      spec.cache_id = cache->CreateSequence().value();
      const Status appended =
          cache->Append(spec.cache_id, TokensHeadsDim(s.k->data(), 77, 2, 24), TokensHeadsDim(s.v->data(), 77, 2, 20));
      ASSERT_TRUE(appended.ok()) << appended.c_str();
      Output output{std::vector<float>(80), std::vector<float>(4)};
      AttentionArgs args;
      args.q = TokensHeadsDim(s.problem.q, 1, 4, 24);
      args.out = TokensHeadsDim(output.out.data(), 1, 4, 20);
      args.lse = {output.lse.data(), 0, 4, 1};
      args.cache = &*cache;
      const Result<AttentionPlan> plan = PlanAttention(SpecOf(s.problem), *cache, std::vector<SequenceSpec>{spec});
      ASSERT_TRUE(plan.ok()) << plan.status().c_str();
      Result<Workspace> workspace = Workspace::Create(*plan);
      ASSERT_TRUE(workspace.ok());
      const Status run = RunAttention(*plan, args, *workspace, SerialExecutor());
      ASSERT_TRUE(run.ok()) << run.c_str();
      EXPECT_TRUE(SameOutput(RunLibrary(stored), output)) << DTypeName(k_dtype) << " " << DTypeName(v_dtype);
      EXPECT_TRUE(NearOracle(stored.problem, output));
    }
  }
}

}  // namespace
}  // namespace headlane::testing
