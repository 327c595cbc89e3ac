// Builds GGUF files in memory: for tests of the reader, and of whatever reads small models or vocabularies.
//
// A writer of its own, that shares nothing with the reader: numbers of types and the layout are written down here
// again.
#ifndef HEADLANE_TESTS_DECODER_GGUF_WRITER_H_
#define HEADLANE_TESTS_DECODER_GGUF_WRITER_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace headlane::testing {

// Bytes in the order they are added. For hostile headers that GgufWriter would not write.
class ByteBuilder {
 public:
  template <typename T>
  ByteBuilder& Number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    const auto* raw = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), raw, raw + sizeof(T));
    return *this;
  }
  ByteBuilder& Raw(std::string_view text) {
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    return *this;
  }
  ByteBuilder& Raw(const std::vector<uint8_t>& more) {
    bytes_.insert(bytes_.end(), more.begin(), more.end());
    return *this;
  }
  ByteBuilder& String(std::string_view text) { return Number<uint64_t>(text.size()).Raw(text); }
  ByteBuilder& PadTo(size_t alignment) {
    while (bytes_.size() % alignment != 0) bytes_.push_back(0);
    return *this;
  }
  size_t size() const { return bytes_.size(); }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

// The number of a value type in the file.
template <typename T>
constexpr uint32_t GgufTypeNumber() {
  if constexpr (std::is_same_v<T, uint8_t>) return 0;
  if constexpr (std::is_same_v<T, int8_t>) return 1;
  if constexpr (std::is_same_v<T, uint16_t>) return 2;
  if constexpr (std::is_same_v<T, int16_t>) return 3;
  if constexpr (std::is_same_v<T, uint32_t>) return 4;
  if constexpr (std::is_same_v<T, int32_t>) return 5;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, bool>) return 7;
  if constexpr (std::is_same_v<T, uint64_t>) return 10;
  if constexpr (std::is_same_v<T, int64_t>) return 11;
  if constexpr (std::is_same_v<T, double>) return 12;
}

class GgufWriter {
 public:
  static constexpr uint32_t kString = 8;
  static constexpr uint32_t kArray = 9;

  // A number or bool, of the file type that T is: Add("llama.block_count", uint32_t{2}).
  template <typename T>
    requires std::is_arithmetic_v<T>
  GgufWriter& Add(std::string_view key, T value) {
    Begin(key).Number(GgufTypeNumber<T>()).Number(value);
    return *this;
  }
  GgufWriter& Add(std::string_view key, std::string_view text) {
    Begin(key).Number(kString).String(text);
    return *this;
  }
  GgufWriter& Add(std::string_view key, const char* text) { return Add(key, std::string_view(text)); }
  template <typename T>
  GgufWriter& AddArray(std::string_view key, const std::vector<T>& values) {
    Begin(key).Number(kArray);
    if constexpr (std::is_arithmetic_v<T>) {
      entries_.Number(GgufTypeNumber<T>()).template Number<uint64_t>(values.size());
      for (const T value : values) entries_.Number(value);
    } else {
      entries_.Number(kString).template Number<uint64_t>(values.size());
      for (const auto& value : values) entries_.String(value);
    }
    return *this;
  }
  // Key, type and value as given.
  GgufWriter& AddRaw(std::string_view key, const std::vector<uint8_t>& type_and_value) {
    Begin(key).Raw(type_and_value);
    return *this;
  }

  // `type` as numbered in the file; dims[0] is the length of a row.
  GgufWriter& AddTensor(std::string_view name, uint32_t type, std::vector<uint64_t> dims, std::vector<uint8_t> data) {
    tensors_.push_back({std::string(name), type, std::move(dims), std::move(data)});
    return *this;
  }
  GgufWriter& AddTensorF32(std::string_view name, std::vector<uint64_t> dims, const std::vector<float>& values) {
    std::vector<uint8_t> data(values.size() * sizeof(float));
    if (!data.empty()) std::memcpy(data.data(), values.data(), data.size());
    return AddTensor(name, 0, std::move(dims), std::move(data));
  }

  // `alignment` is that of the data; adding the key general.alignment is the caller's business.
  std::vector<uint8_t> Build(uint32_t version = 3, size_t alignment = 32) const {
    ByteBuilder file;
    file.Raw("GGUF").Number(version).Number<uint64_t>(tensors_.size()).Number<uint64_t>(num_entries_);
    file.Raw(entries_.bytes());
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors_) {
      file.String(tensor.name).Number<uint32_t>(static_cast<uint32_t>(tensor.dims.size()));
      for (const uint64_t dim : tensor.dims) file.Number(dim);
      file.Number(tensor.type).Number(offset);
      offset += (tensor.data.size() + alignment - 1) / alignment * alignment;
    }
    for (const Tensor& tensor : tensors_) file.PadTo(alignment).Raw(tensor.data);
    return file.bytes();
  }

 private:
  struct Tensor {
    std::string name;
    uint32_t type;
    std::vector<uint64_t> dims;
    std::vector<uint8_t> data;
  };
  ByteBuilder& Begin(std::string_view key) {
    ++num_entries_;
    return entries_.String(key);
  }

  ByteBuilder entries_;
  uint64_t num_entries_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_DECODER_GGUF_WRITER_H_
