#include "decoder/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "decoder/mix_bits.h"
#include "decoder/tokenizer.h"
#include "decoder/unicode.h"

namespace headlane::decoder_internal {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";

uint64_t HashPair(int32_t left, int32_t right) noexcept {
  return MixBits(static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right));
}

}  // namespace

// Kept from piece to piece, so that a long text allocates a few times only.
struct BpeEncoder::Scratch {
  struct Symbol {
    int32_t id;          // kNoToken: merged into the one before
    int32_t prev, next;  // indices, -1 at the ends
  };
  struct Candidate {
    int32_t rank;
    int32_t left;  // index of the symbol
    // Heap order: the greatest is the lowest rank, then the leftmost.
    bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

BpeEncoder::BpeEncoder(const Vocabulary& vocabulary, Pretokenizer pretokenizer)
    : vocabulary_(&vocabulary), pretokenizer_(std::move(pretokenizer)) {}

Result<BpeEncoder> BpeEncoder::Load(const GgufFile& file, const Vocabulary& vocabulary, Pretokenizer pretokenizer) {
  BpeEncoder encoder(vocabulary, std::move(pretokenizer));
  HEADLANE_ASSIGN_OR_RETURN(const GgufStringArray merges, file.GetStringArray(kMergesKey));
  HEADLANE_RETURN_IF_ERROR(encoder.LoadMerges(merges));
  return encoder;
}

Status BpeEncoder::LoadMerges(const GgufStringArray& merges) {
  if (merges.size() > kMaxVocabulary) {
    return MakeStatus(StatusCode::kResourceExhausted, "the vocabulary has %lld merges; the limit is %lld",
                      static_cast<long long>(merges.size()), static_cast<long long>(kMaxVocabulary));
  }
  merges_.reserve(static_cast<size_t>(merges.size()));
  ranks_ = IndexTable(static_cast<size_t>(merges.size()));
  int64_t index = 0;
  for (const std::string_view merge : merges) {
    // "left right". The first character belongs to the left part even if it is a space.
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return MakeStatus(StatusCode::kDataLoss, "merge %lld '%s' is no pair", static_cast<long long>(index),
                        Printable(merge).c_str());
    }
    const std::string left = Vocabulary::Unspell(merge.substr(0, space), Spelling::kByteLevel);
    const std::string right = Vocabulary::Unspell(merge.substr(space + 1), Spelling::kByteLevel);
    const Merge ids = {vocabulary_->FindNormal(left), vocabulary_->FindNormal(right),
                       vocabulary_->FindNormal(left + right)};
    ++index;
    // A part or a result that is no normal token (but a control token, say) can't come out of a text.
    if (ids.left == kNoToken || ids.right == kNoToken || ids.result == kNoToken) continue;
    const auto same = [&](int32_t rank) {
      const Merge& other = merges_[static_cast<size_t>(rank)];
      return other.left == ids.left && other.right == ids.right;
    };
    const int32_t rank = static_cast<int32_t>(merges_.size());
    merges_.push_back(ids);
    // Of two equal pairs the later one counts, as in the models' own tokenizers.
    if (!ranks_.Insert(HashPair(ids.left, ids.right), rank, true, same)) {
      return MakeStatus(StatusCode::kDataLoss, "the hashes of the vocabulary's merges collide, as of no honest one");
    }
  }
  return OkStatus();
}

int32_t BpeEncoder::FindRank(int32_t left, int32_t right) const noexcept {
  return ranks_.Find(HashPair(left, right), [&](int32_t rank) {
    const Merge& merge = merges_[static_cast<size_t>(rank)];
    return merge.left == left && merge.right == right;
  });
}

Status BpeEncoder::Encode(std::string_view text, size_t offset, bool drop_unencodable,
                          std::vector<int32_t>* ids) const {
  Scratch scratch;
  const auto encode_piece = [&](std::string_view piece) -> Status {
    const size_t at = offset + static_cast<size_t>(piece.data() - text.data());
    return EncodePiece(piece, at, drop_unencodable, &scratch, ids);
  };
  return pretokenizer_.Split(text, encode_piece);
}

Status BpeEncoder::EncodePiece(std::string_view piece, size_t offset, bool drop_unencodable, Scratch* scratch,
                               std::vector<int32_t>* ids) const {
  if (pretokenizer_.whole_pieces_first()) {
    const int32_t id = vocabulary_->FindNormal(piece);
    if (id != kNoToken) {
      ids->push_back(id);
      return OkStatus();
    }
  }
  std::vector<Scratch::Symbol>& symbols = scratch->symbols;
  std::vector<Scratch::Candidate>& heap = scratch->heap;
  symbols.clear();
  heap.clear();
  for (size_t i = 0; i < piece.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(piece[i]);
    const int32_t id = vocabulary_->byte_token(byte);
    if (id == kNoToken) {
      if (drop_unencodable) continue;
      return MakeStatus(StatusCode::kInvalidArgument,
                        "the vocabulary has no token for byte 0x%02X, at byte %zu of the text", byte, offset + i);
    }
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  }
  if (symbols.empty()) return OkStatus();
  symbols.back().next = -1;

  const auto rank_at = [&](int32_t left) -> int32_t {
    const Scratch::Symbol& symbol = symbols[static_cast<size_t>(left)];
    if (symbol.id == kNoToken || symbol.next < 0) return IndexTable::kNone;
    return FindRank(symbol.id, symbols[static_cast<size_t>(symbol.next)].id);
  };
  for (int32_t left = 0; left + 1 < static_cast<int32_t>(symbols.size()); ++left) {
    const int32_t rank = rank_at(left);
    if (rank != IndexTable::kNone) heap.push_back({rank, left});
  }
  std::make_heap(heap.begin(), heap.end());
  const auto push = [&](int32_t left) {
    const int32_t rank = left < 0 ? IndexTable::kNone : rank_at(left);
    if (rank == IndexTable::kNone) return;
    heap.push_back({rank, left});
    std::push_heap(heap.begin(), heap.end());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    // Entries are not removed when a neighbour changes: one that no longer tells the truth is passed over here. An
    // entry that tells it by accident stands for the same merge at the same place, so it may as well be done.
    if (rank_at(best.left) != best.rank) continue;
    Scratch::Symbol& left = symbols[static_cast<size_t>(best.left)];
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = merges_[static_cast<size_t>(best.rank)].result;
    left.next = right.next;
    right.id = kNoToken;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = best.left;
    push(left.prev);
    push(best.left);
  }
  for (int32_t at = 0; at >= 0; at = symbols[static_cast<size_t>(at)].next) {
    ids->push_back(symbols[static_cast<size_t>(at)].id);
  }
  return OkStatus();
}

}  // namespace headlane::decoder_internal
