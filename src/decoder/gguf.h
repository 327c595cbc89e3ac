// Reader of GGUF files, versions 2 and 3, little-endian: metadata and tensor directory.
//
// It only looks at the file and never at the model: what keys and tensors mean is the tokenizer's and the model
// loader's business. The file is untrusted. Nothing is copied out of it: strings, arrays and tensors are views into the
// bytes, and what is allocated is a small record per key and per tensor, whose numbers are limited below; so that a
// damaged or hostile file is refused in time linear in its header and with a few MiB of memory, whatever it claims.
#ifndef HEADLANE_SRC_DECODER_GGUF_H_
#define HEADLANE_SRC_DECODER_GGUF_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decoder/dequant.h"
#include "decoder/mapped_file.h"
#include "headlane/status.h"

namespace headlane {

// Limits; a file beyond them is refused. Real files stay far below.
inline constexpr uint64_t kGgufMaxEntries = 65536;         // metadata keys
inline constexpr uint64_t kGgufMaxTensors = 65536;         // tensors
inline constexpr uint64_t kGgufMaxKeyBytes = 65535;        // bytes of a key (the format's own limit)
inline constexpr uint64_t kGgufMaxNameBytes = 255;         // bytes of a tensor name
inline constexpr uint64_t kGgufMaxArrayLength = 1u << 24;  // elements of an array
inline constexpr uint64_t kGgufMaxAlignment = 1u << 20;    // bytes; a power of two from 8 up
inline constexpr int32_t kGgufMaxDims = 4;

enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// "u32", "f32", "string", "array"; "?" for a value outside the enum.
const char* GgufTypeName(GgufType type) noexcept;

// One key with its value, checked: a string's or array's bytes lie within the file.
struct GgufEntry {
  std::string_view key;
  GgufType type;
  GgufType element_type;  // of an array; else the same as `type`
  int64_t count;          // elements of an array, else 1
  std::span<const uint8_t>
      value;  // numbers: little-endian, unaligned. A string: its text. A string array: (u64 length, text)*.
};

// Array of numbers in the file, at any alignment.
template <typename T>
class GgufArray {
 public:
  GgufArray() noexcept = default;
  GgufArray(const uint8_t* data, int64_t size) noexcept : data_(data), size_(size) {}
  int64_t size() const noexcept { return size_; }
  T operator[](int64_t i) const noexcept {  // 0 <= i < size(), unchecked
    T value;
    std::memcpy(&value, data_ + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }

 private:
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

// Array of strings in the file: walk it with a range-for (there is no random access without an index).
class GgufStringArray {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    using reference = std::string_view;
    using pointer = void;
    explicit Iterator(const uint8_t* at) noexcept : at_(at) {}
    std::string_view operator*() const noexcept {
      return {reinterpret_cast<const char*>(at_ + 8), static_cast<size_t>(Length())};
    }
    Iterator& operator++() noexcept {
      at_ += 8 + Length();
      return *this;
    }
    Iterator operator++(int) noexcept {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const noexcept { return at_ == other.at_; }

   private:
    uint64_t Length() const noexcept {
      uint64_t length;
      std::memcpy(&length, at_, sizeof(length));
      return length;
    }
    const uint8_t* at_;
  };

  GgufStringArray() noexcept = default;
  GgufStringArray(std::span<const uint8_t> bytes, int64_t size) noexcept : bytes_(bytes), size_(size) {}
  int64_t size() const noexcept { return size_; }
  int64_t total_bytes() const noexcept { return static_cast<int64_t>(bytes_.size()) - 8 * size_; }  // of all texts
  Iterator begin() const noexcept { return Iterator(bytes_.data()); }
  Iterator end() const noexcept { return Iterator(bytes_.data() + bytes_.size()); }

 private:
  std::span<const uint8_t> bytes_;
  int64_t size_ = 0;
};

struct GgufTensor {
  std::string_view name;
  TensorType type;                         // always one that FindTensorType knows
  int32_t num_dims;                        // 1..4
  std::array<int64_t, kGgufMaxDims> dims;  // dims[0] runs fastest: the row. Each >= 1; 1 beyond num_dims.
  std::span<const uint8_t> data;           // num_rows() rows of row_bytes(), within the file

  int64_t row_len() const noexcept { return dims[0]; }
  int64_t num_rows() const noexcept { return dims[1] * dims[2] * dims[3]; }
  int64_t row_bytes() const noexcept { return static_cast<int64_t>(data.size()) / num_rows(); }
  std::span<const uint8_t> row(int64_t i) const noexcept {  // 0 <= i < num_rows(), unchecked
    return data.subspan(static_cast<size_t>(i * row_bytes()), static_cast<size_t>(row_bytes()));
  }
};

// Every view it hands out lives as long as the object (Open) or as the bytes given (Parse). Moving it keeps them valid.
// Const calls from any threads.
class GgufFile {
 public:
  // Maps and reads a file. Errors: as MappedFile::Open and Parse.
  static Result<GgufFile> Open(const std::string& path);
  // Reads `bytes`, which the caller keeps alive. Errors: kDataLoss (not GGUF, damaged, truncated; names the thing and
  // both numbers), kUnsupported (version, big-endian, nested arrays, tensor type), kResourceExhausted (limits above).
  static Result<GgufFile> Parse(std::span<const uint8_t> bytes);

  uint32_t version() const noexcept { return version_; }
  std::span<const uint8_t> bytes() const noexcept { return bytes_; }
  // Null after Parse.
  const MappedFile* mapped_file() const noexcept { return file_.bytes().empty() ? nullptr : &file_; }

  // In the file's order.
  std::span<const GgufEntry> entries() const noexcept { return entries_; }
  std::span<const GgufTensor> tensors() const noexcept { return tensors_; }

  // Null when there is none.
  const GgufEntry* FindEntry(std::string_view key) const noexcept;
  const GgufTensor* FindTensor(std::string_view name) const noexcept;

  // Values by key. Errors: kNotFound (no such key), kDataLoss (another type, or a number that does not fit; names key,
  // type found and type wanted). Any integer type serves for an integer, f32 and f64 for a float. The `Or` forms give
  // `fallback` for a missing key, and still an error for a wrong type.
  Result<uint32_t> GetU32(std::string_view key) const noexcept;
  Result<uint32_t> GetU32Or(std::string_view key, uint32_t fallback) const noexcept;
  // The same, and kDataLoss unless low <= value <= high: for counts and sizes of a model.
  Result<uint32_t> GetU32InRange(std::string_view key, uint32_t low, uint32_t high) const noexcept;
  Result<float> GetF32(std::string_view key) const noexcept;
  Result<float> GetF32Or(std::string_view key, float fallback) const noexcept;
  Result<bool> GetBoolOr(std::string_view key, bool fallback) const noexcept;
  Result<std::string_view> GetString(std::string_view key) const noexcept;
  Result<std::string_view> GetStringOr(std::string_view key, std::string_view fallback) const noexcept;
  Result<GgufStringArray> GetStringArray(std::string_view key) const noexcept;
  Result<GgufArray<float>> GetF32Array(std::string_view key) const noexcept;    // exactly f32
  Result<GgufArray<int32_t>> GetI32Array(std::string_view key) const noexcept;  // i32 or u32 (values below 2^31)

  // The tensor, or kNotFound.
  Result<GgufTensor> GetTensor(std::string_view name) const noexcept;
  // The same, and kDataLoss unless its dims are exactly these (missing ones count as 1); names both shapes.
  Result<GgufTensor> GetTensor(std::string_view name, std::initializer_list<int64_t> dims) const noexcept;

 private:
  Status ReadHeader();
  Result<const GgufEntry*> Need(std::string_view key) const noexcept;

  MappedFile file_;  // empty after Parse
  std::span<const uint8_t> bytes_;
  uint32_t version_ = 0;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  std::vector<uint32_t> entry_order_;   // indices sorted by key, for look-ups
  std::vector<uint32_t> tensor_order_;  // and by name
};

}  // namespace headlane

#endif  // HEADLANE_SRC_DECODER_GGUF_H_
