// Random damage to small valid files: whatever comes of it, reading, encoding and expanding neither crash nor read
// beyond the file, and take no more memory than the file's size and a constant.
//
// The same files in every run, so that a failure can be repeated: HEADLANE_FUZZ_ROUNDS (default 20000) and
// HEADLANE_FUZZ_SEED (default 1) run more and others.
#include <gtest/gtest.h>

#include <cstdlib>

#include "decoder/allocation_counter.h"
#include "decoder/chat.h"
#include "decoder/dequant.h"
#include "decoder/gguf.h"
#include "decoder/gguf_writer.h"
#include "decoder/tiny_vocab.h"
#include "decoder/tokenizer.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace headlane::testing {
namespace {

constexpr size_t kMaxExtraBytes = size_t{64} << 20;

void AddTensors(GgufWriter* writer) {
  for (const TensorTypeInfo& info : SupportedTensorTypes()) {
    writer->AddTensor(info.name, static_cast<uint32_t>(info.type), {static_cast<uint64_t>(info.block_len), 2},
                      std::vector<uint8_t>(2 * static_cast<size_t>(info.block_bytes), 0x35));
  }
}

std::vector<std::vector<uint8_t>> Seeds() {
  GgufWriter bpe, spm, plain;
  TinyBpe{.pretokenizer = "llama-bpe", .merges = {{"a", "b"}, {"ab", "c"}, {" ", "abc"}}}.AddTo(&bpe);
  bpe.Add("tokenizer.chat_template", "{{ '<|im_start|>system\\nHi<|im_end|>' }}");
  TinySpm{.words = {"a", "b", "ab", "\xE2\x96\x81",
                    "\xE2\x96\x81"
                    "ab"}}
      .AddTo(&spm);
  spm.AddTensorF32("t", {4}, {1, 2, 3, 4});
  plain.Add("general.architecture", "llama").Add("llama.block_count", uint32_t{1}).Add("flag", true).Add("f", 0.5);
  plain.AddArray("names", std::vector<std::string>{"one", "two"}).Add("general.alignment", uint32_t{32});
  AddTensors(&plain);
  return {bpe.Build(), spm.Build(), plain.Build(), plain.Build(2)};
}

uint64_t SomeNumber(Random& random) {
  switch (random.Int(0, 4)) {
    case 0:
      return static_cast<uint64_t>(random.Int(0, 20));
    case 1:
      return uint64_t{1} << random.Int(0, 63);
    case 2:
      return ~uint64_t{0} - static_cast<uint64_t>(random.Int(0, 40));
    case 3:
      return (uint64_t{1} << random.Int(1, 63)) - 1;
    default:
      return random.Next();
  }
}

void Damage(Random& random, std::vector<uint8_t>* file, const std::vector<std::vector<uint8_t>>& seeds) {
  // Most of what can go wrong is in the first bytes, so half of the positions are there.
  const auto position = [&](size_t end) {
    const int64_t last = static_cast<int64_t>(end) - 1;
    return static_cast<size_t>(random.Int(0, random.OneIn(2) ? last : std::min<int64_t>(last, 400)));
  };
  for (int64_t i = random.OneIn(2) ? 1 : random.Int(1, 4); i > 0 && file->size() > 16; --i) {
    const size_t at = position(file->size());
    const auto here = file->begin() + static_cast<std::ptrdiff_t>(at);
    switch (random.Int(0, 6)) {
      case 0:
        (*file)[at] = static_cast<uint8_t>(random.Next());
        break;
      case 1:
        (*file)[at] ^= static_cast<uint8_t>(1 << random.Int(0, 7));
        break;
      case 2: {
        const uint64_t number = SomeNumber(random);
        std::memcpy(file->data() + at, &number, std::min<size_t>(random.OneIn(2) ? 4 : 8, file->size() - at));
        break;
      }
      case 3:
        file->resize(at);
        break;
      case 4:
        file->erase(here, here + static_cast<std::ptrdiff_t>(
                                     random.Int(0, static_cast<int64_t>(std::min<size_t>(file->size() - at, 40)))));
        break;
      case 5: {
        const std::vector<uint8_t>& other = random.Pick(seeds);
        const size_t from = position(other.size());
        const size_t size = std::min<size_t>(static_cast<size_t>(random.Int(1, 64)), other.size() - from);
        const auto piece = other.begin() + static_cast<std::ptrdiff_t>(from);
        file->insert(here, piece, piece + static_cast<std::ptrdiff_t>(size));
        break;
      }
      default:
        file->insert(here, static_cast<size_t>(random.Int(1, 16)), static_cast<uint8_t>(random.Next()));
    }
  }
}

// Uses all that a file offers; returns how far it got.
int Use(std::span<const uint8_t> bytes, std::vector<float>* row) {
  const Result<GgufFile> file = GgufFile::Parse(bytes);
  if (!file.ok()) return 0;
  for (const GgufTensor& tensor : file->tensors()) {
    if (tensor.row_len() > 4096) continue;
    row->resize(static_cast<size_t>(tensor.row_len()));
    EXPECT_TRUE(DequantizeRow(tensor.type, tensor.row(tensor.num_rows() - 1), tensor.row_len(), row->data()).ok());
  }
  for (const GgufEntry& entry : file->entries()) {
    EXPECT_EQ(file->FindEntry(entry.key), &entry);
    (void)StatusCodeName(file->GetU32(entry.key).status().code());
  }
  const Result<Tokenizer> tokenizer = Tokenizer::Create(*file);
  if (!tokenizer.ok()) return 1;
  for (const char* text : {"", " abc ab\n", "<|im_end|>a<tool>\xFF\xC3", "<s>\xE2\x96\x81 7"}) {
    for (const bool special : {false, true}) {
      const auto ids = tokenizer->Encode(text, {.parse_special = special, .drop_unencodable = true});
      EXPECT_TRUE(ids.ok()) << ids.status().message();
      if (!ids.ok()) continue;
      EXPECT_TRUE(tokenizer->Decode(*ids).ok());
    }
  }
  const Result<ChatFormat> chat = ChatFormat::Create(*file, *tokenizer);
  return chat.ok() ? 3 : 2;
}

int64_t FromEnvironment(const char* name, int64_t fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : std::atoll(value);
}

TEST(GgufFuzzTest, RandomDamage) {
  const std::vector<std::vector<uint8_t>> seeds = Seeds();
  std::vector<float> row;
  EXPECT_EQ(Use(seeds[0], &row), 3);
  EXPECT_EQ(Use(seeds[1], &row), 2);
  EXPECT_EQ(Use(seeds[2], &row), 1);
  int reached[4] = {};
  const int64_t rounds = FromEnvironment("HEADLANE_FUZZ_ROUNDS", 20000);
  Random random(static_cast<uint64_t>(FromEnvironment("HEADLANE_FUZZ_SEED", 1)));
  for (int64_t round = 0; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    std::vector<uint8_t> file = random.Pick(seeds);
    Damage(random, &file, seeds);
    const GuardedArray<uint8_t> guarded(file);
    AllocationCounter::Restart();
    const size_t before = AllocationCounter::live;
    ++reached[Use({guarded.data(), guarded.size()}, &row)];
    ASSERT_LE(AllocationCounter::peak - before, file.size() + kMaxExtraBytes);
  }
  // The damage is neither always fatal nor never.
  for (int stage = 0; stage < 4; ++stage) EXPECT_GT(reached[stage], rounds / 1000) << stage;
}

}  // namespace
}  // namespace headlane::testing
