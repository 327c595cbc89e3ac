// Saved caches that are damaged, cut off, or made to deceive: refused with the cache as it was, or, where only contents
// changed that may be anything, taken as what they say, without harm to anything else.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headlane/kv_cache.h"
#include "headlane/kv_file.h"
#include "kv/attend.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_test_util.h"
#include "kv/save_util.h"

namespace headlane::internal {
namespace {

// Small: every byte of what is saved is changed in turn.
struct Small {
  explicit Small(DType k, DType v, bool ring) : cache(MakeCache(SpecFor(k, v, ring))) {
    const SequenceId a = NewSequence(cache);
    EXPECT_TRUE(Succeeds(AppendTokens(cache, a, Names(0, 21))));
    const SequenceId b = *cache.Fork(a, ring ? 20 : 17);
    EXPECT_TRUE(Succeeds(AppendTokens(cache, b, {50})));
    if (!ring) {
      const std::vector<int32_t> ids(18, 3);
      EXPECT_TRUE(Succeeds(cache.SetTokens(a, ids.data(), 18)));
    }
    bytes = Saved(cache, {a, b});
    sections = SectionsOf(bytes);
  }
  static KVCacheSpec SpecFor(DType k, DType v, bool ring) {
    KVCacheSpec spec = SpecOf(k, v, 3, 2, 16, 6);
    spec.num_kv_heads = 1;
    if (ring) spec.groups = {{.window = 3, .num_always_visible = 0, .max_in_flight = 2}};
    return spec;
  }

  KVCache cache;
  Bytes bytes;
  std::vector<Section> sections;
};

// A cache in use, with room for what is restored.
struct Target {
  explicit Target(const KVCacheSpec& spec) : cache(MakeCache(spec)), own(NewSequence(cache)) {
    EXPECT_TRUE(Succeeds(AppendTokens(cache, own, Names(700, 5))));
    before.emplace_back(cache);
  }
  // Restores, takes the sequences away again if there are some, and tells what happened.
  Status Try(const Bytes& bytes) {
    const Result<std::vector<RestoredSequence>> restored = Restore(cache, bytes);
    if (restored.ok()) {
      EXPECT_EQ(cache.usage().used_bytes + cache.usage().free_bytes, cache.usage().limit_bytes);
      for (const RestoredSequence& sequence : *restored) Use(sequence.id);
      // Nobody has touched what belongs to others, and what was saved once can be saved again.
      (void)SavedAll(cache);
      for (const RestoredSequence& sequence : *restored) {
        EXPECT_TRUE(Succeeds(cache.DropSequence(sequence.id)));
      }
    }
    EXPECT_TRUE(Unchanged(cache, before[0]));
    return restored.status();
  }
  // Everything that a sequence is good for. Whether it succeeds depends on what the data said.
  void Use(SequenceId id) {
    const int64_t length = *cache.Length(id);
    Mask mask;
    if (!cache.spec().groups.empty()) mask.window = cache.spec().groups[0].window;
    for (const int64_t q_len : {int64_t{1}, std::min<int64_t>(length, 17)}) {
      if (length > 0) (void)AttendCache(cache, id, 0, q_len, length, mask);
    }
    const Result<SequenceId> fork = cache.Fork(id, length / 2);
    (void)AppendTokens(cache, id, {1});
    (void)cache.Truncate(id, length / 3);
    if (fork.ok()) {
      EXPECT_TRUE(Succeeds(cache.DropSequence(*fork)));
    }
  }

  KVCache cache;
  SequenceId own;
  std::vector<CacheState> before;  // one
};

constexpr std::pair<DType, DType> kPairs[] = {{DType::kF32, DType::kF16},
                                              {DType::kBF16, DType::kI8},
                                              {DType::kI8, DType::kF8E4M3},
                                              {DType::kF8E4M3, DType::kI4},
                                              {DType::kI4, DType::kBF16}};

TEST(KVSaveHostile, EveryChangedByteIsRefused) {
  for (const auto& [k, v] : kPairs) {
    for (const bool ring : {false, true}) {
      const Small small(k, v, ring);
      Target target(small.cache.spec());
      ASSERT_TRUE(Succeeds(target.Try(small.bytes)));
      for (size_t i = 0; i < small.bytes.size(); ++i) {
        // The lowest, the highest, and all bits, by turns.
        Bytes bytes = small.bytes;
        bytes[i] ^= std::byte{static_cast<uint8_t>(i % 3 == 0 ? 0x01 : i % 3 == 1 ? 0x80 : 0xFF)};
        const Status status = target.Try(bytes);
        const bool in_prologue = i < sizeof(SavedPrologue);
        ASSERT_TRUE(status.code() == StatusCode::kDataLoss ||
                    (in_prologue && status.code() == StatusCode::kUnsupported) ||
                    status.code() == StatusCode::kOutOfRange)
            << "byte " << i << ": " << StatusCodeName(status.code()) << " " << status.message();
      }
    }
  }
}

TEST(KVSaveHostile, EveryTruncationIsRefused) {
  for (const auto& [k, v] : kPairs) {
    const Small small(k, v, false);
    Target target(small.cache.spec());
    for (size_t length = 0; length < small.bytes.size(); ++length) {
      ASSERT_TRUE(Fails(target.Try(Bytes(small.bytes.begin(), small.bytes.begin() + static_cast<int64_t>(length))),
                        StatusCode::kDataLoss))
          << length;
    }
  }
}

// With checksums that are right, what is said has to be judged by what it says.
TEST(KVSaveHostile, ForgedBytesAreRefusedOrHarmless) {
  Random random(5);
  int64_t num_refused = 0;
  int64_t num_taken = 0;
  for (const auto& [k, v] : kPairs) {
    for (const bool ring : {false, true}) {
      const Small small(k, v, ring);
      Target target(small.cache.spec());
      for (int trial = 0; trial < 600 && !HasFailure(); ++trial) {
        Bytes bytes = small.bytes;
        const Section& section = random.Pick(small.sections);
        for (int64_t change = random.Int(1, 3); change > 0; --change) {
          const size_t at =
              section.begin - 16 + static_cast<size_t>(random.Int(0, 15 + static_cast<int64_t>(section.bytes)));
          if (random.OneIn(3) && at % 8 == 0) {
            // A number that is somebody's limit.
            const int64_t number =
                random.Pick<int64_t>({-1, 0, 1, 2, 16, 17, std::numeric_limits<int64_t>::max(),
                                      std::numeric_limits<int64_t>::min(), int64_t{1} << 32, random.Int(0, 50)});
            std::memcpy(&bytes[at], &number, std::min(sizeof(number), bytes.size() - at));
          } else {
            bytes[at] = std::byte{static_cast<uint8_t>(random.Bits())};
          }
        }
        MendChecksums(small.sections, &bytes);
        ++(target.Try(bytes).ok() ? num_taken : num_refused);
      }
    }
  }
  EXPECT_GT(num_refused, 1000);
  EXPECT_GT(num_taken, 300);
}

// One thing that is wrong, each by its own check.
constexpr int64_t kLast = -4;  // the last four bytes of a section
struct Forgery {
  const char* what;
  SavedKind kind;
  int64_t index;   // of the sections of that kind
  int64_t at;      // in its payload; negative: in front of it, or kLast
  int64_t number;  // what is written there,
  int64_t bytes;   // in so many bytes
  StatusCode code;
  std::vector<std::string> words;
};
void ExpectRefused(const Small& small, const std::vector<Forgery>& forgeries) {
  Target target(small.cache.spec());
  for (const Forgery& forgery : forgeries) {
    SCOPED_TRACE(forgery.what);
    Bytes bytes = small.bytes;
    int64_t index = forgery.index;
    bool found = false;
    for (const Section& section : small.sections) {
      if (section.kind != forgery.kind || index-- != 0) continue;
      const int64_t at = static_cast<int64_t>(section.begin) + forgery.at +
                         (forgery.at == kLast ? static_cast<int64_t>(section.bytes) : 0);
      std::memcpy(&bytes[static_cast<size_t>(at)], &forgery.number, static_cast<size_t>(forgery.bytes));
      found = true;
    }
    ASSERT_TRUE(found);
    ASSERT_NE(bytes, small.bytes);
    MendChecksums(small.sections, &bytes);
    EXPECT_TRUE(Fails(target.Try(bytes), forgery.code, forgery.words));
  }
}

TEST(KVSaveHostile, EachWrongNumberHasItsRefusal) {
  constexpr auto kDamaged = StatusCode::kDataLoss;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  // Sequence a: id, length 21, first kept 0, pages 0 and 1; b: length 18, pages 0 and 2. Page 0 has 16 ids, page 1
  // has 2.
  const Small full(DType::kF32, DType::kF32, false);
  ExpectRefused(
      full,
      {{"numerics", SavedKind::kSpec, 0, 8 * kNumericsVersionField, 77, 8, StatusCode::kUnsupported, {"77"}},
       {"sequences", SavedKind::kSpec, 0, 8 * kNumSequencesField, kMax, 8, StatusCode::kResourceExhausted, {"7 more"}},
       {"sequences", SavedKind::kSpec, 0, 8 * kNumSequencesField, -1, 8, kDamaged, {"-1"}},
       {"fewer sequences", SavedKind::kSpec, 0, 8 * kNumSequencesField, 1, 8, kDamaged, {"3 pages", "hold 2"}},
       {"more sequences", SavedKind::kSpec, 0, 8 * kNumSequencesField, 3, 8, kDamaged, {"section 4"}},
       {"pages", SavedKind::kGroups, 0, 24, kMax, 8, StatusCode::kResourceExhausted, {"5 are free"}},
       {"pages", SavedKind::kGroups, 0, 24, -1, 8, kDamaged, {"-1 pages"}},
       {"pages", SavedKind::kGroups, 0, 24, 4, 8, kDamaged, {"4 pages", "hold 3"}},
       {"pages", SavedKind::kGroups, 0, 24, 2, 8, kDamaged, {"number"}},
       {"section", SavedKind::kSequence, 0, -16, 4, 8, kDamaged, {"section 4"}},
       {"bytes", SavedKind::kSequence, 0, -8, std::numeric_limits<int64_t>::min(), 8, kDamaged, {"0 or more"}},
       {"bytes", SavedKind::kSequence, 1, -8, -1, 8, kDamaged, {"-1 bytes"}},
       {"bytes", SavedKind::kSequence, 0, -8, kMax, 8, kDamaged, {"more bytes"}},
       {"bytes", SavedKind::kPage, 0, -8, std::numeric_limits<int64_t>::min(), 8, kDamaged, {"0 or more"}},
       {"bytes", SavedKind::kPage, 0, -8, kMax, 8, kDamaged, {"more bytes"}},
       {"length", SavedKind::kSequence, 0, 8, -1, 8, kDamaged, {"-1"}},
       {"length", SavedKind::kSequence, 0, 8, kMax, 8, StatusCode::kOutOfRange, {"max_positions"}},
       {"length", SavedKind::kSequence, 0, 8, 33, 8, kDamaged, {"more bytes"}},
       {"length", SavedKind::kSequence, 0, 8, 16, 8, kDamaged, {"more bytes"}},
       {"last page shorter", SavedKind::kSequence, 0, 8, 20, 8, kDamaged, {"not 0"}},
       {"last page longer, a tile of it", SavedKind::kSequence, 0, 8, 22, 8, StatusCode::kOk, {}},
       {"first kept", SavedKind::kSequence, 0, 16, 1, 8, kDamaged, {"0 .. 0"}},
       {"page", SavedKind::kSequence, 0, 24, 1, 4, kDamaged, {"number"}},
       {"page", SavedKind::kSequence, 0, 24, -1, 4, kDamaged, {"number"}},
       {"page", SavedKind::kSequence, 0, 28, -2, 4, kDamaged, {"number"}},
       {"page", SavedKind::kSequence, 0, 28, 2, 4, kDamaged, {"number"}},
       {"page twice", SavedKind::kSequence, 0, 28, 0, 4, kDamaged, {"shared"}},
       {"page elsewhere", SavedKind::kSequence, 1, 28, 0, 4, kDamaged, {"shared"}},
       {"page elsewhere", SavedKind::kSequence, 1, 24, 1, 4, kDamaged, {"shared"}},
       {"behind others", SavedKind::kSequence, 1, 24, 2, 4, kDamaged, {}},
       {"ids", SavedKind::kPage, 0, 0, 15, 8, kDamaged, {"more bytes"}},
       {"ids", SavedKind::kPage, 0, 0, kMax, 8, kDamaged, {"ids"}},
       {"ids", SavedKind::kPage, 0, 0, -1, 8, kDamaged, {"ids"}},
       {"unused slot", SavedKind::kPage, 1, kLast, 1, 4, kDamaged, {"not 0"}},
       {"end", SavedKind::kEnd, 0, -16, 4, 8, kDamaged, {"section 4"}}});

  // a keeps those from 17 on: page 0 is gone, page 1 is number 0; so is b's.
  const Small ring(DType::kF32, DType::kF32, true);
  ExpectRefused(ring, {{"keeps less", SavedKind::kSequence, 0, 16, 20, 8, kDamaged, {"17 .. 19"}},
                       {"keeps more", SavedKind::kSequence, 0, 16, 16, 8, kDamaged, {"17 .. 19"}},
                       {"keeps", SavedKind::kSequence, 0, 16, kMax, 8, kDamaged, {"17 .. 19"}},
                       {"passed", SavedKind::kSequence, 0, 24, 0, 4, kDamaged, {"page"}},
                       {"ids in a ring", SavedKind::kPage, 0, 0, 1, 8, kDamaged, {"1 ids"}}});
}

// What no append stores in a quantised tile. K tiles [3][16] or [2][16] codes, then 16 scales (int4: of one group).
TEST(KVSaveHostile, QuantizedContents) {
  constexpr auto kDamaged = StatusCode::kDataLoss;
  const auto bits = [](float x) { return static_cast<int64_t>(std::bit_cast<uint32_t>(x)); };
  // Page 1 of a, tokens 16 .. 20; without ids, for b has none: its section begins with their number.
  const auto at = [](const Small& small, int64_t offset) {
    int64_t ids = 0;
    for (const Section& section : small.sections) {
      if (section.kind != SavedKind::kPage) continue;
      std::memcpy(&ids, &small.bytes[section.begin], sizeof(ids));
      break;
    }
    return 8 + 4 * ids + offset;
  };
  const std::vector<std::pair<DType, float>> types = {{DType::kI8, 127.0f}, {DType::kF8E4M3, 448.0f}};
  for (const auto& [dtype, largest_code] : types) {
    const Small small(dtype, DType::kF32, false);
    const float largest =
        std::bit_cast<float>(std::bit_cast<uint32_t>(std::numeric_limits<float>::max() / largest_code) & 0xFFFFFF00u);
    const int64_t code = at(small, 0), scale = at(small, 48);
    const std::vector<int64_t> bad_codes =
        dtype == DType::kI8 ? std::vector<int64_t>{0x80} : std::vector<int64_t>{0x7F, 0xFF, 0x80};
    std::vector<Forgery> forgeries;
    for (const int64_t bad : bad_codes) {
      forgeries.push_back({"code", SavedKind::kPage, 0, code + 5, bad, 1, kDamaged, {"code"}});
    }
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const int64_t bad : {bits(kInfinity), bits(-kInfinity), int64_t{0x7FC00001}, int64_t{0xFFC00000}, bits(-1.0f),
                              bits(-0.0f), bits(1.0f) + 1, bits(largest) + 256, bits(0x1p-101f)}) {
      forgeries.push_back({"scale", SavedKind::kPage, 0, scale + 4 * 7, bad, 4, kDamaged, {"scale"}});
    }
    forgeries.push_back({"codes without", SavedKind::kPage, 0, scale + 4 * 7, 0, 4, kDamaged, {"codes"}});
    forgeries.push_back({"codes of NaN", SavedKind::kPage, 0, scale + 4 * 7, 0x7FC00000, 4, kDamaged, {"codes"}});
    forgeries.push_back(
        {"scale of no token", SavedKind::kPage, 1, 8 + 8 + 48 + 4 * 9, bits(1.0f), 4, kDamaged, {"not 0"}});
    for (const int64_t good : {bits(largest), bits(0x1p-100f), bits(3.0f)}) {
      forgeries.push_back({"good scale", SavedKind::kPage, 0, scale + 4 * 7, good, 4, StatusCode::kOk, {}});
    }
    ExpectRefused(small, forgeries);
  }
  const Small small(DType::kI4, DType::kF32, false);
  const int64_t scale = at(small, 32);
  std::vector<Forgery> forgeries;
  for (const int64_t bad : {0x7F80, 0xFF80, 0x7FC1, 0xFFC0, 0x8000, 0x7E00, 0xFE00, 0x0D7F, 0x8D7F}) {
    forgeries.push_back({"scale", SavedKind::kPage, 0, scale + 2 * 7, bad, 2, kDamaged, {"scale"}});
  }
  for (const int64_t good : {0x7DFF, 0xFDFF, 0x0D80, 0x8D80, 0xBF80}) {
    forgeries.push_back({"good scale", SavedKind::kPage, 0, scale + 2 * 7, good, 2, StatusCode::kOk, {}});
  }
  forgeries.push_back({"codes without", SavedKind::kPage, 0, scale + 2 * 7, 0, 2, kDamaged, {"codes"}});
  forgeries.push_back({"codes of NaN", SavedKind::kPage, 0, scale + 2 * 7, 0x7FC0, 2, kDamaged, {"codes"}});
  // Feature 3 of 3: the upper half of the second line.
  forgeries.push_back({"padding", SavedKind::kPage, 0, at(small, 16 + 4), 0x11, 1, kDamaged, {"not 0"}});
  ExpectRefused(small, forgeries);
}

// The checksum sees every change within a word, in any place, and does not depend on the pieces.
TEST(KVSaveHostile, Checksum) {
  Random random(3);
  Bytes bytes(333);
  for (std::byte& byte : bytes) byte = std::byte{static_cast<uint8_t>(random.Bits())};
  const auto sum = [](const Bytes& of) {
    Checksum checksum;
    checksum.Add(of.data(), static_cast<int64_t>(of.size()));
    return checksum.Value();
  };
  const uint64_t whole = sum(bytes);
  for (int trial = 0; trial < 200; ++trial) {
    Checksum checksum;
    for (int64_t at = 0; at < 333;) {
      const int64_t n = std::min<int64_t>(333 - at, random.Int(0, 70));
      checksum.Add(bytes.data() + at, n);
      at += n;
      if (random.OneIn(3)) (void)checksum.Value();
    }
    ASSERT_EQ(checksum.Value(), whole);
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes changed = bytes;
      changed[i] ^= std::byte{static_cast<uint8_t>(1 << bit)};
      ASSERT_NE(sum(changed), whole);
    }
    Bytes shorter(bytes.begin(), bytes.begin() + static_cast<int64_t>(i));
    ASSERT_NE(sum(shorter), whole);
  }
  // Zeros count.
  EXPECT_NE(sum(Bytes(31)), sum(Bytes(32)));
  EXPECT_NE(sum(Bytes(0)), sum(Bytes(1)));
}

}  // namespace
}  // namespace headlane::internal
