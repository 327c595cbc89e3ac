// TextStream and TokenSampler of headlane/decoder.h: the public faces of tokenizer.h and sampler.h.
#include <utility>

#include "decoder/alloc_guard.h"
#include "decoder/decoder_impl.h"
#include "decoder/sampler.h"
#include "decoder/tokenizer.h"
#include "headlane/decoder.h"

namespace headlane {

using decoder_internal::GuardAllocation;

namespace internal {

class TextStreamImpl {
 public:
  TextStreamImpl(const Tokenizer& tokenizer, const TokenStream::Options& options) : stream(tokenizer, options) {}
  TokenStream stream;
};

class TokenSamplerImpl {
 public:
  explicit TokenSamplerImpl(Sampler sampler) : sampler(std::move(sampler)) {}
  Sampler sampler;
};

}  // namespace internal

TextStream::TextStream(std::unique_ptr<internal::TextStreamImpl> impl) noexcept : impl_(std::move(impl)) {}
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;
TextStream::~TextStream() = default;

Result<TextStream> TextStream::Create(const Model& model, const Options& options) noexcept {
  return GuardAllocation("making a text stream", [&]() -> Result<TextStream> {
    TokenStream::Options inner;
    inner.skip_control = !options.show_control;
    inner.at_start = options.at_start;
    inner.replace_invalid = true;
    return TextStream(std::make_unique<internal::TextStreamImpl>(model.impl().tokenizer, inner));
  });
}

Result<std::string_view> TextStream::Push(int32_t id) noexcept {
  return GuardAllocation("decoding a token", [&] { return impl_->stream.Push(id); });
}

std::string_view TextStream::Finish() noexcept { return impl_->stream.Finish(); }

TokenSampler::TokenSampler(std::unique_ptr<internal::TokenSamplerImpl> impl) noexcept : impl_(std::move(impl)) {}
TokenSampler::TokenSampler(TokenSampler&&) noexcept = default;
TokenSampler& TokenSampler::operator=(TokenSampler&&) noexcept = default;
TokenSampler::~TokenSampler() = default;

Result<TokenSampler> TokenSampler::Create(int64_t vocab_size, const SamplingOptions& options) noexcept {
  if (vocab_size < 1 || vocab_size > internal::kMaxVocabularySize) {
    return MakeStatus(StatusCode::kInvalidArgument, "vocab_size is %lld; it must be 1 .. %lld",
                      static_cast<long long>(vocab_size), static_cast<long long>(internal::kMaxVocabularySize));
  }
  return GuardAllocation("making a sampler", [&]() -> Result<TokenSampler> {
    SamplerOptions inner;
    inner.temperature = options.temperature;
    inner.top_k = options.top_k;
    inner.top_p = options.top_p;
    inner.seed = options.seed;
    HEADLANE_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(static_cast<int32_t>(vocab_size), inner));
    return TokenSampler(std::make_unique<internal::TokenSamplerImpl>(std::move(sampler)));
  });
}

Result<int32_t> TokenSampler::Next(std::span<const float> logits) noexcept { return impl_->sampler.Next(logits); }

}  // namespace headlane
