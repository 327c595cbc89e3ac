#include "tools/common/tool.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

#include "headlane/target.h"

namespace headlane::tools {
namespace {

constexpr int kExitBadInput = 2;

// One line, whatever a file's or an argument's text has in it.
int Fail(const std::string& program, std::string_view message) {
  std::string line(message);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", program.c_str(), line.c_str());
  return kExitBadInput;
}

}  // namespace

int RunTool(CLI::App& app, int argc, char** argv, std::string_view examples, const std::function<Status()>& run) {
  const std::string program = app.get_name();
  app.footer("Examples:\n" + std::string(examples) +
             "\nExit code: 0, or 2 with one line on standard error when an argument or a file is wrong."
             "\nHEADLANE_TARGET in the environment forces a SIMD target (headlane-info lists them).");
  app.get_formatter()->column_width(34);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    return Fail(program, std::string(error.what()) + " (--help says what there is)");
  }
  try {
    // A target that was asked for and can't be had is a wrong argument too.
    Status status = TargetFromEnvironment();
    if (status.ok()) status = run();
    if (!status.ok()) return Fail(program, status.message());
  } catch (const std::bad_alloc&) {
    return Fail(program, "out of memory");
  } catch (const std::exception& error) {
    return Fail(program, error.what());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return Fail(program, "can't write to standard output");
  return 0;
}

CLI::Validator SeedRange() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return is_number ? "" : "'" + text + "' is no whole number from 0 up";
      },
      "UINT");
}

void PrintJson(const Json& json) {
  std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

Result<std::string> ReadWholeFile(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  const bool is_stdin = path == "-";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(is_stdin ? stdin : std::fopen(path.c_str(), "rb"),
                                                             is_stdin ? +[](std::FILE*) { return 0; } : &std::fclose);
  if (!file) {
    return MakeStatus(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kFailedPrecondition,
                      "can't open '%.100s': %s", path.c_str(), std::strerror(errno));
  }
  std::string text;
  char buffer[1 << 16];
  for (size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0;) {
    text.append(buffer, got);
    if (text.size() > kMaxBytes) {
      return MakeStatus(StatusCode::kResourceExhausted, "'%.100s' has more than %zu bytes", path.c_str(), kMaxBytes);
    }
  }
  if (std::ferror(file.get()) != 0) {
    return MakeStatus(StatusCode::kFailedPrecondition, "can't read '%.100s': %s", path.c_str(), std::strerror(errno));
  }
  return text;
}

ProgressLine::ProgressLine(std::string what, std::string unit)
    : what_(std::move(what)), unit_(std::move(unit)), is_terminal_(isatty(STDERR_FILENO) != 0), last_(Now()) {}

ProgressCallback ProgressLine::Callback() {
  return [this](int64_t done, int64_t total) {
    Update(done, total);
    return true;
  };
}

void ProgressLine::Update(int64_t done, int64_t total) {
  const double now = Now();
  const bool is_end = done >= total;
  if (is_terminal_ ? (now - last_ < 0.1 && !(is_end && shown_)) : (now - last_ < 2.0 || is_end)) return;
  last_ = now;
  shown_ = true;
  const double percent = total > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total) : 100.0;
  std::fprintf(stderr, is_terminal_ ? "\r%s: %3.0f %% of %lld %s" : "%s: %3.0f %% of %lld %s\n", what_.c_str(), percent,
               static_cast<long long>(total), unit_.c_str());
  std::fflush(stderr);
}

void ProgressLine::Done() {
  if (shown_ && is_terminal_) std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace headlane::tools
