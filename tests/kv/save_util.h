// Saved caches in memory: what the tests of saving and restoring have in common.
#ifndef HEADLANE_TESTS_KV_SAVE_UTIL_H_
#define HEADLANE_TESTS_KV_SAVE_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "headlane/kv_cache.h"
#include "headlane/kv_file.h"
#include "kv/checksum.h"
#include "kv/kv_test_util.h"
#include "kv/save_format.h"

namespace headlane::internal {

using Bytes = std::vector<std::byte>;

// A sink and a source over bytes. The n-th call fails, counted from 1; 0: none does.
struct MemoryStream {
  Bytes bytes;
  size_t at = 0;
  int64_t fails_at = 0;
  int64_t num_calls = 0;

  static Status Failure() { return MakeStatus(StatusCode::kCancelled, "this call was to fail"); }
  static Status Write(void* context, const void* data, int64_t n) noexcept {
    auto& stream = *static_cast<MemoryStream*>(context);
    if (++stream.num_calls == stream.fails_at) return Failure();
    const auto* const begin = static_cast<const std::byte*>(data);
    stream.bytes.insert(stream.bytes.end(), begin, begin + n);
    return OkStatus();
  }
  static Status Read(void* context, void* data, int64_t n) noexcept {
    auto& stream = *static_cast<MemoryStream*>(context);
    if (++stream.num_calls == stream.fails_at) return Failure();
    if (static_cast<size_t>(n) > stream.bytes.size() - stream.at) {
      return MakeStatus(StatusCode::kDataLoss, "the data ends");
    }
    std::memcpy(data, stream.bytes.data() + stream.at, static_cast<size_t>(n));
    stream.at += static_cast<size_t>(n);
    return OkStatus();
  }
  KVSink sink() { return {this, &Write}; }
  KVSource source() { return {this, &Read}; }
};

inline Bytes Saved(const KVCache& cache, const std::vector<SequenceId>& ids) {
  MemoryStream stream;
  EXPECT_TRUE(Succeeds(SaveSequences(cache, ids, stream.sink())));
  // What is told beforehand is what is written.
  const Result<int64_t> told = SavedBytes(cache, ids);
  EXPECT_TRUE(Succeeds(told.status()));
  EXPECT_EQ(*told, static_cast<int64_t>(stream.bytes.size()));
  return stream.bytes;
}
inline Bytes SavedAll(const KVCache& cache) {
  const Result<std::vector<SequenceId>> ids = AllSequences(cache);
  EXPECT_TRUE(Succeeds(ids.status()));
  return Saved(cache, *ids);
}

inline Result<std::vector<RestoredSequence>> Restore(KVCache& cache, const Bytes& bytes) {
  MemoryStream stream{bytes};
  Result<std::vector<RestoredSequence>> restored = RestoreSequences(cache, stream.source());
  if (restored.ok()) {
    EXPECT_EQ(stream.at, bytes.size());
  }
  return restored;
}
// The ids of a restoration that must succeed.
inline std::vector<SequenceId> Restored(KVCache& cache, const Bytes& bytes) {
  const Result<std::vector<RestoredSequence>> restored = Restore(cache, bytes);
  EXPECT_TRUE(Succeeds(restored.status()));
  std::vector<SequenceId> ids;
  if (restored.ok()) {
    for (const RestoredSequence& sequence : *restored) ids.push_back(sequence.id);
  }
  return ids;
}

// A section of saved bytes: where its payload begins, and how long it is.
struct Section {
  SavedKind kind;
  size_t begin, bytes;
};
inline std::vector<Section> SectionsOf(const Bytes& bytes) {
  std::vector<Section> sections;
  for (size_t at = sizeof(SavedPrologue); at + sizeof(SavedFrame) <= bytes.size();) {
    SavedFrame frame;
    std::memcpy(&frame, &bytes[at], sizeof(frame));
    sections.push_back({static_cast<SavedKind>(frame.kind), at + sizeof(frame), static_cast<size_t>(frame.bytes)});
    at += sizeof(frame) + sections.back().bytes + sizeof(uint64_t);
  }
  return sections;
}

// Makes the checksums of all sections right, so that what is wrong has to be seen elsewhere. `sections`: of the bytes
// before they were changed.
inline void MendChecksums(const std::vector<Section>& sections, Bytes* bytes) {
  Checksum sum;
  size_t done = 0;
  for (const Section& section : sections) {
    const size_t end = section.begin + section.bytes;
    if (end + sizeof(uint64_t) > bytes->size()) return;
    sum.Add(bytes->data() + done, static_cast<int64_t>(end - done));
    const uint64_t value = sum.Value();
    std::memcpy(bytes->data() + end, &value, sizeof(value));
    done = end;
  }
}

// What a refused call must leave as it is: the counts, each sequence's own, and which pages and ids come next. Bytes of
// all sequences are compared as they would be saved.
struct CacheState {
  explicit CacheState(const KVCache& cache) : usage(cache.usage()), saved(SavedAll(cache)) {}
  KVCacheUsage usage;
  Bytes saved;
};
inline ::testing::AssertionResult Unchanged(const KVCache& cache, const CacheState& before) {
  const KVCacheUsage usage = cache.usage();
  if (usage.used_pages != before.usage.used_pages || usage.used_bytes != before.usage.used_bytes ||
      usage.free_bytes != before.usage.free_bytes || usage.num_sequences != before.usage.num_sequences ||
      usage.num_tokens != before.usage.num_tokens) {
    return ::testing::AssertionFailure() << "counts differ: " << usage.used_pages << " pages in use, were "
                                         << before.usage.used_pages << "; " << usage.num_sequences
                                         << " sequences, were " << before.usage.num_sequences;
  }
  if (SavedAll(cache) != before.saved) return ::testing::AssertionFailure() << "contents differ";
  return ::testing::AssertionSuccess();
}

}  // namespace headlane::internal

#endif  // HEADLANE_TESTS_KV_SAVE_UTIL_H_
