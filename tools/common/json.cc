#include "tools/common/json.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

namespace headlane::tools {

using Document = nlohmann::ordered_json;

struct JsonWriter {
  Document operator()(const Json& json) const { return std::visit(*this, json.value_); }
  Document operator()(const Json::Array& array) const {
    Document out = Document::array();
    for (const Json& element : array) out.push_back((*this)(element));
    return out;
  }
  Document operator()(const Json::Object& object) const {
    Document out = Document::object();
    for (size_t i = 0; i < object.keys.size(); ++i) out[object.keys[i]] = (*this)(object.values[i]);
    return out;
  }
  template <typename T>
  Document operator()(const T& scalar) const {
    return scalar;
  }
};

Json::Json(std::initializer_list<Json> elements) {
  const auto is_member = [](const Json& json) {
    const auto* pair = std::get_if<Array>(&json.value_);
    return pair != nullptr && pair->size() == 2 && std::holds_alternative<std::string>((*pair)[0].value_);
  };
  bool is_object = true;
  for (const Json& element : elements) is_object = is_object && is_member(element);
  if (!is_object) {
    value_ = Array(elements);
    return;
  }
  for (const Json& element : elements) {
    const Array& pair = std::get<Array>(element.value_);
    (*this)[std::get<std::string>(pair[0].value_)] = pair[1];
  }
}

Json& Json::operator[](std::string_view key) {
  if (std::holds_alternative<std::nullptr_t>(value_)) value_ = Object();
  Object& object = std::get<Object>(value_);
  for (size_t i = 0; i < object.keys.size(); ++i) {
    if (object.keys[i] == key) return object.values[i];
  }
  object.keys.emplace_back(key);
  return object.values.emplace_back();
}

void Json::Append(Json value) {
  if (std::holds_alternative<std::nullptr_t>(value_)) value_ = Array();
  std::get<Array>(value_).push_back(std::move(value));
}

void Json::Merge(const Json& object) {
  const Object& other = std::get<Object>(object.value_);
  for (size_t i = 0; i < other.keys.size(); ++i) (*this)[other.keys[i]] = other.values[i];
}

std::string Json::Dump() const { return JsonWriter()(*this).dump(-1, ' ', false, Document::error_handler_t::replace); }

void PrintJson(const Json& json) { std::printf("%s\n", json.Dump().c_str()); }

}  // namespace headlane::tools
