#include "decoder/unicode.h"

#include <algorithm>
#include <cstring>

namespace headlane::decoder_internal {

Utf8Step ReadUtf8(std::string_view text) noexcept {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8State::kValid, 1, lead};
  // The lead byte fixes the length and narrows the second byte; the others are 80..BF.
  int length = 0;
  uint8_t low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8State::kInvalid, 1, 0};
  }
  char32_t code_point = lead & (0xFF >> (length + 1));
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {Utf8State::kIncomplete, i, 0};
    const uint8_t next = byte(static_cast<size_t>(i));
    if (next < low || next > high) return {Utf8State::kInvalid, i, 0};
    code_point = code_point << 6 | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8State::kValid, length, code_point};
}

size_t IncompleteUtf8Tail(std::string_view text) noexcept {
  // The nearest lead byte among the last three decides: behind a whole character or a broken one nothing is pending.
  for (size_t tail = 1; tail <= std::min<size_t>(3, text.size()); ++tail) {
    const uint8_t byte = static_cast<uint8_t>(text[text.size() - tail]);
    if ((byte & 0xC0) == 0x80) continue;
    const Utf8Step step = ReadUtf8(text.substr(text.size() - tail));
    return step.state == Utf8State::kIncomplete && static_cast<size_t>(step.length) == tail ? tail : 0;
  }
  return 0;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  const uint32_t c = code_point;
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

void AppendReplacingInvalid(std::string_view text, std::string* out) {
  while (!text.empty()) {
    const Utf8Step step = ReadUtf8(text);
    const size_t length = static_cast<size_t>(step.length);
    if (step.state == Utf8State::kValid) {
      out->append(text.substr(0, length));
    } else {
      out->append("\xEF\xBF\xBD");
    }
    text.remove_prefix(length);
  }
}

Printable::Printable(std::string_view text) noexcept {
  static constexpr char kHex[] = "0123456789ABCDEF";
  size_t n = 0;
  for (const char c : text) {
    const uint8_t byte = static_cast<uint8_t>(c);
    const bool plain = byte >= 0x20 && byte < 0x7F;
    if (n + (plain ? 1 : 4) > kMaxText) {
      std::memcpy(text_ + n, "...", 3);
      n += 3;
      break;
    }
    if (plain) {
      text_[n++] = c;
    } else {
      text_[n++] = '\\';
      text_[n++] = 'x';
      text_[n++] = kHex[byte >> 4];
      text_[n++] = kHex[byte & 15];
    }
  }
  text_[n] = '\0';
}

}  // namespace headlane::decoder_internal
