// A tokenizer from keys that a test made up.
#ifndef HEADLANE_TESTS_DECODER_TOKENIZER_UTIL_H_
#define HEADLANE_TESTS_DECODER_TOKENIZER_UTIL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "decoder/gguf.h"
#include "decoder/gguf_writer.h"
#include "decoder/tokenizer.h"

namespace headlane::testing {

using Ids = std::vector<int32_t>;

// The file is gone when the tokenizer is used: it must own what it needs.
inline Tokenizer MakeTokenizer(const GgufWriter& writer) {
  const std::vector<uint8_t> bytes = writer.Build();
  const Result<GgufFile> file = GgufFile::Parse(bytes);
  EXPECT_TRUE(file.ok()) << file.status().message();
  Result<Tokenizer> tokenizer = Tokenizer::Create(*file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

template <typename Vocabulary>
Tokenizer MakeTokenizer(const Vocabulary& vocabulary) {
  GgufWriter writer;
  vocabulary.AddTo(&writer);
  return MakeTokenizer(writer);
}

inline Ids Encode(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
  const Result<Ids> ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids();
}

inline std::string Decode(const Tokenizer& tokenizer, const Ids& ids, bool skip_control = false) {
  const Result<std::string> text = tokenizer.Decode(ids, skip_control);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? *text : std::string();
}

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_DECODER_TOKENIZER_UTIL_H_
