// Pages that the caller manages: the same bits as a KVCache in every kind and type, nothing touched but what a slot
// mapping names, and every table, slot and description refused that could reach past the caller's memory.
#include "headlane/kv_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headlane/attention.h"
#include "headlane/kv_cache.h"
#include "kv/kv_test_util.h"
#include "operator/pages.h"
#include "operator/runner.h"
#include "operator/sequence.h"
#include "operator/tensors.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

using internal::Fails;
using internal::Succeeds;

constexpr Pages kKinds[] = {Pages::kTiles, Pages::kTokenRows, Pages::kHeadRows};
constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kI4};

KVPagesSpec Spec(DType k = DType::kF32, DType v = DType::kF32, int64_t page_tokens = 16) {
  KVPagesSpec spec;
  spec.num_kv_heads = 2;
  spec.qk_dim = 40;
  spec.v_dim = 32;
  spec.k_dtype = k;
  spec.v_dtype = v;
  spec.page_tokens = page_tokens;
  spec.num_pages = 9;
  return spec;
}

// Rows [tokens][heads][dim] with numbers of no type but f32.
struct Rows {
  Rows(Random& random, const KVPagesSpec& spec, int64_t tokens)
      : n(tokens),
        k(random.Floats(static_cast<size_t>(tokens * spec.num_kv_heads * spec.qk_dim))),
        v(random.Floats(static_cast<size_t>(tokens * spec.num_kv_heads * spec.v_dim))),
        k_view(TokensHeadsDim(std::as_const(k).data(), tokens, spec.num_kv_heads, spec.qk_dim)),
        v_view(TokensHeadsDim(std::as_const(v).data(), tokens, spec.num_kv_heads, spec.v_dim)) {}
  int64_t n;
  std::vector<float> k, v;
  ConstTensorView k_view, v_view;
};

// All that Read gives of some pages, as bits.
std::vector<uint32_t> ReadAll(const KVPages& pages, const std::vector<int32_t>& ids, int64_t layer, int64_t begin,
                              int64_t n) {
  const KVPagesSpec& spec = pages.spec();
  const size_t k_size = static_cast<size_t>(n * spec.num_kv_heads * spec.qk_dim);
  const size_t v_size = static_cast<size_t>(n * spec.num_kv_heads * spec.v_dim);
  std::vector<float> rows(k_size + v_size);
  EXPECT_TRUE(Succeeds(pages.Read(ids, layer, begin, TokensHeadsDim(rows.data(), n, spec.num_kv_heads, spec.qk_dim),
                                  TokensHeadsDim(rows.data() + k_size, n, spec.num_kv_heads, spec.v_dim))));
  std::vector<uint32_t> bits(rows.size());
  std::memcpy(bits.data(), rows.data(), rows.size() * sizeof(float));
  return bits;
}

std::vector<std::vector<unsigned char>> Snapshot(const PagedMemory& store) {
  std::vector<std::vector<unsigned char>> copies;
  for (const GuardedBuffer& memory : store.memory) copies.emplace_back(memory.data(), memory.data() + memory.bytes());
  return copies;
}

TEST(KVPages, EveryKindAndTypeHasTheBitsOfACache) {
  const Heads heads{.num_q_heads = 6, .num_kv_heads = 2, .qk_dim = 40, .v_dim = 32};
  int64_t seed = 0;
  for (const Pages kind : kKinds) {
    for (const DType k : kTypes) {
      for (const DType v : {k, k == DType::kF16 ? DType::kI4 : DType::kF16}) {
        if (kind != Pages::kTiles && (IsQuantized(k) || IsQuantized(v))) continue;
        Random random(static_cast<uint64_t>(++seed));
        // Decode, drafts and a prompt's end over tables of one page and of many, splits in the middle of them.
        std::vector<Sequence> sequences;
        for (const auto& [q_len, kv_len] :
             {std::pair<int64_t, int64_t>{1, 1}, {1, 17}, {1, 1100}, {5, 129}, {70, 300}, {0, 40}, {1, 0}}) {
          sequences.push_back(RandomSequence(random, heads, {}, q_len, kv_len));
        }
        RunOptions cached;
        cached.cache = true;
        cached.page_tokens = 128;
        cached.k_dtype = k;
        cached.v_dtype = v;
        const std::vector<Output> expected = RunLibrary(sequences, cached);
        const std::vector<int64_t> sizes =
            kind == Pages::kTiles ? std::vector<int64_t>{16, 48, 256} : std::vector<int64_t>{1, 7, 16, 128};
        for (const int64_t page_tokens : sizes) {
          RunOptions options = cached;
          options.cache = false;
          options.pages = kind;
          options.page_tokens = page_tokens;
          options.seed = random.Next();
          options.update = random.OneIn(2);
          const std::vector<Output> got = RunLibrary(sequences, options);
          for (size_t i = 0; i < sequences.size(); ++i) {
            EXPECT_TRUE(SameOutput(expected[i], got[i])) << Describe(options) << ", sequence " << i;
          }
        }
      }
    }
  }
}

TEST(KVPages, ReadGivesWhatACacheReads) {
  Random random(5);
  for (const Pages kind : kKinds) {
    for (const DType type : kTypes) {
      if (kind != Pages::kTiles && IsQuantized(type)) continue;
      const KVPagesSpec spec = Spec(type, type, 32);
      PagedMemory store = MakePagedMemory(spec, kind, 2);
      const Rows rows(random, spec, 75);
      const std::vector<int32_t> ids = {5, 0, 8};
      std::vector<int64_t> slots;
      for (int64_t i = 0; i < rows.n; ++i) slots.push_back(ids[static_cast<size_t>(i / 32)] * 32 + i % 32);
      ASSERT_TRUE(Succeeds(store.pages->Write(1, rows.k_view, rows.v_view, slots)));

      KVCacheSpec cache_spec;
      cache_spec.num_kv_heads = spec.num_kv_heads;
      cache_spec.qk_dim = spec.qk_dim;
      cache_spec.v_dim = spec.v_dim;
      cache_spec.k_dtype = cache_spec.v_dtype = type;
      cache_spec.max_tokens = 128;
      KVCache cache = internal::MakeCache(cache_spec);
      const SequenceId id = internal::NewSequence(cache);
      ASSERT_TRUE(Succeeds(cache.Append(id, rows.k_view, rows.v_view)));
      std::vector<float> k(static_cast<size_t>(41 * 2 * 40)), v(static_cast<size_t>(41 * 2 * 32));
      ASSERT_TRUE(
          Succeeds(cache.Read(id, 0, 30, TokensHeadsDim(k.data(), 41, 2, 40), TokensHeadsDim(v.data(), 41, 2, 32))));
      k.insert(k.end(), v.begin(), v.end());
      std::vector<uint32_t> bits(k.size());
      std::memcpy(bits.data(), k.data(), k.size() * sizeof(float));
      EXPECT_EQ(ReadAll(*store.pages, ids, 1, 30, 41), bits) << DTypeName(type);

      // As stored, in 16 bits.
      std::vector<uint16_t> narrow_k(static_cast<size_t>(41 * 2 * 40)), narrow_v(static_cast<size_t>(41 * 2 * 32));
      TensorView k16 = TokensHeadsDim(static_cast<float*>(nullptr), 41, 2, 40);
      TensorView v16 = TokensHeadsDim(static_cast<float*>(nullptr), 41, 2, 32);
      k16.data = narrow_k.data();
      v16.data = narrow_v.data();
      k16.dtype = v16.dtype = type == DType::kF16 ? DType::kF16 : DType::kBF16;
      const Status status = store.pages->Read(ids, 1, 30, k16, v16);
      if (k16.dtype != type) {
        EXPECT_TRUE(Fails(status, StatusCode::kUnsupported, {"bf16", DTypeName(type)}));
        continue;
      }
      ASSERT_TRUE(Succeeds(status));
      for (size_t i = 0; i < narrow_k.size(); ++i)
        EXPECT_EQ(LoadElement(type, narrow_k.data(), static_cast<int64_t>(i)), k[i]);
      for (size_t i = 0; i < narrow_v.size(); ++i)
        EXPECT_EQ(LoadElement(type, narrow_v.data(), static_cast<int64_t>(i)), v[i]);
    }
  }
}

TEST(KVPages, ReadRefusesWhatIsNotThere) {
  PagedMemory store = MakePagedMemory(Spec(), Pages::kTiles, 1);
  std::vector<float> k(40 * 2 * 40, 3.0f), v(40 * 2 * 32, 3.0f);
  const auto read = [&](const std::vector<int32_t>& ids, int64_t layer, int64_t begin, int64_t n) {
    return store.pages->Read(ids, layer, begin, TokensHeadsDim(k.data(), n, 2, 40), TokensHeadsDim(v.data(), n, 2, 32));
  };
  EXPECT_TRUE(Fails(read({0, 1}, 0, 0, 33), StatusCode::kOutOfRange, {"33", "3 pages", "2"}));
  EXPECT_TRUE(Fails(read({0, 9}, 0, 0, 32), StatusCode::kOutOfRange, {"page_ids[1]", "9 pages"}));
  EXPECT_TRUE(Fails(read({-1, 1}, 0, 0, 32), StatusCode::kOutOfRange, {"page_ids[0]", "-1"}));
  EXPECT_TRUE(Fails(read({0, -7}, 0, 0, 4), StatusCode::kOk));
  EXPECT_TRUE(Fails(read({0, 1}, 1, 0, 4), StatusCode::kOutOfRange, {"layer 1 of 1"}));
  EXPECT_TRUE(Fails(read({0, 1}, 0, -1, 4), StatusCode::kOutOfRange, {"-1"}));
  EXPECT_TRUE(Fails(read({0, 1}, 0, std::numeric_limits<int64_t>::max(), 4), StatusCode::kOutOfRange));
  k.assign(k.size(), 3.0f);
  EXPECT_FALSE(read({0, 1}, 0, 0, 33).ok());
  EXPECT_EQ(k, std::vector<float>(k.size(), 3.0f));
  // A page that the window has passed hinders nobody behind it.
  EXPECT_TRUE(Succeeds(read({-1, 1}, 0, 16, 16)));
}

// Byte by byte in rows; in tiles by what every other slot reads, and by the bytes of other pages, layers and gaps.
TEST(KVPages, WriteTouchesWhatItsSlotsNameOnly) {
  Random random(6);
  for (const Pages kind : kKinds) {
    for (const DType type : kTypes) {
      if (kind != Pages::kTiles && IsQuantized(type)) continue;
      KVPagesSpec spec = Spec(type, type, 32);
      if (kind == Pages::kTiles) spec.page_stride = TilePageLayout(spec)->page_bytes + 128;
      PagedMemory store = MakePagedMemory(spec, kind, 2);
      KVPages& pages = *store.pages;
      const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8};
      const Rows old(random, spec, 9 * 32);
      std::vector<int64_t> every(9 * 32);
      for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<int64_t>(i);
      for (const int64_t layer : {0, 1}) ASSERT_TRUE(Succeeds(pages.Write(layer, old.k_view, old.v_view, every)));
      const auto before = Snapshot(store);
      const std::vector<uint32_t> read_before = ReadAll(pages, all, 0, 0, 9 * 32);

      const Rows rows(random, spec, 6);
      const std::vector<int64_t> slots = {3 * 32 + 31, -1, 3 * 32 + 5, 7 * 32, -1, 7 * 32 + 1};
      ASSERT_TRUE(Succeeds(pages.Write(0, rows.k_view, rows.v_view, slots)));
      const auto after = Snapshot(store);
      const std::vector<uint32_t> read_after = ReadAll(pages, all, 0, 0, 9 * 32);
      const auto named = [&](int64_t slot) { return std::find(slots.begin(), slots.end(), slot) != slots.end(); };
      const size_t k_row = 2 * 40, v_row = 2 * 32, v_at = 9 * 32 * k_row;
      for (int64_t slot = 0; slot < 9 * 32; ++slot) {
        const auto same = [&](size_t first, size_t n) {
          return std::equal(read_before.begin() + static_cast<std::ptrdiff_t>(first),
                            read_before.begin() + static_cast<std::ptrdiff_t>(first + n),
                            read_after.begin() + static_cast<std::ptrdiff_t>(first));
        };
        const size_t at = static_cast<size_t>(slot);
        EXPECT_EQ(same(at * k_row, k_row), !named(slot)) << "key of slot " << slot;
        EXPECT_EQ(same(v_at + at * v_row, v_row), !named(slot)) << "value of slot " << slot;
      }
      // Layer 1, and of layer 0 every page but 3 and 7 and what lies between pages.
      const size_t per_layer = before.size() / 2;
      for (size_t m = 0; m < before.size(); ++m) {
        if (m >= per_layer) {
          EXPECT_EQ(before[m], after[m]);
          continue;
        }
        const size_t stride = before[m].size() / 9;
        const size_t page_bytes = kind == Pages::kTiles ? static_cast<size_t>(pages.layout().page_bytes) : stride;
        for (size_t i = 0; i < before[m].size(); ++i) {
          const size_t page = i / stride;
          if ((page == 3 || page == 7) && i % stride < page_bytes) continue;
          ASSERT_EQ(before[m][i], after[m][i]) << "byte " << i;
        }
      }
    }
  }
}

TEST(KVPages, SlotsAreCheckedBeforeAnythingIsWritten) {
  Random random(7);
  for (const Pages kind : kKinds) {
    const KVPagesSpec spec = Spec();
    PagedMemory store = MakePagedMemory(spec, kind, 1);
    const Rows rows(random, spec, 4);
    const auto before = Snapshot(store);
    const auto write = [&](const std::vector<int64_t>& slots, int64_t layer = 0) {
      return store.pages->Write(layer, rows.k_view, rows.v_view, slots);
    };
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    EXPECT_TRUE(Fails(write({0, 1, 144, 2}), StatusCode::kOutOfRange, {"slots[2] is 144", "have 144 slots"}));
    EXPECT_TRUE(Fails(write({0, 1, 2, kMost}), StatusCode::kOutOfRange, {"slots[3]", "144"}));
    EXPECT_TRUE(Fails(write({-2, 1, 2, 3}), StatusCode::kOutOfRange, {"slots[0] is -2"}));
    EXPECT_TRUE(Fails(write({0, 1, 2, -kMost}), StatusCode::kOutOfRange, {"slots[3]"}));
    EXPECT_TRUE(Fails(write({9, 70, 9, 3}), StatusCode::kInvalidArgument, {"slots[0]", "slots[2]", "9"}));
    EXPECT_TRUE(Fails(write({9, 9, 10, 11}), StatusCode::kInvalidArgument, {"slots[0]", "slots[1]", "9"}));
    EXPECT_TRUE(Fails(write({143, -1, -1, 143}), StatusCode::kInvalidArgument, {"slots[0]", "slots[3]", "143"}));
    EXPECT_TRUE(Fails(write({0, 1, 2}), StatusCode::kInvalidArgument, {"3 slots", "4 tokens"}));
    EXPECT_TRUE(Fails(write({0, 1, 2, 3, 4}), StatusCode::kInvalidArgument, {"5 slots", "4 tokens"}));
    EXPECT_TRUE(Fails(write({0, 1, 2, 3}, 1), StatusCode::kOutOfRange, {"layer 1 of 1"}));
    EXPECT_TRUE(Fails(write({0, 1, 2, 3}, -1), StatusCode::kOutOfRange, {"layer -1 of 1"}));
    ConstTensorView wrong = rows.k_view;
    wrong.dim = 39;
    EXPECT_TRUE(Fails(store.pages->Write(0, wrong, rows.v_view, std::vector<int64_t>{0, 1, 2, 3}),
                      StatusCode::kInvalidArgument, {"k", "39", "40"}));
    EXPECT_TRUE(Succeeds(write({-1, -1, -1, -1})));
    EXPECT_EQ(Snapshot(store), before);
    // What was refused has left no trace in later checks.
    EXPECT_TRUE(Succeeds(write({143, 70, 9, 3})));
    EXPECT_TRUE(Succeeds(write({9, 3, 70, 143})));
    EXPECT_NE(Snapshot(store), before);
  }
}

// A call over pages: one sequence, 4 query heads on 2.
struct PagedCall {
  explicit PagedCall(const KVPagesSpec& spec, int64_t rows)
      : q_len(rows), q(static_cast<size_t>(rows * 4 * spec.qk_dim)), out(static_cast<size_t>(rows * 4 * spec.v_dim)) {
    Random(3).Fill(q.data(), q.size());
    attention.num_q_heads = 4;
    attention.num_kv_heads = spec.num_kv_heads;
    attention.qk_dim = spec.qk_dim;
    attention.v_dim = spec.v_dim;
    args.q = TokensHeadsDim(std::as_const(q).data(), rows, 4, spec.qk_dim);
    args.out = TokensHeadsDim(out.data(), rows, 4, spec.v_dim);
    sequence.q_len = rows;
  }
  Status Run(const KVPages& pages, std::span<const int32_t> ids, int64_t kv_len) {
    sequence.kv_len = kv_len;
    sequence.page_ids = ids;
    args.pages = &pages;
    out.assign(out.size(), -5.0f);
    return Attention(attention, std::span<const SequenceSpec>(&sequence, 1), args, SerialExecutor());
  }
  int64_t q_len;
  std::vector<float> q, out;
  AttentionSpec attention;
  AttentionArgs args;
  SequenceSpec sequence;
};

// A pool whose pages are all written.
PagedMemory Written(const KVPagesSpec& spec, Pages kind) {
  PagedMemory store = MakePagedMemory(spec, kind, 1);
  Random random(8);
  const Rows rows(random, spec, spec.num_pages * spec.page_tokens);
  std::vector<int64_t> slots(static_cast<size_t>(rows.n));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  EXPECT_TRUE(Succeeds(store.pages->Write(0, rows.k_view, rows.v_view, slots)));
  return store;
}

TEST(KVPages, HostileTablesAreRefused) {
  for (const Pages kind : kKinds) {
    PagedMemory store = Written(Spec(), kind);
    PagedCall call(Spec(), 2);
    const auto run = [&](const std::vector<int32_t>& ids, int64_t kv_len) {
      const GuardedArray<int32_t> list(ids);  // nothing behind it may be read
      return call.Run(*store.pages, {list.data(), list.size()}, kv_len);
    };
    EXPECT_TRUE(Fails(run({3, 1}, 33), StatusCode::kOutOfRange, {"sequences[0]", "33", "3 pages of 16", "has 2"}));
    EXPECT_TRUE(Fails(run({}, 1), StatusCode::kOutOfRange, {"sequences[0]", "has 0"}));
    EXPECT_TRUE(Fails(run({3, 9}, 32), StatusCode::kOutOfRange, {"page_ids[1] is 9", "9 pages"}));
    EXPECT_TRUE(Fails(run({-2, 1}, 32), StatusCode::kOutOfRange, {"page_ids[0] is -2"}));
    EXPECT_TRUE(Fails(run({std::numeric_limits<int32_t>::max(), 1}, 32), StatusCode::kOutOfRange, {"page_ids[0]"}));
    EXPECT_TRUE(Fails(run({std::numeric_limits<int32_t>::min(), 1}, 32), StatusCode::kOutOfRange, {"page_ids[0]"}));
    EXPECT_TRUE(Fails(run({-1, 1}, 32), StatusCode::kOutOfRange, {"page_ids[0] is -1"}));
    EXPECT_TRUE(Fails(run({3, 1}, std::numeric_limits<int64_t>::max()), StatusCode::kInvalidArgument, {"kv_len"}));
    EXPECT_TRUE(Fails(run({3, 1}, -1), StatusCode::kInvalidArgument, {"kv_len", "-1"}));
    EXPECT_EQ(call.out, std::vector<float>(call.out.size(), -5.0f));
    EXPECT_TRUE(Fails(call.Run(*store.pages, {static_cast<const int32_t*>(nullptr), 2}, 32),
                      StatusCode::kInvalidArgument, {"page_ids is null"}));
    // What stands behind the last page that is needed is nobody's business.
    EXPECT_TRUE(Succeeds(run({3, 1, 77, -9}, 32)));
    EXPECT_TRUE(Succeeds(run({}, 0)));
    EXPECT_EQ(call.out, std::vector<float>(call.out.size(), 0.0f));
  }
}

TEST(KVPages, AFailedUpdateLeavesThePlanAsItWas) {
  PagedMemory store = Written(Spec(), Pages::kTiles);
  PagedCall call(Spec(), 1);
  const std::vector<int32_t> ids = {2, 4, 6}, bad = {2, 4, 9};
  ASSERT_TRUE(Succeeds(call.Run(*store.pages, ids, 40)));
  const std::vector<float> expected = call.out;
  Result<AttentionPlan> plan = PlanAttention(call.attention, *store.pages, std::span(&call.sequence, 1));
  ASSERT_TRUE(Succeeds(plan.status()));
  SequenceSpec other = call.sequence;
  other.page_ids = bad;
  EXPECT_TRUE(Fails(plan->Update(*store.pages, std::span(&other, 1)), StatusCode::kOutOfRange, {"page_ids[2]"}));
  PagedMemory rows = Written(Spec(), Pages::kTokenRows);
  PagedMemory wide = Written(Spec(DType::kF32, DType::kF32, 32), Pages::kTiles);
  PagedMemory half = Written(Spec(DType::kF16), Pages::kTiles);
  other.page_ids = ids;
  EXPECT_TRUE(Fails(plan->Update(*rows.pages, std::span(&other, 1)), StatusCode::kInvalidArgument,
                    {"pages of tiles", "pages of rows"}));
  EXPECT_TRUE(Fails(plan->Update(*wide.pages, std::span(&other, 1)), StatusCode::kInvalidArgument, {"16", "32"}));
  EXPECT_TRUE(Fails(plan->Update(*half.pages, std::span(&other, 1)), StatusCode::kInvalidArgument, {"f32", "f16"}));
  EXPECT_TRUE(Fails(plan->Update(std::span(&other, 1)), StatusCode::kInvalidArgument, {"plain tensors"}));
  KVPagesSpec turned_spec = Spec();
  turned_spec.rotate = true;
  PagedMemory turned = Written(turned_spec, Pages::kTiles);
  EXPECT_TRUE(Fails(plan->Update(*turned.pages, std::span(&other, 1)), StatusCode::kInvalidArgument, {"rotate"}));

  Result<Workspace> workspace = Workspace::Create(*plan);
  ASSERT_TRUE(Succeeds(workspace.status()));
  const auto run = [&](const AttentionArgs& args) {
    call.out.assign(call.out.size(), -5.0f);
    return RunAttention(*plan, args, *workspace, SerialExecutor());
  };
  ASSERT_TRUE(Succeeds(run(call.args)));
  EXPECT_EQ(call.out, expected);
  // A run over other pages than the plan's.
  AttentionArgs args = call.args;
  args.pages = nullptr;
  EXPECT_TRUE(Fails(run(args), StatusCode::kInvalidArgument, {"args.pages is null"}));
  args.pages = rows.pages.get();
  EXPECT_TRUE(Fails(run(args), StatusCode::kInvalidArgument, {"tiles", "rows"}));
  args.pages = turned.pages.get();
  EXPECT_TRUE(Fails(run(args), StatusCode::kInvalidArgument, {"rotate"}));
  KVPagesSpec few = Spec();
  few.num_pages = 6;
  PagedMemory smaller = Written(few, Pages::kTiles);
  args.pages = smaller.pages.get();
  EXPECT_TRUE(Fails(run(args), StatusCode::kInvalidArgument, {"page 6", "has 6"}));
  args.pages = store.pages.get();
  args.layer = 1;
  EXPECT_TRUE(Fails(run(args), StatusCode::kOutOfRange, {"args.layer is 1", "1 layers"}));
  args.layer = 0;
  KVCacheSpec cache_spec;
  cache_spec.num_kv_heads = 2;
  cache_spec.qk_dim = 40;
  cache_spec.v_dim = 32;
  cache_spec.max_tokens = 64;
  const KVCache cache = internal::MakeCache(cache_spec);
  args.cache = &cache;
  EXPECT_TRUE(Fails(run(args), StatusCode::kInvalidArgument, {"pages", "args.cache"}));
  EXPECT_EQ(call.out, std::vector<float>(call.out.size(), -5.0f));
}

// An engine that has given pages back behind its window.
TEST(KVPages, PagesThatNoRowSeesNeedNotExist) {
  for (const Pages kind : kKinds) {
    for (const int64_t page_tokens : {16, 5}) {
      if (kind == Pages::kTiles && page_tokens % 16 != 0) continue;
      KVPagesSpec spec = Spec(DType::kF32, DType::kF32, page_tokens);
      spec.num_pages = 40;
      PagedMemory store = Written(spec, kind);
      const int64_t kv_len = 30 * page_tokens - 3;
      std::vector<int32_t> ids;
      for (int32_t i = 0; i < 30; ++i) ids.push_back((i * 7 + 3) % 40);
      for (const int64_t q_len : {1, 3, 30}) {
        PagedCall call(spec, q_len);
        call.attention.mask.window = 2 * page_tokens + 1;
        call.attention.mask.num_always_visible = 2;
        ASSERT_TRUE(Succeeds(call.Run(*store.pages, ids, kv_len)));
        const std::vector<float> expected = call.out;
        const int64_t first_seen = kv_len - q_len - (call.attention.mask.window - 1);
        std::vector<int32_t> holes = ids;
        for (int64_t i = 1; (i + 1) * page_tokens <= first_seen; ++i) holes[static_cast<size_t>(i)] = -1;
        ASSERT_EQ(holes[2], q_len < 30 || page_tokens == 16 ? -1 : holes[2]);
        ASSERT_TRUE(Succeeds(call.Run(*store.pages, holes, kv_len)));
        EXPECT_EQ(call.out, expected);
        holes[static_cast<size_t>(first_seen / page_tokens)] = -1;
        EXPECT_TRUE(Fails(call.Run(*store.pages, holes, kv_len), StatusCode::kOutOfRange, {"-1", "is wanted"}));
      }
    }
  }
}

// K and V of a page side by side in one tensor, features apart, heads backwards: rows are wherever strides say.
TEST(KVPages, RowsHaveAnyStrides) {
  KVPagesSpec spec = Spec(DType::kF16, DType::kF16);
  spec.v_dim = spec.qk_dim;
  Random random(9);
  const Rows rows(random, spec, 40);
  std::vector<int64_t> slots;
  const std::vector<int32_t> ids = {8, 1, 5};
  for (int64_t i = 0; i < rows.n; ++i) slots.push_back(ids[static_cast<size_t>(i / 16)] * 16 + i % 16);
  std::vector<float> expected;
  for (const int64_t dim_stride : {0, 1, 3}) {  // 0: tiles
    PagedMemory store;
    if (dim_stride == 0) {
      store = MakePagedMemory(spec, Pages::kTiles, 1);
    } else {
      const int64_t row = 40 * dim_stride, heads = 2 * row, half = 16 * heads;
      store.memory.emplace_back(static_cast<size_t>(9 * 2 * half - (dim_stride - 1)) * sizeof(uint16_t));
      uint16_t* const data = reinterpret_cast<uint16_t*>(store.memory.back().data());
      KVPagesSpec own = spec;
      own.kind = KVPageKind::kRows;
      own.layers.resize(1);
      own.layers[0].k = {data + row, DType::kF16, 9, 16, 2, 40, 2 * half, heads, -row, dim_stride};
      own.layers[0].v = own.layers[0].k;
      own.layers[0].v.data = data + half + row;
      Result<KVPages> pages = KVPages::Create(own);
      ASSERT_TRUE(Succeeds(pages.status()));
      store.pages = std::make_unique<KVPages>(std::move(pages).value());
    }
    ASSERT_TRUE(Succeeds(store.pages->Write(0, rows.k_view, rows.v_view, slots)));
    for (const int64_t q_len : {1, 9}) {
      PagedCall call(spec, q_len);
      ASSERT_TRUE(Succeeds(call.Run(*store.pages, ids, 40)));
      if (q_len == 9) continue;
      if (dim_stride == 0) expected = call.out;
      EXPECT_EQ(call.out, expected);
    }
  }
}

TEST(KVPages, DescriptionsAreChecked) {
  const GuardedBuffer memory(1 << 20);
  KVPagesSpec good = Spec();
  good.layers.resize(2);
  for (KVLayerPages& layer : good.layers) layer.tiles = memory.data();
  ASSERT_TRUE(Succeeds(KVPages::Create(good).status()));
  const auto with = [&](auto change) {
    KVPagesSpec spec = good;
    change(spec);
    return KVPages::Create(spec).status();
  };
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  using S = KVPagesSpec;
  EXPECT_TRUE(Fails(with([](S& s) { s.num_kv_heads = 0; }), kInvalid, {"num_kv_heads", "0"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.qk_dim = -4; }), kInvalid, {"qk_dim", "-4"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.v_dim = int64_t{1} << 40; }), kInvalid, {"v_dim"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.page_tokens = 24; }), kInvalid, {"page_tokens", "24"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.page_tokens = 272; }), kInvalid, {"page_tokens", "272"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.num_pages = -1; }), kInvalid, {"num_pages", "-1"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.num_pages = int64_t{1} << 50; }), kInvalid, {"num_pages"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.kind = static_cast<KVPageKind>(2); }), kInvalid, {"kind", "2"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.k_dtype = static_cast<DType>(9); }), StatusCode::kUnsupported, {"k_dtype"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.v_dtype = static_cast<DType>(-1); }), StatusCode::kUnsupported, {"v_dtype"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.page_stride = 64; }), kInvalid, {"page_stride", "64"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.page_stride = (1 << 20) + 32; }), kInvalid, {"page_stride", "1048608"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.page_stride = int64_t{1} << 62; }), kInvalid, {"64 bits"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.layers[1].tiles = nullptr; }), kInvalid, {"layers[1].tiles", "null"}));
  EXPECT_TRUE(Fails(with([&](S& s) { s.layers[1].tiles = memory.data() + 32; }), kInvalid, {"layers[1].tiles", "32"}));
  EXPECT_TRUE(Fails(with([&](S& s) { s.layers[0].tiles = reinterpret_cast<void*>(UINTPTR_MAX - 63); }), kInvalid,
                    {"layers[0].tiles", "address space"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.values_in_keys = true, s.v_dim = 41; }), kInvalid, {"v_dim", "41", "40"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.rotate = s.values_in_keys = true, s.v_dim = 31; }), StatusCode::kUnsupported,
                    {"rotate", "31", "40"}));
  EXPECT_TRUE(Succeeds(with([](S& s) { s.num_pages = 0, s.layers[0].tiles = nullptr; })));

  KVPagesSpec rows = good;
  rows.kind = KVPageKind::kRows;
  for (KVLayerPages& layer : rows.layers) {
    layer.k = {memory.data(), DType::kF32, 9, 16, 2, 40, 16 * 80, 80, 40, 1};
    layer.v = {memory.data() + (1 << 19), DType::kF32, 9, 16, 2, 32, 16 * 64, 64, 32, 1};
  }
  good = rows;
  ASSERT_TRUE(Succeeds(with([](S&) {})));
  EXPECT_TRUE(Fails(TilePageLayout(rows).status(), StatusCode::kUnsupported, {"rows"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.k_dtype = DType::kI8; }), StatusCode::kUnsupported, {"k_dtype", "int8", "rows"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.k_dtype = DType::kF16; }), kInvalid, {"layers[0].k", "f32", "f16"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.page_tokens = 0; }), kInvalid, {"page_tokens", "0"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.layers[1].v.num_tokens = 15; }), kInvalid, {"layers[1].v", "15", "16"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.layers[1].v.num_batch = 8; }), kInvalid, {"layers[1].v", "8", "9"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.layers[0].k.head_stride = 39; }), kInvalid, {"layers[0].k", "overlap"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.layers[0].k.data = nullptr; }), kInvalid, {"layers[0].k", "null"}));
  EXPECT_TRUE(Fails(with([](S& s) { s.layers[0].k.batch_stride = int64_t{1} << 61; }), kInvalid, {"layers[0].k"}));
}

// The layout that engines allocate by, in numbers.
TEST(KVPages, LayoutOfTiles) {
  KVPagesSpec spec;
  spec.num_kv_heads = 8;
  spec.qk_dim = spec.v_dim = 128;
  spec.page_tokens = 64;
  struct Case {
    DType type;
    int64_t tile_bytes;
  };
  for (const auto& [type, tile_bytes] : {Case{DType::kF32, 8192},
                                         {DType::kF16, 4096},
                                         {DType::kBF16, 4096},
                                         {DType::kI8, 2112},
                                         {DType::kF8E4M3, 2112},
                                         {DType::kI4, 1152}}) {
    spec.k_dtype = spec.v_dtype = type;
    const Result<KVPageLayout> layout = TilePageLayout(spec);
    ASSERT_TRUE(Succeeds(layout.status()));
    EXPECT_EQ(layout->k_tile_bytes, tile_bytes);
    EXPECT_EQ(layout->v_tile_bytes, tile_bytes);
    EXPECT_EQ(layout->v_offset, 4 * tile_bytes);
    EXPECT_EQ(layout->head_bytes, 8 * tile_bytes);
    EXPECT_EQ(layout->marks_offset, 64 * tile_bytes);
    EXPECT_EQ(layout->page_bytes, 64 * tile_bytes + 64);
  }
}

}  // namespace
}  // namespace headlane::testing
