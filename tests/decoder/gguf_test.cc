// The GGUF reader on valid files, and what it says when a valid file is asked for what it does not hold.
#include "decoder/gguf.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "decoder/expect_status.h"
#include "decoder/gguf_writer.h"
#include "support/guarded_buffer.h"

namespace headlane::testing {
namespace {

class File {
 public:
  explicit File(const std::vector<uint8_t>& bytes) : bytes_(bytes), file_(Parse()) {}
  const GgufFile* operator->() const { return &file_; }

 private:
  GgufFile Parse() {
    Result<GgufFile> file = GgufFile::Parse({bytes_.data(), bytes_.size()});
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? std::move(file).value() : GgufFile();
  }
  GuardedArray<uint8_t> bytes_;
  GgufFile file_;
};

TEST(GgufFileTest, ReadsEveryValueType) {
  GgufWriter writer;
  writer.Add("u8", uint8_t{200}).Add("i8", int8_t{-100}).Add("u16", uint16_t{60000}).Add("i16", int16_t{30000});
  writer.Add("u32", uint32_t{4000000000u})
      .Add("i32", int32_t{2000000000})
      .Add("u64", uint64_t{7})
      .Add("i64", int64_t{8});
  writer.Add("f32", 1.5f).Add("f64", 0.25).Add("true", true).Add("false", false).Add("text", "a\"b").Add("empty", "");
  writer.AddArray("numbers", std::vector<float>{1, -2, 3}).AddArray("ids", std::vector<int32_t>{-1, 5});
  writer.AddArray("counts", std::vector<uint32_t>{9}).AddArray("none", std::vector<std::string>{});
  writer.AddArray("words", std::vector<std::string>{"one", "", "three"}).AddArray("bools", std::vector<uint8_t>{0, 1});
  for (const uint32_t version : {2u, 3u}) {
    const File file(writer.Build(version));
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->entries().size(), 20u);
    EXPECT_EQ(file->GetU32("u8").value(), 200u);
    EXPECT_EQ(file->GetU32("u16").value(), 60000u);
    EXPECT_EQ(file->GetU32("i16").value(), 30000u);
    EXPECT_EQ(file->GetU32("u32").value(), 4000000000u);
    EXPECT_EQ(file->GetU32("i32").value(), 2000000000u);
    EXPECT_EQ(file->GetU32("u64").value(), 7u);
    EXPECT_EQ(file->GetU32("i64").value(), 8u);
    EXPECT_EQ(file->GetF32("f32").value(), 1.5f);
    EXPECT_EQ(file->GetF32("f64").value(), 0.25f);
    EXPECT_TRUE(file->GetBoolOr("true", false).value());
    EXPECT_FALSE(file->GetBoolOr("false", true).value());
    EXPECT_EQ(file->GetString("text").value(), "a\"b");
    EXPECT_EQ(file->GetString("empty").value(), "");
    const GgufArray<float> numbers = file->GetF32Array("numbers").value();
    ASSERT_EQ(numbers.size(), 3);
    EXPECT_EQ(numbers[1], -2.0f);
    EXPECT_EQ(file->GetI32Array("ids").value()[0], -1);
    EXPECT_EQ(file->GetI32Array("counts").value()[0], 9);
    EXPECT_EQ(file->GetStringArray("none").value().size(), 0);
    const GgufStringArray words = file->GetStringArray("words").value();
    EXPECT_EQ(words.total_bytes(), 8);
    EXPECT_EQ(std::vector<std::string_view>(words.begin(), words.end()),
              (std::vector<std::string_view>{"one", "", "three"}));
  }
}

TEST(GgufFileTest, NamesKeyAndTypesOfWhatIsNotThere) {
  GgufWriter writer;
  writer.Add("negative", int32_t{-7})
      .Add("huge", uint64_t{1} << 40)
      .Add("text", "x")
      .Add("real", 1.0f)
      .Add("big", 1e300);
  writer.AddArray("bytes", std::vector<uint8_t>{1, 2}).AddArray("high", std::vector<uint32_t>{1, 1u << 31});
  const File file(writer.Build());
  EXPECT_ERROR(file->GetU32("absent"), kNotFound, "'absent'");
  EXPECT_ERROR(file->GetF32("absent"), kNotFound, "'absent'");
  EXPECT_ERROR(file->GetString("absent"), kNotFound, "'absent'");
  EXPECT_ERROR(file->GetStringArray("absent"), kNotFound, "'absent'");
  EXPECT_ERROR(file->GetU32("negative"), kDataLoss, "'negative' is -7; 0 to 4294967295");
  EXPECT_ERROR(file->GetU32("huge"), kDataLoss, "1099511627776");
  EXPECT_ERROR(file->GetU32("text"), kDataLoss, "'text' is of type string, not an integer");
  EXPECT_ERROR(file->GetU32("real"), kDataLoss, "of type f32, not an integer");
  EXPECT_ERROR(file->GetF32("text"), kDataLoss, "of type string, not a float");
  EXPECT_ERROR(file->GetF32("big"), kDataLoss, "1e+300");
  EXPECT_ERROR(file->GetBoolOr("text", true), kDataLoss, "not a bool");
  EXPECT_ERROR(file->GetString("real"), kDataLoss, "of type f32, not a string");
  EXPECT_ERROR(file->GetF32Array("bytes"), kDataLoss, "'bytes' is an array of u8, not an array of f32");
  EXPECT_ERROR(file->GetStringArray("bytes"), kDataLoss, "an array of u8, not an array of string");
  EXPECT_ERROR(file->GetI32Array("bytes"), kDataLoss, "not an array of i32");
  EXPECT_ERROR(file->GetI32Array("high"), kDataLoss, "element 1 is 2147483648");
  EXPECT_ERROR(file->GetF32Array("real"), kDataLoss, "of type f32, not an array of f32");
  EXPECT_ERROR(file->GetU32("bytes"), kDataLoss, "an array of u8, not an integer");
  EXPECT_ERROR(file->GetU32InRange("text", 1, 512), kDataLoss, "not an integer");
  // A fallback is for a missing key only.
  EXPECT_EQ(file->GetU32Or("absent", 5).value(), 5u);
  EXPECT_EQ(file->GetF32Or("absent", 0.5f).value(), 0.5f);
  EXPECT_EQ(file->GetStringOr("absent", "y").value(), "y");
  EXPECT_ERROR(file->GetU32Or("text", 5), kDataLoss, "not an integer");
  EXPECT_ERROR(file->GetF32Or("text", 5), kDataLoss, "not a float");
  EXPECT_ERROR(file->GetStringOr("real", "y"), kDataLoss, "not a string");
}

TEST(GgufFileTest, ChecksRanges) {
  GgufWriter writer;
  writer.Add("layers", uint32_t{513}).Add("heads", uint32_t{0});
  const File file(writer.Build());
  EXPECT_ERROR(file->GetU32InRange("layers", 1, 512), kDataLoss, "'layers' is 513; 1 to 512");
  EXPECT_ERROR(file->GetU32InRange("heads", 1, 512), kDataLoss, "'heads' is 0; 1 to 512");
  EXPECT_EQ(file->GetU32InRange("layers", 513, 513).value(), 513u);
}

TEST(GgufFileTest, FindsTensorsWithTheirData) {
  GgufWriter writer;
  writer.AddTensorF32("norm", {3}, {1, 2, 3});
  std::vector<uint8_t> blocks(2 * 2 * 20);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint8_t>(i);
  writer.AddTensor("weight", 3, {64, 2}, blocks);
  writer.AddTensorF32("cube", {2, 1, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  const File file(writer.Build());
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensors()[0].name, "norm");
  const GgufTensor weight = file->GetTensor("weight", {64, 2}).value();
  EXPECT_EQ(weight.type, TensorType::kQ4_1);
  EXPECT_EQ(weight.row_len(), 64);
  EXPECT_EQ(weight.num_rows(), 2);
  EXPECT_EQ(weight.row_bytes(), 40);
  EXPECT_TRUE(std::equal(weight.row(1).begin(), weight.row(1).end(), blocks.begin() + 40, blocks.end()));
  const GgufTensor cube = file->GetTensor("cube").value();
  EXPECT_EQ(cube.num_rows(), 4);
  EXPECT_EQ(cube.num_dims, 4);
  float last;
  std::memcpy(&last, cube.row(3).data() + 4, 4);
  EXPECT_EQ(last, 7.0f);
  EXPECT_EQ(file->FindTensor("norm")->data.size(), 12u);
  EXPECT_EQ(file->FindTensor("nor"), nullptr);
  EXPECT_EQ(file->FindTensor("norm2"), nullptr);
  EXPECT_ERROR(file->GetTensor("output"), kNotFound, "'output'");
  EXPECT_ERROR(file->GetTensor("weight", {2, 64}), kDataLoss, "'weight' is [64, 2], not [2, 64]");
  EXPECT_ERROR(file->GetTensor("norm", {3, 2}), kDataLoss, "'norm' is [3], not [3, 2]");
  EXPECT_TRUE(file->GetTensor("norm", {3, 1}).ok());
}

TEST(GgufFileTest, HonoursTheAlignmentKey) {
  for (const uint32_t alignment : {8u, 64u, 4096u}) {
    GgufWriter writer;
    writer.Add("general.alignment", alignment).AddTensorF32("a", {1}, {1}).AddTensorF32("b", {1}, {2});
    const File file(writer.Build(3, alignment));
    float b;
    std::memcpy(&b, file->GetTensor("b", {1}).value().data.data(), 4);
    EXPECT_EQ(b, 2.0f) << alignment;
  }
}

TEST(GgufFileTest, ReadsAFileWithoutTensorsOrKeys) {
  const File file(GgufWriter().Build());
  EXPECT_TRUE(file->entries().empty());
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(file->FindEntry("x"), nullptr);
}

class GgufOpenTest : public ::testing::Test {
 protected:
  GgufOpenTest() {
    folder_ = ::testing::TempDir() + "headlane_gguf_test.XXXXXX";
    if (mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << "no folder " << folder_;
  }
  ~GgufOpenTest() override {
    std::remove((folder_ + "/file").c_str());
    std::remove(folder_.c_str());
  }
  std::string Write(const std::vector<uint8_t>& bytes) {
    std::ofstream out(folder_ + "/file", std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return folder_ + "/file";
  }
  std::string folder_;
};

TEST_F(GgufOpenTest, MapsAFileAndSurvivesBeingMoved) {
  GgufWriter writer;
  writer.Add("name", "tiny").AddTensorF32("a", {1}, {42});
  Result<GgufFile> opened = GgufFile::Open(Write(writer.Build()));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  GgufFile first = std::move(opened).value();
  const GgufFile file = std::move(first);
  EXPECT_EQ(file.GetString("name").value(), "tiny");
  float value;
  std::memcpy(&value, file.GetTensor("a").value().data.data(), 4);
  EXPECT_EQ(value, 42.0f);
}

TEST_F(GgufOpenTest, RefusesWhatIsNoFile) {
  EXPECT_ERROR(GgufFile::Open(folder_ + "/absent"), kNotFound, "absent");
  EXPECT_ERROR(GgufFile::Open(folder_), kInvalidArgument, "no regular file");
  EXPECT_ERROR(GgufFile::Open("/dev/zero"), kInvalidArgument, "no regular file");
  EXPECT_ERROR(GgufFile::Open(Write({})), kDataLoss, "is empty");
  EXPECT_ERROR(GgufFile::Open(Write({'G', 'G'})), kDataLoss, "takes 4 bytes, but only 2 are left");
  ASSERT_EQ(std::remove((folder_ + "/file").c_str()), 0);
  ASSERT_EQ(mkfifo((folder_ + "/file").c_str(), 0600), 0);
  EXPECT_ERROR(GgufFile::Open(folder_ + "/file"), kInvalidArgument, "no regular file");
}

}  // namespace
}  // namespace headlane::testing
