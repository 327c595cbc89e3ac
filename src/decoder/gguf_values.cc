// The typed accessors of GgufFile. Apart from gguf.cc, which decides what is a valid file: here a valid file is asked
// for things that it may lack, or hold as another type.
#include <cmath>
#include <cstdio>
#include <limits>

#include "decoder/gguf.h"
#include "decoder/unicode.h"

namespace headlane {
namespace {

using decoder_internal::Printable;

template <typename T>
T Load(const GgufEntry& entry) {
  T value;
  std::memcpy(&value, entry.value.data(), sizeof(T));
  return value;
}

Status MissingKey(std::string_view key) {
  return MakeStatus(StatusCode::kNotFound, "the file has no metadata key '%s'", Printable(key).c_str());
}

Status WrongType(const GgufEntry& entry, const char* wanted) {
  const bool array = entry.type == GgufType::kArray;
  return MakeStatus(StatusCode::kDataLoss, "metadata key '%s' is %s%s, not %s", Printable(entry.key).c_str(),
                    array ? "an array of " : "of type ", GgufTypeName(entry.element_type), wanted);
}

// The value of an integer of any type as sign and magnitude, so that u64 and i64 both fit.
struct Integer {
  bool negative;
  uint64_t magnitude;
};
template <typename T>
Integer Signed(T value) {
  const int64_t wide = value;  // NOLINT(bugprone-signed-char-misuse): int8 numbers, not characters
  return {wide < 0, wide < 0 ? 0 - static_cast<uint64_t>(wide) : static_cast<uint64_t>(wide)};
}

Result<Integer> LoadInteger(const GgufEntry& entry) {
  switch (entry.type) {
    case GgufType::kUint8:
      return Integer{false, Load<uint8_t>(entry)};
    case GgufType::kUint16:
      return Integer{false, Load<uint16_t>(entry)};
    case GgufType::kUint32:
      return Integer{false, Load<uint32_t>(entry)};
    case GgufType::kUint64:
      return Integer{false, Load<uint64_t>(entry)};
    case GgufType::kInt8:
      return Signed(Load<int8_t>(entry));
    case GgufType::kInt16:
      return Signed(Load<int16_t>(entry));
    case GgufType::kInt32:
      return Signed(Load<int32_t>(entry));
    case GgufType::kInt64:
      return Signed(Load<int64_t>(entry));
    default:
      return WrongType(entry, "an integer");
  }
}

Result<uint32_t> ToU32(const GgufEntry& entry, uint32_t low, uint32_t high) {
  HEADLANE_ASSIGN_OR_RETURN(const Integer value, LoadInteger(entry));
  if (value.negative || value.magnitude < low || value.magnitude > high) {
    return MakeStatus(StatusCode::kDataLoss, "metadata key '%s' is %s%llu; %u to %u are possible",
                      Printable(entry.key).c_str(), value.negative ? "-" : "",
                      static_cast<unsigned long long>(value.magnitude), low, high);
  }
  return static_cast<uint32_t>(value.magnitude);
}

Result<float> ToF32(const GgufEntry& entry) {
  if (entry.type == GgufType::kFloat32) return Load<float>(entry);
  if (entry.type != GgufType::kFloat64) return WrongType(entry, "a float");
  const double value = Load<double>(entry);
  // Clamp before converting: a finite double beyond f32 is undefined behaviour.
  if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max())) {
    return MakeStatus(StatusCode::kDataLoss, "metadata key '%s' is %g; the greatest f32 is %g",
                      Printable(entry.key).c_str(), value, static_cast<double>(std::numeric_limits<float>::max()));
  }
  return static_cast<float>(value);
}

Result<bool> ToBool(const GgufEntry& entry) {
  if (entry.type != GgufType::kBool) return WrongType(entry, "a bool");
  return entry.value[0] != 0;
}

Result<std::string_view> ToString(const GgufEntry& entry) {
  if (entry.type != GgufType::kString) return WrongType(entry, "a string");
  return std::string_view(reinterpret_cast<const char*>(entry.value.data()), entry.value.size());
}

// "[576, 49152]", for messages.
class ShapeText {
 public:
  ShapeText(const int64_t* dims, int32_t num_dims) {
    int n = 0;
    for (int32_t i = 0; i < num_dims; ++i) {
      n += std::snprintf(text_ + n, sizeof(text_) - static_cast<size_t>(n), "%s%lld", i == 0 ? "[" : ", ",
                         static_cast<long long>(dims[i]));
    }
    std::snprintf(text_ + n, sizeof(text_) - static_cast<size_t>(n), "]");
  }
  const char* c_str() const { return text_; }

 private:
  char text_[kGgufMaxDims * 22 + 2];  // a 64-bit number and ", " each
};

}  // namespace

Result<const GgufEntry*> GgufFile::Need(std::string_view key) const noexcept {
  const GgufEntry* entry = FindEntry(key);
  if (entry == nullptr) return MissingKey(key);
  return entry;
}

Result<uint32_t> GgufFile::GetU32(std::string_view key) const noexcept {
  return GetU32InRange(key, 0, std::numeric_limits<uint32_t>::max());
}

Result<uint32_t> GgufFile::GetU32Or(std::string_view key, uint32_t fallback) const noexcept {
  return FindEntry(key) == nullptr ? Result<uint32_t>(fallback) : GetU32(key);
}

Result<uint32_t> GgufFile::GetU32InRange(std::string_view key, uint32_t low, uint32_t high) const noexcept {
  HEADLANE_ASSIGN_OR_RETURN(const GgufEntry* entry, Need(key));
  return ToU32(*entry, low, high);
}

Result<float> GgufFile::GetF32(std::string_view key) const noexcept {
  HEADLANE_ASSIGN_OR_RETURN(const GgufEntry* entry, Need(key));
  return ToF32(*entry);
}

Result<float> GgufFile::GetF32Or(std::string_view key, float fallback) const noexcept {
  return FindEntry(key) == nullptr ? Result<float>(fallback) : GetF32(key);
}

Result<bool> GgufFile::GetBoolOr(std::string_view key, bool fallback) const noexcept {
  const GgufEntry* entry = FindEntry(key);
  return entry == nullptr ? Result<bool>(fallback) : ToBool(*entry);
}

Result<std::string_view> GgufFile::GetString(std::string_view key) const noexcept {
  HEADLANE_ASSIGN_OR_RETURN(const GgufEntry* entry, Need(key));
  return ToString(*entry);
}

Result<std::string_view> GgufFile::GetStringOr(std::string_view key, std::string_view fallback) const noexcept {
  return FindEntry(key) == nullptr ? Result<std::string_view>(fallback) : GetString(key);
}

Result<GgufStringArray> GgufFile::GetStringArray(std::string_view key) const noexcept {
  HEADLANE_ASSIGN_OR_RETURN(const GgufEntry* entry, Need(key));
  if (entry->type != GgufType::kArray || entry->element_type != GgufType::kString) {
    return WrongType(*entry, "an array of string");
  }
  return GgufStringArray(entry->value, entry->count);
}

Result<GgufArray<float>> GgufFile::GetF32Array(std::string_view key) const noexcept {
  HEADLANE_ASSIGN_OR_RETURN(const GgufEntry* entry, Need(key));
  if (entry->type != GgufType::kArray || entry->element_type != GgufType::kFloat32) {
    return WrongType(*entry, "an array of f32");
  }
  return GgufArray<float>(entry->value.data(), entry->count);
}

Result<GgufArray<int32_t>> GgufFile::GetI32Array(std::string_view key) const noexcept {
  HEADLANE_ASSIGN_OR_RETURN(const GgufEntry* entry, Need(key));
  const bool is_u32 = entry->element_type == GgufType::kUint32;
  if (entry->type != GgufType::kArray || (entry->element_type != GgufType::kInt32 && !is_u32)) {
    return WrongType(*entry, "an array of i32");
  }
  const GgufArray<int32_t> values(entry->value.data(), entry->count);
  for (int64_t i = 0; is_u32 && i < values.size(); ++i) {
    if (values[i] < 0) {
      return MakeStatus(StatusCode::kDataLoss, "metadata key '%s': element %lld is %u; the limit is %d",
                        Printable(key).c_str(), static_cast<long long>(i), static_cast<uint32_t>(values[i]),
                        std::numeric_limits<int32_t>::max());
    }
  }
  return values;
}

Result<GgufTensor> GgufFile::GetTensor(std::string_view name) const noexcept {
  const GgufTensor* tensor = FindTensor(name);
  if (tensor == nullptr)
    return MakeStatus(StatusCode::kNotFound, "the file has no tensor '%s'", Printable(name).c_str());
  return *tensor;
}

Result<GgufTensor> GgufFile::GetTensor(std::string_view name, std::initializer_list<int64_t> dims) const noexcept {
  HEADLANE_ASSIGN_OR_RETURN(const GgufTensor tensor, GetTensor(name));
  std::array<int64_t, kGgufMaxDims> wanted = {1, 1, 1, 1};
  int32_t num_wanted = 0;
  for (const int64_t dim : dims) {
    if (num_wanted < kGgufMaxDims) wanted[static_cast<size_t>(num_wanted++)] = dim;
  }
  if (tensor.dims != wanted) {
    return MakeStatus(StatusCode::kDataLoss, "tensor '%s' is %s, not %s", Printable(name).c_str(),
                      ShapeText(tensor.dims.data(), tensor.num_dims).c_str(),
                      ShapeText(wanted.data(), num_wanted).c_str());
  }
  return tensor;
}

}  // namespace headlane
