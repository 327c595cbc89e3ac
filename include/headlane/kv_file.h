// Sequences of a KVCache as bytes: to a stream of the caller's or to a file, and back into a cache of the same kind.
//
// What is saved are the stored bytes of committed tokens and where they stand, so that attention over a restored
// sequence has the bits of attention over the saved one. A page that several of the saved sequences share is saved
// once, and shared again afterwards. Token ids (KVCache::SetTokens) and what windows have passed come along; reserved
// tokens do not, as with Fork. The same tokens give the same bytes, whatever stood in their pages before.
//
// What is read is not trusted: every number is checked before it is used, every section has a checksum, memory is taken
// as far as the cache's spec allows, and nothing of the cache changes unless all of it is good. Checksums tell damage,
// not forgery. Beyond them, what no call of KVCache could have stored is refused:
//   a page without a token, shared at two places, or behind different pages; ids behind a token without; a page that
//   its window would have passed, or that is missing although it has not; a last page longer than its sequences
//   bytes of slots, features and tiles that hold no number, other than 0
//   int8 -128; fp8's NaNs and -0; a scale that is negative (but int4's), not finite (but the one NaN, with codes 0,
//   that stands for a row that was not finite), above what 448, 127 or 8 times it would keep finite, below 2^-100, or
//   of more bits than such scales have; codes other than 0 of rows with scale 0
// Elements of f32, f16 and bf16 may be any bits.
//
// Format, version 1, in the machine's byte order, which the mark behind the magic tells:
//   "HLKVSEQ\n", uint32 0x01020304, uint32 format version
//   sections: int64 kind, int64 bytes, that many bytes, uint64 checksum of all before it since the beginning
//     1 spec      int64 numerics version, then what kv/save_format.h lists, number of sequences last
//     2 groups    per layer group: int64 window, num_always_visible, max_in_flight, number of pages; int32 group of
//                 each layer
//     3 sequence  int64 id, length; int64 first kept token of each group; int32 page numbers per group, -1 where passed
//     4 page      int64 number of ids; int32 ids; tiles of each layer of the group: per head K's, then V's, up to the
//                 last one with a token
//     5 end
// The groups' pages are numbered in the order in which the sequences first name them. How many tokens a page has
// follows from the longest of them.
#ifndef HEADLANE_KV_FILE_H_
#define HEADLANE_KV_FILE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "headlane/kv_cache.h"
#include "headlane/status.h"

namespace headlane {

inline constexpr uint32_t kKVFileVersion = 1;

// Takes the next `bytes` bytes. An error ends the saving and is what the caller gets. `write` may read the cache, and
// must not change it: what is being saved is held by pointers. The same of `read` below, which must not even read it.
struct KVSink {
  void* context = nullptr;
  Status (*write)(void* context, const void* data, int64_t bytes) noexcept = nullptr;
};

// Gives the next `bytes` bytes, all of them. An error, as at the end of the data, ends the restoring and is what the
// caller gets.
struct KVSource {
  void* context = nullptr;
  Status (*read)(void* context, void* data, int64_t bytes) noexcept = nullptr;
};

struct RestoredSequence {
  SequenceId saved;  // its id in the cache that it was saved from
  SequenceId id;     // its id from now on
};

// Saves the sequences in the order given; one that is named twice is restored as two. Errors: NotFound,
// InvalidArgument (no callback), ResourceExhausted (the system's memory), those of the sink. Allocation: 12 bytes per
// page of the pool, as far as pages are saved, and one tile. Threads: as reading of the cache.
Status SaveSequences(const KVCache& cache, std::span<const SequenceId> sequences, const KVSink& sink) noexcept;
// To a file, which appears under its name when it is complete: until then it is written beside it. A symbolic link is
// followed. Errors: further NotFound (its folder), ResourceExhausted (disk), FailedPrecondition (what is there is no
// regular file; anything else), with the system's reason.
Status SaveSequences(const KVCache& cache, std::span<const SequenceId> sequences, const char* path) noexcept;

// The sequences of a cache, in an order of its own. Errors: ResourceExhausted.
Result<std::vector<SequenceId>> AllSequences(const KVCache& cache) noexcept;

// How many bytes SaveSequences would write. Errors: NotFound, ResourceExhausted.
Result<int64_t> SavedBytes(const KVCache& cache, std::span<const SequenceId> sequences) noexcept;

// Adds the saved sequences to those that the cache has, in the order in which they were saved. The number of its pages
// and of its sequences, and its max_positions, may differ from those of the cache that was saved. Errors:
// InvalidArgument (another spec: names the field and both numbers; no callback), Unsupported (byte order, format or
// numerics version), ResourceExhausted (pages, sequences; the system's memory), OutOfRange (max_positions), DataLoss
// (damaged, truncated, hostile), those of the source. Nothing changed then. Allocation: 20 bytes per saved page, and
// the result.
Result<std::vector<RestoredSequence>> RestoreSequences(KVCache& cache, const KVSource& source) noexcept;
// From a file, which must end where the saved sequences end. Errors: further NotFound and FailedPrecondition, with the
// system's reason.
Result<std::vector<RestoredSequence>> RestoreSequences(KVCache& cache, const char* path) noexcept;

}  // namespace headlane

#endif  // HEADLANE_KV_FILE_H_
