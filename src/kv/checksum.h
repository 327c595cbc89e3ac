// The checksum of saved caches: 64 bits over a stream of bytes, the same for any cut of it into pieces.
//
// Separate from the format, which only says where sums stand. Called by saving, restoring, and tests that mend sums.
//
// Four lanes take a word of 8 bytes each per step, so that four multiplications are under way at a time: as fast as
// memory. Each step is a bijection of the word for any lane, and of the lane for any word, and so is the end of each
// lane: whatever changes within one word changes the sum. It tells damage; whoever forges a file computes it anew.
#ifndef HEADLANE_SRC_KV_CHECKSUM_H_
#define HEADLANE_SRC_KV_CHECKSUM_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headlane::internal {

class Checksum {
 public:
  void Add(const void* data, int64_t bytes) noexcept {
    const auto* at = static_cast<const std::byte*>(data);
    total_ += static_cast<uint64_t>(bytes);
    if (held_ > 0) {
      const int64_t n = std::min(kStep - held_, bytes);
      std::memcpy(rest_ + held_, at, static_cast<size_t>(n));
      held_ += n;
      at += n;
      bytes -= n;
      if (held_ < kStep) return;
      Steps(rest_, 1);
      held_ = 0;
    }
    Steps(at, bytes / kStep);
    held_ = bytes % kStep;
    if (held_ > 0) std::memcpy(rest_, at + (bytes - held_), static_cast<size_t>(held_));
  }

  // Of everything so far.
  uint64_t Value() const noexcept {
    Checksum last = *this;
    if (held_ > 0) {
      std::memset(last.rest_ + held_, 0, static_cast<size_t>(kStep - held_));
      last.Steps(last.rest_, 1);
    }
    uint64_t sum = total_;
    for (const uint64_t lane : last.lanes_) {
      sum = (sum ^ lane) * kSecond;
      sum ^= sum >> 32;
    }
    return sum;
  }

 private:
  static constexpr int kLanes = 4;
  static constexpr int64_t kStep = 8 * kLanes;
  // Odd; 2^64 divided by the golden ratio, and a number without a pattern.
  static constexpr uint64_t kFirst = 0x9E3779B97F4A7C15u;
  static constexpr uint64_t kSecond = 0xD1B54A32D192ED03u;

  void Steps(const std::byte* at, int64_t n) noexcept {
    uint64_t lanes[kLanes] = {lanes_[0], lanes_[1], lanes_[2], lanes_[3]};
    for (int64_t i = 0; i < n; ++i, at += kStep) {
      for (int lane = 0; lane < kLanes; ++lane) {
        uint64_t word;
        std::memcpy(&word, at + 8 * lane, sizeof(word));
        lanes[lane] = std::rotl(lanes[lane] + word * kFirst, 29) * kSecond;
      }
    }
    std::copy_n(lanes, kLanes, lanes_);
  }

  uint64_t lanes_[kLanes] = {1, 2, 3, 4};
  uint64_t total_ = 0;
  int64_t held_ = 0;  // bytes of rest_
  std::byte rest_[kStep] = {};
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_CHECKSUM_H_
