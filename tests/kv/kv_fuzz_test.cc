// Random histories of several sequences of any types, forks, drafts, removals, windows, saving and restoring, against a
// naive model: each sequence is a vector of the names of its tokens, whose stored rows the reference's programs make,
// with whatever rotates them. After every operation some of a sequence's rows, read back, must be these, and attention
// over it must have the bits of the scalar canonical program over them, or, where that takes too long, of attention
// over plain tensors; a refused operation must have changed nothing.
//
// HEADLANE_FUZZ_SECONDS: run new histories for so long (default: a fixed number of them), 60 in CI;
// HEADLANE_FUZZ_FIRST_SEED: begin with this one, to see a failure again.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hadamard_blocks.h"
#include "headlane/kv_cache.h"
#include "headlane/target.h"
#include "kv/attend.h"
#include "kv/fuzz_rows.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"
#include "kv/save_util.h"

namespace headlane::internal {
namespace {

struct Model {
  SequenceId id;
  std::vector<int64_t> names;
  // What the windows of each group have passed: tokens [num_always_visible, first_kept).
  std::vector<int64_t> first_kept;

  int64_t length() const { return static_cast<int64_t>(names.size()); }
};

struct Counts {
  int64_t done[16] = {};
  int64_t refused[16] = {};
  int64_t canonical = 0;  // comparisons with the canonical program
  int64_t rotated = 0;    // those of them over rotated caches
  int64_t turned = 0;     // tokens whose keys were turned by a removal
};

class History {
 public:
  History(uint64_t seed, Counts* counts) : random_(seed), counts_(counts), cache_(MakeCache(MakeSpec())) {
    spec_ = cache_.spec();
    tokens_.Begin(spec_, shifts_);
    cache_.impl().PoisonUnusedForTesting();
  }

  void Run(int64_t num_operations) {
    for (int64_t i = 0; i < num_operations && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      Step();
      if (random_.OneIn(5)) cache_.impl().PoisonUnusedForTesting();
      Check();
    }
  }

 private:
  enum Operation {
    kCreate,
    kDrop,
    kAppend,
    kFork,
    kTruncate,
    kRemove,
    kDraft,
    kAbandon,
    kPrefix,
    kSave,
    kRestore,
    kMove,
    kTurn,
    kRead
  };

  KVCacheSpec MakeSpec() {
    KVCacheSpec spec;
    const std::vector<DType> dtypes(std::begin(kEveryDType), std::end(kEveryDType));
    spec.num_layers = random_.Int(1, 3);
    spec.num_kv_heads = random_.Int(1, 2);
    spec.qk_dim = random_.Pick<int64_t>({1, 3, 8, 16, 33, 40});
    spec.v_dim = random_.Pick<int64_t>({1, 2, 16, 35});
    spec.rotate = random_.OneIn(3);
    spec.values_in_keys = random_.OneIn(4);
    if (spec.values_in_keys) {
      spec.v_dim = random_.Int(1, spec.qk_dim);
      while (spec.rotate && !IsHadamardBoundary(spec.qk_dim, spec.v_dim)) ++spec.v_dim;
    }
    spec.k_dtype = random_.Pick(dtypes);
    spec.v_dtype = random_.Pick(dtypes);
    spec.page_tokens = random_.Pick<int64_t>({16, 16, 32, 48, 128});
    spec.max_tokens = spec.page_tokens * random_.Int(4, 14);
    spec.max_sequences = random_.Int(2, 6);
    spec.max_positions = 700;
    const int64_t num_groups = random_.Int(1, std::min<int64_t>(spec.num_layers, 2));
    for (int64_t g = 0; g < num_groups; ++g) {
      KVLayerGroup group;
      if (random_.OneIn(2)) {
        group.window = random_.Pick<int64_t>({1, 7, 30, 90});
        group.num_always_visible = random_.Pick<int64_t>({0, 1, 4, 20});
        group.max_in_flight = random_.Pick<int64_t>({0, 1, 5, 40});
      }
      spec.groups.push_back(group);
      // Features that are values cannot turn on their way down.
      RopeShift shift;
      const int64_t first = spec.values_in_keys ? spec.v_dim : 0;
      const int64_t pairs = random_.Int(0, (spec.qk_dim - first) / 2);
      shift.rope.rotary_dim = 2 * pairs;
      shift.rope.style = random_.Pick<RopeStyle>({RopeStyle::kAdjacent, RopeStyle::kHalfSplit});
      shift.first_feature = random_.Int(first, spec.qk_dim - 2 * pairs);
      shifts_.push_back(shift);
    }
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
      spec.group_of_layer.push_back(static_cast<int32_t>(layer % num_groups));
    }
    return spec;
  }

  void Step() {
    if (sequences_.empty() || random_.OneIn(12)) return Create();
    const size_t index = static_cast<size_t>(random_.Int(0, static_cast<int64_t>(sequences_.size()) - 1));
    Model& model = sequences_[index];
    switch (random_.Int(0, 13)) {
      case 0:
        return random_.OneIn(2) ? Drop(index) : Abandon(model);
      case 1:
      case 2:
        return Fork(model);
      case 3:
        return Truncate(model);
      case 4:
        return Remove(model);
      case 5:
      case 6:
        return Draft(model);
      case 7:
        return Prefix(model);
      case 8:
        return Save();
      case 9:
        return Restore();
      default:
        return Append(model);
    }
  }

  void Count(Operation operation, bool done) { ++(done ? counts_->done : counts_->refused)[operation]; }

  // Tokens that stand from `position` on, given in any way.
  std::vector<int64_t> NewNames(int64_t n, int64_t position) {
    const std::vector<DType> dtypes = {DType::kF32, DType::kF16, DType::kBF16};
    return tokens_.Add(n, position, {random_.Pick(dtypes), random_.Pick(dtypes), random_.OneIn(2)});
  }
  std::vector<int64_t> Fresh() const { return std::vector<int64_t>(spec_.groups.size(), 0); }

  // Whether rows at this length and behind see only what is kept.
  bool MayGoBack(const Model& model, int64_t length) const {
    for (size_t g = 0; g < spec_.groups.size(); ++g) {
      const KVLayerGroup& group = spec_.groups[g];
      if (group.window == kNoWindow || model.first_kept[g] <= group.num_always_visible) continue;
      if (length > group.num_always_visible && length - group.window + 1 < model.first_kept[g]) return false;
    }
    return true;
  }
  bool SeesOnlyKept(const Model& model, int64_t first_row) const {
    for (size_t g = 0; g < spec_.groups.size(); ++g) {
      const KVLayerGroup& group = spec_.groups[g];
      if (group.window == kNoWindow || model.first_kept[g] <= group.num_always_visible) continue;
      if (first_row - group.window + 1 < model.first_kept[g]) return false;
    }
    return true;
  }
  void GoBack(Model& model, int64_t length) const {
    model.names.resize(static_cast<size_t>(length));
    for (int64_t& first : model.first_kept) first = std::min(first, length);
  }
  void Committed(Model& model) const {
    for (size_t g = 0; g < spec_.groups.size(); ++g) {
      const KVLayerGroup& group = spec_.groups[g];
      if (group.window == kNoWindow) continue;
      model.first_kept[g] = std::max(model.first_kept[g], model.length() - group.max_in_flight - group.window + 1);
    }
  }

  void Create() {
    const Result<SequenceId> id = cache_.CreateSequence();
    Count(kCreate, id.ok());
    if (!id.ok()) {
      EXPECT_EQ(static_cast<int64_t>(sequences_.size()), spec_.max_sequences);
      return;
    }
    sequences_.push_back({*id, {}, Fresh()});
  }

  void Drop(size_t index) {
    EXPECT_TRUE(Succeeds(cache_.DropSequence(sequences_[index].id)));
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(index));
    Count(kDrop, true);
  }

  void Abandon(Model& model) {
    (void)cache_.Reserve(model.id, random_.Int(0, 40));
    EXPECT_TRUE(Succeeds(cache_.Abandon(model.id)));
    Count(kAbandon, true);
  }

  // A refusal for want of pages: there is none to spare, and nothing is different.
  void NoRoom(const Status& status, int64_t used_pages) {
    EXPECT_TRUE(status.code() == StatusCode::kResourceExhausted || status.code() == StatusCode::kOutOfRange)
        << status.message();
    EXPECT_EQ(cache_.usage().used_pages, used_pages);
  }

  Status WriteAll(SequenceId id, const std::vector<int64_t>& names) {
    return tokens_.Write(cache_, id, names, random_);
  }

  void Append(Model& model) {
    const int64_t n = random_.OneIn(2) ? random_.Int(0, 3) : random_.Int(0, 70);
    const std::vector<int64_t> names = NewNames(n, model.length());
    ASSERT_TRUE(Succeeds(cache_.Abandon(model.id)));
    const int64_t used = cache_.usage().used_pages;
    const Status reserved = cache_.Reserve(model.id, n);
    Count(kAppend, reserved.ok());
    if (!reserved.ok()) return NoRoom(reserved, used);
    ASSERT_TRUE(Succeeds(WriteAll(model.id, names)));
    // Seen before they are committed, as a model does; then in one or two parts.
    std::vector<int64_t> all = model.names;
    all.insert(all.end(), names.begin(), names.end());
    if (random_.OneIn(2)) {
      ASSERT_TRUE(Same(model.id, all, n));
    }
    const int64_t part = random_.Int(0, n);
    ASSERT_TRUE(Succeeds(cache_.Commit(model.id, part)));
    ASSERT_TRUE(Succeeds(cache_.Commit(model.id, n - part)));
    model.names = all;
    Committed(model);
  }

  void Fork(const Model& parent) {
    const int64_t length = random_.OneIn(2) ? parent.length() : random_.Int(0, parent.length());
    if (random_.OneIn(3)) (void)cache_.Reserve(parent.id, random_.Int(0, 10));
    const Result<SequenceId> id = cache_.Fork(parent.id, length);
    Count(kFork, id.ok());
    if (!MayGoBack(parent, length)) {
      EXPECT_TRUE(Fails(id.status(), StatusCode::kFailedPrecondition));
      return;
    }
    if (!id.ok()) {
      EXPECT_TRUE(Fails(id.status(), StatusCode::kResourceExhausted));
      return;
    }
    Model child = parent;
    child.id = *id;
    GoBack(child, length);
    sequences_.push_back(child);
  }

  void Truncate(Model& model) {
    const int64_t length =
        random_.Int(random_.OneIn(4) ? 0 : std::max<int64_t>(0, model.length() - 30), model.length());
    const Status status = cache_.Truncate(model.id, length);
    Count(kTruncate, status.ok());
    if (MayGoBack(model, length)) {
      EXPECT_TRUE(Succeeds(status));
      GoBack(model, length);
    } else {
      EXPECT_TRUE(Fails(status, StatusCode::kFailedPrecondition, {std::to_string(length)}));
    }
  }

  void Remove(Model& model) {
    const int64_t begin = random_.Int(0, model.length());
    const int64_t end = std::min(model.length(), begin + random_.Int(0, 40));
    const int64_t length = model.length() - (end - begin);
    bool allowed = true;
    for (size_t g = 0; g < spec_.groups.size() && end > begin; ++g) {
      const KVLayerGroup& group = spec_.groups[g];
      if (group.window == kNoWindow || model.first_kept[g] <= group.num_always_visible) continue;
      allowed &= begin >= model.first_kept[g] && length - group.window + 1 >= model.first_kept[g];
    }
    const int64_t used = cache_.usage().used_pages;
    const bool turns = random_.OneIn(2);
    ASSERT_TRUE(Succeeds(cache_.Abandon(model.id)));
    const Status status =
        cache_.Remove(model.id, begin, end, turns ? std::span<const RopeShift>(shifts_) : std::span<const RopeShift>());
    Count(turns ? kTurn : kRemove, status.ok());
    if (!allowed) {
      EXPECT_TRUE(Fails(status, StatusCode::kFailedPrecondition));
    } else if (!status.ok()) {
      EXPECT_TRUE(Fails(status, StatusCode::kResourceExhausted));
      EXPECT_LE(cache_.usage().used_pages, used);
    } else {
      model.names.erase(model.names.begin() + begin, model.names.begin() + end);
      for (int64_t& first : model.first_kept) first = std::min(first, length);
      if (!turns || end == begin) return;
      for (int64_t i = begin; i < length; ++i) {
        int64_t& name = model.names[static_cast<size_t>(i)];
        name = tokens_.AddTurned(name, end - begin);
        ++counts_->turned;
      }
    }
  }

  void Draft(Model& model) {
    const int64_t n = random_.Int(0, 24);
    const std::vector<int64_t> names = NewNames(n, model.length());
    ASSERT_TRUE(Succeeds(cache_.Abandon(model.id)));
    const int64_t used = cache_.usage().used_pages;
    const Status reserved = cache_.Reserve(model.id, n);
    Count(kDraft, reserved.ok());
    if (!reserved.ok()) return NoRoom(reserved, used);
    ASSERT_TRUE(Succeeds(WriteAll(model.id, names)));
    std::vector<int64_t> accepted;
    for (int64_t i = 0; i < n; ++i) {
      if (random_.OneIn(2)) accepted.push_back(i);
    }
    ASSERT_TRUE(Succeeds(cache_.CommitPath(model.id, accepted.data(), static_cast<int64_t>(accepted.size()))));
    for (const int64_t i : accepted) model.names.push_back(names[static_cast<size_t>(i)]);
    Committed(model);
  }

  // A prompt that begins as some sequence does must find at least what that one has in full pages.
  void Prefix(const Model& source) {
    const std::vector<int32_t> ids(source.names.begin(), source.names.end());
    const Status set = cache_.SetTokens(source.id, ids.data(), source.length());
    const bool all_windows = std::all_of(spec_.groups.begin(), spec_.groups.end(),
                                         [](const KVLayerGroup& group) { return group.window != kNoWindow; });
    if (all_windows) {
      EXPECT_TRUE(Fails(set, StatusCode::kUnsupported));
      return;
    }
    ASSERT_TRUE(Succeeds(set));
    std::vector<int64_t> prompt(source.names.begin(), source.names.begin() + random_.Int(0, source.length()));
    const int64_t common = static_cast<int64_t>(prompt.size());
    prompt.resize(prompt.size() + static_cast<size_t>(random_.Int(0, 20)), -1);
    const int64_t n = static_cast<int64_t>(prompt.size());
    int64_t least = std::max<int64_t>(std::min(common, n - 1), 0) / spec_.page_tokens * spec_.page_tokens;
    if (!MayGoBack(source, least)) least = 0;
    const std::vector<int32_t> wanted(prompt.begin(), prompt.end());
    int64_t matched = -1;
    const Result<SequenceId> id = cache_.ForkPrefix(wanted.data(), n, &matched);
    Count(kPrefix, id.ok() && matched > 0);
    if (!id.ok()) {
      EXPECT_EQ(static_cast<int64_t>(sequences_.size()), spec_.max_sequences);
      return;
    }
    EXPECT_GE(matched, least);
    EXPECT_LE(matched, std::max<int64_t>(common, 0));
    EXPECT_EQ(matched % spec_.page_tokens, 0);
    EXPECT_TRUE(n == 0 || matched < n);
    // What a window has passed is the source's, which may be another sequence: only what both keep is looked at.
    Model child{*id, {prompt.begin(), prompt.begin() + matched}, Fresh()};
    bool any_window = false;
    for (const KVLayerGroup& group : spec_.groups) any_window |= group.window != kNoWindow;
    if (any_window) {
      // The next token sees what is kept, if there is room for it.
      if (cache_.Reserve(child.id, 1).ok()) {
        child.names.push_back(NewNames(1, child.length())[0]);
        EXPECT_TRUE(Succeeds(WriteAll(child.id, {child.names.back()})));
        EXPECT_TRUE(Same(child.id, child.names, 1));
      }
      EXPECT_TRUE(Succeeds(cache_.DropSequence(child.id)));
      return;
    }
    sequences_.push_back(child);
  }

  // Some of the sequences, for later: what is restored is what they were.
  void Save() {
    saved_models_.clear();
    std::vector<SequenceId> ids;
    for (const Model& model : sequences_) {
      if (random_.OneIn(2)) continue;
      ids.push_back(model.id);
      saved_models_.push_back(model);
    }
    saved_ = Saved(cache_, ids);
    Count(kSave, true);
  }

  // Into a fresh cache of the same kind, where life goes on.
  void Move() {
    if (saved_.empty()) return;
    KVCache other = MakeCache(spec_);
    other.impl().PoisonUnusedForTesting();
    const Result<std::vector<RestoredSequence>> restored = internal::Restore(other, saved_);
    Count(kMove, restored.ok());
    ASSERT_TRUE(Succeeds(restored.status()));
    ASSERT_EQ(restored->size(), saved_models_.size());
    cache_ = std::move(other);
    sequences_ = saved_models_;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      EXPECT_EQ((*restored)[i].saved, saved_models_[i].id);
      sequences_[i].id = (*restored)[i].id;
    }
  }

  // Into the cache that they came from, whatever became of them there.
  void Restore() {
    if (random_.OneIn(4)) return Move();
    if (saved_.empty()) return;
    const bool damaged = random_.OneIn(4);
    Bytes bytes = saved_;
    if (damaged && random_.OneIn(2)) {
      bytes[static_cast<size_t>(random_.Int(0, static_cast<int64_t>(bytes.size()) - 1))] ^= std::byte{4};
    } else if (damaged) {
      bytes.resize(static_cast<size_t>(random_.Int(0, static_cast<int64_t>(bytes.size()) - 1)));
    }
    const KVCacheUsage before = cache_.usage();
    const Result<std::vector<RestoredSequence>> restored = internal::Restore(cache_, bytes);
    Count(kRestore, restored.ok());
    if (!restored.ok()) {
      EXPECT_TRUE(damaged || restored.status().code() == StatusCode::kResourceExhausted) << restored.status().message();
      EXPECT_EQ(cache_.usage().used_pages, before.used_pages);
      return;
    }
    EXPECT_FALSE(damaged);
    ASSERT_EQ(restored->size(), saved_models_.size());
    for (size_t i = 0; i < saved_models_.size(); ++i) {
      EXPECT_EQ((*restored)[i].saved, saved_models_[i].id);
      sequences_.push_back(saved_models_[i]);
      sequences_.back().id = (*restored)[i].id;
    }
  }

  // q_len rows at the end of the sequence, in every layer.
  ::testing::AssertionResult Same(SequenceId id, const std::vector<int64_t>& names, int64_t q_len) {
    const int64_t kv_len = static_cast<int64_t>(names.size());
    if (q_len == 0 || q_len > kv_len) return ::testing::AssertionSuccess();
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      const int32_t group = spec_.group_of_layer[static_cast<size_t>(layer)];
      Mask mask;
      mask.window = spec_.groups[static_cast<size_t>(group)].window;
      mask.num_always_visible = spec_.groups[static_cast<size_t>(group)].num_always_visible;
      const Attended got = AttendCache(cache_, id, layer, q_len, kv_len, mask, group);
      if (!got.status.ok()) return Succeeds(got.status);
      // The canonical program takes long: of many numbers not each time, and never of very many.
      const int64_t size = q_len * kv_len * spec_.num_kv_heads * (spec_.qk_dim + spec_.v_dim);
      const bool canonical = ActiveTarget().has_fma && (size < 4000 || (size < 100000 && random_.OneIn(8)));
      if (!canonical && spec_.rotate) continue;
      const TokenStore::Rows rows = tokens_.Stored(names, layer);
      const std::vector<float> expected =
          canonical ? AttendCanonically(spec_, rows, q_len, mask) : AttendRows(spec_, rows, q_len, mask).out;
      if (canonical) ++(spec_.rotate ? counts_->rotated : counts_->canonical);
      if (std::memcmp(expected.data(), got.out.data(), got.out.size() * sizeof(float)) != 0) {
        return ::testing::AssertionFailure()
               << q_len << " rows over " << kv_len << " keys, layer " << layer << (canonical ? ", canonical" : "");
      }
    }
    return ::testing::AssertionSuccess();
  }

  // Some tokens of one layer, read back. What its window has passed is refused.
  void Read(const Model& model) {
    const int64_t layer = random_.Int(0, spec_.num_layers - 1);
    const size_t g = static_cast<size_t>(spec_.group_of_layer[static_cast<size_t>(layer)]);
    const int64_t begin = random_.Int(0, model.length());
    const int64_t end = random_.Int(begin, std::min(model.length(), begin + 20));
    const int64_t n = end - begin;
    std::vector<float> k(static_cast<size_t>(n * spec_.num_kv_heads * spec_.qk_dim), -1.0f);
    std::vector<float> v(static_cast<size_t>(n * spec_.num_kv_heads * spec_.v_dim), -1.0f);
    const Status status =
        cache_.Read(model.id, layer, begin, TokensHeadsDim(k.data(), n, spec_.num_kv_heads, spec_.qk_dim),
                    TokensHeadsDim(v.data(), n, spec_.num_kv_heads, spec_.v_dim));
    Count(kRead, status.ok());
    const bool passed = std::max(begin, spec_.groups[g].num_always_visible) < std::min(end, model.first_kept[g]);
    if (passed) {
      EXPECT_TRUE(Fails(status, StatusCode::kFailedPrecondition));
      return;
    }
    ASSERT_TRUE(Succeeds(status)) << "[" << begin << ", " << end << ") of layer " << layer;
    const TokenStore::Rows rows = tokens_.Stored({model.names.begin() + begin, model.names.begin() + end}, layer);
    EXPECT_EQ(std::memcmp(rows.k.data(), k.data(), k.size() * sizeof(float)), 0) << "keys from " << begin;
    if (spec_.values_in_keys) return;
    EXPECT_EQ(std::memcmp(rows.v.data(), v.data(), v.size() * sizeof(float)), 0) << "values from " << begin;
  }

  void Check() {
    const KVCacheUsage usage = cache_.usage();
    EXPECT_EQ(usage.used_bytes + usage.free_bytes, usage.limit_bytes);
    EXPECT_EQ(usage.num_sequences, static_cast<int64_t>(sequences_.size()));
    int64_t tokens = 0;
    int64_t least_bytes = 0;
    int64_t most_bytes = 0;
    for (const Model& model : sequences_) {
      EXPECT_EQ(*cache_.Length(model.id), model.length());
      tokens += model.length();
      const KVSequenceUsage held = *cache_.SequenceUsage(model.id);
      most_bytes += held.bytes;
      least_bytes = std::max(least_bytes, held.bytes);
    }
    EXPECT_EQ(usage.num_tokens, tokens);
    EXPECT_LE(usage.used_bytes, most_bytes);
    EXPECT_GE(usage.used_bytes, least_bytes);
    if (sequences_.empty()) return;
    // One of them each time; the others have their turn, and what an operation breaks stays broken.
    const Model& model = random_.Pick(sequences_);
    int64_t rows = 5;
    for (const KVLayerGroup& group : spec_.groups) {
      if (group.window != kNoWindow) rows = std::min(rows, group.max_in_flight);
    }
    // After a roll-back, rows in flight reach no further than what is kept.
    rows = std::min(rows, model.length());
    while (rows > 0 && !SeesOnlyKept(model, model.length() - rows)) --rows;
    EXPECT_TRUE(Same(model.id, model.names, rows));
    Read(random_.Pick(sequences_));
  }

  Random random_;
  Counts* counts_;
  std::vector<RopeShift> shifts_;  // of each layer group
  TokenStore tokens_;
  KVCache cache_;
  KVCacheSpec spec_;
  std::vector<Model> sequences_;
  std::vector<Model> saved_models_;
  Bytes saved_;
};

TEST(KVFuzz, HistoriesAgreeWithPlainVectors) {
  const char* const text = std::getenv("HEADLANE_FUZZ_SECONDS");
  const double seconds = text == nullptr ? 0 : std::strtod(text, nullptr);
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  Counts counts;
  const char* const first = std::getenv("HEADLANE_FUZZ_FIRST_SEED");
  const uint64_t first_seed = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
  for (uint64_t seed = first_seed; (seed < first_seed + 100 || elapsed() < seconds) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    History(seed, &counts).Run(120);
  }
  if (HasFailure()) return;
  // Everything happened, and was refused where it can be.
  const char* const names[] = {"create",  "drop",   "append", "fork",    "truncate", "remove", "draft",
                               "abandon", "prefix", "save",   "restore", "move",     "turn",   "read"};
  EXPECT_GT(counts.turned, 1000);
  if (ActiveTarget().has_fma) {
    EXPECT_GT(counts.canonical, 300);
    EXPECT_GT(counts.rotated, 300);
  }
  for (size_t i = 0; i < std::size(names); ++i) EXPECT_GT(counts.done[i], 10) << names[i];
  for (const size_t i : {0, 2, 3, 4, 5, 10, 12, 13}) EXPECT_GT(counts.refused[i], 10) << names[i];
}

}  // namespace
}  // namespace headlane::internal
