// Reader, tokenizer and chat format on the default model's file, against ids of an independent tokenizer.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decoder/chat.h"
#include "decoder/dequant.h"
#include "decoder/expect_status.h"
#include "decoder/gguf.h"
#include "decoder/model_file.h"
#include "decoder/tokenizer.h"
#include "decoder/tokenizer_util.h"

namespace headlane::testing {
namespace {

std::string ReadFile(const std::string& name) {
  std::ifstream in(std::string(HEADLANE_TEST_DATA) + "/" + name, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_FALSE(text.str().empty()) << name;
  return text.str();
}

const nlohmann::json& Reference() {
  static const nlohmann::json reference = nlohmann::json::parse(ReadFile("smollm2_135m_instruct_q4_1.json"));
  return reference;
}

#define OPEN_MODEL()                                              \
  HEADLANE_NEED_MODEL(path);                                      \
  const Result<GgufFile> file = GgufFile::Open(path);             \
  ASSERT_TRUE(file.ok()) << file.status().message();              \
  ASSERT_EQ(file->bytes().size(), Reference()["model"]["bytes"]); \
  const Result<Tokenizer> tokenizer = Tokenizer::Create(*file);   \
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message()

TEST(DefaultModelTest, FileIsWhatItIsSaidToBe) {
  OPEN_MODEL();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->GetString("general.architecture").value(), "llama");
  EXPECT_EQ(file->GetU32("llama.block_count").value(), 30u);
  EXPECT_EQ(file->GetF32("llama.rope.freq_base").value(), 100000.0f);
  int num_q4_1 = 0, num_f32 = 0, num_q8_0 = 0;
  for (const GgufTensor& tensor : file->tensors()) {
    num_q4_1 += tensor.type == TensorType::kQ4_1;
    num_f32 += tensor.type == TensorType::kF32;
    num_q8_0 += tensor.type == TensorType::kQ8_0;
  }
  EXPECT_EQ(num_q4_1, 210);
  EXPECT_EQ(num_f32, 61);
  EXPECT_EQ(num_q8_0, 1);
  EXPECT_TRUE(file->GetTensor("token_embd.weight", {576, 49152}).ok());
  EXPECT_EQ(tokenizer->vocab_size(), 49152);
  EXPECT_EQ(tokenizer->pretokenizer_name(), "smollm");
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->eos_id(), 2);
}

TEST(DefaultModelTest, EveryWeightIsFinite) {
  OPEN_MODEL();
  std::vector<float> row;
  for (const GgufTensor& tensor : file->tensors()) {
    row.resize(static_cast<size_t>(tensor.row_len()));
    for (int64_t i = 0; i < tensor.num_rows(); i += tensor.num_rows() < 64 ? 1 : 61) {
      ASSERT_TRUE(DequantizeRow(tensor.type, tensor.row(i), tensor.row_len(), row.data()).ok()) << tensor.name;
      for (const float x : row) ASSERT_TRUE(std::isfinite(x)) << tensor.name << " row " << i;
    }
  }
}

TEST(DefaultModelTest, IdsOfEveryReferenceText) {
  OPEN_MODEL();
  ASSERT_EQ(Reference()["tokenizer"].size(), 115u);
  int with_special = 0;
  for (const auto& entry : Reference()["tokenizer"]) {
    const std::string text = entry["text"];
    const Ids literal = entry["ids"].get<Ids>();
    EXPECT_EQ(Encode(*tokenizer, text), literal) << text;
    with_special += entry.contains("ids_with_special_tokens");
    const Ids special =
        entry.contains("ids_with_special_tokens") ? entry["ids_with_special_tokens"].get<Ids>() : literal;
    EXPECT_EQ(Encode(*tokenizer, text, {.parse_special = true}), special) << text;
    EXPECT_EQ(Decode(*tokenizer, literal), text);
    EXPECT_EQ(Decode(*tokenizer, special), text);
  }
  EXPECT_GT(with_special, 3);
}

TEST(DefaultModelTest, IdsOfEveryPromptAndTextOfEveryGeneration) {
  OPEN_MODEL();
  for (const auto& entry : Reference()["generation"]) {
    EXPECT_EQ(Encode(*tokenizer, entry["prompt"].get<std::string>(), {.parse_special = true}),
              entry["prompt_ids"].get<Ids>());
    const Ids generated = entry["generated_ids"].get<Ids>();
    EXPECT_EQ(Decode(*tokenizer, generated), entry["text"].get<std::string>());
    // A generation ends at the first stop token, and only there.
    for (size_t i = 0; i + 1 < generated.size(); ++i) EXPECT_FALSE(tokenizer->IsStop(generated[i]));
    EXPECT_TRUE(generated.size() == entry["count"].get<size_t>() || tokenizer->IsStop(generated.back()));
  }
}

TEST(DefaultModelTest, IdsOfTheReferenceText) {
  OPEN_MODEL();
  const std::string text = ReadFile("reference_text.txt");
  const Ids ids = Encode(*tokenizer, text);
  EXPECT_EQ(ids.size(), Reference()["perplexity"]["tokens"]);
  EXPECT_EQ(Decode(*tokenizer, ids), text);
}

TEST(DefaultModelTest, ChatPrompts) {
  OPEN_MODEL();
  const Result<ChatFormat> chat = ChatFormat::Create(*file, *tokenizer);
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  EXPECT_EQ(chat->default_system(), "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
  const auto prompt_ids = [](const std::string& name) {
    for (const auto& entry : Reference()["generation"]) {
      if (entry["name"] == name) return entry["prompt_ids"].get<Ids>();
    }
    return Ids();
  };
  EXPECT_EQ(chat->EncodePrompt(*tokenizer, "Why is the sky blue?").value(), prompt_ids("chat_sky"));
  EXPECT_EQ(chat->EncodePrompt(*tokenizer, "List three uses of a paper clip.").value(), prompt_ids("chat_list"));
  const ChatMessage turns[] = {
      {"user", "My name is Alex."}, {"assistant", "Nice to meet you, Alex."}, {"user", "What is my name?"}};
  EXPECT_EQ(chat->Encode(*tokenizer, turns).value(), prompt_ids("chat_turns"));
}

TEST(DefaultModelTest, BytesWithoutATokenAreNamed) {
  OPEN_MODEL();
  int missing = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    const Result<Ids> ids = tokenizer->Encode(text);
    if (ids.ok()) {
      EXPECT_EQ(Decode(*tokenizer, *ids), text) << byte;
    } else {
      EXPECT_ERROR(ids, kInvalidArgument, "at byte 0 of the text");
      ++missing;
    }
  }
  EXPECT_EQ(missing, 21);
}

}  // namespace
}  // namespace headlane::testing
