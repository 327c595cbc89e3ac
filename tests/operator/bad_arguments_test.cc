// F53: lengths, positions and shapes that contradict each other. Each is a typed error that names the thing and both
// numbers, and nothing is written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headlane/attention.h"
#include "support/guarded_buffer.h"

namespace headlane::testing {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr DType kNoType = static_cast<DType>(9);
constexpr uint64_t kTree[3] = {1, 3, 7};
constexpr uint8_t kOnes[6] = {1, 1, 1, 1, 1, 1};

// A valid call: two sequences, 4 query tokens and 10 keys in all, 4 / 2 heads of 8.
struct Call {
  Call() : data(10 * 4 * 8), out(4 * 4 * 8), lse(4 * 4), m(4 * 4), l(4 * 4), o(4 * 4 * 8) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = 0.5f;
    spec.num_q_heads = 4;
    spec.num_kv_heads = 2;
    spec.qk_dim = spec.v_dim = 8;
    sequences.resize(2);
    sequences[0].q_len = 1;
    sequences[0].kv_len = 6;
    sequences[1].q_begin = 1;
    sequences[1].q_len = 3;
    sequences[1].kv_begin = 6;
    sequences[1].kv_len = 4;
    args.q = TokensHeadsDim(const_cast<const float*>(data.data()), 4, 4, 8);
    args.k = args.v = TokensHeadsDim(const_cast<const float*>(data.data()), 10, 2, 8);
    args.out = TokensHeadsDim(out.data(), 4, 4, 8);
    args.lse = {lse.data(), 16, 4, 1};
  }

  // Valid modifiers, attached and handed out to be spoilt.
  ConstTensorView& Bias() {
    args.bias = {data.data(), DType::kF32, 1, 4, 4, 6, 0, 0, 0, 1};
    return args.bias;
  }
  BoolMaskView& Mask() {
    args.mask = {kOnes, BoolMaskView::Format::kBytes, 1, 4, 4, 6, 0, 0, 0};
    return args.mask;
  }
  StateView& State() {
    args.state.m = {m.data(), 16, 4, 1};
    args.state.l = {l.data(), 16, 4, 1};
    args.state.o = TokensHeadsDim(o.data(), 4, 4, 8);
    return args.state;
  }

  Status Run() { return Attention(spec, sequences, args, SerialExecutor()); }
  bool NothingWritten() const {
    for (const GuardedFloats* written : {&out, &lse, &m, &l, &o}) {
      for (size_t i = 0; i < written->size(); ++i) {
        if (!std::isnan((*written)[i])) return false;
      }
    }
    return true;
  }

  GuardedFloats data, out, lse, m, l, o;
  AttentionSpec spec;
  std::vector<SequenceSpec> sequences;
  AttentionArgs args;
};

struct Fault {
  const char* what;
  std::function<void(Call&)> plant;
  StatusCode code;
  std::vector<std::string> named;  // words of the message
};

const StatusCode kInvalid = StatusCode::kInvalidArgument;
const StatusCode kRange = StatusCode::kOutOfRange;

const std::vector<Fault>& Faults() {
  static const std::vector<Fault> faults = {
      {"q_len negative", [](Call& c) { c.sequences[1].q_len = -1; }, kInvalid, {"sequences[1]", "q_len", "-1"}},
      {"q_len smallest", [](Call& c) { c.sequences[1].q_len = kMin; }, kInvalid, {"sequences[1]", "q_len"}},
      {"q_len largest", [](Call& c) { c.sequences[1].q_len = kMax; }, kInvalid, {"sequences[1]", "q_len"}},
      {"q_len one too many", [](Call& c) { c.sequences[1].q_len = 4; }, kRange, {"sequences[1]", "q", "5", "4"}},
      {"kv_len negative", [](Call& c) { c.sequences[0].kv_len = -1; }, kInvalid, {"sequences[0]", "kv_len", "-1"}},
      {"kv_len largest", [](Call& c) { c.sequences[0].kv_len = kMax; }, kInvalid, {"sequences[0]", "kv_len"}},
      {"kv_len 2^31 - 1",
       [](Call& c) { c.sequences[0].kv_len = 0x7FFFFFFF; },
       kRange,
       {"sequences[0]", "k", "2147483647", "10"}},
      {"kv_len one too many", [](Call& c) { c.sequences[1].kv_len = 5; }, kRange, {"sequences[1]", "k", "11", "10"}},
      {"q_begin negative", [](Call& c) { c.sequences[1].q_begin = -1; }, kInvalid, {"sequences[1]", "q_begin", "-1"}},
      {"q_begin largest", [](Call& c) { c.sequences[1].q_begin = kMax; }, kInvalid, {"sequences[1]", "q_begin"}},
      {"q_begin past the end", [](Call& c) { c.sequences[1].q_begin = 2; }, kRange, {"sequences[1]", "q"}},
      {"kv_begin negative",
       [](Call& c) { c.sequences[1].kv_begin = -2; },
       kInvalid,
       {"sequences[1]", "kv_begin", "-2"}},
      {"kv_begin largest", [](Call& c) { c.sequences[1].kv_begin = kMax - 2; }, kInvalid, {"sequences[1]", "kv_begin"}},
      {"batch negative", [](Call& c) { c.sequences[1].batch = -1; }, kInvalid, {"sequences[1]", "batch", "-1"}},
      {"batch past the end", [](Call& c) { c.sequences[1].batch = 1; }, kRange, {"sequences[1]", "1"}},
      {"rows shared", [](Call& c) { c.sequences[0].q_len = 2; }, kInvalid, {"sequences[0]", "sequences[1]"}},
      {"heads not a multiple", [](Call& c) { c.spec.num_kv_heads = 3; }, kInvalid, {"num_q_heads", "4", "3"}},
      {"heads negative", [](Call& c) { c.spec.num_q_heads = -4; }, kInvalid, {"num_q_heads", "-4"}},
      {"no kv heads", [](Call& c) { c.spec.num_kv_heads = 0; }, kInvalid, {"num_q_heads", "4", "0"}},
      {"heads largest", [](Call& c) { c.spec.num_q_heads = c.spec.num_kv_heads = kMax; }, kInvalid, {"num_q_heads"}},
      {"dim negative", [](Call& c) { c.spec.qk_dim = -8; }, kInvalid, {"qk_dim", "-8"}},
      {"dim largest", [](Call& c) { c.spec.v_dim = kMax; }, kInvalid, {"v_dim"}},
      {"scale not finite",
       [](Call& c) { c.spec.scale = std::numeric_limits<float>::quiet_NaN(); },
       kInvalid,
       {"scale", "nan"}},
      {"window -2", [](Call& c) { c.spec.mask.window = -2; }, kInvalid, {"window", "-2"}},
      {"causality unknown",
       [](Call& c) { c.spec.mask.causality = static_cast<Causality>(77); },
       kInvalid,
       {"causality", "77"}},
      {"q of other heads", [](Call& c) { c.args.q.num_heads = 5; }, kInvalid, {"q", "num_heads", "5", "4"}},
      {"q of other dim", [](Call& c) { c.args.q.dim = 7; }, kInvalid, {"q", "dim", "7", "8"}},
      {"k of other heads", [](Call& c) { c.args.k.num_heads = 4; }, kInvalid, {"k", "num_heads", "4", "2"}},
      {"k of other dim", [](Call& c) { c.args.k.dim = 9; }, kInvalid, {"k", "dim", "9", "8"}},
      {"v of other dim", [](Call& c) { c.args.v.dim = 9; }, kInvalid, {"v", "dim", "9", "8"}},
      {"v too short", [](Call& c) { c.args.v.num_tokens = 9; }, kRange, {"v", "10", "9"}},
      {"out too short", [](Call& c) { c.args.out.num_tokens = 3; }, kRange, {"out", "4", "3"}},
      {"out of other dim", [](Call& c) { c.args.out.dim = 7; }, kInvalid, {"out", "dim", "7", "8"}},
      {"q null", [](Call& c) { c.args.q.data = nullptr; }, kInvalid, {"q"}},
      {"k null", [](Call& c) { c.args.k.data = nullptr; }, kInvalid, {"k"}},
      {"v null", [](Call& c) { c.args.v.data = nullptr; }, kInvalid, {"v"}},
      {"out null", [](Call& c) { c.args.out.data = nullptr; }, kInvalid, {"out"}},
      {"q of no type", [](Call& c) { c.args.q.dtype = kNoType; }, kInvalid, {"q", "dtype", "9"}},
      {"k of no type", [](Call& c) { c.args.k.dtype = kNoType; }, kInvalid, {"k", "dtype", "9"}},
      {"v of no type", [](Call& c) { c.args.v.dtype = kNoType; }, kInvalid, {"v", "dtype", "9"}},
      {"out of no type", [](Call& c) { c.args.out.dtype = kNoType; }, kInvalid, {"out", "dtype", "9"}},
      {"q strides overflow", [](Call& c) { c.args.q.token_stride = kMax / 2; }, kInvalid, {"q"}},
      {"k strides overflow", [](Call& c) { c.args.k.head_stride = kMin; }, kInvalid, {"k"}},
      {"out overlaps itself", [](Call& c) { c.args.out.token_stride = 8; }, kInvalid, {"out"}},
      {"out of stride 0", [](Call& c) { c.args.out.dim_stride = 0; }, kInvalid, {"out"}},
      {"lse overlaps itself", [](Call& c) { c.args.lse.head_stride = 0; }, kInvalid, {"lse"}},
      {"window_right -2", [](Call& c) { c.spec.mask.window_right = -2; }, kInvalid, {"window_right", "-2"}},
      {"always visible negative",
       [](Call& c) { c.spec.mask.num_always_visible = -1; },
       kInvalid,
       {"num_always_visible", "-1"}},
      {"chunk negative", [](Call& c) { c.spec.mask.chunk = -1; }, kInvalid, {"chunk", "-1"}},
      {"softcap negative", [](Call& c) { c.spec.softcap = -1.0f; }, kInvalid, {"softcap", "-1"}},
      {"softcap NaN",
       [](Call& c) { c.spec.softcap = std::numeric_limits<float>::quiet_NaN(); },
       kInvalid,
       {"softcap", "nan"}},
      {"numerics unknown", [](Call& c) { c.spec.numerics = static_cast<Numerics>(5); }, kInvalid, {"numerics", "5"}},
      {"prefix negative", [](Call& c) { c.sequences[1].prefix_len = -3; }, kInvalid, {"sequences[1]", "prefix_len"}},
      {"position beyond what is countable",
       [](Call& c) { c.sequences[1].q_pos = kMax; },
       kInvalid,
       {"sequences[1]", "q_pos"}},
      {"smallest position", [](Call& c) { c.sequences[1].q_pos = kMin; }, kInvalid, {"sequences[1]", "q_pos"}},
      {"tree and position",
       [](Call& c) {
         c.sequences[1].tree = {kTree, 1};
         c.sequences[1].q_pos = 1;
       },
       kInvalid,
       {"sequences[1]", "tree", "q_pos"}},
      {"tree of more tokens than keys",
       [](Call& c) {
         c.sequences[1].kv_len = 2;
         c.sequences[1].tree = {kTree, 1};
       },
       kInvalid,
       {"sequences[1]", "tree", "3", "2"}},
      {"tree of no words", [](Call& c) { c.sequences[1].tree = {kTree, 0}; }, kInvalid, {"sequences[1]", "tree", "0"}},
      {"values wider than the keys they are in",
       [](Call& c) {
         c.spec.values_in_keys = true;
         c.spec.v_dim = 9;
       },
       kInvalid,
       {"v_dim", "9", "8"}},
      {"bias of other heads", [](Call& c) { c.Bias().num_heads = 3; }, kInvalid, {"bias", "num_heads", "3", "4"}},
      {"bias of few columns", [](Call& c) { c.Bias().dim = 5; }, kRange, {"bias", "5", "6"}},
      {"bias of few tokens", [](Call& c) { c.Bias().num_tokens = 3; }, kRange, {"bias", "3", "4"}},
      {"bias of no type", [](Call& c) { c.Bias().dtype = kNoType; }, kInvalid, {"bias", "dtype", "9"}},
      {"bias strides overflow", [](Call& c) { c.Bias().token_stride = kMax / 2; }, kInvalid, {"bias"}},
      {"mask of other heads", [](Call& c) { c.Mask().num_heads = 3; }, kInvalid, {"mask", "num_heads", "3", "4"}},
      {"mask of few columns", [](Call& c) { c.Mask().num_columns = 5; }, kRange, {"mask", "5", "6"}},
      {"mask of few tokens", [](Call& c) { c.Mask().num_tokens = 3; }, kRange, {"mask", "3", "4"}},
      {"mask of few batches", [](Call& c) { c.Mask().num_batch = 0; }, kRange, {"mask", "sequences[0]", "0"}},
      {"mask of no format",
       [](Call& c) { c.Mask().format = static_cast<BoolMaskView::Format>(4); },
       kInvalid,
       {"mask", "format", "4"}},
      {"mask strides overflow", [](Call& c) { c.Mask().head_stride = kMin; }, kInvalid, {"mask"}},
      {"state without l", [](Call& c) { c.State().l.data = nullptr; }, kInvalid, {"state.l"}},
      {"state without o", [](Call& c) { c.State().o.data = nullptr; }, kInvalid, {"state.o"}},
      {"state of f16", [](Call& c) { c.State().o.dtype = DType::kF16; }, StatusCode::kUnsupported, {"state.o", "f16"}},
      {"state overlaps itself", [](Call& c) { c.State().o.token_stride = 8; }, kInvalid, {"state.o"}},
      {"state of few tokens", [](Call& c) { c.State().o.num_tokens = 3; }, kRange, {"state.o", "3", "4"}},
      {"tokens negative", [](Call& c) { c.args.q.num_tokens = -4; }, StatusCode::kOk, {"q"}},
  };
  return faults;
}

TEST(BadArguments, TheCallIsValidWithoutAFault) {
  Call call;
  const Status status = call.Run();
  EXPECT_TRUE(status.ok()) << status.c_str();
  for (size_t i = 0; i < call.out.size(); ++i) EXPECT_EQ(call.out[i], 0.5f);
  Call more;
  more.Bias();
  more.Mask();
  more.State();
  more.sequences[1].tree = {kTree, 1};
  EXPECT_TRUE(more.Run().ok()) << more.Run().c_str();
  for (size_t i = 0; i < more.out.size(); ++i) EXPECT_EQ(more.out[i], 0.5f);
  for (size_t i = 0; i < more.m.size(); ++i) EXPECT_EQ(more.o[i * 8], 0.5f * more.l[i]);
}

TEST(BadArguments, EachIsATypedErrorAndWritesNothing) {
  for (const Fault& fault : Faults()) {
    SCOPED_TRACE(fault.what);
    Call call;
    fault.plant(call);
    const Status status = call.Run();
    ASSERT_FALSE(status.ok());
    if (fault.code != StatusCode::kOk) {
      EXPECT_EQ(StatusCodeName(status.code()), std::string(StatusCodeName(fault.code))) << status.c_str();
    }
    for (const std::string& word : fault.named)
      EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << word << ": " << status.c_str();
    EXPECT_TRUE(call.NothingWritten());
  }
}

TEST(BadArguments, WorkspaceTooSmallOrMissing) {
  Call call;
  Result<AttentionPlan> plan = PlanAttention(call.spec, call.sequences);
  ASSERT_TRUE(plan.ok());
  std::vector<unsigned char> memory(plan->workspace_bytes() + 64);
  EXPECT_EQ(Workspace::Over(*plan, memory.data(), plan->workspace_bytes() - 1).status().code(), kInvalid);
  EXPECT_EQ(Workspace::Over(*plan, nullptr, memory.size()).status().code(), kInvalid);
}

// Through the cache: lengths, layers, sequences and capacity.
TEST(BadArguments, Cache) {
  Call call;
  Result<KVCache> cache = KVCache::Create(
      {.num_layers = 1, .num_kv_heads = 2, .qk_dim = 8, .v_dim = 8, .page_tokens = 16, .max_tokens = 32});
  ASSERT_TRUE(cache.ok());
  const SequenceId id = cache->CreateSequence().value();
  const auto append = [&](int64_t n) {
    const std::vector<float> rows(static_cast<size_t>(n * 16), 0.5f);
    return cache->Append(id, TokensHeadsDim(rows.data(), n, 2, 8), TokensHeadsDim(rows.data(), n, 2, 8));
  };
  ASSERT_TRUE(append(30).ok());
  EXPECT_EQ(append(3).code(), StatusCode::kResourceExhausted);  // one past the capacity
  EXPECT_EQ(cache->Length(id).value(), 30);
  ASSERT_TRUE(append(2).ok());  // exactly the capacity
  EXPECT_EQ(append(1).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->Length(id).value(), 32);

  call.sequences = {SequenceSpec{}};
  call.sequences[0].q_len = 2;
  call.sequences[0].kv_len = 32;
  call.sequences[0].cache_id = id;
  call.args.cache = &*cache;
  ASSERT_TRUE(call.Run().ok());

  const auto expect = [&](const char* what, StatusCode code, const std::vector<std::string>& words,
                          const std::function<void(Call&)>& plant) {
    SCOPED_TRACE(what);
    Call bad;
    bad.sequences = call.sequences;
    bad.args.cache = &*cache;
    plant(bad);
    const Status status = bad.Run();
    EXPECT_EQ(StatusCodeName(status.code()), std::string(StatusCodeName(code))) << status.c_str();
    for (const std::string& word : words)
      EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << word << ": " << status.c_str();
    EXPECT_TRUE(bad.NothingWritten());
  };
  expect("kv_len past the length", kRange, {"33", "32"}, [](Call& c) { c.sequences[0].kv_len = 33; });
  expect("kv_len far past", kRange, {"32"}, [](Call& c) { c.sequences[0].kv_len = 0x7FFFFFFF; });
  expect("kv_len negative", kInvalid, {"-1"}, [](Call& c) { c.sequences[0].kv_len = -1; });
  expect("no such sequence", StatusCode::kNotFound, {"99"}, [](Call& c) { c.sequences[0].cache_id = SequenceId{99}; });
  expect("no sequence named", StatusCode::kNotFound, {"-1"}, [](Call& c) { c.sequences[0].cache_id = SequenceId{}; });
  expect("no such layer", kRange, {"layer", "1"}, [](Call& c) { c.args.layer = 1; });
  expect("layer negative", kRange, {"layer", "-1"}, [](Call& c) { c.args.layer = -1; });
  expect("other kv heads", kInvalid, {"num_kv_heads", "4", "2"}, [](Call& c) { c.spec.num_kv_heads = 4; });
  expect("other v_dim", kInvalid, {"v_dim", "4", "8"}, [](Call& c) { c.spec.v_dim = 4; });

  // A sequence that is gone, and one that was cut short.
  ASSERT_TRUE(cache->Truncate(id, 20).ok());
  expect("kv_len past the truncated length", kRange, {"32"}, [](Call&) {});
  ASSERT_TRUE(cache->DropSequence(id).ok());
  expect("dropped sequence", StatusCode::kNotFound, {}, [](Call&) {});
}

}  // namespace
}  // namespace headlane::testing
