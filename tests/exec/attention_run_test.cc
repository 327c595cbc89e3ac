// Running plans: against a double loop, and the same bits however the work was cut and whoever ran it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "exec/naive_attention.h"
#include "headlane/attention.h"
#include "plan/plan_impl.h"
#include "support/random.h"

namespace headlane {
namespace {

using testing::CachedBatch;
using testing::ExpectNear;
using testing::MakeBatch;
using testing::Outputs;
using testing::Random;
using testing::TestBatch;

AttentionSpec Spec(int64_t num_q_heads, int64_t num_kv_heads, int64_t qk_dim, int64_t v_dim, Mask mask = {}) {
  AttentionSpec spec;
  spec.num_q_heads = num_q_heads;
  spec.num_kv_heads = num_kv_heads;
  spec.qk_dim = qk_dim;
  spec.v_dim = v_dim;
  spec.mask = mask;
  return spec;
}

// Plans for `planned` workers and runs with `executor`, from plain tensors or a cache.
Outputs Attend(const TestBatch& batch, const CachedBatch* cached, int planned, Executor& executor) {
  Outputs outputs(batch);
  PlanOptions options;
  options.num_workers = planned;
  auto plan = cached != nullptr ? PlanAttention(batch.spec, *cached->cache, cached->sequences, options)
                                : PlanAttention(batch.spec, batch.sequences, options);
  EXPECT_TRUE(plan.ok()) << plan.status().c_str();
  if (!plan.ok()) return outputs;
  auto workspace = Workspace::Create(*plan);
  EXPECT_TRUE(workspace.ok()) << workspace.status().c_str();
  // What a fresh workspace holds must not matter.
  std::memset(workspace->data(), 0xFF, workspace->bytes());
  const AttentionArgs args = cached != nullptr ? cached->Args(batch, outputs.out.data(), outputs.lse.data())
                                               : batch.PlainArgs(outputs.out.data(), outputs.lse.data());
  const Status status = RunAttention(*plan, args, *workspace, executor);
  EXPECT_TRUE(status.ok()) << status.c_str();
  return outputs;
}

// A pool that gives worker numbers of no use: all the same.
void ThreadsWithoutNumbers(void*, int num_workers, Executor::Task task, void* context) {
  std::vector<std::thread> threads;
  for (int i = 0; i < num_workers; ++i) threads.emplace_back([task, context] { task(context, 12345); });
  for (std::thread& thread : threads) thread.join();
}

// A pool that starts its workers one after the other, the last one first.
void OneAfterTheOther(void*, int num_workers, Executor::Task task, void* context) {
  for (int i = num_workers - 1; i >= 0; --i) task(context, i);
}

TestBatch RandomBatch(Random& random, int64_t max_len) {
  Mask mask;
  mask.causality = static_cast<Causality>(random.Int(0, 2));
  if (random.OneIn(2)) mask.window = random.Pick(std::vector<int64_t>{0, 1, 3, 16, 100, 128, 1000, int64_t{1} << 62});
  const int64_t kv_heads = random.Int(1, 3);
  const int64_t group = random.Pick(std::vector<int64_t>{1, 2, 3, 4, 7, 16});
  const std::vector<int64_t> dims = {1, 7, 16, 33, 64};
  std::vector<std::pair<int64_t, int64_t>> lengths;
  const int64_t num_sequences = random.Int(1, 4);
  for (int64_t i = 0; i < num_sequences; ++i) {
    const int64_t kv_len = random.OneIn(6) ? 0 : random.Int(1, max_len);
    const int64_t q_len = random.OneIn(3) ? random.Int(0, std::min<int64_t>(kv_len + 3, 70)) : random.Int(0, 4);
    lengths.emplace_back(q_len, kv_len);
  }
  return MakeBatch(Spec(kv_heads * group, kv_heads, random.Pick(dims), random.Pick(dims), mask), lengths,
                   random.Next());
}

TEST(RunAttention, EqualsTheDoubleLoopAndItselfHoweverTheWorkIsCut) {
  Random random(1);
  OpenMPExecutor two(2);
  CallbackExecutor three(nullptr, 3, &ThreadsWithoutNumbers);
  CallbackExecutor backwards(nullptr, 5, &OneAfterTheOther);
  for (int trial = 0; trial < 60; ++trial) {
    const TestBatch batch = RandomBatch(random, trial % 4 == 0 ? 3500 : 400);
    SCOPED_TRACE(batch.Describe());
    const Outputs serial = Attend(batch, nullptr, 1, SerialExecutor());
    ExpectNear(batch, serial);
    EXPECT_TRUE(serial.SameBits(Attend(batch, nullptr, 2, two)));
    EXPECT_TRUE(serial.SameBits(Attend(batch, nullptr, 7, three)));
    EXPECT_TRUE(serial.SameBits(Attend(batch, nullptr, 64, backwards)));
    for (const int64_t page_tokens : {16, 48, 128, 256}) {
      const CachedBatch cached(batch, page_tokens);
      EXPECT_TRUE(serial.SameBits(Attend(batch, &cached, 1, SerialExecutor()))) << "page " << page_tokens;
      EXPECT_TRUE(serial.SameBits(Attend(batch, &cached, 16, three))) << "page " << page_tokens;
    }
  }
}

TEST(RunAttention, LongSequencesAreCutAndFoldedInOrder) {
  OpenMPExecutor two(2);
  CallbackExecutor three(nullptr, 3, &ThreadsWithoutNumbers);
  for (const Mask mask : {Mask{}, Mask{Causality::kBottomRight, 2500}, Mask{Causality::kFull, kNoWindow}}) {
    for (const int64_t q_len : {1, 3, 40}) {
      const TestBatch batch = MakeBatch(Spec(4, 1, 32, 24, mask), {{q_len, 9000}}, 7);
      const CachedBatch cached(batch, 64);
      PlanOptions options;
      options.num_workers = 8;
      auto plan = PlanAttention(batch.spec, *cached.cache, cached.sequences, options);
      ASSERT_TRUE(plan.ok());
      EXPECT_GT(plan->summary().num_splits, 1);
      const Outputs serial = Attend(batch, nullptr, 1, SerialExecutor());
      ExpectNear(batch, serial);
      for (const int planned : {2, 3, 8, 128}) {
        EXPECT_TRUE(serial.SameBits(Attend(batch, &cached, planned, three)))
            << planned << " workers; " << batch.Describe();
        EXPECT_TRUE(serial.SameBits(Attend(batch, nullptr, planned, two)))
            << planned << " workers; " << batch.Describe();
      }
    }
  }
}

TEST(RunAttention, LongPrefillEqualsChunksAndDecode) {
  const TestBatch whole = MakeBatch(Spec(6, 2, 40, 40), {{1300, 1300}}, 3);
  const Outputs expected = Attend(whole, nullptr, 2, SerialExecutor());
  ExpectNear(whole, expected);
  const CachedBatch cached(whole, 32);
  for (const int64_t chunk : {7, 64, 300}) {
    Outputs outputs(whole);
    for (int64_t begin = 0; begin < 1300; begin += chunk) {
      SequenceSpec s = cached.sequences[0];
      s.q_begin = begin;
      s.q_len = std::min<int64_t>(chunk, 1300 - begin);
      s.kv_len = begin + s.q_len;
      const Status status =
          Attention(whole.spec, {&s, 1}, cached.Args(whole, outputs.out.data(), outputs.lse.data()), SerialExecutor());
      ASSERT_TRUE(status.ok()) << status.c_str();
    }
    EXPECT_TRUE(expected.SameBits(outputs)) << "chunks of " << chunk;
  }
  // A decode step of the last token.
  Outputs outputs(whole);
  SequenceSpec last = cached.sequences[0];
  last.q_begin = 1299;
  last.q_len = 1;
  ASSERT_TRUE(
      Attention(whole.spec, {&last, 1}, cached.Args(whole, outputs.out.data(), outputs.lse.data()), SerialExecutor())
          .ok());
  const size_t row = 1299 * 6 * 40;
  EXPECT_EQ(std::memcmp(expected.out.data() + row, outputs.out.data() + row, 6 * 40 * sizeof(float)), 0);
}

// Hidden keys and unused slots may hold anything.
TEST(RunAttention, HiddenValuesThatAreNotFiniteDoNotShow) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (const int64_t q_len : {1, 5, 90}) {
    const Mask mask{Causality::kBottomRight, 130};
    TestBatch batch = MakeBatch(Spec(2, 1, 16, 20, mask), {{q_len, 700}, {2, 90}}, 11);
    const Outputs expected = Attend(batch, nullptr, 1, SerialExecutor());
    // Keys left of every row's window.
    const int64_t first_seen = 700 - q_len - 130 + 1;
    for (int64_t p = 0; p < first_seen; ++p) {
      for (int64_t d = 0; d < 16; ++d) batch.k[static_cast<size_t>(p * 16 + d)] = bad[(p + d) % 3];
      for (int64_t d = 0; d < 20; ++d) batch.v[static_cast<size_t>(p * 20 + d)] = bad[(p + d) % 3];
    }
    const CachedBatch cached(batch, 48);
    EXPECT_TRUE(expected.SameBits(Attend(batch, nullptr, 1, SerialExecutor()))) << q_len;
    EXPECT_TRUE(expected.SameBits(Attend(batch, nullptr, 8, SerialExecutor()))) << q_len;
    EXPECT_TRUE(expected.SameBits(Attend(batch, &cached, 1, SerialExecutor()))) << q_len;
  }
  // A key that some rows see and others don't: only those that see it become NaN.
  TestBatch batch = MakeBatch(Spec(1, 1, 16, 20), {{40, 300}}, 12);
  const Outputs expected = Attend(batch, nullptr, 1, SerialExecutor());
  batch.v[280 * 20 + 3] = bad[0];
  const CachedBatch cached(batch, 16);
  for (const Outputs& outputs :
       {Attend(batch, nullptr, 1, SerialExecutor()), Attend(batch, &cached, 4, SerialExecutor())}) {
    for (int64_t row = 0; row < 40; ++row) {
      for (int64_t d = 0; d < 20; ++d) {
        const size_t i = static_cast<size_t>(row * 20 + d);
        if (row >= 20 && d == 3) {
          EXPECT_TRUE(std::isnan(outputs.out[i])) << row;
        } else {
          EXPECT_EQ(std::memcmp(&expected.out[i], &outputs.out[i], sizeof(float)), 0) << row << " " << d;
        }
      }
    }
  }
}

TEST(RunAttention, EmptyProblemsWriteWhatThereIs) {
  const float kUnseen = -std::numeric_limits<float>::infinity();
  for (const int64_t v_dim : {0, 20}) {
    for (const int64_t qk_dim : {0, 16}) {
      const TestBatch batch = MakeBatch(Spec(4, 2, qk_dim, v_dim), {{0, 0}, {2, 0}, {0, 7}, {3, 1}, {2, 40}}, 5);
      SCOPED_TRACE(batch.Describe());
      const Outputs outputs = Attend(batch, nullptr, 4, SerialExecutor());
      ExpectNear(batch, outputs);
      for (size_t i = 0; i < 4 * 4; ++i) EXPECT_EQ(outputs.lse[i], kUnseen);  // no keys; rows before the first key
      for (size_t i = 0; i < static_cast<size_t>(4 * 4 * v_dim); ++i) {
        EXPECT_EQ(outputs.out[i], 0.0f);
        EXPECT_FALSE(std::signbit(outputs.out[i]));
      }
    }
  }
  for (const auto& [q_heads, kv_heads] : {std::pair<int64_t, int64_t>{0, 0}, {0, 2}}) {
    const TestBatch batch = MakeBatch(Spec(q_heads, kv_heads, 8, 8), {{3, 5}}, 5);
    EXPECT_TRUE(Attend(batch, nullptr, 3, SerialExecutor()).AllUnwritten());
  }
  const TestBatch none = MakeBatch(Spec(4, 2, 8, 8), {}, 5);
  EXPECT_TRUE(Attend(none, nullptr, 3, SerialExecutor()).AllUnwritten());
}

TEST(RunAttention, StridesOfAnyKind) {
  // [batch, heads, tokens, dim] with both sequences in batch entries, transposed features in q, reversed tokens in k,
  // padded output.
  const int64_t q_heads = 4, kv_heads = 2, dim = 24, v_dim = 20, q_len = 5, kv_len = 150;
  const TestBatch dense = MakeBatch(Spec(q_heads, kv_heads, dim, v_dim), {{q_len, kv_len}, {q_len, kv_len}}, 9);
  const Outputs expected = Attend(dense, nullptr, 1, SerialExecutor());
  ExpectNear(dense, expected);
  std::vector<float> q(dense.q.size() + 1), k(dense.k.size()), v(dense.v.size());
  std::vector<float> out(static_cast<size_t>(2 * q_heads * q_len * (v_dim + 3) * 2), Outputs::Unwritten()),
      lse(2 * q_heads * q_len);
  AttentionArgs args;
  args.q = {q.data() + 1, DType::kF32, 2, q_len, q_heads, dim, q_heads * dim * q_len, 1, dim * q_len, q_len};
  args.k = {k.data() + (kv_len - 1) * dim,
            DType::kF32,
            2,
            kv_len,
            kv_heads,
            dim,
            kv_heads * kv_len * dim,
            -dim,
            kv_len * dim,
            1};
  args.v = {v.data(), DType::kF32, 2, kv_len, kv_heads, v_dim, kv_heads * kv_len * v_dim, 1, kv_len * v_dim, kv_len};
  const int64_t out_row = (v_dim + 3) * 2;
  args.out = {out.data(), DType::kF32,     2, q_len, q_heads, v_dim, q_heads * q_len * out_row,
              out_row,    q_len * out_row, 2};
  args.lse = {lse.data(), q_heads * q_len, 1, q_len};
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < q_heads; ++h) {
      for (int64_t t = 0; t < q_len; ++t) {
        for (int64_t d = 0; d < dim; ++d) {
          q[static_cast<size_t>(1 + b * args.q.batch_stride + t * args.q.token_stride + h * args.q.head_stride +
                                d * args.q.dim_stride)] =
              dense.q[static_cast<size_t>(((b * q_len + t) * q_heads + h) * dim + d)];
        }
      }
    }
    for (int64_t h = 0; h < kv_heads; ++h) {
      for (int64_t t = 0; t < kv_len; ++t) {
        const int64_t row = (b * kv_len + t) * kv_heads + h;
        for (int64_t d = 0; d < dim; ++d) {
          k[static_cast<size_t>((kv_len - 1) * dim + b * args.k.batch_stride + t * args.k.token_stride +
                                h * args.k.head_stride + d)] = dense.k[static_cast<size_t>(row * dim + d)];
        }
        for (int64_t d = 0; d < v_dim; ++d) {
          v[static_cast<size_t>(b * args.v.batch_stride + t * args.v.token_stride + h * args.v.head_stride +
                                d * args.v.dim_stride)] = dense.v[static_cast<size_t>(row * v_dim + d)];
        }
      }
    }
  }
  std::vector<SequenceSpec> sequences(2);
  for (int64_t b = 0; b < 2; ++b) {
    sequences[static_cast<size_t>(b)].batch = b;
    sequences[static_cast<size_t>(b)].q_len = q_len;
    sequences[static_cast<size_t>(b)].kv_len = kv_len;
  }
  const Status status = Attention(dense.spec, sequences, args, SerialExecutor());
  ASSERT_TRUE(status.ok()) << status.c_str();
  size_t num_written = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < q_heads; ++h) {
      for (int64_t t = 0; t < q_len; ++t) {
        const int64_t row = (b * q_len + t) * q_heads + h;
        for (int64_t d = 0; d < v_dim; ++d) {
          const float got = out[static_cast<size_t>(b * args.out.batch_stride + t * args.out.token_stride +
                                                    h * args.out.head_stride + d * 2)];
          EXPECT_EQ(std::memcmp(&expected.out[static_cast<size_t>(row * v_dim + d)], &got, sizeof(float)), 0);
        }
        EXPECT_EQ(
            expected.lse[static_cast<size_t>(row)],
            lse[static_cast<size_t>(b * args.lse.batch_stride + t * args.lse.token_stride + h * args.lse.head_stride)]);
      }
    }
  }
  for (const float x : out) num_written += !Outputs::IsUnwritten(x);
  EXPECT_EQ(num_written, expected.out.size() - Outputs::kPadding);
}

TEST(RunAttention, LayersAndUpdatesOfOnePlan) {
  const TestBatch batch = MakeBatch(Spec(4, 2, 16, 16), {{1, 100}, {1, 2000}}, 21);
  CachedBatch cached(batch, 32, /*num_layers=*/3);
  PlanOptions options;
  options.num_workers = 4;
  options.max_kv_len = 2200;
  options.max_q_tokens = 8;
  std::vector<SequenceSpec> first = {cached.sequences[0]};
  auto plan = PlanAttention(batch.spec, *cached.cache, first,
                            {.num_workers = 4, .max_sequences = 2, .max_q_tokens = 8, .max_kv_len = 2200});
  ASSERT_TRUE(plan.ok()) << plan.status().c_str();
  auto workspace = Workspace::Create(*plan);
  ASSERT_TRUE(workspace.ok());
  const size_t bytes = plan->workspace_bytes();
  ASSERT_TRUE(plan->Update(*cached.cache, cached.sequences).ok());
  EXPECT_EQ(plan->workspace_bytes(), bytes);
  const Outputs expected = Attend(batch, nullptr, 1, SerialExecutor());
  for (int64_t layer = 0; layer < 3; ++layer) {
    Outputs outputs(batch);
    ASSERT_TRUE(RunAttention(*plan, cached.Args(batch, outputs.out.data(), outputs.lse.data(), layer), *workspace,
                             SerialExecutor())
                    .ok());
    EXPECT_TRUE(expected.SameBits(outputs)) << layer;
  }
}

// Engines with their own threads: more of them than were planned, one after the other, or again when all is done.
TEST(RunWorker, AnyNumberOfThreads) {
  const TestBatch batch = MakeBatch(Spec(4, 2, 16, 16), {{1, 3000}, {30, 500}}, 22);
  const Outputs expected = Attend(batch, nullptr, 1, SerialExecutor());
  for (const int planned : {1, 2, 8}) {
    PlanOptions options;
    options.num_workers = planned;
    auto plan = PlanAttention(batch.spec, batch.sequences, options);
    ASSERT_TRUE(plan.ok());
    auto workspace = Workspace::Create(*plan);
    ASSERT_TRUE(workspace.ok());
    for (const int num_threads : {1, 2, 16}) {
      Outputs outputs(batch);
      const AttentionArgs args = batch.PlainArgs(outputs.out.data(), outputs.lse.data());
      ASSERT_TRUE(PrepareRun(*plan, args, *workspace).ok());
      std::vector<std::thread> threads;
      for (int i = 0; i < num_threads; ++i) {
        threads.emplace_back([&, i] { RunWorker(*plan, args, *workspace, i - 3); });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_TRUE(expected.SameBits(outputs)) << planned << " planned, " << num_threads << " threads";
      std::fill(outputs.out.begin(), outputs.out.end(), 1.0f);
      RunWorker(*plan, args, *workspace, 0);
      EXPECT_EQ(outputs.out[0], 1.0f) << "nothing is left to be done";
    }
  }
}

TEST(RunWorker, DoesNothingAfterAFailedPrepareRun) {
  const TestBatch batch = MakeBatch(Spec(4, 2, 16, 16), {{2, 30}}, 23);
  auto plan = PlanAttention(batch.spec, batch.sequences);
  ASSERT_TRUE(plan.ok());
  auto workspace = Workspace::Create(*plan);
  ASSERT_TRUE(workspace.ok());
  Outputs outputs(batch);
  AttentionArgs args = batch.PlainArgs(outputs.out.data(), outputs.lse.data());
  ASSERT_TRUE(PrepareRun(*plan, args, *workspace).ok());
  args.k.num_heads = 3;
  EXPECT_EQ(PrepareRun(*plan, args, *workspace).code(), StatusCode::kInvalidArgument);
  RunWorker(*plan, args, *workspace, 0);
  EXPECT_TRUE(outputs.AllUnwritten());
}

TEST(RunAttention, ManyRunsOfOnePlanAtTheSameTime) {
  const TestBatch batch = MakeBatch(Spec(8, 2, 16, 16), {{1, 2500}, {9, 300}}, 24);
  const CachedBatch cached(batch, 64);
  const Outputs expected = Attend(batch, nullptr, 1, SerialExecutor());
  PlanOptions options;
  options.num_workers = 2;
  auto plan = PlanAttention(batch.spec, *cached.cache, cached.sequences, options);
  ASSERT_TRUE(plan.ok());
  std::atomic<int> num_right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      auto workspace = Workspace::Create(*plan);
      OpenMPExecutor executor(2);
      for (int run = 0; run < 5; ++run) {
        Outputs outputs(batch);
        const Status status =
            RunAttention(*plan, cached.Args(batch, outputs.out.data(), outputs.lse.data()), *workspace, executor);
        num_right += status.ok() && expected.SameBits(outputs);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, 20);
}

TEST(RunAttention, LayersOfDifferentShapesShareAWorkspace) {
  const TestBatch wide = MakeBatch(Spec(16, 4, 64, 64), {{1, 3000}}, 25);
  const TestBatch narrow = MakeBatch(Spec(8, 8, 32, 16), {{4, 200}}, 26);
  PlanOptions options;
  options.num_workers = 4;
  auto wide_plan = PlanAttention(wide.spec, wide.sequences, options);
  auto narrow_plan = PlanAttention(narrow.spec, narrow.sequences, options);
  ASSERT_TRUE(wide_plan.ok() && narrow_plan.ok());
  const AttentionPlan& larger =
      wide_plan->workspace_bytes() > narrow_plan->workspace_bytes() ? *wide_plan : *narrow_plan;
  // The caller's memory, at an odd address.
  std::vector<unsigned char> memory(larger.workspace_bytes() + 1);
  auto workspace = Workspace::Over(larger, memory.data() + 1, memory.size() - 1);
  ASSERT_TRUE(workspace.ok());
  for (int i = 0; i < 3; ++i) {
    Outputs a(wide), b(narrow);
    ASSERT_TRUE(
        RunAttention(*wide_plan, wide.PlainArgs(a.out.data(), a.lse.data()), *workspace, SerialExecutor()).ok());
    ASSERT_TRUE(
        RunAttention(*narrow_plan, narrow.PlainArgs(b.out.data(), b.lse.data()), *workspace, SerialExecutor()).ok());
    ExpectNear(wide, a);
    ExpectNear(narrow, b);
  }
  EXPECT_FALSE(Workspace::Over(larger, memory.data(), larger.workspace_bytes() - 1).ok());
  EXPECT_FALSE(Workspace::Over(larger, nullptr, larger.workspace_bytes()).ok());
}

}  // namespace
}  // namespace headlane
