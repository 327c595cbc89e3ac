// A small engine with a block table of its own, at random: sequences grow, shrink, share prefixes, are swapped to other
// pages and go, over pages of every kind. Attention over its pages is compared with attention over plain tensors, which
// hold what the reference's codec makes of the quantised types.
//
// HEADLANE_FUZZ_SECONDS: more rounds for a twelfth of it, 5 s in CI, since other tests take it whole;
// HEADLANE_FUZZ_FIRST_SEED: begin with this one, to see a failure again.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headlane/attention.h"
#include "headlane/kv_pages.h"
#include "kv/attend.h"
#include "operator/pages.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

// Tokens by name, so that what a sequence holds is a list of numbers; elements are numbers of every 16-bit type.
struct Member {
  std::vector<int64_t> names;
  std::vector<int32_t> pages;
};

class Engine {
 public:
  Engine(uint64_t seed, Pages kind, DType dtype, int64_t page_tokens) : random_(seed), kind_(kind) {
    spec_.num_layers = 2;
    spec_.num_kv_heads = random_.Int(1, 3);
    spec_.qk_dim = random_.Int(1, 48);
    spec_.v_dim = random_.OneIn(2) ? 16 * random_.Int(1, 3) : random_.Int(1, 48);
    KVPagesSpec pages;
    pages.num_kv_heads = spec_.num_kv_heads;
    pages.qk_dim = spec_.qk_dim;
    pages.v_dim = spec_.v_dim;
    // Keys and values of one type, or of any two.
    spec_.k_dtype = dtype;
    spec_.v_dtype =
        kind != Pages::kTiles || random_.OneIn(2)
            ? dtype
            : random_.Pick(std::vector<DType>(std::begin(internal::kEveryDType), std::end(internal::kEveryDType)));
    pages.k_dtype = spec_.k_dtype;
    pages.v_dtype = spec_.v_dtype;
    pages.page_tokens = page_tokens_ = page_tokens;
    pages.num_pages = 1500 / page_tokens + 2;
    store_ = MakePagedMemory(pages, kind, spec_.num_layers);
    for (int32_t i = 0; i < pages.num_pages; ++i) free_.insert(i);
    holders_.resize(static_cast<size_t>(pages.num_pages));
  }

  void Step() {
    const int64_t action = random_.Int(0, 9);
    if (members_.size() < 2 || (action == 0 && members_.size() < 6)) {
      members_.emplace_back();
    } else if (action <= 4) {
      Grow();
    } else if (action == 5) {
      Member& member = Any();
      Shrink(member, random_.Int(0, static_cast<int64_t>(member.names.size())));
    } else if (action == 6 && members_.size() < 6) {
      Share();
    } else if (action == 7) {
      Swap();
    } else if (action == 8 && random_.OneIn(3)) {
      Member& member = Any();
      Shrink(member, 0);
      members_.erase(members_.begin() + (&member - members_.data()));
    } else {
      Compare();
    }
  }

 private:
  Member& Any() { return members_[static_cast<size_t>(random_.Int(0, static_cast<int64_t>(members_.size()) - 1))]; }
  int32_t TakePage() {
    auto page = free_.begin();
    std::advance(page, random_.Int(0, static_cast<int64_t>(free_.size()) - 1));
    const int32_t taken = *page;
    free_.erase(page);
    holders_[static_cast<size_t>(taken)] = 1;
    return taken;
  }
  void GiveBack(int32_t page) {
    if (--holders_[static_cast<size_t>(page)] == 0) free_.insert(page);
  }

  void Shrink(Member& member, int64_t length) {
    member.names.resize(static_cast<size_t>(length));
    const size_t kept = static_cast<size_t>((length + page_tokens_ - 1) / page_tokens_);
    for (size_t i = kept; i < member.pages.size(); ++i) GiveBack(member.pages[i]);
    member.pages.resize(kept);
    // A page that others hold cannot be written to: what is left of it is given up, too.
    if (!member.pages.empty() && length % page_tokens_ != 0 && holders_[static_cast<size_t>(member.pages.back())] > 1) {
      Shrink(member, length / page_tokens_ * page_tokens_);
    }
  }

  // Tokens of one or two sequences, in any order of the slots, in one call.
  void Grow() {
    std::vector<std::pair<int64_t, int64_t>> tokens;  // slot, name
    for (int64_t parts = random_.Int(1, 2); parts > 0; --parts) {
      Member& member = Any();
      for (int64_t n = random_.OneIn(4) ? random_.Int(1, 300) : random_.Int(1, 20); n > 0; --n) {
        const int64_t length = static_cast<int64_t>(member.names.size());
        if (length % page_tokens_ == 0) {
          if (free_.empty()) break;
          member.pages.push_back(TakePage());
        }
        member.names.push_back(next_name_++);
        tokens.emplace_back(member.pages.back() * page_tokens_ + length % page_tokens_, member.names.back());
      }
    }
    if (random_.OneIn(2)) tokens.emplace_back(-1, next_name_++);
    if (random_.OneIn(3)) {
      for (size_t i = tokens.size(); i > 1; --i) {
        std::swap(tokens[i - 1], tokens[static_cast<size_t>(random_.Int(0, static_cast<int64_t>(i) - 1))]);
      }
    }
    std::vector<int64_t> slots, names;
    for (const auto& [slot, name] : tokens) {
      slots.push_back(slot);
      names.push_back(name);
    }
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      const internal::TokenRows rows(spec_, layer, names);
      const GuardedArray<int64_t> list(slots);
      ASSERT_TRUE(
          internal::Succeeds(store_.pages->Write(layer, rows.k_view(), rows.v_view(), {list.data(), list.size()})));
    }
  }

  // A sequence that begins with another's full pages.
  void Share() {
    const Member& from = Any();
    Member member;
    const size_t full = from.names.size() / static_cast<size_t>(page_tokens_);
    const size_t n = static_cast<size_t>(random_.Int(0, static_cast<int64_t>(full)));
    member.pages.assign(from.pages.begin(), from.pages.begin() + static_cast<std::ptrdiff_t>(n));
    member.names.assign(from.names.begin(), from.names.begin() + static_cast<std::ptrdiff_t>(n) * page_tokens_);
    for (const int32_t page : member.pages) ++holders_[static_cast<size_t>(page)];
    members_.push_back(std::move(member));
  }

  // Tiles: a page is moved as bytes, by somebody who knows its size only.
  void Swap() {
    Member& member = Any();
    if (kind_ != Pages::kTiles || member.pages.empty() || free_.empty()) return;
    int32_t& page = member.pages[static_cast<size_t>(random_.Int(0, static_cast<int64_t>(member.pages.size()) - 1))];
    if (holders_[static_cast<size_t>(page)] > 1) return;
    const int32_t to = TakePage();
    const size_t bytes = static_cast<size_t>(store_.pages->layout().page_bytes);
    for (const KVLayerPages& layer : store_.pages->spec().layers) {
      char* const tiles = static_cast<char*>(layer.tiles);
      std::memcpy(tiles + static_cast<size_t>(to) * bytes, tiles + static_cast<size_t>(page) * bytes, bytes);
      std::memset(tiles + static_cast<size_t>(page) * bytes, 0xFF, bytes);
    }
    GiveBack(page);
    page = to;
  }

  void Compare() {
    const Member& member = Any();
    const int64_t kv_len = static_cast<int64_t>(member.names.size());
    const int64_t q_len = std::min<int64_t>(kv_len, random_.OneIn(3) ? 40 : random_.Int(1, 6));
    Mask mask;
    if (random_.OneIn(3)) mask.window = random_.Int(1, 200);
    const int64_t layer = random_.Int(0, 1);
    const internal::Attended expected = internal::AttendNames(spec_, member.names, layer, q_len, mask);
    const GuardedArray<int32_t> ids(member.pages);
    SequenceSpec sequence;
    sequence.q_len = q_len;
    sequence.kv_len = kv_len;
    sequence.page_ids = {ids.data(), ids.size()};
    AttentionArgs args;
    args.pages = store_.pages.get();
    args.layer = layer;
    const internal::Attended got = internal::Run(internal::SpecFor(spec_, mask), sequence, args);
    ASSERT_TRUE(internal::Succeeds(expected.status));
    ASSERT_TRUE(internal::Succeeds(got.status));
    EXPECT_EQ(expected.out, got.out) << q_len << " rows over " << kv_len << " keys";
  }

  Random random_;
  Pages kind_;
  KVCacheSpec spec_;  // heads and dims, for the rows
  int64_t page_tokens_ = 0;
  PagedMemory store_;
  std::set<int32_t> free_;
  std::vector<int> holders_;  // of each page
  std::vector<Member> members_;
  int64_t next_name_ = 1;
};

TEST(KVPagesFuzz, AnEngineAtRandom) {
  const char* const text = std::getenv("HEADLANE_FUZZ_SECONDS");
  const double seconds = text == nullptr ? 0 : std::strtod(text, nullptr) / 12;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  const char* const first = std::getenv("HEADLANE_FUZZ_FIRST_SEED");
  // Seeds name what they test, so that any of them can be the first.
  struct Kind {
    Pages kind;
    DType dtype;
    int64_t page_tokens;
  };
  std::vector<Kind> kinds;
  for (const Pages kind : {Pages::kTiles, Pages::kTokenRows, Pages::kHeadRows}) {
    for (const DType dtype : internal::kEveryDType) {
      if (kind != Pages::kTiles && IsQuantized(dtype)) continue;
      for (const int64_t page_tokens : {16, 64, 9}) {
        if (kind != Pages::kTiles || page_tokens % 16 == 0) kinds.push_back({kind, dtype, page_tokens});
      }
    }
  }
  const uint64_t first_seed = first == nullptr ? 0 : std::strtoull(first, nullptr, 10);
  for (uint64_t seed = first_seed; (seed < first_seed + kinds.size() || elapsed() < seconds) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Kind& kind = kinds[static_cast<size_t>(seed % kinds.size())];
    Engine engine(seed + 100, kind.kind, kind.dtype, kind.page_tokens);
    for (int step = 0; step < 150 && !HasFailure(); ++step) engine.Step();
  }
}

// Page numbers of all kinds, too few of them, slots from anywhere: refused exactly when they have to be, and otherwise
// nothing but what they name is read or written, which guard pages around everything watch.
TEST(KVPagesFuzz, RandomTablesAreReadOrRefused) {
  Random random(7);
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    const Pages kind = random.Pick<Pages>({Pages::kTiles, Pages::kTokenRows, Pages::kHeadRows});
    KVCacheSpec heads;
    heads.num_kv_heads = random.Int(1, 2);
    heads.qk_dim = random.Int(1, 20);
    heads.v_dim = random.OneIn(2) ? 16 : random.Int(1, 20);
    KVPagesSpec spec;
    spec.num_kv_heads = heads.num_kv_heads;
    spec.qk_dim = heads.qk_dim;
    spec.v_dim = heads.v_dim;
    spec.page_tokens = kind == Pages::kTiles ? 16 * random.Int(1, 3) : random.Int(1, 40);
    spec.num_pages = random.Int(1, 6);
    PagedMemory store = MakePagedMemory(spec, kind, 1);
    const int64_t num_slots = spec.num_pages * spec.page_tokens;

    // Slots: some of all, in order or not, sometimes one that is wrong or named twice.
    std::vector<int64_t> slots, names;
    for (int64_t slot = 0; slot < num_slots; ++slot) slots.push_back(slot);
    if (random.OneIn(2)) {
      for (size_t i = slots.size(); i > 1; --i) {
        std::swap(slots[i - 1], slots[static_cast<size_t>(random.Int(0, static_cast<int64_t>(i) - 1))]);
      }
    }
    for (const int64_t slot : slots) names.push_back(slot);
    const internal::TokenRows rows(heads, 0, names);
    std::vector<int64_t> wrong = slots;
    wrong[static_cast<size_t>(random.Int(0, num_slots - 1))] =
        random.Pick<int64_t>({num_slots, -2, -1000000, num_slots + random.Int(0, 1 << 30)});
    ASSERT_EQ(store.pages->Write(0, rows.k_view(), rows.v_view(), wrong).code(), StatusCode::kOutOfRange);
    if (num_slots > 1) {
      wrong = slots;
      const size_t at = static_cast<size_t>(random.Int(0, num_slots - 2));
      wrong[at] = wrong[static_cast<size_t>(random.Int(static_cast<int64_t>(at) + 1, num_slots - 1))];
      ASSERT_EQ(store.pages->Write(0, rows.k_view(), rows.v_view(), wrong).code(), StatusCode::kInvalidArgument);
    }
    ASSERT_TRUE(internal::Succeeds(store.pages->Write(0, rows.k_view(), rows.v_view(), slots)));

    const int64_t num_ids = random.Int(0, 8);
    std::vector<int32_t> ids;
    ids.reserve(static_cast<size_t>(num_ids));
    for (int64_t i = 0; i < num_ids; ++i) {
      ids.push_back(static_cast<int32_t>(random.OneIn(12) ? random.Int(-3, spec.num_pages + 2)
                                                          : random.Int(0, spec.num_pages - 1)));
    }
    const int64_t kv_len = random.Int(0, num_ids * spec.page_tokens + (random.OneIn(8) ? 20 : 0));
    const int64_t q_len = std::min<int64_t>(kv_len, random.Int(1, 12));
    Mask mask;
    if (random.OneIn(2)) mask.window = random.Int(1, 40);
    const int64_t first_seen = mask.window > 0 ? std::max<int64_t>(0, kv_len - q_len - mask.window + 1) : 0;
    const int64_t wanted = (kv_len + spec.page_tokens - 1) / spec.page_tokens;
    bool valid = wanted <= num_ids;
    std::vector<int64_t> expected_names;
    for (int64_t i = 0; valid && i < wanted; ++i) {
      const int32_t page = ids[static_cast<size_t>(i)];
      const bool is_seen = q_len > 0 && (i + 1) * spec.page_tokens > first_seen;
      valid = page < spec.num_pages && (page >= 0 || (page == -1 && !is_seen));
    }
    for (int64_t token = 0; valid && token < kv_len; ++token) {
      // What is not seen may be anything.
      const int32_t page = std::max(ids[static_cast<size_t>(token / spec.page_tokens)], 0);
      expected_names.push_back(page * spec.page_tokens + token % spec.page_tokens);
    }
    const GuardedArray<int32_t> list(ids);
    SequenceSpec sequence;
    sequence.q_len = q_len;
    sequence.kv_len = kv_len;
    sequence.page_ids = {list.data(), list.size()};
    AttentionArgs args;
    args.pages = store.pages.get();
    const internal::Attended got = internal::Run(internal::SpecFor(heads, mask), sequence, args);
    ASSERT_EQ(got.status.ok(), valid) << got.status.c_str();
    if (!valid) {
      ++refused;
      ASSERT_EQ(got.status.code(), StatusCode::kOutOfRange);
      continue;
    }
    ++accepted;
    ASSERT_EQ(internal::AttendNames(heads, expected_names, 0, q_len, mask).out, got.out);
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(refused, 150);
}

}  // namespace
}  // namespace headlane::testing
