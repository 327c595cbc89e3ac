// Packed weights in a file of our own, so that the next start maps them instead of packing them again.
//
//   header   80 bytes, see packed_file.cc: magic, version, what model it was made from, hashes
//   table    one entry per layer: layout, offset, bytes, hash
//   layers   as Linear::packed() gave them, each at a multiple of 4096
//
// All numbers little-endian. It is a cache and not trusted: whatever does not agree to the last number with what the
// reader knows beforehand is a reason to make it anew, and no offset or size of the file is ever used.
//
// Separate from loading, which decides what is in it. Called by llama_weights.cc.
#ifndef HEADLANE_SRC_DECODER_PACKED_FILE_H_
#define HEADLANE_SRC_DECODER_PACKED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "decoder/mapped_file.h"
#include "headlane/executor.h"
#include "headlane/status.h"

namespace headlane::internal {

// The model file that weights were packed from.
struct ModelStamp {
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970
  uint64_t hash = 0;        // HashBytes of all of it
};

// What one layer must have.
struct PackedEntry {
  uint64_t layout = 0;  // Linear::PackedLayout
  int64_t bytes = 0;
};

// Not cryptographic: finds damage and mix-ups. The same for any number of workers. Allocates. Threads: the executor's.
uint64_t HashBytes(std::span<const uint8_t> bytes, Executor& executor);

class PackedFile {
 public:
  // Maps and checks a file. Errors: NotFound (there is none), FailedPrecondition (made from another model file, or
  // another layout: says which), Unsupported (version), DataLoss (truncated or damaged), and those of MappedFile.
  static Result<PackedFile> Open(const std::string& path, const ModelStamp& stamp,
                                 std::span<const PackedEntry> expected, Executor& executor);

  // 64-byte aligned, valid as long as the mapping.
  std::span<const std::byte> entry(size_t i) const noexcept { return entries_[i]; }
  MappedFile TakeFile() && noexcept { return std::move(file_); }

 private:
  MappedFile file_;
  std::vector<std::span<const std::byte>> entries_;
};

// Writes a file that appears under its name when it is complete. Requires: data[i] has entries[i].bytes bytes. Errors:
// FailedPrecondition (with the system's reason).
Status WritePackedFile(const std::string& path, const ModelStamp& stamp, std::span<const PackedEntry> entries,
                       std::span<const std::span<const std::byte>> data, Executor& executor);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_PACKED_FILE_H_
