#include "headlane/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "headlane/dtype.h"

namespace headlane {
namespace {

TEST(Status, OkHasNoMessage) {
  const Status status{};
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_STREQ(status.c_str(), "");
  EXPECT_TRUE(OkStatus().ok());
}

TEST(Status, KeepsCodeAndMessageWhenCopied) {
  const Status status = MakeStatus(StatusCode::kOutOfRange, "layer %d of %s", 3, "two");
  EXPECT_FALSE(status.ok());
  Status copy = status;
  EXPECT_EQ(copy.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(copy.message(), "layer 3 of two");
  copy = Status();
  EXPECT_TRUE(copy.ok());
  EXPECT_EQ(copy.message(), "");
  copy = status;
  EXPECT_STREQ(copy.c_str(), "layer 3 of two");
  EXPECT_EQ(status.message(), "layer 3 of two");
}

TEST(Status, CutsLongMessages) {
  const std::string text(1000, 'x');
  const Status status = MakeStatus(StatusCode::kInternal, "%s", text.c_str());
  EXPECT_EQ(status.message(), std::string(Status::kMaxMessage, 'x'));
}

TEST(Status, AnErrorIsNeverOk) { EXPECT_EQ(MakeStatus(StatusCode::kOk, "no").code(), StatusCode::kInternal); }

TEST(Status, CodesHaveNames) {
  EXPECT_STREQ(StatusCodeName(StatusCode::kOk), "Ok");
  EXPECT_STREQ(StatusCodeName(StatusCode::kResourceExhausted), "ResourceExhausted");
  EXPECT_STREQ(StatusCodeName(static_cast<StatusCode>(99)), "?");
}

TEST(Result, HoldsAValueOrAnError) {
  Result<int> value = 5;
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*value, 5);
  EXPECT_TRUE(value.status().ok());
  const Result<int> error = MakeStatus(StatusCode::kNotFound, "gone");
  EXPECT_FALSE(error.ok());
  EXPECT_EQ(error.status().message(), "gone");
  const Result<int> defect = OkStatus();
  EXPECT_FALSE(defect.ok());
  EXPECT_EQ(defect.status().code(), StatusCode::kInternal);
}

TEST(Result, MovesAndDestroysItsValueOnce) {
  const std::shared_ptr<int> counted = std::make_shared<int>(1);
  {
    Result<std::shared_ptr<int>> first = counted;
    EXPECT_EQ(counted.use_count(), 2);
    Result<std::shared_ptr<int>> second = std::move(first);
    EXPECT_EQ(counted.use_count(), 2);
    const std::shared_ptr<int> taken = std::move(second).value();
    EXPECT_EQ(counted.use_count(), 2);
  }
  EXPECT_EQ(counted.use_count(), 1);
}

Result<int> Half(int x) {
  if (x % 2 != 0) return MakeStatus(StatusCode::kInvalidArgument, "%d is odd", x);
  return x / 2;
}
Result<int> Quarter(int x) {
  HEADLANE_ASSIGN_OR_RETURN(const int half, Half(x));
  int quarter = 0;
  HEADLANE_ASSIGN_OR_RETURN(quarter, Half(half));
  return quarter;
}
Status Check(int x) {
  HEADLANE_RETURN_IF_ERROR(Half(x).status());
  return OkStatus();
}

TEST(Result, MacrosReturnTheFirstError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(13).status().message(), "13 is odd");
  EXPECT_EQ(Quarter(14).status().message(), "7 is odd");
  EXPECT_TRUE(Check(2).ok());
  EXPECT_EQ(Check(3).message(), "3 is odd");
}

TEST(DType, NamesAndBytes) {
  EXPECT_STREQ(DTypeName(DType::kF32), "f32");
  EXPECT_STREQ(DTypeName(DType::kF16), "f16");
  EXPECT_STREQ(DTypeName(DType::kBF16), "bf16");
  EXPECT_STREQ(DTypeName(DType::kI8), "int8");
  EXPECT_STREQ(DTypeName(DType::kF8E4M3), "fp8");
  EXPECT_STREQ(DTypeName(DType::kI4), "int4");
  for (int i = 0; i < kNumDTypes; ++i) {  // what tensors hold has a size, what only caches hold has none
    EXPECT_EQ(IsQuantized(static_cast<DType>(i)), DTypeBytes(static_cast<DType>(i)) == 0);
  }
  EXPECT_STREQ(DTypeName(static_cast<DType>(kNumDTypes)), "?");
  EXPECT_EQ(DTypeBytes(DType::kF32), 4);
  EXPECT_EQ(DTypeBytes(DType::kF16), 2);
  EXPECT_EQ(DTypeBytes(DType::kBF16), 2);
  EXPECT_EQ(DTypeBytes(static_cast<DType>(-1)), 0);
}

}  // namespace
}  // namespace headlane
