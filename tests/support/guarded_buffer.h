// Memory that ends at a page nobody may touch: an over-read or over-write by one byte stops the test. Filled with 0xFF,
// which is a NaN in every float type and an absurd number in every integer type, so that reading what was not written
// shows too.
#ifndef HEADLANE_TESTS_SUPPORT_GUARDED_BUFFER_H_
#define HEADLANE_TESTS_SUPPORT_GUARDED_BUFFER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headlane::testing {

class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes);
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  ~GuardedBuffer();

  // The last byte stands right before the guard page. Aligned to 64 bytes if `bytes` is a multiple of 64.
  unsigned char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
};

template <typename T>
class GuardedArray {
 public:
  explicit GuardedArray(size_t n) : buffer_(n * sizeof(T)), n_(n) {}
  explicit GuardedArray(const std::vector<T>& values) : GuardedArray(values.size()) {
    std::copy(values.begin(), values.end(), data());
  }
  GuardedArray(GuardedArray&&) noexcept = default;

  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }
  size_t size() const { return n_; }
  T& operator[](size_t i) const { return data()[i]; }

 private:
  GuardedBuffer buffer_;
  size_t n_;
};

using GuardedFloats = GuardedArray<float>;

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_SUPPORT_GUARDED_BUFFER_H_
