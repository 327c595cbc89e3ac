#include "decoder/synthetic.h"

#include <array>
#include <charconv>
#include <cstring>

namespace headlane::internal {
namespace {

struct Row {
  const char* name;
  int32_t num_layers, width, ff_width, num_q_heads, num_kv_heads, head_dim, vocab_size, context_length;
  double rope_base;
  bool tied_head;
};

// The published shapes. llama-3-8b has 32 layers and 32 GB in f32: ask for fewer.
constexpr Row kRows[] = {
    {"tiny", 2, 64, 192, 4, 2, 16, 512, 2048, 10000.0, true},
    {"smollm2-135m", 30, 576, 1536, 9, 3, 64, 49152, 8192, 100000.0, true},
    {"smollm2-360m", 32, 960, 2560, 15, 5, 64, 49152, 8192, 100000.0, true},
    {"tinyllama-1.1b", 22, 2048, 5632, 32, 4, 64, 32000, 2048, 10000.0, false},
    {"llama-3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 500000.0, true},
    {"llama-3.2-3b", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 500000.0, true},
    {"llama-3-8b", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 500000.0, false},
};
constexpr size_t kNumRows = sizeof(kRows) / sizeof(kRows[0]);

constexpr std::array<const char*, kNumRows> kNames = [] {
  std::array<const char*, kNumRows> names{};
  for (size_t i = 0; i < kNumRows; ++i) names[i] = kRows[i].name;
  return names;
}();

// Writes GGUF's primitives into memory. Little-endian machines only, as is the reader.
class Writer {
 public:
  template <typename T>
  void Number(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  void Text(std::string_view text) {
    Number<uint64_t>(text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  void Key(std::string_view key, GgufType type) {
    Text(key);
    Number(static_cast<uint32_t>(type));
  }
  void StringEntry(std::string_view key, std::string_view value) {
    Key(key, GgufType::kString);
    Text(value);
  }
  void U32Entry(std::string_view key, uint32_t value) {
    Key(key, GgufType::kUint32);
    Number(value);
  }
  void ArrayEntry(std::string_view key, GgufType element_type, uint64_t count) {
    Key(key, GgufType::kArray);
    Number(static_cast<uint32_t>(element_type));
    Number(count);
  }
  std::vector<uint8_t> Take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

// Byte-level vocabularies spell a byte as a printable character: itself where it is one, else the next unused one from
// U+0100 on.
std::array<std::string, 256> ByteSpellings() {
  std::array<std::string, 256> spellings;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
    const int c = printable ? byte : next++;
    std::string& out = spellings[static_cast<size_t>(byte)];
    if (c < 0x80) {
      out = static_cast<char>(c);
    } else {
      out = {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
    }
  }
  return spellings;
}

// A space and two or more syllables, different for each number.
std::string Word(std::string_view space, int64_t number) {
  constexpr std::string_view kConsonants = "bdfghjklmnprstvz";
  constexpr std::string_view kVowels = "aeiou";
  constexpr int64_t kSyllables = static_cast<int64_t>(kConsonants.size() * kVowels.size());
  std::string word(space);
  for (int64_t rest = number + kSyllables; rest > 0; rest /= kSyllables) {
    const int64_t syllable = rest % kSyllables;
    word += kConsonants[static_cast<size_t>(syllable / static_cast<int64_t>(kVowels.size()))];
    word += kVowels[static_cast<size_t>(syllable % static_cast<int64_t>(kVowels.size()))];
  }
  return word;
}

}  // namespace

std::span<const char* const> SyntheticNames() noexcept { return kNames; }

Result<SyntheticShape> FindSyntheticShape(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const Row* row = nullptr;
  std::string names;
  for (const Row& candidate : kRows) {
    if (name == candidate.name) row = &candidate;
    names += names.empty() ? "" : ", ";
    names += candidate.name;
  }
  if (row == nullptr) {
    return MakeStatus(StatusCode::kInvalidArgument, "no synthetic shape '%.*s'; there are %s",
                      static_cast<int>(std::min<size_t>(name.size(), 40)), name.data(), names.c_str());
  }
  int64_t num_layers = row->num_layers;
  if (colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), num_layers);
    if (error != std::errc() || end != digits.data() + digits.size() || num_layers < 1 || num_layers > kMaxLayers) {
      return MakeStatus(StatusCode::kInvalidArgument, "synthetic shape '%.*s': the number of layers must be 1 .. %u",
                        static_cast<int>(std::min<size_t>(text.size(), 40)), text.data(), kMaxLayers);
    }
  }
  SyntheticShape shape;
  shape.name = text;
  shape.tied_head = row->tied_head;
  LlamaConfig& c = shape.config;
  c.num_layers = num_layers;
  c.width = row->width;
  c.ff_width = row->ff_width;
  c.num_q_heads = row->num_q_heads;
  c.num_kv_heads = row->num_kv_heads;
  c.qk_dim = row->head_dim;
  c.v_dim = row->head_dim;
  c.vocab_size = row->vocab_size;
  c.context_length = row->context_length;
  c.norm_epsilon = 1e-5f;
  c.rope.rotary_dim = row->head_dim;
  c.rope.base = row->rope_base;
  return shape;
}

std::vector<uint8_t> MakeSyntheticVocabularyFile(int64_t vocab_size) {
  constexpr std::string_view kControl[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  constexpr int64_t kNumControl = 3;
  const std::array<std::string, 256> bytes = ByteSpellings();

  Writer file;
  file.Number<uint32_t>(0x46554747);  // "GGUF"
  file.Number<uint32_t>(3);
  file.Number<uint64_t>(0);  // tensors
  file.Number<uint64_t>(8);  // keys
  file.StringEntry("general.architecture", "llama");
  file.StringEntry("tokenizer.ggml.model", "gpt2");
  file.StringEntry("tokenizer.ggml.pre", "smollm");
  file.U32Entry("tokenizer.ggml.bos_token_id", 1);
  file.U32Entry("tokenizer.ggml.eos_token_id", 2);
  file.ArrayEntry("tokenizer.ggml.tokens", GgufType::kString, static_cast<uint64_t>(vocab_size));
  for (int64_t id = 0; id < vocab_size; ++id) {
    if (id < kNumControl) {
      file.Text(kControl[id]);
    } else if (id < kNumControl + 256) {
      file.Text(bytes[static_cast<size_t>(id - kNumControl)]);
    } else {
      file.Text(Word(bytes[' '], id - kNumControl - 256));
    }
  }
  file.ArrayEntry("tokenizer.ggml.token_type", GgufType::kInt32, static_cast<uint64_t>(vocab_size));
  for (int64_t id = 0; id < vocab_size; ++id) file.Number<int32_t>(id < kNumControl ? 3 : 1);
  file.ArrayEntry("tokenizer.ggml.merges", GgufType::kString, 0);
  return file.Take();
}

}  // namespace headlane::internal
