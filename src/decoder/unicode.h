// UTF-8 as it occurs in texts, vocabularies and messages.
//
// Separate because three parts must agree to the byte on what is well-formed: the pre-tokenizer (which may only see
// valid text), the stream decoder (which holds back unfinished characters) and its replacement of invalid bytes.
#ifndef HEADLANE_SRC_DECODER_UNICODE_H_
#define HEADLANE_SRC_DECODER_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headlane::decoder_internal {

enum class Utf8State {
  kValid,       // a whole character
  kInvalid,     // bytes that no continuation can make a character
  kIncomplete,  // the text ends within a character that is well-formed so far
};

struct Utf8Step {
  Utf8State state;
  int length;  // bytes of the character or, if there is none, of its longest well-formed beginning (at least 1)
  char32_t code_point;  // when valid
};

// Looks at the first character of a text of at least one byte. Well-formed is what the Unicode standard's table 3-7
// says: no overlong forms, no surrogates, nothing above U+10FFFF.
Utf8Step ReadUtf8(std::string_view text) noexcept;

// Bytes at the end of `text`, 0..3, that are the beginning of a character.
size_t IncompleteUtf8Tail(std::string_view text) noexcept;

void AppendUtf8(char32_t code_point, std::string* out);

// Appends `text` with one U+FFFD for each longest well-formed beginning of a broken character, or each other wrong byte
// (the practice that the standard recommends, so that other programs count the same replacements).
void AppendReplacingInvalid(std::string_view text, std::string* out);

// A name out of a file, for a message: printable ASCII stays, other bytes become \xNN, and what is too long is cut.
class Printable {
 public:
  explicit Printable(std::string_view text) noexcept;
  const char* c_str() const noexcept { return text_; }

 private:
  static constexpr size_t kMaxText = 64;
  char text_[kMaxText + 4 + 1];  // room for "..."
};

}  // namespace headlane::decoder_internal

#endif  // HEADLANE_SRC_DECODER_UNICODE_H_
