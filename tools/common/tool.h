// How every program of this folder starts, fails and ends: arguments by CLI11, one line on standard error and exit code
// 2 for whatever is wrong with arguments or files.
//
// Separate so that no program invents its own manners. Called by each main().
#ifndef HEADLANE_TOOLS_COMMON_TOOL_H_
#define HEADLANE_TOOLS_COMMON_TOOL_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "headlane/decoder.h"
#include "headlane/status.h"

namespace headlane::tools {

// Keeps the order in which a program writes its keys.
using Json = nlohmann::ordered_json;

// Parses and calls `run`. Exit code: 0, or 2 with "PROGRAM: what is wrong" as the only line on standard error.
// `examples` ends --help.
int RunTool(CLI::App& app, int argc, char** argv, std::string_view examples, const std::function<Status()>& run);

// Of an option for a seed: CLI11 itself would take -1 for 2^64 - 1.
CLI::Validator SeedRange();

// Writes a JSON document and a newline; bytes that are no UTF-8 come as U+FFFD.
void PrintJson(const Json& json);

// Whole contents; "-" is standard input. Errors: NotFound, FailedPrecondition (can't be read), ResourceExhausted (over
// 1 GiB).
Result<std::string> ReadWholeFile(const std::string& path);

// Progress on standard error: one line that changes on a terminal; elsewhere a line every two seconds, none for what is
// done sooner. Write the line's end with Done before anything else is printed.
class ProgressLine {
 public:
  ProgressLine(std::string what, std::string unit);
  ~ProgressLine() { Done(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  ProgressCallback Callback();
  void Done();

 private:
  void Update(int64_t done, int64_t total);

  std::string what_;
  std::string unit_;
  bool is_terminal_;
  bool shown_ = false;
  double last_;  // seconds of a steady clock
};

// Seconds of a steady clock.
double Now();

}  // namespace headlane::tools

#endif  // HEADLANE_TOOLS_COMMON_TOOL_H_
