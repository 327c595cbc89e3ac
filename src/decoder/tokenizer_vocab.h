// The tokens of a model file: what bytes each stands for, and which one stands for given bytes.
//
// Apart from the two encoders because both read the same keys, and because decoding needs nothing else. Whatever a
// file's spelling is (GPT-2's printable stand-ins for bytes, SentencePiece's U+2581 for a space), it is turned into the
// bytes themselves on loading: beyond this file there are only bytes.
#ifndef HEADLANE_SRC_DECODER_TOKENIZER_VOCAB_H_
#define HEADLANE_SRC_DECODER_TOKENIZER_VOCAB_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "decoder/gguf.h"
#include "decoder/tokenizer_table.h"
#include "headlane/status.h"

namespace headlane::decoder_internal {

// Numbers as in tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

enum class Spelling {
  kByteLevel,      // GPT-2: each byte as a printable character
  kSentencePiece,  // U+2581 for a space; byte tokens as <0xNN>
};

// Immutable after Load; const calls from any threads.
class Vocabulary {
 public:
  // Errors: as Tokenizer::Create.
  static Result<Vocabulary> Load(const GgufFile& file, Spelling spelling);

  int32_t size() const noexcept { return static_cast<int32_t>(kinds_.size()); }
  // For 0 <= id < size(), unchecked.
  TokenKind kind(int32_t id) const noexcept { return kinds_[static_cast<size_t>(id)]; }
  std::string_view bytes(int32_t id) const noexcept {
    const size_t i = static_cast<size_t>(id);
    return std::string_view(text_).substr(ends_[i], ends_[i + 1] - ends_[i]);
  }

  // The normal token for these bytes, or kNoToken: what merging may produce. Control, byte and unused tokens are never
  // found here, however they are spelled. Of equal tokens the one with the highest id is found.
  int32_t FindNormal(std::string_view text) const noexcept;
  // Tokens of one byte: for kByteLevel normal ones, for kSentencePiece those of kind kByte; else kNoToken.
  int32_t byte_token(uint8_t byte) const noexcept { return byte_tokens_[byte]; }

  // The bytes that a normal token's spelling stands for. A byte-level spelling with a character that is no stand-in is
  // taken as it is.
  static std::string Unspell(std::string_view spelled, Spelling spelling);

 private:
  Status LoadTokens(const GgufFile& file, Spelling spelling);
  Status IndexTokens(Spelling spelling);

  std::string text_;            // of all tokens
  std::vector<uint64_t> ends_;  // [size + 1]: where each begins and ends
  std::vector<TokenKind> kinds_;
  std::array<int32_t, 256> byte_tokens_;
  IndexTable normal_;
};

}  // namespace headlane::decoder_internal

#endif  // HEADLANE_SRC_DECODER_TOKENIZER_VOCAB_H_
