// Turns a failed allocation into a Status, at the public entry points of this folder.
//
// The readers bound what they ask for, so this is for a machine that is out of memory, not for hostile files.
#ifndef HEADLANE_SRC_DECODER_ALLOC_GUARD_H_
#define HEADLANE_SRC_DECODER_ALLOC_GUARD_H_

#include <new>
#include <stdexcept>

#include "headlane/status.h"

namespace headlane::decoder_internal {

// What `function` returns, a Status or a Result; kResourceExhausted ("out of memory while <what>") if it ran out of
// memory.
template <typename Function>
auto GuardAllocation(const char* what, Function&& function) noexcept -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return MakeStatus(StatusCode::kResourceExhausted, "out of memory while %s", what);
  } catch (const std::length_error&) {
    return MakeStatus(StatusCode::kResourceExhausted, "out of memory while %s: larger than any container", what);
  }
}

}  // namespace headlane::decoder_internal

#endif  // HEADLANE_SRC_DECODER_ALLOC_GUARD_H_
