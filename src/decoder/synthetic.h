// Models that need no file: named shapes of published models, to be filled with pseudo-random weights, and a made-up
// vocabulary.
//
// Separate because nothing else in the decoder invents data. Called by Model::Synthetic.
#ifndef HEADLANE_SRC_DECODER_SYNTHETIC_H_
#define HEADLANE_SRC_DECODER_SYNTHETIC_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decoder/llama_config.h"
#include "headlane/status.h"

namespace headlane::internal {

struct SyntheticShape {
  std::string name;  // as asked for, the number of layers included
  LlamaConfig config;
  bool tied_head = false;
};

std::span<const char* const> SyntheticNames() noexcept;

// "NAME" or "NAME:LAYERS". Errors: kInvalidArgument (lists the names; or the range of layers).
Result<SyntheticShape> FindSyntheticShape(std::string_view text);

// A GGUF file without tensors that holds a vocabulary of `vocab_size` tokens: 3 control tokens ("<|endoftext|>",
// "<|im_start|>",
// "<|im_end|>"), the 256 bytes, and pronounceable words that no text encodes to, for what a random model says. The same
// reader, tokenizer and chat format as for real files then serve. Requires: vocab_size >= 259.
std::vector<uint8_t> MakeSyntheticVocabularyFile(int64_t vocab_size);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_SYNTHETIC_H_
