// Damaged and hostile GGUF files: each is refused with a typed error that says why, and before much is allocated.
//
// Every file ends at a guard page, so that reading one byte too far stops the test.
#include <gtest/gtest.h>

#include <limits>

#include "decoder/allocation_counter.h"
#include "decoder/expect_status.h"
#include "decoder/gguf.h"
#include "decoder/gguf_writer.h"
#include "decoder/tiny_vocab.h"
#include "decoder/tokenizer.h"
#include "support/guarded_buffer.h"

namespace headlane::testing {
namespace {

constexpr size_t kMaxExtraBytes = size_t{64} << 20;

// What reading the file gives, the vocabulary included when it has one. Fails the test when that takes too much memory.
Status Read(const std::vector<uint8_t>& bytes, bool with_tokenizer = false) {
  const GuardedArray<uint8_t> guarded(bytes);
  AllocationCounter::Restart();
  const size_t before = AllocationCounter::live;
  Status status;
  {
    const Result<GgufFile> file = GgufFile::Parse({guarded.data(), guarded.size()});
    status = StatusOf(file);
    if (file.ok() && with_tokenizer) status = StatusOf(Tokenizer::Create(*file));
  }
  EXPECT_LE(AllocationCounter::peak - before, bytes.size() + kMaxExtraBytes) << status.message();
  return status;
}

// A header that claims these numbers, and nothing behind it.
ByteBuilder Header(uint64_t num_tensors, uint64_t num_entries, uint32_t version = 3) {
  ByteBuilder file;
  file.Raw("GGUF").Number(version).Number(num_tensors).Number(num_entries);
  return file;
}

// One tensor's line in the directory, and 64 bytes of data.
std::vector<uint8_t> OneTensor(std::string_view name, uint32_t num_dims, const std::vector<uint64_t>& dims,
                               uint32_t type, uint64_t offset) {
  ByteBuilder file = Header(1, 0);
  file.String(name).Number(num_dims);
  for (const uint64_t dim : dims) file.Number(dim);
  file.Number(type).Number(offset).PadTo(32).Raw(std::vector<uint8_t>(64));
  return file.bytes();
}

// One key whose type and value are these bytes.
std::vector<uint8_t> OneEntry(const ByteBuilder& type_and_value, std::string_view key = "k") {
  return GgufWriter().AddRaw(key, type_and_value.bytes()).Build();
}

TEST(HostileGgufTest, TheHelpersMakeValidFiles) {
  EXPECT_TRUE(Read(OneTensor("t", 2, {4, 4}, 0, 0)).ok());
  EXPECT_TRUE(Read(OneTensor("t", 1, {8}, 0, 32)).ok());
  EXPECT_TRUE(Read(OneEntry(ByteBuilder().Number(uint32_t{4}).Number(uint32_t{1}))).ok());
}

TEST(HostileGgufTest, MagicAndVersion) {
  EXPECT_ERROR(Read({}), kDataLoss, "takes 4 bytes, but only 0 are left");
  ByteBuilder lower;
  lower.Raw("gguf").Number(uint32_t{3}).Number(uint64_t{0}).Number(uint64_t{0});
  EXPECT_ERROR(Read(lower.bytes()), kDataLoss, "begins with 0x66756767, not 0x46554747");
  EXPECT_ERROR(Read(Header(0, 0, 0).bytes()), kUnsupported, "version 0; supported are 2 and 3");
  EXPECT_ERROR(Read(Header(0, 0, 1).bytes()), kUnsupported, "version 1; supported are 2 and 3");
  EXPECT_ERROR(Read(Header(0, 0, 4).bytes()), kUnsupported, "version 4; supported are 2 and 3");
  EXPECT_ERROR(Read(Header(0, 0, 3u << 24).bytes()), kUnsupported, "big-endian");
}

TEST(HostileGgufTest, Counts) {
  for (const uint64_t count :
       {uint64_t{1} << 63, std::numeric_limits<uint64_t>::max(), uint64_t{1} << 32, uint64_t{1}}) {
    EXPECT_ERROR(Read(Header(count, 0).bytes()), kDataLoss, std::to_string(count) + " tensors");
    EXPECT_ERROR(Read(Header(0, count).bytes()), kDataLoss, std::to_string(count) + " metadata keys");
  }
  // Counts that the file has room for, but nobody needs.
  ByteBuilder keys = Header(0, kGgufMaxEntries + 1);
  ByteBuilder tensors = Header(kGgufMaxTensors + 1, 0);
  const std::vector<uint8_t> room((kGgufMaxEntries + 1) * 40);
  EXPECT_ERROR(Read(keys.Raw(room).bytes()), kResourceExhausted, "65537 metadata keys; the limit is 65536");
  EXPECT_ERROR(Read(tensors.Raw(room).bytes()), kResourceExhausted, "65537 tensors; the limit is 65536");
}

TEST(HostileGgufTest, Dims) {
  EXPECT_ERROR(Read(OneTensor("t", 1, {0}, 0, 0)), kDataLoss, "'t': dim 0 is 0");
  EXPECT_ERROR(Read(OneTensor("t", 3, {4, 0, 4}, 0, 0)), kDataLoss, "'t': dim 1 is 0");
  EXPECT_ERROR(Read(OneTensor("t", 1, {uint64_t{1} << 63}, 0, 0)), kDataLoss, "dim 0 is 9223372036854775808");
  // The product is 4 modulo 2^64.
  EXPECT_ERROR(Read(OneTensor("t", 3, {4194305, 4194305, 211106198978564}, 0, 0)), kDataLoss,
               "more bytes than 64 bits count");
  EXPECT_ERROR(Read(OneTensor("t", 3, {4194305, 4194305, 211106198978564}, 24, 0)), kUnsupported, "(I8)");
  EXPECT_ERROR(Read(OneTensor("t", 1, {(uint64_t{1} << 42) + 1}, 0, 0)), kDataLoss, "17592186044420 bytes at offset 0");
  EXPECT_ERROR(Read(OneTensor("t", 1, {(uint64_t{1} << 62) + 1}, 0, 0)), kDataLoss, "more bytes than 64 bits count");
  EXPECT_ERROR(Read(OneTensor("t", 0, {}, 0, 0)), kDataLoss, "'t' has 0 dims; 1 to 4");
  EXPECT_ERROR(Read(OneTensor("t", 5, {1, 1, 1, 1, 1}, 0, 0)), kDataLoss, "'t' has 5 dims; 1 to 4");
  EXPECT_ERROR(Read(OneTensor("t", std::numeric_limits<uint32_t>::max(), {1}, 0, 0)), kDataLoss, "has 4294967295 dims");
  EXPECT_ERROR(Read(OneTensor("t", 1, {33}, 3, 0)), kDataLoss, "33 values is no whole number of Q4_1 blocks of 32");
}

TEST(HostileGgufTest, TensorTypes) {
  EXPECT_ERROR(Read(OneTensor("blk.0.attn_q.weight", 1, {256}, 10, 0)), kUnsupported,
               "'blk.0.attn_q.weight' is of type 10 (Q2_K); supported are F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, "
               "Q4_K, Q5_K, Q6_K, BF16");
  for (const uint32_t type : {4u, 5u, 9u, 16u, 31u, 1000u, 0xFFFFFFFFu}) {
    EXPECT_ERROR(Read(OneTensor("t", 1, {256}, type, 0)), kUnsupported, "of type " + std::to_string(type));
  }
}

TEST(HostileGgufTest, OffsetsAndSizes) {
  EXPECT_ERROR(Read(OneTensor("t", 1, {8}, 0, 4)), kDataLoss, "offset 4 is no multiple of the alignment 32");
  EXPECT_ERROR(Read(OneTensor("t", 1, {8}, 0, 96)), kDataLoss,
               "32 bytes at offset 96, but the file has 64 bytes of data");
  EXPECT_ERROR(Read(OneTensor("t", 1, {17}, 0, 0)), kDataLoss, "68 bytes at offset 0, but the file has 64");
  EXPECT_ERROR(Read(OneTensor("t", 1, {9}, 0, 32)), kDataLoss, "36 bytes at offset 32, but the file has 64");
  // Offset plus size wraps to a small number.
  EXPECT_ERROR(Read(OneTensor("t", 1, {16}, 0, ~uint64_t{31})), kDataLoss, "at offset 18446744073709551584");
}

TEST(HostileGgufTest, TensorNames) {
  EXPECT_ERROR(Read(OneTensor("", 1, {1}, 0, 0)), kDataLoss, "is empty");
  EXPECT_ERROR(Read(OneTensor(std::string(256, 'n'), 1, {1}, 0, 0)), kDataLoss, "256 bytes; the limit is 255");
  EXPECT_TRUE(Read(OneTensor(std::string(255, 'n'), 1, {1}, 0, 0)).ok());
  GgufWriter twice;
  twice.AddTensorF32("same", {1}, {1}).AddTensorF32("other", {1}, {1}).AddTensorF32("same", {1}, {1});
  EXPECT_ERROR(Read(twice.Build()), kDataLoss, "tensor 'same' occurs twice");
  // A name is shown without its control characters.
  EXPECT_ERROR(Read(OneTensor("a\x1b[2J", 1, {0}, 0, 0)), kDataLoss, "'a\\x1B[2J'");
}

TEST(HostileGgufTest, OverlappingTensors) {
  ByteBuilder file = Header(2, 0);
  file.String("a").Number(uint32_t{1}).Number(uint64_t{9}).Number(uint32_t{0}).Number(uint64_t{0});
  file.String("b").Number(uint32_t{1}).Number(uint64_t{1}).Number(uint32_t{0}).Number(uint64_t{32});
  file.PadTo(32).Raw(std::vector<uint8_t>(64));
  EXPECT_ERROR(Read(file.bytes()), kDataLoss, "tensor 'b' begins 32 bytes behind tensor 'a', which has 36");
}

TEST(HostileGgufTest, Keys) {
  const ByteBuilder number = ByteBuilder().Number(uint32_t{4}).Number(uint32_t{1});
  EXPECT_ERROR(Read(OneEntry(number, "")), kDataLoss, "key before byte 32 is empty");
  EXPECT_ERROR(Read(OneEntry(number, std::string(65536, 'k'))), kDataLoss, "65536 bytes; the format allows 65535");
  EXPECT_TRUE(Read(OneEntry(number, std::string(65535, 'k'))).ok());
  EXPECT_ERROR(Read(GgufWriter().Add("k", 1.0f).Add("l", 1.0f).Add("k", 2.0f).Build()), kDataLoss,
               "key 'k' occurs twice");
  ByteBuilder endless = Header(0, 1);
  endless.Number(uint64_t{1} << 63).Raw("0123456789");
  EXPECT_ERROR(Read(endless.bytes()), kDataLoss, "takes 9223372036854775808 bytes, but only 10 are left");
}

TEST(HostileGgufTest, Strings) {
  for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7, uint64_t{6}}) {
    const ByteBuilder value = ByteBuilder().Number(GgufWriter::kString).Number(length).Raw("short");
    EXPECT_ERROR(Read(OneEntry(value)), kDataLoss, "takes " + std::to_string(length) + " bytes, but only 5 are left");
  }
}

TEST(HostileGgufTest, Arrays) {
  const auto array = [](uint32_t type, uint64_t count) {
    return ByteBuilder().Number(GgufWriter::kArray).Number(type).Number(count);
  };
  // The whole file is smaller than what it claims by 2^63.
  ByteBuilder small = Header(0, 1);
  small.String("a").Raw(array(0, uint64_t{1} << 63).bytes());
  EXPECT_ERROR(Read(small.bytes()), kDataLoss, "an array of 9223372036854775808 u8, but only 0 bytes are left");
  for (const uint32_t type : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 10u, 11u, 12u}) {
    for (const uint64_t count : {uint64_t{1} << 63, uint64_t{1} << 61, uint64_t{1} << 60, ~uint64_t{0}, uint64_t{17}}) {
      ByteBuilder value = array(type, count);
      value.Raw(std::vector<uint8_t>(16));
      EXPECT_ERROR(Read(OneEntry(value)), kDataLoss, "an array of " + std::to_string(count));
    }
  }
  EXPECT_ERROR(Read(OneEntry(array(GgufWriter::kArray, 1).Number(uint32_t{4}).Number(uint64_t{0}))), kUnsupported,
               "an array of arrays");
  EXPECT_ERROR(Read(OneEntry(array(13, 1).Number(uint64_t{0}))), kDataLoss, "value type 13");
  // Strings within an array: the second one's length is too much, though the array's own count is not.
  EXPECT_ERROR(Read(OneEntry(array(GgufWriter::kString, 2).String("x").Number(uint64_t{1} << 63))), kDataLoss,
               "takes 9223372036854775808 bytes, but only 0 are left");
  ByteBuilder long_array = array(0, kGgufMaxArrayLength + 1);
  long_array.Raw(std::vector<uint8_t>(kGgufMaxArrayLength + 1));
  EXPECT_ERROR(Read(OneEntry(long_array)), kResourceExhausted, "16777217 elements; the limit is 16777216");
}

TEST(HostileGgufTest, ValueTypesAndBools) {
  EXPECT_ERROR(Read(OneEntry(ByteBuilder().Number(uint32_t{13}).Number(uint64_t{0}))), kDataLoss, "'k': value type 13");
  EXPECT_ERROR(Read(OneEntry(ByteBuilder().Number(~uint32_t{0}).Number(uint64_t{0}))), kDataLoss,
               "value type 4294967295");
  EXPECT_ERROR(Read(OneEntry(ByteBuilder().Number(uint32_t{7}).Number(uint8_t{2}))), kDataLoss,
               "a bool is 2, not 0 or 1");
  const ByteBuilder bools = ByteBuilder()
                                .Number(GgufWriter::kArray)
                                .Number(uint32_t{7})
                                .Number(uint64_t{2})
                                .Number(uint8_t{1})
                                .Number(uint8_t{255});
  EXPECT_ERROR(Read(OneEntry(bools)), kDataLoss, "a bool is 255, not 0 or 1");
}

TEST(HostileGgufTest, Alignment) {
  for (const uint32_t alignment : {0u, 1u, 3u, 4u, 48u, 1u << 21, 0xFFFFFFE0u}) {
    const auto file = GgufWriter().Add("general.alignment", alignment).AddTensorF32("t", {1}, {1}).Build();
    EXPECT_ERROR(Read(file), kDataLoss, "'general.alignment' is " + std::to_string(alignment));
  }
  EXPECT_ERROR(Read(GgufWriter().Add("general.alignment", int32_t{-32}).Build()), kDataLoss, "of type i32, not u32");
  EXPECT_ERROR(Read(GgufWriter().Add("general.alignment", uint64_t{32}).Build()), kDataLoss, "of type u64, not u32");
  EXPECT_ERROR(Read(GgufWriter().Add("general.alignment", "32").Build()), kDataLoss, "of type string, not u32");
  EXPECT_ERROR(Read(GgufWriter().AddArray("general.alignment", std::vector<uint32_t>{32}).Build()), kDataLoss,
               "of type array");
}

// A small file of everything.
GgufWriter Everything() {
  GgufWriter writer;
  writer.Add("general.architecture", "llama")
      .Add("general.alignment", uint32_t{32})
      .Add("a", uint8_t{1})
      .Add("b", true);
  TinyBpe{.pretokenizer = "gpt-2", .merges = {{"a", "b"}, {"ab", "c"}}, .missing_bytes = ""}.AddTo(&writer);
  writer.AddTensorF32("norm", {5}, {1, 2, 3, 4, 5});
  writer.AddTensor("weight", 2, {32, 3}, std::vector<uint8_t>(54, 1));
  return writer;
}

TEST(HostileGgufTest, CutAtEveryByte) {
  const std::vector<uint8_t> whole = Everything().Build();
  ASSERT_TRUE(Read(whole, true).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const Status status = Read({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}, true);
    ASSERT_EQ(status.code(), StatusCode::kDataLoss) << size << " of " << whole.size() << ": " << status.message();
  }
}

// The same with a vocabulary: it is the part whose sizes come from a file and lead to allocations.
struct VocabularyCase {
  const char* what;
  GgufWriter writer;
  StatusCode code;
  const char* part;
};

TEST(HostileGgufTest, Vocabularies) {
  using Strings = std::vector<std::string>;
  using Ints = std::vector<int32_t>;
  using Bytes = std::vector<uint8_t>;
  using Floats = std::vector<float>;
  constexpr StatusCode kLoss = StatusCode::kDataLoss, kMissing = StatusCode::kNotFound;
  constexpr StatusCode kUnsupported = StatusCode::kUnsupported, kLimit = StatusCode::kResourceExhausted;
  constexpr char kModel[] = "tokenizer.ggml.model", kPre[] = "tokenizer.ggml.pre", kTokens[] = "tokenizer.ggml.tokens";
  constexpr char kTypes[] = "tokenizer.ggml.token_type", kMerges[] = "tokenizer.ggml.merges";
  constexpr char kScores[] = "tokenizer.ggml.scores";
  constexpr char kBos[] = "tokenizer.ggml.bos_token_id", kEos[] = "tokenizer.ggml.eos_token_id";
  GgufWriter none, bpe, bpe_ab, spm, spm_ab, spm_scored;
  bpe.Add(kModel, "gpt2").Add(kPre, "gpt-2");
  bpe_ab = GgufWriter(bpe).AddArray(kTokens, Strings{"a", "b"});
  spm.Add(kModel, "llama");
  spm_ab = GgufWriter(spm).AddArray(kTokens, Strings{"a", "b"});
  spm_scored = GgufWriter(spm_ab).AddArray(kScores, Floats{0, 0});
  ASSERT_TRUE(Read(GgufWriter(bpe_ab).AddArray(kMerges, Strings{}).Build(), true).ok());
  ASSERT_TRUE(Read(spm_scored.Build(), true).ok());
  const auto with = [](const GgufWriter& base, const char* key, const auto& value) {
    GgufWriter writer = base;
    if constexpr (requires { value.begin(); }) {
      writer.AddArray(key, value);
    } else {
      writer.Add(key, value);
    }
    return writer;
  };
  const std::vector<VocabularyCase> cases = {
      {"no model", none, kMissing, "'tokenizer.ggml.model'"},
      {"model a number", with(none, kModel, 1.0f), kLoss, "not a string"},
      {"other model", with(none, kModel, "bert"), kUnsupported, "'bert' is not supported; supported are gpt2, llama"},
      {"other pre", with(with(none, kModel, "gpt2"), kPre, "tekken"), kUnsupported,
       "'tekken' is not supported; supported are smollm, starcoder, command-r, gpt-2, default, olmo, llama-bpe, "
       "llama3, "
       "falcon3, pixtral, lfm2, qwen2, deepseek-r1-qwen"},
      {"no tokens", bpe, kMissing, "'tokenizer.ggml.tokens'"},
      {"tokens numbers", with(bpe, kTokens, Ints{1}), kLoss, "an array of i32, not an array of string"},
      {"empty", with(bpe, kTokens, Strings{}), kLoss, "has 0 tokens; 1 to 1048576"},
      {"too many", with(bpe, kTokens, Strings((1 << 20) + 1)), kLimit, "has 1048577 tokens"},
      {"huge", with(bpe, kTokens, Strings{"a", std::string(65536, 'x')}), kLoss,
       "token 1 has 65536 bytes; the limit is 65535"},
      {"fewer types", with(bpe_ab, kTypes, Ints{1}), kLoss, "1 token types for 2 tokens"},
      {"types u8", with(bpe_ab, kTypes, Bytes{1, 1}), kLoss, "an array of u8, not an array of i32"},
      {"unknown type", with(bpe_ab, kTypes, Ints{1, 7}), kLoss, "token 1 is of type 7"},
      {"no merges", bpe_ab, kMissing, "'tokenizer.ggml.merges'"},
      {"too many merges", with(bpe_ab, kMerges, Strings((1 << 20) + 1)), kLimit,
       "has 1048577 merges; the limit is 1048576"},
      {"no pair", with(bpe_ab, kMerges, Strings{"a b", "ab"}), kLoss, "merge 1 'ab' is no pair"},
      {"half a pair", with(bpe_ab, kMerges, Strings{"a "}), kLoss, "merge 0 'a ' is no pair"},
      {"empty merge", with(bpe_ab, kMerges, Strings{""}), kLoss, "merge 0 '' is no pair"},
      {"no scores", spm_ab, kMissing, "'tokenizer.ggml.scores'"},
      {"scores u8, as many as tokens", with(spm_ab, kScores, Bytes{0, 0}), kLoss,
       "'tokenizer.ggml.scores' is an array of u8, not an array of f32"},
      {"fewer scores", with(spm_ab, kScores, Floats{0}), kLoss, "1 token scores for 2 tokens"},
      {"a NaN", with(spm_ab, kScores, Floats{0, std::numeric_limits<float>::quiet_NaN()}), kLoss,
       "the score of token 1 is no number"},
      {"BOS too high", with(spm_scored, kBos, uint32_t{2}), kLoss, "'tokenizer.ggml.bos_token_id' is 2; 0 to 1"},
      {"EOS negative", with(spm_scored, kEos, int32_t{-1}), kLoss, "'tokenizer.ggml.eos_token_id' is -1; 0 to 1"},
      {"flag a number", with(spm_scored, "tokenizer.ggml.add_bos_token", uint32_t{1}), kLoss, "not a bool"},
  };
  for (const VocabularyCase& one : cases) {
    EXPECT_TRUE(IsError(Read(one.writer.Build(), true), one.code, one.part)) << one.what;
  }
}

// The largest vocabulary that is let in stays within the bound too.
TEST(HostileGgufTest, TheLargestVocabularyFitsTheMemoryBound) {
  const size_t n = static_cast<size_t>(kMaxVocabulary);
  std::vector<std::string> tokens(n), merges(n);
  for (size_t i = 0; i < n; ++i) {
    for (int digit = 0; digit < 5; ++digit) tokens[i].push_back(static_cast<char>('a' + (i >> (4 * digit) & 15)));
    merges[i] = tokens[i].substr(0, 2) + " " + tokens[i].substr(2);
  }
  GgufWriter bpe;
  bpe.Add("tokenizer.ggml.model", "gpt2").Add("tokenizer.ggml.pre", "gpt-2");
  bpe.AddArray("tokenizer.ggml.tokens", tokens).AddArray("tokenizer.ggml.merges", merges);
  EXPECT_TRUE(Read(bpe.Build(), true).ok());
  GgufWriter spm;
  spm.Add("tokenizer.ggml.model", "llama").AddArray("tokenizer.ggml.tokens", tokens);
  spm.AddArray("tokenizer.ggml.scores", std::vector<float>(n))
      .AddArray("tokenizer.ggml.token_type", std::vector<int32_t>(n, 3));
  EXPECT_TRUE(Read(spm.Build(), true).ok());
}

}  // namespace
}  // namespace headlane::testing
