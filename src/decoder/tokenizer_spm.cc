#include "decoder/tokenizer_spm.h"

#include <algorithm>
#include <string>

#include "decoder/tokenizer.h"
#include "decoder/unicode.h"

namespace headlane::decoder_internal {
namespace {

constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";

// A run of bytes that is one symbol so far. An empty one was merged into the one before.
struct Symbol {
  uint32_t begin, size;
  int32_t prev, next;  // indices, -1 at the ends
};

// Two neighbours that are a token together.
struct Candidate {
  float score;
  int32_t left;   // index of the symbol
  uint32_t size;  // of both: tells whether they still are what they were
  // Heap order: the greatest is the highest score, then the leftmost.
  bool operator<(const Candidate& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

}  // namespace

Result<SpmEncoder> SpmEncoder::Load(const GgufFile& file, const Vocabulary& vocabulary) {
  SpmEncoder encoder(vocabulary);
  HEADLANE_ASSIGN_OR_RETURN(const GgufArray<float> scores, file.GetF32Array(kScoresKey));
  if (scores.size() != vocabulary.size()) {
    return MakeStatus(StatusCode::kDataLoss, "%lld token scores for %d tokens", static_cast<long long>(scores.size()),
                      vocabulary.size());
  }
  encoder.scores_.reserve(static_cast<size_t>(scores.size()));
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const float score = scores[id];
    if (score != score) return MakeStatus(StatusCode::kDataLoss, "the score of token %d is no number", id);
    encoder.scores_.push_back(score);
    encoder.max_token_bytes_ = std::max(encoder.max_token_bytes_, vocabulary.bytes(id).size());
  }
  return encoder;
}

Status SpmEncoder::Encode(std::string_view text, bool space_prefix, size_t offset, bool drop_unencodable,
                          std::vector<int32_t>* ids) const {
  std::string with_prefix;
  std::string_view all = text;
  if (space_prefix) {
    with_prefix.reserve(text.size() + 1);
    with_prefix.push_back(' ');
    with_prefix.append(text);
    all = with_prefix;
  }

  std::vector<Symbol> symbols;
  for (size_t at = 0; at < all.size();) {
    const Utf8Step step = ReadUtf8(all.substr(at));
    const uint32_t size = step.state == Utf8State::kValid ? static_cast<uint32_t>(step.length) : 1;
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(at), size, index - 1, index + 1});
    at += size;
  }
  if (symbols.empty()) return OkStatus();
  symbols.back().next = -1;

  std::vector<Candidate> heap;
  const auto push = [&](int32_t left) {
    if (left < 0 || symbols[static_cast<size_t>(left)].next < 0) return;
    const Symbol& symbol = symbols[static_cast<size_t>(left)];
    const size_t size = symbol.size + symbols[static_cast<size_t>(symbol.next)].size;
    if (size > max_token_bytes_) return;
    const int32_t id = vocabulary_->FindNormal(all.substr(symbol.begin, size));
    if (id == kNoToken) return;
    heap.push_back({scores_[static_cast<size_t>(id)], left, static_cast<uint32_t>(size)});
    std::push_heap(heap.begin(), heap.end());
  };
  for (int32_t left = 0; left + 1 < static_cast<int32_t>(symbols.size()); ++left) push(left);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(best.left)];
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (left.size + right.size != best.size) continue;
    left.size = best.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = best.left;
    push(left.prev);
    push(best.left);
  }

  for (int32_t at = 0; at >= 0; at = symbols[static_cast<size_t>(at)].next) {
    const Symbol& symbol = symbols[static_cast<size_t>(at)];
    const std::string_view bytes = all.substr(symbol.begin, symbol.size);
    const int32_t id = vocabulary_->FindNormal(bytes);
    if (id != kNoToken) {
      ids->push_back(id);
      continue;
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      const uint8_t byte = static_cast<uint8_t>(bytes[i]);
      const int32_t byte_id = vocabulary_->byte_token(byte);
      if (byte_id != kNoToken) {
        ids->push_back(byte_id);
      } else if (!drop_unencodable) {
        const size_t in_all = symbol.begin + i;
        return MakeStatus(StatusCode::kInvalidArgument,
                          "the vocabulary has no token for byte 0x%02X, at byte %zu of the text", byte,
                          offset + in_all - (space_prefix && in_all > 0 ? 1 : 0));
      }
    }
  }
  return OkStatus();
}

}  // namespace headlane::decoder_internal
