// Byte-level BPE ("gpt2" vocabularies): pieces of text, as bytes, merged by rank.
//
// Apart from the tokenizer, which handles what surrounds plain text; see tokenizer_spm.h for the other kind of merging.
// The result is what the models' own tokenizers define: of all neighbours that may merge, those of the lowest rank
// first, the leftmost among equals.
#ifndef HEADLANE_SRC_DECODER_BPE_H_
#define HEADLANE_SRC_DECODER_BPE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "decoder/gguf.h"
#include "decoder/pretokenizer.h"
#include "decoder/tokenizer_table.h"
#include "decoder/tokenizer_vocab.h"
#include "headlane/status.h"

namespace headlane::decoder_internal {

// Immutable after Load; const calls from any threads. The vocabulary must outlive it and stay where it is.
class BpeEncoder {
 public:
  // Errors: as Tokenizer::Create.
  static Result<BpeEncoder> Load(const GgufFile& file, const Vocabulary& vocabulary, Pretokenizer pretokenizer);

  // Appends the ids of a plain text of less than 2^31 bytes. `offset` is added to positions in messages. Errors: as
  // Tokenizer::Encode.
  Status Encode(std::string_view text, size_t offset, bool drop_unencodable, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    int32_t left, right, result;
  };
  struct Scratch;

  BpeEncoder(const Vocabulary& vocabulary, Pretokenizer pretokenizer);
  Status LoadMerges(const GgufStringArray& merges);
  int32_t FindRank(int32_t left, int32_t right) const noexcept;
  Status EncodePiece(std::string_view piece, size_t offset, bool drop_unencodable, Scratch* scratch,
                     std::vector<int32_t>* ids) const;

  const Vocabulary* vocabulary_;
  Pretokenizer pretokenizer_;
  std::vector<Merge> merges_;  // by rank
  IndexTable ranks_;           // (left, right) -> rank
};

}  // namespace headlane::decoder_internal

#endif  // HEADLANE_SRC_DECODER_BPE_H_
