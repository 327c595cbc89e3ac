// How every program of this folder starts, fails and ends: one line on standard error and exit code 2 for whatever is
// wrong with arguments or files.
//
// Separate so that no program invents its own manners. Called by each main().
#ifndef HEADLANE_TOOLS_COMMON_TOOL_H_
#define HEADLANE_TOOLS_COMMON_TOOL_H_

#include <functional>
#include <string>
#include <string_view>

#include "headlane/decoder.h"
#include "headlane/status.h"
#include "tools/common/arguments.h"

namespace headlane::tools {

// What main() returns: exit code 0, or 2 with "PROGRAM: what is wrong" as the only line on standard error. Calls
// `body`, and no exception escapes.
int RunMain(const char* program, int argc, char** argv, int (*body)(int argc, char** argv)) noexcept;

// Parses and calls `run`; for the body of RunMain. `examples` ends --help.
int RunTool(Arguments& arguments, int argc, char** argv, std::string_view examples, const std::function<Status()>& run);

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
