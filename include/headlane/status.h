// How every call that can fail reports it: a code for programs and one line for people.
//
// The library never throws, prints or aborts. A message lives inside the object (no allocation, so that a failed
// allocation can be reported too) and is cut at kMaxMessage bytes.
#ifndef HEADLANE_STATUS_H_
#define HEADLANE_STATUS_H_

#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

namespace headlane {

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument,     // The caller's shapes, strides, names or options contradict each other.
  kOutOfRange,          // An index, length or position lies outside of what exists.
  kResourceExhausted,   // A limit (pages, bytes, memory, sequences) would be passed. Nothing was changed.
  kNotFound,            // No such file, sequence, tensor or key.
  kFailedPrecondition,  // Right call, wrong time: an object is not in the state that the call needs.
  kUnsupported,         // Meaningful, but not built, or not offered for this type or machine.
  kDataLoss,            // A file is damaged, truncated or hostile.
  kCancelled,           // The caller's own callback asked to stop.
  kInternal,            // A defect of the library.
};

// The name as written above, without the k. Never null.
const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  static constexpr size_t kMaxMessage = 235;

  Status() noexcept = default;
  Status(const Status& other) noexcept { Assign(other); }
  Status& operator=(const Status& other) noexcept {
    if (this != &other) Assign(other);
    return *this;
  }

  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  // One line without the code's name; empty when ok. Valid as long as the object.
  std::string_view message() const noexcept { return ok() ? std::string_view() : std::string_view(message_); }
  // The same, terminated by a zero byte.
  const char* c_str() const noexcept { return ok() ? "" : message_; }

 private:
  friend Status MakeStatus(StatusCode code, const char* format, ...) noexcept;
  friend Status MakeStatusV(StatusCode code, const char* format, std::va_list args) noexcept;

  void Assign(const Status& other) noexcept {
    code_ = other.code_;
    if (!other.ok()) std::memcpy(message_, other.message_, sizeof(message_));
  }

  StatusCode code_ = StatusCode::kOk;
  char message_[kMaxMessage + 1];  // Unset while ok.
};

// An error with a printf-style message. Errors: none. Allocation: none. Threads: any.
#if defined(__GNUC__)
[[gnu::format(printf, 2, 3)]]
#endif
Status MakeStatus(StatusCode code, const char* format, ...) noexcept;
Status MakeStatusV(StatusCode code, const char* format, std::va_list args) noexcept;

inline Status OkStatus() noexcept { return Status(); }

// A value, or the reason why there is none. value() on an error is a defect of the caller: checked in debug builds
// only.
template <typename T>
class [[nodiscard]] Result {
 public:
  // Implicit, so that functions return either side directly.
  Result(const Status& status) noexcept : status_(status) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) status_ = MakeStatus(StatusCode::kInternal, "an ok Status was used as the error of a Result");
  }
  template <typename U = T, typename = std::enable_if_t<std::is_constructible_v<T, U&&> &&
                                                        !std::is_same_v<std::remove_cvref_t<U>, Status> &&
                                                        !std::is_same_v<std::remove_cvref_t<U>, Result<T>>>>
  Result(U&& value) noexcept(std::is_nothrow_constructible_v<T, U&&>)  // NOLINT(google-explicit-constructor)
      : has_value_(true) {
    ::new (static_cast<void*>(&storage_)) T(std::forward<U>(value));
  }
  Result(Result&& other) noexcept : status_(other.status_), has_value_(other.has_value_) {
    if (has_value_) ::new (static_cast<void*>(&storage_)) T(std::move(other.value()));
  }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  Result& operator=(Result&&) = delete;
  ~Result() {
    if (has_value_) value().~T();
  }

  bool ok() const noexcept { return has_value_; }
  const Status& status() const noexcept { return status_; }

  T& value() & noexcept { return *std::launder(reinterpret_cast<T*>(&storage_)); }
  const T& value() const& noexcept { return *std::launder(reinterpret_cast<const T*>(&storage_)); }
  T&& value() && noexcept { return std::move(*std::launder(reinterpret_cast<T*>(&storage_))); }
  T& operator*() & noexcept { return value(); }
  const T& operator*() const& noexcept { return value(); }
  T&& operator*() && noexcept { return std::move(*this).value(); }
  T* operator->() noexcept { return &value(); }
  const T* operator->() const noexcept { return &value(); }

 private:
  Status status_;
  bool has_value_ = false;
  alignas(T) unsigned char storage_[sizeof(T)];
};

}  // namespace headlane

// Returns from the enclosing function when `expression`, a Status, is an error.
#define HEADLANE_RETURN_IF_ERROR(expression)                                                                 \
  do {                                                                                                       \
    if (::headlane::Status headlane_status_ = (expression); !headlane_status_.ok()) return headlane_status_; \
  } while (false)

// Declares or assigns `target` from a Result, or returns its error:
// HEADLANE_ASSIGN_OR_RETURN(AttentionPlan plan, PlanAttention(..)).
#define HEADLANE_ASSIGN_OR_RETURN(target, expression) \
  HEADLANE_ASSIGN_OR_RETURN_IMPL_(HEADLANE_CONCAT_(headlane_result_, __LINE__), target, expression)
#define HEADLANE_ASSIGN_OR_RETURN_IMPL_(result, target, expression) \
  auto result = (expression);                                       \
  if (!result.ok()) return result.status();                         \
  target = std::move(result).value()
#define HEADLANE_CONCAT_(a, b) HEADLANE_CONCAT_IMPL_(a, b)
#define HEADLANE_CONCAT_IMPL_(a, b) a##b

#endif  // HEADLANE_STATUS_H_
