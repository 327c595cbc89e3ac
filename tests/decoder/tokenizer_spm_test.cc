// SentencePiece vocabularies: merging by score, byte fallback, and where the space prefix goes.
#include <gtest/gtest.h>

#include "decoder/expect_status.h"
#include "decoder/tiny_vocab.h"
#include "decoder/tokenizer.h"
#include "decoder/tokenizer_util.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace): texts with NUL bytes

#define SP "\xE2\x96\x81"  // U+2581, SentencePiece's space

constexpr EncodeOptions kSpecial = {.parse_special = true};
constexpr int32_t kBos = TinySpm::kBos, kSpecialId = TinySpm::kSpecial;

// In the order of their scores, the best first.
TinySpm Words() {
  return {.words = {"is",        SP "is", "Th",  SP "Th", SP "This", "er", "us", "user", SP "user", SP SP,
                    SP SP SP SP, "cp",    "cpp", SP "a",  SP "b",    SP,   "T",  "h",    "i",       "s",
                    "u",         "e",     "r",   "a",     "b",       "c",  "p",  ".",    "<",       ">"}};
}

TEST(TokenizerSpmTest, TheReportedText) {
  const TinySpm v = Words();
  const Tokenizer t = MakeTokenizer(v);
  // As the reference does it on the real vocabulary: the prefixed word, a word, a lone space, four bytes, the rest.
  EXPECT_EQ(Encode(t, "This is \xF0\x9F\xA6\x99.cpp"),
            (Ids{kBos, v.Word(SP "This"), v.Word(SP "is"), v.Word(SP), v.Byte(0xF0), v.Byte(0x9F), v.Byte(0xA6),
                 v.Byte(0x99), v.Word("."), v.Word("cpp")}));
  EXPECT_STREQ(t.model_name(), "llama");
}

TEST(TokenizerSpmTest, TheSpacePrefixIsForTheFirstTextOnly) {
  const TinySpm v = Words();
  const Tokenizer t = MakeTokenizer(v);
  EXPECT_EQ(Encode(t, "<special><special>\n", kSpecial), (Ids{kBos, kSpecialId, kSpecialId, v.Byte('\n')}));
  EXPECT_EQ(Encode(t, "<special>user", kSpecial), (Ids{kBos, kSpecialId, v.Word("user")}));
  EXPECT_EQ(Encode(t, "user<special>user", kSpecial), (Ids{kBos, v.Word(SP "user"), kSpecialId, v.Word("user")}));
  EXPECT_EQ(Encode(t, "a<special> b", kSpecial), (Ids{kBos, v.Word(SP "a"), kSpecialId, v.Word(SP "b")}));
  EXPECT_EQ(Encode(t, "<tool>user"), (Ids{kBos, TinySpm::kTool, v.Word("user")}));
  EXPECT_EQ(Encode(t, "user", {.continuation = true}), (Ids{v.Word("user")}));
}

TEST(TokenizerSpmTest, BosIsDoubledOnlyIfAskedFor) {
  const TinySpm v = Words();
  const Tokenizer t = MakeTokenizer(v);
  const int32_t user = v.Word(SP "user");
  EXPECT_TRUE(t.adds_bos());
  EXPECT_EQ(Encode(t, "user"), (Ids{kBos, user}));
  EXPECT_EQ(Encode(t, "<s>user", kSpecial), (Ids{kBos, user}));
  EXPECT_EQ(Encode(t, "<s>user", {.parse_special = true, .bos = BosMode::kAlways}), (Ids{kBos, kBos, user}));
  EXPECT_EQ(Encode(t, "user", {.bos = BosMode::kNever}), (Ids{user}));
  // Literally it is text.
  EXPECT_EQ(Encode(t, "<s>"), (Ids{kBos, v.Word(SP), v.Word("<"), v.Word("s"), v.Word(">")}));
}

TEST(TokenizerSpmTest, Blanks) {
  const TinySpm v = Words();
  const Tokenizer t = MakeTokenizer(v);
  EXPECT_EQ(Encode(t, ""), (Ids{kBos}));
  EXPECT_EQ(Encode(t, "", {.bos = BosMode::kNever}), Ids{});
  EXPECT_EQ(Encode(t, " "), (Ids{kBos, v.Word(SP SP)}));
  EXPECT_EQ(Encode(t, "   "), (Ids{kBos, v.Word(SP SP SP SP)}));
  EXPECT_EQ(Encode(t, "\t\n"), (Ids{kBos, v.Word(SP), v.Byte('\t'), v.Byte('\n')}));
  EXPECT_EQ(Encode(t, "\0"sv), (Ids{kBos, v.Word(SP), v.Byte(0)}));
}

TEST(TokenizerSpmTest, NoTextGivesAByteOrControlTokenBySpelling) {
  const TinySpm v = Words();
  const Tokenizer t = MakeTokenizer(v);
  for (const char* text : {"<0x0A>", "<unk>", "</s>", "<special>"}) {
    for (const int32_t id : Encode(t, text, {.bos = BosMode::kNever}))
      EXPECT_FALSE(t.IsControl(id) || id == v.Byte('\n')) << text;
    EXPECT_EQ(Decode(t, Encode(t, text)), text);
  }
  EXPECT_EQ(Decode(t, {v.Byte(0xC3), v.Byte(0xA9)}), "\xC3\xA9");
}

TEST(TokenizerSpmTest, WithoutAPrefixWhereTheFileSaysSo) {
  const TinySpm v = Words();
  GgufWriter writer;
  v.AddTo(&writer);
  writer.Add("tokenizer.ggml.add_space_prefix", false).Add("tokenizer.ggml.add_bos_token", false);
  const Tokenizer t = MakeTokenizer(writer);
  EXPECT_EQ(Encode(t, "user user"), (Ids{v.Word("user"), v.Word(SP "user")}));
  EXPECT_EQ(Encode(t, " user"), (Ids{v.Word(SP "user")}));
  EXPECT_EQ(Decode(t, {v.Word(SP "user")}), " user");
  EXPECT_EQ(Decode(t, {kBos, v.Word("user")}), "<s>user");
}

TEST(TokenizerSpmTest, EveryTextComesBack) {
  const TinySpm v = Words();
  const Tokenizer t = MakeTokenizer(v);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(Decode(t, Encode(t, all)), all);
  // The character that SentencePiece writes for a space is not one.
  EXPECT_EQ(Decode(t, Encode(t, "a" SP "b " SP)), "a" SP "b " SP);
  Random random(4);
  for (int round = 0; round < 1000; ++round) {
    std::string text;
    for (int64_t i = random.Int(0, 30); i > 0; --i) {
      text += random.Pick<std::string>(
          {" ", "  ", "is", "This", "user", "\n", "\xC3\xA9", SP, "\xFF", "<special>", "<tool>", "</s>"});
      if (random.OneIn(4)) text.push_back(static_cast<char>(random.Next()));
    }
    ASSERT_EQ(Decode(t, Encode(t, text)), text);
    ASSERT_EQ(Decode(t, Encode(t, text, kSpecial)), text);
    ASSERT_EQ(Decode(t, Encode(t, text, {.bos = BosMode::kNever})), text);
    // And put together token by token.
    TokenStream stream(t, {.at_start = true});
    std::string streamed;
    for (const int32_t id : Encode(t, text, kSpecial)) streamed += stream.Push(id).value();
    streamed += stream.Finish();
    ASSERT_EQ(streamed, text);
  }
}

TEST(TokenizerSpmTest, AStreamThatContinuesKeepsItsSpaces) {
  const TinySpm v = Words();
  const Tokenizer t = MakeTokenizer(v);
  TokenStream stream(t, {});
  EXPECT_EQ(stream.Push(v.Word(SP "is")).value(), " is");
  TokenStream start(t, {.at_start = true});
  EXPECT_EQ(start.Push(kBos).value(), "");
  EXPECT_EQ(start.Push(v.Word(SP "is")).value(), "is");
  EXPECT_EQ(start.Push(v.Word(SP "is")).value(), " is");
  EXPECT_EQ(start.Finish(), "");
  EXPECT_EQ(start.Push(v.Word(SP "is")).value(), "is");  // used again
}

TEST(TokenizerSpmTest, EqualsTheRuleAppliedNaively) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    TinySpm v{.words = {"a", "b", "c", SP}};
    for (int i = 0; i < 30; ++i) {
      const std::string word = random.Pick(v.words) + random.Pick(v.words);
      if (v.Word(word) < 0) v.words.push_back(word);
    }
    random.Shuffle(v.words);
    const Tokenizer t = MakeTokenizer(v);
    std::string text;
    std::vector<std::string> symbols = {SP};
    for (int64_t i = random.Int(1, 40); i > 0; --i) {
      const char c = "abc "[random.Int(0, 3)];
      text.push_back(c);
      symbols.push_back(c == ' ' ? SP : std::string(1, c));
    }
    while (true) {
      size_t best = symbols.size();
      int32_t best_id = INT32_MAX;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const int32_t id = v.Word(symbols[i] + symbols[i + 1]);
        if (id >= 0 && id < best_id) {
          best_id = id;
          best = i;
        }
      }
      if (best == symbols.size()) break;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    Ids expected;
    for (const std::string& symbol : symbols) expected.push_back(v.Word(symbol));
    ASSERT_EQ(Encode(t, text, {.bos = BosMode::kNever}), expected) << text;
  }
}

TEST(TokenizerSpmTest, WithoutByteTokens) {
  const Tokenizer t = MakeTokenizer(TinySpm{.words = {SP, "a"}, .byte_fallback = false});
  EXPECT_ERROR(t.Encode("aa?"), kInvalidArgument, "no token for byte 0x3F, at byte 2 of the text");
  EXPECT_EQ(Encode(t, "a?a", {.bos = BosMode::kNever, .drop_unencodable = true}).size(), 3u);
}

TEST(TokenizerSpmTest, LongTextsAreNotQuadratic) {
  TinySpm v{.words = {}};
  for (std::string part = "a"; part.size() <= 4096; part += part) v.words.push_back(part);
  v.words.push_back(SP);
  const Tokenizer t = MakeTokenizer(v);
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(Encode(t, text, {.continuation = true}).size(), text.size() / 4096);
}

}  // namespace
}  // namespace headlane::testing
