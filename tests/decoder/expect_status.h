// Checks the code of an error and a part of its message, for a Status or a Result.
#ifndef HEADLANE_TESTS_DECODER_EXPECT_STATUS_H_
#define HEADLANE_TESTS_DECODER_EXPECT_STATUS_H_

#include <gtest/gtest.h>

#include <string_view>

#include "headlane/status.h"

namespace headlane::testing {

inline Status StatusOf(const Status& status) { return status; }
template <typename T>
Status StatusOf(const Result<T>& result) {
  return result.ok() ? OkStatus() : result.status();
}

inline ::testing::AssertionResult IsError(const Status& status, StatusCode code, std::string_view part) {
  if (status.code() == code && status.message().find(part) != std::string_view::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << StatusCodeName(status.code()) << ": " << status.message() << "\n  expected "
                                       << StatusCodeName(code) << " with: " << part;
}

#define EXPECT_ERROR(expression, code, part) \
  EXPECT_TRUE(                               \
      ::headlane::testing::IsError(::headlane::testing::StatusOf(expression), ::headlane::StatusCode::code, part))

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_DECODER_EXPECT_STATUS_H_
