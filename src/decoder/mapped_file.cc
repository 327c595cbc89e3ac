#include "decoder/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

namespace headlane {
namespace {

Status SystemError(const char* what, const std::string& path, int error) {
  const StatusCode code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound : StatusCode::kFailedPrecondition;
  return MakeStatus(code, "%s '%s': %s", what, path.c_str(), std::generic_category().message(error).c_str());
}

// The descriptor is only needed until the mapping exists.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // Non-blocking, so that a pipe without a writer is refused below instead of waited for.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd() < 0) return SystemError("can't open", path, errno);
  struct stat info;
  if (::fstat(file.fd(), &info) != 0) return SystemError("can't look at", path, errno);
  if (!S_ISREG(info.st_mode)) return MakeStatus(StatusCode::kInvalidArgument, "'%s' is no regular file", path.c_str());
  if (info.st_size <= 0) return MakeStatus(StatusCode::kDataLoss, "'%s' is empty", path.c_str());
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size > PTRDIFF_MAX) {
    return MakeStatus(StatusCode::kUnsupported, "'%s' has %llu bytes, and %llu can be mapped here", path.c_str(),
                      static_cast<unsigned long long>(size), static_cast<unsigned long long>(PTRDIFF_MAX));
  }
  void* data = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) return SystemError("can't map", path, errno);
  MappedFile mapped;
  mapped.data_ = static_cast<const uint8_t*>(data);
  mapped.size_ = static_cast<size_t>(size);
  mapped.modified_ns_ = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      modified_ns_(std::exchange(other.modified_ns_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(modified_ns_, other.modified_ns_);
  return *this;
}

void MappedFile::Release() const noexcept {
  // Only advice: what is mapped stays readable either way.
  if (data_ != nullptr) (void)::madvise(const_cast<uint8_t*>(data_), size_, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace headlane
