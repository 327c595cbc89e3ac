// target_test: what every SIMD target must hold, small enough for emulators. Runs all usable targets one by one, and
// fails when one that the caller expects was not among them.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "headlane/target.h"
#include "kernels/targets_for_test.h"
#include "targets/under_test.h"

namespace headlane::testing {
namespace {

constexpr char kUsage[] = R"(usage: target_test [OPTION...] [--gtest_... OPTION...]
  --force-targets=A,B   these count as usable although the processor does not list them: for emulators that execute more
                        than their CPUID tells. On a machine that can't, the program dies of an illegal instruction
  --targets=A,B         run on these targets only
  --expect-targets=A,B  fail unless tests ran on each of these
  --expect-best=A       fail unless A is what the processor's features choose
Tests end in the name of their target: --gtest_filter=*_on_AVX3 runs AVX3 alone, *AVX3* its extensions too.
)";

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream stream(list);
  for (std::string name; std::getline(stream, name, ',');) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

template <class Names>
std::string Join(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text.empty() ? "none" : text;
}

struct Expected {
  std::vector<std::string> targets;
  std::string best;
};

// Takes our own options out of argv. False: --help.
bool Parse(int* argc, char** argv, Expected& expected, std::vector<std::string>& errors) {
  TargetOptions& options = TheOptions();
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const char* equals = std::strchr(argv[i], '=');
    const std::string name =
        std::string(argv[i]).substr(0, equals == nullptr ? std::string::npos : static_cast<size_t>(equals - argv[i]));
    const std::string value = equals == nullptr ? "" : equals + 1;
    if (name == "--help" || name == "-h") return false;
    if (name == "--force-targets") {
      options.added = Split(value);
    } else if (name == "--targets") {
      for (const std::string& target : Split(value)) options.only.insert(target);
    } else if (name == "--expect-targets") {
      expected.targets = Split(value);
    } else if (name == "--expect-best") {
      expected.best = value;
    } else if (name.starts_with("--gtest_")) {
      argv[kept++] = argv[i];
    } else {
      errors.push_back("unknown argument '" + std::string(argv[i]) + "'");
    }
  }
  *argc = kept;
  return true;
}

int Main(int argc, char** argv) {
  Expected expected;
  std::vector<std::string> errors;
  if (!Parse(&argc, argv, expected, errors)) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  // Before anything else asks the library: its list of targets is made once.
  for (const std::string& name : TheOptions().added) {
    const Status status = internal::AddTargetForTest(name.c_str());
    if (!status.ok()) errors.emplace_back(status.c_str());
  }
  for (const std::string& error : errors) std::fprintf(stderr, "target_test: %s\n", error.c_str());
  if (!errors.empty()) return 2;

  const Status reset = ForceTarget(nullptr);
  const std::string best = reset.ok() ? ActiveTarget().name : "unknown";
  std::printf("usable targets: %s\n", Join(TargetsUnderTest()).c_str());
  std::printf("added by --force-targets: %s\n", Join(TheOptions().added).c_str());
  std::printf("chosen by the processor's features: %s\n", best.c_str());

  ::testing::InitGoogleTest(&argc, argv);
  int status = RUN_ALL_TESTS();
  if (GTEST_FLAG_GET(list_tests)) return status;

  std::printf("targets that tests ran on: %s\n", Join(TargetsThatRan()).c_str());
  for (const std::string& name : expected.targets) {
    if (TargetsThatRan().contains(name)) continue;
    std::fprintf(stderr, "target_test: FAILED: target %s was expected, and no test ran on it\n", name.c_str());
    status = 1;
  }
  if (!expected.best.empty() && expected.best != best) {
    std::fprintf(stderr, "target_test: FAILED: %s was chosen, and %s was expected\n", best.c_str(),
                 expected.best.c_str());
    status = 1;
  }
  return status;
}

}  // namespace
}  // namespace headlane::testing

int main(int argc, char** argv) { return headlane::testing::Main(argc, argv); }
