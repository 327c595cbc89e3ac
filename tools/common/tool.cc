#include "tools/common/tool.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "headlane/target.h"

namespace headlane::tools {
namespace {

constexpr int kExitBadInput = 2;

// One line, whatever a file's or an argument's text has in it. Takes no memory: that may be what is wrong.
int Fail(const char* program, std::string_view message) noexcept {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: ", program);
  char part[256];
  while (!message.empty()) {
    const size_t size = std::min(message.size(), sizeof(part));
    for (size_t i = 0; i < size; ++i) {
      const auto c = static_cast<unsigned char>(message[i]);
      part[i] = c < 0x20 || c == 0x7F ? ' ' : message[i];
    }
    std::fwrite(part, 1, size, stderr);
    message.remove_prefix(size);
  }
  std::fputc('\n', stderr);
  return kExitBadInput;
}

}  // namespace

int RunMain(const char* program, int argc, char** argv, int (*body)(int argc, char** argv)) noexcept {
  try {
    return body(argc, argv);
  } catch (const std::bad_alloc&) {
    return Fail(program, "out of memory");
  } catch (const std::exception& error) {
    return Fail(program, error.what());
  } catch (...) {
    return Fail(program, "an unknown exception");
  }
}

int RunTool(Arguments& arguments, int argc, char** argv, std::string_view examples,
            const std::function<Status()>& run) {
  const char* const program = arguments.program().c_str();
  std::string error;
  if (!arguments.Parse(argc, argv,
                       "Examples:\n" + std::string(examples) +
                           "\nExit code: 0, or 2 with one line on standard error when an argument or a file is wrong."
                           "\nHEADLANE_TARGET in the environment forces a SIMD target (headlane-info lists them).",
                       error)) {
    return error.empty() ? 0 : Fail(program, error + " (--help says what there is)");
  }
  // A target that was asked for and can't be had is a wrong argument too.
  Status status = TargetFromEnvironment();
  if (status.ok()) status = run();
  if (!status.ok()) return Fail(program, status.message());
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return Fail(program, "can't write to standard output");
  return 0;
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
  // Short only at the end or at an error; neither is read past.
  for (size_t got = sizeof(buffer); got == sizeof(buffer);) {
    got = std::fread(buffer, 1, sizeof(buffer), file.get());
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
