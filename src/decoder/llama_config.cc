#include "decoder/llama_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace headlane::internal {
namespace {

constexpr std::string_view kArchitecture = "llama";

// printf's %.*s for text from a file: cut, since a message has little room.
int PrintLength(std::string_view text) { return static_cast<int>(std::min<size_t>(text.size(), 48)); }

Status CheckArchitecture(const GgufFile& file) {
  HEADLANE_ASSIGN_OR_RETURN(const std::string_view architecture, file.GetString("general.architecture"));
  if (architecture != kArchitecture) {
    return MakeStatus(StatusCode::kUnsupported, "model architecture '%.*s' is not supported; supported: llama",
                      PrintLength(architecture), architecture.data());
  }
  // Keys that change what the forward pass means. Ignoring them would give plausible nonsense.
  HEADLANE_ASSIGN_OR_RETURN(const uint32_t experts, file.GetU32Or("llama.expert_count", 0));
  if (experts > 0) {
    return MakeStatus(StatusCode::kUnsupported, "llama.expert_count is %u: mixtures of experts are not supported",
                      experts);
  }
  HEADLANE_ASSIGN_OR_RETURN(const uint32_t window, file.GetU32Or("llama.attention.sliding_window", 0));
  if (window > 0) {
    return MakeStatus(StatusCode::kUnsupported,
                      "llama.attention.sliding_window is %u: windowed layers are not supported in model files yet",
                      window);
  }
  return OkStatus();
}

Status CheckPositive(const char* key, float value) {
  // Written so that NaN fails.
  if (value > 0 && std::isfinite(value)) return OkStatus();
  return MakeStatus(StatusCode::kDataLoss, "%s is %g; it must be positive", key, static_cast<double>(value));
}

// YaRN's settings other than the factor; what they leave out is as in the paper.
Status ReadYarn(const GgufFile& file, LlamaConfig& config) {
  config.rope.scaling = RopeScaling::kYarn;
  HEADLANE_ASSIGN_OR_RETURN(
      const uint32_t original_context,
      file.GetU32Or("llama.rope.scaling.original_context_length", static_cast<uint32_t>(config.context_length)));
  config.rope.original_context = original_context;
  HEADLANE_ASSIGN_OR_RETURN(const float beta_fast, file.GetF32Or("llama.rope.scaling.yarn_beta_fast", 32.0f));
  HEADLANE_ASSIGN_OR_RETURN(const float beta_slow, file.GetF32Or("llama.rope.scaling.yarn_beta_slow", 1.0f));
  config.rope.beta_fast = beta_fast;
  config.rope.beta_slow = beta_slow;
  // Variants that would change the frequencies or the scores.
  HEADLANE_ASSIGN_OR_RETURN(const float extrapolation, file.GetF32Or("llama.rope.scaling.yarn_ext_factor", 1.0f));
  if (extrapolation != 1.0f) {
    return MakeStatus(StatusCode::kUnsupported, "llama.rope.scaling.yarn_ext_factor is %g; supported: 1",
                      static_cast<double>(extrapolation));
  }
  HEADLANE_ASSIGN_OR_RETURN(const float multiplier, file.GetF32Or("llama.rope.scaling.yarn_log_multiplier", 0.0f));
  if (multiplier != 0.0f) {
    return MakeStatus(StatusCode::kUnsupported, "llama.rope.scaling.yarn_log_multiplier is %g; supported: 0",
                      static_cast<double>(multiplier));
  }
  return OkStatus();
}

Status ReadScaling(const GgufFile& file, LlamaConfig& config) {
  HEADLANE_ASSIGN_OR_RETURN(const std::string_view scaling, file.GetStringOr("llama.rope.scaling.type", "none"));
  // Files older than scaling.type have the factor alone, under its former name.
  HEADLANE_ASSIGN_OR_RETURN(const float former_factor, file.GetF32Or("llama.rope.scale_linear", 1.0f));
  HEADLANE_ASSIGN_OR_RETURN(const float factor, file.GetF32Or("llama.rope.scaling.factor", former_factor));
  const bool is_former = !file.FindEntry("llama.rope.scaling.type") && factor != 1.0f;
  if (scaling == "linear" || is_former) {
    config.rope.scaling = RopeScaling::kLinear;
  } else if (scaling == "yarn") {
    HEADLANE_RETURN_IF_ERROR(ReadYarn(file, config));
  } else if (scaling != "none") {
    return MakeStatus(StatusCode::kUnsupported,
                      "llama.rope.scaling.type '%.*s' is not supported; supported: none, linear, yarn, and factors in "
                      "the tensor rope_freqs.weight",
                      PrintLength(scaling), scaling.data());
  }
  if (config.rope.scaling != RopeScaling::kNone) {
    HEADLANE_RETURN_IF_ERROR(CheckPositive("llama.rope.scaling.factor", factor));
    config.rope.factor = factor;
  }
  // Both multiply what the scaling implies.
  double attention_factor = config.rope.scaling == RopeScaling::kYarn ? YarnMscale(config.rope.factor, 1.0) : 1.0;
  for (const char* key : {"llama.rope.scaling.attn_factor", "llama.rope.scaling.yarn_attn_factor"}) {
    HEADLANE_ASSIGN_OR_RETURN(const float multiplier, file.GetF32Or(key, 1.0f));
    HEADLANE_RETURN_IF_ERROR(CheckPositive(key, multiplier));
    attention_factor *= static_cast<double>(multiplier);
  }
  config.rope.attention_factor = attention_factor;
  return OkStatus();
}

Status ReadRope(const GgufFile& file, LlamaConfig& config) {
  const uint32_t head_dim = static_cast<uint32_t>(config.qk_dim);
  HEADLANE_ASSIGN_OR_RETURN(const uint32_t rotary_dim, file.GetU32Or("llama.rope.dimension_count", head_dim));
  if (rotary_dim > head_dim || rotary_dim % 2 != 0) {
    return MakeStatus(StatusCode::kDataLoss,
                      "llama.rope.dimension_count is %u; it must be even and at most the head's width %u", rotary_dim,
                      head_dim);
  }
  config.rope.rotary_dim = rotary_dim;
  config.rope.style = RopeStyle::kAdjacent;  // converters permute q and k for it
  HEADLANE_ASSIGN_OR_RETURN(const float base, file.GetF32Or("llama.rope.freq_base", 10000.0f));
  HEADLANE_RETURN_IF_ERROR(CheckPositive("llama.rope.freq_base", base));
  config.rope.base = base;
  HEADLANE_RETURN_IF_ERROR(ReadScaling(file, config));

  // Llama 3's scaling comes as one divisor per pair, computed by the converter.
  if (file.FindTensor("rope_freqs.weight") != nullptr) {
    HEADLANE_ASSIGN_OR_RETURN(const GgufTensor divisors, file.GetTensor("rope_freqs.weight", {rotary_dim / 2}));
    config.rope_divisors.resize(static_cast<size_t>(rotary_dim / 2));
    HEADLANE_RETURN_IF_ERROR(
        DequantizeRow(divisors.type, divisors.data, divisors.row_len(), config.rope_divisors.data()));
    for (size_t i = 0; i < config.rope_divisors.size(); ++i) {
      const float divisor = config.rope_divisors[i];
      if (!(divisor > 0) || !std::isfinite(divisor)) {
        return MakeStatus(StatusCode::kDataLoss, "rope_freqs.weight[%zu] is %g; it must be positive", i,
                          static_cast<double>(divisor));
      }
    }
  }
  // What is positive, but can't be computed with, is refused now and not with the first token.
  const Result<RopeSpec> usable = ResolveRope(config.RopeOf(), config.context_length);
  if (!usable.ok()) return MakeStatus(StatusCode::kDataLoss, "llama.rope: %s", usable.status().c_str());
  return OkStatus();
}

}  // namespace

RopeSpec LlamaConfig::RopeOf() const noexcept {
  RopeSpec spec = rope;
  spec.frequency_divisors = rope_divisors.empty() ? nullptr : rope_divisors.data();
  return spec;
}

Result<LlamaConfig> ReadLlamaConfig(const GgufFile& file) {
  HEADLANE_RETURN_IF_ERROR(CheckArchitecture(file));
  LlamaConfig config;
  HEADLANE_ASSIGN_OR_RETURN(config.num_layers, file.GetU32InRange("llama.block_count", 1, kMaxLayers));
  HEADLANE_ASSIGN_OR_RETURN(config.width, file.GetU32InRange("llama.embedding_length", 1, kMaxWidth));
  HEADLANE_ASSIGN_OR_RETURN(config.ff_width, file.GetU32InRange("llama.feed_forward_length", 1, kMaxWidth));
  HEADLANE_ASSIGN_OR_RETURN(config.num_q_heads, file.GetU32InRange("llama.attention.head_count", 1, kMaxHeads));
  config.num_kv_heads = config.num_q_heads;
  if (file.FindEntry("llama.attention.head_count_kv") != nullptr) {
    HEADLANE_ASSIGN_OR_RETURN(config.num_kv_heads, file.GetU32InRange("llama.attention.head_count_kv", 1, kMaxHeads));
  }
  if (config.num_q_heads % config.num_kv_heads != 0) {
    return MakeStatus(StatusCode::kDataLoss,
                      "llama.attention.head_count is %lld, no multiple of llama.attention.head_count_kv, %lld",
                      static_cast<long long>(config.num_q_heads), static_cast<long long>(config.num_kv_heads));
  }

  if (file.FindEntry("llama.attention.key_length") != nullptr) {
    HEADLANE_ASSIGN_OR_RETURN(config.qk_dim, file.GetU32InRange("llama.attention.key_length", 1, kMaxHeadDim));
  } else if (config.width % config.num_q_heads == 0) {
    config.qk_dim = config.width / config.num_q_heads;
  } else {
    return MakeStatus(
        StatusCode::kDataLoss,
        "llama.embedding_length is %lld, no multiple of llama.attention.head_count, %lld, and there is no "
        "llama.attention.key_length",
        static_cast<long long>(config.width), static_cast<long long>(config.num_q_heads));
  }
  config.v_dim = config.qk_dim;
  if (file.FindEntry("llama.attention.value_length") != nullptr) {
    HEADLANE_ASSIGN_OR_RETURN(config.v_dim, file.GetU32InRange("llama.attention.value_length", 1, kMaxHeadDim));
  }

  HEADLANE_ASSIGN_OR_RETURN(config.context_length,
                            file.GetU32InRange("llama.context_length", 1, static_cast<uint32_t>(INT32_MAX)));
  HEADLANE_ASSIGN_OR_RETURN(config.norm_epsilon, file.GetF32("llama.attention.layer_norm_rms_epsilon"));
  if (!(config.norm_epsilon >= 0) || !std::isfinite(config.norm_epsilon)) {
    return MakeStatus(StatusCode::kDataLoss, "llama.attention.layer_norm_rms_epsilon is %g; it must not be negative",
                      static_cast<double>(config.norm_epsilon));
  }
  if (file.FindEntry("llama.attention.scale") != nullptr) {
    HEADLANE_ASSIGN_OR_RETURN(const float scale, file.GetF32("llama.attention.scale"));
    if (!std::isfinite(scale)) {
      return MakeStatus(StatusCode::kDataLoss, "llama.attention.scale is %g; it must be finite",
                        static_cast<double>(scale));
    }
    config.attention_scale = scale;
  }

  // The embedding says how many tokens there are; files need not repeat it.
  HEADLANE_ASSIGN_OR_RETURN(const GgufTensor embedding, file.GetTensor("token_embd.weight"));
  config.vocab_size = embedding.num_rows();
  if (config.vocab_size > kMaxVocabularySize) {
    return MakeStatus(StatusCode::kResourceExhausted, "token_embd.weight has %lld rows, more than %lld",
                      static_cast<long long>(config.vocab_size), static_cast<long long>(kMaxVocabularySize));
  }
  HEADLANE_ASSIGN_OR_RETURN(const uint32_t stated, file.GetU32Or("llama.vocab_size", 0));
  if (stated != 0 && stated != config.vocab_size) {
    return MakeStatus(StatusCode::kDataLoss, "llama.vocab_size is %u, but token_embd.weight has %lld rows", stated,
                      static_cast<long long>(config.vocab_size));
  }
  HEADLANE_RETURN_IF_ERROR(ReadRope(file, config));
  return config;
}

}  // namespace headlane::internal
