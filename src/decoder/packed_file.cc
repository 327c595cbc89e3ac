#include "decoder/packed_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/new_file.h"
#include "decoder/layers.h"
#include "decoder/mix_bits.h"

namespace headlane::internal {
namespace {

constexpr char kMagic[8] = {'H', 'L', 'P', 'A', 'C', 'K', 'E', 'D'};
// Of this file's own structure; what is in the layers has versions of its own, in their layout numbers.
constexpr uint32_t kVersion = 1;
constexpr int64_t kAlignment = 4096;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t num_entries;
  int64_t file_bytes;
  int64_t model_bytes;
  int64_t model_modified_ns;
  uint64_t model_hash;
  uint64_t table_hash;
  uint64_t reserved[2];
  uint64_t header_hash;  // of all before
};
static_assert(sizeof(Header) == 80);

struct TableEntry {
  uint64_t layout;
  int64_t offset;
  int64_t bytes;
  uint64_t hash;
};
static_assert(sizeof(TableEntry) == 32);
static_assert(std::endian::native == std::endian::little, "the file is little-endian");

constexpr int64_t kHashChunk = int64_t{1} << 20;

// Four chains, each as long as a multiplication and a rotation take, so that memory is what limits it.
uint64_t HashChunk(const uint8_t* data, size_t size) noexcept {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t lanes[4] = {1, 2, 3, 4};
  size_t i = 0;
  for (; i + 32 <= size; i += 32) {
    for (size_t lane = 0; lane < 4; ++lane) {
      uint64_t word;
      std::memcpy(&word, data + i + 8 * lane, sizeof(word));
      lanes[lane] = std::rotl((lanes[lane] ^ word) * kMultiplier, 29);
    }
  }
  uint64_t hash = size;
  for (; i < size; ++i) hash = std::rotl((hash ^ data[i]) * kMultiplier, 29);
  for (const uint64_t lane : lanes) hash = decoder_internal::MixBits(hash ^ lane) + decoder_internal::kGoldenGamma;
  return hash;
}

std::span<const uint8_t> AsUint8(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

template <typename T>
uint64_t HashObjects(const T* objects, size_t count) noexcept {
  return HashChunk(reinterpret_cast<const uint8_t*>(objects), count * sizeof(T));
}

uint64_t HashOf(const Header& header) noexcept {
  return HashChunk(reinterpret_cast<const uint8_t*>(&header), offsetof(Header, header_hash));
}

int64_t Aligned(int64_t offset) noexcept { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

// Where everything is follows from what there is. Hashes are left 0.
std::vector<TableEntry> MakeTable(std::span<const PackedEntry> entries, int64_t* file_bytes) {
  std::vector<TableEntry> table;
  int64_t offset = Aligned(static_cast<int64_t>(sizeof(Header) + entries.size() * sizeof(TableEntry)));
  for (const PackedEntry& entry : entries) {
    table.push_back({entry.layout, offset, entry.bytes, 0});
    offset = Aligned(offset + entry.bytes);
  }
  *file_bytes = offset;
  return table;
}

Status CheckHeader(const Header& header, const ModelStamp& stamp, size_t num_entries, int64_t file_bytes,
                   size_t size) noexcept {
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return MakeStatus(StatusCode::kDataLoss, "no file of packed weights");
  }
  if (header.version != kVersion) {
    return MakeStatus(StatusCode::kUnsupported, "packed weights of version %u; this is version %u", header.version,
                      kVersion);
  }
  if (header.header_hash != HashOf(header)) {
    return MakeStatus(StatusCode::kDataLoss, "the header of the packed weights is damaged");
  }
  const struct {
    const char* what;
    unsigned long long found, wanted;
  } numbers[] = {
      {"size", static_cast<unsigned long long>(header.model_bytes), static_cast<unsigned long long>(stamp.bytes)},
      {"time", static_cast<unsigned long long>(header.model_modified_ns),
       static_cast<unsigned long long>(stamp.modified_ns)},
      {"hash", static_cast<unsigned long long>(header.model_hash), static_cast<unsigned long long>(stamp.hash)},
  };
  for (const auto& number : numbers) {
    if (number.found == number.wanted) continue;
    return MakeStatus(StatusCode::kFailedPrecondition,
                      "packed from another model file: its %s was %llu, and this one's is %llu", number.what,
                      number.found, number.wanted);
  }
  if (header.num_entries != num_entries || header.file_bytes != file_bytes) {
    return MakeStatus(StatusCode::kFailedPrecondition,
                      "packed in another layout: %u layers in %lld bytes, not %zu in %lld", header.num_entries,
                      static_cast<long long>(header.file_bytes), num_entries, static_cast<long long>(file_bytes));
  }
  if (size != static_cast<size_t>(file_bytes)) {
    return MakeStatus(StatusCode::kDataLoss, "the file of packed weights has %zu bytes, not %lld", size,
                      static_cast<long long>(file_bytes));
  }
  return OkStatus();
}

// The new file, whose first error stays.
class PaddedFile {
 public:
  explicit PaddedFile(const std::string& path) : status_(file_.Create(path.c_str())) {}

  void Write(const void* data, size_t size) noexcept {
    if (status_.ok()) status_ = NewFile::Write(&file_, data, static_cast<int64_t>(size));
    written_ += static_cast<int64_t>(size);
  }
  void PadTo(int64_t offset) noexcept {
    static constexpr char kZeros[kAlignment] = {};
    while (status_.ok() && written_ < offset) {
      Write(kZeros, static_cast<size_t>(std::min<int64_t>(offset - written_, kAlignment)));
    }
  }
  Status Finish() noexcept { return status_.ok() ? file_.Finish() : status_; }

 private:
  NewFile file_;
  int64_t written_ = 0;
  Status status_;
};

}  // namespace

uint64_t HashBytes(std::span<const uint8_t> bytes, Executor& executor) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  std::vector<uint64_t> hashes(static_cast<size_t>((size + kHashChunk - 1) / kHashChunk));
  ParallelRows(executor, static_cast<int64_t>(hashes.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      hashes[static_cast<size_t>(i)] =
          HashChunk(bytes.data() + i * kHashChunk, static_cast<size_t>(std::min(kHashChunk, size - i * kHashChunk)));
    }
  });
  return HashObjects(hashes.data(), hashes.size()) ^ bytes.size();
}

Result<PackedFile> PackedFile::Open(const std::string& path, const ModelStamp& stamp,
                                    std::span<const PackedEntry> expected, Executor& executor) {
  PackedFile packed;
  HEADLANE_ASSIGN_OR_RETURN(packed.file_, MappedFile::Open(path));
  const std::span<const uint8_t> bytes = packed.file_.bytes();
  int64_t file_bytes = 0;
  const std::vector<TableEntry> table = MakeTable(expected, &file_bytes);
  Header header;
  if (bytes.size() < sizeof(header)) {
    return MakeStatus(StatusCode::kDataLoss, "the file of packed weights has %zu bytes, and its header %zu",
                      bytes.size(), sizeof(header));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  HEADLANE_RETURN_IF_ERROR(CheckHeader(header, stamp, expected.size(), file_bytes, bytes.size()));
  std::vector<TableEntry> found(expected.size());
  if (!found.empty()) std::memcpy(found.data(), bytes.data() + sizeof(header), found.size() * sizeof(TableEntry));
  if (header.table_hash != HashObjects(found.data(), found.size())) {
    return MakeStatus(StatusCode::kDataLoss, "the table of the packed weights is damaged");
  }
  for (size_t i = 0; i < table.size(); ++i) {
    if (found[i].layout != table[i].layout || found[i].offset != table[i].offset || found[i].bytes != table[i].bytes) {
      return MakeStatus(StatusCode::kFailedPrecondition, "layer %zu was packed in another layout", i);
    }
    const auto data = bytes.subspan(static_cast<size_t>(table[i].offset), static_cast<size_t>(table[i].bytes));
    if (HashBytes(data, executor) != found[i].hash) {
      return MakeStatus(StatusCode::kDataLoss, "the packed weights of layer %zu are damaged", i);
    }
    packed.entries_.push_back(std::as_bytes(data));
  }
  return packed;
}

Status WritePackedFile(const std::string& path, const ModelStamp& stamp, std::span<const PackedEntry> entries,
                       std::span<const std::span<const std::byte>> data, Executor& executor) {
  Header header = {};
  std::vector<TableEntry> table = MakeTable(entries, &header.file_bytes);
  for (size_t i = 0; i < table.size(); ++i) {
    if (static_cast<int64_t>(data[i].size()) != table[i].bytes) {
      return MakeStatus(StatusCode::kInternal, "layer %zu has %zu packed bytes, not %lld", i, data[i].size(),
                        static_cast<long long>(table[i].bytes));
    }
    table[i].hash = HashBytes(AsUint8(data[i]), executor);
  }
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.num_entries = static_cast<uint32_t>(entries.size());
  header.model_bytes = stamp.bytes;
  header.model_modified_ns = stamp.modified_ns;
  header.model_hash = stamp.hash;
  header.table_hash = HashObjects(table.data(), table.size());
  header.header_hash = HashOf(header);
  PaddedFile file(path);
  file.Write(&header, sizeof(header));
  file.Write(table.data(), table.size() * sizeof(TableEntry));
  for (size_t i = 0; i < table.size(); ++i) {
    file.PadTo(table[i].offset);
    file.Write(data[i].data(), data[i].size());
  }
  file.PadTo(header.file_bytes);
  return file.Finish();
}

}  // namespace headlane::internal
