#include "decoder/tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "decoder/alloc_guard.h"
#include "decoder/bpe.h"
#include "decoder/pretokenizer.h"
#include "decoder/tokenizer_special.h"
#include "decoder/tokenizer_spm.h"
#include "decoder/tokenizer_vocab.h"
#include "decoder/unicode.h"

namespace headlane {
namespace decoder_internal {

// Never moved: its parts point at each other.
struct TokenizerModel {
  std::string pretokenizer_name;
  Vocabulary vocabulary;
  std::optional<SpecialTokens> special;
  // Exactly one of the two.
  std::optional<BpeEncoder> bpe;
  std::optional<SpmEncoder> spm;

  int32_t bos_id = kNoToken;
  int32_t eos_id = kNoToken;
  bool adds_bos = false;
  bool adds_space_prefix = false;
  std::vector<int32_t> stop_ids;  // ascending

  bool IsControl(int32_t id) const {
    const TokenKind kind = vocabulary.kind(id);
    return kind == TokenKind::kControl || kind == TokenKind::kUnknown;
  }

  Status LoadIds(const GgufFile& file);
  Status Encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>* ids) const;
  void AppendBytes(int32_t id, bool skip_control, DecodeState* state, std::string* out) const;
};

namespace {

// Names under which vocabularies have tokens that end a turn or a text. Files mostly name only one of a model's in
// their metadata.
constexpr std::string_view kStopNames[] = {"<|im_end|>",      "<|endoftext|>", "<|eot_id|>",   "<|eom_id|>",
                                           "<|end_of_text|>", "<|end|>",       "<end_of_turn>"};

// The id under `key`; kNoToken if the file has none.
Result<int32_t> ReadId(const GgufFile& file, std::string_view key, int32_t vocab_size) {
  if (file.FindEntry(key) == nullptr) return kNoToken;
  HEADLANE_ASSIGN_OR_RETURN(const uint32_t id, file.GetU32InRange(key, 0, static_cast<uint32_t>(vocab_size - 1)));
  return static_cast<int32_t>(id);
}

}  // namespace

Status TokenizerModel::LoadIds(const GgufFile& file) {
  HEADLANE_ASSIGN_OR_RETURN(bos_id, ReadId(file, "tokenizer.ggml.bos_token_id", vocabulary.size()));
  HEADLANE_ASSIGN_OR_RETURN(eos_id, ReadId(file, "tokenizer.ggml.eos_token_id", vocabulary.size()));
  HEADLANE_ASSIGN_OR_RETURN(const int32_t eot_id, ReadId(file, "tokenizer.ggml.eot_token_id", vocabulary.size()));
  HEADLANE_ASSIGN_OR_RETURN(const int32_t eom_id, ReadId(file, "tokenizer.ggml.eom_token_id", vocabulary.size()));
  stop_ids = {eos_id, eot_id, eom_id};
  for (const std::string_view name : kStopNames) {
    const int32_t id = special->FindExact(name);
    if (id != kNoToken && IsControl(id)) stop_ids.push_back(id);
  }
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
  if (stop_ids.front() == kNoToken) stop_ids.erase(stop_ids.begin());
  return OkStatus();
}

Status TokenizerModel::Encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>* ids) const {
  const SpecialTokens::Match first = special->FindNext(text, 0, options.parse_special);
  const bool begins_with_bos = first.begin == 0 && first.length > 0 && first.id == bos_id;
  const BosMode bos = options.continuation ? BosMode::kNever : options.bos;
  if (bos == BosMode::kAlways && bos_id == kNoToken) {
    return MakeStatus(StatusCode::kFailedPrecondition, "the model file names no BOS token");
  }
  if (bos == BosMode::kAlways || (bos == BosMode::kModel && adds_bos && !begins_with_bos)) ids->push_back(bos_id);
  // The space prefix belongs to the first text, which BOS may precede and nothing else.
  bool at_start = !options.continuation;
  size_t at = 0;
  for (SpecialTokens::Match match = first;; match = special->FindNext(text, at, options.parse_special)) {
    const std::string_view plain = text.substr(at, match.begin - at);
    if (!plain.empty()) {
      const Status status = bpe ? bpe->Encode(plain, at, options.drop_unencodable, ids)
                                : spm->Encode(plain, at_start && adds_space_prefix, at, options.drop_unencodable, ids);
      if (!status.ok()) return status;
      at_start = false;
    }
    if (match.length == 0) return OkStatus();
    ids->push_back(match.id);
    at_start = at_start && match.id == bos_id;
    at = match.begin + match.length;
  }
}

void TokenizerModel::AppendBytes(int32_t id, bool skip_control, DecodeState* state, std::string* out) const {
  std::string_view bytes = vocabulary.bytes(id);
  if (IsControl(id)) {
    const bool leading_bos = state->at_start && id == bos_id;
    const bool added = leading_bos && adds_bos && !state->saw_bos;
    state->at_start = leading_bos;
    state->saw_bos = state->saw_bos || leading_bos;
    if (!added && !skip_control) out->append(bytes);
    return;
  }
  // A user-defined token is found in the text before a prefix is thought of.
  const bool may_have_prefix = state->at_start && adds_space_prefix && vocabulary.kind(id) != TokenKind::kUserDefined;
  if (may_have_prefix && bytes.starts_with(' ')) bytes.remove_prefix(1);
  state->at_start = false;
  out->append(bytes);
}

}  // namespace decoder_internal

namespace {

using decoder_internal::GuardAllocation;
using decoder_internal::Printable;
using decoder_internal::TokenizerModel;

Status CheckId(const TokenizerModel& model, int32_t id, size_t index) {
  if (id >= 0 && id < model.vocabulary.size()) return OkStatus();
  return MakeStatus(StatusCode::kOutOfRange, "id %d at index %zu; the vocabulary has %d tokens", id, index,
                    model.vocabulary.size());
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerModel> model) noexcept : model_(std::move(model)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Create(const GgufFile& file) {
  return GuardAllocation("loading the vocabulary", [&]() -> Result<Tokenizer> {
    using decoder_internal::BpeEncoder;
    using decoder_internal::Pretokenizer;
    using decoder_internal::SpmEncoder;
    using decoder_internal::Spelling;
    using decoder_internal::Vocabulary;
    HEADLANE_ASSIGN_OR_RETURN(const std::string_view kind, file.GetString("tokenizer.ggml.model"));
    if (kind != "gpt2" && kind != "llama") {
      return MakeStatus(StatusCode::kUnsupported, "tokenizer model '%s' is not supported; supported are gpt2, llama",
                        Printable(kind).c_str());
    }
    HEADLANE_ASSIGN_OR_RETURN(const std::string_view pretokenizer_name, file.GetStringOr("tokenizer.ggml.pre", ""));
    auto model = std::make_unique<TokenizerModel>();
    model->pretokenizer_name = pretokenizer_name;
    bool adds_bos = true;
    if (kind == "gpt2") {
      HEADLANE_ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::Create(pretokenizer_name));
      adds_bos = pretokenizer.adds_bos();
      HEADLANE_ASSIGN_OR_RETURN(model->vocabulary, Vocabulary::Load(file, Spelling::kByteLevel));
      HEADLANE_ASSIGN_OR_RETURN(model->bpe, BpeEncoder::Load(file, model->vocabulary, std::move(pretokenizer)));
    } else {
      HEADLANE_ASSIGN_OR_RETURN(model->vocabulary, Vocabulary::Load(file, Spelling::kSentencePiece));
      HEADLANE_ASSIGN_OR_RETURN(model->spm, SpmEncoder::Load(file, model->vocabulary));
      HEADLANE_ASSIGN_OR_RETURN(model->adds_space_prefix, file.GetBoolOr("tokenizer.ggml.add_space_prefix", true));
    }
    model->special.emplace(model->vocabulary);
    HEADLANE_RETURN_IF_ERROR(model->LoadIds(file));
    HEADLANE_ASSIGN_OR_RETURN(adds_bos, file.GetBoolOr("tokenizer.ggml.add_bos_token", adds_bos));
    model->adds_bos = adds_bos && model->bos_id != kNoToken;
    return Tokenizer(std::move(model));
  });
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() >= INT32_MAX) {
    return MakeStatus(StatusCode::kResourceExhausted, "a text of %zu bytes; the limit is %d", text.size(),
                      INT32_MAX - 1);
  }
  return GuardAllocation("encoding a text", [&]() -> Result<std::vector<int32_t>> {
    std::vector<int32_t> ids;
    HEADLANE_RETURN_IF_ERROR(model_->Encode(text, options, &ids));
    return ids;
  });
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids, bool skip_control) const {
  return GuardAllocation("decoding ids", [&]() -> Result<std::string> {
    std::string text;
    decoder_internal::DecodeState state;
    for (size_t i = 0; i < ids.size(); ++i) {
      HEADLANE_RETURN_IF_ERROR(CheckId(*model_, ids[i], i));
      model_->AppendBytes(ids[i], skip_control, &state, &text);
    }
    return text;
  });
}

int32_t Tokenizer::vocab_size() const noexcept { return model_->vocabulary.size(); }

std::string_view Tokenizer::TokenBytes(int32_t id) const noexcept {
  return id >= 0 && id < vocab_size() ? model_->vocabulary.bytes(id) : std::string_view();
}

bool Tokenizer::IsControl(int32_t id) const noexcept { return id >= 0 && id < vocab_size() && model_->IsControl(id); }

bool Tokenizer::IsStop(int32_t id) const noexcept {
  return std::binary_search(model_->stop_ids.begin(), model_->stop_ids.end(), id);
}

int32_t Tokenizer::FindToken(std::string_view bytes) const noexcept {
  const int32_t id = model_->special->FindExact(bytes);
  return id != kNoToken ? id : model_->vocabulary.FindNormal(bytes);
}

int32_t Tokenizer::bos_id() const noexcept { return model_->bos_id; }
int32_t Tokenizer::eos_id() const noexcept { return model_->eos_id; }
bool Tokenizer::adds_bos() const noexcept { return model_->adds_bos; }
std::span<const int32_t> Tokenizer::stop_ids() const noexcept { return model_->stop_ids; }
const char* Tokenizer::model_name() const noexcept { return model_->bpe ? "gpt2" : "llama"; }
std::string_view Tokenizer::pretokenizer_name() const noexcept { return model_->pretokenizer_name; }

TokenStream::TokenStream(const Tokenizer& tokenizer, const Options& options) noexcept
    : tokenizer_(&tokenizer), options_(options), state_{options.at_start, false} {}

Result<std::string_view> TokenStream::Push(int32_t id) {
  HEADLANE_RETURN_IF_ERROR(CheckId(*tokenizer_->model_, id, 0));
  return GuardAllocation("decoding a token", [&]() -> Result<std::string_view> {
    tokenizer_->model_->AppendBytes(id, options_.skip_control, &state_, &pending_);
    const size_t whole = pending_.size() - decoder_internal::IncompleteUtf8Tail(pending_);
    out_.clear();
    if (options_.replace_invalid) {
      decoder_internal::AppendReplacingInvalid(std::string_view(pending_).substr(0, whole), &out_);
    } else {
      out_.append(pending_, 0, whole);
    }
    pending_.erase(0, whole);
    return std::string_view(out_);
  });
}

std::string_view TokenStream::Finish() noexcept {
  out_.clear();
  // At most 3 bytes in either form: they fit without allocating.
  if (options_.replace_invalid) {
    decoder_internal::AppendReplacingInvalid(pending_, &out_);
  } else {
    out_.append(pending_);
  }
  pending_.clear();
  state_ = {options_.at_start, false};
  return out_;
}

}  // namespace headlane
