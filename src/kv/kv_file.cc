// The public face of saving and restoring, and files as sinks and sources.
#include "headlane/kv_file.h"

#include <cerrno>
#include <cstdio>

#include "base/new_file.h"
#include "kv/kv_cache_impl.h"

namespace headlane {
namespace {

using internal::FileError;

// A file to read; what a call leaves in errno is read at once.
class File {
 public:
  explicit File(const char* path) noexcept : path_(path), file_(std::fopen(path, "rb")) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (file_ != nullptr) (void)std::fclose(file_);
  }

  bool is_open() const noexcept { return file_ != nullptr; }

  // As KVSource::read, with a File as context.
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

 private:
  const char* path_;
  std::FILE* file_;
  int64_t num_read_ = 0;
};

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
  internal::NewFile file;
  HEADLANE_RETURN_IF_ERROR(file.Create(path));
  HEADLANE_RETURN_IF_ERROR(SaveSequences(cache, sequences, KVSink{&file, &internal::NewFile::Write}));
  return file.Finish();
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
  File file(path);
  if (!file.is_open()) return FileError("can't open", path, errno);
  return cache.impl().Restore(KVSource{&file, &File::Read}, {&file, &File::CheckEnd});
}

}  // namespace headlane
