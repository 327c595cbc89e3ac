// A llama model of a few thousand weights: written as a GGUF file for the decoder, and computed in double precision
// here.
//
// The second forward pass shares no code and no structure with the library's: whole matrices, no cache, one token
// sequence from its start.
#ifndef HEADLANE_TESTS_E2E_TINY_MODEL_H_
#define HEADLANE_TESTS_E2E_TINY_MODEL_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "decoder/gguf_writer.h"

namespace headlane::testing {

struct TinyModel {
  // The shape; every combination that the file format can express.
  int64_t num_layers = 2;
  int64_t width = 24;
  int64_t ff_width = 40;
  int64_t num_q_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t qk_dim = 6;  // written as attention.key_length if it is not width / num_q_heads
  int64_t v_dim = 6;
  int64_t rotary_dim = 6;
  double rope_base = 10000.0;
  double rope_linear_factor = 0;     // 0: no scaling
  double rope_yarn_factor = 0;       // 0: no scaling. With an original context of 32
  double rope_attention_factor = 1;  // multiplies cos and sin, besides what YaRN implies
  bool former_scale_key = false;     // the factor stands under the key of older files
  std::vector<float> rope_divisors;  // rope_freqs.weight
  double attention_scale = 0;        // 0: 1 / sqrt(qk_dim)
  bool biases = false;
  bool tied_head = true;
  float epsilon = 1e-5f;
  uint32_t context_length = 128;

  // No part of the file: what Logits() lets rows see, as SessionOptions.
  int64_t window = 0;
  int64_t num_sinks = 0;

  // Fills `tensors` for the shape. `vocab_size` is that of the tiny vocabulary.
  void MakeWeights(uint64_t seed);

  // Row-major [rows][row_len]; a vector has one row.
  struct Tensor {
    int64_t rows = 1;
    int64_t row_len = 0;
    std::vector<float> values;
    // What the file has in place of `values` as f32: a type by its number there, and bytes.
    uint32_t type = 0;
    std::vector<uint8_t> bytes = {};
  };
  std::map<std::string, Tensor> tensors;
  int64_t vocab_size = 0;

  // The whole file. Change `writer` first to break it: keys are added before tensors.
  GgufWriter Writer() const;
  std::vector<uint8_t> Build() const { return Writer().Build(); }

  // Logits [ids][vocab_size] in double precision.
  std::vector<std::vector<double>> Logits(const std::vector<int32_t>& ids) const;
};

// A file of these bytes that is removed with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<uint8_t>& bytes, const std::string& suffix = ".gguf");
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_E2E_TINY_MODEL_H_
