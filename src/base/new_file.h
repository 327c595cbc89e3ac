// A file that replaces another one when it is complete, and not before.
//
// Separate from what is written into it: saved caches (kv), saved sessions and packed weights (decoder) are all files
// that a reader may open, and a program may be killed, at any time. In the header, because the decoder is a library of
// its own.
#ifndef HEADLANE_SRC_BASE_NEW_FILE_H_
#define HEADLANE_SRC_BASE_NEW_FILE_H_

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "headlane/status.h"

#if defined(__unix__) || defined(__APPLE__)
#define HEADLANE_IS_POSIX 1
#include <unistd.h>
#else
#define HEADLANE_IS_POSIX 0
#endif

namespace headlane::internal {

// "`what` '`path`': what the error number means". Codes: NotFound, ResourceExhausted (no room on the disk or in
// memory), else FailedPrecondition.
inline Status FileError(const char* what, const char* path, int error) noexcept {
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

class NewFile {
 public:
  NewFile() = default;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  // Nothing is left of a file that was not finished.
  ~NewFile() {
    if (file_ != nullptr) (void)std::fclose(file_);
    if (!beside_.empty()) (void)std::remove(beside_.c_str());
  }

  // Opens a file of a name of its own beside `path`, or beside what `path` is a symbolic link to. Errors:
  // InvalidArgument (no name), FailedPrecondition (what is there is no regular file: nothing replaces a device, a pipe
  // or a folder), and as FileError.
  Status Create(const char* path) noexcept {
    if (path == nullptr || path[0] == '\0') {
      return MakeStatus(StatusCode::kInvalidArgument, "the path of the file to write is %s",
                        path == nullptr ? "null" : "empty");
    }
    try {
      return CreateBeside(path);
    } catch (const std::bad_alloc&) {
      return MakeStatus(StatusCode::kResourceExhausted, "'%s': the system has no memory for a name beside it", path);
    }
  }

  // As KVSink::write, with a NewFile as context.
  static Status Write(void* context, const void* data, int64_t bytes) noexcept {
    auto& file = *static_cast<NewFile*>(context);
    const auto size = static_cast<size_t>(bytes);
    if (file.file_ == nullptr) return NotOpen();
    return std::fwrite(data, 1, size, file.file_) == size ? OkStatus()
                                                          : FileError("can't write", file.path_.c_str(), errno);
  }

  // What was written is on the disk then, where the system can say so, and has the name.
  Status Finish() noexcept {
    if (file_ == nullptr) return NotOpen();
    const bool flushed = std::fflush(file_) == 0 && Synchronise();
    const int error = errno;
    const bool closed = std::fclose(file_) == 0;
    file_ = nullptr;
    if (!flushed || !closed) return FileError("can't write", path_.c_str(), flushed ? errno : error);
    if (std::rename(beside_.c_str(), path_.c_str()) != 0) return FileError("can't replace", path_.c_str(), errno);
    beside_.clear();
    return OkStatus();
  }

 private:
  static Status NotOpen() noexcept { return MakeStatus(StatusCode::kInternal, "a new file was not created"); }

  Status CreateBeside(const char* path) {
    namespace fs = std::filesystem;
    std::error_code error;
    fs::path target = path;
    constexpr int kMostLinks = 40;  // as Linux follows
    for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(target, error)); ++i) {
      const fs::path link = fs::read_symlink(target, error);
      if (error) return FileError("can't follow the link", path, error.value());
      target = link.is_absolute() ? link : target.parent_path() / link;
    }
    const fs::file_status there = fs::status(target, error);
    if (fs::is_symlink(fs::symlink_status(target, error))) return FileError("can't follow the link", path, ELOOP);
    if (fs::exists(there) && !fs::is_regular_file(there)) {
      return MakeStatus(StatusCode::kFailedPrecondition, "can't replace '%s': it is no regular file", path);
    }
    path_ = target.string();
#if HEADLANE_IS_POSIX
    const auto process = static_cast<long long>(::getpid());
#else
    const long long process = 0;
#endif
    static std::atomic<unsigned> count{0};
    // Only what a killed process left behind can be in the way.
    for (int tries = 0; tries < 100 && file_ == nullptr; ++tries) {
      beside_ = path_ + "." + std::to_string(process) + "." +
                std::to_string(count.fetch_add(1, std::memory_order_relaxed)) + ".part";
      file_ = std::fopen(beside_.c_str(), "wbx");
      if (file_ == nullptr && errno != EEXIST) break;
    }
    if (file_ == nullptr) {
      const int why = errno;
      const Status status = FileError("can't create", beside_.c_str(), why);
      beside_.clear();  // it is somebody else's
      return status;
    }
    if (fs::exists(there)) fs::permissions(beside_, there.permissions(), error);  // as good as it can be had
    return OkStatus();
  }

  bool Synchronise() noexcept {
#if HEADLANE_IS_POSIX
    return ::fsync(fileno(file_)) == 0;
#else
    return true;
#endif
  }

  std::string path_, beside_;
  std::FILE* file_ = nullptr;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_BASE_NEW_FILE_H_
