// Hash table from keys to indices that a file can't make slow.
//
// Vocabulary and merges are looked up millions of times, so sorted arrays would be slow; and their keys come from a
// file, so an ordinary hash table could be driven into quadratic time. Here an insertion that has to probe too far is
// refused: at most half of the slots are in use, so that honest keys stay far below the limit.
#ifndef HEADLANE_SRC_DECODER_TOKENIZER_TABLE_H_
#define HEADLANE_SRC_DECODER_TOKENIZER_TABLE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "decoder/mix_bits.h"

namespace headlane::decoder_internal {

inline uint64_t HashBytes(std::string_view text) noexcept {
  uint64_t hash = MixBits(text.size() + kGoldenGamma);
  while (text.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, text.data(), 8);
    hash = MixBits(hash ^ word);
    text.remove_prefix(8);
  }
  uint64_t rest = 0;
  if (!text.empty()) std::memcpy(&rest, text.data(), text.size());
  return MixBits(hash ^ rest);
}

// Holds indices only; the keys stay with the caller, who says whether the key of an index is the one looked for.
class IndexTable {
 public:
  static constexpr int32_t kNone = -1;

  // For at most `capacity` indices, 0 <= capacity <= 2^29. May throw std::bad_alloc.
  explicit IndexTable(size_t capacity = 0) : slots_(std::bit_ceil(2 * capacity + 1), kNone) {}

  // The index with this key, or kNone. `same(index)` compares keys.
  template <typename Same>
  int32_t Find(uint64_t hash, Same same) const noexcept {
    for (size_t at = hash & Mask();; at = (at + 1) & Mask()) {
      if (slots_[at] == kNone || same(slots_[at])) return slots_[at];
    }
  }

  // Enters `index` under its key; with `replace`, in the place of an equal key, else an equal key stays. False if the
  // keys collide too much.
  template <typename Same>
  [[nodiscard]] bool Insert(uint64_t hash, int32_t index, bool replace, Same same) noexcept {
    size_t at = hash & Mask();
    for (int probes = 0; probes < kMaxProbes; ++probes, at = (at + 1) & Mask()) {
      if (slots_[at] == kNone) {
        slots_[at] = index;
        return true;
      }
      if (same(slots_[at])) {
        if (replace) slots_[at] = index;
        return true;
      }
    }
    return false;
  }

 private:
  static constexpr int kMaxProbes = 512;
  size_t Mask() const noexcept { return slots_.size() - 1; }

  std::vector<int32_t> slots_;  // a power of two, at least one of them empty
};

}  // namespace headlane::decoder_internal

#endif  // HEADLANE_SRC_DECODER_TOKENIZER_TABLE_H_
