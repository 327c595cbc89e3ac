// The public face of saving and restoring, and files as sinks and sources.
#include "headlane/kv_file.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>

#include "kv/kv_cache_impl.h"

#if defined(__unix__) || defined(__APPLE__)
#define HEADLANE_IS_POSIX 1
#include <unistd.h>
#else
#define HEADLANE_IS_POSIX 0
#endif

namespace headlane {
namespace {

Status FileError(const char* what, const char* path, int error) {
  StatusCode code = StatusCode::kFailedPrecondition;
  if (error == ENOENT || error == ENOTDIR) code = StatusCode::kNotFound;
  if (error == ENOSPC || error == EFBIG || error == ENOMEM) code = StatusCode::kResourceExhausted;
#if HEADLANE_IS_POSIX
  if (error == EDQUOT) code = StatusCode::kResourceExhausted;
#endif
  try {
    return MakeStatus(code, "%s '%s': %s", what, path, std::generic_category().message(error).c_str());
  } catch (const std::bad_alloc&) {
    return MakeStatus(code, "%s '%s': error %d", what, path, error);
  }
}

// What is written is on the disk then, where the system can say so.
bool Synchronise(std::FILE* file) {
#if HEADLANE_IS_POSIX
  return ::fsync(fileno(file)) == 0;
#else
  return true;
#endif
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
    const bool flushed = std::fflush(file_) == 0 && Synchronise(file_);
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
#if HEADLANE_IS_POSIX
  const auto process = static_cast<long long>(::getpid());
#else
  const long long process = 0;
#endif
  try {
    return std::string(path) + "." + std::to_string(process) + "." +
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
