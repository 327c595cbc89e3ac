// Random operations on a cache beside a naive model of plain vectors. After every operation the accounting must agree
// exactly, and the contents by bits: through Read, and as the kernels see them, tile by tile.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/blocking.h"
#include "base/float16.h"
#include "headlane/kv_cache.h"
#include "kv/attend.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"

namespace headlane::internal {
namespace {

// As stored.
struct Token {
  Row k;
  Row v;
};

// What reading gives of a row of heads that was stored with this type.
Row StoredRow(DType dtype, const Row& row, int64_t dim) {
  if (dtype == DType::kF32) return row;
  Row stored;
  for (size_t head = 0; head < row.size(); head += static_cast<size_t>(dim)) {
    std::vector<float> numbers;
    for (size_t i = head; i < head + static_cast<size_t>(dim); ++i) numbers.push_back(std::bit_cast<float>(row[i]));
    if (IsQuantized(dtype)) {
      numbers = CodedRow(dtype, numbers);
    } else {
      for (float& x : numbers) x = dtype == DType::kF16 ? F16ToF32(F32ToF16(x)) : BF16ToF32(F32ToBF16(x));
    }
    for (const float x : numbers) stored.push_back(BitsOf(x));
  }
  return stored;
}

// Which of the NaNs a row that was not finite becomes is nobody's business.
::testing::AssertionResult SameNumbers(const Row& actual, const Row& expected, DType dtype) {
  const auto is_nan = [](uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; };
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] == expected[i] || (IsQuantized(dtype) && is_nan(actual[i]) && is_nan(expected[i]))) continue;
    return ::testing::AssertionFailure() << DTypeName(dtype) << " element " << i << ": " << std::hex << actual[i]
                                         << ", expected " << expected[i];
  }
  return ::testing::AssertionSuccess();
}

struct ModelSequence {
  SequenceId id;
  int64_t length = 0;
  int64_t reserved = 0;
  // [layer][length + reserved]; empty where reserved and not written
  std::vector<std::vector<std::optional<Token>>> layers;
  std::vector<int64_t> pages;  // names of the model's own: equal where a page is shared
};

class Trial {
 public:
  Trial(const KVCacheSpec& spec, uint64_t seed)
      : random_(seed), cache_(MakeCache(spec)), spec_(spec), tame_(seed % 3 == 0) {
    total_pages_ = CeilDiv(spec.max_tokens, spec.page_tokens);
    cache_.impl().PoisonUnusedForTesting();
  }

  void Run(int num_operations) {
    for (int i = 0; i < num_operations && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      Step();
      if (random_.OneIn(8)) cache_.impl().PoisonUnusedForTesting();
      CheckAccounting();
      if (random_.OneIn(4)) CheckContents();
      if (random_.OneIn(4)) CheckTiles();
    }
  }

 private:
  void Step() {
    const int64_t what = random_.Int(0, 99);
    if (what < 6) return Create();
    if (sequences_.empty()) return;
    const size_t index = static_cast<size_t>(random_.Int(0, static_cast<int64_t>(sequences_.size()) - 1));
    ModelSequence& sequence = sequences_[index];
    if (what < 9) return Drop(index);
    if (what < 30) return Reserve(sequence);
    if (what < 60) return Write(sequence);
    if (what < 72) return Commit(sequence);
    if (what < 76) return Abandon(sequence);
    if (what < 82) return Truncate(sequence);
    if (what < 84) return UseStale();
    if (what < 88) return Fork(index);
    if (what < 92) return CommitPath(sequence);
    if (spec_.num_layers == 1) return Append(sequence);
    return WriteAllAndCommit(sequence);
  }

  void Create() {
    Result<SequenceId> id = cache_.CreateSequence();
    if (static_cast<int64_t>(sequences_.size()) == spec_.max_sequences) {
      EXPECT_TRUE(Fails(id.status(), StatusCode::kResourceExhausted, {std::to_string(spec_.max_sequences)}));
      return;
    }
    ASSERT_TRUE(Succeeds(id.status()));
    for (const SequenceId old : dropped_) EXPECT_NE(old.value, id->value);
    for (const ModelSequence& other : sequences_) EXPECT_NE(other.id.value, id->value);
    sequences_.push_back(
        {*id, 0, 0, std::vector<std::vector<std::optional<Token>>>(static_cast<size_t>(spec_.num_layers)), {}});
  }

  void Fork(size_t index) {
    const ModelSequence& parent = sequences_[index];
    EXPECT_TRUE(Fails(cache_.Fork(parent.id, parent.length + 1).status(), StatusCode::kOutOfRange,
                      {std::to_string(parent.length + 1), std::to_string(parent.length)}));
    const int64_t length = random_.OneIn(2) ? parent.length : random_.Int(0, parent.length);
    const bool whole = length == parent.length && random_.OneIn(2);
    const Result<SequenceId> id = cache_.Fork(parent.id, whole ? kWholeSequence : length);
    // Whoever has reserved tokens in a page has it alone.
    const bool copies = parent.reserved > 0 && length % spec_.page_tokens != 0 &&
                        length / spec_.page_tokens == parent.length / spec_.page_tokens;
    if (static_cast<int64_t>(sequences_.size()) == spec_.max_sequences || (copies && UsedPages() == total_pages_)) {
      EXPECT_TRUE(Fails(id.status(), StatusCode::kResourceExhausted));
      return;
    }
    ASSERT_TRUE(Succeeds(id.status()));
    ModelSequence child = parent;
    child.id = *id;
    Shrink(child, length);
    if (copies) child.pages.back() = next_page_++;
    sequences_.push_back(child);
    ++num_forks_;
  }

  // A draft of which some tokens are accepted.
  void CommitPath(ModelSequence& sequence) {
    if (sequence.reserved == 0) Reserve(sequence);
    for (int64_t layer = 0; layer < spec_.num_layers && !random_.OneIn(10); ++layer) {
      WritePart(sequence, layer, 0, sequence.reserved);
    }
    std::vector<int64_t> accepted;
    bool written = true;
    for (int64_t i = 0; i < sequence.reserved; ++i) {
      bool here = true;
      for (const auto& layer : sequence.layers) here &= layer[static_cast<size_t>(sequence.length + i)].has_value();
      if (random_.OneIn(2) || (!here && !random_.OneIn(40))) continue;
      accepted.push_back(i);
      written &= here;
    }
    const int64_t n = static_cast<int64_t>(accepted.size());
    const Status status = cache_.CommitPath(sequence.id, accepted.data(), n);
    if (!written) {
      EXPECT_TRUE(Fails(status, StatusCode::kFailedPrecondition, {"sequence " + std::to_string(sequence.id.value)}));
      return;
    }
    ASSERT_TRUE(Succeeds(status));
    for (auto& layer : sequence.layers) {
      for (int64_t i = 0; i < n; ++i) {
        layer[static_cast<size_t>(sequence.length + i)] =
            layer[static_cast<size_t>(sequence.length + accepted[static_cast<size_t>(i)])];
      }
    }
    Shrink(sequence, sequence.length + n);
    if (n > 0) ++num_paths_;
  }

  void Drop(size_t index) {
    EXPECT_TRUE(Succeeds(cache_.DropSequence(sequences_[index].id)));
    dropped_.push_back(sequences_[index].id);
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void Reserve(ModelSequence& sequence) {
    const int64_t n = RandomCount();
    const Status status = cache_.Reserve(sequence.id, n);
    if (!Fits(sequence, n)) {
      EXPECT_TRUE(Fails(status, StatusCode::kResourceExhausted, {"sequence " + std::to_string(sequence.id.value)}));
      return;
    }
    EXPECT_TRUE(Succeeds(status));
    Shrink(sequence, sequence.length);
    Grow(sequence, n);
  }

  // Any part of the reservation, in any order, also over what was written before.
  void Write(ModelSequence& sequence) {
    const int64_t layer = random_.Int(0, spec_.num_layers - 1);
    const int64_t begin = random_.Int(0, sequence.reserved);
    WritePart(sequence, layer, begin, random_.Int(0, sequence.reserved - begin));
    const Status past = WriteRandom(sequence, layer, begin, sequence.reserved - begin + 1, nullptr);
    EXPECT_TRUE(Fails(past, StatusCode::kOutOfRange, {std::to_string(sequence.reserved)}));
  }

  void Commit(ModelSequence& sequence) {
    const int64_t n = random_.Int(0, sequence.reserved + 1);
    bool written = true;
    for (const auto& layer : sequence.layers) {
      for (int64_t i = 0; i < std::min(n, sequence.reserved); ++i) {
        written &= layer[static_cast<size_t>(sequence.length + i)].has_value();
      }
    }
    const Status status = cache_.Commit(sequence.id, n);
    if (n > sequence.reserved) {
      EXPECT_TRUE(Fails(status, StatusCode::kOutOfRange, {std::to_string(n), std::to_string(sequence.reserved)}));
    } else if (!written) {
      EXPECT_TRUE(Fails(status, StatusCode::kFailedPrecondition, {"sequence " + std::to_string(sequence.id.value)}));
    } else {
      EXPECT_TRUE(Succeeds(status));
      sequence.length += n;
      sequence.reserved -= n;
    }
  }

  void Abandon(ModelSequence& sequence) {
    EXPECT_TRUE(Succeeds(cache_.Abandon(sequence.id)));
    Shrink(sequence, sequence.length);
  }

  void Truncate(ModelSequence& sequence) {
    EXPECT_TRUE(Fails(cache_.Truncate(sequence.id, sequence.length + 1), StatusCode::kOutOfRange));
    const int64_t length = random_.Int(std::max<int64_t>(0, sequence.length - 40), sequence.length);
    EXPECT_TRUE(Succeeds(cache_.Truncate(sequence.id, length)));
    Shrink(sequence, length);
  }

  void Append(ModelSequence& sequence) {
    const int64_t n = RandomCount();
    std::vector<Token> tokens;
    const bool fits = Fits(sequence, n);
    StridedTensor k(random_, 1, n, spec_.num_kv_heads, spec_.qk_dim);
    StridedTensor v(random_, 1, n, spec_.num_kv_heads, spec_.v_dim);
    Fill(0, n, &k, &v, &tokens);
    const Status status = cache_.Append(sequence.id, k.const_view(), v.const_view());
    if (!fits) {
      EXPECT_TRUE(Fails(status, StatusCode::kResourceExhausted));
      return;
    }
    EXPECT_TRUE(Succeeds(status));
    Shrink(sequence, sequence.length);
    Grow(sequence, n);
    for (int64_t i = 0; i < n; ++i)
      sequence.layers[0][static_cast<size_t>(sequence.length + i)] = tokens[static_cast<size_t>(i)];
    sequence.length += n;
    sequence.reserved = 0;
  }

  // What a model does: without it, several layers would rarely all be complete.
  void WriteAllAndCommit(ModelSequence& sequence) {
    const int64_t n = sequence.reserved;
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      const int64_t cut = random_.Int(0, n);
      WritePart(sequence, layer, cut, n - cut);
      WritePart(sequence, layer, 0, cut);
    }
    EXPECT_TRUE(Succeeds(cache_.Commit(sequence.id, n)));
    sequence.length += n;
    sequence.reserved = 0;
  }

  void UseStale() {
    const SequenceId id = dropped_.empty() ? SequenceId{} : random_.Pick(dropped_);
    const std::vector<std::string> named = {std::to_string(id.value)};
    EXPECT_TRUE(Fails(cache_.Reserve(id, 1), StatusCode::kNotFound, named));
    EXPECT_TRUE(Fails(cache_.Commit(id, 0), StatusCode::kNotFound, named));
    EXPECT_TRUE(Fails(cache_.CommitPath(id, nullptr, 0), StatusCode::kNotFound, named));
    EXPECT_TRUE(Fails(cache_.Fork(id).status(), StatusCode::kNotFound, named));
    EXPECT_TRUE(Fails(cache_.SequenceUsage(id).status(), StatusCode::kNotFound, named));
    EXPECT_TRUE(Fails(cache_.Abandon(id), StatusCode::kNotFound, named));
    EXPECT_TRUE(Fails(cache_.Truncate(id, 0), StatusCode::kNotFound, named));
    EXPECT_TRUE(Fails(cache_.DropSequence(id), StatusCode::kNotFound, named));
    EXPECT_TRUE(Fails(cache_.Length(id).status(), StatusCode::kNotFound, named));
    EXPECT_TRUE(Fails(cache_.impl().CheckReadable(id, 0), StatusCode::kNotFound, named));
  }

  int64_t RandomCount() { return random_.OneIn(3) ? random_.Int(0, 3) : random_.Int(0, 2 * spec_.page_tokens + 5); }

  int64_t Pages(int64_t tokens) const { return CeilDiv(tokens, spec_.page_tokens); }
  int64_t UsedPages() const {
    std::set<int64_t> used;
    for (const ModelSequence& sequence : sequences_) used.insert(sequence.pages.begin(), sequence.pages.end());
    return static_cast<int64_t>(used.size());
  }
  int64_t Holders(int64_t page) const {
    int64_t holders = 0;
    for (const ModelSequence& sequence : sequences_) {
      holders += std::count(sequence.pages.begin(), sequence.pages.end(), page);
    }
    return holders;
  }
  // Whether tokens behind the committed ones would come to stand in a page that somebody else holds, too.
  bool Copies(const ModelSequence& sequence) const {
    return sequence.length % spec_.page_tokens != 0 &&
           Holders(sequence.pages[static_cast<size_t>(sequence.length / spec_.page_tokens)]) > 1;
  }
  bool Fits(const ModelSequence& sequence, int64_t n) const {
    return UsedPages() - Pages(sequence.length + sequence.reserved) + Pages(sequence.length + n) +
               (n > 0 && Copies(sequence) ? 1 : 0) <=
           total_pages_;
  }
  void Shrink(ModelSequence& sequence, int64_t length) {
    for (auto& layer : sequence.layers) layer.resize(static_cast<size_t>(length));
    sequence.pages.resize(static_cast<size_t>(Pages(length)));
    sequence.length = length;
    sequence.reserved = 0;
  }
  void Grow(ModelSequence& sequence, int64_t n) {
    if (n > 0 && Copies(sequence)) {
      sequence.pages[static_cast<size_t>(sequence.length / spec_.page_tokens)] = next_page_++;
      ++num_copies_;
    }
    while (static_cast<int64_t>(sequence.pages.size()) < Pages(sequence.length + n)) {
      sequence.pages.push_back(next_page_++);
    }
    for (auto& layer : sequence.layers) layer.resize(static_cast<size_t>(sequence.length + n));
    sequence.reserved = n;
  }

  void Fill(int64_t batch, int64_t n, StridedTensor* k, StridedTensor* v, std::vector<Token>* tokens) {
    const bool wild = !tame_ && random_.OneIn(6);
    for (int64_t i = 0; i < n; ++i) {
      Token token{RandomRow(random_, spec_.num_kv_heads * spec_.qk_dim, wild),
                  RandomRow(random_, spec_.num_kv_heads * spec_.v_dim, wild)};
      k->Set(batch, i, token.k);
      v->Set(batch, i, token.v);
      if (tokens == nullptr) continue;
      tokens->push_back(
          {StoredRow(spec_.k_dtype, token.k, spec_.qk_dim), StoredRow(spec_.v_dtype, token.v, spec_.v_dim)});
    }
  }

  Status WriteRandom(const ModelSequence& sequence, int64_t layer, int64_t begin, int64_t n,
                     std::vector<Token>* tokens) {
    const int64_t num_batch = random_.Int(1, 2);
    const int64_t batch = random_.Int(0, num_batch - 1);
    StridedTensor k(random_, num_batch, n, spec_.num_kv_heads, spec_.qk_dim);
    StridedTensor v(random_, num_batch, n, spec_.num_kv_heads, spec_.v_dim);
    Fill(batch, n, &k, &v, tokens);
    return cache_.Write(sequence.id, layer, k.const_view(), v.const_view(), begin, batch);
  }

  void WritePart(ModelSequence& sequence, int64_t layer, int64_t begin, int64_t n) {
    std::vector<Token> tokens;
    ASSERT_TRUE(Succeeds(WriteRandom(sequence, layer, begin, n, &tokens)));
    for (int64_t i = 0; i < n; ++i) {
      sequence.layers[static_cast<size_t>(layer)][static_cast<size_t>(sequence.length + begin + i)] =
          tokens[static_cast<size_t>(i)];
    }
  }

  void CheckAccounting() {
    const KVCacheUsage usage = cache_.usage();
    int64_t tokens = 0;
    for (const ModelSequence& sequence : sequences_) {
      tokens += sequence.length;
      EXPECT_EQ(*cache_.Length(sequence.id), sequence.length);
      EXPECT_TRUE(Succeeds(cache_.impl().CheckReadable(sequence.id, sequence.length + sequence.reserved)));
      EXPECT_TRUE(Fails(cache_.impl().CheckReadable(sequence.id, sequence.length + sequence.reserved + 1),
                        StatusCode::kOutOfRange));
      const KVSequenceUsage held = *cache_.SequenceUsage(sequence.id);
      int64_t shared = 0;
      for (const int64_t page : sequence.pages) shared += Holders(page) > 1 ? 1 : 0;
      EXPECT_EQ(held.pages, Pages(sequence.length + sequence.reserved));
      EXPECT_EQ(held.bytes, held.pages * usage.page_bytes);
      EXPECT_EQ(held.shared_pages, shared);
    }
    EXPECT_EQ(usage.num_tokens, tokens);
    EXPECT_EQ(usage.num_sequences, static_cast<int64_t>(sequences_.size()));
    EXPECT_EQ(usage.total_pages, total_pages_);
    EXPECT_EQ(usage.used_pages, UsedPages());
    EXPECT_EQ(usage.used_bytes, UsedPages() * usage.page_bytes);
    EXPECT_EQ(usage.used_bytes + usage.free_bytes, usage.limit_bytes);
    EXPECT_EQ(usage.limit_bytes, total_pages_ * usage.page_bytes);
  }

  void CheckContents() {
    for (const ModelSequence& sequence : sequences_) {
      const int64_t begin = random_.Int(0, sequence.length);
      const int64_t n = random_.Int(0, sequence.length - begin);
      StridedTensor k(random_, 1, n, spec_.num_kv_heads, spec_.qk_dim);
      StridedTensor v(random_, 1, n, spec_.num_kv_heads, spec_.v_dim);
      for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
        ASSERT_TRUE(Succeeds(cache_.Read(sequence.id, layer, begin, k.view(), v.view())));
        for (int64_t i = 0; i < n; ++i) {
          const Token& token = *sequence.layers[static_cast<size_t>(layer)][static_cast<size_t>(begin + i)];
          ASSERT_TRUE(SameNumbers(k.Get(0, i), token.k, spec_.k_dtype)) << "layer " << layer << " token " << begin + i;
          ASSERT_TRUE(SameNumbers(v.Get(0, i), token.v, spec_.v_dtype)) << "layer " << layer << " token " << begin + i;
        }
      }
    }
  }

  // What attention relies on. Written tokens stand where the layout says. A tile that holds one has, wherever its flag
  // is 0, nothing but finite V, in slots that hold no token too; and no flag is set where nothing but finite values
  // ever went in.
  void CheckTiles() {
    const KVCacheImpl& impl = cache_.impl();
    std::map<int64_t, int64_t> page_names;
    std::map<int64_t, int64_t> named_pages;
    for (const ModelSequence& sequence : sequences_) {
      const int64_t end = sequence.length + sequence.reserved;
      std::vector<int32_t> pages(static_cast<size_t>(Pages(end)));
      impl.CopyPageIds(sequence.id, Pages(end), pages.data());
      // Shared where the model shares, and nowhere else.
      ASSERT_EQ(pages.size(), sequence.pages.size());
      for (size_t i = 0; i < pages.size(); ++i) {
        EXPECT_EQ(page_names.emplace(pages[i], sequence.pages[i]).first->second, sequence.pages[i]);
        EXPECT_EQ(named_pages.emplace(sequence.pages[i], pages[i]).first->second, pages[i]);
      }
      for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
        for (int64_t first = 0; first < end; first += kTileKeys) {
          for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
            // Elements stand in f32's tiles as numbers.
            if (spec_.k_dtype != DType::kF32 || spec_.v_dtype != DType::kF32) continue;
            CheckTile(sequence, layer, head, first, pages[static_cast<size_t>(first / spec_.page_tokens)]);
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }

  void CheckTile(const ModelSequence& sequence, int64_t layer, int64_t head, int64_t first, int64_t page) {
    const KVCacheImpl& impl = cache_.impl();
    const int64_t tile = first % spec_.page_tokens / kTileKeys;
    const uint32_t* const k = reinterpret_cast<const uint32_t*>(impl.KTile(layer, page, head, tile));
    const uint32_t* const v = reinterpret_cast<const uint32_t*>(impl.VTile(layer, page, head, tile));
    const int64_t padded = RoundUp(spec_.v_dim, kTileKeys);
    const auto& tokens = sequence.layers[static_cast<size_t>(layer)];
    bool any = false;
    for (int64_t slot = 0; slot < kTileKeys && first + slot < sequence.length + sequence.reserved; ++slot) {
      const std::optional<Token>& token = tokens[static_cast<size_t>(first + slot)];
      if (!token.has_value()) continue;
      any = true;
      for (int64_t i = 0; i < spec_.qk_dim; ++i) {
        ASSERT_EQ(k[i * kTileKeys + slot], token->k[static_cast<size_t>(head * spec_.qk_dim + i)]);
      }
      for (int64_t i = 0; i < padded; ++i) {
        const uint32_t expected = i < spec_.v_dim ? token->v[static_cast<size_t>(head * spec_.v_dim + i)] : 0;
        ASSERT_EQ(v[i / kTileKeys * kTileKeys * kTileKeys + slot * kTileKeys + i % kTileKeys], expected);
      }
    }
    if (!any) return;
    const uint8_t flag = impl.TileFlags(layer, page, head)[tile];
    ASSERT_LE(flag, tame_ ? 0 : 1);
    bool finite = true;
    for (int64_t i = 0; i < padded * kTileKeys; ++i) finite &= IsFiniteBits(v[i]);
    // The flag may outlive the value (a slot written again), never the other way round.
    ASSERT_TRUE(finite || flag != 0) << "layer " << layer << " head " << head << " tile at " << first;
    num_flags_ += flag;
    num_clear_ += 1 - flag;
  }

 public:
  int64_t num_flags_ = 0;
  int64_t num_clear_ = 0;
  int64_t num_forks_ = 0;
  int64_t num_copies_ = 0;
  int64_t num_paths_ = 0;

 private:
  Random random_;
  KVCache cache_;
  KVCacheSpec spec_;
  bool tame_;  // only finite values
  int64_t total_pages_;
  int64_t next_page_ = 0;
  std::vector<ModelSequence> sequences_;
  std::vector<SequenceId> dropped_;
};

TEST(KVModel, RandomOperationsAgreeWithPlainVectors) {
  const std::vector<int64_t> dims = {1, 3, 7, 16, 46, 64, 80, 100};
  const std::vector<int64_t> page_sizes = {16, 32, 48, 64, 128, 256};
  Random random(1);
  int64_t num_flags = 0;
  int64_t num_clear = 0;
  int64_t num_forks = 0;
  int64_t num_copies = 0;
  int64_t num_paths = 0;
  for (uint64_t trial = 0; trial < 100 && !HasFailure(); ++trial) {
    KVCacheSpec spec;
    spec.num_layers = random.OneIn(2) ? 1 : random.Int(2, 4);
    spec.num_kv_heads = random.Int(1, 3);
    spec.qk_dim = random.Pick(dims);
    spec.v_dim = random.Pick(dims);
    spec.page_tokens = random.Pick(page_sizes);
    spec.max_tokens = random.Int(1, 9) * spec.page_tokens - random.Int(0, 15);
    spec.max_sequences = random.Int(1, 8);
    SCOPED_TRACE("trial " + std::to_string(trial));
    Trial run(spec, trial);
    run.Run(150);
    num_flags += run.num_flags_;
    num_clear += run.num_clear_;
    num_forks += run.num_forks_;
    num_copies += run.num_copies_;
    num_paths += run.num_paths_;
  }
  // Both kinds of tiles were met, or the check of the flags was none.
  EXPECT_GT(num_flags, 100);
  EXPECT_GT(num_clear, 100);
  EXPECT_GT(num_forks, 100);
  EXPECT_GT(num_copies, 30);
  EXPECT_GT(num_paths, 50);
}

// Keys of each type, values of all.
TEST(KVModel, RandomOperationsAtEveryDType) {
  Random random(2);
  for (const DType k : kEveryDType) {
    for (const DType v : kEveryDType) {
      SCOPED_TRACE(std::string(DTypeName(k)) + " " + DTypeName(v));
      KVCacheSpec spec = SpecOf(k, v, random.Pick<int64_t>({3, 16, 33, 46}), random.Pick<int64_t>({2, 16, 40, 65}),
                                random.Pick<int64_t>({16, 32, 48}), random.Int(2, 9));
      spec.num_layers = random.Int(1, 2);
      Trial(spec, static_cast<uint64_t>(random.Int(0, 1000))).Run(120);
      if (HasFailure()) return;
    }
  }
}

TEST(KVModel, LargeDims) {
  for (const auto& [qk_dim, v_dim] :
       {std::pair<int64_t, int64_t>{576, 512}, {257, 1}, {1, 257}, {192, 128}, {112, 576}}) {
    KVCacheSpec spec;
    spec.num_layers = 2;
    spec.num_kv_heads = 1;
    spec.qk_dim = qk_dim;
    spec.v_dim = v_dim;
    spec.page_tokens = 32;
    spec.max_tokens = 128;
    spec.max_sequences = 3;
    SCOPED_TRACE(qk_dim);
    Trial(spec, static_cast<uint64_t>(qk_dim)).Run(100);
  }
}

}  // namespace
}  // namespace headlane::internal
