#include "decoder/model_identity.h"

#include <bit>
#include <string_view>
#include <vector>

#include "decoder/alloc_guard.h"
#include "decoder/mix_bits.h"
#include "headlane/target.h"

namespace headlane::internal {
namespace {

class Identity {
 public:
  void Add(uint64_t value) noexcept {
    hash_ = decoder_internal::MixBits(hash_ + decoder_internal::kGoldenGamma + value);
  }
  void Add(int64_t value) noexcept { Add(static_cast<uint64_t>(value)); }
  void Add(float value) noexcept { Add(uint64_t{std::bit_cast<uint32_t>(value)}); }
  // The first, the middle and the last row.
  Status AddRows(const TensorRows& rows) {
    Add(rows.num_rows());
    Add(rows.row_len());
    row_.resize(static_cast<size_t>(rows.row_len()));
    for (const int64_t row : {int64_t{0}, rows.num_rows() / 2, rows.num_rows() - 1}) {
      HEADLANE_RETURN_IF_ERROR(rows.Read(row, row_.data()));
      for (const float value : row_) Add(value);
    }
    return OkStatus();
  }
  uint64_t hash() const noexcept { return hash_; }

 private:
  uint64_t hash_ = 0;
  std::vector<float> row_;
};

}  // namespace

Result<uint64_t> ModelIdentity(const ModelImpl& model) noexcept {
  return decoder_internal::GuardAllocation("identifying a model", [&]() -> Result<uint64_t> {
    const LlamaConfig& c = model.config;
    Identity identity;
    for (const int64_t number : {c.num_layers, c.width, c.ff_width, c.num_q_heads, c.num_kv_heads, c.qk_dim, c.v_dim,
                                 c.vocab_size, static_cast<int64_t>(c.rope.rotary_dim), model.info.file_bytes}) {
      identity.Add(number);
    }
    identity.Add(c.norm_epsilon);
    identity.Add(c.attention_scale.value_or(0.0f));
    const RopeSpec& rope = c.rope;
    identity.Add(static_cast<int64_t>(rope.style));
    identity.Add(static_cast<int64_t>(rope.scaling));
    for (const double number : {rope.base, rope.factor, rope.low_frequency_factor, rope.high_frequency_factor,
                                rope.original_context, rope.beta_fast, rope.beta_slow, rope.attention_factor}) {
      identity.Add(std::bit_cast<uint64_t>(number));
    }
    for (const float divisor : c.rope_divisors) identity.Add(divisor);
    // One promise of bits holds for our own layers on all targets with FMA; for anything else, the name must be the
    // same.
    const std::string_view linear = model.weights ? model.weights->head->implementation() : "";
    if (!linear.starts_with("tile") || !ActiveTarget().has_fma) {
      for (const char letter : linear) identity.Add(int64_t{letter});
    }
    // Exact layers count as they did before there were others.
    if (model.weights && model.weights->head->precision() != LinearPrecision::kExact) {
      identity.Add(static_cast<int64_t>(model.weights->head->precision()));
    }
    HEADLANE_RETURN_IF_ERROR(identity.AddRows(model.tensors.embedding));
    for (const LlamaLayerTensors& layer : model.tensors.layers) {
      for (const TensorRows* rows : {&layer.attention_norm, &layer.q, &layer.k, &layer.v, &layer.o, &layer.ff_norm,
                                     &layer.gate, &layer.up, &layer.down}) {
        HEADLANE_RETURN_IF_ERROR(identity.AddRows(*rows));
      }
    }
    return identity.hash();
  });
}

}  // namespace headlane::internal
