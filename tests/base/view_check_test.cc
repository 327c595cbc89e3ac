#include "base/view_check.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <string_view>
#include <vector>

namespace headlane::internal {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

bool Names(const Status& status, std::string_view word) {
  return status.message().find(word) != std::string_view::npos;
}

TEST(ViewCheck, AcceptsEveryLayoutOfDenseTensors) {
  float data[2 * 3 * 5 * 7];
  EXPECT_TRUE(CheckView("x", TokensHeadsDim(data, 3, 5, 7)).ok());
  EXPECT_TRUE(CheckView("x", BatchHeadsTokensDim(data, 2, 5, 3, 7)).ok());
  EXPECT_TRUE(CheckView("x", TokensHeadsDim(static_cast<const float*>(data), 3, 5, 7)).ok());
  TensorView transposed = TokensHeadsDim(data, 3, 5, 7);
  transposed.dim_stride = 15;
  transposed.token_stride = 1;
  transposed.head_stride = 3;
  EXPECT_TRUE(CheckView("x", transposed).ok());
  TensorView backwards = TokensHeadsDim(data + 3 * 5 * 7 - 1, 3, 5, 7);
  backwards.token_stride = -35;
  backwards.head_stride = -7;
  backwards.dim_stride = -1;
  EXPECT_TRUE(CheckView("x", backwards).ok());
}

TEST(ViewCheck, EmptyTensorsNeedNoData) {
  for (int64_t TensorView::* extent :
       {&TensorView::num_batch, &TensorView::num_tokens, &TensorView::num_heads, &TensorView::dim}) {
    TensorView view{nullptr, DType::kF32, 1, 2, 3, 4, kMax, kMin, kMax, kMin};
    view.*extent = 0;
    EXPECT_TRUE(CheckView("x", view).ok());
    view.*extent = -1;
    const Status status = CheckView("x", view);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Names(status, "x") && Names(status, "-1")) << status.message();
  }
}

TEST(ViewCheck, RefusesBadData) {
  alignas(8) std::array<float, 16> data{};
  TensorView view = TokensHeadsDim(static_cast<float*>(nullptr), 2, 2, 2);
  EXPECT_TRUE(Names(CheckView("the queries", view), "the queries"));
  EXPECT_TRUE(Names(CheckView("x", view), "null"));
  view.data = reinterpret_cast<char*>(data.data()) + 1;
  EXPECT_TRUE(Names(CheckView("x", view), "1 bytes"));
  view.data = reinterpret_cast<char*>(data.data()) + 2;
  EXPECT_EQ(CheckView("x", view).code(), StatusCode::kInvalidArgument);
  view.dtype = DType::kBF16;  // two bytes are enough for this one
  EXPECT_TRUE(CheckView("x", view).ok());
  for (const int code : {-1, kNumDTypes, 1000}) {
    view.dtype = static_cast<DType>(code);
    const Status status = CheckView("x", view);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Names(status, std::to_string(code))) << status.message();
  }
  for (const DType dtype : {DType::kI8, DType::kF8E4M3, DType::kI4}) {
    view.dtype = dtype;
    const Status status = CheckView("x", view);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_TRUE(Names(status, DTypeName(dtype))) << status.message();
  }
}

TEST(ViewCheck, RefusesStridesThatLeaveTheAddressSpace) {
  float data[8];
  for (int64_t ConstTensorView::* stride : {&ConstTensorView::batch_stride, &ConstTensorView::token_stride,
                                            &ConstTensorView::head_stride, &ConstTensorView::dim_stride}) {
    for (const int64_t value :
         {kMax, kMin, kMax / 2, kMin / 2, kMax / 4, kMin / 4, int64_t{1} << 61, -(int64_t{1} << 60)}) {
      ConstTensorView view{data, DType::kF32, 2, 2, 2, 2, 0, 0, 0, 0};
      EXPECT_TRUE(CheckView("x", view).ok());  // zero strides are fine for reading
      view.*stride = value;
      const Status status = CheckView("x", view);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << value;
      EXPECT_TRUE(Names(status, "stride")) << status.message();
    }
  }
  // Each axis fits, their sum does not.
  EXPECT_FALSE(
      CheckView("x", ConstTensorView{data, DType::kF32, 2, 2, 2, 2, kMax / 8, kMax / 8, kMax / 8, kMax / 8}).ok());
  // Below the first address.
  EXPECT_FALSE(CheckView("x", ConstTensorView{data, DType::kF32, 2, 1, 1, 1, -(int64_t{1} << 59), 0, 0, 0}).ok());
  // An extent of 1 is never stepped along.
  EXPECT_TRUE(CheckView("x", ConstTensorView{data, DType::kF32, 1, 1, 1, 1, kMax, kMin, kMax, kMin}).ok());
  EXPECT_FALSE(CheckView("x", ConstTensorView{data, DType::kF32, kMax, kMax, kMax, kMax, 1, 1, 1, 1}).ok());
}

// Against the definition, on all small views: overlap is never accepted, and what is refused either overlaps or
// interleaves axes.
TEST(ViewCheck, OutputsMustNotOverlap) {
  std::vector<float> data(1000);
  int64_t accepted = 0;
  int64_t refused_without_overlap = 0;
  int64_t overlapping = 0;
  const std::array<int64_t, 9> strides = {-6, -3, -2, 0, 1, 2, 3, 6, 12};
  for (const int64_t batch_stride : strides) {
    for (const int64_t token_stride : strides) {
      for (const int64_t head_stride : strides) {
        for (const int64_t dim_stride : strides) {
          for (const int64_t num_heads : {1, 2}) {
            const TensorView view{data.data() + 500, DType::kF32,  2,           3,         num_heads, 2,
                                  batch_stride,      token_stride, head_stride, dim_stride};
            std::set<int64_t> offsets;
            for (int64_t b = 0; b < 2; ++b) {
              for (int64_t t = 0; t < 3; ++t) {
                for (int64_t h = 0; h < num_heads; ++h) {
                  for (int64_t d = 0; d < 2; ++d) {
                    offsets.insert(b * batch_stride + t * token_stride + h * head_stride + d * dim_stride);
                  }
                }
              }
            }
            const bool overlaps = static_cast<int64_t>(offsets.size()) < 2 * 3 * num_heads * 2;
            const Status status = CheckView("out", view);
            if (overlaps) {
              ++overlapping;
              ASSERT_EQ(status.code(), StatusCode::kInvalidArgument);
              ASSERT_TRUE(Names(status, "out") && Names(status, "overlap")) << status.message();
            } else {
              ++(status.ok() ? accepted : refused_without_overlap);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(overlapping, 1000);
  EXPECT_LT(refused_without_overlap, accepted);
}

}  // namespace
}  // namespace headlane::internal
