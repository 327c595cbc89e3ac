#include "decoder/tokenizer_vocab.h"

#include "decoder/tokenizer.h"
#include "decoder/unicode.h"

namespace headlane::decoder_internal {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kKindsKey = "tokenizer.ggml.token_type";
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// GPT-2's stand-ins: printable Latin-1 characters stand for themselves, the other 68 bytes, in ascending order, for
// U+0100 and up. Maps code points below 0x144 to bytes, -1 elsewhere.
constexpr int kNumStandIns = 0x144;
constexpr std::array<int16_t, kNumStandIns> MakeStandIns() {
  std::array<int16_t, kNumStandIns> bytes{};
  for (auto& byte : bytes) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
    bytes[static_cast<size_t>(printable ? byte : next++)] = static_cast<int16_t>(byte);
  }
  return bytes;
}
constexpr std::array<int16_t, kNumStandIns> kStandIns = MakeStandIns();
static_assert(kStandIns[kNumStandIns - 1] == 0xAD, "68 bytes have a stand-in of their own");

std::string UnspellByteLevel(std::string_view spelled) {
  std::string bytes;
  for (std::string_view rest = spelled; !rest.empty();) {
    const Utf8Step step = ReadUtf8(rest);
    const bool known =
        step.state == Utf8State::kValid && step.code_point < kNumStandIns && kStandIns[step.code_point] >= 0;
    if (!known) return std::string(spelled);
    bytes.push_back(static_cast<char>(kStandIns[step.code_point]));
    rest.remove_prefix(static_cast<size_t>(step.length));
  }
  return bytes;
}

std::string UnspellSentencePiece(std::string_view spelled) {
  std::string bytes;
  for (size_t at = 0; at < spelled.size();) {
    if (spelled.substr(at, kSpaceMark.size()) == kSpaceMark) {
      bytes.push_back(' ');
      at += kSpaceMark.size();
    } else {
      bytes.push_back(spelled[at++]);
    }
  }
  return bytes;
}

// The byte of "<0xNN>", or -1.
int ParseByteToken(std::string_view spelled) {
  if (spelled.size() != 6 || spelled.substr(0, 3) != "<0x" || spelled[5] != '>') return -1;
  int value = 0;
  for (const char c : spelled.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

}  // namespace

std::string Vocabulary::Unspell(std::string_view spelled, Spelling spelling) {
  return spelling == Spelling::kByteLevel ? UnspellByteLevel(spelled) : UnspellSentencePiece(spelled);
}

Result<Vocabulary> Vocabulary::Load(const GgufFile& file, Spelling spelling) {
  Vocabulary vocabulary;
  HEADLANE_RETURN_IF_ERROR(vocabulary.LoadTokens(file, spelling));
  HEADLANE_RETURN_IF_ERROR(vocabulary.IndexTokens(spelling));
  return vocabulary;
}

Status Vocabulary::LoadTokens(const GgufFile& file, Spelling spelling) {
  HEADLANE_ASSIGN_OR_RETURN(const GgufStringArray tokens, file.GetStringArray(kTokensKey));
  if (tokens.size() < 1 || tokens.size() > kMaxVocabulary) {
    return MakeStatus(tokens.size() < 1 ? StatusCode::kDataLoss : StatusCode::kResourceExhausted,
                      "the vocabulary has %lld tokens; 1 to %lld are possible", static_cast<long long>(tokens.size()),
                      static_cast<long long>(kMaxVocabulary));
  }
  GgufArray<int32_t> kinds;
  if (file.FindEntry(kKindsKey) != nullptr) {
    HEADLANE_ASSIGN_OR_RETURN(kinds, file.GetI32Array(kKindsKey));
    if (kinds.size() != tokens.size()) {
      return MakeStatus(StatusCode::kDataLoss, "%lld token types for %lld tokens", static_cast<long long>(kinds.size()),
                        static_cast<long long>(tokens.size()));
    }
  }
  text_.reserve(static_cast<size_t>(tokens.total_bytes()));
  ends_.reserve(static_cast<size_t>(tokens.size()) + 1);
  kinds_.reserve(static_cast<size_t>(tokens.size()));
  ends_.push_back(0);
  for (const std::string_view spelled : tokens) {
    const size_t id = kinds_.size();
    if (spelled.size() > static_cast<size_t>(kMaxTokenBytes)) {
      return MakeStatus(StatusCode::kDataLoss, "token %zu has %zu bytes; the limit is %lld", id, spelled.size(),
                        static_cast<long long>(kMaxTokenBytes));
    }
    const int32_t kind = kinds.size() == 0 ? 1 : kinds[static_cast<int64_t>(id)];
    // Type 0 ("undefined") occurs in files for tokens without a type.
    if (kind < 0 || kind > static_cast<int32_t>(TokenKind::kByte)) {
      return MakeStatus(StatusCode::kDataLoss, "token %zu is of type %d; 0 to %d are possible", id, kind,
                        static_cast<int32_t>(TokenKind::kByte));
    }
    kinds_.push_back(kind == 0 ? TokenKind::kNormal : static_cast<TokenKind>(kind));
    const int byte = kinds_.back() == TokenKind::kByte ? ParseByteToken(spelled) : -1;
    if (byte >= 0) {
      text_.push_back(static_cast<char>(byte));
    } else if (kinds_.back() == TokenKind::kNormal ||
               (spelling == Spelling::kSentencePiece && kinds_.back() == TokenKind::kUserDefined)) {
      text_ += Unspell(spelled, spelling);
    } else {
      text_ += spelled;
    }
    ends_.push_back(text_.size());
  }
  return OkStatus();
}

Status Vocabulary::IndexTokens(Spelling spelling) {
  byte_tokens_.fill(kNoToken);
  const TokenKind kind_of_bytes = spelling == Spelling::kByteLevel ? TokenKind::kNormal : TokenKind::kByte;
  normal_ = IndexTable(kinds_.size());
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view text = bytes(id);
    if (kind(id) == kind_of_bytes && text.size() == 1) byte_tokens_[static_cast<uint8_t>(text[0])] = id;
    if (kind(id) != TokenKind::kNormal || text.empty()) continue;
    const bool inserted =
        normal_.Insert(HashBytes(text), id, true, [&](int32_t other) { return bytes(other) == text; });
    if (!inserted)
      return MakeStatus(StatusCode::kDataLoss, "the hashes of the vocabulary's tokens collide, as of no honest one");
  }
  return OkStatus();
}

int32_t Vocabulary::FindNormal(std::string_view text) const noexcept {
  return normal_.Find(HashBytes(text), [&](int32_t other) { return bytes(other) == text; });
}

}  // namespace headlane::decoder_internal
