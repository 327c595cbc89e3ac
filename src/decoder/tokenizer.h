// Text to token ids and back, as the model file says.
//
// One class for both vocabularies that llama-family files carry: byte-level BPE (tokenizer.ggml.model "gpt2") and
// SentencePiece ("llama"). Who calls: the decoder loop, the tools, chat.h. Any bytes are text here: NUL and invalid
// UTF-8 included; and decoding what was encoded gives the same bytes.
#ifndef HEADLANE_SRC_DECODER_TOKENIZER_H_
#define HEADLANE_SRC_DECODER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decoder/gguf.h"
#include "headlane/status.h"

namespace headlane {

namespace decoder_internal {
struct TokenizerModel;

// Where in a sequence decoding is: its beginning is special (BOS, a SentencePiece vocabulary's space prefix).
struct DecodeState {
  bool at_start = true;
  bool saw_bos = false;
};
}  // namespace decoder_internal

inline constexpr int64_t kMaxVocabulary = 1 << 20;  // tokens; also the limit of merges. Larger files are refused.
inline constexpr int64_t kMaxTokenBytes = 65535;    // bytes of one token
inline constexpr int32_t kNoToken = -1;

enum class BosMode {
  kModel,   // as the file says (add_bos), unless the text itself begins with the BOS token
  kAlways,  // one more in front, whatever the text begins with
  kNever,
};

struct EncodeOptions {
  // Control tokens spelled in the text ("<|im_end|>") become those tokens; else they are plain characters, so that a
  // text from elsewhere can't end a turn. User-defined tokens are recognised in both cases.
  bool parse_special = false;
  BosMode bos = BosMode::kModel;
  // The text continues a sequence that began elsewhere: no BOS, whatever `bos` says, and no space prefix.
  bool continuation = false;
  // A byte-level vocabulary may lack a token for some byte (the default model's lacks 0x04 and 20 more). Such a byte is
  // an error, or is left out.
  bool drop_unencodable = false;
};

// Immutable after Create; const calls from any threads. Owns all it needs: the file may be closed.
class Tokenizer {
 public:
  // Errors: kNotFound (a key is missing), kDataLoss (a key is of a wrong type, a count or an id does not fit),
  // kUnsupported (tokenizer model or pre-tokenizer; lists the supported ones), kResourceExhausted (limits above).
  static Result<Tokenizer> Create(const GgufFile& file);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of a text; of an empty text none, or just BOS. Time O(n log n) in its bytes. Errors: kInvalidArgument (a byte
  // without a token: names byte and offset), kFailedPrecondition (kAlways without a BOS token), kResourceExhausted
  // (memory; a text of 2 GiB and more).
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Bytes of a whole sequence: the inverse of Encode, so without the BOS in front that BosMode::kModel puts there.
  // Control tokens give their spelling, or nothing with `skip_control`. Errors: kOutOfRange (id, naming its index and
  // the vocabulary's size).
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_control = false) const;

  int32_t vocab_size() const noexcept;
  // For one id in 0..vocab_size()-1 (else empty / false).
  std::string_view TokenBytes(int32_t id) const noexcept;  // bytes it stands for; a control token's spelling
  bool IsControl(int32_t id) const noexcept;               // control and unknown tokens: no part of a text
  bool IsStop(int32_t id) const noexcept;                  // ends a generation: EOS, end of turn, end of text
  // The token with exactly these TokenBytes, control tokens first; kNoToken if there is none.
  int32_t FindToken(std::string_view bytes) const noexcept;

  int32_t bos_id() const noexcept;  // kNoToken if the file names none
  int32_t eos_id() const noexcept;
  bool adds_bos() const noexcept;                       // what BosMode::kModel does
  std::span<const int32_t> stop_ids() const noexcept;   // ascending
  const char* model_name() const noexcept;              // "gpt2" or "llama"
  std::string_view pretokenizer_name() const noexcept;  // as in the file; empty if it names none

 private:
  friend class TokenStream;
  explicit Tokenizer(std::unique_ptr<const decoder_internal::TokenizerModel> model) noexcept;

  std::unique_ptr<const decoder_internal::TokenizerModel> model_;
};

// Decodes a generation token by token. What it returns, put together, is Decode of the ids after `prompt_len` in the
// context of a whole sequence; but a character is held back until its last byte is there, so each piece can be shown.
class TokenStream {
 public:
  struct Options {
    bool skip_control = false;
    bool at_start = false;  // the first id begins the text (a SentencePiece vocabulary then drops its space prefix)
    bool replace_invalid = false;  // bytes that are no UTF-8 come as U+FFFD, so that all output is valid
  };

  // The tokenizer must outlive the stream.
  TokenStream(const Tokenizer& tokenizer, const Options& options) noexcept;

  // The bytes that became showable with this id; the view is valid until the next call. Errors: kOutOfRange,
  // kResourceExhausted (memory).
  Result<std::string_view> Push(int32_t id);
  // What is still held back (an incomplete character, as it is or as U+FFFD). The stream can then be used again.
  std::string_view Finish() noexcept;

 private:
  const Tokenizer* tokenizer_;
  Options options_;
  decoder_internal::DecodeState state_;
  std::string pending_;  // at most 3 bytes between calls
  std::string out_;
};

}  // namespace headlane

#endif  // HEADLANE_SRC_DECODER_TOKENIZER_H_
