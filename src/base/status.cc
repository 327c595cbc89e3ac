#include "headlane/status.h"

#include <cstdio>

namespace headlane {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "Ok";
    case StatusCode::kInvalidArgument:
      return "InvalidArgument";
    case StatusCode::kOutOfRange:
      return "OutOfRange";
    case StatusCode::kResourceExhausted:
      return "ResourceExhausted";
    case StatusCode::kNotFound:
      return "NotFound";
    case StatusCode::kFailedPrecondition:
      return "FailedPrecondition";
    case StatusCode::kUnsupported:
      return "Unsupported";
    case StatusCode::kDataLoss:
      return "DataLoss";
    case StatusCode::kCancelled:
      return "Cancelled";
    case StatusCode::kInternal:
      return "Internal";
  }
  return "?";
}

Status MakeStatusV(StatusCode code, const char* format, std::va_list args) noexcept {
  Status status;
  status.code_ = code == StatusCode::kOk ? StatusCode::kInternal : code;
  std::vsnprintf(status.message_, sizeof(status.message_), format, args);
  return status;
}

Status MakeStatus(StatusCode code, const char* format, ...) noexcept {
  std::va_list args;
  va_start(args, format);
  const Status status = MakeStatusV(code, format, args);
  va_end(args);
  return status;
}

}  // namespace headlane
