#include "bench/machine.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>

namespace headlane::bench {
namespace {

constexpr const char* kAutogroup = "/proc/self/autogroup";
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Of the session before; in memory of its own, as a signal handler writes it back.
char previous_nice[8] = "";

bool WriteAutogroup(const char* nice) {
  const int file = open(kAutogroup, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t length = static_cast<ssize_t>(std::strlen(nice));
  const bool ok = write(file, nice, static_cast<size_t>(length)) == length;
  close(file);
  return ok;
}

// Only calls that a handler may make.
void GiveBackAndEnd(int signal) {
  WriteAutogroup(previous_nice);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

// "/autogroup-49 nice 0"; empty where the kernel has none.
std::string AutogroupNice() {
  std::string name, word, nice;
  std::ifstream(kAutogroup) >> name >> word >> nice;
  return word == "nice" ? nice : "";
}

bool AutogroupsCount() {
  int enabled = 0;
  return (std::ifstream("/proc/sys/kernel/sched_autogroup_enabled") >> enabled) && enabled != 0;
}

}  // namespace

TopPriority::TopPriority() {
  const std::string nice = AutogroupsCount() ? AutogroupNice() : "";
  if (!nice.empty() && nice.size() < sizeof(previous_nice)) {
    std::memcpy(previous_nice, nice.c_str(), nice.size() + 1);
    if (WriteAutogroup("-20")) {
      for (const int signal : kSignals) std::signal(signal, GiveBackAndEnd);
      outcome_ = "top, for the whole session";
      return;
    }
    previous_nice[0] = '\0';
  }
  outcome_ = setpriority(PRIO_PROCESS, 0, -20) == 0 ? "top" : "normal (raising it takes root)";
}

TopPriority::~TopPriority() {
  if (previous_nice[0] == '\0') return;
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
  WriteAutogroup(previous_nice);
  previous_nice[0] = '\0';
}

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

double ProcessCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace headlane::bench
