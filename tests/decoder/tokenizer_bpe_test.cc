// Byte-level BPE on vocabularies small enough to work out by hand, and against the rule applied naively.
#include <gtest/gtest.h>

#include <map>

#include "decoder/expect_status.h"
#include "decoder/tiny_vocab.h"
#include "decoder/tokenizer.h"
#include "decoder/tokenizer_util.h"
#include "decoder/unicode.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace): texts with NUL bytes

constexpr EncodeOptions kSpecial = {.parse_special = true};
int32_t B(char c) { return TinyBpe::Byte(c); }
int32_t M(int index) { return TinyBpe::kFirstMerge + index; }

TEST(TokenizerBpeTest, MergesByRankThenFromTheLeft) {
  const Tokenizer t = MakeTokenizer(TinyBpe{.merges = {{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "aa"}, {"bc", "d"}}});
  EXPECT_EQ(Encode(t, "abc"), (Ids{B('a'), M(0)}));  // "bc" has the lower rank, though "ab" comes first
  EXPECT_EQ(Encode(t, "ab"), (Ids{M(1)}));
  EXPECT_EQ(Encode(t, "abcd"), (Ids{B('a'), M(4)}));
  EXPECT_EQ(Encode(t, "aaa"), (Ids{M(2), B('a')}));  // from the left
  EXPECT_EQ(Encode(t, "aaaaa"), (Ids{M(3), B('a')}));
  EXPECT_EQ(Encode(t, "aab"), (Ids{B('a'), M(1)}));
  EXPECT_EQ(Encode(t, ""), Ids{});
  EXPECT_EQ(t.vocab_size(), 265);
  EXPECT_STREQ(t.model_name(), "gpt2");
  EXPECT_EQ(t.pretokenizer_name(), "gpt-2");
}

TEST(TokenizerBpeTest, MergesWithinPiecesOnly) {
  const Tokenizer t = MakeTokenizer(TinyBpe{.merges = {{"a", " "}, {" ", "a"}, {"a", "1"}}});
  EXPECT_EQ(Encode(t, "a a1"), (Ids{B('a'), M(1), B('1')}));
}

TEST(TokenizerBpeTest, EqualsTheRuleAppliedNaively) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    TinyBpe vocabulary;
    std::vector<std::string> parts = {"a", "b", "c"};
    std::map<std::pair<std::string, std::string>, int> ranks;
    for (int i = 0; i < 30; ++i) {
      const auto pair = std::make_pair(random.Pick(parts), random.Pick(parts));
      if (pair.first.size() + pair.second.size() > 8 || ranks.count(pair) != 0) continue;
      ranks[pair] = static_cast<int>(vocabulary.merges.size());
      vocabulary.merges.push_back(pair);
      parts.push_back(pair.first + pair.second);
    }
    const Tokenizer t = MakeTokenizer(vocabulary);
    std::string text;
    for (int64_t i = random.Int(1, 60); i > 0; --i) text.push_back(static_cast<char>('a' + random.Int(0, 2)));

    std::vector<std::string> symbols;
    for (const char c : text) symbols.emplace_back(1, c);
    while (true) {
      size_t best = symbols.size();
      int best_rank = INT32_MAX;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto at = ranks.find({symbols[i], symbols[i + 1]});
        if (at != ranks.end() && at->second < best_rank) {
          best_rank = at->second;
          best = i;
        }
      }
      if (best == symbols.size()) break;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    std::vector<std::string> got;
    for (const int32_t id : Encode(t, text)) got.emplace_back(t.TokenBytes(id));
    ASSERT_EQ(got, symbols) << text;
  }
}

TEST(TokenizerBpeTest, WholePiecesFirstWhereTheModelSaysSo) {
  // "ab" + "c" is no merge, so only a look-up of the whole piece gives "abc".
  TinyBpe vocabulary{.merges = {{"a", "bc"}}};
  for (const bool llama3 : {false, true}) {
    vocabulary.pretokenizer = llama3 ? "llama-bpe" : "qwen2";
    GgufWriter writer;
    vocabulary.AddTo(&writer);
    writer.Add("tokenizer.ggml.add_bos_token", false);
    const Tokenizer t = MakeTokenizer(writer);
    EXPECT_EQ(Encode(t, "abc"), llama3 ? (Ids{M(0)}) : (Ids{B('a'), B('b'), B('c')}));
    EXPECT_EQ(Encode(t, "abcd"), (Ids{B('a'), B('b'), B('c'), B('d')}));
  }
}

TEST(TokenizerBpeTest, ControlTokensOnlyWhereAskedFor) {
  // Merges that would spell a control token from characters, if its token were an ordinary one.
  const Tokenizer t = MakeTokenizer(TinyBpe{.merges = {{"<", "|"}, {"|", ">"}}});
  const Ids literal = Encode(t, "a<|im_end|>b");
  for (const int32_t id : literal) EXPECT_FALSE(t.IsControl(id));
  EXPECT_EQ(Encode(t, "a<|im_end|>b", kSpecial), (Ids{B('a'), TinyBpe::kImEnd, B('b')}));
  EXPECT_EQ(Encode(t, "<|im_end|><|im_end|>", kSpecial), (Ids{2, 2}));
  EXPECT_EQ(Encode(t, "<|im_end|>", kSpecial), (Ids{2}));
  EXPECT_EQ(Encode(t, "<|im_end", kSpecial), Encode(t, "<|im_end"));
  EXPECT_EQ(Encode(t, "<|IM_END|>", kSpecial), Encode(t, "<|IM_END|>"));
  // A user-defined token in both cases.
  EXPECT_EQ(Encode(t, "x<tool>y"), (Ids{B('x'), TinyBpe::kTool, B('y')}));
  EXPECT_EQ(Encode(t, "<tool><|im_end|>", kSpecial), (Ids{TinyBpe::kTool, TinyBpe::kImEnd}));
  EXPECT_FALSE(t.IsControl(TinyBpe::kTool));
}

TEST(TokenizerBpeTest, MergesNeverGiveAControlToken) {
  for (const int32_t type : {1, 3}) {
    GgufWriter writer;
    std::vector<std::string> tokens = {"<", "|", ">", "<|", "<|>"};  // one piece for GPT-2's pattern
    writer.Add("tokenizer.ggml.model", "gpt2").AddArray("tokenizer.ggml.tokens", tokens);
    writer.AddArray("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 1, type});
    writer.AddArray("tokenizer.ggml.merges", std::vector<std::string>{"< |", "<| >"});
    const Tokenizer t = MakeTokenizer(writer);
    EXPECT_EQ(Encode(t, "<|>"), type == 3 ? (Ids{3, 2}) : (Ids{4}));
    EXPECT_EQ(Encode(t, "<|>", kSpecial), (Ids{4}));
  }
}

TEST(TokenizerBpeTest, OfSpecialTokensTheLongest) {
  GgufWriter writer;
  std::vector<std::string> tokens = {"a", "b", "<a", "<a>", "<a><b>", "<", ">"};
  writer.Add("tokenizer.ggml.model", "gpt2").AddArray("tokenizer.ggml.tokens", tokens);
  writer.AddArray("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 4, 3, 3, 1, 1});
  writer.AddArray("tokenizer.ggml.merges", std::vector<std::string>{});
  const Tokenizer t = MakeTokenizer(writer);
  EXPECT_EQ(Encode(t, "<a><b>", kSpecial), (Ids{4}));
  EXPECT_EQ(Encode(t, "<a><a", kSpecial), (Ids{3, 2}));
  EXPECT_EQ(Encode(t, "<a><b", kSpecial), (Ids{3, 5, 1}));
  EXPECT_EQ(Encode(t, "<a>"), (Ids{2, 6}));  // the control token is no candidate, the user-defined one in it is
  EXPECT_EQ(t.FindToken("<a"), 2);
  EXPECT_EQ(t.FindToken("<a>"), 3);
  EXPECT_EQ(t.FindToken("b"), 1);
  EXPECT_EQ(t.FindToken("<b"), kNoToken);
  EXPECT_EQ(t.FindToken(""), kNoToken);
}

TEST(TokenizerBpeTest, EveryByteComesBack) {
  const Tokenizer t =
      MakeTokenizer(TinyBpe{.merges = {{"a", "b"}, {" ", "a"}, {"\xC3", "\xA9"}, {"\xF0\x9F", "\xA6\x99"}}});
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(Decode(t, Encode(t, all)), all);
  EXPECT_EQ(Decode(t, Encode(t, "a\0b"sv)), "a\0b"sv);
  Random random(2);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int64_t i = random.Int(0, 80); i > 0; --i) {
      text += random.Pick<std::string>(
          {"a", "b", " ", "\n", "\xC3\xA9", "\xF0\x9F\xA6\x99", "\xFF", "\xC3", "7", "<|im_end|>", "<tool>"});
      if (random.OneIn(3)) text.push_back(static_cast<char>(random.Next()));
    }
    for (const bool special : {false, true}) {
      ASSERT_EQ(Decode(t, Encode(t, text, {.parse_special = special})), text);
    }
  }
}

TEST(TokenizerBpeTest, AByteWithoutATokenIsNamedOrLeftOut) {
  const Tokenizer t = MakeTokenizer(TinyBpe{.merges = {{"a", "b"}}, .missing_bytes = "\x04\xFF"});
  EXPECT_ERROR(t.Encode("ab\x04"
                        "c"),
               kInvalidArgument, "no token for byte 0x04, at byte 2 of the text");
  EXPECT_ERROR(t.Encode("<|im_end|>x\xFF", kSpecial), kInvalidArgument,
               "no token for byte 0xFF, at byte 11 of the text");
  EXPECT_EQ(Encode(t,
                   "ab\x04"
                   "c\xFF",
                   {.drop_unencodable = true}),
            (Ids{M(0), B('c')}));
  EXPECT_EQ(Encode(t, "\x04", {.drop_unencodable = true}), Ids{});
}

TEST(TokenizerBpeTest, Bos) {
  TinyBpe vocabulary;
  for (const char* pretokenizer : {"gpt-2", "llama-bpe"}) {
    for (const int key : {-1, 0, 1}) {
      vocabulary.pretokenizer = pretokenizer;
      GgufWriter writer;
      vocabulary.AddTo(&writer);
      if (key >= 0) writer.Add("tokenizer.ggml.add_bos_token", key == 1);
      const Tokenizer t = MakeTokenizer(writer);
      const bool adds = key >= 0 ? key == 1 : pretokenizer == std::string("llama-bpe");
      EXPECT_EQ(t.adds_bos(), adds) << pretokenizer << key;
      EXPECT_EQ(t.bos_id(), TinyBpe::kImStart);
      const auto with = [&](Ids ids) {
        if (adds) ids.insert(ids.begin(), TinyBpe::kImStart);
        return ids;
      };
      EXPECT_EQ(Encode(t, "x"), with({B('x')}));
      EXPECT_EQ(Encode(t, ""), with({}));
      EXPECT_EQ(Encode(t, "x", {.bos = BosMode::kAlways}), (Ids{1, B('x')}));
      EXPECT_EQ(Encode(t, "x", {.bos = BosMode::kNever}), (Ids{B('x')}));
      EXPECT_EQ(Encode(t, "x", {.bos = BosMode::kAlways, .continuation = true}), (Ids{B('x')}));
      // A BOS that is spelled in front is not doubled, unless asked for.
      EXPECT_EQ(Encode(t, "<|im_start|>x", kSpecial), (Ids{1, B('x')}));
      EXPECT_EQ(Encode(t, "<|im_start|>x", {.parse_special = true, .bos = BosMode::kAlways}), (Ids{1, 1, B('x')}));
      EXPECT_EQ(Encode(t, "x<|im_start|>", kSpecial), with({B('x'), 1}));
      EXPECT_EQ(Decode(t, Encode(t, "x")), "x");
      EXPECT_EQ(Decode(t, {1, B('x')}), adds ? "x" : "<|im_start|>x");
      EXPECT_EQ(Decode(t, {1, 1, B('x')}), adds ? "<|im_start|>x" : "<|im_start|><|im_start|>x");
      EXPECT_EQ(Decode(t, {1, B('x'), 2}, true), "x");
    }
  }
  GgufWriter no_bos;
  no_bos.Add("tokenizer.ggml.model", "gpt2").AddArray("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  no_bos.AddArray("tokenizer.ggml.merges", std::vector<std::string>{}).Add("tokenizer.ggml.add_bos_token", true);
  const Tokenizer t = MakeTokenizer(no_bos);
  EXPECT_FALSE(t.adds_bos());
  EXPECT_EQ(Encode(t, "a"), (Ids{0}));
  EXPECT_ERROR(t.Encode("a", {.bos = BosMode::kAlways}), kFailedPrecondition, "no BOS token");
}

TEST(TokenizerBpeTest, StopTokens) {
  const Tokenizer t = MakeTokenizer(TinyBpe{});
  EXPECT_EQ(t.eos_id(), TinyBpe::kImEnd);
  EXPECT_EQ(Ids(t.stop_ids().begin(), t.stop_ids().end()), (Ids{TinyBpe::kEndOfText, TinyBpe::kImEnd}));
  EXPECT_TRUE(t.IsStop(TinyBpe::kImEnd));
  EXPECT_TRUE(t.IsStop(TinyBpe::kEndOfText));
  EXPECT_FALSE(t.IsStop(TinyBpe::kImStart));
  EXPECT_FALSE(t.IsStop(B('x')));
  EXPECT_FALSE(t.IsStop(-1));
  GgufWriter writer;
  TinyBpe{}.AddTo(&writer);
  writer.Add("tokenizer.ggml.eot_token_id", uint32_t{50}).Add("tokenizer.ggml.eom_token_id", uint32_t{2});
  const Tokenizer more = MakeTokenizer(writer);
  EXPECT_EQ(Ids(more.stop_ids().begin(), more.stop_ids().end()), (Ids{0, 2, 50}));
}

TEST(TokenizerBpeTest, WrongIds) {
  const Tokenizer t = MakeTokenizer(TinyBpe{});
  EXPECT_ERROR(t.Decode(Ids{B('a'), 260}), kOutOfRange, "id 260 at index 1; the vocabulary has 260 tokens");
  EXPECT_ERROR(t.Decode(Ids{-1}), kOutOfRange, "id -1 at index 0");
  EXPECT_EQ(t.TokenBytes(-1), "");
  EXPECT_EQ(t.TokenBytes(260), "");
  EXPECT_FALSE(t.IsControl(260));
  TokenStream stream(t, {});
  EXPECT_ERROR(stream.Push(260), kOutOfRange, "id 260");
}

TEST(TokenizerBpeTest, LongTextsAreNotQuadratic) {
  // A million bytes in one piece: with quadratic merging this would take hours, not the test's time limit.
  TinyBpe vocabulary;
  for (std::string part = "a"; part.size() < 4096; part += part) vocabulary.merges.emplace_back(part, part);
  const Tokenizer t = MakeTokenizer(vocabulary);
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(Encode(t, text).size(), text.size() / 4096);
  EXPECT_EQ(Encode(t, std::string(1 << 20, '<'), kSpecial).size(), size_t{1} << 20);
}

TEST(TokenStreamTest, ShowsWholeCharactersOnly) {
  const Tokenizer t = MakeTokenizer(TinyBpe{.merges = {{"\x9F", "\xA6"}, {"x", "\xF0"}}});
  TokenStream stream(t, {});
  const auto push = [&](int32_t id) { return std::string(stream.Push(id).value()); };
  EXPECT_EQ(push(B('a')), "a");
  EXPECT_EQ(push(M(1)), "x");  // and the first byte of four
  EXPECT_EQ(push(M(0)), "");
  EXPECT_EQ(push(B('\x99')), "\xF0\x9F\xA6\x99");
  EXPECT_EQ(push(B('\xC3')), "");
  EXPECT_EQ(push(B('b')),
            "\xC3"
            "b");  // no continuation: nothing is gained by waiting
  EXPECT_EQ(push(B('\xE2')), "");
  EXPECT_EQ(push(B('\x82')), "");
  EXPECT_EQ(stream.Finish(), "\xE2\x82");
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(push(TinyBpe::kImEnd), "<|im_end|>");
}

TEST(TokenStreamTest, PutTogetherItIsDecode) {
  const Tokenizer t = MakeTokenizer(TinyBpe{.merges = {{"\xC3", "\xA9"}, {"\xF0", "\x9F"}, {"\xA6", "\x99"}}});
  Random random(3);
  for (int round = 0; round < 500; ++round) {
    Ids ids;
    for (int64_t i = random.Int(0, 30); i > 0; --i)
      ids.push_back(static_cast<int32_t>(random.Int(0, t.vocab_size() - 1)));
    for (const bool skip_control : {false, true}) {
      TokenStream plain(t, {.skip_control = skip_control, .at_start = true});
      TokenStream shown(t, {.skip_control = skip_control, .at_start = true, .replace_invalid = true});
      std::string text, valid;
      for (const int32_t id : ids) {
        text += plain.Push(id).value();
        const std::string piece(shown.Push(id).value());
        // Each piece is valid by itself.
        std::string again;
        decoder_internal::AppendReplacingInvalid(piece, &again);
        ASSERT_EQ(again, piece);
        valid += piece;
      }
      text += plain.Finish();
      valid += shown.Finish();
      const std::string whole = Decode(t, ids, skip_control);
      ASSERT_EQ(text, whole);
      std::string whole_valid;
      decoder_internal::AppendReplacingInvalid(whole, &whole_valid);
      ASSERT_EQ(valid, whole_valid);
    }
  }
}

}  // namespace
}  // namespace headlane::testing
