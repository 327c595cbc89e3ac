// The cutting of texts, against the pre-tokenizers that the models were trained with.
#include "decoder/pretokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "decoder/expect_status.h"

namespace headlane::testing {
namespace {

using decoder_internal::Pretokenizer;
using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace): texts with NUL bytes

struct Vector {
  std::string_view text;
  std::vector<size_t> lengths[4];
};
const std::vector<Vector>& Vectors() {
  static const std::vector<Vector> vectors = {
#include "decoder/pretokenizer_vectors.inc"
  };
  return vectors;
}

std::vector<std::string> Pieces(const Pretokenizer& pretokenizer, std::string_view text) {
  std::vector<std::string> pieces;
  const Status status = pretokenizer.Split(text, [&](std::string_view piece) {
    pieces.emplace_back(piece);
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return pieces;
}

TEST(PretokenizerTest, CutsAsTheModelsOwn) {
  constexpr const char* kRules[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
  ASSERT_GT(Vectors().size(), 400u);
  for (size_t rule = 0; rule < 4; ++rule) {
    const Result<Pretokenizer> pretokenizer = Pretokenizer::Create(kRules[rule]);
    ASSERT_TRUE(pretokenizer.ok()) << pretokenizer.status().message();
    for (const Vector& vector : Vectors()) {
      std::vector<std::string> expected;
      size_t at = 0;
      for (const size_t length : vector.lengths[rule]) {
        expected.emplace_back(vector.text.substr(at, length));
        at += length;
      }
      EXPECT_EQ(Pieces(*pretokenizer, vector.text), expected) << kRules[rule] << ": " << vector.text;
    }
  }
}

TEST(PretokenizerTest, InvalidBytesStandAlone) {
  const Result<Pretokenizer> pretokenizer = Pretokenizer::Create("gpt-2");
  ASSERT_TRUE(pretokenizer.ok());
  using Strings = std::vector<std::string>;
  EXPECT_EQ(Pieces(*pretokenizer,
                   "ab\xFF"
                   "cd"),
            (Strings{"ab", "\xFF", "cd"}));
  EXPECT_EQ(Pieces(*pretokenizer, "\xE2\x82 x"), (Strings{"\xE2", "\x82", " x"}));
  EXPECT_EQ(Pieces(*pretokenizer, "x\xF0\x9F\xA6"), (Strings{"x", "\xF0", "\x9F", "\xA6"}));
  EXPECT_EQ(Pieces(*pretokenizer, "\xED\xA0\x80"), (Strings{"\xED", "\xA0", "\x80"}));
  // The text before an invalid byte is cut as if it ended there: both blanks stay together.
  EXPECT_EQ(Pieces(*pretokenizer, "  \xFF"), (Strings{"  ", "\xFF"}));
  EXPECT_EQ(Pieces(*pretokenizer, ""), Strings{});
}

TEST(PretokenizerTest, StopsAtAnError) {
  const Result<Pretokenizer> pretokenizer = Pretokenizer::Create("");
  ASSERT_TRUE(pretokenizer.ok());
  int calls = 0;
  const Status status = pretokenizer->Split("a b c", [&](std::string_view) {
    return ++calls == 2 ? MakeStatus(StatusCode::kCancelled, "enough") : OkStatus();
  });
  EXPECT_ERROR(status, kCancelled, "enough");
  EXPECT_EQ(calls, 2);
}

TEST(PretokenizerTest, LongRunsAreNoLimit) {
  for (const char* name : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    const Result<Pretokenizer> pretokenizer = Pretokenizer::Create(name);
    ASSERT_TRUE(pretokenizer.ok());
    // More than PCRE2's default match limit of ten million.
    const std::string blanks(12'000'000, ' ');
    EXPECT_EQ(Pieces(*pretokenizer, blanks + "x").size(), 2u) << name;
    EXPECT_EQ(Pieces(*pretokenizer, std::string(3'000'000, 'a')).size(), 1u) << name;
  }
}

TEST(PretokenizerTest, KnowsWhatElseANameMeans) {
  for (const char* name : {"llama-bpe", "llama3", "falcon3", "pixtral", "lfm2"}) {
    const Result<Pretokenizer> pretokenizer = Pretokenizer::Create(name);
    ASSERT_TRUE(pretokenizer.ok()) << name;
    EXPECT_TRUE(pretokenizer->whole_pieces_first() && pretokenizer->adds_bos()) << name;
  }
  for (const char* name :
       {"", "default", "gpt-2", "olmo", "smollm", "starcoder", "command-r", "qwen2", "deepseek-r1-qwen"}) {
    const Result<Pretokenizer> pretokenizer = Pretokenizer::Create(name);
    ASSERT_TRUE(pretokenizer.ok()) << name;
    EXPECT_FALSE(pretokenizer->whole_pieces_first() || pretokenizer->adds_bos()) << name;
  }
  EXPECT_ERROR(Pretokenizer::Create("gpt-4o"), kUnsupported,
               "pre-tokenizer 'gpt-4o' is not supported; supported are smollm");
}

}  // namespace
}  // namespace headlane::testing
