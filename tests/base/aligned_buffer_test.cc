#include "base/aligned_buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace headlane::internal {
namespace {

TEST(AlignedBuffer, IsAlignedWritableAndZero) {
  for (const int64_t bytes : {int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{4097}, int64_t{1} << 20,
                              kHugePageBytes - 1, kHugePageBytes, kHugePageBytes + 1, 3 * kHugePageBytes + 12345}) {
    Result<AlignedBuffer> buffer = AlignedBuffer::Create(bytes, "test");
    ASSERT_TRUE(buffer.ok()) << buffer.status().message();
    EXPECT_EQ(buffer->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 4096, 0u);
#if defined(__linux__)
    if (bytes >= kHugePageBytes) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kHugePageBytes, 0u);
    }
#endif
    for (int64_t i = 0; i < bytes; i += 997) ASSERT_EQ(buffer->data()[i], std::byte{0});
    std::memset(buffer->data(), 0xFF, static_cast<size_t>(bytes));
    EXPECT_EQ(buffer->as<uint8_t>()[bytes - 1], 0xFF);
  }
}

TEST(AlignedBuffer, NothingIsNothing) {
  Result<AlignedBuffer> buffer = AlignedBuffer::Create(0, "test");
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->data(), nullptr);
  EXPECT_EQ(buffer->bytes(), 0);
}

TEST(AlignedBuffer, AbsurdSizesAreErrorsThatNameThem) {
  for (const int64_t bytes : {int64_t{-1}, std::numeric_limits<int64_t>::min(), int64_t{1} << 50,
                              std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max() - 4096}) {
    const Result<AlignedBuffer> buffer = AlignedBuffer::Create(bytes, "the test's block");
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(buffer.status().message().find("the test's block"), std::string_view::npos);
    EXPECT_NE(buffer.status().message().find(std::to_string(bytes)), std::string_view::npos);
  }
}

TEST(AlignedBuffer, MovesOwnership) {
  AlignedBuffer first = std::move(AlignedBuffer::Create(100, "test")).value();
  std::byte* const data = first.data();
  AlignedBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.bytes(), 100);
  AlignedBuffer third = std::move(AlignedBuffer::Create(kHugePageBytes, "test")).value();
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  third.data()[99] = std::byte{1};
  AlignedBuffer& self = third;
  third = std::move(self);
  EXPECT_EQ(third.data()[99], std::byte{1});
}

#if defined(__linux__)
TEST(AlignedBufferDeathTest, AGuardFollowsTheLastPage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int64_t bytes : {int64_t{4096}, kHugePageBytes}) {
    AlignedBuffer buffer = std::move(AlignedBuffer::Create(bytes, "test")).value();
    volatile std::byte* const data = buffer.data();
    data[bytes - 1] = std::byte{1};
    EXPECT_DEATH(data[bytes] = std::byte{1}, "");
  }
}
#endif

}  // namespace
}  // namespace headlane::internal
