#include "decoder/session_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/new_file.h"
#include "decoder/mix_bits.h"
#include "decoder/model_identity.h"
#include "headlane/kv_file.h"

namespace headlane::internal {
namespace {

constexpr char kMagic[8] = {'H', 'L', 'T', 'O', 'K', 'E', 'N', '\n'};
constexpr uint32_t kByteOrder = 0x01020304u;
constexpr uint32_t kVersion = 1;
constexpr int64_t kMaxTokens = int64_t{1} << 24;  // as a session's context

struct Header {
  char magic[8];
  uint32_t byte_order;
  uint32_t version;
  uint64_t model;
  int64_t model_file_bytes;
  int64_t num_tokens;
};
static_assert(sizeof(Header) == 40, "no padding: it is written as it lies in memory");

uint64_t HashOf(const Header& header, std::span<const int32_t> ids) noexcept {
  uint64_t hash = 0;
  const auto add = [&](uint64_t value) noexcept {
    hash = decoder_internal::MixBits(hash + decoder_internal::kGoldenGamma + value);
  };
  uint64_t words[sizeof(Header) / sizeof(uint64_t)];
  std::memcpy(words, &header, sizeof(header));
  for (const uint64_t word : words) add(word);
  for (const int32_t id : ids) add(static_cast<uint32_t>(id));
  return hash;
}

// A file to read that says what is wrong with it.
class File {
 public:
  explicit File(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "rb"), &std::fclose) {}

  Status CheckOpen() const noexcept { return file_ ? OkStatus() : FileError("can't open", path_.c_str(), errno); }
  Status CheckEnd() noexcept {
    if (std::fgetc(file_.get()) == EOF) return OkStatus();
    return MakeStatus(StatusCode::kDataLoss, "'%.100s' goes on behind its end", path_.c_str());
  }

  // As KVSource::read, with a File as context.
  static Status Read(void* context, void* data, int64_t bytes) noexcept {
    auto& file = *static_cast<File*>(context);
    const size_t size = static_cast<size_t>(bytes);
    const size_t got = file.is_at_end_ ? 0 : std::fread(data, 1, size, file.file_.get());
    if (got == size) return OkStatus();
    if (!file.is_at_end_ && std::ferror(file.file_.get()) != 0) {
      file.is_at_end_ = true;
      return FileError("can't read", file.path_.c_str(), errno);
    }
    file.is_at_end_ = true;
    return MakeStatus(StatusCode::kDataLoss, "'%.100s' ends too early: %lld bytes are missing", file.path_.c_str(),
                      static_cast<long long>(size - got));
  }

 private:
  const std::string& path_;
  bool is_at_end_ = false;  // or at an error: there is nothing more to read
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

// What stands before the cache's own part, checked.
Status ReadHeader(File& file, const std::string& path, Header* header, std::vector<int32_t>* ids) {
  HEADLANE_RETURN_IF_ERROR(file.CheckOpen());
  HEADLANE_RETURN_IF_ERROR(File::Read(&file, header, sizeof(*header)));
  if (std::memcmp(header->magic, kMagic, sizeof(kMagic)) != 0) {
    return MakeStatus(StatusCode::kDataLoss, "'%.100s' is no saved cache of a session", path.c_str());
  }
  if (header->byte_order != kByteOrder || header->version != kVersion) {
    return MakeStatus(StatusCode::kUnsupported, "'%.100s' has version %u, byte order %08x; supported: %u, %08x",
                      path.c_str(), header->version, header->byte_order, kVersion, kByteOrder);
  }
  if (header->num_tokens < 0 || header->num_tokens > kMaxTokens) {
    return MakeStatus(StatusCode::kDataLoss, "'%.100s' says it has %lld tokens; there can be %lld", path.c_str(),
                      static_cast<long long>(header->num_tokens), static_cast<long long>(kMaxTokens));
  }
  // Piece by piece: what a file claims is no reason to take memory.
  constexpr int64_t kPiece = 1 << 16;
  while (static_cast<int64_t>(ids->size()) < header->num_tokens) {
    const size_t begin = ids->size();
    const int64_t n = std::min(kPiece, header->num_tokens - static_cast<int64_t>(begin));
    ids->resize(begin + static_cast<size_t>(n));
    HEADLANE_RETURN_IF_ERROR(File::Read(&file, ids->data() + begin, n * static_cast<int64_t>(sizeof(int32_t))));
  }
  uint64_t hash = 0;
  HEADLANE_RETURN_IF_ERROR(File::Read(&file, &hash, sizeof(hash)));
  if (hash != HashOf(*header, *ids)) {
    return MakeStatus(StatusCode::kDataLoss, "'%.100s' is damaged: its header's hash is %016llx, should be %016llx",
                      path.c_str(), static_cast<unsigned long long>(hash),
                      static_cast<unsigned long long>(HashOf(*header, *ids)));
  }
  return OkStatus();
}

}  // namespace

Status SaveSequence(const ModelImpl& model, const KVCache& cache, SequenceId sequence, std::span<const int32_t> ids,
                    const std::string& path) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.byte_order = kByteOrder;
  header.version = kVersion;
  HEADLANE_ASSIGN_OR_RETURN(header.model, ModelIdentity(model));
  header.model_file_bytes = model.info.file_bytes;
  header.num_tokens = static_cast<int64_t>(ids.size());
  const uint64_t hash = HashOf(header, ids);
  NewFile file;  // one that was there stays whole until this is
  HEADLANE_RETURN_IF_ERROR(file.Create(path.c_str()));
  HEADLANE_RETURN_IF_ERROR(NewFile::Write(&file, &header, sizeof(header)));
  HEADLANE_RETURN_IF_ERROR(NewFile::Write(&file, ids.data(), static_cast<int64_t>(ids.size_bytes())));
  HEADLANE_RETURN_IF_ERROR(NewFile::Write(&file, &hash, sizeof(hash)));
  HEADLANE_RETURN_IF_ERROR(SaveSequences(cache, std::span(&sequence, 1), KVSink{&file, &NewFile::Write}));
  return file.Finish();
}

Result<LoadedSequence> LoadSequence(const ModelImpl& model, KVCache& cache, std::span<const int32_t> ids,
                                    const std::string& path) {
  File file(path);
  Header header;
  std::vector<int32_t> saved;
  HEADLANE_RETURN_IF_ERROR(ReadHeader(file, path, &header, &saved));
  HEADLANE_ASSIGN_OR_RETURN(const uint64_t identity, ModelIdentity(model));
  if (header.model != identity || header.model_file_bytes != model.info.file_bytes) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "'%.100s' was saved with another model: identity %016llx, file of %lld bytes; this one has "
                      "%016llx, %lld bytes",
                      path.c_str(), static_cast<unsigned long long>(header.model),
                      static_cast<long long>(header.model_file_bytes), static_cast<unsigned long long>(identity),
                      static_cast<long long>(model.info.file_bytes));
  }
  const size_t most = std::min(saved.size(), ids.empty() ? 0 : ids.size() - 1);
  const auto end = saved.begin() + static_cast<std::ptrdiff_t>(most);
  LoadedSequence loaded;
  loaded.length = std::mismatch(saved.begin(), end, ids.begin()).first - saved.begin();
  // Read whatever agrees: a damaged file is not passed over in silence.
  HEADLANE_ASSIGN_OR_RETURN(const std::vector<RestoredSequence> restored,
                            RestoreSequences(cache, KVSource{&file, &File::Read}));
  Status status = file.CheckEnd();
  if (status.ok() && restored.size() != 1) {
    status = MakeStatus(StatusCode::kDataLoss, "'%.100s' has %zu sequences; it should have 1", path.c_str(),
                        restored.size());
  }
  if (status.ok()) {
    HEADLANE_ASSIGN_OR_RETURN(const int64_t length, cache.Length(restored[0].id));
    if (length != header.num_tokens) {
      status = MakeStatus(StatusCode::kDataLoss, "'%.100s' has %lld ids, but keys and values of %lld tokens",
                          path.c_str(), static_cast<long long>(header.num_tokens), static_cast<long long>(length));
    }
  }
  // A window may have passed what the shorter one sees.
  const bool is_kept = status.ok() && loaded.length > 0 && cache.Truncate(restored[0].id, loaded.length).ok();
  if (is_kept) {
    loaded.id = restored[0].id;
    return loaded;
  }
  for (const RestoredSequence& sequence : restored) HEADLANE_RETURN_IF_ERROR(cache.DropSequence(sequence.id));
  if (!status.ok()) return status;
  return LoadedSequence();
}

Result<int64_t> SavedLength(const std::string& path) {
  File file(path);
  Header header;
  std::vector<int32_t> ids;
  HEADLANE_RETURN_IF_ERROR(ReadHeader(file, path, &header, &ids));
  return header.num_tokens;
}

}  // namespace headlane::internal
