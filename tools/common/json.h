// A JSON value to be written: what programs put together for --json.
//
// Separate from the library that writes it (json.cc), which takes seconds of compile time per file that includes it.
#ifndef HEADLANE_TOOLS_COMMON_JSON_H_
#define HEADLANE_TOOLS_COMMON_JSON_H_

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace headlane::tools {

// Keeps the order in which a program writes its keys.
class Json {
 public:
  using Array = std::vector<Json>;
  struct Object {
    std::vector<std::string> keys;
    std::vector<Json> values;  // of each key
  };

  // Implicit, so that a document is written down as it looks: {{"tokens", 3}, {"text", "abc"}}.
  // NOLINTBEGIN(google-explicit-constructor)
  Json(std::nullptr_t = nullptr) {}
  Json(bool value) : value_(value) {}
  Json(double value) : value_(value) {}
  template <std::signed_integral T>
  Json(T value) : value_(int64_t{value}) {}
  template <std::unsigned_integral T>
    requires(!std::same_as<T, bool>)
  Json(T value) : value_(uint64_t{value}) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  template <typename T>
  Json(const std::vector<T>& values) : value_(Array(values.begin(), values.end())) {}
  // An object if every element is an array of a string and one more; an array otherwise.
  Json(std::initializer_list<Json> elements);
  // NOLINTEND(google-explicit-constructor)

  static Json MakeArray() { return Json(Array()); }

  // Of an object, or of null, which becomes one. Adds the key where it is missing.
  Json& operator[](std::string_view key);
  // To an array, or to null, which becomes one.
  void Append(Json value);
  // The members of another object, behind those of this one.
  void Merge(const Json& object);

  // One line. Bytes that are no UTF-8 come as U+FFFD, numbers that are none as null.
  std::string Dump() const;

 private:
  friend struct JsonWriter;
  std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

// Writes a document and a newline to standard output.
void PrintJson(const Json& json);

}  // namespace headlane::tools

#endif  // HEADLANE_TOOLS_COMMON_JSON_H_
