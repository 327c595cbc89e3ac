// Cuts a text into the pieces within which byte-level BPE merges: words with their space, numbers, punctuation, blanks.
//
// The rules are regular expressions of the models' own tokenizers, chosen by the name in tokenizer.ggml.pre, and run by
// PCRE2. Apart from BPE because they are two lists that grow independently. Letters and numbers are what PCRE2's
// Unicode tables say (\p{L}, \p{N}): characters that are newer than its tables count as neither.
#ifndef HEADLANE_SRC_DECODER_PRETOKENIZER_H_
#define HEADLANE_SRC_DECODER_PRETOKENIZER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "headlane/status.h"

namespace headlane::decoder_internal {

// Immutable after Create; const calls from any threads.
class Pretokenizer {
 public:
  // `name` as in the file; "" (old files name none) is taken for "gpt-2". Errors: kUnsupported (lists the known names).
  static Result<Pretokenizer> Create(std::string_view name);

  // Calls `piece` for consecutive parts of `text` that together are all of it; stops at its first error. A byte that is
  // no UTF-8 is a piece of its own, and the text before and after it is cut as if it stood alone.
  Status Split(std::string_view text, const std::function<Status(std::string_view)>& piece) const;

  // A piece that is a token is that token, even where merging would end elsewhere (Llama 3).
  bool whole_pieces_first() const noexcept { return whole_pieces_first_; }
  // Whether such models begin with BOS when the file does not say.
  bool adds_bos() const noexcept { return adds_bos_; }

 private:
  struct FreeCode {
    void operator()(void* code) const noexcept;
  };

  Pretokenizer() = default;

  std::unique_ptr<void, FreeCode> code_;  // a pcre2_code; opaque, so that only the source file sees PCRE2
  bool whole_pieces_first_ = false;
  bool adds_bos_ = false;
};

}  // namespace headlane::decoder_internal

#endif  // HEADLANE_SRC_DECODER_PRETOKENIZER_H_
