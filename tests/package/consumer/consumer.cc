// What an engine's own build does with the installed package: includes public headers, links, calls.
#include <cstdio>
#include <cstring>

#include "headlane/dtype.h"
#include "headlane/status.h"

int main() {
  const headlane::Status status = headlane::MakeStatus(headlane::StatusCode::kNotFound, "%s", "consumer");
  const bool right = !status.ok() && status.message() == "consumer" &&
                     std::strcmp(headlane::DTypeName(headlane::DType::kBF16), "bf16") == 0;
  std::puts(right ? "consumer: ok" : "consumer: wrong results from the installed library");
  return right ? 0 : 1;
}
