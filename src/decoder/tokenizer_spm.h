// SentencePiece's BPE ("llama" vocabularies): characters merged by the score of the token that they give.
//
// Apart from the tokenizer, which handles what surrounds plain text; see bpe.h for the other kind of merging. The
// result is what SentencePiece defines: of all neighbours whose text together is a token, those with the highest score
// first, the leftmost among equals; what is no token in the end becomes one token per byte.
#ifndef HEADLANE_SRC_DECODER_TOKENIZER_SPM_H_
#define HEADLANE_SRC_DECODER_TOKENIZER_SPM_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "decoder/gguf.h"
#include "decoder/tokenizer_vocab.h"
#include "headlane/status.h"

namespace headlane::decoder_internal {

// Immutable after Load; const calls from any threads. The vocabulary must outlive it and stay where it is.
class SpmEncoder {
 public:
  // Errors: as Tokenizer::Create.
  static Result<SpmEncoder> Load(const GgufFile& file, const Vocabulary& vocabulary);

  // Appends the ids of a plain text of less than 2^31 - 1 bytes, with a space in front of it if `space_prefix`.
  // `offset` is added to positions in messages. Errors: as Tokenizer::Encode.
  Status Encode(std::string_view text, bool space_prefix, size_t offset, bool drop_unencodable,
                std::vector<int32_t>* ids) const;

 private:
  explicit SpmEncoder(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}

  const Vocabulary* vocabulary_;
  std::vector<float> scores_;  // [vocabulary]
  size_t max_token_bytes_ = 0;
};

}  // namespace headlane::decoder_internal

#endif  // HEADLANE_SRC_DECODER_TOKENIZER_SPM_H_
