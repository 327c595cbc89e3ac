#include "decoder/tokenizer_special.h"

#include <algorithm>

#include "decoder/tokenizer.h"

namespace headlane::decoder_internal {

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const TokenKind kind = vocabulary.kind(id);
    const bool special = kind == TokenKind::kControl || kind == TokenKind::kUnknown || kind == TokenKind::kUserDefined;
    if (special && !vocabulary.bytes(id).empty()) sorted_.push_back(id);
  }
  std::sort(sorted_.begin(), sorted_.end(), [&](int32_t a, int32_t b) {
    const int order = vocabulary_.bytes(a).compare(vocabulary_.bytes(b));
    return order != 0 ? order < 0 : a > b;
  });
  uint32_t at = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    first_byte_[byte] = at;
    while (at < sorted_.size() && static_cast<uint8_t>(vocabulary_.bytes(sorted_[at])[0]) == byte) ++at;
  }
  first_byte_[256] = at;
}

SpecialTokens::Match SpecialTokens::LongestAt(std::string_view text, size_t begin, bool control) const noexcept {
  const uint8_t first = static_cast<uint8_t>(text[begin]);
  uint32_t low = first_byte_[first], high = first_byte_[first + 1];
  Match longest = {begin, 0, kNoToken};
  // All tokens in [low, high) agree with the text in their first `depth` bytes; those that end there come first.
  for (size_t depth = 1; low < high; ++depth) {
    for (; low < high && vocabulary_.bytes(sorted_[low]).size() == depth; ++low) {
      const bool allowed = control || vocabulary_.kind(sorted_[low]) == TokenKind::kUserDefined;
      if (allowed && longest.length < depth) longest = {begin, depth, sorted_[low]};
    }
    if (begin + depth >= text.size()) break;
    const uint8_t next = static_cast<uint8_t>(text[begin + depth]);
    const auto byte_at = [&](int32_t id) { return static_cast<uint8_t>(vocabulary_.bytes(id)[depth]); };
    const auto first_of = sorted_.begin();
    low = static_cast<uint32_t>(std::lower_bound(first_of + low, first_of + high, next,
                                                 [&](int32_t id, uint8_t byte) { return byte_at(id) < byte; }) -
                                first_of);
    high = static_cast<uint32_t>(std::upper_bound(first_of + low, first_of + high, next,
                                                  [&](uint8_t byte, int32_t id) { return byte < byte_at(id); }) -
                                 first_of);
  }
  return longest;
}

SpecialTokens::Match SpecialTokens::FindNext(std::string_view text, size_t from, bool control) const noexcept {
  for (size_t begin = from; begin < text.size(); ++begin) {
    const uint8_t first = static_cast<uint8_t>(text[begin]);
    if (first_byte_[first] == first_byte_[first + 1]) continue;
    const Match match = LongestAt(text, begin, control);
    if (match.length != 0) return match;
  }
  return {text.size(), 0, kNoToken};
}

int32_t SpecialTokens::FindExact(std::string_view spelling) const noexcept {
  const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), spelling,
                                   [&](int32_t id, std::string_view text) { return vocabulary_.bytes(id) < text; });
  return at != sorted_.end() && vocabulary_.bytes(*at) == spelling ? *at : kNoToken;
}

}  // namespace headlane::decoder_internal
