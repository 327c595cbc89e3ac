// UTF-8: every code point, and the broken forms that the Unicode standard names.
#include "decoder/unicode.h"

#include <gtest/gtest.h>

namespace headlane::decoder_internal {
namespace {

TEST(UnicodeTest, EveryCodePointComesBack) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, &text);
    const Utf8Step step = ReadUtf8(text + "x");
    ASSERT_EQ(step.state, Utf8State::kValid) << static_cast<uint32_t>(c);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(static_cast<size_t>(step.length), text.size());
    // Every beginning of it is one that may still become a character.
    for (size_t size = 1; size < text.size(); ++size) {
      const Utf8Step part = ReadUtf8(text.substr(0, size));
      ASSERT_EQ(part.state, Utf8State::kIncomplete) << static_cast<uint32_t>(c);
      ASSERT_EQ(static_cast<size_t>(part.length), size);
      ASSERT_EQ(IncompleteUtf8Tail("ab" + text.substr(0, size)), size);
    }
    ASSERT_EQ(IncompleteUtf8Tail(text), 0u);
  }
}

TEST(UnicodeTest, BrokenForms) {
  const auto length_of_invalid = [](std::string_view text) {
    const Utf8Step step = ReadUtf8(text);
    return step.state == Utf8State::kInvalid ? step.length : -1;
  };
  for (const char* lone : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xF5\x80\x80\x80", "\xFE", "\xFF"}) {
    EXPECT_EQ(length_of_invalid(lone), 1) << lone;
  }
  EXPECT_EQ(length_of_invalid("\xC3x"), 1);
  EXPECT_EQ(length_of_invalid("\xE0\x80\x80"), 1);      // overlong
  EXPECT_EQ(length_of_invalid("\xED\xA0\x80"), 1);      // a surrogate
  EXPECT_EQ(length_of_invalid("\xF0\x8F\xBF\xBF"), 1);  // overlong
  EXPECT_EQ(length_of_invalid("\xF4\x90\x80\x80"), 1);  // above U+10FFFF
  EXPECT_EQ(length_of_invalid("\xE2\x82x"), 2);         // cut after two of three
  EXPECT_EQ(length_of_invalid("\xF0\x9F\xA6x"), 3);     // cut after three of four
}

TEST(UnicodeTest, ReplacesEachBrokenPartOnce) {
  const auto replaced = [](std::string_view text) {
    std::string out;
    AppendReplacingInvalid(text, &out);
    return out;
  };
  EXPECT_EQ(replaced("plain \xC3\xA9"), "plain \xC3\xA9");
  EXPECT_EQ(replaced(std::string_view("a\0b", 3)), std::string("a\0b", 3));
  EXPECT_EQ(replaced("a\xFF\xFE"
                     "b"),
            "a\xEF\xBF\xBD\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(replaced("\xF0\x9F\xA6"
                     "b"),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(replaced("\xE2\x82"), "\xEF\xBF\xBD");
  // The standard's own example (table 3-8).
  EXPECT_EQ(replaced("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
            "b\xEF\xBF\xBD"
            "c\xEF\xBF\xBD\xEF\xBF\xBD"
            "d");
}

TEST(UnicodeTest, HoldsBackOnlyWhatMayBecomeACharacter) {
  EXPECT_EQ(IncompleteUtf8Tail(""), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("a"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("\x80\x80\x80"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("\xED\xA0"), 0u);      // a surrogate: no continuation helps
  EXPECT_EQ(IncompleteUtf8Tail("\xF4\x90\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(IncompleteUtf8Tail("\xC0"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("\xE2\x82\xAC\xC3"), 1u);
}

TEST(UnicodeTest, MessagesShowPrintableAsciiOnly) {
  EXPECT_STREQ(Printable("blk.0.attn_q.weight").c_str(), "blk.0.attn_q.weight");
  EXPECT_STREQ(Printable(std::string_view("a\0\x1b[\xC3\xA9", 6)).c_str(), "a\\x00\\x1B[\\xC3\\xA9");
  EXPECT_STREQ(Printable(std::string(64, 'x')).c_str(), std::string(64, 'x').c_str());
  EXPECT_STREQ(Printable(std::string(65, 'x')).c_str(), (std::string(64, 'x') + "...").c_str());
  EXPECT_STREQ(Printable(std::string(62, 'x') + "\n").c_str(), (std::string(62, 'x') + "...").c_str());
}

}  // namespace
}  // namespace headlane::decoder_internal
