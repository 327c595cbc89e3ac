// Finds control and user-defined tokens spelled out in a text.
//
// Apart from the encoders because it comes before either of them: what lies between such tokens is all they see.
#ifndef HEADLANE_SRC_DECODER_TOKENIZER_SPECIAL_H_
#define HEADLANE_SRC_DECODER_TOKENIZER_SPECIAL_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "decoder/tokenizer_vocab.h"

namespace headlane::decoder_internal {

// Immutable; const calls from any threads. The vocabulary must outlive it and stay where it is.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Vocabulary& vocabulary);

  struct Match {
    size_t begin, length;  // bytes within the text; length 0: none until its end
    int32_t id;
  };
  // The first token spelled in `text` at or after `from`; of several that begin there the longest. User-defined ones
  // always, control (and unknown) ones if `control`. Time linear in what it passes, times the longest common beginning.
  Match FindNext(std::string_view text, size_t from, bool control) const noexcept;

  // The token spelled exactly like this, or kNoToken.
  int32_t FindExact(std::string_view spelling) const noexcept;

 private:
  Match LongestAt(std::string_view text, size_t begin, bool control) const noexcept;

  const Vocabulary& vocabulary_;
  std::vector<int32_t> sorted_;           // ids by their bytes, equal ones by descending id
  std::array<uint32_t, 257> first_byte_;  // sorted_[first_byte_[b]..first_byte_[b + 1]) begin with byte b
};

}  // namespace headlane::decoder_internal

#endif  // HEADLANE_SRC_DECODER_TOKENIZER_SPECIAL_H_
