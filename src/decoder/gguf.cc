#include "decoder/gguf.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>
#include <utility>

#include "decoder/alloc_guard.h"
#include "decoder/unicode.h"

namespace headlane {
namespace {

using decoder_internal::GuardAllocation;
using decoder_internal::Printable;

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they lie in the file");

using ull = unsigned long long;  // NOLINT(runtime/int): what %llu takes

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kDefaultAlignment = 32;
constexpr std::string_view kAlignmentKey = "general.alignment";

// The least bytes that a key with its value, or a tensor, can take: (length, 1 byte, type, u8) and
// (length, 1 byte, number of dims, 1 dim, type, offset). A count that does not fit is refused before anything is
// reserved.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Bytes of a number; 0 for strings, arrays and unknown types.
uint64_t NumberBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

template <typename T>
T Load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// Walks the header. Every read is checked against what is left; `what` names the thing in the message.
class Cursor {
 public:
  explicit Cursor(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }

  Result<std::span<const uint8_t>> Take(uint64_t size, const char* what) {
    if (size > left()) {
      return MakeStatus(StatusCode::kDataLoss, "%s at byte %llu takes %llu bytes, but only %llu are left", what,
                        static_cast<ull>(at_), static_cast<ull>(size), static_cast<ull>(left()));
    }
    const std::span<const uint8_t> taken = bytes_.subspan(at_, size);
    at_ += size;
    return taken;
  }

  template <typename T>
  Result<T> Number(const char* what) {
    HEADLANE_ASSIGN_OR_RETURN(const std::span<const uint8_t> taken, Take(sizeof(T), what));
    return Load<T>(taken.data());
  }

  // A u64 length and that many bytes.
  Result<std::string_view> String(const char* what) {
    HEADLANE_ASSIGN_OR_RETURN(const uint64_t length, Number<uint64_t>(what));
    HEADLANE_ASSIGN_OR_RETURN(const std::span<const uint8_t> taken, Take(length, what));
    return std::string_view(reinterpret_cast<const char*>(taken.data()), taken.size());
  }

 private:
  std::span<const uint8_t> bytes_;
  uint64_t at_ = 0;
};

Status CheckBools(std::span<const uint8_t> value, const char* key) {
  for (const uint8_t byte : value) {
    if (byte > 1) return MakeStatus(StatusCode::kDataLoss, "metadata key '%s': a bool is %u, not 0 or 1", key, byte);
  }
  return OkStatus();
}

Result<GgufType> ReadType(Cursor* cursor, const char* key) {
  HEADLANE_ASSIGN_OR_RETURN(const uint32_t number, cursor->Number<uint32_t>("type of a metadata value"));
  if (number > static_cast<uint32_t>(GgufType::kFloat64)) {
    return MakeStatus(StatusCode::kDataLoss, "metadata key '%s': value type %u, and the last known one is %u", key,
                      number, static_cast<uint32_t>(GgufType::kFloat64));
  }
  return static_cast<GgufType>(number);
}

Status ReadArray(Cursor* cursor, const char* key, GgufEntry* entry) {
  HEADLANE_ASSIGN_OR_RETURN(entry->element_type, ReadType(cursor, key));
  if (entry->element_type == GgufType::kArray) {
    return MakeStatus(StatusCode::kUnsupported, "metadata key '%s': an array of arrays", key);
  }
  HEADLANE_ASSIGN_OR_RETURN(const uint64_t count, cursor->Number<uint64_t>("length of a metadata array"));
  const bool strings = entry->element_type == GgufType::kString;
  const uint64_t least = strings ? 8 : NumberBytes(entry->element_type);
  if (count > cursor->left() / least) {
    return MakeStatus(StatusCode::kDataLoss, "metadata key '%s': an array of %llu %s, but only %llu bytes are left",
                      key, static_cast<ull>(count), GgufTypeName(entry->element_type),
                      static_cast<ull>(cursor->left()));
  }
  if (count > kGgufMaxArrayLength) {
    return MakeStatus(StatusCode::kResourceExhausted, "metadata key '%s': an array of %llu elements; the limit is %llu",
                      key, static_cast<ull>(count), static_cast<ull>(kGgufMaxArrayLength));
  }
  entry->count = static_cast<int64_t>(count);
  if (!strings) {
    HEADLANE_ASSIGN_OR_RETURN(entry->value, cursor->Take(count * least, key));
    return entry->element_type == GgufType::kBool ? CheckBools(entry->value, key) : OkStatus();
  }
  Cursor start = *cursor;
  for (uint64_t i = 0; i < count; ++i) {
    const Result<std::string_view> text = cursor->String(key);
    if (!text.ok()) return text.status();
  }
  HEADLANE_ASSIGN_OR_RETURN(entry->value, start.Take(cursor->at() - start.at(), key));
  return OkStatus();
}

Status ReadEntry(Cursor* cursor, GgufEntry* entry) {
  HEADLANE_ASSIGN_OR_RETURN(entry->key, cursor->String("metadata key"));
  if (entry->key.empty()) {
    return MakeStatus(StatusCode::kDataLoss, "the metadata key before byte %llu is empty",
                      static_cast<ull>(cursor->at()));
  }
  if (entry->key.size() > kGgufMaxKeyBytes) {
    return MakeStatus(StatusCode::kDataLoss, "a metadata key has %llu bytes; the format allows %llu",
                      static_cast<ull>(entry->key.size()), static_cast<ull>(kGgufMaxKeyBytes));
  }
  const Printable printable(entry->key);
  const char* key = printable.c_str();
  HEADLANE_ASSIGN_OR_RETURN(entry->type, ReadType(cursor, key));
  entry->element_type = entry->type;
  entry->count = 1;
  if (entry->type == GgufType::kArray) return ReadArray(cursor, key, entry);
  if (entry->type == GgufType::kString) {
    HEADLANE_ASSIGN_OR_RETURN(const std::string_view text, cursor->String(key));
    entry->value = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
    return OkStatus();
  }
  HEADLANE_ASSIGN_OR_RETURN(entry->value, cursor->Take(NumberBytes(entry->type), key));
  return entry->type == GgufType::kBool ? CheckBools(entry->value, key) : OkStatus();
}

// Fills all but the data; `offset` counts from the start of the data.
Status ReadTensor(Cursor* cursor, GgufTensor* tensor, uint64_t* size, uint64_t* offset) {
  HEADLANE_ASSIGN_OR_RETURN(tensor->name, cursor->String("tensor name"));
  if (tensor->name.empty()) {
    return MakeStatus(StatusCode::kDataLoss, "the tensor name before byte %llu is empty",
                      static_cast<ull>(cursor->at()));
  }
  if (tensor->name.size() > kGgufMaxNameBytes) {
    return MakeStatus(StatusCode::kDataLoss, "a tensor name has %llu bytes; the limit is %llu",
                      static_cast<ull>(tensor->name.size()), static_cast<ull>(kGgufMaxNameBytes));
  }
  const Printable printable(tensor->name);
  const char* name = printable.c_str();
  HEADLANE_ASSIGN_OR_RETURN(const uint32_t num_dims, cursor->Number<uint32_t>("number of a tensor's dims"));
  if (num_dims < 1 || num_dims > static_cast<uint32_t>(kGgufMaxDims)) {
    return MakeStatus(StatusCode::kDataLoss, "tensor '%s' has %u dims; 1 to %d are possible", name, num_dims,
                      kGgufMaxDims);
  }
  tensor->num_dims = static_cast<int32_t>(num_dims);
  tensor->dims = {1, 1, 1, 1};
  for (uint32_t i = 0; i < num_dims; ++i) {
    HEADLANE_ASSIGN_OR_RETURN(const uint64_t dim, cursor->Number<uint64_t>("dim of a tensor"));
    if (dim < 1 || dim > static_cast<uint64_t>(INT64_MAX)) {
      return MakeStatus(StatusCode::kDataLoss, "tensor '%s': dim %u is %llu; 1 to %llu are possible", name, i,
                        static_cast<ull>(dim), static_cast<ull>(INT64_MAX));
    }
    tensor->dims[i] = static_cast<int64_t>(dim);
  }
  HEADLANE_ASSIGN_OR_RETURN(const uint32_t type, cursor->Number<uint32_t>("type of a tensor"));
  tensor->type = static_cast<TensorType>(type);
  if (FindTensorType(tensor->type) == nullptr) {
    return MakeStatus(StatusCode::kUnsupported, "tensor '%s' is of type %u (%s); supported are %s", name, type,
                      TensorTypeName(type), SupportedTensorTypeNames());
  }
  const Result<int64_t> row_bytes = TensorRowBytes(tensor->type, tensor->row_len());
  if (!row_bytes.ok()) {
    return MakeStatus(StatusCode::kDataLoss, "tensor '%s': %s", name, row_bytes.status().c_str());
  }
  int64_t total = *row_bytes;
  for (uint32_t i = 1; i < num_dims; ++i) {
    if (__builtin_mul_overflow(total, tensor->dims[i], &total)) {
      return MakeStatus(StatusCode::kDataLoss,
                        "tensor '%s' of dims [%lld, %lld, %lld, %lld] has more bytes than 64 bits count", name,
                        static_cast<long long>(tensor->dims[0]), static_cast<long long>(tensor->dims[1]),
                        static_cast<long long>(tensor->dims[2]), static_cast<long long>(tensor->dims[3]));
    }
  }
  *size = static_cast<uint64_t>(total);
  HEADLANE_ASSIGN_OR_RETURN(*offset, cursor->Number<uint64_t>("offset of a tensor"));
  return OkStatus();
}

// Indices of `items` by name. Sorting, not hashing: no choice of names makes it slow.
template <typename Item, typename Name>
std::vector<uint32_t> SortedByName(const std::vector<Item>& items, Name name) {
  std::vector<uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return items[a].*name < items[b].*name; });
  return order;
}

template <typename Item, typename Name>
Status CheckUnique(const std::vector<Item>& items, const std::vector<uint32_t>& order, Name name, const char* what) {
  for (size_t i = 1; i < order.size(); ++i) {
    if (items[order[i - 1]].*name == items[order[i]].*name) {
      return MakeStatus(StatusCode::kDataLoss, "%s '%s' occurs twice", what, Printable(items[order[i]].*name).c_str());
    }
  }
  return OkStatus();
}

template <typename Item, typename Name>
const Item* Find(const std::vector<Item>& items, const std::vector<uint32_t>& order, Name name,
                 std::string_view wanted) {
  const auto at = std::lower_bound(order.begin(), order.end(), wanted,
                                   [&](uint32_t i, std::string_view key) { return items[i].*name < key; });
  return at != order.end() && items[*at].*name == wanted ? &items[*at] : nullptr;
}

// Two tensors on the same bytes: a small file could claim any amount of weights.
Status CheckNoOverlap(const std::vector<GgufTensor>& tensors) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].data.data() < tensors[b].data.data(); });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = tensors[order[i - 1]];
    const GgufTensor& after = tensors[order[i]];
    const uint64_t distance = static_cast<uint64_t>(after.data.data() - before.data.data());
    if (distance < before.data.size()) {
      return MakeStatus(StatusCode::kDataLoss, "tensor '%s' begins %llu bytes behind tensor '%s', which has %llu",
                        Printable(after.name).c_str(), static_cast<ull>(distance), Printable(before.name).c_str(),
                        static_cast<ull>(before.data.size()));
    }
  }
  return OkStatus();
}

Result<uint64_t> ReadAlignment(const GgufEntry* entry) {
  if (entry == nullptr) return uint64_t{kDefaultAlignment};
  if (entry->type != GgufType::kUint32) {
    return MakeStatus(StatusCode::kDataLoss, "metadata key 'general.alignment' is of type %s, not u32",
                      GgufTypeName(entry->type));
  }
  const uint32_t alignment = Load<uint32_t>(entry->value.data());
  if (!std::has_single_bit(alignment) || alignment < 8 || alignment > kGgufMaxAlignment) {
    return MakeStatus(StatusCode::kDataLoss,
                      "metadata key 'general.alignment' is %u; a power of two from 8 to %llu is possible", alignment,
                      static_cast<ull>(kGgufMaxAlignment));
  }
  return uint64_t{alignment};
}

Status CheckCount(uint64_t count, uint64_t limit, uint64_t least_bytes, uint64_t left, const char* what) {
  if (count > left / least_bytes) {
    return MakeStatus(StatusCode::kDataLoss,
                      "the file claims %llu %s, which take at least %llu bytes each, but has %llu left",
                      static_cast<ull>(count), what, static_cast<ull>(least_bytes), static_cast<ull>(left));
  }
  if (count > limit) {
    return MakeStatus(StatusCode::kResourceExhausted, "the file claims %llu %s; the limit is %llu",
                      static_cast<ull>(count), what, static_cast<ull>(limit));
  }
  return OkStatus();
}

Status CheckVersion(uint32_t magic, uint32_t version) {
  if (magic != kMagic) {
    return MakeStatus(StatusCode::kDataLoss, "no GGUF file: it begins with 0x%08X, not 0x%08X", magic, kMagic);
  }
  if (version == 2 || version == 3) return OkStatus();
  // A small number in the other byte order: 3 reads as 0x03000000.
  if ((version & 0xFFFF) == 0 && version != 0) {
    return MakeStatus(StatusCode::kUnsupported, "a big-endian GGUF file (version field 0x%08X)", version);
  }
  return MakeStatus(StatusCode::kUnsupported, "GGUF version %u; supported are 2 and 3", version);
}

}  // namespace

const char* GgufTypeName(GgufType type) noexcept {
  static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  return static_cast<size_t>(type) < std::size(kNames) ? kNames[static_cast<size_t>(type)] : "?";
}

Result<GgufFile> GgufFile::Open(const std::string& path) {
  HEADLANE_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  HEADLANE_ASSIGN_OR_RETURN(GgufFile file, Parse(mapped.bytes()));
  file.file_ = std::move(mapped);
  return file;
}

Result<GgufFile> GgufFile::Parse(std::span<const uint8_t> bytes) {
  return GuardAllocation("reading a GGUF header", [&]() -> Result<GgufFile> {
    GgufFile file;
    file.bytes_ = bytes;
    HEADLANE_RETURN_IF_ERROR(file.ReadHeader());
    return file;
  });
}

Status GgufFile::ReadHeader() {
  Cursor cursor(bytes_);
  HEADLANE_ASSIGN_OR_RETURN(const uint32_t magic, cursor.Number<uint32_t>("GGUF magic"));
  HEADLANE_ASSIGN_OR_RETURN(version_, cursor.Number<uint32_t>("GGUF version"));
  HEADLANE_RETURN_IF_ERROR(CheckVersion(magic, version_));
  HEADLANE_ASSIGN_OR_RETURN(const uint64_t num_tensors, cursor.Number<uint64_t>("number of tensors"));
  HEADLANE_ASSIGN_OR_RETURN(const uint64_t num_entries, cursor.Number<uint64_t>("number of metadata keys"));
  HEADLANE_RETURN_IF_ERROR(CheckCount(num_entries, kGgufMaxEntries, kMinEntryBytes, cursor.left(), "metadata keys"));
  HEADLANE_RETURN_IF_ERROR(CheckCount(num_tensors, kGgufMaxTensors, kMinTensorBytes, cursor.left(), "tensors"));

  entries_.resize(num_entries);
  for (GgufEntry& entry : entries_) HEADLANE_RETURN_IF_ERROR(ReadEntry(&cursor, &entry));
  entry_order_ = SortedByName(entries_, &GgufEntry::key);
  HEADLANE_RETURN_IF_ERROR(CheckUnique(entries_, entry_order_, &GgufEntry::key, "metadata key"));
  HEADLANE_ASSIGN_OR_RETURN(const uint64_t alignment, ReadAlignment(FindEntry(kAlignmentKey)));

  // The data begin behind the directory, so sizes and offsets wait until its end is known.
  struct Place {
    uint64_t size, offset;
  };
  std::vector<Place> places(num_tensors);
  tensors_.resize(num_tensors);
  for (size_t i = 0; i < num_tensors; ++i) {
    HEADLANE_RETURN_IF_ERROR(ReadTensor(&cursor, &tensors_[i], &places[i].size, &places[i].offset));
  }
  tensor_order_ = SortedByName(tensors_, &GgufTensor::name);
  HEADLANE_RETURN_IF_ERROR(CheckUnique(tensors_, tensor_order_, &GgufTensor::name, "tensor"));

  const uint64_t data_start = (cursor.at() + alignment - 1) / alignment * alignment;
  const uint64_t data_bytes = data_start < bytes_.size() ? bytes_.size() - data_start : 0;
  for (size_t i = 0; i < num_tensors; ++i) {
    const auto [size, offset] = places[i];
    const Printable name(tensors_[i].name);
    if (offset % alignment != 0) {
      return MakeStatus(StatusCode::kDataLoss, "tensor '%s': offset %llu is no multiple of the alignment %llu",
                        name.c_str(), static_cast<ull>(offset), static_cast<ull>(alignment));
    }
    if (offset > data_bytes || size > data_bytes - offset) {
      return MakeStatus(StatusCode::kDataLoss,
                        "tensor '%s': %llu bytes at offset %llu, but the file has %llu bytes of data", name.c_str(),
                        static_cast<ull>(size), static_cast<ull>(offset), static_cast<ull>(data_bytes));
    }
    tensors_[i].data = bytes_.subspan(data_start + offset, size);
  }
  return CheckNoOverlap(tensors_);
}

const GgufEntry* GgufFile::FindEntry(std::string_view key) const noexcept {
  return Find(entries_, entry_order_, &GgufEntry::key, key);
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const noexcept {
  return Find(tensors_, tensor_order_, &GgufTensor::name, name);
}

}  // namespace headlane
