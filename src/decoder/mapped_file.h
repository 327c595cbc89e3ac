// A whole regular file, mapped for reading.
//
// Separate from the readers so that they work on any span of bytes: a test hands them a vector. Used by GgufFile::Open.
#ifndef HEADLANE_SRC_DECODER_MAPPED_FILE_H_
#define HEADLANE_SRC_DECODER_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "headlane/status.h"

namespace headlane {

// The mapping lives as long as the object; moving the object keeps its address. A file that another process shortens
// while it is mapped raises SIGBUS on access, as with every mapping: replace model files, don't rewrite them in place.
class MappedFile {
 public:
  // Maps `path` read-only. Errors: kNotFound (no such file), kInvalidArgument (a folder, pipe or device),
  // kDataLoss (empty), kUnsupported (larger than the address space), kFailedPrecondition (may not be read, or mmap
  // failed; with the system's reason).
  static Result<MappedFile> Open(const std::string& path);

  MappedFile() noexcept = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const uint8_t> bytes() const noexcept { return {data_, size_}; }
  int64_t modified_ns() const noexcept { return modified_ns_; }  // time of the last change, since 1970
  // Gives the memory that pages of the file take in this process back; they are read again when they are used.
  void Release() const noexcept;

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  int64_t modified_ns_ = 0;
};

}  // namespace headlane

#endif  // HEADLANE_SRC_DECODER_MAPPED_FILE_H_
