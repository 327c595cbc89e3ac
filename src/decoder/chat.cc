#include "decoder/chat.h"

#include <algorithm>

#include "decoder/alloc_guard.h"
#include "decoder/unicode.h"

namespace headlane {
namespace {

using decoder_internal::GuardAllocation;
using decoder_internal::Printable;

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";
constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";

// The text of a system message that stands as a constant in a template, from behind "<|im_start|>" on: "system", a line
// break, the text, "<|im_end|>". Within a quoted string `quote` ends it and backslashes escape; outside (quote 0) a
// placeholder does. Empty if it is no constant.
std::string ConstantSystemMessage(std::string_view at, char quote) {
  constexpr std::string_view kRole = "system";
  if (!at.starts_with(kRole)) return {};
  at.remove_prefix(kRole.size());
  std::string text;
  while (!at.empty() && !at.starts_with(kEnd)) {
    char c = at.front();
    at.remove_prefix(1);
    if (quote != 0 && c == quote) return {};
    if (quote == 0 && c == '{') return {};
    if (quote != 0 && c == '\\' && !at.empty()) {
      c = at.front() == 'n' ? '\n' : at.front() == 't' ? '\t' : at.front();
      at.remove_prefix(1);
    }
    text.push_back(c);
  }
  return at.empty() || text.empty() || text.front() != '\n' ? std::string() : text.substr(1);
}

std::string FindDefaultSystem(std::string_view chat_template) {
  for (size_t at = chat_template.find(kStart); at != std::string_view::npos; at = chat_template.find(kStart, at + 1)) {
    const char before = at > 0 ? chat_template[at - 1] : '\0';
    const char quote = before == '\'' || before == '"' ? before : '\0';
    std::string text = ConstantSystemMessage(chat_template.substr(at + kStart.size()), quote);
    if (!text.empty()) return text;
  }
  return {};
}

Status CheckRole(std::string_view role) {
  const bool plain = std::all_of(role.begin(), role.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (plain && !role.empty()) return OkStatus();
  return MakeStatus(StatusCode::kInvalidArgument, "'%s' is no role of a message", Printable(role).c_str());
}

// Calls `turn(role, content)` for each message, the default system message first where it belongs.
template <typename Turn>
Status ForEachTurn(std::span<const ChatMessage> messages, std::string_view default_system, Turn turn) {
  if (messages.empty()) return MakeStatus(StatusCode::kInvalidArgument, "a conversation without a message");
  if (messages[0].role != "system" && !default_system.empty()) {
    HEADLANE_RETURN_IF_ERROR(turn(std::string_view("system"), default_system));
  }
  for (const ChatMessage& message : messages) {
    HEADLANE_RETURN_IF_ERROR(CheckRole(message.role));
    HEADLANE_RETURN_IF_ERROR(turn(message.role, message.content));
  }
  return OkStatus();
}

}  // namespace

Result<ChatFormat> ChatFormat::Create(const GgufFile& file, const Tokenizer& tokenizer) {
  HEADLANE_ASSIGN_OR_RETURN(const std::string_view chat_template, file.GetStringOr(kTemplateKey, ""));
  if (!chat_template.empty() && chat_template.find(kStart) == std::string_view::npos) {
    return MakeStatus(
        StatusCode::kUnsupported,
        "the model's chat template is not ChatML, the only supported one: write the prompt in the model's own "
        "format and give it raw");
  }
  ChatFormat format;
  format.start_id_ = tokenizer.FindToken(kStart);
  format.end_id_ = tokenizer.FindToken(kEnd);
  if (format.start_id_ == kNoToken || format.end_id_ == kNoToken) {
    return MakeStatus(StatusCode::kUnsupported,
                      "the model has no chat format that is supported (ChatML: no token %s): give the prompt raw",
                      format.start_id_ == kNoToken ? kStart.data() : kEnd.data());
  }
  return GuardAllocation("reading the chat template", [&]() -> Result<ChatFormat> {
    format.default_system_ = FindDefaultSystem(chat_template);
    return std::move(format);
  });
}

Result<std::vector<int32_t>> ChatFormat::Encode(const Tokenizer& tokenizer,
                                                std::span<const ChatMessage> messages) const {
  return GuardAllocation("encoding a conversation", [&]() -> Result<std::vector<int32_t>> {
    std::vector<int32_t> ids;
    if (tokenizer.adds_bos() && tokenizer.bos_id() != start_id_) ids.push_back(tokenizer.bos_id());
    // All text between two control tokens is encoded at once, as it would be in the rendered template: a piece may
    // reach over the borders of role, line break and content.
    const auto append = [&](const std::string& text) -> Status {
      HEADLANE_ASSIGN_OR_RETURN(const std::vector<int32_t> more, tokenizer.Encode(text, {.continuation = true}));
      for (const int32_t id : more) {
        if (id == start_id_ || id == end_id_) {
          return MakeStatus(StatusCode::kInvalidArgument, "a message spells the token %s",
                            id == start_id_ ? kStart.data() : kEnd.data());
        }
      }
      ids.insert(ids.end(), more.begin(), more.end());
      return OkStatus();
    };
    const auto turn = [&](std::string_view role, std::string_view content) -> Status {
      ids.push_back(start_id_);
      HEADLANE_RETURN_IF_ERROR(append(std::string(role).append("\n").append(content)));
      ids.push_back(end_id_);
      return append("\n");
    };
    HEADLANE_RETURN_IF_ERROR(ForEachTurn(messages, default_system_, turn));
    ids.push_back(start_id_);
    HEADLANE_RETURN_IF_ERROR(append("assistant\n"));
    return ids;
  });
}

Result<std::vector<int32_t>> ChatFormat::EncodePrompt(const Tokenizer& tokenizer, std::string_view prompt,
                                                      const std::string_view* system) const {
  const ChatMessage messages[] = {{"system", system != nullptr ? *system : std::string_view()}, {"user", prompt}};
  return Encode(tokenizer, std::span<const ChatMessage>(messages).subspan(system != nullptr ? 0 : 1));
}

Result<std::string> ChatFormat::Render(std::span<const ChatMessage> messages) const {
  return GuardAllocation("rendering a conversation", [&]() -> Result<std::string> {
    std::string text;
    const auto turn = [&](std::string_view role, std::string_view content) -> Status {
      text.append(kStart).append(role).append("\n").append(content).append(kEnd).append("\n");
      return OkStatus();
    };
    HEADLANE_RETURN_IF_ERROR(ForEachTurn(messages, default_system_, turn));
    text.append(kStart).append("assistant\n");
    return text;
  });
}

}  // namespace headlane
