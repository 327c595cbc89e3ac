// The command line of a program: its options, where their values go, and --help.
//
// Separate from the library that parses it (arguments.cc), which takes many seconds of compile time per file that
// includes it. Filled by each program's Main, read by RunTool.
#ifndef HEADLANE_TOOLS_COMMON_ARGUMENTS_H_
#define HEADLANE_TOOLS_COMMON_ARGUMENTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headlane::tools {

// `names` are like "-t,--threads". What a variable holds when its option is added is the option's default; it must live
// until Parse has returned.
class Arguments {
 public:
  Arguments(std::string program, const std::string& description);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  const std::string& program() const { return program_; }

  void Flag(const char* names, bool& value, const std::string& help);
  // A number within [min, max].
  void Number(const char* names, int& value, int64_t min, int64_t max, const std::string& help);
  void Number(const char* names, int64_t& value, int64_t min, int64_t max, const std::string& help);
  void Number(const char* names, float& value, float min, float max, const std::string& help);
  // Several of them, with commas between.
  void Numbers(const char* names, std::vector<int>& values, int64_t min, int64_t max, const std::string& help);
  void Numbers(const char* names, std::vector<int64_t>& values, int64_t min, int64_t max, const std::string& help);
  // Any whole number from 0 up; -1 is none.
  void Seed(const char* names, uint64_t& value, const std::string& help);
  void Choice(const char* names, std::string& value, const std::vector<std::string>& choices, const std::string& help);
  void Text(const char* names, std::string& value, const std::string& help);
  void Text(const char* names, std::optional<std::string>& value, const std::string& help);
  void RequiredText(const char* names, std::string& value, const std::string& help);

  struct TextOption {
    const char* names;
    std::string& value;
    std::string help;
  };
  // Exactly one of them must be given.
  void OneOf(const char* title, const std::vector<TextOption>& options);
  // An error where `name` is given without a word.
  void NotEmpty(const char* name);
  // An error where `name` is given along with one of the others.
  void Excludes(const char* name, const std::vector<const char*>& others);

  // Sets the values; `footer` ends --help. False when the program has nothing more to do: --help was printed, or
  // `error` says what is wrong.
  bool Parse(int argc, char** argv, const std::string& footer, std::string& error);

 private:
  struct Impl;
  std::string program_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headlane::tools

#endif  // HEADLANE_TOOLS_COMMON_ARGUMENTS_H_
