// Vocabularies small enough to work out by hand, one of each kind, as keys of a GGUF file.
#ifndef HEADLANE_TESTS_DECODER_TINY_VOCAB_H_
#define HEADLANE_TESTS_DECODER_TINY_VOCAB_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "decoder/gguf_writer.h"

namespace headlane::testing {

// A text in GPT-2's spelling: printable Latin-1 bytes as themselves, the others, counted in ascending order, from
// U+0100.
inline std::string ByteLevelSpelling(std::string_view bytes) {
  std::string spelled;
  for (const char c : bytes) {
    const int byte = static_cast<uint8_t>(c);
    int code = byte;
    const auto printable = [](int b) { return (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD); };
    if (!printable(byte)) {
      code = 0x100;
      for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
    }
    if (code < 0x80) {
      spelled.push_back(static_cast<char>(code));
    } else {
      spelled.push_back(static_cast<char>(0xC0 | code >> 6));
      spelled.push_back(static_cast<char>(0x80 | (code & 0x3F)));
    }
  }
  return spelled;
}

// Byte-level BPE. Ids: 0..2 control (<|endoftext|>, <|im_start|>, <|im_end|>), 3 user-defined <tool>, 4..259 the bytes,
// from 260 the results of the merges in their order (each part must be a byte or an earlier result).
struct TinyBpe {
  static constexpr int32_t kEndOfText = 0, kImStart = 1, kImEnd = 2, kTool = 3, kFirstByte = 4, kFirstMerge = 260;

  std::string pretokenizer = "gpt-2";
  std::vector<std::pair<std::string, std::string>> merges = {};  // in plain bytes
  std::string missing_bytes = {};                                // these get a token that no text gives

  static int32_t Byte(char c) { return kFirstByte + static_cast<uint8_t>(c); }

  void AddTo(GgufWriter* writer) const {
    std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"};
    std::vector<int32_t> types = {3, 3, 3, 4};
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      const bool missing = missing_bytes.find(c) != std::string::npos;
      tokens.push_back(missing ? "<no byte " + std::to_string(byte) + ">" : ByteLevelSpelling(std::string_view(&c, 1)));
      types.push_back(missing ? 5 : 1);
    }
    std::vector<std::string> spelled;
    for (const auto& [left, right] : merges) {
      spelled.push_back(ByteLevelSpelling(left) + " " + ByteLevelSpelling(right));
      tokens.push_back(ByteLevelSpelling(left + right));
      types.push_back(1);
    }
    writer->Add("tokenizer.ggml.model", "gpt2")
        .Add("tokenizer.ggml.pre", pretokenizer)
        .AddArray("tokenizer.ggml.tokens", tokens)
        .AddArray("tokenizer.ggml.token_type", types)
        .AddArray("tokenizer.ggml.merges", spelled)
        .Add("tokenizer.ggml.bos_token_id", uint32_t{kImStart})
        .Add("tokenizer.ggml.eos_token_id", uint32_t{kImEnd});
  }
};

// SentencePiece. Ids: 0 <unk>, 1 <s>, 2 </s>, 3..258 the bytes, 259 control <special>, 260 user-defined <tool>, from
// 261 the words (in SentencePiece's spelling), each with a lower score than the one before.
struct TinySpm {
  static constexpr int32_t kBos = 1, kEos = 2, kFirstByte = 3, kSpecial = 259, kTool = 260, kFirstWord = 261;

  std::vector<std::string> words = {};
  bool byte_fallback = true;

  static int32_t Byte(int byte) { return kFirstByte + byte; }
  int32_t Word(std::string_view spelled) const {
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i] == spelled) return kFirstWord + static_cast<int32_t>(i);
    }
    return -2;
  }

  void AddTo(GgufWriter* writer) const {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> types = {2, 3, 3};
    for (int byte = 0; byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
      tokens.push_back(name);
      types.push_back(byte_fallback ? 6 : 5);
    }
    tokens.insert(tokens.end(), {"<special>", "<tool>"});
    types.insert(types.end(), {3, 4});
    std::vector<float> scores(tokens.size(), 0.0f);
    for (const std::string& word : words) {
      tokens.push_back(word);
      types.push_back(1);
      scores.push_back(-static_cast<float>(scores.size()));
    }
    writer->Add("tokenizer.ggml.model", "llama")
        .AddArray("tokenizer.ggml.tokens", tokens)
        .AddArray("tokenizer.ggml.scores", scores)
        .AddArray("tokenizer.ggml.token_type", types)
        .Add("tokenizer.ggml.bos_token_id", uint32_t{kBos})
        .Add("tokenizer.ggml.eos_token_id", uint32_t{kEos});
  }
};

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_DECODER_TINY_VOCAB_H_
