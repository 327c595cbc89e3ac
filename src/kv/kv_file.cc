// The public face of saving and restoring, and files as sinks and sources.
#include "headlane/kv_file.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <new>
#include <string>

#include "kv/kv_cache_impl.h"

namespace headlane {
namespace {

// strerror_r gives its text (GNU), or a number, and the text in the buffer (POSIX).
[[maybe_unused]] const char* TextOf(const char* text, const char* /*buffer*/) { return text; }
[[maybe_unused]] const char* TextOf(int error, const char* buffer) { return error == 0 ? buffer : "unknown error"; }

Status FileError(const char* what, const char* path, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG || error == ENOMEM;
  const StatusCode code = missing ? StatusCode::kNotFound
                          : full  ? StatusCode::kResourceExhausted
                                  : StatusCode::kFailedPrecondition;
  char buffer[128];
  return MakeStatus(code, "%s '%s': %s", what, path, TextOf(strerror_r(error, buffer, sizeof(buffer)), buffer));
}

// An open file; what a call leaves in errno is read at once.
class File {
 public:
  File(const char* path, const char* mode) noexcept : path_(path), file_(std::fopen(path, mode)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (file_ != nullptr) (void)std::fclose(file_);
  }

  bool is_open() const noexcept { return file_ != nullptr; }

  // As KVSink::write, with a File as context.
  static Status Write(void* context, const void* data, int64_t bytes) noexcept {
    auto& file = *static_cast<File*>(context);
    if (std::fwrite(data, 1, static_cast<size_t>(bytes), file.file_) == static_cast<size_t>(bytes)) return OkStatus();
    return FileError("can't write", file.path_, errno);
  }
  // As KVSource::read.
  static Status Read(void* context, void* data, int64_t bytes) noexcept {
    auto& file = *static_cast<File*>(context);
    const auto got = static_cast<int64_t>(std::fread(data, 1, static_cast<size_t>(bytes), file.file_));
    file.num_read_ += got;
    if (got == bytes) return OkStatus();
    if (std::ferror(file.file_) != 0) return FileError("can't read", file.path_, errno);
    return MakeStatus(StatusCode::kDataLoss, "'%s' ends after %lld bytes, %lld more are missing", file.path_,
                      static_cast<long long>(file.num_read_), static_cast<long long>(bytes - got));
  }
  static Status CheckEnd(void* context) noexcept {
    auto& file = *static_cast<File*>(context);
    if (std::fgetc(file.file_) == EOF && std::ferror(file.file_) == 0) return OkStatus();
    return MakeStatus(StatusCode::kDataLoss, "'%s' goes on behind the saved sequences, which end after %lld bytes",
                      file.path_, static_cast<long long>(file.num_read_));
  }

  // Everything is on the disk then.
  Status Close() noexcept {
    const bool flushed = std::fflush(file_) == 0 && ::fsync(fileno(file_)) == 0;
    const int error = errno;
    const bool closed = std::fclose(file_) == 0;
    file_ = nullptr;
    if (flushed && closed) return OkStatus();
    return FileError("can't write", path_, flushed ? errno : error);
  }

 private:
  const char* path_;
  std::FILE* file_;
  int64_t num_read_ = 0;
};

// A name beside `path` that no other call of this or another process uses. Errors: ResourceExhausted.
Result<std::string> NameBeside(const char* path) noexcept {
  static std::atomic<unsigned> count{0};
  try {
    return std::string(path) + "." + std::to_string(::getpid()) + "." +
           std::to_string(count.fetch_add(1, std::memory_order_relaxed)) + ".part";
  } catch (const std::bad_alloc&) {
    return MakeStatus(StatusCode::kResourceExhausted, "'%s': the system has no memory for a name beside it", path);
  }
}

Status CheckPath(const char* path) {
  if (path != nullptr && path[0] != '\0') return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "KV cache: the path is %s", path == nullptr ? "null" : "empty");
}

}  // namespace

Status SaveSequences(const KVCache& cache, std::span<const SequenceId> sequences, const KVSink& sink) noexcept {
  return cache.impl().Save(sequences, sink);
}

Status SaveSequences(const KVCache& cache, std::span<const SequenceId> sequences, const char* path) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckPath(path));
  HEADLANE_ASSIGN_OR_RETURN(const std::string beside, NameBeside(path));
  File file(beside.c_str(), "wbx");
  if (!file.is_open()) return FileError("can't create", beside.c_str(), errno);
  Status status = SaveSequences(cache, sequences, KVSink{&file, &File::Write});
  if (status.ok()) status = file.Close();
  if (status.ok() && std::rename(beside.c_str(), path) != 0) status = FileError("can't replace", path, errno);
  if (!status.ok()) (void)std::remove(beside.c_str());
  return status;
}

Result<std::vector<SequenceId>> AllSequences(const KVCache& cache) noexcept { return cache.impl().AllSequences(); }

Result<int64_t> SavedBytes(const KVCache& cache, std::span<const SequenceId> sequences) noexcept {
  return cache.impl().SavedBytes(sequences);
}

Result<std::vector<RestoredSequence>> RestoreSequences(KVCache& cache, const KVSource& source) noexcept {
  return cache.impl().Restore(source, {});
}

Result<std::vector<RestoredSequence>> RestoreSequences(KVCache& cache, const char* path) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckPath(path));
  File file(path, "rb");
  if (!file.is_open()) return FileError("can't open", path, errno);
  return cache.impl().Restore(KVSource{&file, &File::Read}, {&file, &File::CheckEnd});
}

}  // namespace headlane
