#include "bench/case_file.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace headlane::bench {
namespace {

constexpr int64_t kMostOfAnything = int64_t{1} << 24;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<std::vector<FileCase>> Cases() {
    std::vector<FileCase> cases;
    HEADLANE_RETURN_IF_ERROR(Expect('['));
    if (!Accept(']')) {
      do {
        HEADLANE_ASSIGN_OR_RETURN(FileCase entry, OneCase());
        cases.push_back(std::move(entry));
      } while (Accept(','));
      HEADLANE_RETURN_IF_ERROR(Expect(']'));
    }
    SkipSpace();
    if (at_ != text_.size()) return Error("something follows the list");
    return cases;
  }

 private:
  Result<FileCase> OneCase() {
    FileCase entry;
    HEADLANE_RETURN_IF_ERROR(Expect('{'));
    do {
      HEADLANE_ASSIGN_OR_RETURN(const std::string field, String());
      HEADLANE_RETURN_IF_ERROR(Expect(':'));
      if (field == "name" || field == "kind") {
        HEADLANE_ASSIGN_OR_RETURN((field == "name" ? entry.name : entry.kind), String());
        continue;
      }
      const std::pair<const char*, int64_t&> numbers[] = {{"b", entry.b},   {"sq", entry.sq},   {"skv", entry.skv},
                                                          {"hq", entry.hq}, {"hkv", entry.hkv}, {"d", entry.d},
                                                          {"dv", entry.dv}};
      const auto found = std::find_if(std::begin(numbers), std::end(numbers),
                                      [&](const auto& number) { return field == number.first; });
      if (found == std::end(numbers)) return Error("no field has the name \"" + field + "\"");
      HEADLANE_ASSIGN_OR_RETURN(found->second, Number());
    } while (Accept(','));
    HEADLANE_RETURN_IF_ERROR(Expect('}'));
    if (entry.dv == 0) entry.dv = entry.d;
    return Complete(entry);
  }

  Result<FileCase> Complete(const FileCase& entry) {
    if (entry.name.empty()) return Error("a case has no name");
    if (entry.kind != "prefill" && entry.kind != "decode" && entry.kind != "chunk") {
      return Error("case " + entry.name + ": kind is prefill, decode or chunk, not \"" + entry.kind + "\"");
    }
    for (const int64_t size : {entry.b, entry.sq, entry.skv, entry.hq, entry.hkv, entry.d}) {
      if (size == 0) return Error("case " + entry.name + ": one of b, sq, skv, hq, hkv, d is missing");
    }
    if (entry.hq % entry.hkv != 0) return Error("case " + entry.name + ": hkv does not divide hq");
    if (entry.sq > entry.skv) return Error("case " + entry.name + ": sq is more than skv");
    return entry;
  }

  void SkipSpace() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool Accept(char wanted) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  Status Expect(char wanted) { return Accept(wanted) ? OkStatus() : Error(std::string("'") + wanted + "' is missing"); }
  Result<std::string> String() {
    HEADLANE_RETURN_IF_ERROR(Expect('"'));
    const size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) return Error("a string has no end");
    const std::string_view value = text_.substr(at_, end - at_);
    for (const char c : value) {  // so that it can be printed again as it is
      if (c == '\\' || static_cast<unsigned char>(c) < ' ')
        return Error("a string has an escape or a control character");
    }
    at_ = end + 1;
    return std::string(value);
  }
  Result<int64_t> Number() {
    SkipSpace();
    int64_t value = 0;
    const char* const end = text_.data() + text_.size();
    const auto [next, error] = std::from_chars(text_.data() + at_, end, value);
    if (error != std::errc() || value < 1 || value > kMostOfAnything) {
      return Error("a number in 1 .. " + std::to_string(kMostOfAnything) + " is needed");
    }
    at_ = static_cast<size_t>(next - text_.data());
    return value;
  }

  Status Error(const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    return MakeStatus(StatusCode::kInvalidArgument, "line %lld: %.180s", static_cast<long long>(line), what.c_str());
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<std::vector<FileCase>> ParseCases(std::string_view json) { return Parser(json).Cases(); }

}  // namespace headlane::bench
