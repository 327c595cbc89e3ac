// Prompts of instruct models: from a conversation to token ids.
//
// Separate from the tokenizer because it knows what the pieces of a turn are. Called by the tools for --chat. Model
// files carry their template as a Jinja program; we don't run programs out of files, we recognise the one format ChatML
// ("<|im_start|>role\n...<|im_end|>\n") and build it ourselves.
#ifndef HEADLANE_SRC_DECODER_CHAT_H_
#define HEADLANE_SRC_DECODER_CHAT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decoder/gguf.h"
#include "decoder/tokenizer.h"
#include "headlane/status.h"

namespace headlane {

struct ChatMessage {
  std::string_view role;  // "system", "user", "assistant": letters, digits, '_' and '-' only
  std::string_view content;
};

// Immutable after Create; const calls from any threads. Owns all it needs except the tokenizer, which is given again.
class ChatFormat {
 public:
  // ChatML if the file's tokenizer.chat_template uses it, or if there is no template but the two tokens exist. Errors:
  // kUnsupported (another template, or none: says to use the raw mode), kDataLoss (the key has a wrong type).
  static Result<ChatFormat> Create(const GgufFile& file, const Tokenizer& tokenizer);

  // The system message that the template puts in front of a conversation without one; empty if it puts none.
  std::string_view default_system() const noexcept { return default_system_; }

  // Ids of a conversation, ready for the assistant's turn. A conversation whose first message is no system message gets
  // the default one; an empty system message of the caller's own stays, empty. Contents are taken literally: control
  // tokens spelled in them are plain characters, so the result equals the parsed template for every other content, and
  // no content can end its turn. Errors: kInvalidArgument (no message; a role with other characters; a content that
  // spells
  // <|im_start|> or <|im_end|> where the vocabulary has them as user-defined tokens), and Encode's.
  Result<std::vector<int32_t>> Encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages) const;

  // One user message, and optionally a system message (null: the default): what --chat and --system do.
  Result<std::vector<int32_t>> EncodePrompt(const Tokenizer& tokenizer, std::string_view prompt,
                                            const std::string_view* system = nullptr) const;

  // The same as text, for people to read.
  Result<std::string> Render(std::span<const ChatMessage> messages) const;

 private:
  ChatFormat() = default;

  int32_t start_id_ = kNoToken;
  int32_t end_id_ = kNoToken;
  std::string default_system_;
};

}  // namespace headlane

#endif  // HEADLANE_SRC_DECODER_CHAT_H_
