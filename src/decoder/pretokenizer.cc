#include "decoder/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>

#include "decoder/unicode.h"

namespace headlane::decoder_internal {
namespace {

// White_Space of the Unicode standard, inside of a class. Spelled out because \s has varied between regular-expression
// libraries (U+0085, U+180E).
#define HEADLANE_SPACE \
  "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define HEADLANE_BLANKS "[" HEADLANE_SPACE "]+"
// Spaces up to the last one before a word, which belongs to the word; at the end of the text all of them.
#define HEADLANE_BLANKS_BEFORE_WORD HEADLANE_BLANKS "(?![^" HEADLANE_SPACE "])"

constexpr char kGpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d"
    "| ?\\p{L}+| ?\\p{N}+| ?[^" HEADLANE_SPACE
    "\\p{L}\\p{N}]+"
    "|" HEADLANE_BLANKS_BEFORE_WORD "|" HEADLANE_BLANKS;

// Every character of category N is cut out first and stands alone; GPT-2's pattern cuts the text between them. In one
// pattern: a number is the end of such a text, so no blank belongs to it and blanks before it stay together.
constexpr char kSmolLm[] =
    "\\p{N}"
    "|'s|'t|'re|'ve|'m|'ll|'d"
    "| ?\\p{L}+| ?[^" HEADLANE_SPACE
    "\\p{L}\\p{N}]+"
    "|" HEADLANE_BLANKS "(?![^" HEADLANE_SPACE "\\p{N}])|" HEADLANE_BLANKS;

// Llama 3 takes numbers three digits at a time, Qwen 2 one by one.
#define HEADLANE_CL100K(numbers)                                   \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)"                                   \
  "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^" HEADLANE_SPACE \
  "\\p{L}\\p{N}]+[\\r\\n]*"                                        \
  "|[" HEADLANE_SPACE                                              \
  "]*[\\r\\n]+"                                                    \
  "|" HEADLANE_BLANKS_BEFORE_WORD "|" HEADLANE_BLANKS
constexpr char kLlama3[] = HEADLANE_CL100K("\\p{N}{1,3}");
constexpr char kQwen2[] = HEADLANE_CL100K("\\p{N}");

struct Rule {
  std::initializer_list<const char*> names;
  const char* pattern;
  bool whole_pieces_first;
  bool adds_bos;
};

// Names that share a rule are models whose tokenizers were built with the same pattern.
const Rule kRules[] = {
    {{"smollm", "starcoder", "command-r"}, kSmolLm, false, false},
    {{"gpt-2", "default", "olmo", ""}, kGpt2, false, false},
    {{"llama-bpe", "llama3", "falcon3", "pixtral", "lfm2"}, kLlama3, true, true},
    {{"qwen2", "deepseek-r1-qwen"}, kQwen2, false, false},
};

const Rule* FindRule(std::string_view name) {
  for (const Rule& rule : kRules) {
    for (const char* known : rule.names) {
      if (name == known) return &rule;
    }
  }
  return nullptr;
}

Status UnknownName(std::string_view name) {
  char known[Status::kMaxMessage] = "";
  size_t length = 0;
  for (const Rule& rule : kRules) {
    for (const char* other : rule.names) {
      if (*other == '\0') continue;
      const int wrote = std::snprintf(known + length, sizeof(known) - length, "%s%s", length == 0 ? "" : ", ", other);
      length = std::min(length + static_cast<size_t>(wrote), sizeof(known) - 1);
    }
  }
  return MakeStatus(StatusCode::kUnsupported, "pre-tokenizer '%s' is not supported; supported are %s",
                    Printable(name).c_str(), known);
}

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// What one call of Split needs of PCRE2.
struct Matcher {
  std::unique_ptr<pcre2_match_data, FreeMatch> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, FreeContext> context{pcre2_match_context_create(nullptr)};
};

// `text` is valid UTF-8.
Status SplitValid(const pcre2_code* code, const Matcher& matcher, std::string_view text,
                  const std::function<Status(std::string_view)>& piece) {
  size_t start = 0;
  while (start < text.size()) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                                  PCRE2_NO_UTF_CHECK, matcher.data.get(), matcher.context.get());
    if (found == PCRE2_ERROR_NOMEMORY) {
      return MakeStatus(StatusCode::kResourceExhausted, "out of memory while splitting a text of %zu bytes",
                        text.size());
    }
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
      return MakeStatus(StatusCode::kInternal, "PCRE2 gives error %d at byte %zu of %zu", found, start, text.size());
    }
    // The patterns match everything, at once and never nothing; a text between two matches would be a piece too.
    const size_t* bounds = pcre2_get_ovector_pointer(matcher.data.get());
    const size_t begin = found < 0 ? text.size() : bounds[0];
    const size_t end = found < 0 ? text.size() : std::max(bounds[1], start + 1);
    if (begin > start) HEADLANE_RETURN_IF_ERROR(piece(text.substr(start, begin - start)));
    if (end > begin) HEADLANE_RETURN_IF_ERROR(piece(text.substr(begin, end - begin)));
    start = end;
  }
  return OkStatus();
}

}  // namespace

void Pretokenizer::FreeCode::operator()(void* code) const noexcept { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Result<Pretokenizer> Pretokenizer::Create(std::string_view name) {
  const Rule* rule = FindRule(name);
  if (rule == nullptr) return UnknownName(name);
  int error = 0;
  size_t error_at = 0;
  Pretokenizer pretokenizer;
  pretokenizer.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rule->pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                                         &error, &error_at, nullptr));
  if (pretokenizer.code_ == nullptr) {
    return MakeStatus(StatusCode::kInternal, "PCRE2 refuses a pattern: error %d at %zu (was it built without Unicode?)",
                      error, error_at);
  }
  pretokenizer.whole_pieces_first_ = rule->whole_pieces_first;
  pretokenizer.adds_bos_ = rule->adds_bos;
  return pretokenizer;
}

Status Pretokenizer::Split(std::string_view text, const std::function<Status(std::string_view)>& piece) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const Matcher matcher;
  if (matcher.data == nullptr || matcher.context == nullptr) {
    return MakeStatus(StatusCode::kResourceExhausted, "out of memory while splitting a text of %zu bytes", text.size());
  }
  // PCRE2's limits guard against patterns that explode; ours are linear in each run of blanks, however long it is.
  pcre2_set_match_limit(matcher.context.get(), UINT32_MAX);

  size_t run = 0;  // start of the valid text that is not yet cut
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = ReadUtf8(text.substr(at));
    if (step.state == Utf8State::kValid) {
      at += static_cast<size_t>(step.length);
      continue;
    }
    HEADLANE_RETURN_IF_ERROR(SplitValid(code, matcher, text.substr(run, at - run), piece));
    HEADLANE_RETURN_IF_ERROR(piece(text.substr(at, 1)));
    run = ++at;
  }
  return SplitValid(code, matcher, text.substr(run), piece);
}

}  // namespace headlane::decoder_internal
