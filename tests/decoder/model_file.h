// The default model for tests that need it.
#ifndef HEADLANE_TESTS_DECODER_MODEL_FILE_H_
#define HEADLANE_TESTS_DECODER_MODEL_FILE_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace headlane::testing {

// The path in HEADLANE_MODEL; empty where there is none. Use through HEADLANE_NEED_MODEL.
inline std::string ModelPath() {
  const char* path = std::getenv("HEADLANE_MODEL");
  return path == nullptr ? std::string() : std::string(path);
}

inline bool ModelIsRequired() {
  const char* required = std::getenv("HEADLANE_REQUIRE_MODEL");
  return required != nullptr && std::string(required) == "1";
}

}  // namespace headlane::testing

// Sets `path`; without a model the test is skipped, saying so, or fails if HEADLANE_REQUIRE_MODEL is 1.
#define HEADLANE_NEED_MODEL(path)                                                        \
  const std::string path = ::headlane::testing::ModelPath();                             \
  if (path.empty()) {                                                                    \
    ASSERT_FALSE(::headlane::testing::ModelIsRequired()) << "HEADLANE_MODEL is not set"; \
    std::printf("model test skipped: HEADLANE_MODEL is not set\n");                      \
    GTEST_SKIP();                                                                        \
  }                                                                                      \
  static_assert(true, "a semicolon belongs here")

#endif  // HEADLANE_TESTS_DECODER_MODEL_FILE_H_
